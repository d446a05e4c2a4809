"""EnbPI on a year of solar radiation in Atlanta: Xu and Xie, 2021.

`python -m experiments.data.enbpi_solar --data DIR --out DIR`

Ridge with the penalty of least leave-one-out error among linspace(1e-4, 10, 10), 30
bootstrap fits, mean aggregation, an update after every hour, window = training size,
alpha = 0.1. DIR holds solar_atlanta.csv: 8760 hours from the NSRDB.

Split conformal intervals, as the authors', fit on a random half of the training hours
and calibrate on the other. Published is one split; ours is the mean over many, and
beside it stands the standard deviation of one.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

import jaxcp
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from experiments.tools.series import solar
from jaxcp import learners, metrics, online, plotting, scores
from jaxcp.sets import Interval

ALPHA, NUM_RESAMPLES, NUM_SPLITS, HOURS_SHOWN = 0.1, 30, 200, 96
PENALTIES = (1e-4, 10, 10)  # the least, the greatest, and how many
ABSOLUTE = scores.Absolute()
PUBLISHED = {  # training size: coverage and width of EnbPI and of split conformal
    876: {"EnbPI": (0.895, 271.9), "split conformal": (0.531, 113.8)},
    1654: {"EnbPI": (0.904, 290.0), "split conformal": (0.657, 133.3)},
    2433: {"EnbPI": (0.908, 298.0), "split conformal": (0.700, 180.6)},
}


def best_ridge(x: Array, y: Array) -> learners.Ridge:
    """Returns the ridge with the smallest leave-one-out error."""

    def error(penalty):
        ridge = learners.Ridge(penalty)
        cp = jaxcp.jackknife_plus(jax.random.key(0), ridge, ABSOLUTE, x, y)
        return jnp.mean(cp.scores**2)

    penalties = jnp.linspace(*PENALTIES)
    return learners.Ridge(penalties[jnp.argmin(jax.lax.map(error, penalties))])


def enbpi_sets(key: Array, x: Array, y: Array, n: int) -> dict[str, Interval]:
    """Returns the intervals of all hours after the first n, by way to take ranks."""
    ridge = best_ridge(x[:n], y[:n])
    cp = jaxcp.enbpi(key, ridge, ABSOLUTE, x[:n], y[:n], num_resamples=NUM_RESAMPLES)
    center, sets = cp.aggregate(x[n:]), {}
    for name, empirical in {
        "empirical quantile": True,
        "conformal rank": False,
    }.items():
        window = online.SlidingWindow(ABSOLUTE, empirical=empirical)
        state = window.init(cp.scores, ALPHA, mask=cp.mask)
        sets[name] = online.run(window, state, center, y[n:], ALPHA)[1]
    return sets


def split_trial(key: Array, x: Array, y: Array, n: int) -> dict[str, Array]:
    """Returns coverage and width of split conformal intervals of the same hours."""
    key_order, key_fit = jax.random.split(key)
    order = jax.random.permutation(key_order, n)
    fitted, held_out = order[: (n + 1) // 2], order[(n + 1) // 2 :]
    ridge = best_ridge(x[fitted], y[fitted])
    params = ridge.fit(key_fit, x[fitted], y[fitted], jnp.ones(len(fitted)))
    cp = jaxcp.split_conformal(
        ridge.predict, params, ABSOLUTE, x[held_out], y[held_out]
    )
    sets = cp(x[n:], ALPHA)
    return {"coverage": metrics.coverage(sets, y[n:]), "width": metrics.mean_size(sets)}


def lines_of(key: Array, x: Array, y: Array, n: int) -> tuple[list[dict], Interval]:
    """Returns the lines of one training size and the intervals of EnbPI."""
    key_bags, key_splits = jax.random.split(key)
    runs = enbpi_sets(key_bags, x, y, n)
    found = {
        f"EnbPI, {name}": {
            "coverage": metrics.coverage(sets, y[n:]),
            "width": metrics.mean_size(sets),
        }
        for name, sets in runs.items()
    }
    found["split conformal"] = jaxcp.simulate(
        lambda k: split_trial(k, x, y, n), key_splits, NUM_SPLITS
    )
    lines = [line(n, name, values) for name, values in found.items()]
    return lines, runs["empirical quantile"]


def line(n: int, name: str, values: dict[str, Array]) -> dict:
    """Returns one line: means, and the deviation of one split, beside the published."""
    coverage, width = PUBLISHED[n][name.partition(",")[0]]
    means = {k: float(np.mean(v)) for k, v in values.items()}
    errors = {k: float(np.std(v)) if np.ndim(v) else None for k, v in values.items()}
    return {
        "training hours": n,
        "method": name,
        "coverage": means["coverage"],
        "+-": errors["coverage"],
        "published": coverage,
        "width": means["width"],
        "+- width": errors["width"],
        "published width": width,
    }


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
    axes[1].axhline(1 - ALPHA, color="gray", linestyle="--", linewidth=0.8)
    axes[1].set(xlabel="week", ylabel="coverage", ylim=(0, 1.02))
    figure.suptitle(f"EnbPI on solar radiation, {n} training hours")
    return figure


def main() -> None:
    """Prints and saves the table and the figure."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    (x, y), key, table = solar(args.data), jax.random.key(0), []
    for n in PUBLISHED:
        lines, sets = lines_of(jax.random.fold_in(key, n), x, y, n)
        table += lines
    print_table(f"solar radiation, alpha = {ALPHA}", table)
    settings = {"alpha": ALPHA, "resamples": NUM_RESAMPLES, "splits": NUM_SPLITS}
    settings["seed"] = 0
    save_results(args.out, "enbpi_solar", table, settings)
    save_figure(draw(x, y, n, sets), args.out, "enbpi_solar")


if __name__ == "__main__":
    main()
