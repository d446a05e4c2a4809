"""Calibrated probabilities: the time of Venn-Abers predictors and isotonic regression.

`python -m experiments.speed.probability_speed [--out DIR]`

Scores are uniform, and labels are 1 with the probability of the score. Seconds are of
the processor, of all its threads, in turns. venn-abers takes part where it is
installed; it has no batches, and is called for each replicate. Of scikit-learn both
`fit` alone and `fit_transform` are timed: the latter returns what `isotonic` does, the
fit of every row. The first call is of a process that has imported everything, by the
clock on the wall.
"""

import importlib.util
import subprocess
import sys

import jax
import numpy as np
from sklearn.isotonic import IsotonicRegression

from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.timing import in_turns
from jaxcp.predictive import isotonic, venn_abers

NUM_RUNS, NUM_SMALL = 1000, 100  # replicates, and their rows
NUM_LARGE, NUM_LEVELS, NUM_TEST = 100_000, 1000, 1000
SIZES = 1000, 10_000, 100_000
REPEATS = {"replicates": 5, "rows": 15}
FIRST = """import time
from experiments.speed import probability_speed
from experiments.tools.compiled import compile_anew
compile_anew()
rows = probability_speed.data(100, 100)
start = time.perf_counter()
probability_speed.venn_abers(*rows)[1].block_until_ready()
print(time.perf_counter() - start)
"""


def data(n: int, m: int) -> tuple[np.ndarray, ...]:
    """Returns scores and labels of n rows, and scores of m test rows."""
    draw = np.random.default_rng(0)
    scores = draw.uniform(size=n + m).astype(np.float32)
    return scores[:n], draw.uniform(size=n) < scores[:n], scores[n:]


def by_peer(scores: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Returns p0 and p1 by venn-abers, shape (2, m)."""
    from venn_abers import VennAbers

    columns = lambda s: np.stack([1 - s, s], axis=1).astype(float)  # noqa: E731
    model = VennAbers()
    model.fit(columns(scores), labels.astype(int))
    with np.errstate(all="ignore"):
        return model.predict_proba(columns(test))[1].T


def compared(name: str, calls: dict, repeats: int, found: dict) -> list[dict]:
    """Returns the seconds of all ways, and how far their results are from jaxcp's."""
    times = {k: v.cpu for k, v in in_turns(calls, repeats).items()}
    return [
        {
            "rows": name,
            "by": way,
            "CPU s": seconds,
            "it / jaxcp": seconds / times["jaxcp"] if way != "jaxcp" else None,
            "jaxcp / it": times["jaxcp"] / seconds if way != "jaxcp" else None,
            "difference": found.get(way),
        }
        for way, seconds in times.items()
    ]


def replicates() -> list[dict]:
    """Returns the seconds of many pairs from few rows."""
    scores, labels, test = (
        np.reshape(v, (NUM_RUNS, NUM_SMALL))
        for v in data(NUM_RUNS * NUM_SMALL, NUM_RUNS * NUM_SMALL)
    )
    run = jax.jit(jax.vmap(venn_abers))
    calls = {"jaxcp": lambda: run(scores, labels, test)}
    found = {}
    if importlib.util.find_spec("venn_abers"):
        every = lambda: list(map(by_peer, scores, labels, test))  # noqa: E731
        ours = np.stack(run(scores, labels, test), axis=1)
        found = {"venn-abers": float(np.max(np.abs(np.stack(every()) - ours)))}
        calls["venn-abers"] = every
    name = f"{NUM_RUNS} replicates, n = m = {NUM_SMALL}"
    return compared(name, calls, REPEATS["replicates"], found)


def levels() -> list[dict]:
    """Returns the seconds of many rows on levels, for few and for as many test rows."""
    rows = []
    for m in (NUM_TEST, NUM_LARGE):
        given = data(NUM_LARGE, m)
        calls = {"jaxcp": lambda g=given: venn_abers(*g, num_levels=NUM_LEVELS)}
        if importlib.util.find_spec("venn_abers") and m == NUM_TEST:
            calls["venn-abers, unrounded"] = lambda g=given: by_peer(*g)
        name = f"n = {NUM_LARGE}, m = {m}, {NUM_LEVELS} levels"
        rows += compared(name, calls, REPEATS["replicates"], {})
    return rows


def regressions(n: int) -> list[dict]:
    """Returns the seconds of an isotonic regression of n rows."""
    x, y, _ = data(n, 1)
    y = y.astype(np.float32)
    fit = lambda: IsotonicRegression().fit(x, y)  # noqa: E731
    fitted = lambda: IsotonicRegression().fit_transform(x, y)  # noqa: E731
    precise = IsotonicRegression().fit_transform(x.astype(float), y.astype(float))
    error = float(np.max(np.abs(precise - isotonic(x, y))))
    calls = {"jaxcp": lambda: isotonic(x, y)}
    calls |= {"scikit-learn, fit_transform": fitted, "scikit-learn, fit": fit}
    found = {"scikit-learn, fit_transform": error}
    return compared(f"isotonic, n = {n}", calls, REPEATS["rows"], found)


def first_call() -> dict:
    """Returns the seconds of the first call of a process, compiled anew."""
    run = [sys.executable, "-c", FIRST]
    lines = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    return {"rows": "n = m = 100, first call", "by": "jaxcp", "s": float(lines)}


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__, times=True).parse_args()
    rows = replicates() + levels()
    rows += [row for n in SIZES for row in regressions(n)]
    rows.append(first_call())
    print_table("Calibrated probabilities", rows)
    save_results(args.out, "probability_speed", rows, {"repeats": REPEATS})


if __name__ == "__main__":
    main()
