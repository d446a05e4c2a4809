"""Speed of jackknife+, CV+ and the online methods, side by side with others.

`python -m experiments.speed.cross_speed --out DIR`

Medians after compilation, taken in turns; MAPIE where it is installed.
"""

import importlib.util
import json
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.linear_model import Ridge

import jaxcp
from experiments.speed.cross_models import estimator_times, network_times
from experiments.speed.cross_streams import stream_times
from experiments.tools.reporting import arguments, median_seconds, run_tables
from jaxcp import datasets, learners, metrics, scores

ALPHA, PENALTY = 0.1, 1.0
NUM_ROWS, NUM_FEATURES = 2000, 20  # of the ridge
NUM_TRIALS = 100_000
ABSOLUTE = scores.Absolute()


def ridge_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns training inputs and targets, and test inputs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * NUM_ROWS, NUM_FEATURES))
    y = x.sum(axis=1) + rng.normal(size=2 * NUM_ROWS)
    return x[:NUM_ROWS], y[:NUM_ROWS], x[NUM_ROWS:]


def numpy_jackknife_plus(x, y, x_new) -> tuple[np.ndarray, np.ndarray]:
    """Returns jackknife+ intervals of a ridge in closed form, with np.partition."""
    n, p = x.shape
    center, level = x.mean(axis=0), y.mean()
    x, y = x - center, y - level
    inverse = np.linalg.inv(x.T @ x + PENALTY * np.eye(p))
    coef, leverages = inverse @ x.T @ y, x @ inverse
    held_out = (y - x @ coef) / (1 - 1 / n - np.sum(leverages * x, axis=1))
    coefs = coef[None] - leverages * held_out[:, None]
    levels = level - held_out / n - coefs @ center
    preds, errors = x_new @ coefs.T + levels, np.abs(held_out)
    k = int(jaxcp.conformal_rank(n, ALPHA))
    lower = np.partition(preds - errors, n - k, axis=1)[:, n - k]
    return lower, np.partition(preds + errors, k - 1, axis=1)[:, k - 1]


def mapie_jackknife_plus(x, y, x_new):
    """Returns the jackknife+ intervals of MAPIE: n fits of scikit-learn's ridge."""
    from mapie.regression import CrossConformalRegressor
    from sklearn.model_selection import LeaveOneOut

    model = CrossConformalRegressor(
        Ridge(PENALTY), confidence_level=1 - ALPHA, method="plus", cv=LeaveOneOut()
    )
    return model.fit_conformalize(x, y).predict_interval(x_new)[1]


def ridge_times() -> list[dict]:
    """Times fit and predict of the ridge jackknife+."""
    data = ridge_data()
    on_device = tuple(jnp.asarray(v, jnp.float32) for v in data)
    single = tuple(v.astype(np.float32) for v in data)
    key, ridge = jax.random.key(0), learners.Ridge(PENALTY)

    def ours():
        x, y, x_new = on_device
        return jaxcp.jackknife_plus(key, ridge, ABSOLUTE, x, y)(x_new, ALPHA)

    lower, upper = numpy_jackknife_plus(*data)
    assert np.abs(ours().lower - lower).max() < 1e-4
    assert np.abs(ours().upper - upper).max() < 1e-4
    calls = {
        "jaxcp": ours,
        "numpy, float32": lambda: numpy_jackknife_plus(*single),
        "numpy, float64": lambda: numpy_jackknife_plus(*data),
    }
    times = median_seconds(calls, repeats=9)
    if importlib.util.find_spec("mapie"):
        start = time.perf_counter()
        mapie_jackknife_plus(*data)
        times["MAPIE"] = time.perf_counter() - start
    bars = {"jaxcp": "at most 0.3 s", "MAPIE": "at most 0.1"}
    return [
        {
            f"ridge jackknife+, n = m = {NUM_ROWS}, p = {NUM_FEATURES}": name,
            "s": seconds,
            "jaxcp / it": times["jaxcp"] / seconds,
            "bar": bars.get(name, "at most 2"),
        }
        for name, seconds in times.items()
    ]


def recorded_times() -> list[dict]:
    """Times sets of n fits by their learner, and from predictions that are recorded."""
    x, y, x_new = (jnp.asarray(v, jnp.float32) for v in ridge_data())
    key, ridge = jax.random.key(0), learners.Ridge(PENALTY)
    cp = jaxcp.jackknife_plus(key, ridge, ABSOLUTE, x, y)
    old, new = cp.fits.predict(x), cp.fits.predict(x_new)
    held_out = np.eye(NUM_ROWS, dtype=bool)
    recorded = jaxcp.cross_calibrate(ABSOLUTE, old, y, held_out)
    assert np.abs(recorded(new, ALPHA).upper - cp(x_new, ALPHA).upper).max() < 1e-5
    calls = {
        "sets from recorded predictions": lambda: recorded(new, ALPHA),
        "sets by the learner": lambda: cp(x_new, ALPHA),
        "cross_calibrate": lambda: jaxcp.cross_calibrate(ABSOLUTE, old, y, held_out),
    }
    times = median_seconds(calls, repeats=9)
    first, by_learner, _ = times
    return [
        {
            f"n = m = b = {NUM_ROWS}": name,
            "s": seconds,
            "it / by the learner": seconds / times[by_learner],
            "bar": "at most 1.1" if name == first else "",
        }
        for name, seconds in times.items()
    ]


def replicate(key: jax.Array) -> jax.Array:
    """Returns the coverage of jackknife+ on one data set of 50 rows and 20 inputs."""
    key_data, key_fit = jax.random.split(key)
    x, y = datasets.linear(key_data, 70)
    ridge = learners.Ridge(PENALTY)
    cp = jaxcp.jackknife_plus(key_fit, ridge, ABSOLUTE, x[:50], y[:50])
    return metrics.coverage(cp(x[50:], ALPHA), y[50:])


def replicate_times() -> list[dict]:
    """Times a coverage simulation against a numpy loop over part of the replicates."""
    rng, key = np.random.default_rng(0), jax.random.key(0)

    def by_numpy():
        for _ in range(NUM_TRIALS // 50):
            x = rng.normal(size=(70, 5))
            y = x.sum(axis=1) / 5**0.5 + rng.normal(size=70)
            numpy_jackknife_plus(x[:50], y[:50], x[50:])

    def ours():
        return jaxcp.simulate(replicate, key, NUM_TRIALS)

    times = median_seconds({"jaxcp": ours, "numpy loop": by_numpy}, repeats=3)
    times["numpy loop"] *= 50
    return [
        {
            f"{NUM_TRIALS} x (50 rows, jackknife+, 20 inputs)": name,
            "s": seconds,
            "jaxcp / it": times["jaxcp"] / seconds,
        }
        for name, seconds in times.items()
    ]


LARGE = """
import json, time
import jax, jax.numpy as jnp
import jaxcp
from experiments.tools.machines import peak_gib
from jaxcp import datasets, learners, scores
x, y = datasets.linear(jax.random.key(0), 110_000, num_features=5)
jax.block_until_ready((x, y))
before = peak_gib()
def run():
    cp = jaxcp.cv_plus(
        jax.random.key(1), learners.Ridge(1.0), scores.Absolute(),
        x[:100_000], y[:100_000], num_folds=10,
    )
    return jax.block_until_ready(cp(x[100_000:], 0.1))
run()
start = time.perf_counter()
sets = run()
seconds = time.perf_counter() - start
print(json.dumps([seconds, before, peak_gib()]))
"""


def large_cv_plus() -> list[dict]:
    """Returns time and memory of CV+ with n = 10^5, m = 10^4, K = 10."""
    run = subprocess.run(
        [sys.executable, "-c", LARGE], capture_output=True, text=True, check=True
    )
    seconds, before, after = json.loads(run.stdout.splitlines()[-1])
    return [
        {
            "CV+": "n = 10^5, m = 10^4, K = 10",
            "s": seconds,
            "GiB of the process": after,
            "GiB before": before,
            "GiB of an (n, m) array": 4e9 / 2**30,
            "bar": "below 1 GiB",
        }
    ]


def main() -> None:
    """Prints and saves all tables."""
    args = arguments(__doc__, compiles=True).parse_args()
    tables = {
        "ridge": ridge_times,
        "recorded": recorded_times,
        "replicates": replicate_times,
        "streams": stream_times,
        "large": large_cv_plus,
        "networks": network_times,
        "estimator": lambda: estimator_times(*ridge_data()[:2]),
    }
    settings = {"alpha": ALPHA, "penalty": PENALTY, "dtype": "float32"}
    run_tables(args.out, "cross_speed", tables, settings)


if __name__ == "__main__":
    main()
