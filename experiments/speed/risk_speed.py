"""Speed of risk control, side by side with NumPy and MAPIE.

`python -m experiments.speed.risk_speed --out DIR`

Medians after compilation, taken in turns; the least and the CPU time of all cores
beside them. NumPy bisects the bits of a float as we do, which serves any loss; sorting
the scores of the true labels serves the false negative rate alone. MAPIE tries 100
thresholds. Short rows in great number lie in cache for a sort: there we lose.
"""

import importlib.util
import itertools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from experiments.peers.risk_peers import mapie_crc
from experiments.tools.reporting import arguments, run_tables
from experiments.tools.timing import Times, in_turns
from jaxcp import pvalues, risk, scores

ALPHA = DELTA = 0.1
FNR, MULTI = risk.false_negative_rate, scores.MultiLabel()
SIZES = ((1000, 80), (4952, 80))
SHORT, NUM_SHORT = (99, 4), 10_000
BETS = (4000, 1000)
TESTS = (1000, 1000)
NUM_LARGE = 10**6


def labels_data(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns probabilities of k labels and true ones, about 3 of 80, at least one."""
    rng = np.random.default_rng(0)
    p = rng.random((n, k)).astype(np.float32) ** 3
    y = rng.random((n, k)) < np.where(p > 0.5, 3 * p, 0.3) / 30
    y[np.arange(n), rng.integers(k, size=n)] = True
    return p, y


def numpy_bisection(p: np.ndarray, y: np.ndarray, alpha: float = ALPHA) -> np.float32:
    """Returns the threshold of CRC: the bits of the smallest float within the budget.

    Scores are not below 0, so that their bits are ordered as they are.
    """
    scores = np.where(y, 1 - p, np.float32(-np.inf))
    shares, budget = 1 / np.maximum(y.sum(axis=1), 1), alpha * (len(p) + 1) - 1
    bits = np.uint32(0x7F800000)  # infinity
    for bit in range(30, -1, -1):
        lower = bits - np.uint32(1 << bit)
        if lower > bits:  # below zero
            continue
        missed = np.count_nonzero(scores > lower.view(np.float32), axis=1)
        if missed @ shares <= budget + 1e-9:
            bits = lower
    return bits.view(np.float32)


def numpy_sort(p: np.ndarray, y: np.ndarray, alpha: float = ALPHA) -> np.float32:
    """Returns the same, by sorting the scores of the true labels."""
    rows, columns = np.nonzero(y)
    scores = 1 - p[rows, columns]
    order = np.argsort(scores)
    shares = (1 / np.bincount(rows, minlength=len(p)))[rows[order]]
    missed = shares.sum() - np.cumsum(shares)
    fits = missed <= alpha * (len(p) + 1) - 1 + 1e-9
    return scores[order[np.argmax(fits)]]


def numpy_many(p: np.ndarray, alpha: float = ALPHA) -> np.ndarray:
    """Returns the thresholds of many calibrations of (n, m) true labels, (b,).

    Every label counts the same, so that one cumulative sum serves all.
    """
    scores = np.sort((1 - p).reshape(len(p), -1), axis=1)
    share = np.full(scores.shape[1], 1 / p.shape[2])
    missed = share.sum() - np.cumsum(share)
    fits = missed <= alpha * (p.shape[1] + 1) - 1 + 1e-9
    return scores[:, np.argmax(fits)]


def numpy_partition(p: np.ndarray, alpha: float = ALPHA) -> np.ndarray:
    """Returns the same by a partition, where every label counts the same."""
    n, m = p.shape[1:]
    above = int(m * (alpha * (n + 1) - 1) + 1e-9)
    place = n * m - above - 1
    return np.partition((1 - p).reshape(len(p), -1), place, axis=1)[:, place]


def numpy_betting(x: np.ndarray, alpha: float = ALPHA) -> np.ndarray:
    """Returns p-values of columns by betting, by cumulative sums in place."""
    n = len(x)
    count = np.arange(2, n + 2, dtype=x.dtype)[:, None]
    mean = np.cumsum(x, axis=0)
    mean += x.dtype.type(0.5)
    mean /= count
    np.subtract(x, mean, out=mean)
    np.square(mean, out=mean)
    spread = np.cumsum(mean, axis=0)
    spread += x.dtype.type(0.25)
    spread /= count
    spread[1:] = spread[:-1].copy()  # only the past enters a bet
    spread[0] = 0.25
    np.divide(x.dtype.type(2 * np.log(1 / DELTA) / n), spread, out=spread)
    np.sqrt(spread, out=spread)
    np.minimum(spread, 1, out=spread)
    spread *= x.dtype.type(alpha) - x
    np.log1p(spread, out=spread)
    capital = np.cumsum(spread, axis=0, out=spread).max(axis=0)
    return np.exp(-np.maximum(capital, 0))


def numpy_betting_by_rows(x: np.ndarray, alpha: float = ALPHA) -> np.ndarray:
    """Returns the same row by row, in vectors that stay in cache."""
    n, width = x.shape
    kind = x.dtype.type
    total, squares = np.full(width, kind(0.5)), np.full(width, kind(0.25))
    spread, capital = squares.copy(), np.zeros(width, x.dtype)
    largest, bet, gain = capital.copy(), squares.copy(), squares.copy()
    scale, alpha = kind(2 * np.log(1 / DELTA) / n), kind(alpha)
    for i, row in enumerate(x, start=2):
        np.divide(scale, spread, out=bet)
        np.sqrt(bet, out=bet)
        np.minimum(bet, kind(1), out=bet)
        np.subtract(alpha, row, out=gain)
        gain *= bet
        capital += np.log1p(gain, out=gain)
        np.maximum(largest, capital, out=largest)
        total += row
        np.divide(total, kind(i), out=bet)
        np.subtract(row, bet, out=bet)
        np.square(bet, out=bet)
        squares += bet
        np.divide(squares, kind(i), out=spread)
    return np.exp(-largest)


def numpy_fixed_sequence(p: np.ndarray, delta: float = DELTA) -> np.ndarray:
    """Returns the first hypotheses of each row, as long as all are rejected."""
    return np.logical_and.accumulate(p <= delta, axis=1)


def crc_times() -> list[dict]:
    """Times the threshold for the false negative rate of 80 labels.

    Ours is timed with calibration and its checks, without, and all of it inside jit.
    """
    lines = []
    for n, k in SIZES:
        p, y = labels_data(n, k)
        cp = calibrated(jnp.asarray(p), jnp.asarray(y))
        inside = jax.jit(lambda p, y: calibrated(p, y).quantile(ALPHA))
        calls = {
            "jaxcp": lambda cp=cp: cp.quantile(ALPHA),
            "jaxcp, with calibration": lambda cp=cp: calibrated(
                cp.preds, cp.y
            ).quantile(ALPHA),
            "jaxcp, inside jit": lambda cp=cp, f=inside: f(cp.preds, cp.y),
            "numpy, bisection": lambda p=p, y=y: numpy_bisection(p, y),
            "numpy, sort of the true": lambda p=p, y=y: numpy_sort(p, y),
        }
        found = np.array([float(call()) for call in calls.values()])
        np.testing.assert_array_equal(found, found[0])
        times = in_turns(calls, repeats=31)
        if n == SIZES[0][0] and importlib.util.find_spec("mapie"):
            times["MAPIE"] = once(lambda p=p, y=y: mapie_crc(p, y))
        lines += compared(f"CRC, {n} x {k}", times)
    return lines


def calibrated(p, y):
    """Returns the calibration of the false negative rate."""
    return risk.calibrate_risk(FNR, MULTI, p, y)


def many_times() -> list[dict]:
    """Times many calibrations of few rows and labels, in one program."""
    shape = (NUM_SHORT, *SHORT)
    p = np.random.default_rng(0).random(shape, dtype=np.float32)
    y = jnp.ones(SHORT, bool)

    @jax.jit
    def ours(p):
        one = lambda p: calibrated(p, y).quantile(ALPHA)  # noqa: E731
        return jax.vmap(one)(p)

    on_device = jnp.asarray(p)
    calls = {
        "jaxcp": lambda: ours(on_device),
        "numpy, sort and cumulative sum": lambda: numpy_many(p),
        "numpy, partition": lambda: numpy_partition(p),
    }
    for call in calls.values():
        np.testing.assert_array_equal(call(), calls["jaxcp"]())
    return compared(f"{NUM_SHORT} calibrations of 99 x 4", in_turns(calls))


def betting_times() -> list[dict]:
    """Times p-values by betting, of many columns."""
    x = np.random.default_rng(0).beta(1, 9, BETS)
    single, on_device = x.astype(np.float32), jnp.asarray(x, jnp.float32)
    calls = {
        "jaxcp": lambda: risk.p_value(on_device, ALPHA, method="betting", delta=DELTA),
        "numpy, cumulative sums": lambda: numpy_betting(single),
        "numpy, float64": lambda: numpy_betting(x),
        "numpy, row by row": lambda: numpy_betting_by_rows(single),
    }
    right = calls["numpy, float64"]()
    for call in calls.values():
        np.testing.assert_allclose(call(), right, rtol=2e-3)
    return compared(f"betting, {BETS[0]} x {BETS[1]}", in_turns(calls))


def sequence_times() -> list[dict]:
    """Times fixed sequences of p-values, from the first hypothesis on."""
    p = np.random.default_rng(0).random(TESTS, dtype=np.float32) ** 20
    on_device = jnp.asarray(p)
    rejected = jax.jit(jax.vmap(lambda p: pvalues.fixed_sequence(p, DELTA)))
    calls = {
        "jaxcp": lambda: rejected(on_device),
        "numpy": lambda: numpy_fixed_sequence(p),
    }
    np.testing.assert_array_equal(calls["jaxcp"](), calls["numpy"]())
    return compared(f"fixed sequence, {TESTS[0]} x {TESTS[1]}", in_turns(calls))


def count_times() -> list[dict]:
    """Times exact counts on the host, each call with another level."""
    levels = itertools.count(1)  # what has been asked for is kept

    def ours():
        return risk.critical_count(NUM_LARGE, 0.1 + 1e-6 * next(levels), DELTA)

    def by_scipy():
        law = stats.binom(NUM_LARGE, 0.1 + 1e-6 * next(levels))
        return int(law.ppf(DELTA))

    times = in_turns({"jaxcp": ours, "scipy, ppf": by_scipy})
    lines = compared("critical count, n = 10^6", times)
    return [line | {"ms": 1e3 * line["s"]} for line in lines]


def compared(task: str, times: dict[str, Times]) -> list[dict]:
    """Returns a line of each, with the ratio of our time to it and the other way."""
    ours = times["jaxcp"].median
    return [
        {"task": task, "by": name, "s": v.median, "least s": v.least, "CPU s": v.cpu}
        | {"jaxcp / it": ours / v.median}
        for name, v in times.items()
    ]


def once(call: Callable) -> Times:
    """Returns the seconds of a single call of something slow."""
    cpu, start = time.process_time(), time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    return Times(seconds, seconds, time.process_time() - cpu)


def main() -> None:
    """Prints and saves all tables."""
    args = arguments(__doc__, compiles=True).parse_args()
    tables = {
        "crc": crc_times,
        "many": many_times,
        "betting": betting_times,
        "sequence": sequence_times,
        "counts": count_times,
    }
    settings = {"alpha": ALPHA, "delta": DELTA, "dtype": "float32"}
    run_tables(args.out, "risk_speed", tables, settings)


if __name__ == "__main__":
    main()
