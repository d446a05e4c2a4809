# %% [markdown]
# # Paths, fields and late answers
#
# A forecast of the next 24 hours is one object, and so is a field on a grid. A band at
# each point says nothing about all of them together. `scores.Band` makes one score of a
# whole path or field: its band holds all points at once, as often as promised. Targets
# of such forecasts come late; `delay=` charges each to the set that was issued for it.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import jaxcp
from jaxcp import frames, metrics, online, plotting, scores, sets

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_STEPS = 2000 if FAST else 10_000
ALPHA = 0.1

plt.rcParams.update(plotting.style(**{"figure.dpi": 90}))

# %% [markdown]
# ## The next 24 hours of a new shop
#
# A forecaster leaves a long frame: a row for each series, origin and step. Here 200
# shops have one path of 24 hours each, with errors that grow along it.


# %%
def shops(rng, num, first=0):
    """Returns a frame of forecasts of shops, with what they sold."""
    hour = np.arange(24)
    profile = 60 - 40 * np.cos(hour / 24 * 2 * np.pi) * rng.uniform(0.5, 1, (num, 1))
    walk = np.cumsum(rng.normal(0, 1, (num, 24)), axis=1)
    return pd.DataFrame(
        {
            "unique_id": np.repeat(
                [f"shop {i}" for i in range(first, first + num)], 24
            ),
            "cutoff": pd.Timestamp("2026-03-01"),
            "ds": np.tile(pd.date_range("2026-03-01", periods=24, freq="h"), num),
            "model": profile.ravel(),
            "y": (profile + walk).ravel(),
        }
    )


rng = np.random.default_rng(0)
known, new = shops(rng, 200), shops(rng, 2000, first=200)

# %% [markdown]
# A band of one width for all steps is as wide everywhere as at the end. With scales
# from *other* shops, the root mean square of the errors at each step, it opens like the
# errors do. From frame to frame:

# %%
others, calibrating = known.iloc[:2400], known.iloc[2400:].copy()  # 100 shops each
square = (others.y - others.model) ** 2
spread = square.to_numpy().reshape(-1, 24).mean(axis=0) ** 0.5
calibrating["scale"], new["scale"] = np.tile(spread, 100), np.tile(spread, 2000)
cp = frames.forecast(calibrating, yhat="model", by="path", scale="scale")
band = cp(new, ALPHA)
print(band.loc[[0, 12, 23], ["ds", "model", "model-lo-90", "model-hi-90"]])


# %%
def judge(name, frame):
    """Prints how often a step, and how often a whole path is held, and the width."""
    low, high = (frame.filter(like=f"model-{end}").iloc[:, 0] for end in ("lo", "hi"))
    inside = ((low <= new.y) & (new.y <= high)).to_numpy().reshape(-1, 24)
    step, path, width = inside.mean(), inside.all(1).mean(), (high - low).mean()
    print(f"{name:25} step {step:.3f}, path {path:.3f}, width {width:.1f}")


each = frames.forecast(calibrating, yhat="model")
judge("a threshold for each step", each(new, ALPHA))
judge("the same at alpha / 24", each(new, ALPHA / 24))
flat = frames.forecast(calibrating, yhat="model", by="path")
judge("one band, one width", flat(new, ALPHA))
judge("one band, scales by step", band)

# %% [markdown]
# A threshold for each step holds nine hours in ten, but little more than half of the
# whole days. At alpha / 24 a finite set takes 239 shops, 24 / alpha - 1.

# %% tags=["thumbnail"]
fan = cp(new, [0.02, ALPHA, 0.5])
inside = (fan["model-lo-90"] <= fan.y) & (fan.y <= fan["model-hi-90"])
missed = fan.unique_id[~inside].iloc[0]
fig, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
for ax, shop in zip(axes, ("shop 200", missed), strict=True):
    day = fan[fan.unique_id == shop]
    bands = [
        sets.Band(*(day[f"model-{end}-{level}"].to_numpy() for end in ("lo", "hi")))
        for level in (98, 90, 50)
    ]
    plotting.plot_band(bands, day.y, ax=ax, legend=shop == missed)
    ax.set(title=f"{shop}: bands at 98, 90 and 50 %", xlabel="hour")
axes[0].set_ylabel("sold")
plt.show()

# %% [markdown]
# ## A field
#
# The heat of a plate with some hot spots, mostly on its left, and a model that sees a
# grid of half the points in each direction. It errs where the heat is steep. Errors on
# *other* plates say where that is: their root mean square is the scale.

# %%
SIZE = 32


def plates(key, num):
    """Returns fields of the heat of plates with six hot spots each."""
    key_x, key_y, key_w = jax.random.split(key, 3)
    x = jax.random.beta(key_x, 2, 6, (num, 6, 1, 1))
    y = jax.random.uniform(key_y, (num, 6, 1, 1))
    width = jax.random.uniform(key_w, (num, 6, 1, 1), minval=0.05, maxval=0.15)
    grid = (jnp.arange(SIZE) + 0.5) / SIZE
    away = (grid[None, None, None] - x) ** 2 + (grid[None, None, :, None] - y) ** 2
    return jnp.sum(jnp.exp(-away / (2 * width**2)), axis=1)


def coarse(fields):
    """Returns fields as a grid of half the points in each direction sees them."""
    parts = fields.reshape(len(fields), SIZE // 2, 2, SIZE // 2, 2)
    return jax.image.resize(parts.mean((2, 4)), fields.shape, "linear")


def rows_of(part, scale):
    """Returns what `scores.Band` takes: centers and scales."""
    return model[part], jnp.broadcast_to(scale, model[part].shape)


fields = plates(jax.random.key(0), 1799)
model = coarse(fields)
first, second, third = slice(300), slice(300, 799), slice(799, None)
spread = scores.root_mean_square(fields[first] - model[first])
found = {}
for name, share, scale in (
    ("one width", 1.0, jnp.ones_like(spread)),
    ("scales of other plates", 1.0, spread),
    ("95 % of the points", 0.95, spread),
):
    cp = jaxcp.calibrate(scores.Band(share), rows_of(second, scale), fields[second])
    found[name] = cp(rows_of(third, scale), ALPHA)
    coverage = metrics.coverage(found[name], fields[third])
    width = metrics.mean_size(found[name])
    print(f"{name:24} coverage {coverage:.3f}, width {width:.3f}")

# %%
share, truth = found["95 % of the points"], fields[third]
worst = int(np.argmin(metrics.covered(share, truth)))
fig, axes = plt.subplots(1, 3, figsize=(9, 3))
axes[0].imshow(model[third][worst], cmap="magma")
axes[0].set_title("the model")
plotting.plot_band(share[worst], ax=axes[1], legend=False)
axes[1].set_title("width of its band")
plotting.plot_band(share[worst], truth[worst], ax=axes[2])
axes[2].set_title("the truth, with what is missed")
for ax in axes:
    ax.set(xticks=[], yticks=[])
plt.show()

# %% [markdown]
# ## Answers that come 24 steps late
#
# A forecast for tomorrow is judged tomorrow. The errors double half way. `delay=24`
# learns each target 24 steps after its set was issued, at the threshold of then; to
# learn it at once would be to know the future.

# %%
rng = np.random.default_rng(1)
shocks = rng.normal(size=NUM_STEPS + 500)
errors = np.convolve(shocks, 0.9 ** np.arange(60))[: NUM_STEPS + 500]
errors[500 + NUM_STEPS // 2 :] *= 2
past, y = errors[:500], errors[500:]
preds = np.zeros(NUM_STEPS)
absolute = scores.Absolute()
tracking = online.PID(absolute, step_size=0.3)
runs = {
    "never updated": (online.SlidingWindow(absolute, every=NUM_STEPS), 24),
    "window": (online.SlidingWindow(absolute), 24),
    "ACI": (online.ACI(absolute, step_size=0.01), 24),
    "tracking": (tracking, 24),
    "tracking, falling steps": (online.PID(absolute, step_size=5.0, decay=0.6), 24),
    "similar sizes": (online.Similar(absolute, bandwidth=0.3, window=400), 24),
    "SPCI": (online.SPCI(lags=1, window=400), 24),
    "tracking, at once": (tracking, 0),  # not to be had
}
streams = {}
print(f"{'':24}coverage  width  longest run of misses  worst 500 steps")
for name, (method, delay) in runs.items():
    signed = isinstance(method, online.SPCI)  # it regresses residuals
    start = method.init(past if signed else abs(past), ALPHA)
    state, streams[name] = online.run(method, start, preds, y, ALPHA, delay=delay)
    s = streams[name]
    coverage, width = metrics.coverage(s, y), metrics.mean_finite_size(s)
    run, worst = metrics.longest_miss(s, y), metrics.worst_window_coverage(s, y, 500)
    print(f"{name:24}{coverage:8.3f}{width:7.1f}{run:23d}{worst:17.3f}")

# %%
fig, ax = plt.subplots(figsize=(9, 3))
for name in ("never updated", "tracking", "tracking, falling steps"):
    hits = np.asarray(metrics.covered(streams[name], y), float)
    ax.plot(np.convolve(hits, np.ones(500) / 500, "valid"), label=name)
ax.axhline(1 - ALPHA, color="black", linestyle=":", linewidth=1)
ax.set(xlabel="step", ylabel="coverage of 500 steps")
ax.legend(loc="lower left")
plt.show()

# %% [markdown]
# Tracking holds the long run with a delay, too: its mean error over the rows that were
# learned is within (b + 25 step_size) / (step_size (T - 24)) of alpha, for scores in
# [0, b], on every sequence. Falling steps settle, and are slow when the law changes.
# `Similar` and `SPCI` read the errors that are known, 25 steps old, which say little.
# Their guarantee is asymptotic: `SPCI` with a short window covers too little.

# %% [markdown]
# ## The claim
#
# A path is missed in at most one of ten, and a set learns a target no sooner than it is
# there.

# %%
assert abs(float(metrics.coverage(found["one width"], truth)) - 0.9) < 0.1
assert abs(float(metrics.coverage(streams["tracking"], y)) - 0.9) < 0.02
