"""The figures of the showcase."""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

import jaxcp
from experiments.showcase_streams import METHODS, Series, sets_of
from jaxcp import plotting, scores

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw(
    out: Path, table: list[dict], pools: dict, stream: Series, alpha: float
) -> list[Path]:
    """Writes all figures as PNG and returns their paths."""
    figures = {
        "showcase_coverage": lambda: draw_table(table, alpha),
        "showcase_intervals": lambda: draw_intervals(pools["diabetes"], alpha),
        "showcase_label_sets": lambda: draw_label_sets(pools["digits"], alpha),
        "showcase_law": lambda: draw_law(alpha),
        "showcase_streams": lambda: draw_streams(stream, alpha),
    }
    paths = []
    for name, make in figures.items():
        figure = make()
        paths.append(out / f"{name}.png")
        figure.savefig(paths[-1], dpi=120)
        plt.close(figure)
    return paths


def draw_table(table, alpha):
    """Draws the coverage of every method and of its worst group."""
    figure, ax = plt.subplots(
        figsize=(7, 0.28 * len(table) + 1.2), layout="constrained"
    )
    place = np.arange(len(table))[::-1]
    coverage, error, worst = (
        np.array([line[name] or 0 for line in table])
        for name in ("coverage", "+-", "worst group")
    )
    ax.axvline(1 - alpha, color="tab:red", linestyle="--", label=r"target $1 - \alpha$")
    ax.errorbar(
        coverage, place, xerr=2 * error, fmt="o", ms=4, label="coverage, 2 errors"
    )
    ax.plot(worst, place, "|", color="black", ms=9, label="worst group")
    ax.set_yticks(place, [f"{line['method']} ({line['data']})" for line in table])
    ax.set_xlabel("coverage")
    ax.legend(frameon=False, loc="lower left")
    return figure


def draw_intervals(pool, alpha):
    """Draws CQR and normalized intervals of test rows along the ridge prediction."""
    figure, axes = plt.subplots(
        1, 2, figsize=(10, 4), sharey=True, layout="constrained"
    )
    n = pool.num_calibration
    position = pool.preds["ridge"][n:]
    for ax, (title, score, pred) in zip(
        axes,
        [
            ("CQR", scores.CQR(), "quantiles"),
            ("normalized", scores.Normalized(), "normal"),
        ],
        strict=True,
    ):
        old, new = (
            jax.tree.map(lambda v, p=part: v[p], pool.preds[pred])
            for part in (slice(n), slice(n, None))
        )
        sets = jaxcp.calibrate(score, old, pool.y[:n])(new, alpha)
        plotting.plot_intervals(position, sets, pool.y[n:], ax=ax)
        covered = jaxcp.metrics.coverage(sets, pool.y[n:])
        ax.set(title=f"{title}: coverage {covered:.3f}", xlabel="ridge prediction")
    return figure


def draw_label_sets(pool, alpha):
    """Draws the APS sets of the test rows about which the classifier is least sure."""
    n, p = pool.num_calibration, pool.preds["p"]
    cp = jaxcp.calibrate(scores.APS(), p[:n], pool.y[:n])
    unsure = np.argsort(np.asarray(jnp.max(p[n:], axis=1)))[:25]
    ax = plotting.plot_label_sets(cp(p[n:][unsure], alpha), pool.y[n:][unsure])
    ax.set_title("APS on digits: the 25 least certain test rows")
    return ax.figure


def draw_law(alpha, n=100):
    """Draws 10^5 exact coverages of split conformal prediction against their law."""

    def trial(key):
        return jaxcp.conformal_quantile(jax.random.uniform(key, (n,)), alpha)

    samples = jaxcp.simulate(trial, jax.random.key(1), 100_000, batch_size=10_000)
    ax = plotting.plot_coverage(samples, n, alpha)
    ax.set_title(f"{len(samples)} calibration sets of {n} rows")
    return ax.figure


def draw_streams(series, alpha, window=250):
    """Draws the coverage of the last steps along a series, for every stream method."""
    figure, ax = plt.subplots(figsize=(10, 4.5), layout="constrained")
    for name in METHODS:
        sets = sets_of(name, series, alpha)
        covered = np.asarray((sets.lower <= series.y) & (series.y <= sets.upper))
        rolling = np.convolve(covered, np.ones(window) / window, mode="valid")
        ax.plot(np.arange(len(rolling)) + window, rolling, linewidth=1.2, label=name)
    ax.axhline(1 - alpha, color="black", linestyle="--", linewidth=0.8)
    ax.set(xlabel="step", ylabel=f"coverage of the last {window} steps")
    ax.set_title(f"{series.data} series")
    ax.legend(frameon=False, ncol=3)
    return figure
