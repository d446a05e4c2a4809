"""Four laws of data for one set of methods, and what an oracle would do.

x = (x_1, x_2) is uniform on (0, 1)^2 and y = 10 + 2 x_1 - x_2 + spread(x) e. The noise
e is normal, normal with a spread that grows with x_1, Student with 3 degrees of
freedom, or exponential; its spread is 1/4 + 3/2 x_1 in the second law and 1 in the
others. The model that the methods get is the same in all: it takes the noise to be
normal, its center is off by 0.3 and its scale is 1/2 + x_1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import stats

LAWS = ("normal", "heteroscedastic", "heavy tails", "skewed")
CUTS = (9.0, 10.0, 11.0, 12.0)  # of y, into five labels
NUM_TEST = 20


class Problem(NamedTuple):
    """Rows of one replicate, calibration rows first, and what the model predicts."""

    n: int
    x: Array
    y: Array
    mu: Array
    sigma: Array
    label: Array
    p: Array
    u: Array
    pair: Array  # two targets
    box: Array  # a box that a detector should have found
    x_tilted: Array  # inputs whose x_1 has the density 2 x_1, and their targets
    y_tilted: Array
    mu_tilted: Array
    key: Array


def draw(key: Array, law: Array, n: int) -> Problem:
    """Returns n calibration rows and 20 test rows of the law with this number."""
    key_data, key_rest = jax.random.split(key)
    rows = n + NUM_TEST
    # One draw of all numbers: each draw takes a second to compile.
    z = jax.random.normal(key_data, (rows, 31))
    uniform = jax.scipy.stats.norm.cdf(z[:, :3])
    x, e = uniform[:, :2], _noise(law, z[:, 3:].reshape(rows, 7, 4))
    y, spread, mu = _target(law, x, e[:, 0])
    tilted = x.at[:, 0].set(jnp.sqrt(x[:, 0]))
    y_tilted, _, mu_tilted = _target(law, tilted, e[:, 0])
    sigma = 0.5 + x[:, 0]
    steps = (jnp.array(CUTS)[None] - mu[:, None]) / sigma[:, None]
    below = jax.scipy.stats.norm.cdf(steps)
    ends = jnp.zeros((rows, 1)), below, jnp.ones((rows, 1))
    p = jnp.diff(jnp.concatenate(ends, axis=1), axis=1)
    sides = jnp.array([40.0, 40.0, 80.0, 90.0])
    return Problem(
        n,
        x,
        y,
        mu,
        sigma,
        jnp.sum(y[:, None] > jnp.array(CUTS)[None], axis=1),
        p / jnp.sum(p, axis=1, keepdims=True),
        uniform[:, 2],
        spread[:, None] * e[:, 1:3],
        sides[None] + 3 * spread[:, None] * e[:, 3:],
        tilted,
        y_tilted,
        mu_tilted,
        key_rest,
    )


def _target(law, x, e):
    """Returns targets, their spread, and what the model predicts."""
    spread = jnp.where(law == 1, 0.25 + 1.5 * x[:, 0], 1.0)
    center = 10 + 2 * x[:, 0] - x[:, 1]
    return center + spread * e, spread, center + 0.3


def _noise(law, z):
    normal = jnp.moveaxis(z, -1, 0)
    student = normal[0] / jnp.sqrt(jnp.mean(normal[1:] ** 2, axis=0))
    # Two squared normals are twice an exponential number.
    skewed = (normal[0] ** 2 + normal[1] ** 2) / 2 - 1
    return jnp.stack([normal[0], normal[0], student, skewed])[law]


def oracle_width(law: str, alpha: float) -> float:
    """Returns the mean width of the shortest intervals that cover 1 - alpha at every x.

    The mean spread is 1 in all laws.
    """
    quantile = _quantile(law)
    low = np.linspace(0, alpha, 2001)
    return float(np.min(quantile(np.clip(low + 1 - alpha, 0, 1)) - quantile(low)))


def oracle_labels(law: str, alpha: float) -> float:
    """Returns the mean size of the smallest label sets with 1 - alpha at every x."""
    grid = (np.arange(60) + 0.5) / 60
    x = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    center = 10 + 2 * x[:, :1] - x[:, 1:]
    spread = 0.25 + 1.5 * x[:, :1] if law == "heteroscedastic" else 1.0
    below = _cdf(law)((np.array(CUTS) - center) / spread)
    ends = np.zeros((len(x), 1)), below, np.ones((len(x), 1))
    p = -np.sort(-np.diff(np.concatenate(ends, axis=1), axis=1), axis=1)
    return float(np.mean(1 + np.sum(np.cumsum(p, axis=1) < 1 - alpha - 1e-12, axis=1)))


def _distribution(law):
    return {"heavy tails": stats.t(3), "skewed": stats.expon(-1)}.get(law, stats.norm())


def _quantile(law):
    return _distribution(law).ppf


def _cdf(law):
    return _distribution(law).cdf
