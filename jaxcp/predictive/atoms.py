"""Distributions given by atoms: their quantiles, their mean, draws, and the CRPS.

One sort of integer keys and prefix sums give the CRPS at many targets. With sorted
atoms s about a center, their prefix sums P and j = #{s < z} it is

  (z (2 j - n) - 2 P_j + P_n) / n - sum_i ((2 i - 1 - n) / n) s_i / n,

the mean distance from the target less half the mean distance between two atoms.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array, as_arrays
from jaxcp._numbers import as_float, at_least_single, mean, quotient, unless_nan
from jaxcp._tree import jit, pytree
from jaxcp.pvalues.conformal import p_value_of, p_values_among
from jaxcp.quantiles._keys import from_keys, to_keys
from jaxcp.quantiles.levels import alpha_as_float, as_alpha, ranks
from jaxcp.quantiles.thresholds import threshold_at
from jaxcp.sets import Batch
from jaxcp.typing import ArrayLike

Side = Literal["upper", "lower", "between"]
_SIGNS = {"upper": 1, "lower": -1}


@pytree
class Atoms(Batch):
    """A predictive distribution with an atom for each of n values, of one example.

    The mass of each atom is its weight; that of the test point, 1 among n + 1 without
    weights, lies at both ends: C_1, ..., C_n and a target are exchangeable, as draws of
    the right model and targets are. Leading axes are batches: `len(atoms)`, `atoms[i]`.

    Args:
      values: Atoms C_i, shape (n,), in units of the target; may be infinite.
      weights: Weights >= 0 of the atoms, shape (n,), or None for ones.
      test_weight: Weight of the target, shape (), with weights; None for 1.

    Guarantee:
      Q(Y) of `cdf` is uniform on [0, 1] with a uniform u, and the quantiles bound Y.

    Assumption:
      The atoms and Y are exchangeable, or the source of the atoms says so: atoms of
      `FullConformal.predictive` do. Those of `CrossCalibration.predictive`, and draws
      of a model that errs, have no guarantee.

    Cost:
      Nothing by itself; a batch of m examples holds m n numbers.

    References:
      Vovk, Shen, Manokhin, Xie, Nonparametric Predictive Distributions Based on
      Conformal Prediction, Machine Learning, 2019.

    See also:
      FullConformal, CrossCalibration, metrics.crps

    Example:
      >>> atoms = Atoms(jnp.array([1.0, 2.0, 4.0]))
      >>> atoms.cdf(3.0, u=0.5).item(), atoms.mean().item()
      (0.625, 2.3333332538604736)
      >>> atoms.quantile(0.75, side="upper").item()
      4.0
    """

    values: Array
    weights: Array | None = None
    test_weight: Array | None = None

    def cdf(self, y: ArrayLike, *, u: ArrayLike) -> Array:
        """Returns the predictive distribution function at targets.

        Q(y, u) = (#{C_i < y} + u (1 + #{C_i = y})) / (n + 1); with weights the counts
        are masses, and the 1 is the weight of the target.

        Args:
          y: Targets, shape (), or the axes of the batch and then any others.
          u: Uniform numbers in [0, 1], shape () or that of `y`: 0 and 1 give bounds.

        Returns:
          Q(y, u) in [0, 1], the shape of the batch and `y`; u where nothing is known.

        Raises:
          ValueError: if a concrete `y` is NaN or `u` is outside [0, 1], or shapes do
            not fit.

        Guarantee:
          Q(Y, U) is uniform on [0, 1], ties or not.

        Cost:
          One sort of n atoms for each example, and O(log n) for each target.

        Example:
          >>> Atoms(jnp.array([1.0, 2.0, 4.0])).cdf(jnp.array([0.0, 2.0]), u=1.0)
          Array([0.25, 0.75], dtype=float32)
        """
        atoms, y, u = self._known(exact=True), self._targets(y), as_array("u", u)
        _checks.check_uniforms("u", u)
        return _cdf(atoms, y, u)

    def quantile(self, level: ArrayLike, *, side: Side) -> Array:
        """Returns quantiles of the distribution.

        C_(k) with k = ceil(l (n + 1)) for "upper" and floor(l (n + 1)) for "lower", of
        rank 0 at -inf and n + 1 at +inf; "between" is linear through (C_(i), i / (n +
        1)).

        Args:
          level: Levels l in (0, 1), shape () or any. Read exactly, as alpha is.
          side: "upper", "lower", or without weights "between".

        Returns:
          Quantiles, the shape of the batch and then of `level`, in units of the target.

        Raises:
          ValueError: if a level with a known value is outside (0, 1), `side` is none of
            these, or "between" is asked for with weights.

        Guarantee:
          P(Y <= upper) >= l and P(Y < lower) <= l; none for "between".

        Cost:
          O(n) time for each level and example, and no sort for few levels.

        Example:
          >>> Atoms(jnp.array([1.0, 2.0, 4.0])).quantile([0.25, 0.4], side="upper")
          Array([1., 2.], dtype=float32)
        """
        _checks.check_one_of("side", side, [*_SIGNS, "between"])
        atoms, level = self._known(exact=True), as_alpha(level, "level", "")
        if side != "between":
            return _select(atoms, self._ranks(level, side), sign=_SIGNS[side])
        if self.weights is not None:
            raise ValueError("expected side 'upper' or 'lower' with weights")
        share = alpha_as_float(level * (atoms.values.shape[-1] + 1) % 1)
        return _between(atoms, *(self._ranks(level, v) for v in _SIGNS), share)

    def crps(self, y: ArrayLike, *, fair: bool = False) -> Array:
        """Returns the continuous ranked probability score at targets.

        E|C - y| - E|C - C'| / 2 with C and C' among the atoms by their weights; the
        mass of the test point is left out, for it would make all scores infinite.

        Args:
          y: Targets, shape (), or the axes of the batch and then any others.
          fair: Whether C and C' are different atoms: the second term times n / (n - 1),
            which is unbiased for the law that the atoms are drawn from.

        Returns:
          Scores, the shape of the batch and `y`, in units of the target; less is
          better. NaN without atoms, and with `fair` for a single one; +inf with an
          infinite atom.

        Raises:
          ValueError: if a concrete `y` is NaN, or shapes do not fit.

        Guarantee:
          Proper: least, on average, for the law of the target.

        Assumption:
          With `fair` that the atoms are independent draws.

        Cost:
          One sort of n atoms for each example, and O(log n) for each target.

        References:
          Gneiting, Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation,
          JASA, 2007.

        Example:
          >>> Atoms(jnp.array([1.0, 3.0])).crps(jnp.array([2.0, 3.0]))
          Array([0.5, 0.5], dtype=float32)
        """
        return _crps(self._known(), self._targets(y), fair=bool(fair))

    def mean(self) -> Array:
        """Returns the mean of the atoms by their weights, the shape of the batch."""
        return _mean(self._known())

    def draw(self, key: Array, num_draws: int) -> Array:
        """Returns atoms drawn by their weights, with replacement.

        Args:
          key: Random key.
          num_draws: Number of draws l for each example.

        Returns:
          Draws, the shape of the batch and then (l,), in units of the target.

        Raises:
          ValueError: if `key` is no key, `num_draws` is not positive, or there are no
            atoms.

        Guarantee:
          None: the mass of the test point is left out.

        Example:
          >>> Atoms(jnp.array([1.0, 2.0])).draw(jax.random.key(0), 3).shape
          (3,)
        """
        _checks.check_key(key)
        _checks.check_count("num_draws", num_draws, 1)
        return _draw(self._known(), key, num_draws=num_draws)

    def _batch(self):
        return jnp.shape(self.values)[:-1]

    def _known(self, exact=False):
        """Returns the atoms as jax arrays, after checks; `exact` with a test weight."""
        atoms = as_arrays(atoms=self)
        for weights in jax.tree.leaves((atoms.weights, atoms.test_weight)):
            _checks.check_weights("weights", weights)
        if exact:
            own = atoms.test_weight, atoms.weights
            _checks.check_test_weights("test_weight", *own)
        return atoms

    def _ranks(self, level, side):
        """Returns ranks, with weights alpha, of atoms times the sign of the side."""
        alpha = 1 - level if side == "upper" else level
        if self.weights is not None:
            return alpha_as_float(alpha)
        return ranks(jnp.shape(self.values)[-1], alpha)

    def _targets(self, y):
        """Returns targets, after checks."""
        y, batch = as_array("y", y), self._batch()
        _checks.check_not_nan("y", y)
        if y.ndim:
            _checks.check_shape("leading axes of y", batch, y.shape[: len(batch)])
        return y


def atoms_of(
    values: Array, mass: Array | None, test_weights: Array | None = None
) -> Atoms:
    """Returns a batch (m, ..., n) whose rows have one mass (n,), or None for ones.

    And a weight of each test point, (m,), or None.
    """
    if mass is None:
        return Atoms(values)
    if test_weights is not None:
        batch = range(1, values.ndim - 1)
        test_weights = jnp.expand_dims(as_float(test_weights), batch)
        test_weights = jnp.broadcast_to(test_weights, values.shape[:-1])
    return Atoms(values, jnp.broadcast_to(as_float(mass), values.shape), test_weights)


def _over_batch(function, atoms, *rows):
    """Returns `function(values, weights, test_weight, *rows)` of each example."""
    values, batch = as_float(atoms.values), atoms._batch()
    if atoms.weights is not None:
        _checks.check_shape("weights", values.shape, jnp.shape(atoms.weights))
    own = 1.0 if atoms.test_weight is None else atoms.test_weight
    for _ in batch:
        function = jax.vmap(function)
    return function(values, atoms.weights, jnp.broadcast_to(own, batch), *rows)


def _at_targets(function, atoms, y, *others):
    """Returns the same of each example at targets of shape (g,)."""
    batch = atoms._batch()
    shape = y.shape or batch
    flat = *batch, math.prod(shape[len(batch) :])
    rows = (jnp.broadcast_to(v, shape).reshape(flat) for v in (y, *others))
    return _over_batch(function, atoms, *rows).reshape(shape)


@jit
def _cdf(atoms, y, u):
    def one(values, weights, own, y, u):
        if y.size == 1:
            return p_value_of(-values, -y[0], u[0], weights, own)
        return p_values_among(-values, -y, u, weights, own)  # Q(y, u)

    return _at_targets(one, atoms, y, u)


@jit(static_argnames="sign")
def _select(atoms, rank, sign):
    # A lower quantile is minus the upper one of minus the atoms.
    def one(values, weights, own):
        return sign * threshold_at(sign * values, rank, None, weights, own)

    return _over_batch(one, atoms)


@jit
def _between(atoms, upper, lower, share):
    upper, lower = _select(atoms, upper, sign=1), _select(atoms, lower, sign=-1)
    return between(lower, upper, share)


def between(lower: Array, upper: Array, share: Array) -> Array:
    """Returns what lies between two quantiles, linearly; an infinite one for good."""
    share = jnp.broadcast_to(share, lower.shape).astype(lower.dtype)
    known = jnp.isfinite(lower) & jnp.isfinite(upper)
    step = jnp.where(known, upper - lower, 0)
    return jnp.where(
        jnp.isinf(lower), lower, jnp.where(known, lower + share * step, upper)
    )


@jit(static_argnames="fair")
def _crps(atoms, y, fair):
    def one(values, weights, _, y):
        return crps_among(values, y, weights, fair=fair)

    return _at_targets(one, atoms, y)


@jit
def _mean(atoms):
    def one(values, weights, _):
        if weights is None:
            return mean(values)
        shares = weights / jnp.sum(weights)
        return jnp.sum(shares * jnp.where(weights > 0, values, 0))

    return _over_batch(one, atoms)


@jit(static_argnames="num_draws")
def _draw(atoms, key, num_draws):
    def one(values, weights, _, key):
        return jax.random.choice(key, values, (num_draws,), p=weights)

    batch = atoms._batch()
    keys = jax.random.split(key, math.prod(batch)).reshape(*batch, *key.shape)
    return _over_batch(one, atoms, keys)


def crps_among(
    values: Array, y: Array, weights: Array | None = None, *, fair: bool = False
) -> Array:
    """Returns the CRPS of atoms (n,) at targets (m,), by one sort; NaN without mass."""
    values, y = as_float(values), as_float(y)
    dtype = jnp.promote_types(values.dtype, y.dtype)
    if values.size == 0:
        return jnp.full(y.shape, jnp.nan, dtype)
    values, y = at_least_single(values.astype(dtype)), at_least_single(y.astype(dtype))
    if weights is not None:
        values = jnp.where(weights > 0, values, 0)
    if weights is None or weights.dtype == bool:
        found = _of_atoms(fair, values, y, weights)
    else:
        found = _in_order(fair, values, y, weights.astype(values.dtype))
    return unless_nan(values, found).astype(dtype)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _of_atoms(fair, values, y, mask):
    # One operand: half the time of a sort of pairs. What does not count comes last.
    keys, n = to_keys(values), values.size
    if mask is None:
        return _of_sorted(fair, from_keys(lax.sort(keys), values.dtype), y, None)
    keys = lax.sort(jnp.where(mask, keys, jnp.iinfo(keys.dtype).max))
    atoms, count = from_keys(keys, values.dtype), jnp.sum(mask)
    last = jnp.where(count > 0, atoms[jnp.maximum(count, 1) - 1], 0)
    first = jnp.arange(n) < count
    weights = first.astype(values.dtype)
    return _of_sorted(fair, jnp.where(first, atoms, last), y, weights)


@_of_atoms.defjvp
def _of_atoms_jvp(fair, primals, tangents):
    mask = primals[2]
    weights = None if mask is None else mask.astype(primals[0].dtype)
    of = lambda values, y: _in_order(fair, values, y, weights)  # noqa: E731
    return jax.jvp(of, primals[:2], tangents[:2])


def _in_order(fair, values, y, weights=None):
    """Returns the same by a sort of places, through which tangents pass."""
    keys, places = to_keys(lax.stop_gradient(values)), jnp.arange(values.size)
    _, places = lax.sort((keys, places), num_keys=1)
    weights = None if weights is None else weights[places]
    return _of_sorted(fair, values[places], y, weights)


def _of_sorted(fair, atoms, y, weights):
    """Returns the CRPS from sorted atoms (n,) and their weights, at targets (m,)."""
    n, finite = atoms.size, jnp.isfinite(atoms)
    if weights is None:  # (2 i - n) / n, for n^2 leaves the range of integers
        below = (jnp.arange(n + 1) / n).astype(atoms.dtype)
        shares = jnp.full(n, 1 / n, atoms.dtype)
    else:
        shares = quotient(weights, jnp.sum(weights))
        below = jnp.append(0, jnp.cumsum(shares))
    middle = jnp.minimum(jnp.searchsorted(below[1:], 0.5), n - 1)
    center = lax.stop_gradient(jnp.where(finite, atoms, 0)[middle])
    atoms, z = jnp.where(finite, atoms - center, 0), y - center
    moments = shares * atoms
    sums = jnp.append(0, jnp.cumsum(moments))
    place = jnp.searchsorted(atoms, z)
    near = z * (2 * below[place] - 1) + sums[-1] - 2 * sums[place]
    spread = jnp.sum(moments * (below[:-1] + below[1:] - 1))
    if fair:
        spread = spread / (1 - jnp.sum(shares**2))
    return jnp.where(jnp.all(finite), near - spread, jnp.inf)
