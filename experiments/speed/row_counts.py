"""What another number of rows costs: ten folds of ten sizes.

`python -m experiments.speed.row_counts [--out DIR]`

Each fold calibrates, asks for sets at one level and for their metrics, from numpy, with
rows that no other fold has. Seconds are of the processor, of all its threads; programs
are compiled, not taken from a cache of another process.
"""

import time

import jax
import numpy as np

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import metrics, scores

FOLDS = 10
ROWS, TEST_ROWS, CLASSES, ALPHA = 900, 100, 10, 0.1
STEP, TEST_STEP = 7, 3  # rows that each fold has more than the one before
AT_MOST = 1.5  # seconds of all folds after the first
SCORES = {"Absolute": scores.Absolute(), "LAC": scores.LAC(), "APS": scores.APS()}


def data(draw: np.random.Generator, labels: bool, n: int) -> tuple:
    """Returns predictions and targets in double precision."""
    if not labels:
        return draw.normal(size=n), draw.normal(size=n)
    return draw.dirichlet(np.ones(CLASSES), n), draw.integers(CLASSES, size=n)


def fold(score: object, held_out: tuple, test: tuple) -> None:
    """Runs one fold."""
    cp = jaxcp.calibrate(score, *held_out)
    sets = cp(test[0], ALPHA)
    metrics.coverage(sets, test[1]), metrics.mean_size(sets)
    metrics.summary(sets, test[1], ALPHA).tolist()


def measure(name: str) -> dict:
    """Returns the seconds of the first and the other folds, and what they compiled."""
    jax.clear_caches()
    draw, labels = np.random.default_rng(0), name != "Absolute"
    sizes = [(ROWS + STEP * i, TEST_ROWS + TEST_STEP * i) for i in range(FOLDS)]
    folds = [(data(draw, labels, n), data(draw, labels, m)) for n, m in sizes]
    seconds, counts = [], []
    for rows in folds:
        before, start = len(PROGRAMS), time.process_time()
        fold(SCORES[name], *rows)
        seconds.append(time.process_time() - start)
        counts.append(len(PROGRAMS) - before)
    return {
        "score": name,
        "first s": seconds[0],
        "second s": seconds[1],
        "others s": sum(seconds[2:]),
        "after the first s": sum(seconds[1:]),
        "programs": counts[0],
        "then": counts[1],
        "then again": sum(counts[2:]),
    }


PROGRAMS: list[str] = []


def _note(event: str, duration: float, **about) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        PROGRAMS.append(event)


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__, compiles=True).parse_args()
    jax.monitoring.register_event_duration_secs_listener(_note)
    rows = [measure(name) for name in SCORES]
    settings = {"folds": FOLDS, "rows": ROWS, "test rows": TEST_ROWS}
    print_table(f"{FOLDS} folds of {FOLDS} sizes, at most {AT_MOST} s after one", rows)
    save_results(args.out, "row_counts", rows, settings)


if __name__ == "__main__":
    main()
