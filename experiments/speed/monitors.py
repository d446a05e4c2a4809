"""Monitors of a stream: steps a second, memory, and MAPIE's beside.

`python -m experiments.speed.monitors [--out DIR]`

Seconds are of the processor, of all its threads, after a first call that compiles.
MAPIE's `RiskMonitoring` is given one row at a time; its time for a row grows with the
number of rows before it.
"""

import importlib.util
import time

import jax
import numpy as np

from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import online, pvalues

STEPS, ROWS, LIMIT, DELTA = 1_000_000, 1000, 0.1, 0.05
AT_MOST, LEAST = 1.0, 100  # CPU s of all steps; times as fast as MAPIE
SCORES_AT_MOST, BATCH = 10.0, 10_000  # CPU s; scores of a call
REPEATS = 200  # of one more row


def cpu_seconds(call) -> tuple[float, object]:
    """Returns the seconds of the processor that a call takes, and its value."""
    start = time.process_time()
    value = jax.block_until_ready(call())
    return time.process_time() - start, value


def bytes_of(state: object) -> int:
    """Returns how many bytes the arrays of a state have."""
    arrays = [v for v in jax.tree.leaves(state) if hasattr(v, "nbytes")]
    return sum(int(v.nbytes) for v in arrays)


def long_streams(steps: int = STEPS) -> list[dict]:
    """Returns lines for each monitor over many steps."""
    draw = np.random.default_rng(0)
    losses, scores = draw.random(steps) < LIMIT, draw.normal(size=steps).astype("f")
    found = []
    for monitor in (
        online.RiskMonitor(LIMIT, DELTA),
        online.ChangeMonitor(LIMIT, 1 / DELTA),
    ):
        monitor.run(losses)
        seconds, (state, _) = cpu_seconds(lambda m=monitor: m.run(losses))
        found.append(line(type(monitor).__name__, steps, seconds, state))
    monitor = online.ExchangeabilityMonitor(pvalues.SimpleJumper(), scores[:0])
    for name, size in (("all at once", steps), ("in batches", BATCH)):
        call = lambda size=size: in_batches(monitor, scores, size)  # noqa: E731
        call()
        seconds, state = cpu_seconds(call)
        found.append(line(f"ExchangeabilityMonitor, {name}", steps, seconds, state))
    one_by_one(monitor, state, scores[:2])
    seconds, state = cpu_seconds(lambda: one_by_one(monitor, state, scores[:BATCH]))
    return [
        *found,
        line("ExchangeabilityMonitor, then one by one", BATCH, seconds, state),
    ]


def one_by_one(monitor: online.ExchangeabilityMonitor, state, scores) -> object:
    """Returns the state after more scores, one a call."""
    for score in scores:
        state = monitor.update(state, score)
    return state


def line(name: str, steps: int, seconds: float, state: object) -> dict:
    """Returns a line of the table."""
    return {
        "monitor": name,
        "steps": steps,
        "CPU s": seconds,
        "bytes of the state": bytes_of(state),
        "bytes a step": bytes_of(state) / steps,
    }


def in_batches(monitor: online.ExchangeabilityMonitor, scores, size: int) -> object:
    """Returns the state after all scores, so many a call."""
    state = monitor.init(jax.random.key(0))
    for start in range(0, len(scores), size):
        state, _ = monitor.run(scores[start : start + size], state)
    return state


def beside_mapie(rows: int = ROWS) -> list[dict]:
    """Returns lines of one stream: all its rows, and one row after them."""
    losses = (np.random.default_rng(1).random(rows) < LIMIT).astype(float)
    monitor = online.RiskMonitor(LIMIT, DELTA)
    state, _ = monitor.run(losses)

    def one_more():
        return [monitor.update(state, 0.0) for _ in range(REPEATS)]

    one_more()
    whole, (state, _) = cpu_seconds(lambda: monitor.run(losses))
    found = {"all rows": whole, "one more": cpu_seconds(one_more)[0] / REPEATS}
    theirs = dict.fromkeys(found)
    if importlib.util.find_spec("mapie") is None:
        print("MAPIE is not installed: it is left out")
    else:
        theirs = by_mapie(losses)
    return [
        {
            "task": task,
            "rows": rows,
            "jaxcp, CPU s": seconds,
            "MAPIE, CPU s": theirs[task],
            "MAPIE / jaxcp": theirs[task] and theirs[task] / seconds,
        }
        for task, seconds in found.items()
    ]


def by_mapie(losses: np.ndarray) -> dict:
    """Returns the seconds of MAPIE's monitor of the accuracy, given a row a time."""
    from mapie.exchangeability_testing import RiskMonitoring

    monitor = RiskMonitoring("accuracy", test_level=DELTA, threshold=LIMIT, warn=False)

    def add(rows):
        for loss in rows:
            monitor.update(np.array([1.0]), np.array([1.0 - loss]))

    whole = cpu_seconds(lambda: add(losses))[0]
    return {"all rows": whole, "one more": cpu_seconds(lambda: add([0.0] * 5))[0] / 5}


def main() -> None:
    """Prints and saves both tables."""
    args = arguments(__doc__, compiles=True).parse_args()
    found, rows = long_streams(), beside_mapie()
    title = f"at most {AT_MOST} s for a loss monitor, {SCORES_AT_MOST} s for scores"
    print_table(f"{STEPS} steps, {title}", found)
    print_table(f"One stream, at least {LEAST} times as fast", rows)
    settings = {"steps": STEPS, "rows": ROWS, "limit": LIMIT, "delta": DELTA}
    save_results(args.out, "monitors", found, settings)
    save_results(args.out, "monitors_beside", rows, settings)


if __name__ == "__main__":
    main()
