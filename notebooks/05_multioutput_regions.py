# %% [markdown]
# # Regions for two outputs
#
# For a target with two coordinates, a prediction set is a region of the plane. Which
# one depends on what the model can do: give a density, draw samples, or map targets to
# noise and back. We train one model that can do all three, and make six kinds of
# regions from it. All of them hold the truth with probability 1 - alpha. They differ in
# shape, in area, and in how much their coverage depends on the input.

# %%
import os
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxcp
from jaxcp import datasets, metrics, models, plotting, scores, sets

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_STEPS, NUM_COUPLINGS = (300, 2) if FAST else (2000, 4)
NUM_ROWS, NUM_DRAWS = (1500, 50) if FAST else (4000, 100)
NUM_POINTS = 50 if FAST else 200  # of the pictures, along each axis
NUM_SHOWN = 30  # targets in a picture
NUM_TRAINING, NUM_PARTS = 4000, 10
ALPHA = 0.2

plt.rcParams.update(plotting.style())

# %% [markdown]
# ## Data
#
# Given an input x in (0, 1) the target lies near a crescent. The crescent is large
# where x is small. We sort the test rows by their input, which makes the pictures easy.

# %%
law = datasets.OneMoon()
x, y = law.draw(jax.random.key(0), NUM_TRAINING + 2 * NUM_ROWS)
ends = [NUM_TRAINING, NUM_TRAINING + NUM_ROWS]
x_train, x_old, x_new = jnp.split(x, ends)
y_train, y_old, y_new = jnp.split(y, ends)
order = jnp.argsort(x_new[:, 0])
x_new, y_new = x_new[order], y_new[order]
print(len(x_train), "rows train,", len(x_old), "calibrate,", len(x_new), "test")

# %% [markdown]
# ## A model
#
# A conditional normalizing flow. It has a density `log_prob(params, x, y)`, a sampler
# `sample(params, key, x, n)`, and an inverse `to_latent(params, x, y)` that maps a
# target to standard normal noise. Your own model may have only one of the three. Then
# you can use the scores that need this one.

# %%
flow = models.CouplingFlow(num_couplings=NUM_COUPLINGS, num_steps=NUM_STEPS)
params = flow.fit(jax.random.key(1), x_train, y_train)
sample = partial(flow.sample, params)
density, latent = scores.Density.of(flow, params), scores.Latent.of(flow, params)

# %% [markdown]
# ## Six scores
#
# A score says how strange a target is, given a prediction. It never sees the model.
# What it needs is in the prediction: the input itself, or draws of the model.
#
# | name | score of y | region |
# |---|---|---|
# | M-CP | how far y is outside of a box of quantiles of draws | box |
# | L-CP | the length of the noise that y is mapped to | image of a disc |
# | DR-CP | minus the log density of y | all points of high density |
# | C-HDR | the number of draws whose DR-CP score is at most that of y | as DR-CP |
# | PCP | the distance from the nearest draw | balls of one radius around draws |
# | C-PCP | the number of draws whose PCP score is at most that of y | as PCP |
#
# C-HDR and C-PCP rank a score among the scores of draws at the same input.
# `scores.CDF(base)` does this for any score.

# %%
methods = {
    "M-CP": scores.Rectangle(),
    "L-CP": latent,
    "DR-CP": density,
    "C-HDR": scores.CDF(density),
    "PCP": scores.PCP(),
    "C-PCP": scores.CDF(scores.PCP()),
}


def predictions(key, x):  # two independent sets of draws at every input
    first = jaxcp.draw(key, sample, x, NUM_DRAWS, role=0)
    second = jaxcp.draw(key, sample, x, NUM_DRAWS, role=1)
    return {
        "M-CP": scores.Rectangle.bounds(first, ALPHA),
        "L-CP": x,
        "DR-CP": x,
        "C-HDR": (x, second),
        "PCP": first,
        "C-PCP": (first, second),
    }


old = predictions(jax.random.key(2), x_old)
new = predictions(jax.random.key(3), x_new)  # a key of their own: fresh draws
calibrated = {
    name: jaxcp.calibrate(score, old[name], y_old) for name, score in methods.items()
}

# %% [markdown]
# ## Regions
#
# A calibrated score gives a region for every new prediction. We look at two inputs, a
# small one and a large one, with the 30 test targets whose inputs are nearest. The
# areas are estimated from random points, each with a standard error. (The area of the
# box is exact.)

# %% tags=["thumbnail"]
shown = [NUM_ROWS // 10, 9 * NUM_ROWS // 10]  # rows of the test set
regions = {
    name: cp(jax.tree.map(lambda v: v[jnp.array(shown)], new[name]), alpha=ALPHA)
    for name, cp in calibrated.items()
}

figure, axes = plt.subplots(3, 4, figsize=(7.5, 6.6), sharex=True, sharey=True)
bounds = sets.Box(jnp.array([-2.0, -1.6]), jnp.array([2.0, 1.5]))
keys = jax.random.split(jax.random.key(4), (len(methods), 2))
# Two methods in a row, two inputs each.
panels = axes.reshape(3, 2, 2).reshape(6, 2)
for j, (name, pair) in enumerate(regions.items()):
    for i, row in enumerate(shown):
        ax, region = panels[j, i], jax.tree.map(lambda v, i=i: v[i], pair)
        near = y_new[row - NUM_SHOWN // 2 : row + NUM_SHOWN // 2]
        plotting.plot_region(
            region,
            bounds,
            near,
            num_points=NUM_POINTS,
            markersize=3,
            legend=False,
            ax=ax,
        )
        log_area, error = jaxcp.volume(keys[j, i], region)
        area = jnp.exp(log_area)
        spread = f" ± {area * error:.2f}" if error > 0 else ""
        ax.set_title(f"{name}, x = {x_new[row, 0]:.2f}\narea {area:.2f}{spread}")
        ax.set(xlabel="", ylabel="")
        ax.tick_params(labelbottom=True)
figure.supxlabel("first output", fontsize="medium")
figure.supylabel("second output", fontsize="medium")
handles = axes[0, 0].get_legend_handles_labels()[0]
legend = ["prediction set", "covered target", "missed target"]
figure.legend(handles, legend, loc="outside upper center", ncols=3)
plt.show()

# %% [markdown]
# At the small x, on the left, the box holds much of the plane where no target is, and
# the others follow the crescent. DR-CP and PCP have one threshold for all inputs. So
# their regions are too small at the small x, and too large at the large x.
#
# ## Coverage
#
# A target is in its region if and only if its score is at most the threshold. So the
# coverage of test rows needs no regions, only scores: for a score, every set is the
# interval from minus infinity to the threshold. (`metrics.coverage(regions, y)` gives
# the same number from the regions of all rows.)

# %%
test_scores = {
    name: jaxcp.calibrate(score, new[name], y_new).scores
    for name, score in methods.items()
}
key_cells = jax.random.key(5)  # one for all methods: they are to have the same cells
below, coverages, errors = {}, {}, {}
for name, cp in calibrated.items():
    lower, upper = jnp.full(NUM_ROWS, -jnp.inf), jnp.full(NUM_ROWS, cp.quantile(ALPHA))
    below[name] = sets.Interval(lower, upper)
    coverages[name] = metrics.coverage(below[name], test_scores[name])
    errors[name], floor = metrics.conditional_coverage_error(
        key_cells, below[name], test_scores[name], x_new, ALPHA, num_cells=NUM_PARTS
    )

print("         coverage   conditional error x 1000")
for name in methods:
    print(f"{name:8s} {coverages[name]:.3f}      {1000 * errors[name]:.1f}")
print(f"noise               {1000 * floor:.1f}")

# %% [markdown]
# The second column is the *conditional coverage error*: the mean squared distance of
# the coverage from 1 - alpha in cells of similar inputs. Sets that cover with
# probability 1 - alpha at every input have the error of the last line, which is noise.
# DR-CP and PCP are far above it. They cover too little at some inputs and too much at
# others. The other four adapt to the input. The box does, too, since its sides are
# quantiles at the input.
#
# The next picture shows the coverage in ten parts of the inputs, from the smallest x to
# the largest, with two standard errors. On the left one threshold serves all inputs. On
# the right the same scores are ranked among draws.

# %%
figure, axes = plt.subplots(2, 2, figsize=(7.5, 4.6), sharex=True, sharey=True)
part = jnp.arange(NUM_ROWS) * NUM_PARTS // NUM_ROWS  # rows are sorted by x
middles = [f"{v:.2f}" for v in x_new[:, 0].reshape(NUM_PARTS, -1).mean(axis=1)]
for ax, name in zip(axes.flat, ["DR-CP", "C-HDR", "PCP", "C-PCP"], strict=True):
    plotting.plot_group_coverage(
        below[name], test_scores[name], part, ALPHA, names=middles, ax=ax, legend=False
    )
    ax.set(title=name, xlabel="", ylabel="")
figure.supxlabel(f"coverage, alpha = {ALPHA}", fontsize="medium")
figure.supylabel("mean x of the part (test rows)", fontsize="medium")
plt.show()

# %% [markdown]
# ## The claim
#
# All six cover 1 - alpha, up to the chance of 4000 calibration and 4000 test rows. With
# scores that are ranked among draws, or mapped to noise, the same model covers about
# equally often at every input.

# %%
error = (ALPHA * (1 - ALPHA) * 2 / NUM_ROWS) ** 0.5
assert all(abs(rate - (1 - ALPHA)) < 4 * error for rate in coverages.values())
assert errors["C-HDR"] < errors["DR-CP"] / 2
assert errors["C-PCP"] < errors["PCP"] / 2
assert errors["L-CP"] < min(errors["DR-CP"], errors["PCP"]) / 2
print("all six cover; L-CP, C-HDR and C-PCP adapt to the input")
