"""Wrong boxes and images, and wrong calls of data sets."""

import jax
import jax.numpy as jnp
import pytest

import jaxcp
from jaxcp import datasets, detection, scores
from rows import KEY, refuses

BOXES = jnp.array([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0]])
CROSSED = BOXES[:, jnp.array([2, 1, 0, 3])]


def boxes(preds=BOXES, true=BOXES, score=None, **options):
    score = scores.BoxOffset(**options) if score is None else score
    return lambda: jaxcp.calibrate(score, preds, true)


def images(preds=(BOXES,), true=(BOXES,), min_iou=0.5, **options):
    return lambda: detection.match_images(preds, true, min_iou=min_iou, **options)


WRONG = {
    "crossed boxes": (
        boxes(preds=CROSSED),
        r"preds with x_min <= x_max and y_min <= y_max, got \[2. 0. 0. 2.\] at 0",
    ),
    "crossed true boxes": (boxes(true=CROSSED), "y with x_min <= x_max"),
    "boxes of three numbers": (
        boxes(preds=BOXES[:, :3]),
        r"preds of shape \(2, 4\), got \(2, 3\)",
    ),
    "flat boxes, relative": (
        boxes(preds=BOXES.at[1, 2].set(1.0), relative=True),
        "preds with width and height > 0",
    ),
    "NaN boxes": (boxes(preds=BOXES.at[1, 1].set(jnp.nan)), "preds without NaN"),
    "IoU threshold in percent": (images(min_iou=50), r"min_iou in \[0, 1\], got 50"),
    "IoU threshold below 0": (
        lambda: detection.match_boxes(BOXES, BOXES, min_iou=-0.1),
        r"min_iou in \[0, 1\], got -0.1",
    ),
    "several images at once": (
        lambda: detection.match_boxes(BOXES[None], BOXES, min_iou=0.5),
        r"pred_boxes of shape \(1, 4\), got \(1, 2, 4\)",
    ),
    "mask of boxes": (
        lambda: detection.match_boxes(BOXES, BOXES, min_iou=0.5, pred_mask=[True]),
        "mask with 2 rows like boxes, got 1",
    ),
    "a crossed box": (images(preds=(CROSSED,)), r"pred_boxes\[0\] with x_min <= x_max"),
    "labels of one side": (
        images(pred_labels=([0, 1],)),
        "pred_labels and true_labels together, got one",
    ),
    "labels of too few boxes": (
        images(pred_labels=([0],), true_labels=([0, 1],)),
        r"pred_labels\[0\] of shape \(2,\), got \(1,\)",
    ),
    "float labels of boxes": (
        images(pred_labels=([0.5, 1],), true_labels=([0, 1],)),
        "pred_labels of an integer type",
    ),
    "confidences alone": (
        images(confidences=([0.5, 0.6],)),
        "confidences and min_confidence together, got one",
    ),
    "a class without a confidence": (
        images(
            confidences=([0.5, 0.6],),
            min_confidence=[0.1, 0.2],
            pred_labels=([0, 2],),
            true_labels=([0, 1],),
        ),
        "pred_labels in 0, ..., 1, got 2",
    ),
    "a mask of two axes": (
        lambda: detection.match_boxes(
            BOXES, BOXES, min_iou=0.5, pred_mask=[[True], [True]]
        ),
        r"mask of shape \(n,\), got \(2, 1\)",
    ),
    "miss rate": (lambda: datasets.scenes(KEY, 2, miss_rate=2.0), "miss_rate in"),
    "bias of two sides": (
        lambda: datasets.scenes(KEY, 2, bias=(1.0, 2.0)),
        r"bias of shape \(4,\), got \(2,\)",
    ),
    "minus one row": (lambda: datasets.linear(KEY, -1), "n as an int >= 0, got -1"),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)


@pytest.mark.parametrize(
    "call",
    [
        images(true=(BOXES, BOXES)),
        images(preds=(BOXES[0],)),
        images(preds=None),
        images(pred_labels=([0, 1], [0]), true_labels=([0, 1],)),
        images(confidences=([0.5, 0.6],), min_confidence=[0.1, 0.2]),
        lambda: jax.jit(lambda b: images(preds=(b,))().matched)(BOXES),
    ],
)
def test_what_others_refuse_is_not_silent(call):
    with pytest.raises((ValueError, TypeError, IndexError)):
        call()
