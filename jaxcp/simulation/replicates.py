"""Many replicates of one trial, in chunks: to report, to save, to stop after."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from jaxcp import _checks
from jaxcp._batching import bar
from jaxcp._tree import explained
from jaxcp.simulation._fingerprints import digest_of, settings_of
from jaxcp.simulation._programs import layout, spans_processes
from jaxcp.simulation._storage import (
    Checkpoint,
    PatientStop,
    Span,
    Statistics,
    from_first,
    largest,
    saved_width,
)
from jaxcp.simulation.statistics import statistics_of
from jaxcp.typing import PyTree

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
            before = partial(saved_width, checkpoint, num_trials)
            batch_size = batch_size or from_first(before, together)
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

    def statistics_of(self, span: Span) -> Statistics:
        """Runs the replicates start, ..., stop - 1."""
        start, stop = span
        firsts = range(start, stop, self.batch.size)
        parts = [jax.tree.leaves(self.batch.run(first)) for first in firsts]
        columns = zip(*jax.device_get(parts), strict=True)
        values = [np.concatenate(column)[: stop - start] for column in columns]
        return [s.of_chunk(v) for s, v in zip(self.statistics, values, strict=True)]

    def combined(self, done: dict[Span, Statistics]) -> PyTree:
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
        raise ValueError(
            f"expected a threefry key, got {kind}: under vmap, draws of one depend on "
            "the batch"
        )
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
        folders.append(Checkpoint(path, settings, plan.num_trials))
        stack.callback(folders[0].close)
        return folders[0].load()

    done = from_first(opened, plan.together)
    return (folders[0] if folders else None), done


def _run_missing(plan, folder, saves, done, progress):
    """Runs the replicates that are not done, in chunks that last about a second."""
    batch, finished = plan.batch.size, sum(stop - start for start, stop in done)
    shown = progress and jax.process_index() == 0
    shows = bar(plan.num_trials, finished, "trial", shown)
    leaves = jax.tree.leaves(plan.shapes)
    num_bytes = batch * sum(v.size * v.dtype.itemsize for v in leaves)
    batches, most = 1, max(_LARGEST // max(num_bytes, 1), 1)
    with shows as advance, PatientStop(saves) as patient:
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
                seconds, number, failed = largest(mine, plan.together)
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


def _gaps(done: dict[Span, Statistics], num_trials: int) -> list[Span]:
    """Returns the spans of replicates between those that are done."""
    ends = [0, *(stop for _, stop in sorted(done))]
    starts = [*(start for start, _ in sorted(done)), num_trials]
    return [(a, b) for a, b in zip(ends, starts, strict=True) if a < b]
