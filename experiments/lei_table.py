"""Jackknife and split intervals of a linear model: Lei et al., 2018, setting A.

`python -m experiments.lei_table --out DIR`

n = 100, 10 standard normal features, all with coefficients +-1, standard normal errors,
least squares, alpha = 0.1. The published full conformal intervals (coverage 0.904,
length 3.529) refit at every candidate target, which this library does not do. The
published jackknife takes the ceil(n (1 - alpha))-th residual, ours the conformal rank,
ceil((n + 1) (1 - alpha)): both are shown.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

import jaxcp
from experiments.reporting import arguments, print_table, save_figure, save_results
from jaxcp import learners, metrics, scores
from jaxcp.sets import Interval

ALPHA, NUM_ROWS, NUM_FEATURES, NUM_TEST, NUM_TRIALS = 0.1, 100, 10, 100, 5000
PUBLISHED = {"jackknife, empirical": (0.892, 3.399), "split": (0.905, 3.836)}
LEAST_SQUARES, ABSOLUTE = learners.Ridge(0.0), scores.Absolute()


def trial(key: Array) -> dict:
    """Returns coverage and mean length of each method on one replicate."""
    key_b, key_x, key_y, key_folds, key_fit, key_half = jax.random.split(key, 6)
    b = jax.random.rademacher(key_b, (NUM_FEATURES,), float)
    x = jax.random.normal(key_x, (NUM_ROWS + NUM_TEST, NUM_FEATURES))
    y = x @ b + jax.random.normal(key_y, (len(x),))
    x, y, x_new, y_new = x[:NUM_ROWS], y[:NUM_ROWS], x[NUM_ROWS:], y[NUM_ROWS:]
    jackknife = jaxcp.jackknife_plus(key_fit, LEAST_SQUARES, ABSOLUTE, x, y)
    folds = jaxcp.cv_plus(key_folds, LEAST_SQUARES, ABSOLUTE, x, y, num_folds=10)
    half = NUM_ROWS // 2
    fit = LEAST_SQUARES.fit(key_half, x[:half], y[:half], jnp.ones(half))
    split = jaxcp.split_conformal(
        LEAST_SQUARES.predict, fit, ABSOLUTE, x[half:], y[half:]
    )
    preds = LEAST_SQUARES.predict(jackknife.fits.full, x_new)
    rank = jaxcp.conformal_rank(NUM_ROWS - 1, ALPHA)  # n - floor(alpha n)
    half_width = jaxcp.kth_smallest(jackknife.scores, rank)
    sets = {
        "jackknife, empirical": Interval(preds - half_width, preds + half_width),
        "jackknife": jackknife.naive(x_new, ALPHA),
        "jackknife+": jackknife(x_new, ALPHA),
        "minmax": jackknife.minmax(x_new, ALPHA),
        "CV+, 10 folds": folds(x_new, ALPHA),
        "split": split(x_new, ALPHA),
    }
    return {
        name: (metrics.coverage(s, y_new), metrics.mean_size(s))
        for name, s in sets.items()
    }


def table() -> list[dict]:
    """Returns the published and the measured line of each method."""
    results = jaxcp.simulate(trial, jax.random.key(0), NUM_TRIALS, progress=True)
    rows = []
    for name, (coverage, length) in results.items():
        published = PUBLISHED.get(name, (None, None))
        rows.append(
            {
                "method": name,
                "coverage": float(np.mean(coverage)),
                "+-": float(np.std(coverage) / NUM_TRIALS**0.5),
                "published": published[0],
                "length": float(np.mean(length)),
                "published length": published[1],
            }
        )
    return rows


def draw(rows: list[dict]) -> plt.Figure:
    """Draws length against coverage, ours and published."""
    figure, ax = plt.subplots(figsize=(5.5, 4), layout="constrained")
    for row in rows:
        (line,) = ax.plot(row["coverage"], row["length"], "o", label=row["method"])
        if row["published"] is not None:
            at = row["published"], row["published length"]
            ax.plot(*at, "x", color=line.get_color(), label="  published")
    ax.axvline(1 - ALPHA, color="gray", linestyle="--", linewidth=0.8)
    ax.set(xlabel="coverage", ylabel="mean length", title="Lei et al., setting A")
    ax.legend(frameon=False)
    return figure


def main() -> None:
    """Prints and saves the table and the figure."""
    args = arguments(__doc__, draws=True).parse_args()
    rows = table()
    print_table(f"setting A, alpha = {ALPHA}, {NUM_TRIALS} replicates", rows)
    settings = {"alpha": ALPHA, "n": NUM_ROWS, "trials": NUM_TRIALS, "seed": 0}
    save_results(args.out, "lei_table", rows, settings)
    save_figure(draw(rows), args.out, "lei_table")


if __name__ == "__main__":
    main()
