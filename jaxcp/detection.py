"""Objects in images: matching predicted to true boxes, and calibrating on the pairs."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jaxcp import _boxes, _checks
from jaxcp._pytree import pytree
from jaxcp._types import Score
from jaxcp.calibration import Calibration, calibrate

__all__ = ["BoxPairs", "calibrate_boxes", "match_boxes", "match_images"]


@pytree
class BoxPairs:
    """Every true box of some images with the prediction matched to it, if any.

    Made by `match_images`. Index it with the mask for the pairs alone:
    `pairs.preds[pairs.matched]`.

    Args:
      preds: Predicted boxes, shape (n, 4); of no meaning where there is no match.
      true: True boxes, shape (n, 4), image after image, padding included.
      matched: Whether the row is a pair, bool of shape (n,).
      present: Whether there is a true box, not padding, bool of shape (n,).
    """

    preds: Array
    true: Array
    matched: Array
    present: Array


def match_boxes(
    pred_boxes: ArrayLike,
    true_boxes: ArrayLike,
    *,
    min_iou: ArrayLike,
    pred_mask: ArrayLike | None = None,
    true_mask: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Returns which prediction belongs to each true box of one image.

    The one-to-one matching of largest total IoU (Hungarian algorithm), of which pairs
    with IoU > min_iou are kept. `jax.vmap` matches many images of padded boxes.

    Args:
      pred_boxes: Predicted boxes (x_min, y_min, x_max, y_max), shape (b, 4).
      true_boxes: True boxes, shape (t, 4).
      min_iou: Least IoU of a match in [0, 1], shape (). With a high one fewer objects
        have a guarantee, and those that have it are the easier ones.
      pred_mask: False for padding, shape (b,).
      true_mask: False for padding, shape (t,).

    Returns:
      (index of the matched prediction, int of shape (t,), -1 without a match; whether
      there is a match, bool of shape (t,)).

    Raises:
      ValueError: if shapes do not fit, a concrete box is NaN or crossed, or `min_iou`
        is outside [0, 1].

    References:
      Kuhn, The Hungarian Method for the Assignment Problem, 1955.

    Example:
      >>> preds = jnp.array([[5.0, 5.0, 9.0, 9.0], [0.0, 0.0, 2.0, 2.0]])
      >>> true = jnp.array([[0.0, 0.0, 2.0, 3.0], [20.0, 20.0, 22.0, 22.0]])
      >>> index, matched = match_boxes(preds, true, min_iou=0.5)
      >>> index.tolist(), matched.tolist()
      ([1, -1], [True, False])
    """
    pred_boxes, true_boxes = _checks.as_arrays((pred_boxes, true_boxes))
    pred_mask, true_mask = _checks.as_arrays((pred_mask, true_mask))
    _check_one_image("pred_boxes", pred_boxes, pred_mask)
    _check_one_image("true_boxes", true_boxes, true_mask)
    _check_min_iou(min_iou)
    allowed = _mask(pred_boxes, pred_mask)[:, None] & _mask(true_boxes, true_mask)[None]
    return _match(pred_boxes, true_boxes, allowed, min_iou)


def match_images(
    pred_boxes: Sequence[ArrayLike],
    true_boxes: Sequence[ArrayLike],
    *,
    min_iou: ArrayLike,
    pred_labels: Sequence[ArrayLike] | None = None,
    true_labels: Sequence[ArrayLike] | None = None,
    confidences: Sequence[ArrayLike] | None = None,
    min_confidence: ArrayLike | None = None,
) -> BoxPairs:
    """Returns the matched boxes of many images, each with its own number of boxes.

    Images are padded and masked, and matched in one call. With labels only boxes of one
    class match; predictions with a confidence below `min_confidence` are dropped first.

    Args:
      pred_boxes: Predicted boxes of each image, arrays of shape (b_i, 4), b_i >= 0.
      true_boxes: True boxes of each image, arrays of shape (t_i, 4).
      min_iou: Least IoU of a match in [0, 1].
      pred_labels: Classes of the predictions, int arrays of shape (b_i,).
      true_labels: Classes of the true boxes, int arrays of shape (t_i,).
      confidences: Confidences of the predictions, arrays of shape (b_i,).
      min_confidence: Least confidence that counts, a number, or with labels one for
        each class, shape (k,).

    Returns:
      A `BoxPairs`.

    Raises:
      ValueError: if lengths differ, boxes are NaN or crossed, `min_iou` is outside [0,
        1], labels come for one side only or are out of range, or confidences come
        without a least one or the other way round.

    Example:
      >>> box = jnp.array([[0.0, 0.0, 2.0, 2.0]])
      >>> pairs = match_images([box, box[:0]], [box, box], min_iou=0.5)
      >>> pairs.matched.tolist()
      [True, False]
    """
    _check_min_iou(min_iou)
    if len(pred_boxes) != len(true_boxes):
        raise ValueError(
            f"expected true_boxes of {len(pred_boxes)} images like pred_boxes, "
            f"got {len(true_boxes)}"
        )
    preds, pred_mask = _padded_boxes("pred_boxes", pred_boxes)
    true, true_mask = _padded_boxes("true_boxes", true_boxes)
    allowed = pred_mask[:, :, None] & true_mask[:, None, :]
    if (pred_labels is None) != (true_labels is None):
        raise ValueError("expected pred_labels and true_labels together, got one")
    if pred_labels is not None:
        pred_labels = _padded_labels("pred_labels", pred_labels, pred_mask)
        true_labels = _padded_labels("true_labels", true_labels, true_mask)
        allowed &= pred_labels[:, :, None] == true_labels[:, None, :]
    if (confidences is None) != (min_confidence is None):
        raise ValueError("expected confidences and min_confidence together, got one")
    if confidences is not None:
        confidences = _padded_like("confidences", confidences, pred_mask)
        _checks.check_not_nan("confidences", confidences)
        least = _least_confidence(min_confidence, pred_labels, pred_mask)
        allowed &= (confidences >= least)[:, :, None]
    return _match_images(preds, true, true_mask, allowed, min_iou)


def calibrate_boxes(
    score: Score,
    pred_boxes: Sequence[ArrayLike],
    true_boxes: Sequence[ArrayLike],
    *,
    min_iou: ArrayLike,
    pred_labels: Sequence[ArrayLike] | None = None,
    true_labels: Sequence[ArrayLike] | None = None,
    confidences: Sequence[ArrayLike] | None = None,
    min_confidence: ArrayLike | None = None,
) -> Calibration:
    """Returns the calibration of a box score on the matched objects of many images.

    Args:
      score: `scores.BoxOffset`, or any score of boxes.
      pred_boxes: Predicted boxes of each image, as for `match_images`, like the rest.
      true_boxes: True boxes of each image.
      min_iou: Least IoU of a match in [0, 1].
      pred_labels: Classes of the predictions.
      true_labels: Classes of the true boxes.
      confidences: Confidences of the predictions.
      min_confidence: Least confidence that counts.

    Returns:
      A `Calibration`: call it with predicted boxes, shape (m, 4), and alpha for a
      `BoundingBox` each.

    Raises:
      ValueError: as `match_images` and `calibrate`.

    Guarantee:
      1 - alpha for objects that the detector finds: those matched in the same way, if
      they are exchangeable with the matched objects of the calibration images. Nothing
      is said of objects that it misses, nor of predictions without an object. Many
      objects of few images are exchangeable only as far as objects of one image are no
      more alike than those of two.

    References:
      Andeol et al., Confident Object Detection via Conformal Prediction and Conformal
      Risk Control, 2023.

    Example:
      >>> from jaxcp.scores import BoxOffset
      >>> true = jnp.array([[10.0, 10.0, 30.0, 30.0]])
      >>> preds = [true + shift for shift in range(4)]
      >>> cp = calibrate_boxes(BoxOffset(maximum=True), preds, 4 * [true], min_iou=0.3)
      >>> cp(true, alpha=0.2).corners().tolist()
      [[7.0, 7.0, 33.0, 33.0]]
    """
    pairs = match_images(
        pred_boxes,
        true_boxes,
        min_iou=min_iou,
        pred_labels=pred_labels,
        true_labels=true_labels,
        confidences=confidences,
        min_confidence=min_confidence,
    )
    return calibrate(score, pairs.preds, pairs.true, mask=pairs.matched)


def _check_one_image(name, boxes, mask):
    if boxes.ndim != 2:
        raise ValueError(
            f"expected {name} of one image, shape (b, 4), got {boxes.shape}; use "
            "jax.vmap on padded boxes, or match_images"
        )
    _checks.num_rows(boxes=boxes, mask=mask)
    _boxes.check_boxes(name, boxes, mask)


def _check_min_iou(min_iou):
    _checks.check_scalars(min_iou=min_iou)
    _checks.check_values(lambda v: (v >= 0) & (v <= 1), "min_iou in [0, 1]", min_iou)


def _mask(boxes, mask):
    return jnp.ones(len(boxes), bool) if mask is None else mask.astype(bool)


def _padded_boxes(name, images):
    """Returns boxes of all images, (g, b, 4), and which are no padding, (g, b)."""
    arrays = _as_numpy(images, (0, 4))
    for i, boxes in enumerate(arrays):
        if boxes.ndim != 2:
            shape = boxes.shape
            raise ValueError(f"expected {name}[{i}] of shape (b, 4), got {shape}")
        _boxes.check_boxes(f"{name}[{i}]", boxes)
    longest = max(map(len, arrays), default=0)
    mask = np.array([np.arange(longest) < len(v) for v in arrays], bool)
    mask = mask.reshape(len(arrays), longest)
    dtype = np.result_type(jnp.asarray(0.0).dtype, *(v.dtype for v in arrays))
    padded = np.tile(np.array([0, 0, 1, 1], dtype), (*mask.shape, 1))
    padded[mask] = np.concatenate([*arrays, np.zeros((0, 4), dtype)])
    return padded, mask


def _padded_like(name, images, mask):
    """Returns one number for every box, (g, b), 0 for padding."""
    arrays = _as_numpy(images, (0,))
    if len(arrays) != len(mask):
        raise ValueError(f"expected {name} of {len(mask)} images, got {len(arrays)}")
    for i, (values, count) in enumerate(zip(arrays, mask.sum(axis=1), strict=True)):
        if values.shape != (count,):
            expected = f"({count},), one for each box"
            raise ValueError(
                f"expected {name}[{i}] of shape {expected}, got {values.shape}"
            )
    padded = np.zeros(mask.shape, np.result_type(bool, *(v.dtype for v in arrays)))
    padded[mask] = np.concatenate([*arrays, np.zeros(0, padded.dtype)])
    return padded


def _padded_labels(name, images, mask):
    labels = _padded_like(name, images, mask)
    if mask.any() and not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"expected {name} of an integer type, got {labels.dtype}")
    return labels


def _least_confidence(min_confidence, labels, mask):
    """Returns the least confidence that counts for every box, shape () or (g, b)."""
    least = np.asarray(_checks.as_arrays(min_confidence))
    _checks.check_not_nan("min_confidence", least)
    if least.ndim == 0:
        return least
    if labels is None or least.ndim > 1:
        raise ValueError(
            "expected min_confidence of shape (), or (k,) with labels, "
            f"got {least.shape}"
        )
    _checks.check_labels("pred_labels", labels[mask], len(least))
    return least[np.where(mask, labels, 0)]


def _as_numpy(images, empty):
    arrays = [np.asarray(_checks.as_arrays(image)) for image in images]
    return [v if v.size else v.reshape(empty) for v in arrays]


@jax.jit
def _match(pred_boxes, true_boxes, allowed, min_iou):
    from optax import assignment

    (b, t), no_match = allowed.shape, -jnp.ones(len(true_boxes), int)
    if b == 0 or t == 0:
        return no_match, no_match >= 0
    overlaps = jax.vmap(jax.vmap(_boxes.overlap, (None, 0)), (0, None))
    iou = overlaps(pred_boxes, true_boxes)
    iou = jnp.where(allowed & ~jnp.isnan(iou), iou, 0)
    pred, true = assignment.hungarian_algorithm(-iou)
    index = no_match.at[true].set(jnp.where(iou[pred, true] > min_iou, pred, -1))
    return index, index >= 0


@jax.jit
def _match_images(preds, true, true_mask, allowed, min_iou):
    match = jax.vmap(_match, (0, 0, 0, None))
    index, matched = match(preds, true, allowed, min_iou)
    if preds.shape[1] == 0:  # no image has a prediction
        found = true
    else:
        found = jnp.take_along_axis(preds, index.clip(0)[:, :, None], axis=1)
    return BoxPairs(
        found.reshape(-1, 4), true.reshape(-1, 4), matched.ravel(), true_mask.ravel()
    )
