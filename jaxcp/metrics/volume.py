"""Average volumes of sets in several dimensions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_arrays
from jaxcp._batching import map_evenly
from jaxcp._pytree import pytree
from jaxcp._tracing import jit
from jaxcp.metrics import _sets
from jaxcp.typing import ArrayLike, HasEnds, HasShapes, Set
from jaxcp.volumes import volume
from jaxcp.volumes.estimate import finite_ends

_AT_A_TIME = 64  # sets whose volumes are estimated side by side


@pytree
class MeanVolume:
    """Volumes of many sets and their averages. Made by `mean_volume`.

    Args:
      log_volumes: Log volume of each set, shape (m,).
      errors: Standard error of each log volume, shape (m,).

    See also:
      metrics.mean_volume, volume
    """

    log_volumes: Array
    errors: Array

    @property
    def mean(self) -> Array:
        """Returns the mean volume, shape (); +inf if a set is the whole space."""
        return jnp.mean(jnp.exp(self.log_volumes))

    @property
    def geometric_mean(self) -> Array:
        """Returns the geometric mean, shape (): one large set does not dominate it."""
        whole = jnp.any(self.log_volumes == jnp.inf)
        return jnp.where(whole, jnp.inf, jnp.exp(jnp.mean(self.log_volumes)))

    @property
    def standard_error(self) -> Array:
        """Returns the standard error of the mean volume over sets, shape ()."""
        finite = jnp.all(self.log_volumes < jnp.inf)
        volumes = jnp.exp(jnp.where(finite, self.log_volumes, 0))
        error = jnp.std(volumes) / jnp.sqrt(len(volumes))
        return jnp.where(finite, error, jnp.inf)


def mean_volume(
    key: Array,
    sets: Set | ArrayLike,
    num_samples: int = 1000,
    *,
    sobol: bool = False,
    within: HasEnds | None = None,
) -> MeanVolume:
    """Returns the mean and the geometric mean of the volumes of sets.

    Args:
      key: Random key; set i gets fold_in(key, i).
      sets: Sets with leading axis m, in R^d.
      num_samples: Number of points for each set that has no closed form.
      sobol: Whether these are scrambled Sobol points (see `jaxcp.volume`).
      within: A finite `Box`, or an `Interval` for targets of one number, with ends of
        shape (d,) or (), or with a leading axis m for one each: what lies in it is
        measured, also of sets known by membership alone.

    Returns:
      A `MeanVolume`: `mean`, `geometric_mean`, and `log_volumes` with their `errors`.

    Raises:
      ValueError: as `jaxcp.volume`.

    Cost:
      One `volume` for each of m sets: `num_samples` points where there is no closed
      form.

    See also:
      volume, metrics.mean_size, sets.Balls

    Example:
      >>> from jaxcp.sets import Box
      >>> boxes = Box(jnp.zeros((2, 2)), jnp.array([[1.0, 1.0], [2.0, 2.0]]))
      >>> volumes = mean_volume(jax.random.key(0), boxes)
      >>> round(volumes.mean.item(), 4), round(volumes.geometric_mean.item(), 4)
      (2.5, 2.0)
    """
    sets = as_arrays(sets=_sets.as_sets(sets))
    m = _checks.num_rows(sets=sets)
    _checks.check_key(key)
    _checks.check_count("num_samples", num_samples, 1)
    boxes = None if within is None else _boxes(within, m)
    _checks.num_rows(sets=sets, within=boxes)
    return _mean_volume(key, sets, boxes, jnp.arange(m), num_samples, sobol)


def _boxes(within, m):
    """Returns one box for each of m sets."""
    ends = finite_ends(within)
    _checks.check_kind("within as a Box or an Interval", within, HasShapes)
    if ends[0].ndim == len(within.target_shape()):
        ends = tuple(jnp.broadcast_to(v, (m, *v.shape)) for v in ends)
    return within.with_ends(*ends)


@jit(static_argnames=("num_samples", "sobol"))
def _mean_volume(key, sets, boxes, indices, num_samples, sobol):
    def one(region, box, i):
        key_one = jax.random.fold_in(key, i)
        return volume(key_one, region, num_samples, sobol=sobol, within=box)

    return MeanVolume(*map_evenly(one, sets, boxes, indices, at_a_time=_AT_A_TIME))
