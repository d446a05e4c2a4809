"""Prediction sets. A class describes one example; leading axes are batches.

`contains`, `size` and `is_empty` give one answer for each set, inside and outside of
`jax.vmap`. A set of your own needs `contains` alone; `Batch` makes data of its batches,
and the protocols of `jaxcp.typing` say what else it may offer, and what for.

A batch is data: `len(sets)`, `sets[i]` for one set, `sets[2:5]`, `sets[[0, 7]]` and
`sets[mask]` for batches, and a loop over the sets one by one (so `lower, upper = sets`
gives two sets, not the ends: these are `sets.lower` and `sets.upper`). Sets with ends
or labels make arrays, `to_numpy()`, and frames, `to_pandas(index=, columns=)`;
intervals, their unions and boxes are cut to bounds of the targets by `clip(lower,
upper)`. In an `if` every batch is true, also an empty one.
"""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.sets.bands import Band
    from jaxcp.sets.basic import BoundingBox, Box, Interval
    from jaxcp.sets.batches import Batch
    from jaxcp.sets.labels import Kept, LabelMask, LabelSet
    from jaxcp.sets.regions import Ball, Balls, Ellipsoid, LevelSet, membership
    from jaxcp.sets.unions import Intervals

# fmt: off
__all__ = [
    "Ball", "Balls", "Band", "Batch", "BoundingBox", "Box", "Ellipsoid", "Interval",
    "Intervals", "Kept", "LabelMask", "LabelSet", "LevelSet", "membership",
]
# fmt: on
