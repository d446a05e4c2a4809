# %% [markdown]
# # Any model in every method
#
# Jackknife+, CV+, the bootstrap and EnbPI fit a model many times. They take any model
# with `fit` and `predict`. The models of this notebook are from scikit-learn, LightGBM
# and PyTorch, and one is a class in the style of statsmodels. Data come in pandas
# frames, labels are strings, and the sets become frames again.

# %%
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import jaxcp
from jaxcp import learners, metrics, online, plotting, scores

try:
    import lightgbm
except ImportError:  # this notebook runs without it, and without torch
    lightgbm = None
try:
    import torch
except ImportError:
    torch = None

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_TREES, NUM_FOLDS = (10, 3) if FAST else (50, 10)
NUM_ROWS, NUM_NEW, ALPHA = 300, 2000, 0.1

plt.rcParams.update(plotting.style())

# %% [markdown]
# ## A frame
#
# Rents of flats by area, rooms and district. The noise grows with the area.

# %%
rng = np.random.default_rng(0)


def rents(n, first):
    area, rooms = rng.uniform(20, 120, n), rng.integers(1, 6, n)
    district = rng.choice(["center", "north", "harbor"], n)
    level = pd.Series(district).map({"center": 16, "north": 11, "harbor": 13})
    rent = area * level + 40 * rooms + area * rng.normal(0, 2.5, n)
    frame = pd.DataFrame({"area": area, "rooms": rooms, "district": district})
    frame.index = pd.RangeIndex(first, first + n, name="flat")
    return frame, pd.Series(rent.to_numpy(), frame.index, name="rent")


X, y = rents(NUM_ROWS, 0)
X_new, y_new = rents(NUM_NEW, 10_000)
X.head(3)

# %% [markdown]
# ## CV+ of a forest, in a pipeline
#
# `Estimator` copies a model for every fold and fits the copy without the fold, here in
# two threads. We choose the number of folds and nothing else. There is no calibration
# set: every row is used to fit and to calibrate.

# %%
columns = make_column_transformer(
    (OneHotEncoder(), ["district"]), remainder="passthrough"
)
forest = make_pipeline(columns, RandomForestRegressor(NUM_TREES, min_samples_leaf=3))
learner = learners.Estimator(forest, num_workers=2)
cp = jaxcp.cv_plus(
    jax.random.key(0), learner, scores.Absolute(), X, y, num_folds=NUM_FOLDS
)
intervals = cp(X_new, alpha=ALPHA).clip(0, None)
all_sets = {"forest, CV+": intervals}
intervals.to_pandas(index=X_new).head(3)

# %%
pd.Series(metrics.summary(intervals, y_new, ALPHA)).round(3)

# %% [markdown]
# ## Two quantiles
#
# A list of models predicts a tuple: here two quantile regressions for `CQR`, whose
# intervals are wide where the noise is large. This time we use the jackknife+ after
# bootstrap, which needs no more fits than bagging.

# %%
quantiles = [
    make_pipeline(columns, GradientBoostingRegressor(loss="quantile", alpha=level))
    for level in (0.05, 0.95)
]
cqr = jaxcp.jackknife_plus_after_bootstrap(
    jax.random.key(1),
    learners.Estimator(quantiles, num_workers=2),
    scores.CQR(),
    X,
    y,
    num_resamples=2 * NUM_FOLDS,
)
adaptive = cqr(X_new, alpha=ALPHA)
all_sets["two quantiles, bootstrap"] = adaptive
print(f"mean width of the forest:    {metrics.mean_size(intervals):.0f}")
print(f"mean width of two quantiles: {metrics.mean_size(adaptive):.0f}")

# %% [markdown]
# ## LightGBM and PyTorch
#
# Every object with `fit(X, y)` and `predict(X)` will do: a model of LightGBM, or a
# small class around a network.

# %% tags=["not-compared"]
if lightgbm is None:
    print("lightgbm is not installed: this part is skipped")
else:
    model = lightgbm.LGBMRegressor(n_estimators=NUM_TREES, verbose=-1)
    frame = X.astype({"district": "category"})
    frame_new = X_new.astype({"district": frame.district.dtype})
    rows = learners.Estimator(model), scores.Absolute(), frame, y
    boosted = jaxcp.cv_plus(jax.random.key(2), *rows, num_folds=NUM_FOLDS)
    all_sets["LightGBM, CV+"] = boosted(frame_new, alpha=ALPHA)
    print(f"coverage {metrics.coverage(all_sets['LightGBM, CV+'], y_new):.3f}")


# %% tags=["not-compared"]
class Network:
    def fit(self, X, y):
        x, y = (torch.from_numpy(np.array(v, np.float32)) for v in (X, y))
        self.shift, self.scale = y.mean(), y.std()
        layers = (
            torch.nn.Linear(x.shape[1], 16),
            torch.nn.Tanh(),
            torch.nn.Linear(16, 1),
        )
        self.network = torch.nn.Sequential(*layers)
        optimizer = torch.optim.LBFGS(self.network.parameters(), max_iter=30)
        target = (y - self.shift) / self.scale

        def loss():
            optimizer.zero_grad()
            value = torch.mean((self.network(x)[:, 0] - target) ** 2)
            value.backward()
            return value

        optimizer.step(loss)
        return self

    def predict(self, X):
        x = torch.from_numpy(np.array(X, np.float32))
        return self.network(x)[:, 0].detach() * self.scale + self.shift


if torch is None:
    print("torch is not installed: this part is skipped")
else:
    torch.manual_seed(0)
    dense = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["district"]),
        (StandardScaler(), ["area", "rooms"]),
    ).fit(X)
    rows = learners.Estimator(Network()), scores.Absolute(), dense.transform(X), y
    network = jaxcp.cv_plus(jax.random.key(3), *rows, num_folds=NUM_FOLDS)
    all_sets["PyTorch, CV+"] = network(dense.transform(X_new), alpha=ALPHA)
    print(f"coverage {metrics.coverage(all_sets['PyTorch, CV+'], y_new):.3f}")

# %% [markdown]
# ## Predictions alone
#
# Models that are fitted in another way, or elsewhere, need only hand over their
# predictions. `cross_calibrate` takes the predictions of b fits for the n rows, and
# which rows each fit left out. Here the folds are districts. No fit has seen the
# district that it predicts, so the model below (in the style of statsmodels) uses
# numbers alone.


# %%
class OLS:
    def __init__(self, y, X):
        self.y, self.X = np.asarray(y), np.asarray(X)

    def fit(self):
        self.params = np.linalg.lstsq(self.X, self.y, rcond=None)[0]
        return self

    def predict(self, X):
        return np.asarray(X) @ self.params


numbers, numbers_new = X[["area", "rooms"]], X_new[["area", "rooms"]]
held_out = np.stack([X.district == name for name in X.district.unique()])
results = [OLS(y[~held], numbers[~held]).fit() for held in held_out]
preds = [result.predict(numbers) for result in results]
by_district = jaxcp.cross_calibrate(scores.Absolute(), preds, y, held_out)
preds_new = [result.predict(numbers_new) for result in results]
all_sets["districts held out"] = by_district(preds_new, alpha=ALPHA)

# %% [markdown]
# ## Strings as labels
#
# A classifier predicts probabilities. Labels are strings from the data to the sets.

# %%
kind = pd.Series(
    np.where(X.area < 45, "studio", np.where(X.rooms > 2, "family", "flat"))
)
kind = kind.where(rng.uniform(size=NUM_ROWS) < 0.8, rng.permutation(kind))
classifier = learners.Estimator(
    make_pipeline(columns, LogisticRegression(max_iter=999))
)
rows = classifier, scores.LAC(), X, kind
kinds = jaxcp.cv_plus(jax.random.key(4), *rows, num_folds=NUM_FOLDS)
label_sets = kinds(X_new, alpha=ALPHA)
print(label_sets[:3].labels())
label_sets.to_pandas(index=X_new).head(3)

# %% [markdown]
# ## A stream
#
# EnbPI is an ensemble of bootstrap fits, and a window of the latest scores, which
# `stream` returns. Here the noise grows after 800 of 1300 hours. A window that moves
# once a day follows the noise. A window that never moves does not.

# %%
hours = np.arange(1300)
level = np.sin(2 * np.pi * hours / 24) + 0.3 * rng.normal(size=1300)
level[800:] += 0.5 * rng.normal(size=500)
lagged, now = np.stack([level[:-1], hours[1:] % 24], axis=1), level[1:]
old, new = slice(300), slice(300, None)
leaves = learners.Estimator(RandomForestRegressor(NUM_TREES, min_samples_leaf=5))
ensemble = jaxcp.enbpi(
    jax.random.key(5),
    leaves,
    scores.Absolute(),
    lagged[old],
    now[old],
    num_resamples=2 * NUM_FOLDS,
    block_size=24,
)
center, along = ensemble.aggregate(lagged[new]), {}
for every in (24, len(now)):
    method, state = ensemble.stream(every=every)
    state, found = online.run(method, state, center, now[new], ALPHA)
    along[every] = metrics.coverage(found, now[new])
    print(f"an update after every {every} hours: coverage {along[every]:.3f}")

# %% [markdown]
# ## Save, load, deploy
#
# A calibration is arrays and settings, in one file without code. Save models as their
# libraries do. Another process can load the calibration. A service without JAX needs
# one number: how far the minmax intervals reach beyond the lowest and the highest
# prediction of the fits.

# %%
path = Path(tempfile.mkdtemp()) / "districts.npz"
jaxcp.save(path, by_district)
program = f"""
import json, jaxcp
cp = jaxcp.load({str(path)!r})
print(json.dumps(cp([[1000.0], [1010.0], [990.0]], alpha={ALPHA}).to_numpy().tolist()))
"""
there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
here = by_district([[1000.0], [1010.0], [990.0]], alpha=ALPHA).to_numpy()
print(
    "in the other process:", *(f"{v:.2f}" for v in np.ravel(json.loads(there.stdout)))
)
print("in this process:     ", *(f"{v:.2f}" for v in here.ravel()))
print(f"minmax without JAX: lowest prediction - {by_district.quantile(ALPHA):.1f},")
print(f"                   highest prediction + {by_district.quantile(ALPHA):.1f}")

# %% [markdown]
# ## Pictures
#
# 60 new flats by their area. The intervals of two quantiles are narrower for small
# flats.

# %%
area = X_new.area.to_numpy()
figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
for ax, name in zip(axes, list(all_sets)[:2], strict=True):
    plotting.plot_intervals(
        area[:60],
        all_sets[name][:60],
        y_new[:60],
        kind="bars",
        legend=ax is axes[0],
        ax=ax,
    )
    ax.set_title(f"{name}, alpha = {ALPHA}")
    ax.set(xlabel="area", ylabel="rent" if ax is axes[0] else "")
axes[0].set_ylim(0)
plt.show()

# %% [markdown]
# Coverage and mean width on 2000 new flats, for every model, with two standard errors.

# %% tags=["thumbnail"]
coverages = {name: metrics.coverage(s, y_new) for name, s in all_sets.items()}
widths = {name: metrics.sizes(s) for name, s in all_sets.items()}
figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
plotting.plot_comparison(
    list(all_sets),
    list(coverages.values()),
    [width.mean() for width in widths.values()],
    ALPHA,
    coverage_errors=[2 * (c * (1 - c) / NUM_NEW) ** 0.5 for c in coverages.values()],
    size_errors=[2 * width.std() / NUM_NEW**0.5 for width in widths.values()],
    size_name="mean width (rent)",
    ax=axes,
)
axes[0].set_title(f"n = {NUM_ROWS}, {NUM_NEW:,} new flats")
plt.show()

# %% [markdown]
# ## The claim
#
# The jackknife+ covers at least 1 - 2 alpha for any model that treats rows alike, and
# about 1 - alpha for stable models, which one row changes little. CV+ promises a little
# less, and the bootstrap the same for a random number of bags. (None of this holds
# where folds are districts, since a district is no random part of the rows. A fit that
# has not seen a district errs more there, so these intervals are wide and cover more.)

# %% tags=["not-compared"]
for name, rate in coverages.items():
    print(f"{name:32} {rate:.3f}")
assert all(rate > 1 - 2 * ALPHA for rate in coverages.values())
assert along[24] > along[len(now)]
assert np.allclose(json.loads(there.stdout), here)
