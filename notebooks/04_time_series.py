# %% [markdown]
# # A stream that changes
#
# Prediction sets are calibrated on the past. What if the future is different? Here the
# noise of a time series grows threefold from one hour to the next. Split conformal
# prediction does not notice, and loses its coverage. Online methods see each target
# after they have predicted it. They learn from it, and get their coverage back.

# %%
import os
import tempfile

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxcp
from jaxcp import learners, metrics, online, plotting, scores

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_PAST = 400
NUM_STEPS = 2_000 if FAST else 4_000
CHANGE = NUM_STEPS // 2
WINDOW = 200  # steps of the rolling coverage
ALPHA = 0.1

plt.rcParams.update(plotting.style())

# %% [markdown]
# ## Data
#
# An hourly series with a daily rhythm, in which each value depends on the last:
# y_t = 0.6 y_(t-1) + 2 sin(2 pi t / 24) + e_t. Time 0 is now. The standard deviation of
# e_t is 1 until the change and 3 after it.


# %%
def series(key, times):
    scale = jnp.where(times < CHANGE, 1.0, 3.0)
    shocks = scale * jax.random.normal(key, times.shape)
    rhythm = jnp.stack([jnp.sin(jnp.pi * times / 12), jnp.cos(jnp.pi * times / 12)], 1)

    def step(last, now):
        y = 0.6 * last + now
        return y, (last, y)

    lags, y = jax.lax.scan(step, 0.0, 2 * rhythm[:, 0] + shocks)[1]
    return jnp.append(rhythm, lags[:, None], axis=1), y


times = jnp.arange(-NUM_PAST, NUM_STEPS)
x, y = jax.jit(series)(jax.random.key(0), times)
train, cal, new = jnp.split(jnp.arange(len(y)), [NUM_PAST // 2, NUM_PAST])

# %% [markdown]
# ## A prediction
#
# A ridge regression on the last value and the time of day, fitted on the first half of
# the past. The second half calibrates it: split conformal prediction.

# %%
ridge, score = learners.Ridge(1.0), scores.Absolute()
params = jax.jit(ridge.fit)(
    jax.random.key(1), x[train], y[train], jnp.ones(NUM_PAST // 2)
)
cp = jaxcp.split_conformal(ridge.predict, params, score, x[cal], y[cal])
preds, targets = ridge.predict(params, x[new]), y[new]
found = {"split": cp(x[new], alpha=ALPHA)}

# %% [markdown]
# ## Methods for streams
#
# A method starts with a state, from the scores of the past. `run` goes along the
# stream: it predicts a set, sees the target and updates the state, in one scan.
#
# - `ACI` moves the level alpha: down after a miss, up a little after a hit.
# - `DtACI` runs several `ACI` with different steps, and gives most weight to those that
#   do well.
# - `PID` moves the threshold itself: up after a miss, down a little after a hit.

# %%
past = cp.calibration.scores
methods = {
    "ACI": online.ACI(score, step_size=0.02),
    "DtACI": online.DtACI(score, jnp.array([0.005, 0.02, 0.08])),
    "PID": online.PID(score, step_size=0.1 * past.max()),
}
for name, method in methods.items():
    state = method.init(past, alpha=ALPHA)
    _, found[name] = online.run(method, state, preds, targets, alpha=ALPHA)

# %% [markdown]
# EnbPI needs no separate rows for calibration. It fits an ensemble to blocks of a day,
# drawn at random from the past. The score of a row comes from the fits whose blocks
# lack the row. A window of the latest scores moves along with the stream.

# %%
ensemble = jaxcp.enbpi(
    jax.random.key(2),
    ridge,
    score,
    x[:NUM_PAST],
    y[:NUM_PAST],
    num_resamples=20,
    block_size=24,
)
window, state = ensemble.stream()  # an online.SlidingWindow of its scores
_, found["EnbPI"] = online.run(
    window, state, ensemble.aggregate(x[new]), targets, alpha=ALPHA
)

# %% [markdown]
# ## Coverage

# %%
changed = (jnp.arange(NUM_STEPS) >= CHANGE).astype(int)
rates = {
    name: metrics.group_coverage(sets, targets, changed, num_groups=2)
    for name, sets in found.items()
}
widths = {name: metrics.sizes(sets) for name, sets in found.items()}
print(f"{'':8}coverage before  after   median width before  after")
for name, (before, after) in rates.items():
    width = [jnp.median(widths[name][changed == i]) for i in (0, 1)]
    print(f"{name:8}{before:15.3f}{after:7.3f}{width[0]:22.2f}{width[1]:7.2f}")
print("infinite intervals of ACI:", jnp.isinf(widths["ACI"]).sum())

# %% [markdown]
# After the change split conformal prediction covers little more than a third of the
# targets, since its width does not change. The intervals of the others get three times
# as wide. After many misses in a row, some intervals of ACI are infinite. This is how
# it keeps its promise on every sequence. EnbPI has its coverage back when its window
# holds new scores only.
#
# ## The change
#
# The three days before and after it, for split conformal prediction and for ACI. The
# vertical line is the change. Triangles mark infinite ends.

# %% tags=["thumbnail"]
figure, axes = plt.subplots(2, 1, figsize=(9, 5), sharex=True, sharey=True)
near = slice(CHANGE - 72, CHANGE + 72)
for ax, name in zip(axes, ["split", "ACI"], strict=True):
    hours = times[NUM_PAST:][near]
    plotting.plot_intervals(
        hours, found[name][near], targets[near], legend=name == "ACI", ax=ax
    )
    ax.axvline(CHANGE - 0.5, color="gray", linestyle=":")
    ax.set(title=f"{name}, alpha = {ALPHA}", ylabel="y", xlabel="")
axes[0].set_ylim(-15, 15)
axes[1].set_xlabel("hour")
plt.show()

# %% [markdown]
# ## The whole stream
#
# The coverage of the latest 200 hours, for every method. The gray strip is two standard
# errors of independent steps wide, on both sides of 1 - alpha.

# %%
figure, axes = plt.subplots(2, 3, figsize=(9, 4.2), sharex=True, sharey=True)
for ax, (name, sets) in zip(axes.flat, found.items(), strict=False):
    covered = metrics.covered(sets, targets)
    plotting.plot_rolling_coverage(
        covered, ALPHA, window=WINDOW, label="coverage", legend=False, ax=ax
    )
    ax.axvline(CHANGE - 0.5, color="gray", linestyle=":", label="change")
    ax.set(title=name, xlabel="", ylabel="")
axes[0, -1].tick_params(labelbottom=True)
axes[-1, -1].set_axis_off()
axes[-1, -1].legend(*axes[0, 0].get_legend_handles_labels(), loc="center")
figure.supxlabel("hour", fontsize="medium")
figure.supylabel(f"coverage of the latest {WINDOW} hours", fontsize="medium")
plt.show()

# %% [markdown]
# ## Step by step
#
# In production targets come one at a time. `predict` gives the set for the next target,
# and `update` takes the target. The state is a pytree of a few arrays. Save it, and
# continue on another day.

# %%
aci = methods["ACI"]
state = aci.init(past, alpha=ALPHA)
for t in range(3):
    now = aci.predict(state, preds[t], alpha=ALPHA)
    state = aci.update(state, preds[t], targets[t], alpha=ALPHA)
    ends = f"[{now.lower:5.2f}, {now.upper:5.2f}]"
    print(f"{ends} for {targets[t]:5.2f}, then alpha = {state.alpha:.3f}")

with tempfile.TemporaryDirectory() as folder:
    jaxcp.save(f"{folder}/state.npz", state)
    state = jaxcp.load(f"{folder}/state.npz")
now = aci.predict(state, preds[3], alpha=ALPHA)
print(f"upper end from the saved state: {now.upper:.3f}")
print(f"upper end by `run`:             {found['ACI'].upper[3]:.3f}")

# %% [markdown]
# ## The claim
#
# After T steps the share of misses of ACI differs from alpha by at most
# (1 - alpha + step) / (step T), whatever the stream does. Split conformal prediction
# promises nothing here.

# %%
miss = 1 - metrics.coverage(found["ACI"], targets)
bound = (1 - ALPHA + aci.step_size) / (aci.step_size * NUM_STEPS)
print(f"ACI: share of misses {miss:.4f}, alpha {ALPHA}")
print(f"difference {abs(miss - ALPHA):.4f}, at most {bound:.4f}")
assert abs(miss - ALPHA) <= bound
assert rates["split"][1] < 0.6
assert all(after > 0.8 for name, (_, after) in rates.items() if name != "split")
