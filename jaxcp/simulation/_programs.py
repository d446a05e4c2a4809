"""One batch of replicates as one program, on one device or on every one of a mesh."""

from __future__ import annotations

import weakref
from types import MethodType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcp.checking.captured import settle, states_of
from jaxcp.typing import PyTree

# Memory, and replicates, of one batch on one device: a cache of a core, or a GPU full.
_BUDGET, _BUDGET_ELSEWHERE = {"cpu": 2**24}, 2**30
_WIDEST, _WIDEST_ELSEWHERE = {"cpu": 2**14}, 2**17
_FEW = 16  # batches that there should be at least: to share out, to report, to save
_KEPT = 32  # programs of a trial
_programs: weakref.WeakKeyDictionary[Any, dict] = weakref.WeakKeyDictionary()


class Batch:
    """Replicates that run at once.

    Args:
      trial: Function of a key that runs.
      key: Key of all replicates.
      width: Replicates of one device, one program however many devices there are.
      mesh: The devices; None is the default device alone.
      state: What distinguishes the trial from what it was at another time.
    """

    def __init__(self, trial, key, width, mesh, state):
        self.key, self.width, self.mesh = key, width, mesh
        self._key_data, impl = parts_of(key)
        self._program = _program(trial, state, impl, width, mesh)

    @property
    def size(self) -> int:
        """Replicates of all devices."""
        return self.width * (1 if self.mesh is None else self.mesh.size)

    def run(self, first: int) -> PyTree:
        """Returns results of replicates first, first + 1, ... with a leading axis."""
        return self._program(self._key_data, np.uint32(first))

    def shapes(self) -> PyTree:
        """Returns shapes and dtypes of the results of one replicate."""
        rows = self._program.eval_shape(self._key_data, np.uint32(0))
        return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype), rows)

    def width_that_fits(self) -> int:
        """Returns how many fit the memory, by the compiler's account of this batch."""
        lowered = self._program.lower(self._key_data, np.uint32(0))
        compiled = lowered.compile()  # kept for `run`
        memory: Any = compiled.memory_analysis()
        if memory is None:  # not known on every kind of device
            return self.width
        used = memory.temp_size_in_bytes + memory.output_size_in_bytes
        budget = _BUDGET.get(jax.default_backend(), _BUDGET_ELSEWHERE)
        fits = max(budget * self.width // max(used, 1), 1)
        return 2 ** (int(fits).bit_length() - 1)


def layout(trial, key, num_trials, batch_size, mesh, digest=None):
    """Returns the batches of a simulation, of the program that has a digest if given.

    An automatic batch starts large, and shrinks if the compiler says that it would not
    fit the memory meant for it.
    """
    state = states_of([trial]), digest

    def batch(width):
        devices = _mesh_for(mesh, num_trials, width)
        return Batch(trial, key, width, devices, state)

    most = _WIDEST.get(jax.default_backend(), _WIDEST_ELSEWHERE)
    width = int(max(min(batch_size or most, num_trials), 1))
    if batch_size is not None:
        return batch(width)
    width = min(width, -(-num_trials // _FEW)) or 1
    found = batch(2 ** (width - 1).bit_length())
    fits = found.width_that_fits() if found.width > 1 else 1
    return batch(fits) if fits < found.width else found


def spans_processes(mesh: Mesh | None) -> bool:
    """Returns whether a simulation on this mesh runs in several processes at once."""
    if mesh is not None:
        return mesh.is_multi_process
    return jax.process_count() > 1 and _default_device() is None


def _mesh_for(mesh, num_trials, width):
    if mesh is not None:
        return Mesh(mesh.devices, mesh.axis_names)  # with Auto axes, whatever it had
    devices = jax.devices()
    if jax.process_count() == 1:
        devices = devices[: -(-max(num_trials, 1) // width)]
    if _default_device() is not None or len(devices) == 1:
        return None
    return Mesh(np.array(devices), ("replicates",))


def _default_device():
    return jax.config.jax_default_device  # type: ignore[attr-defined]  # made by jax


def parts_of(key: Array) -> tuple[np.ndarray, Any]:
    """Returns a key as numbers, which every process can pass, and its kind, if any."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return np.asarray(key), None
    return np.asarray(jax.random.key_data(key)), jax.random.key_impl(key)


def _program(trial, *settings):
    """Returns the jitted program of a batch, kept as long as the trial lives."""
    is_method = isinstance(trial, MethodType)
    owner, name = (trial.__self__, trial.__func__) if is_method else (trial, None)
    try:
        kept = _programs.setdefault(owner, {})
    except TypeError:  # a value that cannot be hashed, or known weakly
        return _compiled(lambda: trial, *settings)
    if (name, settings) not in kept:
        own = weakref.WeakMethod(trial) if is_method else weakref.ref(trial)
        kept[name, settings] = _compiled(own, *settings)
        while len(kept) > _KEPT:
            kept.pop(next(iter(kept)))
    return kept[name, settings]


def _compiled(trial, state, impl, width, mesh):
    """Returns the program `(key_data, first) -> results`."""

    def replicates(key_data, first):
        typed = impl is not None
        key = jax.random.wrap_key_data(key_data, impl=impl) if typed else key_data
        indices = first + jnp.arange(width, dtype=jnp.uint32)
        one = trial()  # it lives: a batch that holds it is being traced
        each = lambda i: checked(one(jax.random.fold_in(key, i)))  # noqa: E731
        results = jax.vmap(each)(indices)
        settle([one], state[0])
        return results

    def on_device(key_data, first):
        place = lax.axis_index(mesh.axis_names).astype(jnp.uint32)
        return replicates(key_data, first + width * place)

    def on_devices(key_data, first):
        axes = P(mesh.axis_names)
        results = jax.shard_map(
            on_device, mesh=mesh, in_specs=P(), out_specs=axes, check_vma=False
        )(key_data, first)
        if mesh.is_multi_process:  # every process gets all of them
            results = lax.with_sharding_constraint(results, NamedSharding(mesh, P()))
        return results

    return jax.jit(replicates if mesh is None else on_devices)


def checked(results: PyTree) -> PyTree:
    """Returns the results of a trial, if there are some."""
    if not jax.tree.leaves(results):
        raise ValueError(f"expected a trial that returns arrays, got {results!r}")
    return results
