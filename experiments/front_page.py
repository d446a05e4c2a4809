"""The figure at the top of README: what sets look like, and how often they cover.

`python -m experiments.front_page [--out DIR]` writes `front_page.png`, beside this
script if no folder is given.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
from jax import Array

import jaxcp
from experiments.reporting import save_figure
from jaxcp import datasets, plotting, scores
from jaxcp.sets import Box

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ALPHA, NUM_ROWS, NUM_TRIALS = 0.1, 999, 100_000


def intervals(key: Array, ax: plt.Axes) -> None:
    """Draws intervals of a mean with a scale, on data whose noise grows."""
    x, y = datasets.heteroscedastic(key, NUM_ROWS + 150)
    old, new = slice(NUM_ROWS), slice(NUM_ROWS, None)
    pred = jnp.sin(2 * x[:, 0]), 0.1 + x[:, 0] / 2
    before, after = (jax.tree.map(lambda v, r=r: v[r], pred) for r in (old, new))
    sets = jaxcp.calibrate(scores.Normalized(), before, y[old])(after, ALPHA)
    plotting.plot_intervals(x[new], sets, y[new], ax=ax)
    ax.set(title="intervals that adapt", xlabel="x", ylabel="y")


def region(key: Array, ax: plt.Axes) -> None:
    """Draws the region of two outputs at one input, from draws of a sampler."""
    law = datasets.OneMoon()
    key_old, key_draws, key_new, key_targets = jax.random.split(key, 4)
    x, y = law.draw(key_old, NUM_ROWS)

    def draws(key, x):
        sample = lambda key, x, n: law.sample((), key, x, n)  # noqa: E731
        return tuple(jaxcp.draw(key, sample, x, 200, role=role) for role in (0, 1))

    c_pcp = jaxcp.calibrate(scores.CDF(scores.PCP()), draws(key_draws, x), y)
    at = jnp.full((400, *x.shape[1:]), 0.25)
    sets = c_pcp(draws(key_new, at[:1]), ALPHA)
    targets = law.sample((), key_targets, at[0], 400)
    bounds = Box(targets.min(axis=0) - 0.3, targets.max(axis=0) + 0.3)
    one = jax.tree.map(lambda v: v[0], sets)
    plotting.plot_region(one, bounds, targets, ax=ax)
    ax.set(title="regions of any shape", xlabel="first output", ylabel="second output")


def law(key: Array, ax: plt.Axes) -> None:
    """Draws the coverage of a hundred thousand calibrations against its Beta law."""

    def coverage(key):  # of uniform scores it is the threshold itself
        return jaxcp.conformal_quantile(jax.random.uniform(key, (99,)), ALPHA)

    found = jaxcp.simulate(coverage, key, NUM_TRIALS)
    plotting.plot_coverage(found, 99, ALPHA, ax=ax)
    ax.set(title=f"coverage of {NUM_TRIALS:,} calibrations".replace(",", " "))


def main() -> None:
    """Draws the three panels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    keys = jax.random.split(jax.random.key(0), 3)
    for draw, key, ax in zip((intervals, region, law), keys, axes, strict=True):
        draw(key, ax)
    save_figure(figure, args.out, "front_page")


if __name__ == "__main__":
    main()
