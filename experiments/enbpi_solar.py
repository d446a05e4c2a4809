"""EnbPI on a year of solar radiation in Atlanta: Xu and Xie, 2021.

`python -m experiments.enbpi_solar --data DIR --out DIR`

Ridge with the penalty of least leave-one-out error among linspace(1e-4, 10, 10), 30
bootstrap fits, mean aggregation, an update after every hour, window = training size,
alpha = 0.1. DIR holds solar_atlanta.csv: 8760 hours from the NSRDB.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
from jax import Array

import jaxcp
from experiments.reporting import arguments, print_table, save_figure, save_results
from experiments.series import solar
from jaxcp import learners, metrics, online, plotting, scores
from jaxcp.sets import Interval

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ALPHA, NUM_RESAMPLES, HOURS_SHOWN = 0.1, 30, 96
PENALTIES = jnp.linspace(1e-4, 10, 10)
ABSOLUTE = scores.Absolute()
PUBLISHED = {  # training size: EnbPI coverage and width, coverage of split conformal
    876: (0.895, 271.9, 0.531),
    1654: (0.904, 290.0, 0.657),
    2433: (0.908, 298.0, 0.700),
}


def best_ridge(x: Array, y: Array) -> learners.Ridge:
    """Returns the ridge with the smallest leave-one-out error."""

    def error(penalty):
        ridge = learners.Ridge(penalty)
        cp = jaxcp.jackknife_plus(jax.random.key(0), ridge, ABSOLUTE, x, y)
        return jnp.mean(cp.scores**2)

    return learners.Ridge(float(PENALTIES[jnp.argmin(jax.lax.map(error, PENALTIES))]))


def enbpi_sets(key: Array, ridge: learners.Ridge, x, y, n: int, empirical: bool):
    """Returns the intervals of all hours after the first n."""
    cp = jaxcp.enbpi(key, ridge, ABSOLUTE, x[:n], y[:n], num_resamples=NUM_RESAMPLES)
    window = online.SlidingWindow(ABSOLUTE, empirical=empirical)
    state = window.init(cp.scores, ALPHA, mask=cp.mask)
    return online.run(window, state, cp.aggregate(x[n:]), y[n:], ALPHA)[1]


def split_sets(ridge: learners.Ridge, x, y, n: int):
    """Returns split conformal intervals, calibrated on the second half of n hours."""
    fit = ridge.fit(jax.random.key(0), x[: n // 2], y[: n // 2], jnp.ones(n // 2))
    cp = jaxcp.split_conformal(
        ridge.predict, fit, ABSOLUTE, x[n // 2 : n], y[n // 2 : n]
    )
    return cp(x[n:], ALPHA)


def lines_of(key: Array, x: Array, y: Array, n: int) -> tuple[list[dict], Interval]:
    """Returns the lines of one training size and the intervals of EnbPI."""
    ridge = best_ridge(x[:n], y[:n])
    coverage, width, split = PUBLISHED[n]
    runs = {
        "EnbPI, empirical quantile": enbpi_sets(key, ridge, x, y, n, True),
        "EnbPI, conformal rank": enbpi_sets(key, ridge, x, y, n, False),
        "split conformal": split_sets(ridge, x, y, n),
    }
    lines = [
        {
            "training hours": n,
            "method": name,
            "coverage": float(metrics.coverage(sets, y[n:])),
            "published": split if name.startswith("split") else coverage,
            "width": float(metrics.mean_size(sets)),
            "published width": None if name.startswith("split") else width,
        }
        for name, sets in runs.items()
    ]
    return lines, runs["EnbPI, empirical quantile"]


def draw(x: Array, y: Array, n: int, sets: Interval) -> plt.Figure:
    """Draws four days of intervals, and the coverage of each week of the year."""
    figure, axes = plt.subplots(2, 1, figsize=(10, 7), layout="constrained")
    hours = slice(3000, 3000 + HOURS_SHOWN)
    shown = jax.tree.map(lambda v: v[hours], sets)
    plotting.plot_intervals(jnp.arange(HOURS_SHOWN), shown, y[n:][hours], ax=axes[0])
    axes[0].set(xlabel="hour", ylabel="diffuse radiation, W/m2")
    covered = (sets.lower <= y[n:]) & (y[n:] <= sets.upper)
    weeks = len(covered) // 168
    axes[1].plot(covered[: 168 * weeks].reshape(weeks, 168).mean(axis=1), "o-", ms=3)
    axes[1].axhline(1 - ALPHA, color="black", linestyle="--", linewidth=0.8)
    axes[1].set(xlabel="week", ylabel="coverage", ylim=(0, 1.02))
    figure.suptitle(f"EnbPI on solar radiation, {n} training hours")
    return figure


def main() -> None:
    """Prints and saves the table and the figure."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    (x, y), key, table = solar(args.data), jax.random.key(0), []
    for n in PUBLISHED:
        lines, sets = lines_of(jax.random.fold_in(key, n), x, y, n)
        table += lines
    print_table(f"solar radiation, alpha = {ALPHA}", table)
    settings = {"alpha": ALPHA, "resamples": NUM_RESAMPLES, "seed": 0}
    save_results(args.out, "enbpi_solar", table, settings)
    save_figure(draw(x, y, n, sets), args.out, "enbpi_solar")


if __name__ == "__main__":
    main()
