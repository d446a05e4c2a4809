"""The volume of what lies in a box, by membership of uniform points."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from jaxcp._batching import map_evenly
from jaxcp._numbers import at_least_single
from jaxcp.volumes import _points

_AT_A_TIME = 2**14  # points whose membership is found side by side


def log_volume_in_box(
    key: Array,
    contains: Callable[[Array], Array],
    lower: Array,
    upper: Array,
    num_samples: int,
    sobol: bool,
) -> tuple[Array, Array]:
    """Returns the log volume of the part of a set in a box and its standard error.

    The box has ends of shape () or (d,), as targets have; flat or crossed it is empty.
    """
    wide = at_least_single(jnp.stack([lower, upper]).reshape(2, -1))
    widths = wide[1] - wide[0]
    solid = jnp.all(widths > 0)
    u = _points.uniforms(key, num_samples, widths.size, widths.dtype, sobol)
    y = wide[:1] + widths[None] * u
    y = lax.stop_gradient(y).astype(lower.dtype).reshape(-1, *lower.shape)
    inside = map_evenly(contains, y, at_a_time=_AT_A_TIME)
    share = jnp.mean(inside.astype(widths.dtype))
    seen = share > 0
    safe = jnp.where(seen, share, 1)
    log_box = jnp.sum(jnp.log(jnp.where(solid, widths, 1)))
    log_volume = jnp.where(solid & seen, log_box + jnp.log(safe), -jnp.inf)
    # sd(1(Y in C)) / (sqrt(n) p), for p the share inside
    error = jnp.sqrt((1 - safe) / (safe * num_samples))
    error = jnp.where(seen, error, jnp.inf)
    return log_volume, jnp.where(solid, error, 0)
