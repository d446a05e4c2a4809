"""How far two boxes are the same."""

from __future__ import annotations

import jax
from jax import Array

from jaxcp import _geometry
from jaxcp._arrays import as_array
from jaxcp.typing import ArrayLike


def iou(a: ArrayLike, b: ArrayLike) -> Array:
    """Returns the intersection over union of every box of `a` with every one of `b`.

    Areas are those of real numbers: no pixel is added to a side.

    Args:
      a: Boxes (x_min, y_min, x_max, y_max), shape (..., 4).
      b: Boxes, shape (..., 4), e.g. `sets.corners()` of conformal boxes.

    Returns:
      IoU in [0, 1], shape a.shape[:-1] + b.shape[:-1]: (n, m) for n and m boxes, () for
      one and one; `jax.vmap(iou)` for pairs. 0 where both are flat or one is infinite.

    Raises:
      ValueError: if shapes do not end in 4, or a concrete box is NaN or crossed, x_min
        > x_max or y_min > y_max.

    Cost:
      O(n m) time for n and m boxes.

    See also:
      detection.match_boxes, sets.BoundingBox.corners

    Example:
      >>> a = jnp.array([0.0, 0.0, 2.0, 2.0])
      >>> b = jnp.array([[1.0, 0.0, 3.0, 2.0], [2.0, 2.0, 3.0, 3.0]])
      >>> iou(a, b).round(4)
      Array([0.3333, 0.    ], dtype=float32)
    """
    a, b = as_array("a", a), as_array("b", b)
    _geometry.check_boxes("a", a)
    _geometry.check_boxes("b", b)
    return _iou(a, b)


@jax.jit
def _iou(a, b):
    pairs = jax.vmap(jax.vmap(_geometry.overlap, (None, 0)), (0, None))
    flat = pairs(a.reshape(-1, 4), b.reshape(-1, 4))
    return flat.reshape(*a.shape[:-1], *b.shape[:-1])
