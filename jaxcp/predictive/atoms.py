"""Distributions given by atoms: their quantiles, draws, and the CRPS.

One sort of integer keys and prefix sums give the CRPS at many targets. With sorted
atoms s about a center, their prefix sums P and j = #{s < z} it is

  (z (2 j - n) - 2 P_j + P_n) / n - sum_i ((2 i - 1 - n) / n) s_i / n,

the mean distance from the target less half the mean distance between two atoms.
"""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array, as_arrays
from jaxcp._numbers import as_float, at_least_single, quotient, unless_nan
from jaxcp._tree import jit, pytree
from jaxcp.pvalues.conformal import p_values_among
from jaxcp.quantiles._keys import from_keys, num_below, to_keys
from jaxcp.quantiles.levels import Alpha, alpha_as_float, as_alpha, ranks
from jaxcp.quantiles.thresholds import threshold_at
from jaxcp.sets import Batch
from jaxcp.typing import ArrayLike


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
      >>> atoms.cdf(3.0, u=0.5).item()
      0.625
      >>> atoms.quantile(0.75, side="upper").item()
      4.0
    """

    values: Array
    weights: Array | None = None
    test_weight: Array | None = None

    @_checks.by_labels
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

    def quantile(self, level: ArrayLike, *, side: Literal["upper", "lower"]) -> Array:
        """Returns quantiles of the distribution.

        C_(k) with k = ceil(l (n + 1)) for "upper" and floor(l (n + 1)) for "lower", of
        rank 0 at -inf and n + 1 at +inf.

        Args:
          level: Levels l in (0, 1), shape () or any. Read exactly, as alpha is.
          side: "upper" or "lower".

        Returns:
          Quantiles, the shape of the batch and then of `level`, in units of the target.

        Raises:
          ValueError: if a level with a known value is outside (0, 1), or `side` is none
            of these.

        Guarantee:
          P(Y <= upper) >= l and P(Y < lower) <= l.

        Cost:
          O(n) time for each level and example, and no sort for few levels.

        Example:
          >>> Atoms(jnp.array([1.0, 2.0, 4.0])).quantile([0.25, 0.4], side="upper")
          Array([1., 2.], dtype=float32)
        """
        _checks.check_one_of("side", side, ["upper", "lower"])
        atoms, level = self._known(exact=True), as_alpha(level, "level", "")
        counts = atoms.values.shape[-1]
        rank = ranks_of(counts, level, side, atoms.weights is not None)
        return _quantile(atoms, rank, sign=1 if side == "upper" else -1)

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

    def draw(self, key: Array, num_draws: int) -> Array:
        """Returns atoms drawn by their weights, with replacement.

        Args:
          key: Random key.
          num_draws: Number of draws l for each example.

        Returns:
          Draws, the shape of the batch and then (l,), in units of the target; NaN where
          no atom has weight.

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

    def _known(self, exact=False):
        """Returns the atoms as jax arrays, after checks; `exact` with a test weight."""
        atoms = jax.tree.map(as_float, as_arrays(atoms=self))
        weights, own = atoms.weights, atoms.test_weight
        if weights is None:
            _checks.check_not_nan("values", atoms.values)
        for given in jax.tree.leaves((weights, own)):
            _checks.check_weights("weights", given)
        if exact:
            _checks.check_test_weights("test_weight", own, weights)
        return atoms

    def _targets(self, y):
        """Returns targets, after checks."""
        y, batch = as_array("y", y), jnp.shape(self.values)[:-1]
        _checks.check_not_nan("y", y)
        if y.ndim:
            _checks.check_shape("leading axes of y", batch, y.shape[: len(batch)])
        return y


def atoms_of(
    values: Array, mass: Array | None, test_weights: Array | None = None
) -> Atoms:
    """Returns a batch (m, ..., n) whose rows have one mass, (n,) or (m, n); None: ones.

    And a weight of each test point, (m,), or None.
    """
    if mass is None:
        return Atoms(values)
    if test_weights is not None:
        own = as_float(test_weights).reshape(-1, *(1,) * (values.ndim - 2))
        test_weights = jnp.broadcast_to(own, values.shape[:-1])
    mass = as_float(mass)
    mass = mass.reshape(*mass.shape[:-1], *(1,) * (values.ndim - 2), -1)
    return Atoms(values, jnp.broadcast_to(mass, values.shape), test_weights)


def ranks_of(counts: Array | int, level: Alpha, side: str, weighted: bool) -> Array:
    """Returns ranks of thresholds at levels, of scores or for "lower" minus scores.

    Alphas as floats where scores are weighted.
    """
    alpha = 1 - level if side == "upper" else level
    return alpha_as_float(alpha) if weighted else ranks(counts, alpha)


def _each(function, atoms, *rows):
    """Returns `function(atoms, *rows)` of each example."""
    for _ in atoms.values.shape[:-1]:
        function = jax.vmap(function)
    return function(atoms, *rows)


def _at_targets(function, atoms, y, *others):
    """Returns the same of each example at targets of shape (g,)."""
    batch = atoms.values.shape[:-1]
    shape = y.shape or batch
    flat = *batch, math.prod(shape[len(batch) :])
    rows = (jnp.broadcast_to(v, shape).reshape(flat) for v in (y, *others))
    return _each(function, atoms, *rows).reshape(shape)


@jit
def _cdf(atoms, y, u):
    def one(of, y, u):
        return p_values_among(-of.values, -y, u, of.weights, of.test_weight)

    return _at_targets(one, atoms, y, u)


@jit(static_argnames="sign")
def _quantile(atoms, rank, sign):
    # A lower quantile is minus the upper one of minus the atoms.
    def one(of):
        known = None, of.weights, of.test_weight
        return sign * threshold_at(sign * of.values, rank, *known)

    return _each(one, atoms)


@jit(static_argnames="fair")
def _crps(atoms, y, fair):
    one = lambda of, y: crps_among(of.values, y, of.weights, fair=fair)  # noqa: E731
    return _at_targets(one, atoms, y)


@jit(static_argnames="num_draws")
def _draw(atoms, key, num_draws):
    def one(of, key):
        found = jax.random.choice(key, of.values, (num_draws,), p=of.weights)
        known = True if of.weights is None else jnp.sum(of.weights) > 0
        return jnp.where(known, found, jnp.nan)

    batch = atoms.values.shape[:-1]
    keys = jax.random.split(key, math.prod(batch)).reshape(*batch, *key.shape)
    return _each(one, atoms, keys)


def crps_among(
    values: Array, y: Array, weights: Array | None = None, *, fair: bool = False
) -> Array:
    """Returns the CRPS of atoms (n,) at targets (m,), by one sort; NaN without mass."""
    values, y = as_float(values), as_float(y)
    dtype, n = jnp.promote_types(values.dtype, y.dtype), values.size
    if n == 0:
        return jnp.full(y.shape, jnp.nan, dtype)
    values, y = at_least_single(values.astype(dtype)), at_least_single(y.astype(dtype))
    if weights is not None:
        values = jnp.where(weights > 0, values, 0)
    largest = lax.stop_gradient(jnp.max(values))  # NaN if one is
    if weights is None:
        atoms, shares = _in_order(values), None
    elif weights.dtype == bool:  # what does not count comes last
        atoms, count = _in_order(jnp.where(weights, values, largest)), jnp.sum(weights)
        counts = (jnp.arange(n) < count).astype(values.dtype)
        shares = quotient(counts, count)
    else:
        pairs = values, weights.astype(values.dtype)
        atoms, weights = lax.sort(pairs, num_keys=1)
        shares = quotient(weights, jnp.sum(weights))
    return unless_nan(largest, _of_sorted(fair, atoms, y, shares)).astype(dtype)


@jax.custom_jvp
def _in_order(values):
    # Integers take a fifth of the time of floats, and one operand half that of two.
    return from_keys(lax.sort(to_keys(values)), values.dtype)


_in_order.defjvp(lambda *of: jax.jvp(lax.sort, *of))


def _of_sorted(fair, atoms, y, shares):
    """Returns the CRPS from sorted atoms (n,) and their masses, at targets (m,)."""
    n, finite, weighted = atoms.size, jnp.isfinite(atoms), shares is not None
    if not weighted:  # (2 i - n) / n, for n^2 leaves the range of integers
        below = (jnp.arange(n + 1) / n).astype(atoms.dtype)
        shares = jnp.full(n, 1 / n, atoms.dtype)
    center = lax.stop_gradient(jnp.sum(shares * jnp.where(finite, atoms, 0)))
    atoms, z = jnp.where(finite, atoms - center, 0), y - center
    moments = shares * atoms
    if not weighted:
        sums = jnp.append(0, jnp.cumsum(moments))
    else:  # side by side, in one pass
        sums = jnp.cumsum(jnp.stack([moments, shares]), axis=1)
        sums, below = jnp.pad(sums, ((0, 0), (1, 0)))
    place = num_below(to_keys(atoms), to_keys(z))  # integers take less time
    near = z * (2 * below[place] - 1) + sums[-1] - 2 * sums[place]
    spread = jnp.sum(moments * (below[:-1] + below[1:] - 1))
    if fair:
        spread = spread / (1 - jnp.sum(shares**2))
    return jnp.where(finite[0] & finite[-1], near - spread, jnp.inf)
