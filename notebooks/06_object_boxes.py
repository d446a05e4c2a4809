# %% [markdown]
# # Boxes that hold objects
#
# A detector draws boxes around objects, and is wrong by some pixels. How many? A robot
# has to keep away from the whole object. A gripper has to touch the object and nothing
# else. From images with known boxes we learn margins. With probability 1 - alpha the
# larger box holds the whole object, or the smaller box lies inside of it.

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

plt.rcParams.update(plotting.style())

# %% [markdown]
# ## Data and predictions
#
# Generated images with up to six objects each, and a detector with common faults. Its
# boxes are noisy, and too short by six pixels on the right and at the bottom. It misses
# one object in ten, and sees some that are not there. Every image has its own number of
# boxes, (x_min, y_min, x_max, y_max) in pixels.

# %%
preds, true, _ = datasets.scenes(jax.random.key(0), 2 * NUM_IMAGES).lists()
old, new = slice(NUM_IMAGES), slice(NUM_IMAGES, None)

print(sum(len(boxes) for boxes in true[old]), "objects in", NUM_IMAGES, "images")
print(sum(len(boxes) for boxes in preds[old]), "predicted boxes")

# %% [markdown]
# ## Matching
#
# Which prediction belongs to which object? We take the one-to-one matching with the
# largest total overlap (intersection over union, IoU), and drop pairs that overlap too
# little. All that follows is about matched objects. No margin helps an object that the
# detector does not see.

# %%
pairs = detection.match_images(preds[old], true[old], min_iou=MIN_IOU)
tests = detection.match_images(preds[new], true[new], min_iou=MIN_IOU)
found, truth = tests.preds[tests.matched], tests.true[tests.matched]
n, m = int(pairs.matched.sum()), int(tests.matched.sum())

print(f"{n} of {pairs.present.sum()} objects are matched; in the test images {m}")
errors = np.asarray(found - truth).mean(axis=0).round(1) + 0.0  # no -0.0
print("mean error of each side, in pixels:", *(f"{v:.1f}" for v in errors))

# %% [markdown]
# ## Sets
#
# The score has four numbers: how far the true box reaches beyond the predicted one, on
# the left, at the top, on the right and at the bottom. Each side gets a margin of its
# own. All four have to hold at once, so each side gets a quarter of alpha. Or we take
# the largest of the four, and one margin for all sides. `relative=True` measures in
# widths and heights of the predicted box. `inner=True` gives boxes that lie inside of
# the object.

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
    margins = np.ravel(calibrated[name].quantile(ALPHA))
    print(f"{name}, in pixels:", *(f"{v:.1f}" for v in margins))

# %% [markdown]
# The four margins show what is wrong with the detector. They are small on the left and
# at the top, and larger by six pixels where its boxes are too short. (From lists of
# boxes `detection.calibrate_boxes` matches and calibrates in one call.)
#
# ## Coverage
#
# With one margin the coverage of matched objects is k / (n + 1) on average over
# calibration sets, as in every split conformal method. With four it is at least
# 1 - alpha, and here more. Some objects reach out on more than one side, and the four
# quarters of alpha count them twice. Areas are the cost.

# %%
area = jnp.mean(jnp.prod(truth[:, 2:] - truth[:, :2], axis=1))
coverages = {name: metrics.coverage(held, truth) for name, held in boxes.items()}

print("                coverage   mean area / mean area of the objects")
for name in methods:
    ratio = metrics.mean_size(boxes[name]) / area
    print(f"{name:15s} {coverages[name]:.3f}      {ratio:.2f}")

# %% [markdown]
# One margin for all sides has to be wide enough for the worst side, and wastes area on
# the others. Relative margins waste more, because the bias is in pixels. Relative to
# their size, small objects need far larger margins than large ones.
#
# ## A mistake
#
# It is easy to write the errors of all coordinates with one sign, prediction minus
# truth, and to move the sides outward by their quantiles. On the left and at the top
# this is right. On the right and at the bottom the sign is wrong. There the errors of
# boxes that are too short are negative, and a negative margin makes the boxes shorter
# still.

# %%
mistaken = scores.Custom(
    lambda pred, y: pred - y,
    lambda pred, q: sets.BoundingBox(pred[:2] - q[:2], pred[2:] + q[2:]),
)
wrong = jaxcp.calibrate(mistaken, pairs.preds, pairs.true, mask=pairs.matched)
coverage_of_wrong = metrics.coverage(wrong(found, alpha=ALPHA), truth)
margins = np.asarray(wrong.quantile(ALPHA))
print("margins, in pixels:", *(f"{v:.1f}" for v in margins))
print(f"coverage: {coverage_of_wrong:.3f}")

# %% [markdown]
# ## Picture
#
# A test image, with outer boxes on the left and inner boxes on the right. One of its
# objects has no prediction, and so no conformal box. One prediction has no object. The
# outer box of the object on the far left just misses its left end, as one box in ten
# may.

# %% tags=["thumbnail"]
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
image = np.where(inside, [0.45, 0.6, 0.4], [0.28, 0.28, 0.32])

figure, axes = plt.subplots(1, 2, figsize=(9, 5))
for ax, name in zip(axes, ["four margins", "four, inner"], strict=True):
    drawn = calibrated[name](seen, alpha=ALPHA)
    plotting.plot_boxes(image, drawn, preds=preds[new][i], true=objects, ax=ax)
    ax.set_title(f"{name}, alpha = {ALPHA}")
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
