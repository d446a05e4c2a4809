"""Many replicates of one trial: in batches, each a program, and in chunks to save."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Hashable, Iterable
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple

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
from jaxcp.saving.files import read, to_bytes
from jaxcp.simulation import _storage
from jaxcp.simulation._fingerprints import (
    checked,
    content_of,
    digest_of,
    parts_of,
    settings_of,
)
from jaxcp.simulation._memory import num_bytes_of
from jaxcp.simulation.statistics import statistics_of
from jaxcp.typing import PyTree

# Memory, and replicates, of one batch on one device: a cache of a core, or a GPU full.
_BUDGET, _BUDGET_ELSEWHERE = {"cpu": 2**24}, 2**30
_WIDEST, _WIDEST_ELSEWHERE = {"cpu": 2**14}, 2**17
_FEW = 16  # batches that there should be at least: to share out, to report, to save
_KEPT = 32  # states of a trial, and programs of each
_SHARED = 8  # programs that trials of equal content share, whether these live or not
_trials: weakref.WeakKeyDictionary[Any, dict] = weakref.WeakKeyDictionary()
_programs: dict[Hashable, Any] = {}
# Seconds that a chunk lasts, between these where batches are short enough.
_SHORT, _LONG = 0.5, 2.0
_LARGEST = 2**28  # bytes of results in a chunk, if a batch has fewer
_HOST_CODE = (
    "expected a trial that jax can trace, got one that asks for values, as numpy, "
    "float() and if do; use jax.numpy, jax.pure_callback (with a vmap_method), or "
    "simulation.run_grid on the host"
)
_MOST = 2**64  # replicates that can be told apart by a key


def simulate(
    trial: Callable[[Array], PyTree],
    key: Array,
    num_trials: int,
    *,
    span: tuple[int, int] | None = None,
    batch_size: int | None = None,
    mesh: Mesh | None = None,
    reduce: Any = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> PyTree:
    """Returns the results of independent replicates of a trial. Call it outside of jit.

    Replicate i gets the key `fold_in(key, i)`. (From 2^32 on, the high word of i, which
    `fold_in` leaves zero, joins it: the keys are `split(key, num_trials)`, by default.)
    Each device runs batches of one size, a jitted, vmapped program each, so that
    results depend neither on the number of devices and processes nor on interruptions,
    to the last bit. (They depend on the batch size, and so on the number of trials, by
    rounding: XLA may add floats in another order.) A second call compiles nothing,
    unless the values that `trial` closes over have changed; nor does that of a trial
    defined anew that computes the same, without callbacks or arrays of NumPy.

    With a checkpoint the simulation can be killed at any time, and the same call, on
    any number of devices, goes on to the same results, to the last bit: each chunk of
    about a second is a file, written whole or not at all. Ctrl-C and SIGTERM then stop
    after the running chunk (a second one at once). More trials than before may be asked
    for. The folder refuses other simulations: another program of the trial or constants
    in it, code of its callbacks or values that they capture, key, statistics, or flags
    of jax.

    Under `jax.distributed` (see `jaxcp.distributed`) all processes make the same call
    and get the same results; process 0 writes the checkpoint. Machines that do not know
    each other take a `span` and a folder each, and `simulation.merge` returns what one
    run would have returned, to the last bit.

    Args:
      trial: Pure function of a key that returns a pytree of arrays.
      key: Random key, from `jax.random.key`.
      num_trials: Number of replicates r, at most 2^64.
      span: The replicates start, ..., stop - 1 that this call runs, as (start, stop): a
        part of the r, in batches of the same size. Defaults to all.
      batch_size: Replicates at once on each device: a matter of memory and speed only.
        Defaults to as many as fit 16 MiB (a GPU: 1 GiB) by the sizes in the trial, at
        most 16,384 (a GPU: 131,072) and a 16th of all. Choose it for trials of seconds.
      mesh: Devices that share the replicates, along all axes. Defaults to all devices,
        or to `jax_default_device` if set; no more than there are batches.
      reduce: Statistics in place of results: `simulation.Total()` (integers),
        `simulation.Moments()` or `simulation.Quantiles(levels)`, one for all leaves or
        a pytree of them that is a prefix of the result; None keeps a leaf's values.
      checkpoint: Folder of a simulation, or a span of one, to save and to go on with.
      progress: Whether to show a progress bar (needs tqdm).

    Returns:
      The results of `trial` with a leading axis r (the length of the span), or the
      statistics of these: exact, whatever the chunks, in numpy arrays of 64 bits
      (quantiles: of the leaf's type).

    Raises:
      ValueError: if an argument is out of range, the key is of the kind "rbg", the
        trial turns values that depend on its key into numpy arrays, or returns
        something else than arrays of numbers; a statistic does not fit a result; the
        checkpoint is of another simulation or an earlier version, has other replicates,
        is damaged or in use; a callback captures a value without a fingerprint, e.g. an
        open file; or a file of a span cannot hold the kind of results (see `save`).
      OSError: if the checkpoint cannot be written. Chunks written before are kept.
      RuntimeError: if another process of the program ended.

    Cost:
      One compilation for a trial and a batch size. Memory of one batch on each device,
      and of the results without `reduce`.

    See also:
      simulation.merge, simulation.run_grid, simulation.Moments, simulation.Total,
      simulation.Quantiles, distributed.initialize

    Example:
      >>> trial = lambda key: {"mean": jnp.mean(jax.random.normal(key, (10,)))}
      >>> simulate(trial, jax.random.key(0), num_trials=500)["mean"].shape
      (500,)
      >>> from jaxcp.simulation import Moments
      >>> out = simulate(trial, jax.random.key(0), num_trials=500, reduce=Moments())
      >>> out["mean"].count, out["mean"].mean.dtype
      (500, dtype('float64'))
    """
    span = (0, num_trials) if span is None else span
    _check(key, num_trials, span, batch_size)
    together = spans_processes(mesh)
    checkpoint = None if checkpoint is None else Path(checkpoint).expanduser()
    try:
        if checkpoint is not None:
            before = partial(_storage.saved_width, checkpoint, num_trials)
            batch_size = batch_size or _storage.from_first(before, together)
        with explained(_HOST_CODE):
            digest = None if checkpoint is None else digest_of(trial, key)
            count, options = int(num_trials), (batch_size, mesh, digest)
            plan = _Plan(trial, key, count, tuple(map(int, span)), reduce, *options)
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
    return _combined(plan.shapes, plan.statistics, done)


def merge(
    folders: str | Path | Iterable[str | Path],
    *,
    types: type | tuple[type, ...] = (),
    **functions: Any,
) -> PyTree:
    """Returns what one run of a simulation would have returned, from folders of spans.

    Each folder is a checkpoint of `simulate` with a span of the same simulation. They
    have all its replicates, each once, as machines that do not know each other leave
    them. The trial is not needed.

    Args:
      folders: The folders in any order, or the folder that they are in.
      types: Classes of your own that occur in the results, as for `load`.
      **functions: Functions that occur in the results, as for `load`.

    Returns:
      The results or the statistics of all replicates, to the last bit.

    Raises:
      ValueError: if there is no folder, or one is no checkpoint, damaged, or of another
        simulation, statistic or batch size (sums of floats might round in another way);
        or if replicates are in two folders, in none, or not done yet.

    Cost:
      One read of each file. Memory for the values twice, where they are kept: without
      `reduce`, and for `Quantiles`.

    See also:
      simulate

    Example:
      >>> import tempfile
      >>> key, reduce = jax.random.key(0), jaxcp.simulation.Total()
      >>> high = lambda key: jax.random.uniform(key) > 0.5
      >>> with tempfile.TemporaryDirectory() as out:
      ...     for i, span in enumerate([(0, 300), (300, 1000)]):  # on any machines
      ...         options = {"span": span, "checkpoint": f"{out}/{i}"}
      ...         _ = jaxcp.simulate(high, key, 1000, reduce=reduce, **options)
      ...     whole = merge(out)
      >>> bool(whole == jaxcp.simulate(high, key, 1000, reduce=reduce))
      True
    """
    if isinstance(folders, str | Path):
        folders = sorted(Path(folders).expanduser().glob("[!.]*/"))
    paths = [Path(folder).expanduser() for folder in folders]
    strange = [str(path) for path in paths if not _storage.is_of_span(path)]
    if strange or not paths:
        got = ", ".join(strange) or "none"
        raise ValueError(f"expected folders of spans of a simulation, got {got}")
    settings: dict = {path: _storage.read_settings(path) for path in paths}
    first, like = next(iter(settings.items()))
    for path, found in settings.items():
        _storage.check_same(first, like, found, _storage.MAY_DIFFER, f" in {path}")
    _check_whole(settings)
    with (first / _storage.ABOUT).open("rb") as file:
        about = read(file, file.name, types, functions)
    done: dict = {}
    for path, found in settings.items():
        done |= _storage.read_chunks(path, found)
    return _combined(_of_one(about["results"]), about["statistics"], done)


def _check_whole(settings):
    """Raises ValueError unless each replicate is in one folder, and done."""
    whole = {path: (0, found["trials"]) for path, found in settings.items()}
    every = [(*s.get("span", whole[path]), path) for path, s in settings.items()]
    spans = sorted(span for span in every if span[0] < span[1])
    num_trials = max(found["trials"] for found in settings.values())
    twice = [
        f"{start} to {min(stop, end) - 1} in {one} and in {other}"
        for (_, stop, one), (start, end, other) in pairwise(spans)
        if start < stop
    ]
    left = _gaps([span for *span, _ in spans], (0, num_trials))
    none = [f"{start} to {stop - 1} in no folder" for start, stop in left]
    todo = [
        f"{start} to {stop - 1} not yet in {path}"
        for *span, path in spans
        for start, stop in _gaps(_storage.chunks_of(path), span)
    ]
    if wrong := twice or none + todo:
        got = f"replicates {', '.join(wrong)}"
        raise ValueError(f"expected all {num_trials} replicates once, got {got}")


class _Plan:
    """The trial, and how its replicates are shared among devices and processes."""

    def __init__(self, trial, key, num_trials, span, reduce, batch_size, mesh, digest):
        self.digest, self.num_trials, self.span = digest, num_trials, span
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


def _combined(shapes, statistics, done):
    """Returns the statistics of all chunks together."""
    leaves, structure = jax.tree.flatten(shapes)
    chunks = [done[span] for span in sorted(done)]
    pairs = zip(statistics, leaves, strict=True)
    whole = [
        statistic.combine([chunk[i] for chunk in chunks], leaf)
        for i, (statistic, leaf) in enumerate(pairs)
    ]
    return jax.tree.unflatten(structure, whole)


def _check(key, num_trials, span, batch_size):
    _checks.check_key(key)
    kind = str(jax.random.key_impl(key))
    if kind != "threefry2x32":
        raise ValueError(f"expected a threefry key, got {kind}: vmap changes its draws")
    _checks.check_count("num_trials", num_trials, 0)
    if num_trials > _MOST:
        raise ValueError(f"expected num_trials <= 2^64, got {num_trials}")
    if np.shape(span) != (2,):
        raise ValueError(f"expected span as (start, stop), got {span!r}")
    start, stop = span
    _checks.check_count("span[0]", start, 0)
    _checks.check_count("span[1]", stop, start)
    _checks.check_count("num_trials", num_trials, stop)
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
        settings |= {"span": plan.span}
        folders.append(_storage.Checkpoint(path, settings, _about(plan)))
        stack.callback(folders[0].close)
        return _storage.read_chunks(path, settings)

    done = _storage.from_first(opened, plan.together)
    return (folders[0] if folders else None), done


def _about(plan):
    """Returns the file of results without rows; an empty one if none can hold them."""
    none = jax.tree.map(lambda v: np.zeros((0, *v.shape), v.dtype), plan.shapes)
    about = {"results": none, "statistics": plan.statistics}
    try:
        return to_bytes(about)
    except ValueError:
        if plan.span != (0, plan.num_trials):  # which `merge` could not read
            raise
        return b""


def _run_missing(plan, folder, saves, done, progress):
    """Runs the replicates that are not done, in chunks that last about a second."""
    batch, finished = plan.batch.size, sum(stop - start for start, stop in done)
    shown = progress and jax.process_index() == 0
    shows = bar(plan.span[1] - plan.span[0], finished, "trial", shown)
    leaves = jax.tree.leaves(plan.shapes)
    num_bytes = batch * sum(v.size * v.dtype.itemsize for v in leaves)
    batches, most = 1, max(_LARGEST // max(num_bytes, 1), 1)
    with shows as advance, _storage.PatientStop(saves) as patient:
        for start, end in _gaps(done, plan.span):
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


def _gaps(done, span):
    """Returns what is left of a span between those that are done."""
    ends = [span[0], *(stop for _, stop in sorted(done))]
    starts = [*(start for start, _ in sorted(done)), span[1]]
    return [(a, b) for a, b in zip(ends, starts, strict=True) if a < b]


class Batch:
    """Replicates that run at once.

    Args:
      trial: The program of one key, and the shapes of its results.
      key: Key of all replicates.
      width: Replicates of one device, one program however many devices there are.
      mesh: The devices; None is the default device alone.
    """

    def __init__(self, trial, key, width, mesh):
        self.key, self.width, self.mesh = key, width, mesh
        self._key_data, impl = parts_of(key)
        self._structure = jax.tree.structure(trial.traced.out_info)
        self._program = _program(trial, impl, width, mesh)

    @property
    def size(self) -> int:
        """Replicates of all devices."""
        return self.width * (1 if self.mesh is None else self.mesh.size)

    def run(self, first: int) -> PyTree:
        """Returns results of replicates first, first + 1, ... with a leading axis."""
        leaves = self._program(self._key_data, _words(first))
        return jax.tree.unflatten(self._structure, leaves)

    def shapes(self) -> PyTree:
        """Returns shapes and dtypes of the results of one replicate."""
        leaves = self._program.eval_shape(self._key_data, _words(0))
        return _of_one(jax.tree.unflatten(self._structure, leaves))

    def width_that_fits(self) -> int:
        """Returns how many fit the memory, by the compiler's account of this batch."""
        lowered = self._program.lower(self._key_data, _words(0))
        compiled = lowered.compile()  # kept for `run`
        memory: Any = compiled.memory_analysis()
        if memory is None:  # not known on every kind of device
            return self.width
        used = memory.temp_size_in_bytes + memory.output_size_in_bytes
        return _fitting(used / self.width)


def _fitting(num_bytes: float) -> int:
    """Returns how many replicates of so many bytes fit the memory, a power of two."""
    budget = _BUDGET.get(jax.default_backend(), _BUDGET_ELSEWHERE)
    return 2 ** (int(max(budget / max(num_bytes, 1), 1)).bit_length() - 1)


def _of_one(rows):
    """Returns shapes and dtypes of one of the replicates."""
    return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype), rows)


def _words(index):
    """Returns the high and the low word of a number of 64 bits."""
    return np.array([index >> 32, index & 0xFFFFFFFF], np.uint32)


def _plus(words, more):
    """Returns numbers in two words plus numbers in one: the sum wraps if it carries."""
    low = words[1] + more
    return jnp.stack([words[0] + (low < more), low])


def layout(trial, key, num_trials, batch_size, mesh, digest=None):
    """Returns the batches of a simulation, of the program that has a digest if given.

    An automatic batch fits the memory meant for it by the sizes in the trial, and one
    is compiled. It shrinks where the compiler says that it takes more than twice that.
    """
    one = _traced(trial, (states_of([trial]), digest), key)

    def batch(width):
        return Batch(one, key, width, _mesh_for(mesh, num_trials, width))

    most = _WIDEST.get(jax.default_backend(), _WIDEST_ELSEWHERE)
    width = int(max(min(batch_size or most, num_trials), 1))
    if batch_size is not None:
        return batch(width)
    width = min(width, -(-num_trials // _FEW)) or 1
    widest = 2 ** (width - 1).bit_length()
    found = batch(min(widest, _fitting(num_bytes_of(one.traced.jaxpr.jaxpr))))
    fits = found.width_that_fits() if found.width > 1 else 1
    return batch(fits) if 2 * fits < found.width else found


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


class _Traced(NamedTuple):
    """A trial as a program of one key, and its batches by their settings."""

    traced: Any
    batches: dict


def _traced(trial: Any, state: Hashable, key: Array) -> _Traced:
    """Returns a trial in a state as a program, kept as long as the trial lives."""
    is_method = isinstance(trial, MethodType)
    owner, name = (trial.__self__, trial.__func__) if is_method else (trial, None)
    try:
        kept = _trials.setdefault(owner, {})
    except TypeError:  # a value that cannot be hashed, or known weakly
        return _Traced(_jitted(lambda: trial, state).trace(key), {})
    if (name, state) not in kept:
        own = weakref.WeakMethod(trial) if is_method else weakref.ref(trial)
        kept[name, state] = _jitted(own, state), {}
        _forget(kept, _KEPT)
    one, batches = kept[name, state]
    return _Traced(one.trace(key), batches)


def _jitted(trial: Callable[[], Any], state: Any) -> Any:
    """Returns a trial that is known weakly, to be traced."""

    def results_of(key):
        one = trial()  # it lives: a call that holds it is tracing
        results = checked(one(key))
        settle([one], state[0])
        return results

    return jax.jit(results_of)


def _program(trial: _Traced, *settings: Any) -> Any:
    """Returns the jitted program of a batch: that of a trial with equal content."""
    one = trial.traced.jaxpr
    if (one, settings) not in trial.batches:
        content = content_of(one)
        place = content, settings
        found = _programs.pop(place, None) or _compiled(one, *settings)
        if content is not None:
            _programs[place] = found
            _forget(_programs, _SHARED)
        trial.batches[one, settings] = found
        _forget(trial.batches, _KEPT)
    return trial.batches[one, settings]


def _forget(kept: dict, most: int) -> None:
    """Forgets the oldest of what is kept."""
    while len(kept) > most:
        kept.pop(next(iter(kept)))


def _compiled(one: Any, impl: Any, width: int, mesh: Any) -> Any:
    """Returns the program `(key_data, first) -> leaves of results` of one of a key."""
    from jax.extend.core import jaxpr_as_fun
    from jax.extend.random import threefry_2x32

    def replicates(key_data, first):
        def each(i):  # fold_in(key, i), whose counter has two words
            key = threefry_2x32(key_data, _plus(first, i))
            key = key if impl is None else jax.random.wrap_key_data(key, impl=impl)
            return jaxpr_as_fun(one)(key)

        return jax.vmap(each)(jnp.arange(width, dtype=jnp.uint32))

    def on_device(key_data, first):
        place = lax.axis_index(mesh.axis_names).astype(jnp.uint32)
        return replicates(key_data, _plus(first, width * place))

    def on_devices(key_data, first):
        axes = P(mesh.axis_names)
        results = jax.shard_map(
            on_device, mesh=mesh, in_specs=P(), out_specs=axes, check_vma=False
        )(key_data, first)
        if mesh.is_multi_process:  # every process gets all of them
            results = lax.with_sharding_constraint(results, NamedSharding(mesh, P()))
        return results

    return jax.jit(replicates if mesh is None else on_devices)
