"""Sets by a predicted quantile of the score, at each x: `scores.Rectified`.

`python -m experiments.laws.rectified_law [--out DIR]`

x ~ U(0, 2) and y = (0.1 + x) e with normal e; the model knows the mean, 0. Tau is the
linear quantile regression of abs(y) on (1, x) on 500 rows, other 500 calibrate. The
error of a trial is the mean over ten equal cells of x of (coverage - (1 - alpha))^2;
coverage and width are exact, by the normal law, on a grid of x.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import learners, scores

ALPHA = 0.1
NUM_FIT = NUM_CAL = 500
NUM_TRIALS, NUM_CELLS, END = 200, 10, 2.0
GRID = (np.arange(1000) + 0.5) * END / 1000
ABSOLUTE = scores.Absolute()
QUANTILE = learners.QuantileRegression((1 - ALPHA,))
FORMS = {"rectified, ratio": "ratio", "rectified, difference": "difference"}


def draw(key: Array, n: int) -> tuple[Array, Array]:
    """Returns n rows of the law, and x as a matrix."""
    key_x, key_e = jax.random.split(key)
    x = jax.random.uniform(key_x, (n, 1), maxval=END)
    return x, (0.1 + x[:, 0]) * jax.random.normal(key_e, (n,))


def trial(key: Array) -> dict[str, dict]:
    """Returns the error of cells, coverage and mean width of each method."""
    key_fit, key_cal, key_tau = jax.random.split(key, 3)
    (x_fit, y_fit), (x, y) = draw(key_fit, NUM_FIT), draw(key_cal, NUM_CAL)
    at = jnp.asarray(GRID, x.dtype)[:, None]
    mu, mu_new = jnp.zeros_like(y), jnp.zeros_like(at[:, 0])
    tau = jaxcp.fit_quantile(key_tau, QUANTILE, ABSOLUTE, 0 * y_fit, y_fit, x_fit)
    sets = {"Absolute": jaxcp.calibrate(ABSOLUTE, mu, y)(mu_new, ALPHA)}
    for name, form in FORMS.items():
        cp = jaxcp.calibrate(scores.Rectified(ABSOLUTE, form), (mu, tau(x)), y)
        sets[name] = cp((mu_new, tau(at)), ALPHA)
    return {name: exact(v, at[:, 0]) for name, v in sets.items()}


def exact(sets, x: Array) -> dict[str, Array]:
    """Returns what the law says about intervals along a grid of x."""
    below = lambda end: jax.scipy.stats.norm.cdf(end / (0.1 + x))  # noqa: E731
    coverage = below(sets.upper) - below(sets.lower)
    by_cell = jnp.mean(coverage.reshape(NUM_CELLS, -1), axis=1)
    return {
        "cell error x100": 100 * jnp.mean((by_cell - (1 - ALPHA)) ** 2),
        "coverage": jnp.mean(coverage),
        "least cell": jnp.min(by_cell),
        "mean width": jnp.mean(sets.upper - sets.lower),
    }


def table(num_trials: int = NUM_TRIALS) -> list[dict]:
    """Returns the means over trials; the error is that of the cell error."""
    found = jaxcp.simulate(trial, jax.random.key(0), num_trials, batch_size=20)
    lines = []
    for name, values in found.items():
        means = {k: float(np.mean(v)) for k, v in values.items()}
        error = float(np.std(values["cell error x100"]) / num_trials**0.5)
        first = {"method": name, "cell error x100": means.pop("cell error x100")}
        lines.append(first | {"+-": error} | means)
    return lines


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__).parse_args()
    lines = table()
    print_table("Rectified scores, y = (0.1 + x) e", lines)
    settings = {"alpha": ALPHA, "rows": [NUM_FIT, NUM_CAL], "cells": NUM_CELLS}
    settings |= {"trials": NUM_TRIALS, "seed": 0}
    save_results(args.out, "rectified_law", lines, settings)


if __name__ == "__main__":
    main()
