"""Full conformal prediction: every row trains, and the test point with it."""
