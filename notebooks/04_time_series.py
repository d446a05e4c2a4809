# %% [markdown]
# # A stream that changes
#
# Prediction sets are calibrated on the past. What if the future is different? Here the
# noise of a time series grows threefold on one day. Split conformal prediction does not
# notice and loses its coverage. Online methods see each target after they have
# predicted it, learn from it, and get their coverage back.

# %%
import os
import tempfile

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxcp
from jaxcp import learners, metrics, online, plotting, scores

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_PAST = 400
NUM_STEPS = 2_000 if FAST else 4_000
CHANGE = NUM_STEPS // 2
NUM_ROLLING = 200  # steps that a point of the rolling coverage is about
ALPHA = 0.1

# %% [markdown]
# ## Data
#
# An hourly series with a daily rhythm, in which each value pulls the next one along:
# y_t = 0.6 y_(t-1) + 2 sin(2 pi t / 24) + e_t. Time 0 is today. The standard deviation
# of e_t is 1 in the past and 3 after the change.


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
# A method makes a state from the scores of the past. `run` goes along the stream: it
# predicts a set, sees the target, changes the state, and so on, in one scan.
#
# - `ACI` moves the level alpha: down after a miss, up a little after a hit;
# - `DtACI` runs several `ACI` with different steps, and trusts those that do well;
# - `PID` moves the threshold itself, up after a miss, down a little after a hit.

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
# EnbPI needs no rows for calibration alone. It fits an ensemble to blocks of a day,
# drawn at random from the past; a row has its score from the fits whose blocks lack it.
# The window of the latest scores slides along with the stream.

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
widths = {name: sets.upper - sets.lower for name, sets in found.items()}
print(f"{'':8}coverage before  after   median width before  after")
for name, (before, after) in rates.items():
    width = [jnp.median(widths[name][changed == i]) for i in (0, 1)]
    print(f"{name:8}{before:15.3f}{after:7.3f}{width[0]:22.2f}{width[1]:7.2f}")
print("infinite intervals of ACI:", jnp.isinf(widths["ACI"]).sum())

# %% [markdown]
# After the change split conformal prediction covers little more than a third of the
# targets, for its width stays what it was. The others get three times as wide. After
# many misses in a row ACI says "anything" for a few steps: its intervals are infinite.
# This is how it keeps its promise on every sequence. EnbPI has its coverage back when
# its window holds new scores only.
#
# ## Pictures

# %%
figure, axes = plt.subplots(3, 1, figsize=(9, 7.5), layout="constrained")
near = slice(CHANGE - 100, CHANGE + 100)
for ax, name in zip(axes, ["split", "ACI"], strict=False):
    part = jax.tree.map(lambda v: v[near], found[name])
    plotting.plot_intervals(jnp.arange(NUM_STEPS)[near], part, targets[near], ax=ax)
    ax.set(title=name, xlabel="", ylabel="y")
    ax.legend(frameon=False, fontsize="small", loc="lower left", ncols=3)
axes[0].set_ylim(axes[1].get_ylim())
for name, sets in found.items():
    covered = jax.vmap(lambda s, v: s.contains(v))(sets, targets)
    rolling = np.convolve(covered, np.ones(NUM_ROLLING) / NUM_ROLLING, "valid")
    axes[2].plot(np.arange(NUM_ROLLING - 1, NUM_STEPS), rolling, label=name)
axes[2].axhline(1 - ALPHA, color="black", linestyle="--", linewidth=0.8)
axes[2].set(xlabel="t", ylabel=f"coverage of the last {NUM_ROLLING} steps")
axes[2].legend(frameon=False, loc="lower left")
for ax in axes:
    ax.axvline(CHANGE - 0.5, color="black", linewidth=0.8)
plt.show()

# %% [markdown]
# ## Step by step
#
# In production targets come one at a time. `predict` gives the set for the next target,
# `update` takes in the target. The state is a pytree of a few arrays: save its leaves,
# and go on another day.

# %%
aci = methods["ACI"]
state = aci.init(past, alpha=ALPHA)
for t in range(3):
    now = aci.predict(state, preds[t], alpha=ALPHA)
    state = aci.update(state, preds[t], targets[t], alpha=ALPHA)
    ends = f"[{now.lower:5.2f}, {now.upper:5.2f}]"
    print(f"{ends} for {targets[t]:5.2f}, then alpha = {state.alpha:.3f}")

with tempfile.TemporaryDirectory() as folder:
    np.savez(f"{folder}/state.npz", *jax.tree.leaves(state))
    with np.load(f"{folder}/state.npz") as leaves:
        fresh = aci.init(past, alpha=ALPHA)
        state = jax.tree.unflatten(jax.tree.structure(fresh), leaves.values())
now = aci.predict(state, preds[3], alpha=ALPHA)
print("from the saved state:", now.upper, "by `run`:", found["ACI"].upper[3])

# %% [markdown]
# ## The claim
#
# After T steps the share of misses of ACI is within (1 - alpha + step) / (step T) of
# alpha, whatever the stream does. Split conformal prediction promises nothing here.

# %%
miss = 1 - metrics.coverage(found["ACI"], targets)
bound = (1 - ALPHA + aci.step_size) / (aci.step_size * NUM_STEPS)
print(f"ACI: {miss:.4f} misses, so {abs(miss - ALPHA):.4f} off, at most {bound:.4f}")
assert abs(miss - ALPHA) <= bound
assert rates["split"][1] < 0.6
assert all(after > 0.8 for name, (_, after) in rates.items() if name != "split")
