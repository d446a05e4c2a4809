"""Objects in images, and a detector that is biased, noisy and misses some."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._tree import pytree
from jaxcp.typing import ArrayLike

_NUM_OBJECTS, _NUM_FALSE, _SIZE = 6, 2, 256.0  # most in an image, and its side


@pytree
class Scenes:
    """True and predicted boxes of images, padded and masked. Made by `scenes`.

    Boxes are (x_min, y_min, x_max, y_max) in pixels.

    Args:
      true_boxes: Shape (g, t, 4).
      true_mask: True where there is an object, bool of shape (g, t).
      pred_boxes: Shape (g, b, 4), in random order.
      pred_mask: True where there is a prediction, bool of shape (g, b).
      confidences: Confidence of each prediction in (0, 1), shape (g, b).

    See also:
      datasets.scenes, detection.match_images
    """

    true_boxes: Array
    true_mask: Array
    pred_boxes: Array
    pred_mask: Array
    confidences: Array

    def lists(self) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
        """Returns (predictions, truths, confidences), one array for each image."""
        preds = _ragged(self.pred_boxes, self.pred_mask)
        true = _ragged(self.true_boxes, self.true_mask)
        return preds, true, _ragged(self.confidences, self.pred_mask)


def _ragged(values, masks):
    """Returns the values of each image that its mask keeps."""
    rows = zip(np.asarray(values), np.asarray(masks), strict=True)
    return [values[mask] for values, mask in rows]


def scenes(
    key: Array,
    num_images: int,
    *,
    bias: ArrayLike | Sequence[float] = (0.0, 0.0, -6.0, -6.0),
    noise: float = 0.04,
    miss_rate: float = 0.1,
) -> Scenes:
    """Returns images of objects as a detector sees them.

    An image of 256 x 256 pixels has 0, ..., 6 objects with sides of 24 to 96. Each is
    missed with probability `miss_rate`, else predicted with errors: `bias` plus normal
    noise that grows with the width or the height. Up to two predictions are of nothing
    and have lower confidences, as a rule.

    Args:
      key: Random key.
      num_images: Number of images g.
      bias: Mean error of x_min, y_min, x_max and y_max in pixels, shape (4,); by
        default predictions are short by 6 pixels at the max sides.
      noise: Standard deviation of the errors, in widths and heights of the object.
      miss_rate: Probability that an object has no prediction.

    Returns:
      A `Scenes` with t = 6 and b = 8; `lists()` takes the padding away.

    Raises:
      ValueError: if a number is out of range.

    Cost:
      O(g) time and memory for g images.

    See also:
      detection.match_images, detection.calibrate_boxes, scores.BoxOffset

    Example:
      >>> images = scenes(jax.random.key(0), 3)
      >>> images.true_boxes.shape, images.pred_boxes.shape
      ((3, 6, 4), (3, 8, 4))
    """
    _checks.check_key(key)
    _checks.check_count("num_images", num_images, 0)
    inside = lambda v: (v >= 0) & (v <= 1)  # noqa: E731
    miss_rate = _checks.check_number("miss_rate", miss_rate, inside, "in [0, 1]")
    noise = _checks.check_number("noise", noise)
    _checks.check_weights("noise", noise)
    bias = _checks.as_vector("bias", jnp.asarray(bias), 4)
    _checks.check_values(np.isfinite, "finite bias", bias)

    return _scenes(key, num_images, (bias, noise, miss_rate))


@jax.jit(static_argnames="num_images")
def _scenes(key, num_images, detector):
    def one(key):
        key_true, key_pred, key_false, key_order = jax.random.split(key, 4)
        true, there = _objects(key_true, _NUM_OBJECTS)
        preds, some, confidences = _detections(key_pred, true, there, *detector)
        false, also, doubts = _false_alarms(key_false)
        order = jax.random.permutation(key_order, _NUM_OBJECTS + _NUM_FALSE)
        preds = jnp.concatenate([preds, false])[order]
        some = jnp.append(some, also)[order]
        return Scenes(true, there, preds, some, jnp.append(confidences, doubts)[order])

    return jax.vmap(one)(jax.random.split(key, num_images))


def _objects(key, count):
    """Returns boxes of objects and which of them are there: the first 0, ..., count."""
    key_place, key_size, key_count = jax.random.split(key, 3)
    sides = jax.random.uniform(key_size, (count, 2), minval=24.0, maxval=96.0)
    lower = jax.random.uniform(key_place, (count, 2)) * (_SIZE - sides)
    there = jnp.arange(count) < jax.random.randint(key_count, (), 0, count + 1)
    return jnp.concatenate([lower, lower + sides], axis=1), there


def _detections(key, true, there, bias, noise, miss_rate):
    """Returns true boxes with errors, corners in order, those found, confidences."""
    key_noise, key_found, key_confidence = jax.random.split(key, 3)
    sides = jnp.tile(true[:, 2:] - true[:, :2], 2)
    errors = bias[None] + noise * sides * jax.random.normal(key_noise, true.shape)
    lower, upper = jnp.split(true + errors, 2, axis=1)
    corners = jnp.minimum(lower, upper), jnp.maximum(lower, upper)
    found = there & jax.random.bernoulli(key_found, 1 - miss_rate, there.shape)
    confidences = jax.random.uniform(key_confidence, there.shape) ** 0.3
    return jnp.concatenate(corners, axis=1), found, confidences


def _false_alarms(key):
    """Returns boxes of nothing, which of them are there, and low confidences."""
    key_boxes, key_confidence = jax.random.split(key)
    boxes, there = _objects(key_boxes, _NUM_FALSE)
    return boxes, there, jax.random.uniform(key_confidence, (_NUM_FALSE,)) ** 2
