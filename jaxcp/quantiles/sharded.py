"""Thresholds of scores that are spread over devices, or over machines."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcp import _checks
from jaxcp._arrays import as_arrays, is_concrete, narrowed, on_host
from jaxcp._counting import count_true
from jaxcp.quantiles.conformal import threshold_at
from jaxcp.quantiles.levels import alpha_as_float, as_alpha, conformal_rank
from jaxcp.typing import ArrayLike


def sharded_conformal_quantile(
    scores: ArrayLike,
    alpha: ArrayLike,
    mesh: Mesh,
    *,
    mask: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    test_weight: ArrayLike | None = None,
) -> Array:
    """Returns the conformal quantile of scores spread over the devices of a mesh.

    It is that of all scores together, to the last bit: the k-th smallest, k = n + 1 -
    floor(alpha (n + 1)). Rows are padded to equal shards and stay where they are.

    Args:
      scores: Nonconformity scores, shape (n, ...): an array on the host (the same in
        each process of a program), or a jax array, which may be spread over processes.
      alpha: Miscoverage level, broadcastable with scores.shape[1:]; for scores of shape
        (n,) it may hold several levels, shape (a,).
      mesh: Devices, from `jax.make_mesh`; rows are spread along all of its axes.
      mask: True where a row counts, shape (n,). Defaults to all rows.
      weights: Weights >= 0, shape (n,), for scores of shape (n,).
      test_weight: Weight of the test point, shape (), if there are weights.
        Defaults to 1.

    Returns:
      Threshold, shape broadcast(scores.shape[1:], alpha.shape), dtype of `scores`, the
      same on every device. NaN scores count as +inf.

    Raises:
      ValueError: if lengths differ, `mesh` is no mesh, a concrete weight is negative,
        or above 1 where `test_weight` is left out, or a number `alpha` is outside
        (0, 1).

    Guarantee:
      That of `conformal_quantile`, with weights that of `weighted_conformal_quantile`.

    Assumption:
      Those of `conformal_quantile` and `weighted_conformal_quantile`.

    Cost:
      O(n / devices) time on each device. A threshold of 32 bits takes two sums of
      65,536 counts over the devices; scores stay where they are.

    See also:
      conformal_quantile, weighted_conformal_quantile, distributed.initialize

    Example:
      >>> mesh = jax.make_mesh((jax.device_count(),), ("rows",))
      >>> sharded_conformal_quantile(jnp.arange(1.0, 10.0), 0.2, mesh)
      Array(8., dtype=float32)
    """
    _checks.check_kind("mesh from jax.make_mesh", mesh, Mesh)
    mesh = Mesh(mesh.devices, mesh.axis_names)  # with Auto axes, whatever it had
    _checks.check_given(scores=scores)
    columns = {"scores": scores, "mask": mask, "weights": weights}
    scores, mask, weights = (_as_rows(*item) for item in columns.items())
    n = _checks.num_rows(scores=scores, mask=mask, weights=weights)
    _checks.check_vectors(mask=mask, weights=weights)
    if mask is not None:
        _checks.check_flags("mask as flags or 0 and 1", mask)
        mask = mask.astype(bool)
    if weights is not None:
        _checks.check_vectors(scores=scores)
        _checks.check_weights("weights", weights, mask)
    _checks.check_test_weights("test_weight", test_weight, weights, mask)
    if weights is None:
        count = n if mask is None else count_true(mask)
        scores, mask = _spread((scores, mask), n, mesh)
        return _sharded(mesh, scores, conformal_rank(count, alpha), mask)
    test_weight = 1.0 if test_weight is None else test_weight
    _checks.check_scalars(test_weight=test_weight)
    _checks.check_weights("test_weight", test_weight)
    alpha = alpha_as_float(as_alpha(alpha))
    weights = weights if mask is None else jnp.where(mask, weights, 0)
    scores, weights = _spread((scores, weights), n, mesh)
    return _sharded(mesh, scores, alpha, None, weights, jnp.asarray(test_weight, float))


def _as_rows(name, x):
    """Returns rows where they are: those of the host are not copied to a device."""
    if x is None or isinstance(x, Array):
        return x
    numeric = isinstance(x, np.ndarray)
    return narrowed(on_host(name, x if numeric else as_arrays(**{name: x})))


def _spread(columns, n, mesh):
    """Returns columns padded to equal shards, on their devices; masks hide the pad."""
    pad = -n % mesh.size
    scores, mass = columns
    if pad and mass is None:
        mass = np.ones(n, bool)
    rows = NamedSharding(mesh, P(mesh.axis_names))

    def place(x):
        if not is_concrete(x):  # also rows that are spread over processes
            return _padded(x, pad, rows)
        if isinstance(x, np.ndarray):  # in the type that devices will give it
            x = x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False)
        widths = ((0, pad),) + ((0, 0),) * (x.ndim - 1)
        x = (jnp if isinstance(x, Array) else np).pad(x, widths) if pad else x
        return jax.device_put(x, rows)

    return place(scores), None if mass is None else place(mass)


@partial(jax.jit, static_argnames=("pad", "rows"))
def _padded(x, pad, rows):
    padded = jnp.pad(x, ((0, pad),) + ((0, 0),) * (x.ndim - 1))
    return lax.with_sharding_constraint(padded, rows)


@partial(jax.jit, static_argnames="mesh")
def _sharded(mesh, scores, rank, mask, weights=None, test_weight=None):
    rows = P(mesh.axis_names)
    of_shard = partial(threshold_at, axis_name=mesh.axis_names)
    specs = rows, P(), rows, rows, P()
    of_all = jax.shard_map(of_shard, mesh=mesh, in_specs=specs, out_specs=P())
    return of_all(scores, rank, mask, weights, test_weight)
