"""How verbs grow with their rows: time of the processor and memory, to 10^7 rows.

`python -m experiments.speed.data_scale [--out DIR] [--most N] [--only VERB]`

Every verb and size in a process of its own, from arrays of numpy. Seconds are of the
processor, of all threads, the median of three calls after the first; memory is the peak
of all calls, with what starts jax and compiles, beyond what was there with the input.
10^8 rows for `--most 8`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import numpy as np

import jaxcp
from experiments.tools.machines import peak_gib
from experiments.tools.reporting import ROOT, arguments, print_table, save_results
from jaxcp import metrics, outliers, pvalues, scores

ALPHA, LABELS, REPEATS, MOST = 0.1, 100, 3, 7
ABSOLUTE = scores.Absolute()


def numbers(n: int) -> tuple:
    """Returns two columns of normal numbers."""
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((2, n), dtype=np.float32))


def one_column(n: int) -> tuple:
    """Returns a column of normal numbers."""
    return (np.random.default_rng(0).standard_normal(n, dtype=np.float32),)


def probabilities(n: int) -> tuple:
    """Returns probabilities of each label, and a label of each row."""
    rng = np.random.default_rng(0)
    p = rng.random((n, LABELS), dtype=np.float32)
    p /= p.sum(axis=1, keepdims=True)
    return p, rng.integers(LABELS, size=n)


def p_values(n: int) -> tuple:
    """Returns p-values, of which a tenth are small."""
    p = np.random.default_rng(0).random(n, dtype=np.float32)
    return (np.where(np.arange(n) % 10, p, p / 1000),)


def sets_and_coverage(preds: np.ndarray, y: np.ndarray) -> object:
    """Calibrates on the first 1000 rows, and judges sets for all."""
    cp = jaxcp.calibrate(ABSOLUTE, preds[:1000], y[:1000])
    return metrics.coverage(cp(preds, ALPHA), y)


def labeled(score: object) -> tuple[Callable, Callable, int]:
    """Returns the calibration of a score of labels, for a tenth of the rows."""
    return probabilities, lambda p, y: jaxcp.calibrate(score, p, y).quantile(ALPHA), 1


# Rows, what is done with them, and by how many powers of ten they are fewer.
VERBS: dict[str, tuple[Callable, Callable, int]] = {
    "conformal_quantile": (
        one_column,
        lambda s: jaxcp.conformal_quantile(s, ALPHA),
        0,
    ),
    "weighted_conformal_quantile": (
        numbers,
        lambda s, t: jaxcp.weighted_conformal_quantile(
            s, abs(t), ALPHA, test_weight=1.0
        ),
        0,
    ),
    "calibrate, quantile": (
        numbers,
        lambda preds, y: jaxcp.calibrate(ABSOLUTE, preds, y).quantile(ALPHA),
        0,
    ),
    "sets, coverage": (numbers, sets_and_coverage, 0),
    "outlier p-values": (numbers, outliers.outlier_p_values, 0),
    "Benjamini-Hochberg": (
        p_values,
        lambda p: pvalues.benjamini_hochberg(p, ALPHA),
        0,
    ),
    f"LAC of {LABELS} labels": labeled(scores.LAC()),
    f"APS of {LABELS} labels": labeled(scores.APS()),
}


def measure(verb: str, n: int) -> dict:
    """Returns seconds of a call and the memory that it adds, for n rows."""
    make, call, _ = VERBS[verb]
    rows, seconds = make(n), []
    given = sum(v.nbytes for v in rows) / 2**30
    peak_gib(reset=True)
    before = peak_gib()  # of imports and the input
    jax.block_until_ready(call(*rows))
    for _ in range(REPEATS):
        start = time.process_time()
        jax.block_until_ready(call(*rows))
        seconds.append(time.process_time() - start)
    after, spent = peak_gib(), float(np.median(seconds))
    known = before is not None and after is not None
    return {
        "verb": verb,
        "rows": n,
        "CPU s": spent,
        "CPU ns a row": 1e9 * spent / n,
        "input GiB": given,
        "more GiB": after - before if known else None,
    }


def measured(verb: str, n: int) -> dict:
    """Returns what a fresh process measures."""
    program = f"from experiments.speed import data_scale as d; d.show({verb!r}, {n})"
    words = [sys.executable, "-c", program]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def show(verb: str, n: int) -> None:
    """Prints the seconds and the memory of one verb at one size."""
    print(json.dumps(measure(verb, n)))


def main() -> None:
    """Prints and saves the table."""
    parser = arguments(__doc__, times=True)
    parser.add_argument("--most", type=int, default=MOST, help="log10 of most rows")
    parser.add_argument("--only", default="", help="a part of the names")
    args = parser.parse_args()
    rows = [
        measured(verb, 10**i)
        for verb, (*_, fewer) in VERBS.items()
        if args.only in verb
        for i in range(3, args.most - fewer + 1)
    ]
    print_table("verbs and their rows", rows)
    save_results(args.out, "data_scale", rows, {"alpha": ALPHA, "dtype": "float32"})


if __name__ == "__main__":
    main()
