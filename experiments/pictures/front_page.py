"""The figure at the top of README: bands that adapt, the right rank, and speed.

`python -m experiments.pictures.front_page [--out DIR]` writes `front_page.png` and
`front_page.svg`, and `front_page_phone.svg` with the same panels below each other,
beside this script if no folder is given. The times are those of `speed/RESULTS.md`, of
work that each library has a method for; all else is computed here.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

import jaxcp
from experiments.tools import networks
from experiments.tools.report import machines_of, table_of
from experiments.tools.reporting import save_figure, use_style
from jaxcp import datasets, metrics, plotting, scores

ALPHA = 0.1
NUM_TRAIN, NUM_ROWS, NUM_TEST, NUM_TRIALS = 2000, 999, 1000, 10_000
FIT = {"num_steps": 3000}
NUM_DRAWN, NOISY = 150, 4 / 3  # targets in a panel; where the noisiest third begins
NUM_SCORES, NUM_CALIBRATIONS = 49, 100_000
RESULTS = Path(__file__).parents[1] / "speed" / "RESULTS.md"
TIMED, TASK = "kernel_speed_labels", "APS, 1000 classes, 5000 + 5000 rows"
OTHERS = ("jaxcp, SAPS",)  # rows of the table that are of other work
COLORS = {
    "jaxcp": "#0072B2",
    "np.quantile(s, 0.9)": "#E69F00",
    'method="higher"': "#009E73",
}
SIZES = {"figure.title": 12, "font.": 11, "axes.title": 11, "axes.label": 11}
SIZES |= {"legend.font": 10, "xtick.label": 10, "ytick.label": 10}
FONTS = {f"{name}size": points for name, points in SIZES.items()}


@dataclass(frozen=True)
class Way:
    """A score, and what it reads of the inputs."""

    score: object
    predict: Callable[[Array], object]

    def sets(self, x: Array, y: Array, new: Array):
        """Returns the sets at new inputs, calibrated on rows (x, y)."""
        return jaxcp.calibrate(self.score, self.predict(x), y)(self.predict(new), ALPHA)


def ways(key: Array) -> dict[str, Way]:
    """Trains a mean with a scale and two quantiles; returns three ways to use them."""
    key_data, key_normal, key_quantiles = jax.random.split(key, 3)
    x, y = datasets.heteroscedastic(key_data, NUM_TRAIN)
    pinball = networks.pinball_loss((ALPHA / 2, 1 - ALPHA / 2))
    normal = networks.train(key_normal, networks.gaussian_loss, x, y, num_out=2, **FIT)
    quantiles = networks.train(key_quantiles, pinball, x, y, num_out=2, **FIT)

    def mean_and_scale(x):
        out = normal(x)
        return out[:, 0], jnp.exp(out[:, 1])

    def two_quantiles(x):
        return tuple(jnp.sort(quantiles(x), axis=1).T)

    return {
        "split": Way(scores.Absolute(), lambda x: mean_and_scale(x)[0]),
        "normalized": Way(scores.Normalized(), mean_and_scale),
        "CQR": Way(scores.CQR(), two_quantiles),
    }


def judged(way: Way, key: Array) -> dict[str, float]:
    """Returns coverage, mean width and coverage of the noisiest third, over replicates.

    A replicate draws calibration rows and test rows anew.
    """

    def trial(key):
        x, y = datasets.heteroscedastic(key, NUM_ROWS + NUM_TEST)
        sets = way.sets(x[:NUM_ROWS], y[:NUM_ROWS], x[NUM_ROWS:])
        groups = (x[NUM_ROWS:, 0] > NOISY).astype(int)
        by_group = metrics.group_coverage(sets, y[NUM_ROWS:], groups, num_groups=2)
        return {
            "coverage": metrics.coverage(sets, y[NUM_ROWS:]),
            "width": metrics.mean_size(sets),
            "noisiest": by_group[1],
        }

    means = jaxcp.simulate(trial, key, NUM_TRIALS)
    return {name: float(jnp.mean(v)) for name, v in means.items()}


@dataclass(frozen=True)
class Drawn:
    """Intervals of a way at rows in order of x, and what it does over replicates."""

    x: Array
    sets: object
    y: Array
    told: str


def bands(key: Array) -> dict[str, Drawn]:
    """Returns the intervals of three ways, calibrated on the same rows."""
    key_models, key_data, key_trials = jax.random.split(key, 3)
    x, y = datasets.heteroscedastic(key_data, NUM_ROWS + NUM_DRAWN)
    order = NUM_ROWS + jnp.argsort(x[NUM_ROWS:, 0])
    made = {}
    for name, way in ways(key_models).items():
        sets = way.sets(x[:NUM_ROWS], y[:NUM_ROWS], x[order])
        found = judged(way, key_trials)  # the same rows for every way
        told = (
            f"coverage {found['coverage']:.3f}\nnoisiest third {found['noisiest']:.3f}"
            f"\nmean width {found['width']:.2f}"
        )
        made[name] = Drawn(x[order, 0], sets, y[order], told)
    return made


def draw_bands(axes, made: dict[str, Drawn]) -> tuple[list, list]:
    """Draws the intervals of each way; returns marks of the targets and their names."""
    for ax, (name, one) in zip(axes, made.items(), strict=True):
        plotting.plot_intervals(one.x, one.sets, one.y, ax=ax, legend=False)
        ax.text(0.04, 0.03, one.told, transform=ax.transAxes, va="bottom")
        ax.set(title=name, xlabel="x", ylabel="y")
        ax.label_outer()
    points, names = axes[0].get_legend_handles_labels()
    return points[1:], [name.split()[0] for name in names[1:]]


def thresholds(scores_: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the thresholds of three recipes, one of each row of scores."""
    n = scores_.shape[1]
    share = np.ceil((n + 1) * (1 - ALPHA)) / n
    exact = jax.vmap(lambda s: jaxcp.conformal_quantile(s, ALPHA))
    return {
        "np.quantile(s, 0.9)": np.quantile(scores_, 1 - ALPHA, axis=1),
        "jaxcp": np.asarray(exact(jnp.asarray(scores_))),
        'method="higher"': np.quantile(scores_, share, method="higher", axis=1),
    }


def draw_ranks(ax, key: Array) -> None:
    """Draws the coverages of three recipes; of uniform scores they are thresholds."""
    draws = np.asarray(jax.random.uniform(key, (NUM_CALIBRATIONS, NUM_SCORES)))
    found, bins = thresholds(draws), np.linspace(0.7, 1, 61)
    told = {name: f"{name}: {v.mean():.3f}" for name, v in found.items()}
    plotting.plot_coverage(
        found["jaxcp"], NUM_SCORES, ALPHA, label=told["jaxcp"], legend=False,
        bins=bins, color=COLORS["jaxcp"], histtype="stepfilled", ax=ax,
    )  # fmt: skip
    for name, coverages in found.items():
        look = {"color": COLORS[name]}
        if name != "jaxcp":
            heights = np.histogram(coverages, bins, density=True)[0]
            ax.stairs(heights, bins, linewidth=1.6, label=told[name], **look)
        ax.plot(coverages.mean(), 0, "^", ms=9, clip_on=False, zorder=4, **look)
    lines = dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    names = [*told.values(), *(name for name in lines if name.startswith("Beta"))]
    place = {"loc": "upper left", "alignment": "left", "borderaxespad": 0}
    ax.legend([lines[v] for v in names], names, title="mean coverage", **place)
    ax.set(xlabel="coverage (mean ▲)", ylabel="", yticks=[], xlim=(0.62, 1))
    ax.spines["left"].set_visible(False)


def times() -> tuple[dict[str, float], dict[str, str]]:
    """Returns milliseconds by library, and the machine, both from `RESULTS.md`."""
    text = RESULTS.read_text()
    rows = {row[TASK]: row["ms"] for row in table_of(text, TIMED)}
    whole = [m for m in machines_of(text) if "masked" not in m["instructions"]]
    found = {name: ms for name, ms in rows.items() if name not in OTHERS}
    return dict(sorted(found.items(), key=lambda v: v[1])), whole[0]


def draw_times(ax) -> None:
    """Draws the time of every library for the same label sets."""
    found, machine = times()
    values, place = list(found.values()), np.arange(len(found))[::-1]
    colors = [COLORS.get(name, plt.rcParams["text.color"]) for name in found]
    ax.hlines(place, 0, values, color=colors, linewidth=2)
    ax.scatter(values, place, color=colors, s=50, zorder=3)
    for value, at in zip(values, place, strict=True):
        look = {"textcoords": "offset points", "va": "center"}
        ax.annotate(f"{value:.0f} ms", (value, at), (8, 0), **look)
    ax.set_yticks(place, ["NumPy" if v == "numpy" else v for v in found])
    ax.tick_params(axis="y", length=0)
    ax.set(xlabel="milliseconds, 5000 + 5000 rows")
    ax.set(xlim=(0, max(values) * 1.3), ylim=(-0.6, len(values) - 0.4))
    told = f"jaxcp on {machine['cores']} cores, the others on one"
    told = f"{machine['processor']}\n{told}"
    look = {"textcoords": "offset points", "va": "top", "fontsize": 9}
    ax.annotate(told, (0, 0), (0, -36), xycoords="axes fraction", **look)


def draw(made: dict[str, Drawn], key_ranks: Array, phone: bool = False):
    """Returns the figure: three bands, then ranks and times; for phones in a column."""
    size = (3.7, 12) if phone else (7.4, 6.2)
    figure = plt.figure(figsize=size, layout="constrained")
    if phone:
        above, left, right = figure.subfigures(3, 1, height_ratios=(6.6, 2.9, 2.5))
        axes = above.subplots(3, 1, sharex=True, sharey=True)
        look = {"loc": "outside lower right"}
    else:
        above, below = figure.subfigures(2, 1)
        left, right = below.subfigures(1, 2)
        axes = above.subplots(1, 3, sharex=True, sharey=True)
        look = {"loc": "upper right", "borderpad": 0}
    marks = draw_bands(axes, made)
    if phone:
        axes[0].set_ylim(bottom=-4.4)  # room for what is told
    above.legend(*marks, ncols=2, handletextpad=0.2, **look)
    draw_ranks(left.subplots(), key_ranks)
    draw_times(right.subplots())
    title = "" if phone else f": n = {NUM_ROWS}, 1 − α = {1 - ALPHA}"
    titles = {
        above: f"a  Intervals that adapt{title}",
        left: f"b  The right rank: n = {NUM_SCORES}, 1 − α = {1 - ALPHA}",
        right: "c  APS sets of 1000 classes",
    }
    for part, title in titles.items():
        part.suptitle(title, x=0.01, ha="left", weight="bold")
    return figure


def main() -> None:
    """Draws the three panels, beside and below each other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    use_style(**FONTS)
    key_bands, key_ranks = jax.random.split(jax.random.key(0))
    made = bands(key_bands)
    save_figure(draw(made, key_ranks), args.out, "front_page", ("png", "svg"))
    phone = draw(made, key_ranks, phone=True)
    save_figure(phone, args.out, "front_page_phone", ("svg",))


if __name__ == "__main__":
    main()
