"""Objects in images, and a detector that is biased, noisy and misses some."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jaxcp import _checks
from jaxcp._pytree import pytree


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
    """

    true_boxes: Array
    true_mask: Array
    pred_boxes: Array
    pred_mask: Array
    confidences: Array

    def lists(self) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
        """Returns (predictions, truths, confidences), one array for each image."""
        preds, true, confidences, some, there = (
            np.asarray(v)
            for v in (
                self.pred_boxes,
                self.true_boxes,
                self.confidences,
                self.pred_mask,
                self.true_mask,
            )
        )
        ragged = [(preds, some), (true, there), (confidences, some)]
        return tuple(
            [v[m] for v, m in zip(values, masks, strict=True)]
            for values, masks in ragged
        )


def scenes(
    key: Array,
    num_images: int,
    *,
    max_objects: int = 6,
    image_size: float = 256.0,
    bias: ArrayLike = (0.0, 0.0, -6.0, -6.0),
    noise: float = 0.04,
    miss_rate: float = 0.1,
    num_false: int = 2,
) -> Scenes:
    """Returns images of objects as a detector sees them.

    An image has 0, ..., max_objects objects with sides of 24 to 96 pixels. Each is
    missed with probability `miss_rate`, else predicted with errors: `bias` plus normal
    noise that grows with the width or the height. Up to `num_false` predictions are of
    nothing and have lower confidences, as a rule.

    Args:
      key: Random key.
      num_images: Number of images g.
      max_objects: Most objects in an image t.
      image_size: Width and height of the images in pixels.
      bias: Mean error of x_min, y_min, x_max and y_max in pixels, shape (4,); by
        default predictions are short by 6 pixels at the max sides.
      noise: Standard deviation of the errors, in widths and heights of the object.
      miss_rate: Probability that an object has no prediction.
      num_false: Most false predictions in an image; b = t + num_false.

    Returns:
      A `Scenes`; `lists()` takes the padding away.

    Raises:
      ValueError: if a number is out of range.

    Example:
      >>> images = scenes(jax.random.key(0), 3, max_objects=4)
      >>> images.true_boxes.shape, images.pred_boxes.shape
      ((3, 4, 4), (3, 6, 4))
    """
    _checks.check_key(key)
    _checks.check_count("num_images", num_images, 0)
    _checks.check_count("max_objects", max_objects, 1)
    _checks.check_count("num_false", num_false, 0)
    _checks.check_uniforms("miss_rate", miss_rate)
    _checks.check_values(lambda v: v >= 0, "noise >= 0", noise)
    bias = _checks.as_vector("bias", jnp.asarray(bias), 4)

    def one(key):
        keys = jax.random.split(key, 6)
        true = _boxes(keys[0], max_objects, image_size)
        there = _up_to(keys[1], max_objects)
        found = there & jax.random.bernoulli(keys[2], 1 - miss_rate, there.shape)
        seen = _seen(keys[3], true, bias, noise)
        false = _boxes(keys[4], num_false, image_size)
        key_false, key_order, key_confidence = jax.random.split(keys[5], 3)
        preds = jnp.concatenate([seen, false])
        some = jnp.append(found, _up_to(key_false, num_false))
        uniform = jax.random.uniform(key_confidence, some.shape)
        is_object = jnp.arange(len(some)) < max_objects
        confidences = jnp.where(is_object, uniform**0.3, uniform**2)
        order = jax.random.permutation(key_order, len(some))
        return Scenes(true, there, preds[order], some[order], confidences[order])

    return jax.vmap(one)(jax.random.split(key, num_images))


def _boxes(key, count, image_size):
    key_place, key_size = jax.random.split(key)
    sides = jax.random.uniform(key_size, (count, 2), minval=24.0, maxval=96.0)
    lower = jax.random.uniform(key_place, (count, 2)) * (image_size - sides)
    return jnp.concatenate([lower, lower + sides], axis=1)


def _seen(key, true, bias, noise):
    """Returns true boxes with errors, and with their corners in order."""
    sides = jnp.tile(true[:, 2:] - true[:, :2], 2)
    errors = bias[None] + noise * sides * jax.random.normal(key, true.shape)
    lower, upper = jnp.split(true + errors, 2, axis=1)
    corners = jnp.minimum(lower, upper), jnp.maximum(lower, upper)
    return jnp.concatenate(corners, axis=1)


def _up_to(key, count):
    """Returns a mask of the first 0, ..., count places, each number as likely."""
    return jnp.arange(count) < jax.random.randint(key, (), 0, count + 1)
