"""Many replicates of one trial: in batches, each a program, and in chunks to save."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcp import _checks
from jaxcp._batching import bar
from jaxcp._tree import explained
from jaxcp.checking.captured import settle, states_of
from jaxcp.simulation import _storage
from jaxcp.simulation._fingerprints import checked, digest_of, parts_of, settings_of
from jaxcp.simulation.statistics import statistics_of
from jaxcp.typing import PyTree

# Memory, and replicates, of one batch on one device: a cache of a core, or a GPU full.
_BUDGET, _BUDGET_ELSEWHERE = {"cpu": 2**24}, 2**30
_WIDEST, _WIDEST_ELSEWHERE = {"cpu": 2**14}, 2**17
_FEW = 16  # batches that there should be at least: to share out, to report, to save
_KEPT = 32  # programs of a trial
_programs: weakref.WeakKeyDictionary[Any, dict] = weakref.WeakKeyDictionary()
# Seconds that a chunk lasts, between these where batches are short enough.
_SHORT, _LONG = 0.5, 2.0
_LARGEST = 2**28  # bytes of results in a chunk, if a batch has fewer
_HOST_CODE = (
    "expected a trial that jax can trace, got one that asks for values, as numpy, "
    "float() and if do; use jax.numpy, jax.pure_callback (with a vmap_method), or "
    "simulation.run_grid on the host"
)
_MOST = 2**32  # replicates that can be told apart by a key


def simulate(
    trial: Callable[[Array], PyTree],
    key: Array,
    num_trials: int,
    *,
    batch_size: int | None = None,
    mesh: Mesh | None = None,
    reduce: Any = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> PyTree:
    """Returns the results of independent replicates of a trial. Call it outside of jit.

    Replicate i gets the key `fold_in(key, i)`. Each device runs batches of one size, a
    jitted, vmapped program each, so that results depend neither on the number of
    devices and processes nor on interruptions, to the last bit. (They depend on the
    batch size, and so on the number of trials, by rounding: XLA may add floats in
    another order.) Define `trial` once and a second call compiles nothing, unless the
    values that it closes over have changed.

    With a checkpoint the simulation can be killed at any time, and the same call, on
    any number of devices, goes on to the same results, to the last bit: each chunk of
    about a second is a file, written whole or not at all. Ctrl-C and SIGTERM then stop
    after the running chunk (a second one at once). More trials than before may be asked
    for. The folder refuses other simulations: another program of the trial or constants
    in it, code of its callbacks or values that they capture, key, statistics, or flags
    of jax.

    Under `jax.distributed` (see `jaxcp.distributed`) all processes make the same call
    and get the same results; process 0 writes the checkpoint.

    Args:
      trial: Pure function of a key that returns a pytree of arrays.
      key: Random key, from `jax.random.key`.
      num_trials: Number of replicates r, at most 2^32.
      batch_size: Replicates at once on each device: a matter of memory and speed only.
        Defaults to as many as fit 16 MiB (a GPU: 1 GiB) by the compiler's account, at
        most 16,384 (a GPU: 131,072) and a 16th of all. Choose it for trials of seconds.
      mesh: Devices that share the replicates, along all axes. Defaults to all devices,
        or to `jax_default_device` if set; no more than there are batches.
      reduce: Statistics in place of results: `simulation.Total()` (integers),
        `simulation.Moments()` or `simulation.Quantiles(levels)`, one for all leaves or
        a pytree of them that is a prefix of the result; None keeps a leaf's values.
      checkpoint: Folder of a simulation to save and to go on with.
      progress: Whether to show a progress bar (needs tqdm).

    Returns:
      The results of `trial` with a leading axis r, or the statistics of these: exact,
      whatever the chunks, in numpy arrays of 64 bits (quantiles: of the leaf's type).

    Raises:
      ValueError: if an argument is out of range, the key is of the kind "rbg", the
        trial turns values that depend on its key into numpy arrays, or returns
        something else than arrays of numbers; a statistic does not fit a result; the
        checkpoint is of another simulation, an earlier version or more trials, is
        damaged or in use; or a callback captures a value without a fingerprint, e.g. an
        open file.
      OSError: if the checkpoint cannot be written. Chunks written before are kept.
      RuntimeError: if another process of the program ended.

    Cost:
      One compilation for a trial and a batch size. Memory of one batch on each device,
      and of the results without `reduce`.

    See also:
      simulation.run_grid, simulation.Moments, simulation.Total, simulation.Quantiles,
      distributed.initialize

    Example:
      >>> trial = lambda key: {"mean": jnp.mean(jax.random.normal(key, (10,)))}
      >>> simulate(trial, jax.random.key(0), num_trials=500)["mean"].shape
      (500,)
      >>> from jaxcp.simulation import Moments
      >>> out = simulate(trial, jax.random.key(0), num_trials=500, reduce=Moments())
      >>> out["mean"].count, out["mean"].mean.dtype
      (500, dtype('float64'))
    """
    _check(key, num_trials, batch_size)
    together = spans_processes(mesh)
    checkpoint = None if checkpoint is None else Path(checkpoint).expanduser()
    try:
        if checkpoint is not None:
            before = partial(_storage.saved_width, checkpoint, num_trials)
            batch_size = batch_size or _storage.from_first(before, together)
        with explained(_HOST_CODE):
            digest = None if checkpoint is None else digest_of(trial, key)
            options = batch_size, mesh, digest
            plan = _Plan(trial, key, int(num_trials), reduce, *options)
        with ExitStack() as stack:
            folder, done = _opened(plan, checkpoint, stack)
            _run_missing(plan, folder, checkpoint is not None, done, progress)
    except jax.errors.JaxRuntimeError as error:
        if not together:
            raise
        kept = f": finished chunks are in {checkpoint}" if checkpoint else ""
        raise RuntimeError(
            "another process of this program ended or cannot be reached; start all "
            f"of them again{kept}"
        ) from error
    return plan.combined(done)


class _Plan:
    """The trial, and how its replicates are shared among devices and processes."""

    def __init__(self, trial, key, num_trials, reduce, batch_size, mesh, digest):
        self.digest, self.num_trials = digest, num_trials
        self.together = spans_processes(mesh)
        self.batch = layout(trial, key, num_trials, batch_size, mesh, digest)
        self.shapes = self.batch.shapes()
        self.statistics = statistics_of(reduce, self.shapes)
        leaves = jax.tree.leaves(self.shapes)
        for statistic, leaf in zip(self.statistics, leaves, strict=True):
            # It may refuse what it cannot do.
            statistic.of_chunk(np.zeros((1, *leaf.shape), leaf.dtype))

    def statistics_of(self, span):
        """Runs the replicates start, ..., stop - 1."""
        start, stop = span
        firsts = range(start, stop, self.batch.size)
        parts = [jax.tree.leaves(self.batch.run(first)) for first in firsts]
        columns = zip(*jax.device_get(parts), strict=True)
        values = [np.concatenate(column)[: stop - start] for column in columns]
        return [s.of_chunk(v) for s, v in zip(self.statistics, values, strict=True)]

    def combined(self, done):
        """Returns the statistics of all chunks together."""
        leaves, structure = jax.tree.flatten(self.shapes)
        chunks = [done[span] for span in sorted(done)]
        pairs = zip(self.statistics, leaves, strict=True)
        combined = [
            statistic.combine([chunk[i] for chunk in chunks], leaf)
            for i, (statistic, leaf) in enumerate(pairs)
        ]
        return jax.tree.unflatten(structure, combined)


def _check(key, num_trials, batch_size):
    _checks.check_key(key)
    kind = str(jax.random.key_impl(key))
    if "rbg" in kind:
        raise ValueError(f"expected a threefry key, got {kind}: vmap changes its draws")
    _checks.check_count("num_trials", num_trials, 0)
    if num_trials > _MOST:
        raise ValueError(f"expected num_trials <= 2^32, got {num_trials}")
    if batch_size is not None:
        _checks.check_count("batch_size", batch_size, 1)


def _opened(plan, path, stack):
    """Returns the folder, in process 0, and the chunks in it, in every process."""
    if path is None:
        return None, {}
    named, _ = jax.tree_util.tree_flatten_with_path(plan.shapes)
    leaves = {jax.tree_util.keystr(place): leaf for place, leaf in named}
    folders = []

    def opened():
        settings = settings_of(plan.digest, plan.batch.key, leaves, plan.statistics)
        settings |= {"batch size": plan.batch.width, "trials": plan.num_trials}
        folders.append(_storage.Checkpoint(path, settings, plan.num_trials))
        stack.callback(folders[0].close)
        return folders[0].load()

    done = _storage.from_first(opened, plan.together)
    return (folders[0] if folders else None), done


def _run_missing(plan, folder, saves, done, progress):
    """Runs the replicates that are not done, in chunks that last about a second."""
    batch, finished = plan.batch.size, sum(stop - start for start, stop in done)
    shown = progress and jax.process_index() == 0
    shows = bar(plan.num_trials, finished, "trial", shown)
    leaves = jax.tree.leaves(plan.shapes)
    num_bytes = batch * sum(v.size * v.dtype.itemsize for v in leaves)
    batches, most = 1, max(_LARGEST // max(num_bytes, 1), 1)
    with shows as advance, _storage.PatientStop(saves) as patient:
        for start, end in _gaps(done, plan.num_trials):
            while start < end:
                began = time.perf_counter()
                span = start, min(start + batches * batch, end)
                done[span] = plan.statistics_of(span)
                seconds, error = time.perf_counter() - began, None
                try:
                    if folder is not None:
                        folder.save(span, done[span])
                except OSError as raised:
                    error = raised
                mine = seconds, patient.signal, error is not None
                seconds, number, failed = _storage.largest(mine, plan.together)
                if failed:
                    raise error or RuntimeError("process 0 could not save its chunk")
                advance(span[1] - start)
                start = span[1]
                if seconds < _SHORT:
                    batches = min(2 * batches, most)
                elif seconds > _LONG:
                    batches = max(batches // 2, 1)
                if number:
                    patient.deliver(int(number))


def _gaps(done, num_trials):
    """Returns the spans of replicates between those that are done."""
    ends = [0, *(stop for _, stop in sorted(done))]
    starts = [*(start for start, _ in sorted(done)), num_trials]
    return [(a, b) for a, b in zip(ends, starts, strict=True) if a < b]


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
