"""Sets of 2,000 selected rows of 10,000, from 10,000 calibration rows.

`python -m experiments.speed.selected [--out DIR]`

Seconds are of the wall, the median of a few calls, after a first one that compiles;
split conformal sets of all rows stand beside.
"""

from functools import partial

import numpy as np

import jaxcp
from experiments.tools.reporting import (
    arguments,
    median_seconds,
    print_table,
    save_results,
)
from jaxcp import selection
from jaxcp.scores import Absolute

ROWS, TESTS, SELECTED, ALPHA, REPEATS = 10_000, 10_000, 2_000, 0.1, 5
AT_MOST = {"top": 0.2, "above": 0.2, "by_p_values": 2.0}  # s


def drawn(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns predictions and targets, normal ones with noise of a half."""
    pred, noise = np.random.default_rng(seed).normal(size=(2, rows)).astype("f")
    return pred, pred + noise / 2


def lines(rows: int = ROWS, tests: int = TESTS, selected: int = SELECTED) -> list[dict]:
    """Returns a line for each rule, and one for the sets of all rows."""
    preds, y = drawn(0, rows)
    new, _ = drawn(1, tests)
    cut = np.sort(new)[-selected - 1]
    rules = {
        "top": selection.top(selected),
        "above": selection.above(float(cut)),
        "by_p_values": selection.by_p_values(float(cut), 0.2),
    }
    made = {
        name: selection.calibrate_selected(Absolute(), preds, y, rule=rule)
        for name, rule in rules.items()
    }
    counts = {name: len(cp(new, ALPHA).indices) for name, cp in made.items()}
    counts["none, split"], split = tests, jaxcp.calibrate(Absolute(), preds, y)
    calls = {name: partial(cp, new, ALPHA) for name, cp in made.items()}
    calls["none, split"] = partial(split, new, ALPHA)
    found = median_seconds(calls, REPEATS)
    return [
        {"rule": name, "selected": counts[name], "s": found[name]} for name in calls
    ]


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__, compiles=True).parse_args()
    found = [line | {"at most": AT_MOST.get(line["rule"])} for line in lines()]
    print_table(f"{ROWS} rows of calibration, {TESTS} test rows", found)
    settings = {"rows": ROWS, "tests": TESTS, "selected": SELECTED, "alpha": ALPHA}
    save_results(args.out, "selected", found, settings)


if __name__ == "__main__":
    main()
