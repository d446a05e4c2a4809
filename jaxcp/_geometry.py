"""Distances, norms and volumes in R^d, by the same arithmetic wherever they are used.

Distances are sums of squared differences, never differences of products: far from the
origin, where the latter lose all digits, ranks stay what they are.

And mixtures of Gaussians with diagonal covariances, with models that predict them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import log_ndtr, ndtri

from jaxcp import _checks
from jaxcp._numbers import as_float, at_least_single, quotient, unit_of, varying_like
from jaxcp._tree import pytree
from jaxcp.quantiles._keys import bisect_floats
from jaxcp.typing import ArrayLike, Number, PyTree

_KMEANS_STEPS = 25
UNROLLED = 16  # dimensions up to which a sum over them is written out


@jax.jit
def nearest_distance(y: Array, centers: Array) -> Array:
    """Returns the distance of a point (d,) from the nearest of points (l, d)."""
    return _nearest_distance(y, centers)


@jax.custom_jvp
def _nearest_distance(y, centers):
    wide = at_least_single(y), at_least_single(centers)  # squares of halves overflow
    unit = unit_of(wide[0] - wide[1][0])
    square = fold_squares(jnp.minimum, lambda square: square, *wide, unit)
    return (jnp.sqrt(square) * unit).astype(jnp.result_type(y, centers))


@_nearest_distance.defjvp
def _nearest_distance_jvp(primals, tangents):
    y, centers = primals
    distance = _nearest_distance(y, centers)
    unit = unit_of(y - centers[0])
    nearest = jnp.argmin(square_distances(y[None] / unit, centers / unit)[0])
    moved = tangents[0] - tangents[1][nearest]
    smooth = (distance > 0) & (distance < jnp.inf)
    direction = jnp.where(smooth, y - centers[nearest], 0)
    slope = jnp.sum(direction / jnp.where(smooth, distance, 1) * moved)
    return distance, slope.astype(distance.dtype)


def as_points(y: Array, points: Array) -> tuple[Array, Array]:
    """Returns a target (d,) and points (l, d) as floats; () and (l,) are d = 1."""
    y, points = jnp.atleast_1d(as_float(y)), as_float(points)
    points = points[:, None] if points.ndim == 1 else points
    if y.ndim != 1 or points.shape[1:] != y.shape or len(points) == 0:
        raise ValueError(
            f"expected points of shape (l, {y.size}) for a target of shape {y.shape}, "
            f"l >= 1, got {points.shape}"
        )
    return y, points


def fold_squares(
    combine: Callable, each: Callable, y: Array, centers: Array, unit: Number = 1.0
) -> Array:
    """Returns `each(squared distance)` of a point from l >= 1 points, combined.

    In the square of a unit, a power of two.
    One center after the other: under `vmap` the points lie on the lanes, and no array
    of all distances is made.
    """
    columns = [y[j] for j in range(len(y))] if len(y) <= UNROLLED else None
    inverse = 1 / unit

    def square(center):
        if columns is None:
            return jnp.sum(_square((y - center) * inverse))
        return sum(_square((v - center[j]) * inverse) for j, v in enumerate(columns))

    def step(i, done):
        return combine(done, each(square(centers[i])))

    return lax.fori_loop(1, len(centers), step, each(square(centers[0])))


def square_distances(x: Array, z: Array) -> Array:
    """Returns the squared Euclidean distances of rows, shape (m, n).

    From differences, not from products: equal distances stay equal.
    """
    return jnp.sum((x[:, None] - z[None]) ** 2, axis=-1)


def cells(key: Array, x: Array, weights: Array, num_cells: int) -> Array:
    """Returns the cell of each row, by Lloyd's algorithm (k-means) from random rows."""
    start = jax.random.choice(key, x, (num_cells,), replace=False)

    def nearest(centers):
        return jnp.argmin(square_distances(x, centers), axis=1)

    def step(_, centers):
        members = nearest(centers)[None] == jnp.arange(num_cells)[:, None]
        shares = jnp.where(members, weights[None], 0).astype(x.dtype)
        counts = jnp.sum(shares, axis=1)[:, None]
        sums = jnp.matmul(shares, x, precision="highest")
        return jnp.where(counts > 0, sums / jnp.where(counts > 0, counts, 1), centers)

    return nearest(lax.fori_loop(0, _KMEANS_STEPS, step, start))


def norm(v: Array) -> Array:
    """Returns the Euclidean norm of a vector, with gradient zero at zero."""
    unit = unit_of(v)
    v = v / unit
    square = jnp.sum(v * v)
    smooth = (square > 0) & (square < jnp.inf)
    v = jnp.where(smooth, v, 1)
    return unit * jnp.where(smooth, jnp.sqrt(jnp.sum(v * v)), lax.stop_gradient(square))


@jax.jit
def whiten(scale: Array, residual: Array) -> Array:
    """Returns scale^-1 residual, `scale` a diagonal (d,) or lower triangular (d, d)."""
    if scale.ndim == 1:
        return residual / scale
    columns = jnp.arange(len(residual))

    def settle(i, z):
        known = jnp.sum(jnp.where(columns < i, scale[i] * z, 0))
        return z.at[i].set((z[i] - known) / scale[i, i])

    return lax.fori_loop(0, len(residual), settle, residual)


def diagonal(scale: Array) -> Array:
    """Returns the diagonal (d,) of a scale of shape (d,) or (d, d)."""
    return scale if scale.ndim == 1 else jnp.diagonal(scale)


@jax.jit
def log_abs_det(matrix: Array) -> Array:
    """Returns log abs(det) of a small matrix (d, d), by elimination.

    Plain operations: batches of LAPACK calls are slow, or hang, on a CPU.
    """
    d = len(matrix)
    rows = jnp.arange(d)

    def eliminate(i, carry):
        matrix, total = carry
        column = jnp.abs(jnp.where(rows >= i, matrix[:, i], 0))
        pivot = jnp.argmax(lax.stop_gradient(column))
        row, other = matrix[pivot], matrix[i]
        matrix = matrix.at[pivot].set(other).at[i].set(row)
        singular = row[i] == 0
        factors = jnp.where(rows > i, matrix[:, i] / jnp.where(singular, 1, row[i]), 0)
        size = jnp.where(singular, 1, jnp.abs(row[i]))
        total += jnp.where(singular, -jnp.inf, jnp.log(size))
        return matrix - factors[:, None] * row[None], total

    total = varying_like(jnp.zeros((), matrix.dtype), matrix[0, 0])
    return lax.fori_loop(0, d, eliminate, (matrix, total))[1]


def log_unit_ball(d: int, norm: float = 2) -> float:
    """Returns the log volume of the ball of radius 1 in d dimensions."""
    if norm == 2:
        return 0.5 * d * math.log(math.pi) - math.lgamma(0.5 * d + 1)
    cube = d * math.log(2)
    return cube if norm == math.inf else cube - math.lgamma(d + 1)


def check_norm(norm: float) -> None:
    """Raises ValueError unless the norm is 1, 2 or infinity."""
    if norm not in (1, 2, math.inf):
        raise ValueError(f"expected norm as 1, 2 or jnp.inf, got {norm!r}")


@jax.jit(static_argnames="norm")
def distance(y: Array, center: Array, norm: float) -> Array:
    """Returns the norm 1, 2 or infinity of y - center, shape ().

    In few dimensions it is the same in any program: the sum over them is written out.
    """
    y, center = (jnp.atleast_1d(as_float(v)) for v in (y, center))
    _checks.check_shape("a target", center.shape, y.shape)
    if norm == 2 and y.size > 1:
        return nearest_distance(y, center[None])
    sides = jnp.abs(y - center)
    if norm == 1 and y.size > 1:
        wide = at_least_single(sides)
        return sum_of(wide).astype(sides.dtype)
    return sides[jnp.argmax(lax.stop_gradient(sides))]


def sum_of(v: Array) -> Array:
    """Returns the sum of a vector, written out if it is short: rows go on the lanes."""
    return sum(v, jnp.zeros((), v.dtype)) if len(v) <= UNROLLED else jnp.sum(v)


def _square(difference):
    # The maximum keeps compilers from fusing the product with the sum that follows,
    # which would round differently in one program than in another.
    return jnp.maximum(difference * difference, 0)


def check_boxes(name: str, boxes: Array, mask: ArrayLike | None = None) -> None:
    """Raises ValueError unless boxes are of shape (..., 4), and ordered if concrete."""
    if boxes.ndim == 0 or boxes.shape[-1] != 4:
        expected = f"{name} of shape (..., 4), x_min, y_min, x_max, y_max"
        raise ValueError(f"expected {expected}, got {boxes.shape}")
    _checks.check_not_nan(name, boxes, mask)
    ordered = f"{name} with x_min <= x_max and y_min <= y_max"
    ends_fit = lambda v: np.all(v[..., :2] <= v[..., 2:], axis=-1)  # noqa: E731
    _checks.check_values(ends_fit, ordered, boxes, mask)


def overlap(a: Array, b: Array) -> Array:
    """Returns the intersection over union of two boxes of shape (4,), 0 if infinite."""
    boxes = at_least_single(jnp.stack([as_float(a), as_float(b)])) / 2
    finite = jnp.all(jnp.isfinite(boxes))
    lower, upper = jnp.split(jnp.where(finite, boxes, 0), 2, axis=1)
    sides = jnp.maximum(upper - lower, 0)
    shared = jnp.minimum(*upper) - jnp.maximum(*lower)
    # In units of the larger sides no area overflows or vanishes.
    unit = lax.stop_gradient(jnp.max(sides, axis=0))
    unit = jnp.where(unit > 0, unit, 1)
    both = jnp.prod(quotient(jnp.maximum(shared, 0), unit))
    area, other = jnp.prod(quotient(sides, unit[None]), axis=1)
    either = area + other - both
    ratio = jnp.where(both > 0, both / jnp.where(both > 0, either, 1), 0)
    return jnp.where(jnp.any(jnp.isnan(boxes)), jnp.nan, ratio)


@pytree
class Mixture:
    """The law with density sum_c w_c prod_j N(y_j; mean_cj, scale_cj^2).

    Args:
      log_weights: Logs of the weights, up to a constant, shape (c,).
      means: Shape (c, d).
      scales: Standard deviations, shape (c, d).
    """

    log_weights: Array
    means: Array
    scales: Array

    def log_prob(self, y: Array) -> Array:
        """Returns the log density at `y`, shape ()."""
        y = _checks.as_vector("y", y, self.means.shape[1])
        parts = _log_density(y[None], self.means, self.scales)
        logs = jax.nn.log_softmax(self.log_weights) + jnp.sum(parts, axis=1)
        return jax.nn.logsumexp(logs)

    def sample(self, key: Array, n: int) -> Array:
        """Returns n draws, shape (n, d)."""
        key_which, key_noise = jax.random.split(key)
        mass = jnp.cumsum(jax.nn.softmax(self.log_weights))
        u = jax.random.uniform(key_which, (n,), mass.dtype, maxval=mass[-1])
        which = jnp.searchsorted(mass, u, side="right")
        which = jnp.minimum(which, len(mass) - 1)
        noise = jax.random.normal(key_noise, (n, self.means.shape[1]), mass.dtype)
        return self.means[which] + self.scales[which] * noise

    def to_latent(self, y: Array) -> Array:
        """Returns the Knothe-Rosenblatt code of `y`, standard normal under the law."""

        def settle(log_weights, target, mean, scale):
            return target, _normal_score(log_weights, (target - mean) / scale)

        return self._scan(settle, _checks.as_vector("y", y, self.means.shape[1]))

    def from_latent(self, z: Array) -> Array:
        """Returns the `y` whose code is `z`, shape (d,), by bisection."""

        def settle(log_weights, code, mean, scale):
            target = _quantile(log_weights, mean, scale, code)
            return target, target

        return self._scan(settle, _checks.as_vector("z", z, self.means.shape[1]))

    def _scan(self, settle, values):
        """Returns the results of `settle` for the coordinates, one after the other."""

        def step(log_weights, inputs):
            target, result = settle(log_weights, *inputs)
            given = log_weights + _log_density(target, *inputs[1:])
            return jax.nn.log_softmax(given), result

        parts = self.log_weights, values, self.means.T, self.scales.T
        dtype = jnp.result_type(*parts)
        log_weights, *coordinates = (part.astype(dtype) for part in parts)
        return lax.scan(step, jax.nn.log_softmax(log_weights), tuple(coordinates))[1]


class MixtureModel:
    """The functions of a model whose law at x is `mixture(params, x)`."""

    mixture: Callable[[PyTree, Array], Mixture]

    def sample(self, params: PyTree, key: Array, x: Array, n: int) -> Array:
        """Returns n draws of y given x, shape (n, d)."""
        return self.mixture(params, x).sample(key, n)

    def log_prob(self, params: PyTree, x: Array, y: Array) -> Array:
        """Returns the log density of y given x, shape ()."""
        return self.mixture(params, x).log_prob(y)

    def to_latent(self, params: PyTree, x: Array, y: Array) -> Array:
        """Returns the Knothe-Rosenblatt code of y given x, shape (d,)."""
        return self.mixture(params, x).to_latent(y)

    def from_latent(self, params: PyTree, x: Array, z: Array) -> Array:
        """Returns the y whose code given x is z, shape (d,)."""
        return self.mixture(params, x).from_latent(z)


def _normal_score(log_weights, u):
    """Returns the normal quantile of sum_c w_c Phi(u_c), from the smaller tail."""
    if len(u) == 1:
        return u[0]
    below = jax.nn.logsumexp(log_weights + log_ndtr(u))
    above = jax.nn.logsumexp(log_weights + log_ndtr(-u))
    tail = _log_tail_quantile(jnp.minimum(below, above))
    return jnp.where(below < above, tail, -tail)


@jax.custom_jvp
def _log_tail_quantile(log_p):
    """Returns the z <= 0 with log Phi(z) = log_p, also where Phi(z) underflows."""
    z = ndtri(jnp.exp(jnp.maximum(log_p, -60)))

    far = (log_p < -60) & jnp.isfinite(log_p)
    start = -jnp.sqrt(-2 * jnp.where(far, log_p, -60))

    def newton(_, z):  # Phi / phi is 1 / |z| within one part in z^2
        return z + (log_ndtr(z) - jnp.where(far, log_p, -60)) / z

    beyond = lax.fori_loop(0, 4, newton, start)
    return jnp.where(far, beyond, jnp.where(log_p == -jnp.inf, -jnp.inf, z))


@_log_tail_quantile.defjvp
def _log_tail_quantile_jvp(primals, tangents):
    z = _log_tail_quantile(*primals)
    near = jnp.clip(z, -50, 0)
    ratio = jnp.exp(log_ndtr(near) - _log_density(near))  # Phi / phi
    return z, tangents[0] * jnp.where(z > -50, ratio, -1 / jnp.minimum(z, -1))


def _quantile(log_weights, mean, scale, code):
    """Returns the coordinate with this code, with its implicit derivatives."""
    if len(mean) == 1:
        return mean[0] + scale[0] * code
    fixed = lax.stop_gradient((log_weights, mean, scale, code))

    def falls_short(value):
        return _normal_score(fixed[0], (value - fixed[1]) / fixed[2]) < fixed[3]

    target = bisect_floats(falls_short, mean.dtype)
    gap = _normal_score(log_weights, (target - mean) / scale) - code
    density = jax.nn.logsumexp(fixed[0] + _log_density(target, *fixed[1:3]))
    slope = jnp.exp(_log_density(fixed[3]) - density)
    return target - slope * (gap - lax.stop_gradient(gap))


def _log_density(*args):
    """Returns the log density of a normal law; its module takes long to import."""
    return jax.scipy.stats.norm.logpdf(*args)
