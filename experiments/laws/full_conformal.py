"""Full conformal prediction and its rivals: the simulations of Lei et al., 2018.

`python -m experiments.laws.full_conformal --out DIR`

100 rows and 10 features in settings A, B and C (`full_laws`), least squares; 500 rows
and 490 features in setting A, by a ridge of penalty 10 and by least squares; alpha =
0.1. Published are coverage and length over 50 replicates, on 100 trial values of the
target up to 1.25 times the largest of the training rows. That cuts sets off: at p = 490
least squares are said to give intervals of length 7.431, where the sets themselves are
many times as long, and their ends often infinite. Ours end where they end; one line
shows them cut at the last trial value.

The published jackknife takes the ceil(n (1 - alpha))-th residual, ours the conformal
rank, ceil((n + 1) (1 - alpha)): both are shown. Split conformal prediction of least
squares with 490 features fits 250 rows, with the smallest coefficients of all that
interpolate: theirs has no such line.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

import jaxcp
from experiments.laws import full_laws
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import learners, metrics, plotting, scores
from jaxcp.sets import Interval

ALPHA, NUM_TEST, NUM_FOLDS = 0.1, 100, 10
ABSOLUTE, LEAST_SQUARES = scores.Absolute(), learners.Ridge(0.0)
RESIDUALS = {
    "full, studentized": "studentized",
    "full, ordinary": "ordinary",
    "full, deleted": "deleted",
}
CUT = "full, ordinary, cut off"  # at the trial values of the publication
LOWEST = 0.85  # where the axis of coverages begins


class Published(NamedTuple):
    """Coverage and mean length, and the standard error of the length."""

    coverage: float
    length: float
    error: float


class Setting(NamedTuple):
    """A law, a learner, and what is published of them, by method."""

    law: full_laws.Law
    learner: learners.Ridge
    published: dict[str, Published]
    num_rows: int = 100
    num_features: int = 10
    num_trials: int = 5000


EMPIRICAL = "jackknife, empirical"
LARGE = {"num_rows": 500, "num_features": 490, "num_trials": 50}
SETTINGS = {
    "A": Setting(
        full_laws.linear,
        LEAST_SQUARES,
        {
            "full, ordinary": Published(0.904, 3.529, 0.044),
            EMPIRICAL: Published(0.892, 3.399, 0.040),
            "split": Published(0.905, 3.836, 0.082),
        },
    ),
    "B": Setting(
        full_laws.additive,
        LEAST_SQUARES,
        {
            "full, ordinary": Published(0.915, 6.594, 0.254),
            EMPIRICAL: Published(0.901, 6.266, 0.254),
            "split": Published(0.898, 7.384, 0.532),
        },
    ),
    "C": Setting(
        full_laws.correlated,
        LEAST_SQUARES,
        {
            "full, ordinary": Published(0.904, 20.606, 1.161),
            EMPIRICAL: Published(0.892, 19.231, 1.082),
            "split": Published(0.896, 24.882, 2.224),
        },
    ),
    "A, p = 490, ridge": Setting(
        full_laws.linear,
        learners.Ridge(10.0),
        {
            "full, ordinary": Published(0.908, 3.354, 0.017),
            EMPIRICAL: Published(0.907, 3.329, 0.017),
            "split": Published(0.911, 3.379, 0.027),
        },
        **LARGE,
    ),
    "A, p = 490, least squares": Setting(
        full_laws.linear,
        LEAST_SQUARES,
        {
            CUT: Published(0.918, 7.431, 0.164),
            EMPIRICAL: Published(0.894, 27.863, 0.835),
        },
        **LARGE,
    ),
}


def trial(key: Array, setting: Setting) -> dict:
    """Returns the coverage of each method on one replicate, and every length."""
    key_data, key_sets = jax.random.split(key)
    rows = setting.num_rows + NUM_TEST
    x, y = setting.law(key_data, rows, setting.num_features)
    (x, x_new), (y, y_new) = (jnp.split(v, [setting.num_rows]) for v in (x, y))
    sets = full_sets(key_sets, setting.learner, x, y, x_new)
    sets |= other_sets(key_sets, setting.learner, x, y, x_new)
    if setting.num_features < setting.num_rows / 2:  # else some fits are not unique
        folds = jaxcp.cv_plus(
            key_sets, setting.learner, ABSOLUTE, x, y, num_folds=NUM_FOLDS
        )
        sets[f"CV+, {NUM_FOLDS} folds"] = folds(x_new, ALPHA)
    return {
        name: {
            "coverage": metrics.coverage(s, y_new),
            "length": jax.vmap(lambda one: one.size())(s),
        }
        for name, s in sets.items()
    }


def full_sets(key: Array, learner, x: Array, y: Array, x_new: Array) -> dict:
    """Returns full conformal intervals, by the kind of residuals."""
    sets = {
        name: jaxcp.full_conformal(key, learner, ABSOLUTE, x, y, residuals=residuals)(
            x_new, ALPHA
        )
        for name, residuals in RESIDUALS.items()
    }
    whole, last = sets["full, ordinary"], 1.25 * jnp.max(jnp.abs(y))
    sets[CUT] = Interval(
        jnp.clip(whole.lower, -last, last), jnp.clip(whole.upper, -last, last)
    )
    return sets


def other_sets(key: Array, learner, x: Array, y: Array, x_new: Array) -> dict:
    """Returns the intervals of the jackknife, its relatives, and of a split."""
    jackknife = jaxcp.jackknife_plus(key, learner, ABSOLUTE, x, y)
    preds = learner.predict(jackknife.fits.full, x_new)
    rank = jaxcp.conformal_rank(len(y) - 1, ALPHA)  # n - floor(alpha n)
    half_width = jaxcp.kth_smallest(jackknife.scores, rank)
    half = len(y) // 2
    fit = learner.fit(key, x[:half], y[:half], jnp.ones(half))
    split = jaxcp.split_conformal(learner.predict, fit, ABSOLUTE, x[half:], y[half:])
    return {
        EMPIRICAL: Interval(preds - half_width, preds + half_width),
        "jackknife": jackknife.naive(x_new, ALPHA),
        "jackknife+": jackknife(x_new, ALPHA),
        "minmax": jackknife.minmax(x_new, ALPHA),
        "split": split(x_new, ALPHA),
    }


def rows_of(name: str, key: Array, num_trials: int | None = None) -> list[dict]:
    """Returns the published and the measured line of each method in a setting.

    Args:
      name: Name of the setting.
      key: Random key.
      num_trials: Number of replicates. Defaults to that of the setting.
    """
    setting = SETTINGS[name]
    found = jaxcp.simulate(
        lambda key: trial(key, setting),
        key,
        num_trials or setting.num_trials,
        progress=True,
    )
    found = {method: jax.tree.map(np.asarray, found[method]) for method in found}
    order = {method: i for i, method in enumerate((*RESIDUALS, CUT))}
    methods = sorted(found, key=lambda method: order.get(method, len(order)))
    return [line(name, method, found[method]) for method in methods]


def line(setting: str, method: str, values: dict[str, np.ndarray]) -> dict:
    """Returns a line of the table.

    Args:
      setting: Name of the setting.
      method: Name of the method.
      values: Its coverage (r,) and its lengths (r, m) in each replicate.
    """
    coverage, lengths = values["coverage"], values["length"]
    published = SETTINGS[setting].published.get(method, (None, None, None))
    means = np.mean(lengths, axis=1)
    with np.errstate(invalid="ignore"):  # the spread of infinite lengths
        error = np.std(means) / len(means) ** 0.5
    return {
        "setting": setting,
        "method": method,
        "coverage": float(np.mean(coverage)),
        "+-": float(np.std(coverage) / len(coverage) ** 0.5),
        "published": published[0],
        "length": float(np.mean(means)),
        "+- length": float(error) if np.isfinite(error) else None,
        "published length": published[1],
        "published +-": published[2],
        "median length": float(np.median(lengths)),
        "infinite": float(np.mean(np.isinf(lengths))),
    }


def draw(table: list[dict]) -> plt.Figure:
    """Draws coverage and length in each setting, ours and published."""
    names = list(dict.fromkeys(row["setting"] for row in table))
    blocks = {name: [r for r in table if r["setting"] == name] for name in names}
    figure, axes = plt.subplots(
        len(names),
        2,
        figsize=(8, 0.8 * len(names) + 0.2 * len(table)),
        sharey="row",
        height_ratios=[len(block) + 2 for block in blocks.values()],
        layout="constrained",
    )
    for pair, name in zip(axes, names, strict=True):
        draw_block(pair, blocks[name])
        pair[0].set_title(name, loc="left")
    dots, cross = axes[0, 0].containers[0], axes[0, 0].lines[-1]
    labels = ["here, with two standard errors", "published"]
    figure.legend([dots, cross], labels, loc="outside upper right", ncols=2)
    return figure


def draw_block(axes: np.ndarray, block: list[dict]) -> None:
    """Draws one setting: dots of ours, crosses of what is published."""
    names = "coverage", "length", "+-", "+- length", "published", "published length"
    values = (np.array([row[name] for row in block], float) for name in names)
    coverage, length, error, length_error, *published = values
    plotting.plot_comparison(
        [row["method"] for row in block],
        coverage,
        length,
        ALPHA,
        coverage_errors=2 * error,
        size_errors=2 * np.nan_to_num(length_error),
        lowest=LOWEST,
        size_name="mean length",
        markersize=4,
        legend=False,
        ax=axes,
    )
    for ax, theirs in zip(axes, published, strict=True):
        ax.plot(theirs, np.arange(len(block)), "x", color="C1", markersize=5)
    axes[0].set_xlim(LOWEST, 0.95)
    axes[1].autoscale(axis="x")
    axes[1].set_xlim(left=0)


def main() -> None:
    """Prints and saves the table and the figure."""
    args = arguments(__doc__, draws=True).parse_args()
    # With nearly as many features as rows the Gram matrix is nearly singular.
    jax.config.update("jax_enable_x64", True)
    key, table = jax.random.key(0), []
    for i, name in enumerate(SETTINGS):
        rows = rows_of(name, jax.random.fold_in(key, i))
        print_table(f"setting {name}, alpha = {ALPHA}", rows)
        table += rows
    settings = {
        "alpha": ALPHA,
        "n": "100; 500 with p = 490",
        "trials": "5000; 50 with p = 490",
        "seed": 0,
    }
    save_results(args.out, "full_conformal", table, settings)
    save_figure(draw(table), args.out, "full_conformal")


if __name__ == "__main__":
    main()
