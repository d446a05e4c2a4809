"""Memory and time of a calibration whose rows come at once, and in batches.

`python -m experiments.speed.batches [--rows N] [--out DIR]`

Probabilities of 100 labels, by LAC, each way in a process of its own, which first
calibrates one batch. Peaks are those of the process, over its state before rows are
made: they hold the rows, too. So do seconds of the processor.
"""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.tools.reporting import ROOT, arguments, print_table, save_results

NUM_LABELS, SIZE = 100, 20_000
WAYS = "one batch", "whole", "batches"


def batch(i: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns probabilities and labels."""
    draw = np.random.default_rng(i)
    p = draw.standard_exponential((size, NUM_LABELS), np.float32)
    p /= p.sum(1, keepdims=True)
    return p, draw.integers(NUM_LABELS, size=size)


def batches(num_rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Returns batches, which nothing here holds."""
    starts = range(0, num_rows, SIZE)
    return (batch(i, min(SIZE, num_rows - i)) for i in starts)


def together(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns all rows, without a second copy of them."""
    p = np.empty((num_rows, NUM_LABELS), np.float32)
    y = np.empty(num_rows, int)
    for i in range(0, num_rows, SIZE):
        p[i : i + SIZE], y[i : i + SIZE] = batch(i, min(SIZE, num_rows - i))
    return p, y


def resident(name: str) -> float:
    """Returns memory of this process in MiB: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(v.split()[1]) for v in lines if v.startswith(name)) / 1024


def measure(way: str, num_rows: int) -> dict:
    """Returns the extra peak, seconds of the processor and the threshold, here."""
    import jaxcp
    from jaxcp import scores

    first = batch(0, min(SIZE, num_rows))
    float(jaxcp.calibrate(scores.LAC(), *first).quantile(0.1))  # compiles
    del first
    gc.collect()
    before, start = resident("VmRSS"), time.process_time()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    if way == "batches":
        cp = jaxcp.calibrate(scores.LAC(), batches=batches(num_rows))
    else:
        cp = jaxcp.calibrate(scores.LAC(), *together(num_rows))
    cp.scores.block_until_ready()
    extra, seconds = resident("VmHWM") - before, time.process_time() - start
    q = float(cp.quantile(0.1))
    return {"way": way, "extra MiB": extra, "CPU s": seconds, "threshold": q}


def run(num_rows: int) -> list[dict]:
    """Returns a row for each way; at most as much as 1.2 (scores and one batch)."""
    rows = []
    for way in WAYS:
        of = min(SIZE, num_rows) if way == "one batch" else num_rows
        words = [sys.executable, "-m", __spec__.name, "--way", way, "--rows", str(of)]
        done = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, check=True
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    allowed = num_rows * 4 / 2**20 + rows[0]["extra MiB"]
    for row in rows[1:]:
        row["of scores and one batch"] = row["extra MiB"] / allowed
    return rows


def main() -> None:
    """Prints and saves the table."""
    parser = arguments(__doc__, times=True)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--way", choices=WAYS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measure(args.way, args.rows)))
        return
    rows = run(args.rows)
    print_table(f"{args.rows} rows of {NUM_LABELS} probabilities, LAC", rows)
    settings = {"rows": args.rows, "labels": NUM_LABELS, "rows of a batch": SIZE}
    save_results(args.out, "batches", rows, settings)


if __name__ == "__main__":
    main()
