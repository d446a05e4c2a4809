"""The volume of a set, in closed form or estimated from uniform points or draws."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import ndtri

from jaxcp import _batching, _checks, _geometry, _numbers, _tree
from jaxcp._arrays import as_arrays
from jaxcp.typing import HasEnds, HasEstimate, HasLabels, HasLogSize, Set

_BITS = 30
_AT_A_TIME = 2**14  # points whose membership is found side by side


def volume(
    key: Array,
    region: Set,
    num_samples: int = 1000,
    *,
    sobol: bool = False,
    within: HasEnds | None = None,
) -> tuple[Array, Array]:
    """Returns the log volume of a set and the standard error of the log.

    A set of your own offers `log_size()`, in closed form, or `estimate_log_size(key,
    num_samples, *, sobol)`. The sets of jaxcp:

    * `Interval`, `Box`, `Ellipsoid`: closed form.
    * `Balls`: Karp and Luby's estimate, l V_d r^d E[1 / N] with N the balls that a
      uniform point of a random ball lies in; its error does not grow with d.
    * `LevelSet` of a `Density` that can `sample`: draws of the model, weighted by 1/f.
    * `LevelSet` of a `Latent` with its `forward` map: uniform latent points, weighted
      by abs(det) of the Jacobian, together with uniform points around their images.

    Any other set in R^d, such as the `LevelSet` of any score, needs a box, `within`:
    the volume of its part in the box is estimated by membership of uniform points.

    Batch with `jax.vmap` over keys and sets, or use `metrics.mean_volume`.

    Args:
      key: Random key; not used by closed forms.
      region: One set in R^d, without a leading axis.
      num_samples: Number of points of the estimate.
      sobol: Whether points are scrambled Sobol points (needs scipy) instead of random
        ones, for `Balls`, latent sets and boxes. The estimate stays unbiased, and the
        standard error is then an upper estimate.
      within: A finite `Box`, or an `Interval` for targets of one number: the part of
        any set that lies in it is measured. If it does not hold the whole set, the
        volume is too small.

    Returns:
      (log volume, standard error of the log), each of shape (), the volume in units of
      the targets to the power of d. (+inf, 0) for the whole space, (-inf, 0) for an
      empty or flat set, (-inf, inf) where no point of the estimate fell into the set;
      NaN for a set with a NaN.
      Both are differentiable in the set; gradients are estimates like the value. With
      `within` there is no gradient: membership has none.

    Raises:
      ValueError: if the set has neither and there is no `within`, there are several
        sets, `within` is not finite or of other targets, or `num_samples` is not a
        positive int.

    Cost:
      O(1) for closed forms; `num_samples` points, each against l balls, or each with a
      density or a Jacobian of the model.

    References:
      Karp, Luby, Monte-Carlo Algorithms for Enumeration and Reliability Problems, FOCS,
      1983.

    See also:
      metrics.mean_volume, metrics.sizes, sets.Balls, sets.LevelSet

    Example:
      >>> from jaxcp.sets import Balls
      >>> apart = Balls(jnp.array([[0.0, 0.0], [9.0, 0.0]]), jnp.array(1.0))
      >>> log_volume, error = volume(jax.random.key(0), apart)
      >>> round(jnp.exp(log_volume).item(), 3)  # 2 pi
      6.283
    """
    _checks.check_key(key)
    _checks.check_count("num_samples", num_samples, 1)
    region, size, sobol = as_arrays(region=region), int(num_samples), bool(sobol)
    if within is not None:
        return _volume_within(key, region, *finite_ends(within), size, sobol)
    return _volume(key, region, size, sobol)


def finite_ends(within: Any) -> tuple[Array, Array]:
    """Returns (lower, upper) of a box; ValueError if they are known and not finite."""
    _checks.check_kind("within as a Box or an Interval", within, HasEnds)
    lower, upper = as_arrays(ends=within.ends())
    for end in (lower, upper):
        _checks.check_values(np.isfinite, "within as a finite box", end)
    return _numbers.as_float(lower), _numbers.as_float(upper)


def check_one(region: Any, ndim: int) -> None:
    """Raises ValueError for a batch of sets, with `ndim` leading axes."""
    if ndim:
        kind = type(region).__name__
        raise ValueError(f"expected one {kind}, got several: use jax.vmap")


@_tree.jit(static_argnames=("num_samples", "sobol"))
def _volume_within(key, region, lower, upper, num_samples, sobol):
    if isinstance(region, HasLabels):
        raise ValueError("expected a set in R^d, got labels: metrics.sizes counts them")
    if lower.ndim > 1 or lower.shape != upper.shape:
        shapes = f"{lower.shape} and {upper.shape}"
        raise ValueError(f"expected within as one box, ends (d,), got ends {shapes}")
    check_one(region, jax.eval_shape(region.contains, lower).ndim)
    found = _log_volume_in_box(key, region.contains, lower, upper, num_samples, sobol)
    return _numbers.unless_nan((region, lower, upper), _with_rounding(*found))


@_tree.jit(static_argnames=("num_samples", "sobol"))
def _volume(key, region, num_samples, sobol):
    if isinstance(region, HasLogSize):
        log_volume = region.log_size()
        check_one(region, log_volume.ndim)
        return _numbers.unless_nan(region, (log_volume, jnp.zeros_like(log_volume)))
    if isinstance(region, HasEstimate):
        return _with_rounding(*region.estimate_log_size(key, num_samples, sobol=sobol))
    kind = f"{type(region).__name__} without log_size() or estimate_log_size()"
    raise ValueError(f"expected within, a Box, to estimate a volume in, got {kind}")


def _with_rounding(log_volume, error):
    """Returns the estimate with what the arithmetic adds to its error."""
    size = jnp.where(jnp.isfinite(log_volume), 1 + jnp.abs(log_volume), 0)
    rounding = 4 * jnp.finfo(log_volume.dtype).eps * lax.stop_gradient(size)
    return log_volume, error + rounding


def _log_mean(*parts):
    """Returns the log of the mean of values >= 0 in equal parts, and its error."""
    mean = sum(map(jnp.mean, parts)) / len(parts)
    seen = mean > 0
    safe = jnp.where(seen, mean, 1)
    variance = sum(jnp.var(lax.stop_gradient(v)) for v in parts)
    error = jnp.sqrt(variance / (len(parts) ** 2 * len(parts[0]))) / safe
    return jnp.where(seen, jnp.log(safe), -jnp.inf), jnp.where(seen, error, jnp.inf)


def _finite_max(values):
    top = jnp.max(values, initial=-jnp.inf)
    return jnp.where(jnp.isfinite(top), top, 0)


def _or_trivial(solid, whole, log_volume, error):
    """Returns an estimate; +-inf, without an error, for all of space or nothing."""
    all_or_nothing = jnp.where(whole, jnp.inf, -jnp.inf)
    return jnp.where(solid, log_volume, all_or_nothing), jnp.where(solid, error, 0)


def _log_volume_in_box(key, contains, lower, upper, num_samples, sobol):
    """Returns the log volume of the part of a set in a box and its standard error.

    The box has ends of shape () or (d,), as targets have; flat or crossed it is empty.
    """
    wide = _numbers.at_least_single(jnp.stack([lower, upper]).reshape(2, -1))
    widths = wide[1] - wide[0]
    solid = jnp.all(widths > 0)
    u = _uniforms(key, num_samples, widths.size, widths.dtype, sobol)
    y = wide[:1] + widths[None] * u
    y = lax.stop_gradient(y).astype(lower.dtype).reshape(-1, *lower.shape)
    inside = _batching.map_evenly(contains, y, at_a_time=_AT_A_TIME)
    share, error = _log_mean(inside.astype(widths.dtype))
    log_box = jnp.sum(jnp.log(jnp.where(solid, widths, 1)))
    return _or_trivial(solid, False, log_box + share, error)


def log_volume_of_balls(key, centers, radius, num_samples, sobol):
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
    u = _uniforms(key, num_samples, d + 2, centers.dtype, sobol)
    if not sobol:  # every ball has its share of the points
        strata = jnp.arange(num_samples, dtype=u.dtype)
        u = u.at[:, 0].set((strata + u[:, 0]) / num_samples)
    solid = (radius > 0) & (radius < jnp.inf) & jnp.any(single)
    radius_or_one = jnp.where(solid, radius, 1)
    unit = _numbers.unit_of(radius_or_one)
    shares, error = _log_share(centers / unit, radius_or_one / unit, u)
    # Karp and Luby 1983: V = l V_d r^d E[1 / N]
    logs = jnp.log(jnp.sum(single).astype(u.dtype)) + _geometry.log_unit_ball(d)
    logs = logs + d * jnp.log(lax.stop_gradient(radius_or_one)) + shares
    return _or_trivial(solid, radius == jnp.inf, logs, error)


@jax.custom_jvp
def _log_share(centers, radius, u):
    """Returns log E[1 / N] and its standard error."""
    own = _chosen(centers, u)
    points = centers[own] + radius * _in_ball(u[:, 1:])

    def multiplicity(point):
        within = lambda square: (square <= radius**2).astype(int)  # noqa: E731
        return _geometry.fold_squares(jnp.add, within, point, centers)

    counts = jnp.maximum(jax.vmap(multiplicity)(points), 1)
    return _log_mean(1 / counts.astype(u.dtype))


@_log_share.defjvp
def _log_share_jvp(primals, tangents):
    """d log V = d / (r E[1 / N]) E[exposed (n . dc + dr)] on the spheres.

    The tangent holds that of the factor r^d as well.
    """
    centers, radius, u = primals
    logs, error = _log_share(*primals)
    own, normals = _chosen(centers, u), _directions(u[:, 2:])
    points = centers[own] + radius * normals

    def exposed(point, i):
        square = lambda c: _geometry.fold_squares(jnp.minimum, jnp.positive, point, c)  # noqa: E731
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


def log_volume_by_density(key, score, pred, level, num_samples):
    """Returns the log of E[1(score(Y) <= level) / f(Y)], Y drawn from f, and its error.

    The gradient is that of the indicator smoothed over scores near the level.
    """
    draws = lax.stop_gradient(score.sample(key, pred, num_samples))
    scores = jax.vmap(score, (None, 0))(pred, draws)
    scores = jnp.where(jnp.isfinite(scores), scores, jnp.inf)
    fixed = lax.stop_gradient(scores)
    known = fixed < jnp.inf
    top = _finite_max(jnp.where(known & (fixed <= level), fixed, -jnp.inf))
    # 1 / f = exp(score), on a scale that does not overflow
    weights = jnp.where(known, jnp.exp(jnp.minimum(fixed - top, 30)), 0)
    mean, error = _log_mean(weights * _inside(scores, fixed, level))
    return _or_trivial(~jnp.isinf(level), level > 0, top + mean, error)


def _inside(scores, fixed, level):
    """Returns 1(score <= level), with the gradient of a step as wide as n^(-1/3)."""
    known = fixed < jnp.inf
    spread = jnp.std(jnp.where(known, fixed, jnp.mean(fixed, where=known)))
    width = jnp.where(spread > 0, spread, 1) * len(fixed) ** (-1 / 3)
    finite_level = jnp.where(jnp.isfinite(level), level, 0)
    soft = jax.nn.sigmoid((finite_level - jnp.where(known, scores, 0)) / width)
    soft = jnp.where(known, soft, 0)
    return (known & (fixed <= level)) + soft - lax.stop_gradient(soft)


def log_volume_of_image(key, maps, d, radius, num_samples, sobol):
    """Returns the log volume of the image of a ball and its standard error.

    `maps` are the inverse one and the forward one.

    Half of the points are images of uniform points of the ball, weighted by abs(det).
    Where the map stretches much their weights vary much, so the other half is uniform
    in a box around the image; both are weighted by the mixture of the two laws (the
    balance heuristic of Veach and Guibas, 1995), unbiased whatever the box. The
    gradient is that of the first half.
    """
    inverse, forward = maps
    key_box, key_ball, key_cube = jax.random.split(key, 3)
    radius = _numbers.at_least_single(jnp.asarray(radius))
    solid = (radius > 0) & (radius < jnp.inf)
    r = jnp.where(solid, radius, 1)
    half, num_first = max(num_samples // 2, 1), max(num_samples // 4, 2)
    uniforms = partial(_uniforms, dtype=r.dtype, sobol=sobol)
    stretch = jax.vmap(lambda z: _geometry.log_abs_det(jax.jacfwd(forward)(z)))

    z = r * _in_ball(uniforms(key_ball, half, d + 1))
    first = r * _in_ball(uniforms(key_box, num_first, d + 1))
    images = jax.vmap(forward)(jnp.concatenate([first, z]))  # one large program
    lower, upper = _ends_around(images[:num_first])
    cube = uniforms(key_cube, half, d)
    codes = jax.vmap(inverse)(lower[None] + (upper - lower)[None] * cube)
    inside = jax.vmap(_geometry.norm)(codes) <= r
    codes = jnp.where(inside[:, None], codes, 0)

    log_ball = _geometry.log_unit_ball(d) + d * jnp.log(r)
    stretches = stretch(z)
    images, density = images[num_first:], -jnp.sum(jnp.log(upper - lower))
    held = jnp.all((lower[None] <= images) & (images <= upper[None]), axis=1)
    density_at_images = jnp.where(held, density, -jnp.inf)
    of_ball = _log_weights(log_ball + stretches, density_at_images)
    of_cube = _log_weights(log_ball + stretch(codes), density)
    of_cube = jnp.where(inside, of_cube, -jnp.inf)
    halves = lax.stop_gradient((of_ball, of_cube))
    top = _finite_max(jnp.stack(halves))
    mean, error = _log_mean(*(jnp.exp(v - top) for v in halves))
    # d log V: that of V_d r^d E abs(det), the pathwise gradient of the first half
    through = log_ball + jax.nn.logsumexp(stretches) - jnp.log(1.0 * half)
    value = top + mean + through - lax.stop_gradient(through)
    return _or_trivial(solid, radius == jnp.inf, value, error)


def _ends_around(images):
    """Returns the ends of a box around the image, of which these points are."""
    lower, upper = jnp.min(images, axis=0), jnp.max(images, axis=0)
    margin = (upper - lower) / 20  # what these points have missed
    return lax.stop_gradient((lower - margin, upper + margin))


def _log_weights(log_cells, log_density):
    """Returns log w, 1 / w = (f + g) / 2.

    Of the density f of images, 1 / (V_ball abs(det)), and that of the box, g: 1 / V_box
    in it. Veach and Guibas 1995, balance heuristic.
    """
    return jnp.log(2.0) - jnp.logaddexp(-log_cells, log_density)


def _uniforms(key, n, dim, dtype, sobol):
    """Returns points in the open unit cube, shape (n, dim)."""
    if sobol:
        return _scrambled(key, n, dim).astype(dtype)
    lowest = jnp.finfo(dtype).eps / 2
    return jax.random.uniform(key, (n, dim), dtype, lowest, 1 - lowest)


def _directions(u):
    """Returns points on the unit sphere from points in the cube, each (n, d)."""
    normal = ndtri(u)
    length = jax.vmap(_geometry.norm)(normal)
    return normal / jnp.where(length > 0, length, 1)[:, None]


def _in_ball(u):
    """Returns points in the unit ball, (n, d), from points in the cube, (n, 1 + d)."""
    d = u.shape[1] - 1
    return u[:, :1] ** (1 / d) * _directions(u[:, 1:])


def _scrambled(key, n, dim):
    """Returns Sobol points with a random linear matrix scramble and digital shift."""
    key_matrix, key_shift = jax.random.split(key)
    place = jnp.arange(_BITS, dtype=jnp.uint32)
    # Output bit i depends on input bit i and, at random, on the bits above it.
    above = (jnp.uint32(2**_BITS - 1) >> (place + 1)) ^ jnp.uint32(2**_BITS - 1)
    own = jnp.uint32(1) << (_BITS - 1 - place)
    above = above & ~own
    mixed = jax.random.bits(key_matrix, (dim, _BITS), jnp.uint32)
    rows = (mixed & above[None]) | own[None]
    points = jnp.asarray(_sobol(n, dim))
    bits = jax.lax.population_count(points[:, :, None] & rows[None]) & 1
    scrambled = jnp.sum(bits * own[None, None], axis=-1, dtype=jnp.uint32)
    shift = jax.random.bits(key_shift, (dim,), jnp.uint32) >> (32 - _BITS)
    # 23 bits and a half: never 0 or 1 in single precision.
    return ((scrambled ^ shift[None]) >> (_BITS - 23)) / 2**23 + 0.5**24


@lru_cache(maxsize=8)
def _sobol(n, dim):
    from scipy.stats import qmc

    exponent = max(n - 1, 1).bit_length()
    points = qmc.Sobol(dim, scramble=False, bits=_BITS).random_base2(exponent)[:n]
    return (points * 2**_BITS).astype(np.uint32)
