"""What the checks of values cost: calibrations and sets with them, and without.

`python -m experiments.speed.checks [--rows N] [--labels K] [--out DIR]`

Seconds are of the processor, of all its threads, in turns: "without" takes the same
calls while nothing looks at values. Published with 50,000 rows of 1000 labels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import jax.numpy as jnp
import numpy as np

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.timing import in_turns
from jaxcp import _checks, risk, scores
from jaxcp.scores import inputs
from jaxcp.typing import Score

ALPHA, ROWS, LABELS, REPEATS, SECONDS = 0.1, 5000, 100, 15, 15
RAPS = scores.RAPS(penalty=0.01, k_reg=5)
SCORES = {"LAC": scores.LAC(), "APS": scores.APS(), "RAPS": RAPS}


@contextmanager
def unchecked() -> Iterator[None]:
    """Values seem unknown to checks here, which then let them pass."""
    known = mock.patch.object(_checks, "is_concrete", lambda *_: False)
    taken = mock.patch.object(inputs, "is_concrete", lambda *_: False)
    with known, taken:
        yield


def data(num_rows: int, num_labels: int) -> tuple:
    """Returns probabilities and labels that follow them, as arrays of jax."""
    draw = np.random.default_rng(0)
    p = draw.standard_exponential((num_rows, num_labels), np.float32)
    p /= p.sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) < draw.random((num_rows, 1))).sum(axis=1)
    return jnp.asarray(p), jnp.asarray(np.minimum(y, num_labels - 1))


def calls_of(score: Score, p: jnp.ndarray, y: jnp.ndarray) -> dict[str, Callable]:
    """Returns the calls that are measured, by name."""
    cp = jaxcp.calibrate(score, p, y)
    of_risk = partial(risk.calibrate_risk, risk.miscoverage, score)
    calls = {
        "calibrate": lambda: jaxcp.calibrate(score, p, y).scores,
        "sets": lambda: cp(p, ALPHA).mask,
    }
    if type(score) is scores.LAC:  # thresholds of others take minutes
        calls["calibrate_risk, quantile"] = lambda: of_risk(p, y).quantile(ALPHA)
    return calls


def measure(name: str, num_rows: int, num_labels: int) -> list[dict]:
    """Returns the seconds of each call of a score, with checks and without."""
    p, y = data(num_rows, num_labels)
    return [
        {"score": name, "call": what, **compared(call)}
        for what, call in calls_of(SCORES[name], p, y).items()
    ]


def compared(call: Callable) -> dict[str, float | None]:
    """Returns the seconds of a call with checks and without, and their ratio."""

    def without():
        with unchecked():
            return call()

    times = in_turns({"CPU s": call, "CPU s without": without}, REPEATS, SECONDS)
    both = {way: found.cpu for way, found in times.items()}
    ours, bare = both.values()
    return both | {"with / without": ours / bare if bare > 0 else None}


def main() -> None:
    """Prints and saves the table."""
    parser = arguments(__doc__, times=True)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--labels", type=int, default=LABELS)
    args = parser.parse_args()
    rows = [row for name in SCORES for row in measure(name, args.rows, args.labels)]
    print_table("Calls with checks of values, and without", rows)
    settings = {"rows": args.rows, "labels": args.labels, "repeats": REPEATS}
    save_results(args.out, "checks", rows, settings | {"dtype": "float32"})


if __name__ == "__main__":
    main()
