"""Streams whose targets come late: seconds of a run with a delay, and without.

`python -m experiments.speed.delays [--out DIR]`

Seconds are of the processor, of all its threads; the first call compiles. The bytes
are those of the rows that wait, which do not grow with the stream.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import online, scores

STEPS, PAST, DELAY, ALPHA = 22_656, 500, 24, 0.1  # hours of prices, of a month
AT_MOST, FIRST_AT_MOST = 0.15, 1.5  # CPU s
REPEATS = 5
ABSOLUTE = scores.Absolute()
METHODS = {
    "tracking": online.PID(ABSOLUTE, 0.1),
    "ACI": online.ACI(ABSOLUTE, 0.01, window=PAST),
    "DtACI": online.DtACI(ABSOLUTE, jnp.array([0.001, 0.01, 0.1]), window=PAST),
    "SF-OGD": online.SFOGD(ABSOLUTE, 3.0),
    "sliding window": online.SlidingWindow(ABSOLUTE),
    "NexCP": online.NexCP(ABSOLUTE, 0.99),
}


def cpu_seconds(method: online.Stream, delay: int, y: np.ndarray) -> float:
    """Returns the seconds of the processor that a run over all of `y` takes."""
    state = method.init(abs(y[:PAST]), ALPHA)
    start = time.process_time()
    found = online.run(method, state, np.zeros_like(y), y, ALPHA, delay=delay)
    jax.block_until_ready(found)
    return time.process_time() - start


def line(name: str, y: np.ndarray, delay: int = DELAY) -> dict:
    """Returns a line of the table."""
    method, found = METHODS[name], {}
    for key, late in (("without", 0), ("with", delay)):
        first = cpu_seconds(method, late, y)
        found[key] = min(cpu_seconds(method, late, y) for _ in range(REPEATS))
    state = method.init(abs(y[:PAST]), ALPHA)
    state, _ = online.run(method, state, y[:1], y[:1], ALPHA, delay=delay)
    return {
        "method": name,
        "steps": len(y),
        "delay": delay,
        "no delay, CPU s": found["without"],
        "CPU s": found["with"],
        "first CPU s": first,
        "bytes that wait": sum(v.nbytes for v in jax.tree.leaves(state.rows)),
    }


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__, compiles=True).parse_args()
    y = np.random.default_rng(0).normal(size=STEPS).astype("f")
    rows = [line(name, y) for name in METHODS]
    print_table(f"{STEPS} steps, at most {AT_MOST} s for tracking, ACI and DtACI", rows)
    settings = {"steps": STEPS, "past": PAST, "delay": DELAY, "alpha": ALPHA}
    save_results(args.out, "delays", rows, settings)


if __name__ == "__main__":
    main()
