"""Sets of 2,000 selected rows of 10,000, from 10,000 calibration rows.

`python -m experiments.speed.selected [--out DIR]`

Seconds are of the wall, the least of a few calls, after a first one that compiles;
split conformal sets of all rows stand beside.
"""

import time

import jax
import numpy as np

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import selection
from jaxcp.scores import Absolute

ROWS, TESTS, SELECTED, ALPHA, REPEATS = 10_000, 10_000, 2_000, 0.1, 5
AT_MOST = {"top": 0.2, "above": 0.2, "by_p_values": 2.0}  # s


def drawn(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns predictions and targets, normal ones with noise of a half."""
    pred, noise = np.random.default_rng(rows).normal(size=(2, rows)).astype("f")
    return pred, pred + noise / 2


def seconds(call) -> tuple[float, object]:
    """Returns the seconds that a call takes at least, and its value."""
    value = jax.block_until_ready(call())
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        value = jax.block_until_ready(call())
        found.append(time.perf_counter() - start)
    return min(found), value


def lines(rows: int = ROWS, tests: int = TESTS, selected: int = SELECTED) -> list[dict]:
    """Returns a line for each rule, and one for the sets of all rows."""
    preds, y = drawn(rows)
    new, _ = drawn(tests + 1)
    cut = np.sort(new)[-selected - 1]
    rules = {
        "top": selection.top(selected),
        "above": selection.above(float(cut)),
        "by_p_values": selection.by_p_values(float(cut), 0.2),
    }
    found = []
    for name, rule in rules.items():
        cp = selection.calibrate_selected(Absolute(), preds, y, rule=rule)
        least, sets = seconds(lambda cp=cp: cp(new, ALPHA))
        found.append({"rule": name, "selected": len(sets.indices), "s": least})
    cp = jaxcp.calibrate(Absolute(), preds, y)
    least, _ = seconds(lambda: cp(new, ALPHA))
    return [*found, {"rule": "none, split", "selected": tests + 1, "s": least}]


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__, compiles=True).parse_args()
    found = [line | {"at most": AT_MOST.get(line["rule"])} for line in lines()]
    print_table(f"{ROWS} rows of calibration, {TESTS} test rows", found)
    settings = {"rows": ROWS, "tests": TESTS, "selected": SELECTED, "alpha": ALPHA}
    save_results(args.out, "selected", found, settings)


if __name__ == "__main__":
    main()
