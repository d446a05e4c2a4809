# %% [markdown]
# # Regions for two outputs
#
# A target with two coordinates wants a region of the plane. Which one depends on what
# the model can do: give a density, draw samples, or map targets to noise and back. We
# train one model that can do all of it and make six kinds of regions from it. All of
# them hold the truth with probability 1 - alpha. They differ in shape, in area, and in
# how much their coverage depends on the input.

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
NUM_TRAINING, NUM_PARTS = 4000, 10
ALPHA = 0.2

# %% [markdown]
# ## Data
#
# Given an input x in (0, 1) the target lies near a crescent, which is large where x is
# small. Test rows are sorted by their input: this will make the pictures easy.

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
# `sample(params, key, x, n)`, and an inverse `to_latent(params, x, y)` that makes
# standard normal noise of a target. Your own model may have only one of the three:
# then you have the scores that ask for this one.

# %%
flow = models.CouplingFlow(num_couplings=NUM_COUPLINGS, num_steps=NUM_STEPS)
params = flow.fit(jax.random.key(1), x_train, y_train)
sample = partial(flow.sample, params)
density, latent = scores.Density.of(flow, params), scores.Latent.of(flow, params)

# %% [markdown]
# ## Six scores
#
# A score says how strange a target is, given a prediction. It never sees the model:
# what it needs is in the prediction, be it the input itself or draws.
#
# | name | how strange is y? | region |
# |---|---|---|
# | M-CP | how far it sticks out of a box of quantiles of draws | box |
# | L-CP | the length of the noise that y is mapped to | image of a disc |
# | DR-CP | minus the log density of y | all points of high density |
# | C-HDR | how many draws are no stranger than y, by DR-CP | as DR-CP |
# | PCP | the distance from the nearest draw | equal balls around draws |
# | C-PCP | how many draws are no stranger than y, by PCP | as PCP |
#
# C-HDR and C-PCP rank a score among the scores of draws at the same input. This is what
# `scores.CDF(base)` does, for any score.

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
# A calibration makes a region of every new prediction. We look at two inputs, a small
# one and a large one, with the 100 test targets whose inputs are nearest. Their areas
# are estimated from random points (the box is exact), each with a standard error.

# %%
shown = [NUM_ROWS // 10, 9 * NUM_ROWS // 10]  # rows of the test set
regions = {
    name: cp(jax.tree.map(lambda v: v[jnp.array(shown)], new[name]), alpha=ALPHA)
    for name, cp in calibrated.items()
}

figure, axes = plt.subplots(
    2, 6, figsize=(10.5, 3.5), sharex=True, sharey=True, layout="constrained"
)
bounds = sets.Box(jnp.array([-2.0, -1.6]), jnp.array([2.0, 1.5]))
keys = jax.random.split(jax.random.key(4), axes.shape)
for j, (name, pair) in enumerate(regions.items()):
    for i, row in enumerate(shown):
        ax, region = axes[i, j], jax.tree.map(lambda v, i=i: v[i], pair)
        near = y_new[row - 50 : row + 50]
        plotting.plot_region(region, bounds, near, num_points=NUM_POINTS, ax=ax)
        log_area, error = jaxcp.volume(keys[i, j], region)
        area = jnp.exp(log_area)
        ax.set_title(f"{name}: area {area:.2f} ± {area * error:.2f}", fontsize=8)
        ax.set(xlabel="", ylabel="", aspect="equal")
        ax.get_legend().remove()
for ax, row in zip(axes[:, 0], shown, strict=True):
    ax.set_ylabel(f"x = {x_new[row, 0]:.2f}\nsecond output")
figure.supxlabel("first output", fontsize="medium")
plt.show()

# %% [markdown]
# Black targets are covered, red ones are missed. On the upper row the box covers much
# where no target is, and the others follow the crescent. On the lower row DR-CP and PCP
# are too large, on the upper row too small: one threshold serves all inputs.
#
# ## Coverage
#
# A target is in its region exactly where its score is at most the threshold. So the
# coverage of test rows needs no regions, only scores: seen from there every set is the
# interval from minus infinity to the threshold. (`metrics.coverage(regions, y)` gives
# the same number from the regions of all rows.)

# %%
test_scores = {
    name: jaxcp.calibrate(score, new[name], y_new).scores
    for name, score in methods.items()
}
key_cells = jax.random.key(5)  # one for all methods: they are to have the same cells
coverages, errors = {}, {}
for name, cp in calibrated.items():
    lower, upper = jnp.full(NUM_ROWS, -jnp.inf), jnp.full(NUM_ROWS, cp.quantile(ALPHA))
    below = sets.Interval(lower, upper)
    coverages[name] = metrics.coverage(below, test_scores[name])
    errors[name], floor = metrics.conditional_coverage_error(
        key_cells, below, test_scores[name], x_new, ALPHA, num_cells=NUM_PARTS
    )

print("         coverage   conditional error x 1000")
for name in methods:
    print(f"{name:8s} {coverages[name]:.3f}      {1000 * errors[name]:.2f}")
print(f"noise               {1000 * floor:.2f}")

# %% [markdown]
# The second column is the *conditional coverage error*: the mean squared distance of
# the coverage from 1 - alpha in cells of similar inputs. Sets that cover with
# probability 1 - alpha given any input have the error of the last line, which is noise.
# DR-CP and PCP are far above it: they cover too little at some inputs and too much at
# others. The other four adapt, the box too, since its sides are quantiles at the input.
# In ten parts of the inputs, coverage is:

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 2.7), sharey=True, layout="constrained")
middles = x_new[:, 0].reshape(NUM_PARTS, -1).mean(axis=1)
pairs = [("M-CP", "L-CP"), ("DR-CP", "C-HDR"), ("PCP", "C-PCP")]
for ax, pair in zip(axes, pairs, strict=True):
    for name, style in zip(pair, ["o--", "s-"], strict=True):
        covered = test_scores[name] <= calibrated[name].quantile(ALPHA)
        rates = covered.reshape(NUM_PARTS, -1).mean(axis=1)
        ax.plot(middles, rates, style, label=name)
    ax.axhline(1 - ALPHA, color="black", linewidth=0.8)
    ax.set(xlabel="x", ylim=(0.65, 0.95))
    ax.legend(frameon=False, loc="upper left", ncols=2)
axes[0].set_ylabel("coverage")
plt.show()

# %% [markdown]
# ## The claim
#
# All six cover 1 - alpha, but for what is random in 4000 calibration and 4000 test
# rows. Ranked among draws, or seen as noise, the same model covers about as often at
# every input.

# %%
error = (ALPHA * (1 - ALPHA) * 2 / NUM_ROWS) ** 0.5
assert all(abs(rate - (1 - ALPHA)) < 4 * error for rate in coverages.values())
assert errors["C-HDR"] < errors["DR-CP"] / 2
assert errors["C-PCP"] < errors["PCP"] / 2
assert errors["L-CP"] < min(errors["DR-CP"], errors["PCP"]) / 2
print("all six cover; three of them adapt to the input")
