# %% [markdown]
# # Any model in every method
#
# Jackknife+, CV+, the bootstrap and EnbPI fit a model many times. The models of this
# notebook are from scikit-learn, LightGBM, PyTorch and a class in the style of
# statsmodels; data come in frames and labels are words. What comes out is a frame.

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

# %% [markdown]
# ## A frame
#
# Rents by area, rooms and district. The noise grows with the area.

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
# `Estimator` copies a model for every fold and fits the copy without it, here in two
# threads. The number of folds is all that we choose: there is no calibration set, and
# every row is used to fit and to calibrate.

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
coverages = {"forest, CV+": metrics.coverage(intervals, y_new)}
intervals.to_pandas(index=X_new).head(3)

# %%
pd.Series(metrics.summary(intervals, y_new, ALPHA)).round(3)

# %% [markdown]
# ## Two quantiles
#
# A list of models predicts a tuple: two quantile regressions for `CQR`, whose intervals
# are as wide as the data want them. Of the jackknife+ after bootstrap this time, which
# needs no more fits than bagging does.

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
coverages["two quantiles, after bootstrap"] = metrics.coverage(adaptive, y_new)
print(
    f"mean width {metrics.mean_size(intervals):.0f}, {metrics.mean_size(adaptive):.0f}"
)

# %% [markdown]
# ## LightGBM and PyTorch
#
# Whatever has `fit(X, y)` and `predict(X)` will do: the models of LightGBM do, and so
# does a class of ten lines around a network.

# %%
if lightgbm is None:
    print("lightgbm is not installed: this part is left out")
else:
    model = lightgbm.LGBMRegressor(n_estimators=NUM_TREES, verbose=-1)
    frame = X.astype({"district": "category"})
    frame_new = X_new.astype({"district": frame.district.dtype})
    rows = learners.Estimator(model), scores.Absolute(), frame, y
    boosted = jaxcp.cv_plus(jax.random.key(2), *rows, num_folds=NUM_FOLDS)
    found = boosted(frame_new, alpha=ALPHA)
    coverages["LightGBM, CV+"] = metrics.coverage(found, y_new)


# %%
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
    print("torch is not installed: this part is left out")
else:
    torch.manual_seed(0)
    dense = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["district"]),
        (StandardScaler(), ["area", "rooms"]),
    ).fit(X)
    rows = learners.Estimator(Network()), scores.Absolute(), dense.transform(X), y
    network = jaxcp.cv_plus(jax.random.key(3), *rows, num_folds=NUM_FOLDS)
    found = network(dense.transform(X_new), alpha=ALPHA)
    coverages["PyTorch, CV+"] = metrics.coverage(found, y_new)

# %% [markdown]
# ## Predictions alone
#
# Models that are fitted in another way, or elsewhere, enter by what they predict.
# `cross_calibrate` takes the predictions of b fits for the n rows, and which rows each
# fit left out. Here the folds are districts: no fit has seen the district that it
# predicts, so the class below (in the style of statsmodels) uses numbers alone.


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
found = by_district([result.predict(numbers_new) for result in results], alpha=ALPHA)
coverages["districts held out"] = metrics.coverage(found, y_new)

# %% [markdown]
# ## Words as labels
#
# A classifier predicts probabilities, and labels stay words from end to end.

# %%
kind = pd.Series(
    np.where(X.area < 45, "studio", np.where(X.rooms > 2, "family", "flat"))
)
kind = kind.where(rng.uniform(size=NUM_ROWS) < 0.8, kind.sample(frac=1).to_numpy())
classifier = learners.Estimator(
    make_pipeline(columns, LogisticRegression(max_iter=999))
)
rows = classifier, scores.LAC(), X, kind
words = jaxcp.cv_plus(jax.random.key(4), *rows, num_folds=NUM_FOLDS)
label_sets = words(X_new, alpha=ALPHA)
print(label_sets[:3].labels())
label_sets.to_pandas(index=X_new).head(3)

# %% [markdown]
# ## A stream
#
# EnbPI is an ensemble of bootstrap fits and a window of the latest scores, which
# `stream` makes of the ensemble. Here the noise doubles half way: a window that moves
# on once a day follows, one that stands still does not.

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
    print(f"an update every {every} hours: coverage {along[every]:.3f}")

# %% [markdown]
# ## Save, load, deploy
#
# A calibration is arrays and settings, in one file without code. Models are saved as
# their libraries do it. Another process loads the calibration; a service without JAX
# needs one number.

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
print(json.loads(there.stdout), here.tolist())
half = float(by_district.quantile(ALPHA))
print(
    f"minmax without JAX: the lowest prediction - {half:.1f}, the highest + {half:.1f}"
)

# %% [markdown]
# ## Picture
#
# 60 new flats in the order of their predictions: CV+ of a forest, and two quantiles.

# %%
order = np.argsort(X_new.area.to_numpy()[:60])
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharey=True)
for ax, found in zip(axes, [intervals, adaptive], strict=True):
    shown, targets = found[:60][order], y_new.to_numpy()[:60][order]
    plotting.plot_intervals(X_new.area.to_numpy()[:60][order], shown, targets, ax=ax)
    ax.set_xlabel("area")
axes[0].set(title="forest, CV+", ylabel="rent")
axes[0].set_ylim(0)
axes[1].set(title="two quantiles, after bootstrap", ylabel="")
axes[1].get_legend().remove()
plt.show()

# %% [markdown]
# ## The claim
#
# Jackknife+ and its relatives promise 1 - 2 alpha for any model, and cover about
# 1 - alpha for models that one row does not overturn. (Held-out districts are no
# exchangeable rows: a fit that has not seen the district errs more, and these intervals
# cover more.)

# %%
for name, rate in coverages.items():
    print(f"{name:32} {rate:.3f}")
assert all(rate > 1 - 2 * ALPHA for rate in coverages.values())
assert along[24] > along[len(now)]
assert np.allclose(json.loads(there.stdout), here)
