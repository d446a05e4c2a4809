"""Predicted and true boxes of images, matched one to one, and calibration on them.

Lists of arrays, one for each image, become padded arrays with a mask, on the host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks, _geometry
from jaxcp._arrays import as_array
from jaxcp._tree import pytree
from jaxcp.calibration.calibrating import calibrate
from jaxcp.calibration.split import Calibration
from jaxcp.certificates.promises import COVERED
from jaxcp.typing import ArrayLike, Score


def _padded_boxes(name, images):
    """Returns boxes of all images, (g, b, 4), and which are no padding, (g, b)."""
    arrays = _as_numpy(name, images, (0, 4))
    for i, boxes in enumerate(arrays):
        _geometry.check_boxes(f"{name}[{i}]", boxes)
    lengths = np.array([len(v) for v in arrays], int)
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    dtype = np.result_type(jax.dtypes.canonicalize_dtype(float), *arrays)
    padded = np.tile(np.array([0, 0, 1, 1], dtype), (*mask.shape, 1))
    padded[mask] = np.concatenate([*arrays, np.zeros((0, 4), dtype)])
    return padded, mask


def _padded_like(name, images, mask):
    """Returns one number for every box, (g, b), 0 for padding."""
    arrays = _as_numpy(name, images, (0,))
    for i, (values, count) in enumerate(zip(arrays, mask.sum(axis=1), strict=True)):
        _checks.check_shape(f"{name}[{i}]", (int(count),), values.shape)
    known = [v for v in arrays if v.size]  # an empty list has no type
    padded = np.zeros(mask.shape, np.result_type(bool, *known))
    padded[mask] = np.concatenate(known or [padded[mask]])
    _checks.check_not_nan(name, padded)
    return padded


def _padded_labels(name, images, mask):
    """Returns the class of every box, (g, b), 0 for padding."""
    labels = _padded_like(name, images, mask)
    if mask.any() and not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"expected {name} of an integer type, got {labels.dtype}")
    return labels


def _as_numpy(name, images, empty):
    whole = (np.asarray(v) if isinstance(v, list) else v for v in images)
    arrays = (np.asarray(as_array(name, v)) for v in whole)
    return [v if v.size else v.reshape(empty) for v in arrays]


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

    See also:
      detection.match_images, detection.calibrate_boxes
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

    The one-to-one matching of largest total IoU (Hungarian algorithm); its pairs with
    IoU > min_iou are kept. `jax.vmap` matches many images of padded boxes.

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

    Cost:
      Hungarian algorithm: cubic in the number of boxes.

    References:
      Kuhn, The Hungarian Method for the Assignment Problem, Naval Research Logistics
      Quarterly, 1955.

    See also:
      detection.match_images, metrics.iou

    Example:
      >>> preds = jnp.array([[5.0, 5.0, 9.0, 9.0], [0.0, 0.0, 2.0, 2.0]])
      >>> true = jnp.array([[0.0, 0.0, 2.0, 3.0], [20.0, 20.0, 22.0, 22.0]])
      >>> index, matched = match_boxes(preds, true, min_iou=0.5)
      >>> index.tolist(), matched.tolist()
      ([1, -1], [True, False])
    """
    preds, there = _one_image("pred_boxes", pred_boxes, pred_mask)
    true, present = _one_image("true_boxes", true_boxes, true_mask)
    _check_min_iou(min_iou)
    return _match(preds, true, there[:, None] & present[None], min_iou)


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

    Cost:
      One program for each padded number of boxes; images with similar numbers are
      matched together.

    See also:
      detection.match_boxes, detection.calibrate_boxes, metrics.iou

    Example:
      >>> box = jnp.array([[0.0, 0.0, 2.0, 2.0]])
      >>> pairs = match_images([box, box[:0]], [box, box], min_iou=0.5)
      >>> pairs.matched.tolist()
      [True, False]
    """
    _check_min_iou(min_iou)
    preds, pred_mask = _padded_boxes("pred_boxes", pred_boxes)
    true, true_mask = _padded_boxes("true_boxes", true_boxes)
    labels: Any = None
    counted = pred_mask
    if _both(pred_labels=pred_labels, true_labels=true_labels):
        mine = _padded_labels("pred_labels", pred_labels, pred_mask)
        labels = mine, _padded_labels("true_labels", true_labels, true_mask)
    if _both(confidences=confidences, min_confidence=min_confidence):
        least: Any = np.asarray(as_array("min_confidence", min_confidence))
        _checks.check_not_nan("min_confidence", least)
        if least.ndim:
            _checks.check_vectors(min_confidence=least)
            _checks.check_labels("pred_labels", labels[0], len(least))
            least = least[labels[0]]
        counted = counted & (_padded_like("confidences", confidences, counted) >= least)
    # Without labels all boxes, which the masks flag, are of one class.
    images = preds, true, counted, true_mask, *(labels or (pred_mask, true_mask))
    counts = np.maximum(pred_mask.sum(axis=1), true_mask.sum(axis=1))
    index = _match_by_size(counts, images, min_iou)
    found = true  # of no meaning where there is no match
    if preds.shape[1]:
        found = np.take_along_axis(preds, index.clip(0)[:, :, None], axis=1)
    rows = found.reshape(-1, 4), true.reshape(-1, 4), index.ravel() >= 0
    return BoxPairs(*map(jnp.asarray, (*rows, true_mask.ravel())))


def _both(**pair):
    """Returns whether both are given; raises ValueError if one of them is."""
    given = [value is not None for value in pair.values()]
    if any(given) and not all(given):
        raise ValueError(f"expected {' and '.join(pair)} together, got one")
    return all(given)


def _match_by_size(counts, images, min_iou):
    """Returns the index of each true box's match, or -1, images of a size together.

    One crowded image would otherwise pad, and so slow down, all the others.
    """
    index = np.full(images[1].shape[:2], -1)
    sizes = 16 * 4 ** np.ceil(np.log(np.maximum(counts / 16, 1)) / np.log(4))
    for size in np.unique(sizes[counts > 0]).astype(int):
        rows = np.flatnonzero(sizes == size)
        preds, true, counted, present, *labels = (v[rows, :size] for v in images)
        allowed = counted[:, :, None] & present[:, None]
        allowed &= labels[0][:, :, None] == labels[1][:, None]
        match = jax.vmap(_match, (0, 0, 0, None))
        index[rows, :size] = match(preds, true, allowed, min_iou)[0]
    return index


def _one_image(name, boxes, mask):
    """Returns boxes, shape (b, 4), and which of them are no padding, after checks."""
    boxes = as_array(name, boxes)
    boxes = boxes.reshape(0, 4) if boxes.shape == (0,) else boxes  # none in the image
    boxes, mask = _checks.rows(boxes=boxes, mask=_checks.mask(mask))
    _checks.check_shape(name, (len(boxes), 4), boxes.shape)
    _geometry.check_boxes(name, boxes, mask)
    return boxes, jnp.ones(len(boxes), bool) if mask is None else mask


def _check_min_iou(min_iou):
    _checks.check_scalars(min_iou=min_iou)
    _checks.check_uniforms("min_iou", min_iou)


@jax.jit
def _match(pred_boxes, true_boxes, allowed, min_iou):
    from optax import assignment

    (b, t), no_match = allowed.shape, -jnp.ones(len(true_boxes), int)
    if b == 0 or t == 0:
        return no_match, no_match >= 0
    overlaps = jax.vmap(jax.vmap(_geometry.overlap, (None, 0)), (0, None))
    iou = overlaps(pred_boxes, true_boxes)
    iou = jnp.where(allowed & ~jnp.isnan(iou), iou, 0)
    pred, true = assignment.hungarian_algorithm(-iou)
    index = no_match.at[true].set(jnp.where(iou[pred, true] > min_iou, pred, -1))
    return index, index >= 0


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
      At least 1 - alpha for objects that the detector finds, those matched in the same
      way. Nothing is said of objects that it misses, nor of predictions without an
      object.

    Assumption:
      Matched objects of calibration and test images are exchangeable. Objects of one
      image that are more alike than those of two break this.

    Cost:
      That of `detection.match_images`, then of `calibrate`.

    References:
      Andeol, Fel, de Grancey, Mossina, Confident Object Detection via Conformal
      Prediction and Conformal Risk Control: An Application to Railway Signaling, COPA,
      2023.

    See also:
      detection.match_images, scores.BoxOffset, calibrate

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
    cp = calibrate(score, pairs.preds, pairs.true, mask=pairs.matched)
    return dataclasses.replace(
        cp,
        promise=f"{COVERED} for objects that the detector finds",
        assumption="matched objects of calibration and new images are {rows}, and the "
        "detector saw neither",
    )
