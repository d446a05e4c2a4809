"""Prediction sets. A class describes one example; leading axes are batches.

`contains`, `size` and `is_empty` give one answer for each set, inside and outside of
`jax.vmap`. A set of your own needs `contains` alone; what else it may offer, and what
that is for, is said by the protocols of `jaxcp.typing`.
"""

from jaxcp.sets.basic import BoundingBox, Box, Interval
from jaxcp.sets.labels import LabelSet
from jaxcp.sets.norms import Ball
from jaxcp.sets.points import membership
from jaxcp.sets.regions import Balls, Ellipsoid, LevelSet
from jaxcp.sets.unions import Intervals

__all__ = [
    "Ball",
    "Balls",
    "BoundingBox",
    "Box",
    "Ellipsoid",
    "Interval",
    "Intervals",
    "LabelSet",
    "LevelSet",
    "membership",
]
__dir__ = __all__.copy
