"""Prediction sets. A class describes one example; leading axes are batches.

`contains`, `size` and `is_empty` give one answer for each set, inside and outside of
`jax.vmap`. A set of your own needs `contains` alone; what else it may offer, and what
that is for, is said by the protocols of `jaxcp.typing`.

A batch is data: `len(sets)`, `sets[i]` for one set, `sets[2:5]`, `sets[[0, 7]]` and
`sets[mask]` for batches, and a loop over the sets one by one (so that `lower, upper =
sets` are the first of two sets and the second, not ends: these are `sets.lower`,
`sets.upper`). Sets with ends or labels make arrays, `to_numpy()`, and frames,
`to_pandas(index=, columns=)`; intervals and boxes are cut to bounds of the targets by
`clip(lower, upper)`. A set is true in an `if`, also a batch of none.
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
