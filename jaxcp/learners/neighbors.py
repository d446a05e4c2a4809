"""Models that keep their training rows: kernel ridge and nearest neighbors.

Rows at the same distance share what is left of the k. Let a row have R, the distance
of the k-th nearest of the others. A new row nearer than R is one of its k nearest,
beside the k - 1 nearest of the others; a new row at the distance R shares with those
that are there; any other changes nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._batching import map_blocks
from jaxcp._geometry import UNROLLED, square_distances
from jaxcp._numbers import as_float, at_least_single
from jaxcp._tree import pytree, static
from jaxcp.learners import _algebra, linear
from jaxcp.learners._algebra import columns, dot, matrix
from jaxcp.learners.general import Shared
from jaxcp.learners.linear import Augmented, Smoothed
from jaxcp.quantiles.selection import kth_smallest, weighted_select
from jaxcp.typing import Number

_FINE = 0.01  # share of K^-1 that rounding may move: less than 1 % of a threshold


@pytree
class Neighborhoods:
    """Rows with the means of their nearest others, and of these and a new row.

    The new row, of target f, makes a mean of level + share * f: the first level and
    share where it is nearer than the radius, the second where it is as near.

    Args:
      x: Inputs, shape (n, p).
      y: Targets around `center`, shape (n, d).
      center: Mean of the targets, shape (d,).
      counts: One for rows that count, zero for others, shape (n,).
      radius: Distance of the k-th nearest other row, squared, shape (n,).
      levels: Nearer, as near, and farther: three arrays of shape (n, d).
      shares: Nearer and as near: two arrays of shape (n,).
      like: Targets of no rows, shape (0, ...).
    """

    x: Array
    y: Array
    center: Array
    counts: Array
    radius: Array
    levels: tuple[Array, Array, Array]
    shares: tuple[Array, Array]
    like: Array


def neighborhoods(x: Array, y: Array, mask: Array | None, k: int) -> Neighborhoods:
    """Returns the neighborhoods of n rows, each among the others."""
    counts = jnp.ones(len(x)) if mask is None else mask
    like = y[:0]
    x, y, counts = _algebra.in_single(x, columns(y), counts)
    y = jnp.where(counts[:, None] > 0, y, 0)
    center = _algebra.centers(y, counts, True)
    y, rows = y - center[None], jnp.arange(len(x))

    def at(distances, row):
        others = jnp.where(rows == row, 0, counts)
        return _one_more(distances, y, others, k)

    def block(x_rows, index):
        return jax.vmap(at)(same_distances(x_rows, x), index)

    radius, levels, shares = map_blocks(block, x, rows, width=len(x))
    return Neighborhoods(x, y, center, counts, radius, levels, shares, like)


def augmented(of: Neighborhoods, x_new: Array, k: int) -> Augmented:
    """Returns the means of rows and test points, each a nearest other of each."""
    x_new = at_least_single(x_new)
    distances = same_distances(x_new, of.x)
    preds = jax.vmap(lambda d: _mean(d, of.y, of.counts, k))(distances)
    inside, on = distances < of.radius[None], distances == of.radius[None]
    nearer, as_near = of.shares
    shares = jnp.where(inside, nearer[None], jnp.where(on, as_near[None], 0))
    near, edge, far = (level[None] for level in of.levels)
    inside, on = inside[..., None], on[..., None]
    levels = jnp.where(inside, near, jnp.where(on, edge, far))
    residuals = of.y[None] - levels - shares[..., None] * preds[:, None]
    # The mean of no neighbors would be an answer.
    unknown = jnp.any(jnp.isnan(x_new), axis=1)[:, None]
    preds = jnp.where(unknown, jnp.nan, preds + of.center[None])
    m, n, shape = *distances.shape, of.like.shape[1:]
    residuals, preds = residuals.reshape(m, n, *shape), preds.reshape(m, *shape)
    ones = jnp.ones(m, preds.dtype)
    return Augmented(preds, ones, residuals, shares, jnp.ones((), preds.dtype))


def _within(distances, y, weights, k):
    """Returns the radius of k rows, and counts (2,) and sums (2, d) in and on it."""
    return _at_radius(weighted_select(distances, weights, k), distances, y, weights)


def _at_radius(radius, distances, y, weights):
    """Returns a radius, and counts (2,) and sums (2, d) in and on it."""
    parts = jnp.stack([distances < radius, distances == radius])
    parts = jnp.where(parts, weights[None], 0)
    return radius, jnp.sum(parts, axis=1), dot(parts, y)


def _mean_of(k, radius, counts, sums):
    """Returns the mean of k rows: all inside of the radius and a share of those on it.

    With fewer than k rows the radius is infinite and the mean is of all.
    """
    share = (k - counts[0]) / jnp.where(counts[1] > 0, counts[1], 1)
    share = jnp.where(jnp.isfinite(radius), share, 1)
    total = counts[0] + share * counts[1]
    return (sums[0] + share * sums[1]) / jnp.where(total > 0, total, 1)


def same_distances(x: Array, z: Array) -> Array:
    """Returns the squared distances of rows, (m, n), equal ones equal in any program.

    The sum over the columns is written out, in one order.
    """
    x, z = lax.stop_gradient((x, z))  # which only decide who is near
    start = jnp.zeros((len(x), len(z)), jnp.result_type(x, z))

    def add(total, column):
        difference = column[0][:, None] - column[1][None]
        # The maximum keeps compilers from fusing product and sum.
        return total + jnp.maximum(difference * difference, 0), None

    return lax.scan(add, start, (x.T, z.T), unroll=UNROLLED)[0]


def _mean(distances, y, counts, k):
    """Returns the mean of the k nearest of the rows that count."""
    radius = kth_smallest(distances, k, where=counts > 0)
    return _mean_of(k, *_at_radius(radius, distances, y, counts))


def _one_more(distances, y, others, k):
    """Returns radius, levels and shares of a row, as `Neighborhoods` has them."""
    some = kth_smallest(distances, jnp.array([k - 1, k]), where=others > 0)
    fewer = _at_radius(some[0], distances, y, others)
    count = jnp.minimum(jnp.sum(others), k - 1)
    nearer = 1 / (count + 1)
    near = _mean_of(k - 1, *fewer) * (count * nearer)
    radius, counts, sums = _at_radius(some[1], distances, y, others)
    far = _mean_of(k, radius, counts, sums)
    among = counts + jnp.array([0, 1], counts.dtype)
    edge = _mean_of(k, radius, among, sums)
    bounded = (k - counts[0]) / (among[1] * k)
    as_near = jnp.where(jnp.isfinite(radius), bounded, 1 / jnp.sum(among))
    return radius, (near, edge, far), (nearer, as_near)


@pytree
class KernelFit:
    """Training rows with their dual coefficients. Made by `KernelRidge`."""

    x: Shared
    coef: Array


@pytree
class KernelRidge:
    """Kernel ridge regression with k(x, z) = exp(-|(x - z) / lengthscale|^2 / 2).

    Coefficients c = (K + penalty I)^-1 y: the mean of a Gaussian process with noise
    variance `penalty`. `x` has shape (n, p), `y` (n,) or (n, d), around zero: there is
    no intercept. A row of weight w has noise variance penalty / w.

    Offers `leave_one_out`, all n refits from one inverse, and `augmented`, the fits
    with one more row. Where rounding may move the errors of these refits by 1 % they
    are NaN, and `jackknife_plus` says so: K + penalty I then has eigenvalues too small
    for the digits of x, in single precision below about 1e-3 for 500 rows.

    Args:
      penalty: Noise variance, >= 0, shape (); zero interpolates rows that differ.
      lengthscale: Distance over which the kernel falls, > 0, shape () or (p,).

    Guarantee:
      None of its own; the verb that takes the learner has one.

    Assumption:
      None for coverage; small sets need targets around zero that are smooth over
      `lengthscale`.

    Cost:
      O(n^2 p + n^3) time and O(n^2) memory for a fit; all n refits without one row are
      of the same order. O(n p) time for a prediction, in blocks of inputs.

    References:
      Rasmussen, Williams, Gaussian Processes for Machine Learning, MIT Press, 2006,
      5.4.2.

    See also:
      learners.Ridge, learners.NearestNeighbors, jackknife_plus

    Example:
      >>> x = jnp.arange(3.0)[:, None]
      >>> learner = KernelRidge(1e-6, 1.0)
      >>> params = learner.fit(jax.random.key(0), x, jnp.sin(x[:, 0]), jnp.ones(3))
      >>> round(learner.predict(params, x[1:2]).item(), 2)
      0.84
    """

    penalty: Number
    lengthscale: Number = 1.0
    holds_out = symmetric = True  # see typing.Learner

    def fit(self, key: Array, x: Array, y: Array, weights: Array) -> KernelFit:
        """Returns the weighted fit; the key is not used."""
        x, factor, targets, _ = self._system(x, y, weights)
        return self._fit(x, dot(factor, dot(factor.T, targets)), y)

    def predict(self, params: KernelFit, x: Array) -> Array:
        """Returns k(x, x_train) @ coef, shape (m, ...)."""
        rows, coef = params.x.value, columns(params.coef)
        x = matrix(x, rows.shape[1])
        block = lambda x: dot(self._kernel(x, rows), coef)  # noqa: E731
        values = map_blocks(block, x, width=len(rows))
        return values.reshape(-1, *params.coef.shape[1:])

    def leave_one_out(self, x: Array, y: Array) -> KernelFit:
        """Returns the n fits without one row each, stacked."""
        x, factor, targets, is_exact = self._system(x, y, jnp.ones(len(x)))
        inverse, coef = dot(factor, factor.T), dot(factor, dot(factor.T, targets))
        errors = jnp.where(is_exact, coef / jnp.diag(inverse)[:, None], jnp.nan)
        return self._fit(x, coef[None] - inverse[:, :, None] * errors[:, None], y)

    def prepare(self, x: Array, y: Array, mask: Array | None) -> Smoothed:
        """Returns the fit on the rows of the mask, ready for one more row."""
        x, y = matrix(x), as_float(y)
        rows, y, _ = _algebra.in_single(x, y, jnp.ones(len(x)))
        if mask is not None:
            rows = jnp.where(mask[:, None], rows, 0)
        gram = self._kernel(rows, rows)
        return linear.prepare_kernel(rows, y, gram, mask, self.penalty)

    def augmented(self, prepared: Smoothed, x_new: Array) -> Augmented:
        """Returns the fits with each test point as one more row."""
        rows = prepared.centers
        x_new = matrix(x_new, rows.shape[1]).astype(rows.dtype)
        kernel = self._kernel(x_new, rows)
        return linear.augmented_kernel(prepared, kernel)

    def check(self, x: Array, y: Array) -> None:
        """Raises ValueError for a negative penalty or a lengthscale not above 0."""
        matrix(x)
        _checks.check_values(lambda v: v >= 0, "penalty >= 0", self.penalty)
        _checks.check_values(lambda v: v > 0, "lengthscale > 0", self.lengthscale)

    def _system(self, x, y, weights):
        """Returns inputs, N with coefficients N N'y, targets, and whether N is exact.

        With s the square roots of the weights and W W' = (diag(s) K diag(s) + penalty
        I)^-1, N is diag(s) W.
        """
        x, y = matrix(x), columns(as_float(y))
        rows, y, weights = _algebra.in_single(x, y, weights)
        sizes, system = _algebra.weighted(self._kernel(rows, rows), weights)
        penalty = jnp.asarray(self.penalty, system.dtype)
        white, free, _ = _algebra.whiten_gram(system, penalty)
        is_exact = (_algebra.rounding(system, white) < _FINE) & ~jnp.any(free)
        return x, sizes[:, None] * white, y, is_exact

    def _fit(self, x, coef, y):
        y = as_float(y)
        shape = *coef.shape[:-1], *y.shape[1:]
        return KernelFit(Shared(x), coef.reshape(shape).astype(y.dtype))

    def _kernel(self, x, z):
        scale = jnp.broadcast_to(jnp.asarray(self.lengthscale, x.dtype), x.shape[1:])
        return jnp.exp(-0.5 * square_distances(x / scale[None], z / scale[None]))


@pytree
class NeighborsFit:
    """Training rows with their weights. Made by `NearestNeighbors`.

    Args:
      x: Training inputs, shape (n, p).
      y: Training targets, shape (n, ...).
      weights: Weight of each row, shape (n,).
      left_out: A row to leave out although it has a weight, int of shape (), or None.
    """

    x: Shared
    y: Array | Shared
    weights: Array | Shared
    left_out: Array | None = None


@pytree
class NearestNeighbors:
    """The mean target of the k nearest training rows, by Euclidean distance.

    A row of weight w counts as w rows; rows at the same distance share what is left of
    the k. `x` has shape (n, p), `y` (n,) or (n, d). With fewer than k rows: their mean.

    Offers `leave_one_out`: neighbors are looked up once, not once a refit. Under
    `full_conformal`, with k >= 2, each row is predicted by its k nearest other rows,
    the test point among them: no row is its own neighbor.

    Args:
      num_neighbors: Number of neighbors k, at least 1.

    Guarantee:
      None of its own; the verb that takes the learner has one.

    Assumption:
      None for coverage; small sets need columns of x in like units.

    Cost:
      No fit; O(n p) time for a prediction, in blocks of inputs.

    References:
      Cover, Hart, Nearest Neighbor Pattern Classification, IEEE Transactions on
      Information Theory, 1967.

    See also:
      learners.KernelRidge, jackknife_plus, full_conformal

    Example:
      >>> x, y = jnp.arange(4.0)[:, None], jnp.array([0.0, 1.0, 2.0, 9.0])
      >>> learner = NearestNeighbors(2)
      >>> params = learner.fit(jax.random.key(0), x, y, jnp.ones(4))
      >>> learner.predict(params, jnp.array([[0.4]]))
      Array([0.5], dtype=float32)
    """

    num_neighbors: int = static()
    holds_out = symmetric = True  # see typing.Learner

    def fit(self, key: Array, x: Array, y: Array, weights: Array) -> NeighborsFit:
        """Returns the training rows; the key is not used."""
        x, y = matrix(x), as_float(y)
        # Targets are not shared: a learner made of this one may fit each to its own.
        return NeighborsFit(Shared(x), y, jnp.asarray(weights, y.dtype))

    def predict(self, params: NeighborsFit, x: Array) -> Array:
        """Returns the mean target of the nearest rows, shape (m, ...)."""
        x, rows = matrix(x, params.x.value.shape[1]), params.x.value
        parts = params.y, params.weights
        y, weights = (v.value if isinstance(v, Shared) else v for v in parts)
        i, targets = params.left_out, columns(y)
        mean = jax.vmap(lambda d: self._mean(d, targets, weights, i))
        block = lambda x: mean(square_distances(x, rows))  # noqa: E731
        return map_blocks(block, x, width=len(rows)).reshape(-1, *y.shape[1:])

    def leave_one_out(self, x: Array, y: Array) -> NeighborsFit:
        """Returns the n fits without one row each, stacked."""
        x, y = matrix(x), as_float(y)
        ones = Shared(jnp.ones(len(x), y.dtype))
        return NeighborsFit(Shared(x), Shared(y), ones, jnp.arange(len(x)))

    def prepare(self, x: Array, y: Array, mask: Array | None) -> Neighborhoods:
        """Returns each row with the means of its k nearest other rows, for k >= 2."""
        if self.num_neighbors < 2:
            raise ValueError(
                f"expected num_neighbors >= 2, got {self.num_neighbors}: a test point "
                "that is the one neighbor of a row moves it as far as itself, and "
                "full conformal sets would be half lines; take more neighbors"
            )
        return neighborhoods(matrix(x), as_float(y), mask, self.num_neighbors)

    def augmented(self, prepared: Neighborhoods, x_new: Array) -> Augmented:
        """Returns rows and test points, each predicted by its k nearest others."""
        x_new = matrix(x_new, prepared.x.shape[1])
        return augmented(prepared, x_new, self.num_neighbors)

    def check(self, x: Array, y: Array) -> None:
        """Raises ValueError unless the number of neighbors is an int >= 1."""
        matrix(x)
        _checks.check_count("num_neighbors", self.num_neighbors, 1)

    def _mean(self, distances, y, weights, left_out):
        k = self.num_neighbors
        near = _within(distances, y, weights, k)
        if left_out is None:
            return _mean_of(k, *near)
        # Nothing but the choice and the correction below depends on the row left out:
        # without it, the k nearest are the k nearest, or k + 1 minus the row.
        far = _within(distances, y, weights, k + 1)
        away, row = distances[left_out], y[left_out]
        pick = lambda a, b: jnp.where(away <= near[0], b, a)  # noqa: E731
        radius, counts, sums = jax.tree.map(pick, near, far)
        at = jnp.stack([away < radius, away == radius]).astype(y.dtype)
        return _mean_of(k, radius, counts - at, sums - at[:, None] * row[None])
