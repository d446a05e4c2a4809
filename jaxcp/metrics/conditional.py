"""Coverage given the input, as far as a test set can tell."""

from __future__ import annotations

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _arrays, _batching, _checks, _geometry, _tree
from jaxcp._numbers import as_float, at_least_single, mean, quotient
from jaxcp.metrics import _sets
from jaxcp.metrics.rates import rates_of
from jaxcp.quantiles.levels import as_alpha, ranks
from jaxcp.typing import ArrayLike, Set


@_checks.by_labels
def conditional_coverage_error(
    key: Array,
    sets: Set | ArrayLike,
    y: ArrayLike,
    x: ArrayLike,
    alpha: ArrayLike,
    *,
    num_cells: int = 20,
    num_calibration: int | None = None,
) -> tuple[Array, Array]:
    """Returns the squared error of coverage in cells of inputs, and its noise floor.

    CEC-X = sum_j (m_j / m) (coverage_j - (1 - alpha))^2 over cells of k-means on x,
    each column on the scale of its standard deviation. Sets that cover each x with
    probability 1 - alpha have an expected CEC-X equal to the noise floor, J alpha
    (1 - alpha) / m with J the cells that have rows. Sets of one threshold from n
    calibration rows, of rank k, cover each x alike with a probability that varies with
    these rows, c = k / (n + 1) on average. Their floor is (J / m) c (1 - c) (n + 1) /
    (n + 2) + c (1 - c) / (n + 2) + (c - 1 + alpha)^2. Far above the floor, coverage
    depends on x.

    Args:
      key: Random key of the cells.
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      x: Inputs, shape (m, p) or (m,).
      alpha: Miscoverage level of the sets, shape ().
      num_cells: Number of cells.
      num_calibration: Number n of calibration rows of the sets, which their floor
        depends on. Defaults to None: sets that cover with probability 1 - alpha.

    Returns:
      (error, noise floor), each of shape (); NaN for no rows.

    Raises:
      ValueError: as `coverage`, if a concrete input is NaN, or `num_cells` or
        `num_calibration` is not a positive int.

    Cost:
      25 steps of k-means: O(m p) time for each cell and step.

    References:
      Dheur, Fontana, Estievenart, Desobry, Ben Taieb, A Unified Comparative Study with
      Generalized Conformity Scores for Multi-Output Conformal Regression, ICML, 2025.

    See also:
      metrics.excess_coverage_risk, metrics.worst_slab_coverage, metrics.group_coverage

    Example:
      >>> from jaxcp.sets import Interval
      >>> x = jnp.linspace(0.0, 1.0, 100)
      >>> never_right_of_half = Interval(jnp.zeros(100), jnp.where(x < 0.5, 9.0, -1.0))
      >>> error, floor = conditional_coverage_error(
      ...     jax.random.key(0), never_right_of_half, x, x, 0.5, num_cells=2
      ... )
      >>> round(error.item(), 3), round(floor.item(), 3)
      (0.25, 0.005)
    """
    sets, y, x = _checked(sets, y, x)
    level = _sets.check_level(alpha)
    _checks.check_key(key)
    _checks.check_count("num_cells", num_cells, 1)
    if len(x) == 0:
        return jnp.full((), jnp.nan), jnp.full((), jnp.nan)
    n, rank = num_calibration, None
    if n is not None:
        _checks.check_count("num_calibration", n, 1)
        rank = ranks(np.asarray(n), as_alpha(alpha))
    return _cell_error(key, sets, y, x, level, min(num_cells, len(x)), n, rank)


@_checks.by_labels
def excess_coverage_risk(
    sets: Set | ArrayLike, y: ArrayLike, rates: ArrayLike, alpha: ArrayLike
) -> Array:
    """Returns how much better predicted rates of coverage are than 1 - alpha: ERT.

    mean of (covered - (1 - alpha)) sign(rate - (1 - alpha)): the excess risk of
    predicting 1 - alpha in place of the rates. On average the true rates p(x) give the
    mean of abs(p(x) - (1 - alpha)); other rates give less.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      rates: Probabilities of coverage at each input from a classifier that was fitted
        on other rows (out of fold), shape (m,).
      alpha: Miscoverage level of the sets, shape ().

    Returns:
      Excess risk in [-1, 1], shape (). NaN for no rows. The best constant rate earns
      abs(coverage - (1 - alpha)), for n calibration rows about 0.8 sqrt(alpha (1 -
      alpha) (1 / m + 1 / (n + 2))), which is 0.024 at n = 99, m = 2000 and alpha = 0.1:
      only what is more says that coverage can be predicted.

    Raises:
      ValueError: as `coverage`, if a concrete rate is outside [0, 1], or a number
        `alpha` is outside (0, 1).

    Cost:
      O(m) time; the classifier is yours.

    References:
      Braun, Holzmuller, Jordan, Bach, Conditional Coverage Diagnostics for Conformal
      Prediction, arXiv 2512.11779, 2025.

    See also:
      metrics.conditional_coverage_error, metrics.covered

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets, y = Interval(jnp.zeros(4), jnp.ones(4)), jnp.array([0.5, 0.5, 2.0, 2.0])
      >>> excess_coverage_risk(sets, y, jnp.array([0.9, 0.9, 0.1, 0.1]), 0.5).item()
      0.5
    """
    sets, y = _sets.check_sets(sets, y)
    _checks.check_given(rates=rates)
    _, rates = _checks.rows(y=y, rates=_checks.uniforms(rates))
    return _excess_risk(sets, y, rates, _sets.check_level(alpha))


def _checked(sets, y, x):
    """Returns sets, targets, and inputs as floats of shape (m, p)."""
    sets, y = _sets.check_sets(sets, y)
    x = at_least_single(as_float(_arrays.as_array("x", x)))
    _checks.num_rows(y=y, x=x)
    _checks.check_values(np.isfinite, "finite x", x)
    return sets, y, x.reshape(len(x), math.prod(x.shape[1:]))


@_tree.jit
def _excess_risk(sets, y, rates, alpha):
    error = _sets.is_covered(sets, y) - (1 - alpha)
    return mean(error * jnp.sign(_sets.above_level(as_float(rates), alpha)))


@_tree.jit(static_argnames="num_cells")
def _cell_error(key, sets, y, x, alpha, num_cells, n, rank):
    cells = _geometry.cells(key, _standardized(x), jnp.ones(len(x)), num_cells)
    rates, counts = rates_of(_sets.is_covered(sets, y), cells, num_cells)
    errors = jnp.where(counts > 0, rates - (1 - alpha), 0) ** 2
    error = jnp.sum(counts / len(x) * errors)
    noise = jnp.sum(counts > 0) / len(x)
    if rank is None:
        return error, noise * alpha * (1 - alpha)
    # Given the calibration rows coverage is Beta(k, n + 1 - k).
    share, noise = quotient(rank, n + 1), (noise * (n + 1) + 1) / (n + 2)
    return error, noise * share * (1 - share) + (share - (1 - alpha)) ** 2


@_tree.jit
def _standardized(x):
    """Returns columns with mean 0 and standard deviation 1, or 0 if constant."""
    largest = jnp.max(jnp.abs(x), axis=0, keepdims=True)
    x = x / jnp.where(largest > 0, largest, 1)  # no square that overflows
    scale = jnp.std(x, axis=0, keepdims=True)
    center = jnp.mean(x, axis=0, keepdims=True)
    return (x - center) / jnp.where(scale > 0, scale, 1)


@_checks.by_labels
def worst_slab_coverage(
    key: Array,
    sets: Set | ArrayLike,
    y: ArrayLike,
    x: ArrayLike,
    *,
    share: float = 0.1,
    num_directions: int = 500,
    directions: ArrayLike | None = None,
    holdout: bool = True,
) -> Array:
    """Returns the coverage in the worst slab of inputs, on rows it was not found on.

    A slab is {x : a <= v'x <= b} with at least a `share` of the rows. A random half of
    the rows finds the slab of least coverage among random directions v; the other half
    measures its coverage. Measured on the rows that found it, coverage would be too
    low. It is that of the slab found: on average above that of the truly worst one.

    Args:
      key: Random key of the halves and the directions.
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      x: Inputs, shape (m, p) or (m,); columns are put on one scale.
      share: Least share of rows in a slab, in (0, 1].
      num_directions: Number of directions.
      directions: Directions to search, shape (v, p), in place of random ones; x is then
        taken as it is, not put on one scale.
      holdout: Whether other rows measure than those that find. False is as in older
        work.

    Returns:
      Coverage in the slab, shape (); NaN if no row of the second half is in it.

    Raises:
      ValueError: as `coverage`, if a concrete input is NaN, `share` is outside (0, 1],
        `num_directions` is not a positive int, or directions do not fit x.

    Cost:
      O(m log m) time for each direction, 32 of them at a time.

    References:
      Cauchois, Gupta, Duchi, Knowing What You Know: Valid and Validated Confidence Sets
      in Multiclass and Multilabel Prediction, JMLR, 2021.

    See also:
      metrics.conditional_coverage_error, metrics.group_coverage

    Example:
      >>> from jaxcp.sets import Interval
      >>> x = jnp.linspace(0.0, 1.0, 200)
      >>> never_right_of_half = Interval(jnp.zeros(200), jnp.where(x < 0.5, 9.0, -1.0))
      >>> worst_slab_coverage(jax.random.key(0), never_right_of_half, x, x).item()
      0.0
    """
    sets, y, x = _checked(sets, y, x)
    _checks.check_key(key)
    _checks.check_count("num_directions", num_directions, 1)
    _checks.check_values(lambda s: (s > 0) & (s <= 1), "share in (0, 1]", share)
    num_found = len(x) // 2 if holdout else len(x)
    if num_found == 0:
        return jnp.full((), jnp.nan)
    if directions is not None:
        directions = _arrays.as_array("directions", directions).astype(x.dtype)
        shape = directions.shape[:1] + x.shape[1:]
        _checks.check_shape("directions", shape, directions.shape)
    shortest = math.ceil(Fraction(str(share)) * num_found)
    return _worst_slab(key, sets, y, x, directions, num_directions, shortest, holdout)


@_tree.jit(static_argnames=("num_directions", "holdout"))
def _worst_slab(key, sets, y, x, directions, num_directions, shortest, holdout):
    key_order, key_directions = jax.random.split(key)
    if directions is None:
        x = _standardized(x)
        shape = num_directions, x.shape[1]
        directions = jax.random.normal(key_directions, shape, x.dtype)
        directions /= jax.vmap(_geometry.norm)(directions)[:, None]
    hits = _sets.is_covered(sets, y)
    order, half = jax.random.permutation(key_order, len(x)), len(x) // 2
    found, told = (order[:half], order[half:]) if holdout else (order, order)

    def search(direction):
        along = jnp.sum(x * direction[None], axis=1)
        places = jnp.argsort(along[found])
        ordered = along[found][places]
        mean, first, last = _worst_run(hits[found][places], ordered, shortest)
        inside = (along[told] >= ordered[first]) & (along[told] <= ordered[last])
        return mean, jnp.sum(jnp.where(inside, hits[told], 0)) / jnp.sum(inside)

    means, rates = _batching.map_evenly(search, directions, at_a_time=32)
    return rates[jnp.argmin(means)] + 0 * jnp.sum(hits)  # NaN if any is unknown


def _worst_run(hits, places, shortest):
    """Returns mean, first and last row of the worst run of at least `shortest` rows.

    Rows at one place are in a run together. A run has a mean below some rate if the sum
    of (rate - hit) over it is positive: the run of the largest sum is found by running
    minima, and its mean is the next rate, until nothing is gained (Dinkelbach).
    """
    n, edge = len(hits), jnp.diff(places) > 0
    starts, ends = jnp.append(True, edge), jnp.append(edge, True)
    sums = jnp.append(0, jnp.cumsum(hits))
    none = jnp.full(n, jnp.inf, sums.dtype)  # no run starts before the first row

    def worst_below(rate):
        gain = rate * jnp.arange(n + 1) - sums
        before = jnp.where(starts, gain[:-1], jnp.inf)
        least = jnp.append(none, lax.cummin(before))
        least = lax.dynamic_slice_in_dim(least, n + 1 - shortest, n)  # of each last row
        last = jnp.argmax(jnp.where(ends, gain[1:] - least, -jnp.inf))
        allowed = jnp.arange(n) <= last + 1 - shortest
        first = jnp.argmin(jnp.where(allowed, before, jnp.inf))
        return (sums[last + 1] - sums[first]) / (last + 1 - first), first, last

    def step(carry):
        _, best = carry
        new = worst_below(best[0])
        better = new[0] < best[0]
        return better, jax.tree.map(lambda a, b: jnp.where(better, a, b), new, best)

    whole = sums[-1] / n, jnp.zeros((), int), jnp.full((), n - 1)
    return lax.while_loop(lambda carry: carry[0], step, (jnp.array(True), whole))[1]
