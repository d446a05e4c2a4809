"""The lines of the showcase for bounds from one side, distributions and histograms.

They run on the pool of the diabetes, with what its networks predict: a mean and a
scale, and two quantiles. Histograms and densities on a grid are those of the normal
distribution with that mean and that scale.
"""

from collections.abc import Iterator
from dataclasses import replace

import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

import jaxcp
from experiments.pictures.showcase_methods import ALPHA, Method, Pool, rows, split
from jaxcp import scores
from jaxcp.predictive import calibrate_predictive

NUM_METHODS = 8
LEVELS = (ALPHA / 2, 1 - ALPHA / 2)  # of the quantile network
FIRST, LAST, NUM_BINS = -200.0, 600.0, 40  # of the targets, and far beyond


def system(pool: Pool, calibration: Array, test: Array):
    """Returns the intervals of a predictive system of the mean and the scale."""
    preds, y = pool.preds["normal"], pool.y[calibration]
    made = calibrate_predictive(scores.ScaledResidual(), rows(preds, calibration), y)
    return made(rows(preds, test), ALPHA)


def mean_bound(sets) -> Array:
    """Returns the mean of the upper bounds, for sets without a lower one."""
    return jnp.mean(sets.upper)


def all_methods(key: Array, pools: dict[str, Pool]) -> Iterator[Method]:
    """Yields the lines of the table, on the pool of the diabetes."""
    pool, places = pools["diabetes"], jnp.linspace(FIRST, LAST, NUM_BINS + 1)
    mu, sigma = (v[:, None] for v in pool.preds["normal"])
    steps = (places[None] - mu) / sigma
    p = jnp.diff(norm.cdf(steps), axis=1)
    preds = {
        "columns": jnp.stack(pool.preds["quantiles"], axis=1),
        "p": p,
        "p, u": (p, jaxcp.uniforms(key, len(p))),
        "on grid": norm.pdf(steps) / sigma,
    }
    pool = replace(pool, preds=pool.preds | preds)
    levels = jnp.array(LEVELS)
    through = scores.PredictedQuantiles(levels)
    one_side, bound = scores.Residual(), {"size": mean_bound}
    yield Method("residual, one side", pool, split(one_side, "ridge"), **bound)
    scaled = scores.ScaledResidual()
    yield Method("scaled, one side", pool, split(scaled, "normal"), **bound)
    yield Method("quantiles, one side", pool, split(through, "columns"), **bound)
    yield Method("predictive system", pool, system)
    yield Method("DCP", pool, split(scores.DCP(levels), "columns"))
    yield Method("binned", pool, split(scores.Binned(places), "p"))
    randomized = scores.Binned(places, randomized=True)
    yield Method("binned, randomized", pool, split(randomized, "p, u"))
    yield Method("interpolated", pool, split(scores.Interpolated(places), "on grid"))
