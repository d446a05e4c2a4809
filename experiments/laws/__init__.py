"""Coverage and other rates against exact laws, and published simulations."""
