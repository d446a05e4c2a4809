# %% [markdown]
# # One service, from frame to alarm
#
# A model of rents is fitted, judged in each district, and served without JAX. One day
# rents rise, intervals miss too often, and a monitor says so. The service calibrates
# on newer rows, and goes on.

# %%
import importlib.util
import json
import os
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_predict

import jaxcp
from jaxcp import learners, metrics, online, plotting, scores

FAST = bool(os.environ.get("JAXCP_FAST"))  # small sizes, for tests
NUM_ROWS, NUM_LIVE, CHANGE = 2400, 3000, 1500
NUM_ITER = 20 if FAST else 60
ALPHA = 0.1

plt.rcParams.update(plotting.style(**{"figure.dpi": 90}))

# %% [markdown]
# ## A frame, a model, and how hard each row is
#
# Large flats are harder to price. `learners.Difficulty` learns that from residuals of
# rows that the model did not see, and `scores.Normalized` scales intervals by it.


# %%
def draw(rng, n, rise=0.0):
    area = rng.uniform(20, 120, n)
    places = ["Center", "North", "South", "Airport", "Harbor"]
    place = rng.choice(places, n, p=[0.5, 0.25, 0.22, 0.015, 0.015])
    noise = np.where(place == "North", 3.0, 1.0) * area * rng.normal(size=n)
    rent = (15 + rise) * area + 200 * (place == "Center") + noise
    return pd.DataFrame({"area": area, "center": place == "Center"}), place, rent


rng = np.random.default_rng(0)
x, place, rent = draw(rng, NUM_ROWS)
train, held, test = slice(800), slice(800, 1600), slice(1600, None)
model = HistGradientBoostingRegressor(max_iter=NUM_ITER, random_state=0)
errors = rent[train] - cross_val_predict(model, x[train], rent[train], cv=5)
model.fit(x[train], rent[train])
difficulty = learners.Difficulty("knn").fit(x[train], residuals=errors)


def predict(x):
    return model.predict(x), difficulty(x)


# %% [markdown]
# ## Every district has its threshold
#
# The airport and the harbor have a dozen rows each. Districts with fewer than 20 share
# a threshold.

# %%
score = scores.Normalized()
cp = jaxcp.calibrate_groups(
    score, predict(x[held]), rent[held], place[held], min_size=20
)
thresholds = dict(zip(cp.threshold_names, cp.quantile(ALPHA).tolist(), strict=True))
print(", ".join(f"{name}: {q:.2f}" for name, q in thresholds.items()))
sets = cp(predict(x[test]), alpha=ALPHA, groups=place[test])
metrics.by_group(sets, rent[test], place[test]).to_pandas().round(2)

# %% [markdown]
# The same on one page that can be mailed: `jaxcp.report(...)` is a string of HTML, and
# with `path=` a file that loads nothing.

# %%
folder = tempfile.mkdtemp()
page = jaxcp.report(
    cp,
    predict(x[test]),
    rent[test],
    ALPHA,
    groups=place[test],
    path=os.path.join(folder, "report.html"),
)
print(f"report.html has {len(page) // 1000} kB")

# %% [markdown]
# ## A file of NumPy
#
# `cp.at(alpha)` holds thresholds and names, no rows. `export` writes it as one file of
# Python that needs NumPy alone; its sets are those of jaxcp to the last bit.

# %%
path = cp.at(ALPHA).export(folder)
spec = importlib.util.spec_from_file_location("predictor", path)
predictor = importlib.util.module_from_spec(spec)
spec.loader.exec_module(predictor)

mean, sigma = (np.float32(v) for v in predict(x[test]))
found = predictor.sets((mean, sigma), groups=place[test])
assert np.array_equal(found["lower"], sets.lower)
one = predictor.sets((mean[:1], sigma[:1]), groups=place[test][:1])
print(json.dumps(predictor.to_dict(one)))

# %% [markdown]
# ## Live: rents rise
#
# After 1,500 requests rents are 1.5 a square meter higher. Was the target missed? Each
# answer is one step of two monitors. The `RiskMonitor` asks whether the mean of all
# misses is above its limit, and raises a false alarm with probability 0.05, ever. The
# `ChangeMonitor` forgets quiet times: it finds a change sooner, and its false alarms
# are 10,000 rows apart, on average, or more.

# %%
before = draw(rng, CHANGE)
after = draw(rng, NUM_LIVE - CHANGE, rise=1.5)
live_x = pd.concat([before[0], after[0]], ignore_index=True)
live_place, live_rent = (
    np.concatenate(v) for v in zip(before[1:], after[1:], strict=True)
)
live = cp(predict(live_x), alpha=ALPHA, groups=live_place)
missed = 1 - metrics.covered(live, live_rent)

limit = 0.12  # of misses: 0.1 is promised, on average over calibration sets
monitors = {
    "risk": online.RiskMonitor(limit, delta=0.05),
    "change": online.ChangeMonitor(limit, run_length=10_000),
}
alarms, capital = {}, {}
for name, monitor in monitors.items():
    state, capital[name] = monitor.run(missed)
    alarms[name] = int(state.first_alarm)
    print(f"{name:6} alarm at row {alarms[name]}")

# %% [markdown]
# A service has one row at a time: `state = monitor.update(state, loss)` gives the same
# bits, and `jaxcp.save` keeps a state for the next day.

# %%
monitor = monitors["change"]
state, _ = monitor.run(missed[: alarms["change"] - 3])
for loss in missed[alarms["change"] - 3 : alarms["change"]]:
    state = monitor.update(state, loss)
assert state.first_alarm == alarms["change"]

# %% [markdown]
# The band holds a mean that stays: after the change the running mean leaves it.

# %% tags=["thumbnail"]
shown = slice(2200)
axes = plotting.plot_monitor(
    capital["change"][shown],
    monitor.alarm_level,
    losses=missed[shown],
    limit=limit,
    band=online.confidence_sequence(missed[shown], 0.05),
)
axes[0].set_ylim(0, 0.4)
plt.show()

# %% [markdown]
# ## After the alarm
#
# Rows after the alarm calibrate anew: `extended` adds them, `latest` keeps the newest.
# A method that learns from each answer needs no alarm: answers come in any order, and
# `online.Queue` charges each to the set that was issued for it.

# %%
row = alarms["change"]
fresh, later = slice(row, row + 600), slice(row + 600, None)
new = cp.extended(predict(live_x[fresh]), live_rent[fresh], live_place[fresh]).latest(
    600
)
for name, calibration in {"old": cp, "new": new}.items():
    sets = calibration(predict(live_x[later]), alpha=ALPHA, groups=live_place[later])
    print(
        f"{name} calibration: coverage {metrics.coverage(sets, live_rent[later]):.3f}"
    )

# %%
method = online.ACI(score, step_size=0.02)
past = jaxcp.calibrate(score, predict(x[held]), rent[held])
queue = online.Queue(method, method.init(past.scores, ALPHA), ALPHA, size=100)
preds, hits = np.stack(predict(live_x[CHANGE:]), 1).astype("float32"), []
waiting = []
for i, pred in enumerate(preds[: 200 if FAST else 600]):
    queue, interval = queue.issue(i, tuple(pred))
    waiting.append(i)
    hits.append(bool(interval.contains(live_rent[CHANGE + i])))
    if len(waiting) == 20:  # answers of the day, in any order
        for j in rng.permutation(waiting).tolist():
            queue = queue.settle(j, live_rent[CHANGE + j])
        waiting = []
print(queue, f"{np.mean(hits[-300:]):.2f} covered of the last 300")

# %% [markdown]
# ## The claim
#
# Before the change the sets keep what they promise; both monitors are quiet until it
# comes, and find it, the change monitor first; the new calibration covers again.

# %%
assert 0.86 < 1 - missed[:CHANGE].mean() < 0.94
assert CHANGE < alarms["change"] <= alarms["risk"]
assert alarms["change"] < CHANGE + 150
assert metrics.coverage(sets, live_rent[later]) > 0.87
print("alarm", alarms["change"] - CHANGE, "rows after the change")
