"""The volume of a union of balls, by the method of Karp and Luby."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _geometry
from jaxcp.volumes import _points


def log_volume_of_balls(
    key: Array, centers: Array, radius: Array, num_samples: int, sobol: bool
) -> tuple[Array, Array]:
    """Returns the log volume of a union of balls and its standard error.

    A uniform point of a ball chosen at random lies in N balls: l V_d r^d E[1 / N]. The
    gradient is an estimate too, by the part of the surface that no other ball covers.
    """
    d = centers.shape[1]
    single = _first_of_equals(lax.stop_gradient(centers))
    middle = jnp.mean(centers, axis=0, keepdims=True, where=single[:, None])
    # Far from zero, points would round out of their own ball; copies hold nothing new.
    shifted = centers - lax.stop_gradient(middle)
    centers = jnp.where(single[:, None], shifted, jnp.inf)
    u = _points.uniforms(key, num_samples, d + 2, centers.dtype, sobol)
    if not sobol:  # every ball has its share of the points
        strata = jnp.arange(num_samples, dtype=u.dtype)
        u = u.at[:, 0].set((strata + u[:, 0]) / num_samples)
    solid = (radius > 0) & (radius < jnp.inf) & jnp.any(single)
    radius_or_one = jnp.where(solid, radius, 1)
    shares, error = _log_share(centers, radius_or_one, u)
    # Karp and Luby 1983: V = l V_d r^d E[1 / N]
    logs = jnp.log(jnp.sum(single).astype(u.dtype)) + _geometry.log_unit_ball(d)
    logs = logs + d * jnp.log(lax.stop_gradient(radius_or_one)) + shares
    empty_or_all = jnp.where(radius == jnp.inf, jnp.inf, -jnp.inf)
    return jnp.where(solid, logs, empty_or_all), jnp.where(solid, error, 0)


@jax.custom_jvp
def _log_share(centers, radius, u):
    """Returns log E[1 / N] and its standard error."""
    own = _chosen(centers, u)
    points = centers[own] + radius * _points.in_ball(u[:, 1:])

    def multiplicity(point):
        within = lambda square: (square <= radius**2).astype(int)  # noqa: E731
        return _geometry.fold_squares(jnp.add, within, point, centers)

    counts = jnp.maximum(jax.vmap(multiplicity)(points), 1)
    share = 1 / counts.astype(u.dtype)
    mean = jnp.mean(share)
    return jnp.log(mean), jnp.std(share) / mean / jnp.sqrt(len(u))


@_log_share.defjvp
def _log_share_jvp(primals, tangents):
    """d log V = d / (r E[1 / N]) E[exposed (n . dc + dr)] on the spheres.

    The tangent holds that of the factor r^d as well.
    """
    centers, radius, u = primals
    logs, error = _log_share(*primals)
    own, normals = _chosen(centers, u), _points.directions(u[:, 2:])
    points = centers[own] + radius * normals

    def exposed(point, i):
        square = lambda c: _geometry.fold_squares(jnp.minimum, _same, point, c)  # noqa: E731
        mine = square(centers[i][None])
        ties = lambda s: (s == mine).astype(int)  # noqa: E731
        equal = _geometry.fold_squares(jnp.add, ties, point, centers)
        return jnp.where(square(centers) < mine, 0, 1 / jnp.maximum(equal, 1))

    moved = jnp.sum(normals * tangents[0][own], axis=1) + tangents[1]
    rate = centers.shape[1] / (radius * jnp.exp(logs))
    surface = jnp.mean(jax.vmap(exposed)(points, own) * moved)
    return (logs, error), (rate * surface, jnp.zeros_like(error))


def _chosen(centers, u):
    """Returns the ball of each point, from those with a finite center."""
    places = jnp.cumsum(jnp.all(jnp.isfinite(centers), axis=1))
    rank = jnp.floor(u[:, 0] * places[-1]).astype(int) + 1
    return jnp.searchsorted(places, jnp.minimum(rank, places[-1]))


def _first_of_equals(centers):
    """Returns which centers are finite and no copy of an earlier one."""
    equal = jnp.all(centers[:, None] == centers[None], axis=2)
    first = jnp.argmax(equal, axis=1) == jnp.arange(len(centers))
    return first & jnp.all(jnp.isfinite(centers), axis=1)


def _same(square):
    return square
