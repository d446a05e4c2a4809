"""Conformal boxes from lists of predicted and true boxes."""

from __future__ import annotations

from collections.abc import Sequence

from jaxcp.calibration.calibrating import calibrate
from jaxcp.calibration.split import Calibration
from jaxcp.detection.matching import match_images
from jaxcp.typing import ArrayLike, Score


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
    return calibrate(score, pairs.preds, pairs.true, mask=pairs.matched)
