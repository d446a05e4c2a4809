"""The volume of one set, in closed form or estimated."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_arrays
from jaxcp._numbers import as_float, unless_nan
from jaxcp._tracing import jit
from jaxcp.typing import HasEnds, HasEstimate, HasLabels, HasLogSize, Set
from jaxcp.volumes.boxes import log_volume_in_box


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
    return as_float(lower), as_float(upper)


def check_one(region: Any, ndim: int) -> None:
    """Raises ValueError for a batch of sets, with `ndim` leading axes."""
    if ndim:
        raise ValueError(
            f"expected one {type(region).__name__}, got several: use jax.vmap or "
            "metrics.mean_volume"
        )


@jit(static_argnames=("num_samples", "sobol"))
def _volume_within(key, region, lower, upper, num_samples, sobol):
    if isinstance(region, HasLabels):
        kind = type(region).__name__
        raise ValueError(f"expected a set in R^d, got {kind}: metrics.sizes counts")
    if lower.ndim > 1 or lower.shape != upper.shape:
        shapes = f"{lower.shape} and {upper.shape}"
        raise ValueError(f"expected within as one box, ends (d,), got ends {shapes}")
    check_one(region, _num_axes(region, lower))
    found = log_volume_in_box(key, region.contains, lower, upper, num_samples, sobol)
    return unless_nan((region, lower, upper), _with_rounding(*found))


def _num_axes(region, y):
    """Returns the number of leading axes of sets."""
    try:
        return jax.eval_shape(region.contains, y).ndim
    except ValueError:  # as of one target for each of several sets
        if isinstance(region, Sized) and _has_length(region):
            return 1
        raise


def _has_length(region):
    try:
        return len(region) >= 0
    except TypeError:  # one set
        return False


@jit(static_argnames=("num_samples", "sobol"))
def _volume(key, region, num_samples, sobol):
    if isinstance(region, HasLogSize):
        log_volume = region.log_size()
        check_one(region, log_volume.ndim)
        return unless_nan(region, (log_volume, jnp.zeros_like(log_volume)))
    if isinstance(region, HasEstimate):
        return _with_rounding(*region.estimate_log_size(key, num_samples, sobol=sobol))
    raise ValueError(
        "expected within, a Box, or a set with log_size() or estimate_log_size(key, "
        "num_samples), as an Interval, Box, Ellipsoid, Balls or the LevelSet of a "
        f"Density or Latent score, got {type(region).__name__}"
    )


def _with_rounding(log_volume, error):
    """Returns the estimate with what the arithmetic adds to its error."""
    size = jnp.where(jnp.isfinite(log_volume), 1 + jnp.abs(log_volume), 0)
    rounding = 4 * jnp.finfo(log_volume.dtype).eps * lax.stop_gradient(size)
    return log_volume, error + rounding
