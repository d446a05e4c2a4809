"""Real data: published results repeated, and methods compared on them."""
