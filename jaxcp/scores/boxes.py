"""Scores of boxes around objects in images."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree, static
from jaxcp.scores import inputs
from jaxcp.scores._rounding import in_targets, known_units, moved_out
from jaxcp.sets import BoundingBox


@pytree
class BoxOffset:
    """How far the true box sticks out of the predicted one, on each of four sides.

    `pred` and the target are (x_min, y_min, x_max, y_max), shape (4,). All margins
    point outward: the score is (pred - true) at the min sides and (true - pred) at the
    max sides, and the set is the predicted box grown by the thresholds. Four components
    are calibrated at alpha / 4 each; their maximum has one exact threshold.

    Args:
      relative: Whether margins are in units of the width and the height of the
        predicted box, not in pixels. A flat box has no unit, and its set has no ends.
      inner: Whether the set is a box that lies inside of the object, not around it:
        margins then say how far the prediction sticks out of the truth.
      maximum: Whether the score is the largest of the four margins, shape ().

    Guarantee:
      The outer box contains the true one (the true one contains the inner box) with
      probability >= 1 - alpha; exactly k / (n + 1) with `maximum` and no ties.

    Assumption:
      Matched objects are exchangeable.

    Cost:
      O(1) time for a score and for a set.

    References:
      Andeol, Fel, de Grancey, Mossina, Confident Object Detection via Conformal
      Prediction and Conformal Risk Control: An Application to Railway Signaling, COPA,
      2023 (with one sign for all sides, which shrinks the max sides).

    See also:
      detection.calibrate_boxes, detection.match_images, sets.BoundingBox

    Example:
      >>> pred, true = jnp.array([2.0, 2.0, 6.0, 6.0]), jnp.array([1.0, 3.0, 7.0, 5.0])
      >>> BoxOffset()(pred, true).tolist()
      [1.0, -1.0, 1.0, -1.0]
    """

    relative: bool = static(default=False)
    inner: bool = static(default=False)
    maximum: bool = static(default=False)

    takes = inputs.boxes()

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns the margins left, top, right and bottom, shape (4,), or the largest.

        Left and top are the sides of x_min and y_min.
        """
        margins = self._margins(as_float(pred), as_float(y))
        if not self.maximum:
            return margins
        return margins[jnp.argmax(lax.stop_gradient(margins))]

    def invert(self, pred: Array, q: Array) -> BoundingBox:
        """Returns the predicted box with its sides moved by q, shape () or (4,)."""
        pred = as_float(pred)
        known, unit = self._units(pred)
        signs = self._signs()
        q = jnp.broadcast_to(q, (4,)).astype(jnp.result_type(q, unit))
        step = in_targets(q, known, unit)
        ends, magnitude = pred + signs * step, jnp.abs(pred) + jnp.abs(step)
        inside = lambda y: self._margins(pred, y) <= q  # noqa: E731
        ends = moved_out(ends, signs * jnp.inf, inside, magnitude, unit)
        return BoundingBox(ends[:2], ends[2:], self.inner)

    def check(
        self, preds: Array, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError for flat boxes, which have no unit, at calibration."""
        if self.relative and y is not None:
            solid = lambda v: np.all(v[:, :2] < v[:, 2:], axis=1)  # noqa: E731
            valid = "preds with width and height > 0"
            _checks.check_values(solid, valid, preds, mask)

    def _margins(self, pred, y):
        known, unit = self._units(pred)
        return jnp.where(known, self._signs() * (y - pred) / unit, -jnp.inf)

    def _signs(self):
        """Returns the way out of the set, for each side."""
        outward = jnp.array([-1, -1, 1, 1])
        return -outward if self.inner else outward

    def _units(self, pred):
        """Returns where a side has a unit, and the unit."""
        if not self.relative:
            return jnp.ones(4, bool), jnp.ones_like(pred)
        return known_units(jnp.tile(pred[2:] - pred[:2], 2))
