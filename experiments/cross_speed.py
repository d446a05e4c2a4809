"""Speed of jackknife+, CV+ and the online methods, side by side with others.

`python -m experiments.cross_speed --out DIR`

Medians after compilation, taken in turns; MAPIE where it is installed.
"""

import importlib.util
import json
import subprocess
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPRegressor

import jaxcp
from experiments.networks import MLP
from experiments.reporting import arguments, median_seconds, run_tables
from jaxcp import datasets, learners, metrics, online, scores

ALPHA, PENALTY = 0.1, 1.0
NUM_ROWS, NUM_FEATURES = 2000, 20  # of the ridge
NUM_TRIALS = 100_000
NUM_FOREST_ROWS, NUM_FOLDS = 1000, 10
NUM_NETWORKS, NUM_HIDDEN, NUM_STEPS = 200, 32, 300
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


def network_learner() -> learners.GradientLearner:
    """Returns a flax network with full-batch Adam."""
    make = lambda rngs: MLP(10, NUM_HIDDEN, 1, rngs=rngs)  # noqa: E731
    structure, _ = nnx.split(make(nnx.Rngs(0)))
    return learners.GradientLearner(
        init=lambda key: nnx.split(make(nnx.Rngs(key)))[1],
        predict=lambda params, x: nnx.merge(structure, params)(x)[:, 0],
        loss=optax.squared_error,
        optimizer=optax.adam(1e-2),
        num_steps=NUM_STEPS,
    )


def network_times() -> list[dict]:
    """Times 200 leave-one-out networks against a loop over scikit-learn's."""
    x, y = datasets.linear(jax.random.key(0), NUM_NETWORKS, num_features=10)
    learner, key = network_learner(), jax.random.key(1)

    def ours():
        return jaxcp.jackknife_plus(key, learner, ABSOLUTE, x, y)

    start = time.perf_counter()
    jax.block_until_ready(ours())
    compilation = time.perf_counter() - start
    seconds = median_seconds({"jaxcp": ours}, repeats=5)["jaxcp"]
    rows, targets = np.asarray(x), np.asarray(y)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of training that has not converged
        for i in range(NUM_NETWORKS):
            keep = np.arange(NUM_NETWORKS) != i
            network = MLPRegressor(
                hidden_layer_sizes=(NUM_HIDDEN,),
                activation="tanh",
                alpha=0.0,
                batch_size=NUM_NETWORKS - 1,
                learning_rate_init=1e-2,
                max_iter=NUM_STEPS,
                tol=0.0,
                n_iter_no_change=NUM_STEPS + 1,
            )
            network.fit(rows[keep], targets[keep]).predict(rows[i : i + 1])
    loop = time.perf_counter() - start
    assert network.n_iter_ == NUM_STEPS
    label = f"{NUM_NETWORKS} networks, {NUM_STEPS} Adam steps"
    return [
        {label: "jaxcp, flax", "s": seconds, "first call": compilation, "bar": 2.5},
        {
            label: "loop, scikit-learn",
            "s": loop,
            "it / jaxcp": loop / seconds,
            "bar": "at least 8",
        },
    ]


def estimator_times() -> list[dict]:
    """Times CV+ of a forest of scikit-learn against a plain loop over its fits."""
    x, y, _ = (v[:NUM_FOREST_ROWS] for v in ridge_data())
    fold = np.arange(NUM_FOREST_ROWS) % NUM_FOLDS
    forest = RandomForestRegressor(50, random_state=0)
    learner, key = learners.Estimator(forest), jax.random.key(0)

    def loop():
        errors = np.zeros(len(y))
        for k in range(NUM_FOLDS):
            held = fold == k
            model = clone(forest).fit(x[~held], y[~held])
            errors[held] = np.abs(y[held] - model.predict(x[held]))
        return errors

    def ours():
        return jaxcp.cv_plus(key, learner, ABSOLUTE, x, y, folds=fold).scores

    np.testing.assert_allclose(ours(), loop(), atol=1e-4)
    times = median_seconds({"jaxcp": ours, "loop": loop}, repeats=7)
    label = f"CV+ of a forest, n = {NUM_FOREST_ROWS}, K = {NUM_FOLDS}"
    return [
        {
            label: "cv_plus(Estimator)",
            "s": times["jaxcp"],
            "jaxcp / loop": times["jaxcp"] / times["loop"],
            "bar": "at most 1.05",
        },
        {label: "loop, scikit-learn", "s": times["loop"]},
    ]


LARGE = """
import json, resource, time
import jax, jax.numpy as jnp
import jaxcp
from jaxcp import datasets, learners, scores
x, y = datasets.linear(jax.random.key(0), 110_000, num_features=5)
jax.block_until_ready((x, y))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
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
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([seconds, before / 2**20, after / 2**20]))
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


STREAMS = {
    "window of 2000, every = 1": (online.SlidingWindow(ABSOLUTE), 2000, 1e4),
    "window of 2000, every = 24": (online.SlidingWindow(ABSOLUTE, 24), 2000, None),
    "ACI, window of 500": (online.ACI(ABSOLUTE, 0.01), 500, 1e5),
    "DtACI, 8 experts, window of 500": (
        online.DtACI(ABSOLUTE, 0.001 * 2.0 ** np.arange(8)),
        500,
        None,
    ),
    "NexCP, window of 500": (online.NexCP(ABSOLUTE, 0.99), 500, None),
    "quantile tracking": (online.PID(ABSOLUTE, 0.05), 500, 1e7),
    "PID": (online.PID(ABSOLUTE, 0.05, 0.1), 500, None),
    "SF-OGD": (online.SFOGD(ABSOLUTE, 3.0), 500, None),
}


def stream_times() -> list[dict]:
    """Returns steps per second of one series, and of 100 series under vmap."""
    return [stream_time(name, *settings) for name, settings in STREAMS.items()]


def stream_time(name: str, method, size: int, at_least: float | None) -> dict:
    """Times one online method."""
    past = jnp.abs(jax.random.normal(jax.random.key(1), (size,)))
    length = 1_000_000 if isinstance(method, online.PID | online.SFOGD) else 50_000
    y = jax.random.normal(jax.random.key(0), (length,))
    many, state = y.reshape(100, -1), method.init(past, ALPHA)

    def run(y):
        return online.run(method, state, jnp.zeros_like(y), y, ALPHA)[1]

    together = jax.jit(jax.vmap(run))
    times = median_seconds(
        {"one": lambda: run(y), "many": lambda: together(many)}, repeats=3
    )
    return {
        "steps of one series": name,
        "million steps / s": length / times["one"] / 1e6,
        "at least": None if at_least is None else at_least / 1e6,
        "100 series under vmap": length / times["many"] / 1e6,
    }


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
        "estimator": estimator_times,
    }
    settings = {"alpha": ALPHA, "penalty": PENALTY, "dtype": "float32"}
    run_tables(args.out, "cross_speed", tables, settings)


if __name__ == "__main__":
    main()
