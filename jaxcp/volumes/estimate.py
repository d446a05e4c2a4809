"""One estimator for each kind of set."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_arrays
from jaxcp._numbers import as_float, at_least_single
from jaxcp._tracing import jit
from jaxcp.scores.generative import Density, Latent
from jaxcp.sets import Balls, Box, Ellipsoid, Interval, LevelSet
from jaxcp.typing import Set
from jaxcp.volumes._balls import log_volume_of_balls
from jaxcp.volumes._levels import log_volume_by_density, log_volume_of_image


def volume(
    key: Array, region: Set, num_samples: int = 1000, *, sobol: bool = False
) -> tuple[Array, Array]:
    """Returns the log volume of a set and the standard error of the log.

    * `Interval`, `Box`, `Ellipsoid`: closed form.
    * `Balls`: Karp and Luby's estimate, l V_d r^d E[1 / N] with N the balls that a
      uniform point of a random ball lies in; its error does not grow with d.
    * `LevelSet` of a `Density` that can `sample`: draws of the model, weighted by 1/f.
    * `LevelSet` of a `Latent` with its `forward` map: uniform latent points, weighted
      by abs(det) of the Jacobian, together with uniform points around their images.

    Batch with `jax.vmap` over keys and sets, or use `metrics.mean_volume`.

    Args:
      key: Random key; not used by closed forms.
      region: One set in R^d, without a leading axis.
      num_samples: Number of points of the estimate.
      sobol: Whether points are scrambled Sobol points (needs scipy) instead of random
        ones, for `Balls` and latent sets. The estimate stays unbiased, and the standard
        error is then an upper estimate.

    Returns:
      (log volume, standard error of the log), each of shape (), the volume in units of
      the targets to the power of d. (+inf, 0) for the whole space, (-inf, 0) for an
      empty or flat set, (-inf, inf) where no point of the estimate fell into the set;
      NaN for a set with a NaN.
      Both are differentiable in the set; gradients are estimates like the value.

    Raises:
      ValueError: if there is no estimator for the set, or `num_samples` is not a
        positive int.

    References:
      Karp, Luby, Monte-Carlo Algorithms for Enumeration and Reliability Problems, 1983.

    Example:
      >>> from jaxcp.sets import Balls
      >>> apart = Balls(jnp.array([[0.0, 0.0], [9.0, 0.0]]), jnp.array(1.0))
      >>> log_volume, error = volume(jax.random.key(0), apart)
      >>> round(jnp.exp(log_volume).item(), 3)  # 2 pi
      6.283
    """
    _checks.check_key(key)
    _checks.check_count("num_samples", num_samples, 1)
    region = as_arrays(region=region)
    _check(region, sobol)
    log_volume, error = _volume(key, region, int(num_samples), bool(sobol))
    unknown = _any_nan(region)
    log_volume, error = (jnp.where(unknown, jnp.nan, v) for v in (log_volume, error))
    return log_volume, error


def _check(region, sobol):
    axes = {Interval: 0, Box: 1, Ellipsoid: 0, Balls: 0, LevelSet: 0}.get(type(region))
    ends = [jnp.ndim(getattr(region, n, 0)) for n in ("lower", "radius", "level")]
    if axes is not None and max(ends) > axes:
        raise ValueError(
            f"expected one {type(region).__name__}, got several: use jax.vmap or "
            "metrics.mean_volume"
        )
    closed = isinstance(region, Interval | Box | Ellipsoid)
    score = region.score if isinstance(region, LevelSet) else None
    if isinstance(score, Density):
        if score.sample is None:
            raise ValueError(
                "expected a Density score with `sample` to estimate the volume of its "
                "level set, got None"
            )
        if sobol:
            raise ValueError("expected sobol=False for draws of a model, got True")
    elif isinstance(score, Latent):
        if score.forward is None or score.dim is None:
            raise ValueError(
                "expected a Latent score with `forward` and `dim` to estimate the "
                f"volume of its set, got {score.forward} and {score.dim}"
            )
    elif not closed and not isinstance(region, Balls):
        of = "" if score is None else f" of the score {type(score).__name__}"
        raise ValueError(
            "expected an Interval, Box, Ellipsoid, Balls or the LevelSet of a Density "
            f"or Latent score, got {type(region).__name__}{of}"
        )


@jit(static_argnames=("num_samples", "sobol"))
def _volume(key, region, num_samples, sobol):
    if isinstance(region, Ellipsoid):
        log_volume = region.log_size()
        return log_volume, jnp.zeros_like(log_volume)
    if isinstance(region, Interval | Box):
        log_volume = _log_box(
            jnp.atleast_1d(region.lower), jnp.atleast_1d(region.upper)
        )
        return log_volume, jnp.zeros_like(log_volume)
    if isinstance(region, Balls):
        centers, radius = as_float(region.centers), as_float(region.radius)
        dtype = jnp.result_type(centers, radius)
        centers = at_least_single(centers.reshape(len(centers), -1))
        radius = radius.astype(centers.dtype)
        found = log_volume_of_balls(key, centers, radius, num_samples, sobol)
        return tuple(v.astype(dtype) for v in _with_rounding(*found))
    score, pred, level = region.score, region.pred, region.level
    if isinstance(score, Density):
        found = log_volume_by_density(key, score, pred, level, num_samples)
        return _with_rounding(*found)
    maps = partial(score.inverse, pred), partial(score.forward, pred)
    found = log_volume_of_image(key, *maps, score.dim, level, num_samples, sobol)
    return _with_rounding(*found)


def _with_rounding(log_volume, error):
    """Returns the estimate with what the arithmetic adds to its error."""
    size = jnp.where(jnp.isfinite(log_volume), 1 + jnp.abs(log_volume), 0)
    rounding = 4 * jnp.finfo(log_volume.dtype).eps * jax.lax.stop_gradient(size)
    return log_volume, error + rounding


def _any_nan(region):
    known = region.level if isinstance(region, LevelSet) else region
    leaves = (as_float(leaf) for leaf in jax.tree.leaves(known))
    unknown = jnp.zeros((), bool)
    return functools.reduce(lambda a, v: a | jnp.any(jnp.isnan(v)), leaves, unknown)


def _log_box(lower, upper):
    solid = jnp.all(upper > lower)
    widths = jnp.where(solid, upper - jnp.where(solid, lower, 0), 1)
    return jnp.where(solid, jnp.sum(jnp.log(widths)), -jnp.inf)
