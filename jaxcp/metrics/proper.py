"""Proper scores of predictive distributions: of atoms, draws, and densities."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _checks
from jaxcp._batching import map_blocks
from jaxcp._numbers import as_float, at_least_single, mean, quotient, unit_of
from jaxcp.metrics._sets import Count, metric
from jaxcp.predictive.atoms import Atoms
from jaxcp.typing import ArrayLike


def _given(draws, y):
    """Returns draws and targets as arrays, after checks of what is in them."""
    draws, y = _checks.rows(draws=draws, y=y)
    _checks.check_not_nan("draws", draws)
    _checks.check_not_nan("y", y)
    return draws, y


def _of_atoms(draws, y, *, fair=False):
    """Checks atoms, or draws (m, k), and targets."""
    draws, y = _given(draws, y)
    atoms = draws if isinstance(draws, Atoms) else Atoms(draws)
    batch = atoms.values.shape[:-1]
    _checks.check_shape("y", batch if atoms is draws else batch[:1], y.shape)
    return (atoms, y), {"fair": bool(fair)}


def _of_draws(draws, y, **options):
    """Checks draws (m, k, d) and targets (m, d); of one output without that axis."""
    draws, y = (at_least_single(as_float(v)) for v in _given(draws, y))
    draws = draws[..., None] if draws.ndim == 2 else draws
    y = y[..., None] if y.ndim == 1 else y
    _checks.check_shape("y", draws.shape[:1] + draws.shape[2:], y.shape)
    return (draws, y), options


def _of_energy(draws, y, *, beta=1.0, fair=False):
    beta = _checks.check_number("beta", beta, lambda v: (v > 0) & (v < 2), "in (0, 2)")
    return _of_draws(draws, y, beta=float(beta), fair=bool(fair))


def _of_variogram(draws, y, *, order=0.5, weights=None):
    order = _checks.check_number("order", order, lambda v: v > 0, "> 0")
    (draws, y), options = _of_draws(draws, y, order=float(order))
    pairs = 2 * draws.shape[2:]
    weights = np.ones(pairs, draws.dtype) if weights is None else weights
    weights = _arrays.as_array("weights", weights)
    _checks.check_weights("weights", weights)
    _checks.check_shape("weights", pairs, weights.shape)
    return (draws, y), options | {"weights": weights}


def _of_densities(log_densities):
    return (_checks.rows(log_densities=_checks.scores(log_densities)),), {}


def _power(x, exponent):
    """Returns x^exponent of x >= 0, with no slope at 0."""
    return jnp.where(x > 0, jnp.where(x > 0, x, 1) ** exponent, 0)


@metric(_of_atoms)
def crps(
    count: Count, draws: Atoms | ArrayLike, y: ArrayLike, *, fair: bool = False
) -> Array:
    """Returns the mean continuous ranked probability score.

    E|C - y| - E|C - C'| / 2 with C and C' among the atoms by their weights: the
    integral of (F(t) - 1(y <= t))^2, and the absolute error of a single atom.

    Args:
      draws: Draws, shape (m, k), or `predictive.Atoms` with a leading axis m, which may
        have weights.
      y: Targets, shape (m,), or (m, d) for atoms of d outputs.
      fair: Whether C and C' are different draws: the second term times k / (k - 1).

    Returns:
      Mean over the rows, shape () or (d,), in units of the target; less is better. NaN
      without atoms, and with `fair` for a single one; +inf with an infinite atom.

    Raises:
      ValueError: if lengths differ or a concrete value is NaN.

    Guarantee:
      Proper: least, on average, for the law of the target. With `fair` its mean is that
      of the law of the draws, for every k.

    Assumption:
      With `fair` that draws are independent.

    Cost:
      O(m k log k): one sort of each row.

    References:
      Gneiting, Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation,
      JASA, 2007.

    See also:
      metrics.energy_score, predictive.Atoms, metrics.pinball_score

    Example:
      >>> draws, y = jnp.array([[1.0, 3.0], [0.0, 0.0]]), jnp.array([2.0, 1.0])
      >>> crps(draws, y).item(), crps(draws, y, fair=True).item()
      (0.75, 0.5)
    """
    return mean(draws.crps(y, fair=fair), count)  # type: ignore[union-attr]


@metric(_of_energy)
def energy_score(
    m: Count, draws: ArrayLike, y: ArrayLike, *, beta: float = 1.0, fair: bool = False
) -> Array:
    """Returns the mean energy score of draws of several outputs.

    mean_k |Y_k - y|^beta - sum_kl |Y_k - Y_l|^beta / (2 k^2), with Euclidean distances;
    the CRPS for one output and beta = 1.

    Args:
      draws: Draws Y_k, shape (m, k, d), or (m, k) for one output.
      y: Targets, shape (m, d) or (m,).
      beta: Exponent in (0, 2), a number.
      fair: Whether pairs are of different draws: 2 k (k - 1) for 2 k^2.

    Returns:
      Mean over the rows, shape (), in units of the target^beta; less is better. NaN
      with `fair` for a single draw, and for infinite ones.

    Raises:
      ValueError: if shapes do not fit, a concrete value is NaN, or `beta` is outside
        (0, 2).

    Guarantee:
      Proper: least, on average, for the law of the target. With `fair` its mean is that
      of the law of the draws, for every k.

    Assumption:
      With `fair` that draws are independent.

    Cost:
      O(m k^2 d) time, by differences, in blocks of rows. An exponent other
      than 1 takes several times as long as the root.

    References:
      Gneiting, Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation,
      JASA, 2007.

    See also:
      metrics.crps, metrics.variogram_score

    Example:
      >>> draws, y = jnp.array([[[0.0, 0.0], [3.0, 4.0]]]), jnp.zeros((1, 2))
      >>> energy_score(draws, y).item(), energy_score(draws, y, fair=True).item()
      (1.25, 0.0)
    """
    k = draws.shape[1]  # type: ignore[union-attr]
    pairs = 2.0 * k * (k - 1 if fair else k)

    def block(draws, y):
        unit = unit_of(draws - y[:, None], axis=(1, 2))
        draws, y = draws / unit[:, None, None], y / unit[:, None]
        near = jnp.sum((draws - y[:, None]) ** 2, axis=2)
        far = jnp.sum(_power(_squared_distances(draws), beta / 2), axis=(1, 2))
        score = jnp.mean(_power(near, beta / 2), axis=1) - quotient(far, pairs)
        return score * unit**beta

    return mean(map_blocks(block, draws, y, width=k * k), m)


def _squared_distances(draws):
    """Returns those of all pairs of draws, (m, k, d) to (m, k, k), by differences."""
    of = lambda v: (v[:, :, None] - v[:, None]) ** 2  # noqa: E731
    columns = jnp.moveaxis(draws, 2, 0)
    return sum(map(of, columns), jnp.zeros((), draws.dtype))


@metric(_of_variogram)
def variogram_score(
    count: Count,
    draws: ArrayLike,
    y: ArrayLike,
    *,
    order: float = 0.5,
    weights: ArrayLike | None = None,
) -> Array:
    """Returns the mean variogram score, which sees how outputs depend on one another.

    sum_ij w_ij (|y_i - y_j|^p - mean_k |Y_ki - Y_kj|^p)^2 over ordered pairs of
    outputs.

    Args:
      draws: Draws, shape (m, k, d).
      y: Targets, shape (m, d).
      order: Exponent p > 0, a number.
      weights: Weights >= 0 of pairs, shape (d, d). Defaults to ones.

    Returns:
      Mean over the rows, shape (), in units of the target^(2 p); less is better. It
      does not see a shift of all outputs.

    Raises:
      ValueError: if shapes do not fit, a concrete value is NaN, `order` is not above 0,
        or a weight is negative or infinite.

    Guarantee:
      Proper, not strictly: least, on average, for the law of the target and others with
      the same variogram.

    Cost:
      O(m k d^2) time, in blocks of rows.

    References:
      Scheuerer, Hamill, Variogram-Based Proper Scoring Rules for Probabilistic
      Forecasts of Multivariate Quantities, Monthly Weather Review, 2015.

    See also:
      metrics.energy_score

    Example:
      >>> draws, y = jnp.array([[[0.0, 4.0]]]), jnp.array([[0.0, 1.0]])
      >>> variogram_score(draws, y).item()
      2.0
    """
    _, k, d = draws.shape  # type: ignore[union-attr]
    steps = lambda v: _power(jnp.abs(v[..., None] - v[..., None, :]), order)  # noqa: E731

    def block(draws, y):
        gaps = (steps(y) - jnp.mean(steps(draws), axis=1)) ** 2
        return jnp.einsum("mij,ij->m", gaps, weights)

    return mean(map_blocks(block, draws, y, width=k * d * d), count)


@metric(_of_densities)
def log_score(count: Count, log_densities: ArrayLike) -> Array:
    """Returns the mean logarithmic score: minus the log density at the target.

    Args:
      log_densities: Log densities of the forecasts at their targets, shape (m,), or log
        probabilities of the true labels.

    Returns:
      Mean over the rows, shape (), in nats; less is better. +inf where a target had
      density 0.

    Raises:
      ValueError: if a concrete value is NaN, or there are several axes.

    Guarantee:
      Proper: least, on average, for the law of the target.

    Cost:
      O(m) time.

    References:
      Gneiting, Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation,
      JASA, 2007.

    See also:
      metrics.crps, metrics.energy_score

    Example:
      >>> log_score(jnp.log(jnp.array([0.5, 0.5]))).item()
      0.6931471824645996
    """
    return -mean(log_densities, count)  # type: ignore[arg-type]
