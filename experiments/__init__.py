"""Experiments: `python -m experiments.NAME` from the root of the repository."""
