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

# Memory, and replicates, of one batch on one device: a cache of a core, or a GPU full.
_BUDGET, _BUDGET_ELSEWHERE = {"cpu": 2**24}, 2**30
_WIDEST, _WIDEST_ELSEWHERE = {"cpu": 2**12}, 2**17
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


def layout(
    trial: Callable[[Array], PyTree],
    key: Array,
    num_trials: int,
    batch_size: int | None,
    mesh: Mesh | None,
) -> tuple[int, Mesh | None]:
    """Returns the replicates in a batch of one device, and the mesh to run on.

    None is the default device alone. An automatic batch starts large, and shrinks if
    the compiler says that it would not fit the memory meant for it.
    """
    width = max(min(batch_size or _most(), num_trials), 1)
    if batch_size is None:
        width = min(width, -(-num_trials // _FEW)) or 1
        width = 2 ** (width - 1).bit_length()
        on = _mesh_for(mesh, num_trials, width)
        key_data, impl = _parts(key)
        width = min(width, _width_that_fits(trial, key_data.shape, impl, width, on))
    return width, _mesh_for(mesh, num_trials, width)


def _mesh_for(mesh, num_trials, width):
    if mesh is not None:
        return Mesh(mesh.devices, mesh.axis_names)  # with Auto axes, whatever it had
    devices = jax.devices()
    if jax.process_count() == 1:
        devices = devices[: -(-max(num_trials, 1) // width)]
    if jax.config.jax_default_device is not None or len(devices) == 1:
        return None
    return Mesh(np.array(devices), ("replicates",))


def _most():
    return _WIDEST.get(jax.default_backend(), _WIDEST_ELSEWHERE)


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
        if extended or not isinstance(leaf, _NUMBERS):
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
def _width_that_fits(trial, key_shape, impl, width, mesh):
    key_data = jax.ShapeDtypeStruct(key_shape, jnp.uint32)
    first = jax.ShapeDtypeStruct((), jnp.uint32)
    lowered = _run.lower(key_data, first, trial, impl, width, mesh)
    memory: Any = lowered.compile().memory_analysis()
    if memory is None:  # not known on every kind of device
        return width
    used = memory.temp_size_in_bytes + memory.output_size_in_bytes
    budget = _BUDGET.get(jax.default_backend(), _BUDGET_ELSEWHERE)
    fits = max(budget * width // max(used, 1), 1)
    return 2 ** (int(fits).bit_length() - 1)
