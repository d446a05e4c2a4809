"""The kernel and label sets against sorting, vectorized numpy and peers, in one run.

`python -m experiments.kernel_speed [--out DIR] [--puncc-python PATH]`
All times are medians in milliseconds after compilation, taken in turns. MAPIE is timed
if it is installed here, PUNCC with an interpreter of its own (it needs numpy < 2).
"""

import importlib.util
import json
import subprocess
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxcp
from experiments.reporting import arguments, median_seconds, run_tables
from jaxcp import scores

ALPHA = 0.1
SHAPES = [(1000, 1000), (100, 10_000), (1, 1_000_000), (10_000, 100)]
BEYOND_CACHE = [(1, 10_000_000), (10_000, 1024), (100_000, 100)]  # without a bar
AT_MOST = {(10_000, 100): 5.0}  # times np.partition; 2.0 elsewhere
LEVELS = [1, 2, 3, 4, 8, 32]
NUM_CLASSES, NUM_ROWS = 1000, 5000


def kth_smallest_times() -> list[dict]:
    """Times the k-th smallest of each row, k at the 0.9 quantile."""
    rows = []
    for b, n in SHAPES + BEYOND_CACHE:
        x = np.random.default_rng(0).normal(size=(b, n)).astype(np.float32)
        k = int(jaxcp.conformal_rank(n, ALPHA))
        kernel = jax.jit(jax.vmap(jaxcp.kth_smallest, (0, None)))
        by_sorting = jax.jit(lambda v, k: jnp.sort(v, axis=1)[:, k - 1])
        on_device = jnp.asarray(x)
        start = time.perf_counter()
        compiled = kernel.lower(on_device, k).compile()
        seconds = time.perf_counter() - start
        expected = np.partition(x, k - 1, axis=1)[:, k - 1]
        np.testing.assert_array_equal(kernel(on_device, k), expected)
        calls = {
            "jaxcp": lambda f=kernel, v=on_device, k=k: f(v, k),
            "numpy": lambda v=x, k=k: np.partition(v, k - 1, axis=1)[:, k - 1],
        }
        barred = (b, n) in SHAPES
        if barred:
            calls["sort"] = lambda f=by_sorting, v=on_device, k=k: f(v, k)
        times = median_seconds(calls)
        memory = compiled.memory_analysis()
        rows.append(
            {
                "k-th smallest": f"{b} x {n}",
                "jaxcp ms": 1e3 * times["jaxcp"],
                "np.partition ms": 1e3 * times["numpy"],
                "jnp.sort ms": 1e3 * times["sort"] if barred else None,
                "jaxcp / numpy": times["jaxcp"] / times["numpy"],
                "at most": AT_MOST.get((b, n), 2.0) if barred else None,
                "sort / jaxcp": times["sort"] / times["jaxcp"] if barred else None,
                "at least": 8.0 if barred else None,
                "compile s": seconds,
                "copies of x": round(1 + memory.temp_size_in_bytes / x.nbytes, 1),
            }
        )
    return rows


def level_times() -> list[dict]:
    """Times several levels of one array: bisections against one sort of keys."""
    rows = []
    for n in [1000, 100_000, 1_000_000]:
        x = jax.random.normal(jax.random.key(0), (n,))
        for count in LEVELS:
            k = jnp.linspace(1, n, count).astype(int)
            sorted_k = jnp.resize(k, max(count, 8))
            times = median_seconds(
                {
                    "bisect": lambda x=x, k=k: _BISECT(x, k),
                    "sort": lambda x=x, k=sorted_k: _SORT(x, k),
                },
                repeats=7,
            )
            rows.append(
                {
                    "levels of one array": f"{count} of {n}",
                    "bisections ms": 1e3 * times["bisect"],
                    "one sort ms": 1e3 * times["sort"],
                    "bisections / sort": times["bisect"] / times["sort"],
                }
            )
    return rows


_BISECT = jax.jit(jax.vmap(jaxcp.kth_smallest, (None, 0)))
_SORT = jax.jit(jaxcp.kth_smallest)  # sorts from eight levels on


def label_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns calibration and test probabilities and calibration labels."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(2, NUM_ROWS, NUM_CLASSES))
    p = np.exp(logits) / np.sum(np.exp(logits), axis=-1, keepdims=True)
    y = np.array([rng.choice(NUM_CLASSES, p=row) for row in p[0]])
    return p[0].astype(np.float32), p[1].astype(np.float32), y


def numpy_aps(p: np.ndarray, p_test: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns APS sets as vectorized numpy computes them: by sorting every row."""

    def ranked(p):
        order = np.argsort(-p, axis=1)
        return order, np.cumsum(np.take_along_axis(p, order, axis=1), axis=1)

    order, mass = ranked(p)
    rank = np.argmax(order == y[:, None], axis=1)
    calibration = mass[np.arange(len(y)), rank]
    k = int(jaxcp.conformal_rank(len(y), ALPHA))
    q = np.partition(calibration, k - 1)[k - 1]
    order, mass = ranked(p_test)
    sets = np.zeros(p_test.shape, bool)
    np.put_along_axis(sets, order, mass <= q, axis=1)
    return sets


def jaxcp_aps(p, p_test, y):
    """Returns APS sets, checks of the arguments included."""
    return jaxcp.calibrate(scores.APS(), p, y)(p_test, ALPHA).mask


def label_times(puncc_python: str | None) -> list[dict]:
    """Times calibration and sets of APS with 1000 classes, 5000 + 5000 rows."""
    p, p_test, y = label_data()
    on_device = tuple(jnp.asarray(v) for v in (p, p_test, y))
    ours, theirs = np.asarray(jaxcp_aps(*on_device)), numpy_aps(p, p_test, y)
    # The sums of numpy are rounded; ours are exact.
    assert np.mean(ours != theirs) < 1e-5
    calls = {
        "jaxcp": lambda: jaxcp_aps(*on_device),
        "numpy": lambda: numpy_aps(p, p_test, y),
    }
    if importlib.util.find_spec("mapie"):
        calls["MAPIE"] = lambda: mapie_aps(p, p_test, y)
    times = median_seconds(calls, repeats=5)
    if puncc_python:
        times["PUNCC"] = puncc_seconds(puncc_python)
    at_least = {"numpy": 1.0, "MAPIE": 3.0, "PUNCC": 3.0}
    return [
        {
            "APS, 1000 classes, 5000 + 5000 rows": name,
            "ms": 1e3 * seconds,
            "times jaxcp": seconds / times["jaxcp"],
            "at least": at_least.get(name),
        }
        for name, seconds in times.items()
    ]


def mapie_aps(p, p_test, y):
    """Returns the APS sets of MAPIE for a model that returns its input."""
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Identity(ClassifierMixin, BaseEstimator):
        classes_ = np.arange(NUM_CLASSES)

        def fit(self, x, y):
            return self

        def predict_proba(self, x):
            return x.astype(float)  # MAPIE refuses sums that single precision rounds

        def predict(self, x):
            return np.argmax(x, axis=1)

        def __sklearn_is_fitted__(self):
            return True

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SplitConformalClassifier(
            Identity(), confidence_level=1 - ALPHA, conformity_score="aps", prefit=True
        )
        wide, wide_test = (
            v / v.sum(1, keepdims=True) for v in (p.astype(float), p_test.astype(float))
        )
        model.conformalize(wide, y)
        return model.predict_set(
            wide_test, conformity_score_params={"include_last_label": True}
        )[1]


PUNCC_PROGRAM = """
import json, sys, time
import numpy as np
from deel.puncc.api.prediction import IdPredictor
from deel.puncc.classification import APS
data = np.load(sys.argv[1])
p, p_test = (v / v.sum(1, keepdims=True) for v in (data["p"], data["p_test"]))
times = []
for _ in range(4):
    start = time.perf_counter()
    cp = APS(IdPredictor(), train=False, rand=False)
    cp.fit(X_calib=p, y_calib=data["y"])
    cp.predict(p_test, alpha=float(sys.argv[2]))
    times.append(time.perf_counter() - start)
print(json.dumps(sorted(times[1:])[1]))
"""


def puncc_seconds(python: str) -> float:
    """Returns the median seconds of PUNCC, run by its own interpreter."""
    import tempfile

    p, p_test, y = label_data()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, p=p.astype(float), p_test=p_test.astype(float), y=y)
        run = subprocess.run(
            [python, "-c", PUNCC_PROGRAM, str(path), str(ALPHA)],
            capture_output=True,
            text=True,
            check=True,
        )
    return json.loads(run.stdout.splitlines()[-1])


def weighted_times() -> list[dict]:
    """Times weighted conformal quantiles against those without weights."""
    rows = []
    for shape in SHAPES:
        x = jax.random.normal(jax.random.key(0), shape)
        w = jax.random.uniform(jax.random.key(1), shape)
        plain = jax.jit(jax.vmap(lambda s: jaxcp.conformal_quantile(s, ALPHA)))
        weighted = jax.jit(
            jax.vmap(lambda s, v: jaxcp.weighted_conformal_quantile(s, v, ALPHA))
        )
        times = median_seconds(
            {
                "plain": lambda f=plain, x=x: f(x),
                "weighted": lambda f=weighted, x=x, w=w: f(x, w),
            }
        )
        rows.append(
            {
                "conformal quantile": f"{shape[0]} x {shape[1]}",
                "plain ms": 1e3 * times["plain"],
                "weighted ms": 1e3 * times["weighted"],
                "weighted / plain": times["weighted"] / times["plain"],
            }
        )
    return rows


def main() -> None:
    """Prints and saves all tables."""
    parser = arguments(__doc__, compiles=True)
    parser.add_argument("--puncc-python", help="an interpreter with puncc installed")
    args = parser.parse_args()
    tables = {
        "kernel": kth_smallest_times,
        "levels": level_times,
        "weights": weighted_times,
        "labels": lambda: label_times(args.puncc_python),
    }
    settings = {"alpha": ALPHA, "shapes": SHAPES, "dtype": "float32"}
    run_tables(args.out, "kernel_speed", tables, settings)


if __name__ == "__main__":
    main()
