"""Models that keep their training rows: kernel ridge and nearest neighbors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._batching import map_blocks
from jaxcp._geometry import square_distances
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree, static
from jaxcp.learners import _algebra, _neighborhoods, _smoothing
from jaxcp.learners._algebra import columns, dot, matrix
from jaxcp.learners._neighborhoods import Neighborhoods, mean_of, within
from jaxcp.learners._smoothing import Smoothed
from jaxcp.learners.augmenting import Augmented
from jaxcp.learners.shared import Shared
from jaxcp.typing import Number


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

    def fit(self, key: Array, x: Array, y: Array, weights: Array) -> KernelFit:
        """Returns the weighted fit; the key is not used."""
        del key
        x, y = matrix(x), as_float(y)
        rows, targets, weights = _algebra.in_single(x, y, weights)
        gram = self._kernel(rows, rows)
        parts = columns(targets), self.penalty, weights
        coef = _smoothing.kernel_coefficients(gram, *parts).reshape(y.shape)
        return KernelFit(Shared(x), coef.astype(y.dtype))

    def predict(self, params: KernelFit, x: Array) -> Array:
        """Returns k(x, x_train) @ coef, shape (m, ...)."""
        rows, coef = params.x.value, columns(params.coef)
        x = matrix(x, rows.shape[1])
        block = lambda x: dot(self._kernel(x, rows), coef)  # noqa: E731
        values = map_blocks(block, x, width=len(rows))
        return values.reshape(-1, *params.coef.shape[1:])

    def leave_one_out(self, x: Array, y: Array) -> KernelFit:
        """Returns the n fits without one row each, stacked."""
        x, y = matrix(x), as_float(y)
        rows, targets, _ = _algebra.in_single(x, y, jnp.ones(len(x)))
        gram, targets = self._kernel(rows, rows), columns(targets)
        coefs = _smoothing.kernel_without_each(gram, targets, self.penalty)
        return KernelFit(Shared(x), coefs.reshape(len(y), *y.shape).astype(y.dtype))

    def prepare(self, x: Array, y: Array, mask: Array | None) -> Smoothed:
        """Returns the fit on the rows of the mask, ready for one more row."""
        x, y = matrix(x), as_float(y)
        rows, y, _ = _algebra.in_single(x, y, jnp.ones(len(x)))
        if mask is not None:
            rows = jnp.where(mask[:, None], rows, 0)
        gram = self._kernel(rows, rows)
        return _smoothing.prepare_kernel(rows, y, gram, mask, self.penalty)

    def augmented(self, prepared: Smoothed, x_new: Array) -> Augmented:
        """Returns the fits with each test point as one more row."""
        rows = prepared.centers
        x_new = matrix(x_new, rows.shape[1]).astype(rows.dtype)
        kernel = self._kernel(x_new, rows)
        return _smoothing.augmented_kernel(prepared, kernel)

    def check(self, x: Array, y: Array) -> None:
        """Raises ValueError for a negative penalty or a lengthscale not above 0."""
        matrix(x)
        _checks.check_values(lambda v: v >= 0, "penalty >= 0", self.penalty)
        _checks.check_values(lambda v: v > 0, "lengthscale > 0", self.lengthscale)

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

    def fit(self, key: Array, x: Array, y: Array, weights: Array) -> NeighborsFit:
        """Returns the training rows; the key is not used."""
        del key
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
        return _neighborhoods.neighborhoods(
            matrix(x), as_float(y), mask, self.num_neighbors
        )

    def augmented(self, prepared: Neighborhoods, x_new: Array) -> Augmented:
        """Returns rows and test points, each predicted by its k nearest others."""
        x_new = matrix(x_new, prepared.x.shape[1])
        return _neighborhoods.augmented(prepared, x_new, self.num_neighbors)

    def check(self, x: Array, y: Array) -> None:
        """Raises ValueError unless the number of neighbors is an int >= 1."""
        matrix(x)
        _checks.check_count("num_neighbors", self.num_neighbors, 1)

    def _mean(self, distances, y, weights, left_out):
        k = self.num_neighbors
        near = within(distances, y, weights, k)
        if left_out is None:
            return mean_of(*near, k)
        # Nothing but the choice and the correction below depends on the row left out:
        # without it, the k nearest are the k nearest, or k + 1 minus the row.
        far = within(distances, y, weights, k + 1)
        away, row = distances[left_out], y[left_out]
        pick = lambda a, b: jnp.where(away <= near[0], b, a)  # noqa: E731
        radius, counts, sums = jax.tree.map(pick, near, far)
        at = jnp.stack([away < radius, away == radius]).astype(y.dtype)
        return mean_of(radius, counts - at, sums - at[:, None] * row[None], k)
