"""Average volumes of sets in several dimensions."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_arrays
from jaxcp._batching import map_evenly
from jaxcp._pytree import pytree
from jaxcp._tracing import jit
from jaxcp.metrics import _sets
from jaxcp.typing import ArrayLike, Set
from jaxcp.volumes import volume

_AT_A_TIME = 64  # sets whose volumes are estimated side by side


@pytree
class MeanVolume:
    """Volumes of many sets and their averages. Made by `mean_volume`.

    Args:
      log_volumes: Log volume of each set, shape (m,).
      errors: Standard error of each log volume, shape (m,).
    """

    log_volumes: Array
    errors: Array

    @property
    def mean(self) -> Array:
        """Returns the mean volume, shape (); +inf if a set is the whole space."""
        return jnp.mean(jnp.exp(self.log_volumes))

    @property
    def geometric_mean(self) -> Array:
        """Returns the geometric mean, shape (): one large set does not rule it."""
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
    key: Array, sets: Set | ArrayLike, num_samples: int = 1000, *, sobol: bool = False
) -> MeanVolume:
    """Returns the mean and the geometric mean of the volumes of sets.

    Args:
      key: Random key; set i gets fold_in(key, i).
      sets: Sets with leading axis m, in R^d.
      num_samples: Number of points for each set that has no closed form.
      sobol: Whether these are scrambled Sobol points (see `jaxcp.volume`).

    Returns:
      A `MeanVolume`: `mean`, `geometric_mean`, and `log_volumes` with their `errors`.

    Raises:
      ValueError: as `jaxcp.volume`.

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
    return _mean_volume(key, sets, jnp.arange(m), num_samples, sobol)


@jit(static_argnames=("num_samples", "sobol"))
def _mean_volume(key, sets, indices, num_samples, sobol):
    def one(region, i):
        return volume(jax.random.fold_in(key, i), region, num_samples, sobol=sobol)

    return MeanVolume(*map_evenly(one, sets, indices, at_a_time=_AT_A_TIME))
