# %% [markdown]
# # Predictive distributions
#
# How many loaves must a bakery bake so that they last on 95 of 100 days? How many are
# sold on the middle day, and how likely are more than 60? An interval does not say. A
# calibrated distribution for each day says all of it, and is right on average for every
# distribution of the sales and every model.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import RandomForestRegressor

import jaxcp
from jaxcp import certificates, metrics, plotting, scores
from jaxcp.predictive import Atoms, calibrate_predictive

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_FIT, NUM_HELD, NUM_NEW = 1000, 999, 1000
NUM_TREES = 30 if FAST else 200
LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]

plt.rcParams.update(plotting.style(**{"figure.dpi": 90}))

# %% [markdown]
# ## Sales, and a forest
#
# More is sold when it is warm, and then sales also vary more. They are skewed: few days
# are far above the mean. At weekends they vary twice as much, which the forest is not
# told.


# %%
def draw(key, n):
    key_x, key_day, key_y = jax.random.split(key, 3)
    x = jnp.sort(jax.random.uniform(key_x, (n,), maxval=30.0))  # degrees
    weekend = jax.random.bernoulli(key_day, 2 / 7, (n,))
    spread = (3 + x / 3) * jnp.where(weekend, 2, 1)
    y = 30 + x + spread * (jax.random.exponential(key_y, (n,)) - 1)
    return x, np.where(weekend, "weekend", "weekday"), y


x_fit, _, y_fit = draw(jax.random.key(0), NUM_FIT)
x, day, y = draw(jax.random.key(1), NUM_HELD)
x_new, day_new, y_new = draw(jax.random.key(2), NUM_NEW)

options = {"n_estimators": NUM_TREES, "min_samples_leaf": 20, "random_state": 0}
forest = RandomForestRegressor(oob_score=True, **options).fit(x_fit[:, None], y_fit)
errors = np.abs(y_fit - forest.oob_prediction_)  # of rows that a tree has not seen
spread = RandomForestRegressor(**options).fit(x_fit[:, None], errors)


def predict(x):
    """The mean, and a scale: the mean error."""
    return jnp.asarray(forest.predict(x[:, None])), jnp.asarray(
        spread.predict(x[:, None])
    )


preds, preds_new = predict(x), predict(x_new)

# %% [markdown]
# ## A bound from one side
#
# The score y - mean rises with the target, so its sets are (-inf, upper], and all of
# alpha goes to the days when the bread does not last.

# %%
cp = jaxcp.calibrate(scores.Residual(), preds[0], y)
enough = cp(preds_new[0], alpha=0.05)
both = jaxcp.calibrate(scores.Absolute(), preds[0], y)(preds_new[0], alpha=0.05)
print(f"bread lasts on {metrics.coverage(enough, y_new):.3f} of the days", end=", ")
print(f"{jnp.mean(enough.upper - preds_new[0]):.1f} loaves above the mean")
print(f"an interval at 0.05 goes {jnp.mean(both.upper - preds_new[0]):.1f} above it")

# %% [markdown]
# ## A distribution for each day
#
# One calibration, and then any question. `Residual` has one shape for all days,
# `ScaledResidual` one in units of the predicted scale.

# %%
plain = calibrate_predictive(scores.Residual(), preds[0], y)
scaled = calibrate_predictive(scores.ScaledResidual(), preds, y)
upper = scaled.quantile(preds_new, LEVELS, side="upper")
for level, bound in zip(LEVELS, upper.T, strict=True):
    share = jnp.mean(y_new <= bound)
    print(f"{level:4}: {share:.3f} of the days are at most at this quantile")
middle = jnp.searchsorted(x_new, 20.0)
day_of_20 = jax.tree.map(lambda v: v[middle : middle + 1], preds_new)
below = scaled.cdf(day_of_20, jnp.array([60.0]), u=0.5)[0]
print(f"at 20 degrees more than 60 are sold with probability {1 - below:.2f}")

# %% [markdown]
# The fan has the five quantiles along the temperature. It opens where sales vary more,
# and it is wider above than below, because the errors are skewed.

# %% tags=["thumbnail"]
figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharey=True)
fans = {"one shape": plain.quantile(preds_new[0], LEVELS, side="upper")}
fans["in units of the scale"] = upper
for ax, (name, fan) in zip(axes, fans.items(), strict=True):
    plotting.plot_fan(x_new, fan, LEVELS, y_new, ax=ax, markersize=2)
    ax.set(title=name, xlabel="temperature", ylabel="loaves")
axes[1].set_ylabel("")
plt.show()

# %% [markdown]
# ## Which of the two is better?
#
# The CRPS is the absolute error of a distribution, in loaves. Less is better. The
# standard error of the difference is that of a mean over days.

# %%
crps = {
    "mean alone": jnp.abs(y_new - preds_new[0]),
    "one shape": plain.crps(preds_new[0], y_new),
    "scaled": scaled.crps(preds_new, y_new),
}
for name, each in crps.items():
    print(f"{name:10} {jnp.mean(each):.3f}")
gain = np.asarray(crps["one shape"] - crps["scaled"])
gain_error = gain.std() / NUM_NEW**0.5
print(f"the scale gains {gain.mean():.3f} +- {gain_error:.3f}")

# %% [markdown]
# ## Is it calibrated?
#
# The place of a target in its distribution, the PIT value, is uniform. Values of the
# new days share the calibration rows, so that their histogram spreads more than one of
# independent numbers: the band knows that. Beside it stands what happens if the rows
# that trained a forest of deep trees also calibrate it.

# %%
deep = RandomForestRegressor(n_estimators=NUM_TREES, random_state=0)
deep.fit(x_fit[:, None], y_fit)
seen = jnp.asarray(deep.predict(x_fit[:, None]))
wrong = calibrate_predictive(scores.Residual(), seen, y_fit)
u = jaxcp.uniforms(jax.random.key(3), NUM_NEW)
deep_new = jnp.asarray(deep.predict(x_new[:, None]))
pits = {"rows kept apart": scaled.cdf(preds_new, y_new, u=u)}
pits["rows that trained"] = wrong.cdf(deep_new, y_new, u=u)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
p_values = {}
for ax, (name, pit) in zip(axes, pits.items(), strict=True):
    n = NUM_HELD if name == "rows kept apart" else NUM_FIT
    p_values[name] = certificates.pit_test(pit, n).p_value
    plotting.plot_pit(pit, n, ax=ax, legend=ax is axes[0])
    ax.set_title(f"{name}: p = {p_values[name]:.2g}")
axes[1].set_ylabel("")
plt.show()

# %% [markdown]
# ## Groups by name
#
# Calibrated on average is not calibrated at weekends. With the names of the days each
# kind of day has rows of its own, and the promise holds for both.

# %%
named = calibrate_predictive(scores.ScaledResidual(), preds, y, day)
top = named.quantile(preds_new, 0.95, side="upper", groups=day_new)
print("bread lasts on  all together  by kind of day")
lasts = {}
for kind in ("weekday", "weekend"):
    own = day_new == kind
    lasts[kind] = [float(jnp.mean((y_new <= v)[own])) for v in (upper[:, -1], top)]
    print(f"{kind:14}  {lasts[kind][0]:12.3f}  {lasts[kind][1]:14.3f}")
by_name = named.crps(preds_new, y_new, groups=day_new)
print(f"CRPS {jnp.mean(crps['scaled']):.3f}, by kind of day {jnp.mean(by_name):.3f}")

# %% [markdown]
# The distributions of two days of 20 degrees:

# %%
figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
for kind in ("weekday", "weekend"):
    atoms = named.draw(jax.random.key(4), day_of_20, 2000, groups=np.array([kind]))
    plotting.plot_cdf(Atoms(atoms[0]), label=kind, ax=ax)
ax.set(xlabel="loaves")
plt.show()

# %% [markdown]
# ## The claim
#
# Each quantile has its share of days, within four standard errors of calibration and
# test rows; the system that knows the scale has the smaller CRPS; the test passes the
# right system and rejects the one that was calibrated with its training rows; weekends
# are covered only once they are named.

# %%
for level, bound in zip(LEVELS, upper.T, strict=True):
    slack = 4 * (level * (1 - level) * (1 / NUM_HELD + 1 / NUM_NEW)) ** 0.5
    assert abs(jnp.mean(y_new <= bound) - level) < slack
assert gain.mean() > 2 * gain_error
assert p_values["rows kept apart"] > 0.01 and p_values["rows that trained"] < 1e-6
assert lasts["weekend"][0] < 0.93 < lasts["weekend"][1]
print("distributions are calibrated, together and by name")
