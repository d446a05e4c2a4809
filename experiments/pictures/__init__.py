"""Figures: the front page, the decision tree, every method on real data."""
