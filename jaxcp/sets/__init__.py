"""Prediction sets. Each describes one example; `jax.vmap` batches its methods."""

from jaxcp.sets.basic import BoundingBox, Box, Interval, LabelSet
from jaxcp.sets.points import membership
from jaxcp.sets.regions import Balls, Ellipsoid, LevelSet

__all__ = [
    "Balls",
    "BoundingBox",
    "Box",
    "Ellipsoid",
    "Interval",
    "LabelSet",
    "LevelSet",
    "membership",
]
