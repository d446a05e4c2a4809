"""Conformal Bayes: full conformal prediction from draws of one posterior."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array, count_true
from jaxcp._batching import map_blocks
from jaxcp._numbers import as_float, at_least_single, quotient
from jaxcp._tree import pytree
from jaxcp.full.cells import as_grid, cells
from jaxcp.full.fitting import check_real
from jaxcp.quantiles.levels import as_alpha, ranks
from jaxcp.sets import Intervals, LabelSet
from jaxcp.typing import ArrayLike

_FEWEST = 2**13  # draws from which blocks are of no fewer candidates: 64


@pytree
class ConformalBayes:
    """P-values of candidate targets, how far draws carry them, and prediction sets.

    Made by `conformal_bayes`.

    Args:
      p_values: How exceptional each candidate is, in (0, 1], shape (g,) or (m, g).
      effective_sizes: Draws that the weights of a candidate are worth, from 1 to t,
        shape (g,) or (m, g); 0 for a candidate that is impossible under every draw.
        Where few are left, the draws say little about that candidate.
      sets: The candidates with p-values above alpha: a `LabelSet`, or `Intervals` of
        cells of a grid; a batch of m if there are m test points.

    See also:
      conformal_bayes, sets.LabelSet, sets.Intervals
    """

    p_values: Array
    effective_sizes: Array
    sets: LabelSet | Intervals


def conformal_bayes(
    log_likelihoods: ArrayLike,
    candidate_log_likelihoods: ArrayLike,
    alpha: ArrayLike,
    *,
    grid: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> ConformalBayes:
    """Returns full conformal sets of a Bayesian model, from draws given the n rows.

    A candidate y for the test input x weighs draw t by w_t = f_t(y | x), as if the
    posterior had seen it. The scores are predictive densities, low ones strange:
    sigma_i = sum_t w_t f_t(y_i | x_i) / sum_t w_t of the rows, and sum_t w_t^2 / sum_t
    w_t of the candidate. p = (1 + #{sigma_i <= sigma_(n+1)}) / (n + 1), kept if above
    alpha. No refit and no second run of the sampler.

    Args:
      log_likelihoods: log f_t(y_i | x_i) of each draw and row, shape (t, n).
      candidate_log_likelihoods: log f_t(y | x) of each draw and candidate of a test
        point, shape (t, g), or of m test points, shape (t, m, g). -inf is impossible.
      alpha: Miscoverage level, shape ().
      grid: Candidates that are numbers, in increasing order, shape (g,), in units of
        the target. Defaults to labels 0, ..., g - 1.
      mask: True where a row counts, shape (n,). Defaults to all rows.

    Returns:
      A `ConformalBayes`. With `grid` each point stands for its cell, which reaches half
      way to the next points; the outer cells reach to infinity, so that an infinite set
      tells of a grid that is too short.

    Raises:
      ValueError: if the shapes do not fit, there is no draw, a concrete log likelihood
        is NaN or +inf, `grid` does not increase, or `alpha` is outside (0, 1).

    Guarantee:
      At least 1 - alpha in the limit of many draws whose averages converge (those of
      chains do), also for a model that is wrong. With t draws approximate, the better
      the larger `effective_sizes` are. On a grid it is for targets on its points, and
      cells extend it to their neighbors.

    Assumption:
      Rows and test example are exchangeable, and given the parameters the model takes
      them for independent, so that its posterior does not depend on their order.

    Cost:
      One product of (g, t) by (t, n), in blocks of candidates. Where its terms are too
      small for the type of the floats, sums in logs for these candidates alone.

    References:
      Fong, Holmes, Conformal Bayesian Computation, Advances in Neural Information
      Processing Systems, 2021.

    See also:
      full_conformal, discretized_conformal, sets.Intervals, sets.LabelSet

    Example:
      >>> from jax.scipy.stats import norm
      >>> y, grid = jnp.array([-1.0, -0.5, 0.0, 0.5, 1.0]), jnp.linspace(-3, 3, 61)
      >>> means = jax.random.normal(jax.random.key(0), (1000, 1)) / 6**0.5
      >>> rows, candidates = (norm.logpdf(v[None], means) for v in (y, grid))
      >>> result = conformal_bayes(rows, candidates, alpha=0.4, grid=grid)
      >>> result.p_values.shape, result.sets.num_pieces().item()
      ((61,), 1)
    """
    if mask is not None:
        mask = _checks.flags("mask", mask)
        _checks.check_shape("mask", np.shape(log_likelihoods)[1:], mask.shape)
    rows = _logs("log_likelihoods", log_likelihoods, mask)
    candidates = _logs("candidate_log_likelihoods", candidate_log_likelihoods)
    if candidates.ndim not in (2, 3):
        raise ValueError(
            "expected candidate_log_likelihoods of shape (t, g) or (t, m, g), got "
            f"{candidates.shape}"
        )
    alpha, n = as_alpha(alpha), rows.shape[1]
    _checks.check_scalars(alpha=alpha)
    _checks.warn_of_misses(alpha)
    if grid is not None:
        grid = as_grid(grid)
        _checks.check_shape("grid", candidates.shape[-1:], grid.shape)
    count = n if mask is None else count_true(mask)
    return _conformal_bayes(rows, candidates, ranks(count, alpha), grid, mask)


def _logs(name, values, mask=None):
    """Returns log likelihoods as floats, or raises ValueError for NaN and infinity."""
    values = as_array(name, values)
    check_real(name, values)
    expected = f"{name} below infinity, without NaN"
    _checks.check_values(lambda v: v < np.inf, expected, values.T, mask)
    return at_least_single(as_float(values))


class _Rows(NamedTuple):
    """Rows of the data: their densities over the largest of each among the draws."""

    logs: Array  # (t, n)
    densities: Array  # (t, n)
    tops: Array  # logs of the largest, (n,), -inf where no draw allows the row
    counting: Array  # (n,), rows that are masked do not


@jax.jit
def _conformal_bayes(rows, candidates, rank, grid, mask):
    num_draws, n = rows.shape
    dtype = jnp.promote_types(rows.dtype, candidates.dtype)
    rows = _relative(lax.stop_gradient(rows.astype(dtype)), mask)
    shape = candidates.shape[1:]
    candidates = candidates.astype(dtype).reshape(num_draws, math.prod(shape)).T
    # At least 64 candidates at a time, for each block goes through all of the rows.
    width = min(num_draws, _FEWEST)
    counts, sizes = map_blocks(partial(_compare, rows), candidates, width=width)
    counts, sizes = counts.reshape(shape), sizes.reshape(shape)
    total = 1 + (n if mask is None else jnp.sum(mask))
    # p = (1 + #{sigma_i <= sigma_(n+1)}) / (n + 1): Fong, Holmes 2021, algorithm 1
    p_values = quotient((1 + counts).astype(dtype), total)
    kept = counts >= total - rank  # p > alpha, in integers
    if grid is None:
        return ConformalBayes(p_values, sizes, LabelSet(kept))
    each = jax.vmap(cells, (None, 0)) if kept.ndim > 1 else cells
    return ConformalBayes(p_values, sizes, each(grid, kept))


def _relative(logs, mask):
    """Returns rows with densities relative to the largest of each."""
    tops = jnp.max(logs, axis=0)
    logs = logs - jnp.where(tops == -jnp.inf, 0, tops)[None]
    counting = jnp.ones(tops.shape, bool) if mask is None else mask
    return _Rows(logs, jnp.exp(logs), tops, counting)


def _compare(rows, candidates):
    """Returns how many rows are at most as likely, and effective sizes, each (g,)."""
    tops = jnp.max(lax.stop_gradient(candidates), axis=1)
    # As its likelihood tends to 0, with equal weights, an impossible one loses to all
    # rows that are possible.
    possible = ~(tops == -jnp.inf)
    logs = jnp.where(possible[:, None], candidates - tops[:, None], 0)
    weights = jnp.exp(logs)
    squares = jnp.sum(weights**2, axis=1)
    # (sum_t w_t)^2 / sum_t w_t^2: Fong, Holmes 2021, section 2.2
    sizes = jnp.where(possible, jnp.sum(weights, axis=1) ** 2 / squares, 0)
    logs, weights, squares = lax.stop_gradient((logs, weights, squares))
    # The large ones first: log likelihoods in thousands would swallow the rest.
    level = (tops[:, None] - rows.tops[None]) + jnp.log(squares)[:, None]
    at_most = _at_most(rows, logs, weights, level)
    return jnp.sum(at_most & rows.counting[None], axis=1), sizes


def _at_most(rows, logs, weights, level):
    """Returns which rows are at most as likely as each candidate, bool (g, n).

    sigma_i <= sigma_(n+1) iff sum_t w_t f_t(y_i | x_i) <= sum_t w_t^2. The left is a
    product of matrices, in units of the largest factors, in which `level` is the log of
    the right. `logs` and `weights` are of shape (g, t). NaN counts: it keeps.
    """
    t, limits = len(rows.logs), jnp.finfo(logs.dtype)
    sums = jnp.matmul(weights, rows.densities, precision=lax.Precision.HIGHEST)
    # Sums and exponentials round: a tie, as of a repeated row, stays one.
    size = jnp.where(jnp.isfinite(level), jnp.abs(level), 0)
    level = level + limits.eps * (8 + t**0.5 + 2 * size)
    at_most = ~(jnp.log(sums) > level)
    # Terms below the smallest float are lost, so that sums are too small, by at most:
    lost = 4 * t * float(limits.tiny)
    unsure = at_most & (jnp.log(sums + lost) > level) & rows.counting[None]
    return _settled(rows, logs, level, at_most, jnp.any(unsure, axis=1))


def _settled(rows, logs, level, at_most, unsure):
    """Returns `at_most`, decided anew in logs for the candidates that are unsure."""
    if not len(unsure):
        return at_most

    def decide(state):
        at_most, left = state
        j = jnp.argmax(left)
        sums = jax.nn.logsumexp(rows.logs + logs[j][:, None], axis=0)
        return at_most.at[j].set(~(sums > level[j])), left.at[j].set(False)

    return lax.while_loop(lambda state: jnp.any(state[1]), decide, (at_most, unsure))[0]
