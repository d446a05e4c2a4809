"""How long metrics, p-values, martingales and matching take, side by side.

`python -m experiments.speed.metrics_speed --out DIR`

Against vectorized numpy (and scipy for the assignment), and MAPIE where it is
installed. "jaxcp / it" above 1 means that we lose. The last table has the temporary
memory of HSIC, which grows with the number of rows and not with its square.
"""

import importlib.util
import time
import tracemalloc
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import false_discovery_control

from experiments.tools.reporting import arguments, median_seconds, run_tables
from jaxcp import detection, metrics, outliers, pvalues
from jaxcp.sets import Interval

NUM_ROWS, MANY_ROWS, NUM_P_VALUES = 2000, 100_000, 1_000_000
NUM_IMAGES, NUM_BOXES = 1000, 50
KEY_INTERVALS, KEY_OUTLIERS, KEY_BOXES = jax.random.split(jax.random.key(0), 3)


def compare(task: str, calls: dict, bar: float | None = None, repeats: int = 5) -> list:
    """Returns lines with the times of some calls; the first is ours."""
    times = median_seconds(calls, repeats=repeats)
    ours = next(iter(times.values()))
    return [
        {
            "task": task,
            "by": name,
            "s": seconds,
            "jaxcp / it": None if i == 0 else ours / seconds,
            "at most s": bar if i == 0 else None,
        }
        for i, (name, seconds) in enumerate(times.items())
    ]


def intervals(m: int) -> tuple[Interval, jax.Array]:
    """Returns intervals whose coverage depends on their width, and targets."""
    key_width, key_y = jax.random.split(KEY_INTERVALS)
    width = jax.random.exponential(key_width, (m,))
    return Interval(-width, width), jax.random.normal(key_y, (m,))


def numpy_hsic(sizes: np.ndarray, covered: np.ndarray) -> float:
    """Returns HSIC as whole matrices give it."""
    n = len(sizes)
    k = np.exp(-((sizes[:, None] - sizes) ** 2))
    centered = covered - covered.mean()
    return np.sqrt(2 * (1 - np.exp(-1)) * (centered @ k @ centered)) / (n - 1)


def metric_times() -> list[dict]:
    """Times HSIC and size-stratified coverage."""
    sets, y = intervals(NUM_ROWS)
    ends, y_wide = np.stack([sets.lower, sets.upper], 1).astype(float), np.asarray(y)
    sizes, covered = ends[:, 1] - ends[:, 0], np.abs(y_wide) <= ends[:, 1]
    calls = {
        "jaxcp": lambda: metrics.hsic(sets, y),
        "numpy, matrices": lambda: numpy_hsic(sizes, covered),
    }
    mapie = mapie_metrics()
    if mapie:
        calls["MAPIE"] = lambda: mapie.hsic(y_wide, ends[:, :, None])
    values = [float(np.squeeze(call())) for call in calls.values()]
    np.testing.assert_allclose(values, values[0], rtol=1e-4)
    rows = compare(f"HSIC, {NUM_ROWS} rows", calls, bar=0.05)

    many, y_many = intervals(MANY_ROWS)
    width = np.asarray(many.upper - many.lower)
    hit = np.abs(np.asarray(y_many)) <= np.asarray(many.upper)

    def by_numpy():
        strata = np.array_split(np.argsort(width, kind="stable"), 10)
        return np.array([hit[rows].mean() for rows in strata])

    calls = {
        "jaxcp": lambda: metrics.size_stratified_coverage(many, y_many, num_bins=10),
        "numpy": by_numpy,
    }
    np.testing.assert_allclose(calls["jaxcp"](), by_numpy(), rtol=1e-5)
    return rows + compare(f"size strata, {MANY_ROWS} rows", calls)


def mapie_metrics():
    """Returns MAPIE's regression metrics if it is installed."""
    if importlib.util.find_spec("mapie") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("mapie.metrics.regression")


def outlier_times() -> list[dict]:
    """Times p-values, discoveries and martingales."""
    key_old, key_new, key_u, key_values = jax.random.split(KEY_OUTLIERS, 4)
    scores = jax.random.normal(key_old, (MANY_ROWS,))
    test = jax.random.normal(key_new, (MANY_ROWS,))
    old, new = np.asarray(scores), np.asarray(test)

    def p_by_numpy():
        at_least = len(old) - np.searchsorted(np.sort(old), new, side="left")
        return (1 + at_least) / (len(old) + 1)

    calls = {
        "jaxcp": lambda: outliers.outlier_p_values(scores, test),
        "numpy": p_by_numpy,
    }
    np.testing.assert_allclose(calls["jaxcp"](), p_by_numpy(), rtol=1e-6)
    rows = compare("10^5 p-values among 10^5 scores", calls, bar=0.1)
    p = calls["jaxcp"]()
    wide = np.asarray(p, float)
    calls = {
        "jaxcp": lambda: pvalues.benjamini_hochberg(p, 0.1),
        "scipy": lambda: false_discovery_control(wide) <= 0.1,
    }
    rows += compare("Benjamini-Hochberg, 10^5", calls)
    stream = jax.random.uniform(key_u, (NUM_P_VALUES,))
    logs = np.asarray(stream, float)
    for martingale in (
        pvalues.SimpleJumper(),
        pvalues.MixtureMartingale(),
        pvalues.PowerMartingale(0.5),
    ):
        calls = {"jaxcp": lambda m=martingale: pvalues.watch(m, stream)}
        if isinstance(martingale, pvalues.PowerMartingale):
            calls["numpy"] = lambda: np.cumsum(np.log(0.5) - 0.5 * np.log(logs))
        if isinstance(martingale, pvalues.SimpleJumper):
            calls["python loop"] = lambda: loop_jumper(logs)
        name = type(martingale).__name__
        rows += compare(f"{name}, 10^6 p-values", calls, bar=1.0)
    values = jax.random.normal(key_values, (NUM_P_VALUES,))
    calls = {"jaxcp": lambda: pvalues.sequential_p_values(values, stream)}
    return rows + compare("sequential p-values, 10^6", calls, repeats=3)


def loop_jumper(p: np.ndarray, jump: float = 0.01) -> float:
    """Returns the log of the capital of a simple jumper, number by number."""
    low, mid, high, log_capital = 1 / 3, 1 / 3, 1 / 3, 0.0
    for edge in (p - 0.5).tolist():
        low = ((1 - jump) * low + jump / 3) * (1 - edge)
        mid = (1 - jump) * mid + jump / 3
        high = ((1 - jump) * high + jump / 3) * (1 + edge)
        total = low + mid + high
        low, mid, high = low / total, mid / total, high / total
        log_capital += np.log(total)
    return log_capital


def matching_times() -> list[dict]:
    """Times the matching of boxes of many images."""
    key_lower, key_sides, key_noise = jax.random.split(KEY_BOXES, 3)
    shape = NUM_IMAGES, NUM_BOXES, 2
    lower = 200 * jax.random.uniform(key_lower, shape)
    upper = lower + jax.random.uniform(key_sides, shape, minval=20.0, maxval=60.0)
    true = jnp.concatenate([lower, upper], axis=2)
    preds = true + 2 * jax.random.normal(key_noise, true.shape)
    match = jax.jit(jax.vmap(partial(detection.match_boxes, min_iou=0.5)))
    boxes, truths = np.asarray(preds), np.asarray(true)

    def by_scipy():
        return [image_by_scipy(p, t) for p, t in zip(boxes, truths, strict=True)]

    found = np.sum(match(preds, true)[1])
    assert abs(found - np.sum(by_scipy())) <= 2  # an IoU next to the least one
    calls = {"jaxcp, optax": lambda: match(preds, true), "numpy, scipy": by_scipy}
    return compare(f"matching {NUM_IMAGES} x {NUM_BOXES} boxes", calls, repeats=3)


def image_by_scipy(preds: np.ndarray, true: np.ndarray) -> int:
    """Returns how many boxes of one image match."""
    lower = np.maximum(preds[:, None, :2], true[:, :2])
    upper = np.minimum(preds[:, None, 2:], true[:, 2:])
    both = np.prod(np.maximum(upper - lower, 0), axis=2)
    area, true_area = (np.prod(b[:, 2:] - b[:, :2], axis=1) for b in (preds, true))
    iou = both / (area[:, None] + true_area - both)
    return int(np.sum(iou[linear_sum_assignment(-iou)] > 0.5))


def memory() -> list[dict]:
    """Measures the temporary memory and the time of HSIC as rows grow."""
    rows, mapie = [], mapie_metrics()
    for m in (NUM_ROWS, 5000, MANY_ROWS):
        sets, y = intervals(m)
        compiled = jax.jit(metrics.hsic).lower(sets, y).compile()
        start = time.perf_counter()
        compiled(sets, y).block_until_ready()
        seconds = time.perf_counter() - start
        line = {
            "HSIC, rows": m,
            "MiB": compiled.memory_analysis().temp_size_in_bytes / 2**20,
            "s": seconds,
        }
        if mapie and m <= 5000:
            ends = np.stack([sets.lower, sets.upper], 1).astype(float)[:, :, None]
            tracemalloc.start()
            start = time.perf_counter()
            mapie.hsic(np.asarray(y, float), ends)
            line["MAPIE s"] = time.perf_counter() - start
            line["MAPIE MiB"] = tracemalloc.get_traced_memory()[1] / 2**20
            tracemalloc.stop()
        rows.append(line)
    return rows


def main() -> None:
    """Prints and saves all tables."""
    args = arguments(__doc__, compiles=True).parse_args()
    tables = {
        "metrics": metric_times,
        "outliers": outlier_times,
        "matching": matching_times,
        "memory": memory,
    }
    masked = ("metrics", "outliers")
    run_tables(args.out, "metrics_speed", tables, {"dtype": "float32"}, masked)


if __name__ == "__main__":
    main()
