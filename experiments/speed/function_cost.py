"""What a call costs for looking at what functions of the user have captured.

`python -m experiments.speed.function_cost [--out DIR]`

Programs are kept by what functions read. Every call of a verb looks at that: here the
look alone, beside the whole call `cp(preds, alpha)`, in turns.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.timing import in_turns
from jaxcp import scores, sets
from jaxcp._tree import functions_in
from jaxcp.checking.captured import states_of

ROWS, TEST_ROWS, ALPHA, LOOKS = 1000, 100, 0.1, 100
MEGABYTE = np.zeros(2**17)  # captured in double precision
scale, shift, power = 2.0, 1.0, 1.0  # what functions read


def error(pred, y):
    """Returns a score that reads numbers."""
    return scale * jnp.abs(y - pred) ** power + shift


def interval(pred, q):
    """Returns its sets."""
    half = ((q - shift) / scale) ** (1 / power)
    return sets.Interval(pred - half, pred + half)


def error_of_array(pred, y):
    """Returns a score that reads an array."""
    return jnp.abs(y - pred) + MEGABYTE[0]


@jaxcp.pytree
class Own:
    """A score of an own class."""

    factor: float

    def __call__(self, pred, y):
        """Returns the score."""
        return self.factor * error(pred, y)

    def invert(self, pred, q):
        """Returns the set."""
        return interval(pred, q / self.factor)


SCORES = {
    "of the library": scores.Absolute(),
    "function of numbers": scores.Custom(error, interval),
    "own class": Own(2.0),
    "function of 1 MB": scores.Custom(error_of_array, interval),
}


def measure() -> list[dict]:
    """Returns microseconds of calls, and of the looks in them."""
    preds, y = jnp.zeros(ROWS), jax.random.normal(jax.random.key(0), (ROWS,))
    calls = {}
    for name, score in SCORES.items():
        cp = jaxcp.calibrate(score, preds, y)

        def look(cp=cp):
            for _ in range(LOOKS):
                states_of(functions_in((cp, preds), {}))

        calls[name] = lambda cp=cp: jax.block_until_ready(cp(preds[:TEST_ROWS], ALPHA))
        calls[name, "look"] = look
    times = in_turns(calls, repeats=50)
    return [
        {
            "score": name,
            "call us": 1e6 * times[name].median,
            "look us": 1e6 * times[name, "look"].median / LOOKS,
        }
        for name in SCORES
    ]


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__, times=True).parse_args()
    rows = measure()
    print_table("Looking at what functions have captured, at most 20 us", rows)
    save_results(
        args.out, "function_cost", rows, {"rows": ROWS, "test rows": TEST_ROWS}
    )


if __name__ == "__main__":
    main()
