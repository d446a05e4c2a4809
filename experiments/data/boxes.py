"""Object boxes: conformal boxes around, and inside, what a detector finds.

`python -m experiments.data.boxes --out DIR`

Generated scenes; the detector is short by 6 pixels at two sides, noisy in proportion to
the size, misses one object in ten and sees things that are not there. 100 images
calibrate, 100 others test, 500 times: the coverage of matched objects by every method,
its exact value for the maximum over the sides (the level, for Bonferroni), and areas in
units of the true area (outer boxes: less is better; inner boxes: more).
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

import jaxcp
from experiments.tools.reporting import (
    arguments,
    print_summary,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import datasets, detection, metrics, plotting, scores

ALPHA, MIN_IOU = 0.1, 0.3
NUM_IMAGES, NUM_TRIALS = 100, 500
METHODS = {
    "outer, four quantiles": scores.BoxOffset(),
    "outer, maximum": scores.BoxOffset(maximum=True),
    "outer, relative, four quantiles": scores.BoxOffset(relative=True),
    "outer, relative, maximum": scores.BoxOffset(relative=True, maximum=True),
    "inner, four quantiles": scores.BoxOffset(inner=True),
    "inner, maximum": scores.BoxOffset(inner=True, maximum=True),
    "inner, relative, four quantiles": scores.BoxOffset(relative=True, inner=True),
    "inner, relative, maximum": scores.BoxOffset(True, True, True),
}


def pairs(key: Array, num_images: int) -> tuple[Array, Array, Array]:
    """Returns predicted and true boxes of scenes, and which rows are matched."""
    images = datasets.scenes(key, num_images)

    def match(image):
        return detection.match_boxes(
            image.pred_boxes,
            image.true_boxes,
            min_iou=MIN_IOU,
            pred_mask=image.pred_mask,
            true_mask=image.true_mask,
        )

    index, matched = jax.vmap(match)(images)
    index = jnp.maximum(index, 0)[:, :, None]
    preds = jnp.take_along_axis(images.pred_boxes, index, axis=1)
    return preds.reshape(-1, 4), images.true_boxes.reshape(-1, 4), matched.ravel()


def trial(key: Array) -> dict:
    """Returns coverage and relative area of every method on new scenes."""
    key_old, key_new = jax.random.split(key)
    preds, true, matched = pairs(key_old, NUM_IMAGES)
    new_preds, new_true, new_matched = pairs(key_new, NUM_IMAGES)
    area = jnp.prod(new_true[:, 2:] - new_true[:, :2], axis=1)
    results = {"n": jnp.sum(matched)}
    for name, score in METHODS.items():
        boxes = jaxcp.calibrate(score, preds, true, mask=matched)(new_preds, ALPHA)
        rows = new_matched.astype(int)
        covered = metrics.group_coverage(boxes, new_true, rows, num_groups=2)[1]
        ratio = jax.vmap(lambda box: box.size())(boxes) / area
        ratio = jnp.sum(jnp.where(new_matched, ratio, 0)) / jnp.sum(new_matched)
        results[name] = {"coverage": covered, "area": ratio}
    return results


def table(results: dict) -> list[dict]:
    """Returns a line for each method."""
    n = np.asarray(results["n"])
    exact = np.mean(np.asarray(jaxcp.conformal_rank(n, ALPHA)) / (n + 1))
    lines = []
    for name in METHODS:
        coverage = np.asarray(results[name]["coverage"])
        lines.append(
            {
                "method": name,
                "coverage": float(coverage.mean()),
                "+-": float(coverage.std() / len(coverage) ** 0.5),
                "exact": float(exact) if "maximum" in name else None,
                "at least": 1 - ALPHA,
                "area / true": float(np.mean(results[name]["area"])),
            }
        )
    return lines


def render(true: np.ndarray, size: int = 256) -> np.ndarray:
    """Returns an image with a shaded ellipse in every true box."""
    row, column = np.mgrid[:size, :size]
    image = 0.25 + 0.1 * np.sin(row / 17) * np.cos(column / 23)
    for i, (left, top, right, bottom) in enumerate(true):
        x = (2 * column - left - right) / (right - left)
        y = (2 * row - top - bottom) / (bottom - top)
        inside = x**2 + y**2 <= 1
        image[inside] = 0.45 + 0.08 * (i % 4) - 0.1 * (x + y)[inside]
    return image


def draw(key: Array):
    """Draws outer and inner boxes on two images that were not used to calibrate."""
    preds, true, _ = datasets.scenes(key, NUM_IMAGES + 30).lists()
    old, new = slice(NUM_IMAGES), slice(NUM_IMAGES, None)
    few = sorted(range(30), key=lambda i: abs(len(true[new][i]) - 3))[:2]
    figure, axes = plt.subplots(2, 2, figsize=(10, 10), layout="constrained")
    for row, name in zip(axes, ["outer, maximum", "inner, maximum"], strict=True):
        cp = detection.calibrate_boxes(
            METHODS[name], preds[old], true[old], min_iou=MIN_IOU
        )
        for ax, i in zip(row, few, strict=True):
            found = detection.match_images([preds[new][i]], [true[new][i]], min_iou=0.3)
            boxes = cp(found.preds[found.matched], ALPHA)
            plotting.plot_boxes(
                render(true[new][i]),
                boxes,
                preds=preds[new][i],
                true=true[new][i],
                ax=ax,
            )
            ax.set_title(f"{name}: {found.matched.sum()} of {len(true[new][i])} found")
    return figure


def main() -> None:
    """Prints the table, saves it and the figure."""
    args = arguments(__doc__, draws=True).parse_args()
    key_trials, key_picture, key_one = jax.random.split(jax.random.key(0), 3)
    results = jaxcp.simulate(
        trial, key_trials, NUM_TRIALS, batch_size=50, progress=True
    )
    lines = table(results)
    print_table(f"matched objects, alpha = {ALPHA}, {NUM_TRIALS} times", lines)
    settings = {"alpha": ALPHA, "min_iou": MIN_IOU, "images": NUM_IMAGES}
    save_results(args.out, "boxes", lines, settings)
    preds, true, matched = (np.asarray(v) for v in pairs(key_one, 2 * NUM_IMAGES))
    preds, true = preds[matched], true[matched]
    half = len(preds) // 2
    score = METHODS["outer, maximum"]
    boxes = jaxcp.calibrate(score, preds[:half], true[:half])(preds[half:], ALPHA)
    print_summary("outer, maximum", metrics.summary(boxes, true[half:], ALPHA))
    save_figure(draw(key_picture), args.out, "boxes")


if __name__ == "__main__":
    main()
