"""One batch of replicates as one program, on one device or on every one of a mesh."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcp._types import PyTree

# Memory of one batch on one device: to fit the cache of a core, or to fill a GPU.
_BUDGET = {"cpu": 2**24}
_LARGE_BUDGET = 2**30
_PROBE = 256  # replicates in the program whose memory is measured
_FEW = 16  # batches that there should be at least: to share out, to report, to save


def run_batch(
    trial: Callable[[Array], PyTree],
    key: Array,
    first: int,
    *,
    width: int,
    mesh: Mesh | None,
) -> PyTree:
    """Returns the results of replicates first, first + 1, ... with a leading axis.

    Each device of the mesh runs one program of `width` replicates, the same one however
    many devices there are.
    """
    key_data, impl = _parts(key)
    return _run(key_data, np.uint32(first), trial, impl, width, mesh)


def shapes_of(
    trial: Callable[[Array], PyTree], key: Array, *, width: int, mesh: Mesh | None
) -> PyTree:
    """Returns shapes and dtypes of the results of one replicate."""
    key_data, impl = _parts(key)
    rows = _run.eval_shape(key_data, np.uint32(0), trial, impl, width, mesh)
    return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype), rows)


def automatic_width(
    trial: Callable[[Array], PyTree], key: Array, num_trials: int
) -> int:
    """Returns how many replicates fit the memory of a batch, a power of two."""
    key_data, impl = _parts(key)
    few = max(-(-num_trials // _FEW), 1)
    fits = _width_that_fits(trial, key_data.shape, impl)
    return min(fits, 2 ** (few - 1).bit_length())


def mesh_of(mesh: Mesh | None, num_batches: int) -> Mesh | None:
    """Returns the mesh to run on, None for the default device alone."""
    if mesh is not None:
        return mesh
    devices = jax.devices()
    if jax.process_count() == 1:
        devices = devices[:num_batches]
    if jax.config.jax_default_device is not None or len(devices) == 1:
        return None
    return Mesh(np.array(devices), ("replicates",))


def _parts(key):
    """Returns a key as numbers, which every process can pass, and its kind."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return np.asarray(key), None
    return np.asarray(jax.random.key_data(key)), jax.random.key_impl(key)


@partial(jax.jit, static_argnames=("trial", "impl", "width", "mesh"))
def _run(key_data, first, trial, impl, width, mesh):
    def replicates(key_data, first):
        key = (
            key_data if impl is None else jax.random.wrap_key_data(key_data, impl=impl)
        )
        indices = first + jnp.arange(width, dtype=jnp.uint32)
        return jax.vmap(lambda i: _checked(trial(jax.random.fold_in(key, i))))(indices)

    if mesh is None:
        return replicates(key_data, first)
    axes = mesh.axis_names

    def on_device(key_data, first):
        place = lax.axis_index(axes).astype(jnp.uint32)
        return replicates(key_data, first + width * place)

    shard = jax.shard_map(
        on_device, mesh=mesh, in_specs=P(), out_specs=P(axes), check_vma=False
    )
    results = shard(key_data, first)
    if mesh.is_multi_process:  # every process gets all of them
        results = lax.with_sharding_constraint(results, NamedSharding(mesh, P()))
    return results


_NUMBERS = Array | np.ndarray | np.generic | int | float


def _checked(results):
    """Returns the results of a trial, if all of them are numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(results):
        dtype = getattr(leaf, "dtype", None)
        extended = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended)
        if extended or not isinstance(
            leaf, Array | np.ndarray | np.generic | int | float
        ):
            name, kind = jax.tree_util.keystr(path), type(leaf).__name__
            kind = f"{dtype}" if extended else kind
            raise ValueError(
                f"expected a trial that returns arrays of numbers, got {kind}"
                + (f" at {name}" if name else "")
            )
    if not jax.tree.leaves(results):
        raise ValueError(f"expected a trial that returns arrays, got {results!r}")
    return results


@lru_cache(maxsize=256)
def _width_that_fits(trial, key_shape, impl) -> int:
    key_data = jax.ShapeDtypeStruct(key_shape, jnp.uint32)
    first = jax.ShapeDtypeStruct((), jnp.uint32)
    lowered = _run.lower(key_data, first, trial, impl, _PROBE, None)
    memory: Any = lowered.compile().memory_analysis()
    if memory is None:  # not known on every kind of device
        return _PROBE
    used = memory.temp_size_in_bytes + memory.output_size_in_bytes
    budget = _BUDGET.get(jax.default_backend(), _LARGE_BUDGET)
    fits = max(budget * _PROBE // max(used, 1), 1)
    return 2 ** (int(fits).bit_length() - 1)
