# %% [markdown]
# # Boxes that hold objects
#
# A detector draws boxes around objects, and misses by some pixels. Some uses need to
# know by how many: a robot keeps away from the whole object, a label must lie on it.
# From images with known boxes we learn margins such that the grown box holds the whole
# object, or the shrunken box lies inside of it, with probability 1 - alpha.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxcp
from jaxcp import datasets, detection, metrics, plotting, scores, sets

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_IMAGES = 200 if FAST else 1000
MIN_IOU = 0.3
ALPHA = 0.1

# %% [markdown]
# ## Data and predictions
#
# Generated images with up to six objects each, and a detector with common faults. Its
# boxes are noisy, and short by six pixels on the right and at the bottom. It misses one
# object in ten, and sees some that are not there. Every image has its own number of
# boxes, (x_min, y_min, x_max, y_max) in pixels.

# %%
preds, true, _ = datasets.scenes(jax.random.key(0), 2 * NUM_IMAGES).lists()
old, new = slice(NUM_IMAGES), slice(NUM_IMAGES, None)

print(sum(len(boxes) for boxes in true[old]), "objects in", NUM_IMAGES, "images")
print(sum(len(boxes) for boxes in preds[old]), "predicted boxes")

# %% [markdown]
# ## Matching
#
# Which prediction belongs to which object? The one-to-one matching with the largest
# total overlap (intersection over union, IoU) decides; pairs that overlap too little
# are none. All that follows is about matched objects. No margin helps an object that
# the detector does not see.

# %%
pairs = detection.match_images(preds[old], true[old], min_iou=MIN_IOU)
tests = detection.match_images(preds[new], true[new], min_iou=MIN_IOU)
found, truth = tests.preds[tests.matched], tests.true[tests.matched]
n, m = int(pairs.matched.sum()), int(tests.matched.sum())

print(f"{n} of {pairs.present.sum()} objects are matched; in the test images {m}")
print("mean error of each side:", np.asarray(found - truth).mean(axis=0).round(1))

# %% [markdown]
# ## Sets
#
# The score has four numbers: how far the true box sticks out of the predicted one, to
# the left, at the top, to the right and at the bottom. Each side gets a margin of its
# own, and all four have to hold: alpha is split in four. Or we take the largest of the
# four, and one margin for all sides. `relative=True` measures in widths and heights of
# the predicted box, `inner=True` makes boxes that lie inside of the object.

# %%
methods = {
    "four margins": scores.BoxOffset(),
    "one margin": scores.BoxOffset(maximum=True),
    "four, relative": scores.BoxOffset(relative=True),
    "four, inner": scores.BoxOffset(inner=True),
    "one, inner": scores.BoxOffset(inner=True, maximum=True),
}
calibrated = {
    name: jaxcp.calibrate(score, pairs.preds, pairs.true, mask=pairs.matched)
    for name, score in methods.items()
}
boxes = {name: cp(found, alpha=ALPHA) for name, cp in calibrated.items()}

for name in ("four margins", "one margin"):
    quantile = np.asarray(calibrated[name].quantile(ALPHA))
    print(f"{name}, in pixels:", np.round(quantile, 1))

# %% [markdown]
# The four margins have found out what is wrong with the detector: they are small on the
# left and at the top, and larger by six pixels where it is biased. (From lists of boxes
# `detection.calibrate_boxes` matches and calibrates in one call.)
#
# ## Coverage
#
# With one margin the coverage of matched objects is k / (n + 1), as in every split
# conformal method, on average over calibration sets. With four it is at least
# 1 - alpha, and here more: some objects stick out on more than one side, and the split
# of alpha counts them twice. Areas tell what all this costs.

# %%
area = jnp.mean(jnp.prod(truth[:, 2:] - truth[:, :2], axis=1))
coverages = {name: metrics.coverage(held, truth) for name, held in boxes.items()}

print("                coverage   mean area / that of the objects")
for name in methods:
    ratio = metrics.mean_size(boxes[name]) / area
    print(f"{name:15s} {coverages[name]:.3f}      {ratio:.2f}")

# %% [markdown]
# One margin for all sides must be wide enough for the worst of them, and wastes area on
# the others. Relative margins waste more, because the bias is in pixels: in units of
# their size, small objects need far larger margins than large ones.
#
# ## A mistake
#
# It is easy to write the errors of all coordinates with one sign, prediction minus
# truth, and to move the sides outward by their quantiles. On the left and at the top
# this is right. On the right and at the bottom the error has the wrong sign: a detector
# whose boxes are too short has negative errors there, and a negative margin makes its
# boxes shorter still.

# %%
mistaken = scores.Custom(
    lambda pred, y: pred - y,
    lambda pred, q: sets.BoundingBox(pred[:2] - q[:2], pred[2:] + q[2:]),
)
wrong = jaxcp.calibrate(mistaken, pairs.preds, pairs.true, mask=pairs.matched)
coverage_of_wrong = metrics.coverage(wrong(found, alpha=ALPHA), truth)
print("margins: ", np.round(np.asarray(wrong.quantile(ALPHA)), 1))
print(f"coverage: {coverage_of_wrong:.3f}")

# %% [markdown]
# ## Picture
#
# A test image, with outer boxes on the left and inner ones on the right. One of its
# objects has no prediction, and so no blue box; one prediction has no object. The outer
# box of the object on the far left just misses its left end: one in ten may.

# %%
matched = np.reshape(tests.matched, (NUM_IMAGES, -1))  # image after image
counts = [len(b) for b in true[new]], matched.sum(1), [len(b) for b in preds[new]]
i = np.flatnonzero(np.all(np.transpose(counts) == [4, 3, 4], axis=1))[0]
seen = np.reshape(tests.preds, (NUM_IMAGES, -1, 4))[i, matched[i]]
objects = true[new][i]

row, column = np.mgrid[:256, :256]
x_min, y_min, x_max, y_max = objects.T[:, :, None, None]
across = (2 * column - x_min - x_max) / (x_max - x_min)
down = (2 * row - y_min - y_max) / (y_max - y_min)
inside = np.any(across**2 + down**2 <= 1, axis=0)[:, :, None]
image = np.where(inside, [0.35, 0.45, 0.3], [0.15, 0.15, 0.2])

figure, axes = plt.subplots(1, 2, figsize=(10, 5.4), layout="constrained")
for ax, name in zip(axes, ["four margins", "four, inner"], strict=True):
    drawn = calibrated[name](seen, alpha=ALPHA)
    plotting.plot_boxes(image, drawn, preds=preds[new][i], true=objects, ax=ax)
    ax.set_title(name)
plt.show()

# %% [markdown]
# ## The claim

# %%
error = (ALPHA * (1 - ALPHA) * (1 / n + 1 / m)) ** 0.5
for name, coverage in coverages.items():
    assert coverage > 1 - ALPHA - 4 * error
    assert "one" not in name or coverage < 1 - ALPHA + 4 * error
assert coverage_of_wrong < 0.01
print("matched objects are in their boxes, or hold them, as often as promised")
