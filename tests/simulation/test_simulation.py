import gc
import hashlib
import json
import math
import os
import resource
import shutil
import signal
import sys
import threading
import time
import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp.scores import Absolute
from jaxcp.simulation import Moments, Quantiles, Total, merge, replicates
from jaxcp.simulation._storage import PatientStop
from jaxcp.simulation.replicates import layout


def trial(key):
    x = jax.random.normal(key, (5,))
    return {"mean": jnp.mean(x), "all": x, "count": jnp.sum(x > 0)}


STATISTICS = {"mean": Moments(), "all": Quantiles((0.1, 0.5)), "count": Total()}


def mesh_of(count):
    return jax.make_mesh((count,), ("shards",), devices=jax.devices()[:count])


def digest(tree):
    leaves = [np.asarray(v) for v in jax.tree.leaves(tree)]
    return hashlib.sha256(b"".join(v.tobytes() for v in leaves)).hexdigest()


def test_results_do_not_depend_on_the_batch_size(key):
    one = jaxcp.simulate(trial, key, 23)
    for batch_size in [1, 4, 23, 100]:
        other = jaxcp.simulate(trial, key, 23, batch_size=batch_size)
        jax.tree.map(assert_array_equal, one, other)
    assert one["all"].shape == (23, 5)
    longer = jaxcp.simulate(trial, key, 30)
    assert_array_equal(longer["all"][:23], one["all"])
    assert len(np.unique(longer["mean"])) == 30


def test_a_replicate_is_the_trial_of_its_key(key):
    every = jaxcp.simulate(trial, key, 9, batch_size=2)
    alone = jax.jit(trial)(jax.random.fold_in(key, 7))
    jax.tree.map(lambda v, w: assert_allclose(v[7], w, rtol=1e-6), every, alone)


@pytest.mark.parametrize("reduce", [None, STATISTICS], ids=["values", "statistics"])
def test_results_do_not_depend_on_the_devices(reduce, key):
    options = {"batch_size": 4, "reduce": reduce}
    alone = jaxcp.simulate(trial, key, 50, mesh=mesh_of(1), **options)
    for count in (2, 4):
        mesh = mesh_of(count)
        assert digest(jaxcp.simulate(trial, key, 50, mesh=mesh, **options)) == digest(
            alone
        )
    square = jax.make_mesh((2, 2), ("a", "b"))
    assert digest(jaxcp.simulate(trial, key, 50, mesh=square, **options)) == digest(
        alone
    )
    assert digest(jaxcp.simulate(trial, key, 50, **options)) == digest(alone)


def test_statistics_are_those_of_the_values(key):
    values = jax.tree.map(np.asarray, jaxcp.simulate(trial, key, 400))
    out = jaxcp.simulate(trial, key, 400, batch_size=7, reduce=STATISTICS)
    assert out["count"] == values["count"].sum() and out["count"].dtype == np.int64
    mean = values["mean"].astype(float)
    assert out["mean"].count == 400
    assert out["mean"].mean == math.fsum(mean) / 400
    assert_allclose(out["mean"].variance, np.var(mean, ddof=1), rtol=1e-12)
    assert_allclose(out["mean"].standard_error, np.std(mean, ddof=1) / 20, rtol=1e-12)
    assert (out["mean"].minimum, out["mean"].maximum) == (mean.min(), mean.max())
    quantile = np.quantile(values["all"], [0.1, 0.5], axis=0, method="inverted_cdf")
    assert_array_equal(out["all"], quantile)
    partly = jaxcp.simulate(trial, key, 400, reduce=STATISTICS | {"all": None})
    assert_array_equal(partly["all"], values["all"])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, bool])
def test_moments_are_exact(dtype):
    """Whatever the order and the sizes: against sums of fractions."""
    rng = np.random.default_rng(0)
    scale = 10.0 ** rng.integers(-3, 4, (90, 3))
    values = (rng.normal(size=(90, 3)) * scale).astype(dtype)
    leaf = jax.ShapeDtypeStruct((3,), np.float32)
    whole = Moments().combine([Moments().of_chunk(values)], leaf)
    shuffled = rng.permutation(values)
    cuts = [shuffled[:1], shuffled[1:50], shuffled[50:]]
    parts = Moments().combine([Moments().of_chunk(v) for v in cuts], leaf)
    jax.tree.map(assert_array_equal, whole, parts)
    wide = values.astype(float)
    means = [float(sum(map(Fraction, column)) / 90) for column in wide.T.tolist()]
    assert_array_equal(whole.mean, means)
    assert_allclose(whole.variance, wide.var(axis=0, ddof=1), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_moments_and_totals_of_large_integers(dtype):
    """Neither doubles nor 64 bits hold their squares and sums."""
    largest = np.iinfo(dtype).max - 9
    values = np.full(40, largest, dtype) + np.arange(40).astype(dtype) % 3
    leaf = jax.ShapeDtypeStruct((), dtype)
    chunks = [values[:15], values[15:]]
    out = Moments().combine([Moments().of_chunk(v) for v in chunks], leaf)
    whole = [int(v) for v in values]
    assert out.mean == float(Fraction(sum(whole), 40))
    assert_allclose(out.variance, np.var(np.arange(40) % 3, ddof=1), rtol=1e-12)
    assert Total().combine([Total().of_chunk(v) for v in chunks], leaf) == sum(whole)
    quantiles = Quantiles(0.5)
    picked = quantiles.combine([quantiles.of_chunk(v) for v in chunks], leaf)
    assert picked == sorted(whole)[19] and picked.dtype == dtype


def test_quantiles_read_levels_as_decimals():
    leaf = jax.ShapeDtypeStruct((), np.float32)
    chunk = {"values": np.arange(1.0, 11.0, dtype=np.float32)}
    for level in (0.1, np.float32(0.1), Fraction(1, 10)):
        assert Quantiles((level,)).combine([chunk], leaf) == 1.0
    empty = jax.ShapeDtypeStruct((0,), np.float32)
    none = {"values": np.zeros((3, 0), np.float32)}
    assert Quantiles((0.1, 0.5)).combine([none], empty).shape == (2, 0)
    with pytest.raises(ValueError, match=r"numbers in \(0, 1\], got \[True\]"):
        Quantiles((True,))


def test_results_with_nothing_in_a_field(key):
    def trial(key):
        preds, y = jnp.zeros(9), jax.random.normal(key, (9,))
        return {"cp": jaxcp.calibrate(Absolute(), preds, y), "none": None}

    out = jaxcp.simulate(trial, key, 7)
    assert out["cp"].scores.shape == (7, 9) and out["cp"].weights is None
    mean = jaxcp.simulate(trial, key, 7, reduce=Moments())["cp"].scores.mean
    assert_allclose(mean, out["cp"].scores.mean(axis=0), rtol=1e-6)


def test_counts_of_numpy_and_keys_of_other_kinds(key):
    out = jaxcp.simulate(trial, key, np.int64(40))
    assert digest(out) == digest(jaxcp.simulate(trial, key, 40, batch_size=np.int8(4)))
    legacy = jaxcp.simulate(trial, jax.random.PRNGKey(0), 40)
    assert_array_equal(legacy["all"], out["all"])
    with pytest.raises(ValueError, match=r"expected a threefry key, got .*rbg"):
        jaxcp.simulate(trial, jax.random.key(0, impl="rbg"), 4)


def test_trials_are_let_go(key):
    """What a trial closes over is kept as long as the trial."""
    data = np.zeros(10)
    alive = weakref.ref(data)
    jaxcp.simulate(lambda key, data=data: jax.random.normal(key) + data[0], key, 1)
    del data
    gc.collect()
    assert alive() is None


def test_moments_say_where_values_are_not_finite():
    big = np.finfo(float).max
    columns = [[1, np.inf], [np.inf, -np.inf], [1, np.nan], [big, big], [3, 1]]
    values = np.array(columns, float).T
    leaf = jax.ShapeDtypeStruct((5,), float)
    out = Moments().combine([Moments().of_chunk(v[None]) for v in values], leaf)
    assert_array_equal(out.mean, [np.inf, np.nan, np.nan, big, 2])
    assert_array_equal(out.variance, [np.nan] * 4 + [2])
    assert_array_equal(out.maximum, [np.inf, np.inf, np.nan, big, 3])
    alone = Moments().combine([Moments().of_chunk(values[:1])], leaf)
    assert np.isnan(alone.variance).all()


def test_totals_count_beyond_single_precision():
    ones = np.ones(2**20, np.int32)
    leaf = jax.ShapeDtypeStruct((), np.int32)
    chunks = [Total().of_chunk(ones * 2**12) for _ in range(3)]
    assert Total().combine([*chunks, Total().of_chunk(ones[:1])], leaf) == 3 * 2**32 + 1


def test_no_trials_keep_their_shapes(key):
    empty = jaxcp.simulate(trial, key, 0)
    assert empty["all"].shape == (0, 5)
    assert empty["count"].dtype == jaxcp.simulate(trial, key, 1)["count"].dtype
    none = jaxcp.simulate(trial, key, 0, reduce=STATISTICS)
    assert none["count"] == 0 and none["mean"].count == 0
    assert np.isnan(none["mean"].mean) and np.isnan(none["all"]).all()
    assert none["all"].shape == (2, 5)


def test_second_call_traces_nothing(key):
    traces = []

    def counted(key):
        traces.append(1)
        return jax.random.normal(key)

    jaxcp.simulate(counted, key, 20, batch_size=5)
    jaxcp.simulate(counted, jax.random.key(1), 40, batch_size=5)
    jaxcp.simulate(counted, key, 64)
    jaxcp.simulate(counted, jax.random.key(1), 64)
    assert len(traces) == 1  # for all batch sizes


READS = """
import jax, jax.numpy as jnp

size, table = {size}, jnp.array({table})
def helper(x):
    return {helper}

def made(scale):
    def trial(key):
        return helper(scale * jax.random.normal(key, (size,)) + table)
    return trial

trial = made({scale})
"""
READ = {"size": 3, "table": "[0.5]", "helper": "jnp.sum(x)", "scale": 2}


def read(**changes):
    """Returns a trial of a text that is run anew, with other numbers or helpers."""
    names = {}
    exec(READS.format(**READ | changes), names)
    return names["trial"]


@pytest.fixture
def batches():
    """The batches that are compiled from here on; none is known from before."""
    found: list[str] = []

    def note(event, duration, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            found.extend({*about.values()} & {"jit(replicates)", "jit(on_devices)"})

    replicates._programs.clear()
    jax.monitoring.register_event_duration_secs_listener(note)
    yield found
    jax.monitoring.unregister_event_duration_listener(note)


def test_a_trial_that_is_defined_anew_uses_the_program_there_is(key, batches):
    first = jaxcp.simulate(read(), key, 40, batch_size=5)
    assert len(batches) == 1
    gc.collect()  # the trial is gone, and its program is not
    again = jaxcp.simulate(read(), key, 40, batch_size=5)
    assert len(batches) == 1
    assert_array_equal(first, again)


@pytest.mark.parametrize(
    "change",
    [
        {"scale": "2.5"},
        {"size": "4"},
        {"table": "[0.25]"},
        {"helper": "jnp.max(x)"},
        {"helper": "(jnp.sum(x), size)"},
    ],
    ids=str,
)
def test_a_trial_that_reads_other_values_is_another_program(change, key, batches):
    first = jaxcp.simulate(read(), key, 40, batch_size=5)
    other = jaxcp.simulate(read(**change), key, 40, batch_size=5)
    assert len(batches) == 2
    expected = jax.jit(read(**change))(jax.random.fold_in(key, 7))
    jax.tree.map(lambda v, w: assert_allclose(v[7], w, rtol=1e-6), other, expected)
    assert not np.array_equal(jax.tree.leaves(first)[0][7], expected)


@pytest.mark.parametrize("values", [(1, 1.0), (1, True), (np.float32(1), np.int8(1))])
def test_numbers_of_other_types_are_other_programs(values, key, batches):
    made = lambda v: lambda key: (jnp.asarray(v), jax.random.bits(key))  # noqa: E731
    for count, value in enumerate(values, 1):
        found, _ = jaxcp.simulate(made(value), key, 8, batch_size=4)
        assert found.dtype == jnp.asarray(value).dtype
        assert len(batches) == count


def test_results_in_other_places_share_a_program(key, batches):
    """The same numbers, under names of their own."""
    bits = jaxcp.simulate(lambda key: jax.random.bits(key), key, 8, batch_size=4)
    named = jaxcp.simulate(
        lambda key: {"b": jax.random.bits(key)}, key, 8, batch_size=4
    )
    assert len(batches) == 1
    assert_array_equal(named["b"], bits)


def test_draws_are_those_of_the_flag_of_now(key):
    """Of the same trial, one that is defined anew, and one that sets it itself."""

    def made(*flag):
        def trial(key):
            with jax.threefry_partitionable(*flag) if flag else nullcontext():
                return jax.random.normal(key, (3,))

        return trial

    lasting = made()
    for flag in (True, False, True):
        with jax.threefry_partitionable(flag):
            expected = jax.random.normal(jax.random.fold_in(key, 1), (3,))
            for trial in (lasting, made(), made(flag)):
                found = jaxcp.simulate(trial, key, 2)[1]
                assert_allclose(found, expected, rtol=1e-6)


def test_arrays_of_numpy_may_change_in_place(key):
    table = np.zeros(3)  # in double precision: jax keeps a copy of its own
    made = lambda: lambda key: jnp.sum(table)  # noqa: E731
    for total in (0, 3):
        assert_array_equal(jaxcp.simulate(made(), key, 2), np.full(2, total))
        table += 1
        gc.collect()


def test_trials_with_callbacks_share_no_program(key):
    """What the host does may change: each calls its own, and dies with it."""

    def made(offset):
        like = jax.ShapeDtypeStruct((), np.float32)
        on_host = lambda x: np.float32(x + offset[0])  # noqa: E731
        return lambda key: jax.pure_callback(
            on_host, like, jnp.float32(1), vmap_method="sequential"
        )

    offsets = [0.0], [0.0]
    trials = [made(offset) for offset in offsets]
    for trial in trials:
        assert_array_equal(jaxcp.simulate(trial, key, 2), np.ones(2))
    offsets[1][0] = 1.0
    assert_array_equal(jaxcp.simulate(trials[0], key, 2), np.ones(2))
    assert_array_equal(jaxcp.simulate(trials[1], key, 2), np.full(2, 2.0))
    gone = weakref.ref(trials[0])
    del trials, trial
    gc.collect()
    assert gone() is None


def test_the_last_block_of_the_readme_compiles_its_trial_once(batches):
    """Its automatic batch fits by the sizes in it: one program, not one too wide."""

    def trial(key):
        x, y = jaxcp.datasets.linear(key, 100, num_features=1)
        cp = jaxcp.calibrate(Absolute(), x[:99, 0], y[:99])
        return jaxcp.metrics.coverage(cp(x[99:, 0], alpha=0.1), y[99:])

    layout(trial, jax.random.key(4), 100_000, None, mesh_of(1)).run(0)
    assert len(batches) == 1


def test_automatic_batches_fit_their_memory(key):
    """A trial of 4 MiB: few at once, where a small one runs by the hundreds."""

    def width(size):
        trial = lambda key: jnp.cumsum(jax.random.normal(key, (size,)))[-1] > 0  # noqa: E731
        return layout(trial, key, 10**6, None, mesh_of(1)).width

    assert width(10) == 2**14
    assert 1 <= width(2**20) <= 4


def test_progress_needs_tqdm(key, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match="tqdm"):
        jaxcp.simulate(trial, key, 10, batch_size=3, progress=True)


def test_progress_is_shown(key, capfd):
    jaxcp.simulate(trial, key, 10, batch_size=3, progress=True)
    assert "10.0/10.0" in capfd.readouterr().err


def test_checkpoints_go_on(key, tmp_path):
    """With another batch size, more trials, other devices; nothing runs twice."""
    path = tmp_path / "run" / "one"
    whole = digest(jaxcp.simulate(trial, key, 60, reduce=STATISTICS))
    options = {"reduce": STATISTICS, "checkpoint": path}
    jaxcp.simulate(trial, key, 25, batch_size=4, mesh=mesh_of(1), **options)
    before = {p.name: p.read_bytes() for p in path.glob("*.npz")}
    more = jaxcp.simulate(trial, key, 60, batch_size=7, mesh=mesh_of(2), **options)
    assert digest(more) == whole
    assert all((path / name).read_bytes() == v for name, v in before.items())
    spans = sorted(tuple(map(int, p.stem.split("-"))) for p in path.glob("*.npz"))
    assert [a for a, _ in spans] == [0, *(b for _, b in spans[:-1])]
    assert spans[-1][1] == 60
    next(path.glob("*.npz")).unlink()  # a gap is filled
    assert digest(jaxcp.simulate(trial, key, 60, **options)) == whole
    values = jaxcp.simulate(trial, key, 30, batch_size=9, checkpoint=tmp_path / "raw")
    again = jaxcp.simulate(trial, key, 30, checkpoint=tmp_path / "raw")
    assert digest(values) == digest(again)


def test_checkpoints_of_narrow_floats(key, tmp_path):
    half = lambda key: jax.random.normal(key, (2,), jnp.bfloat16)  # noqa: E731
    first = jaxcp.simulate(half, key, 8, batch_size=2, checkpoint=tmp_path / "c")
    again = jaxcp.simulate(half, key, 8, checkpoint=tmp_path / "c")
    assert again.dtype == jnp.bfloat16
    assert_array_equal(first, again)


def closing_over(constant):
    constant = jnp.asarray(constant)
    inner = jax.jit(lambda x: x * constant)
    return lambda key: inner(jax.random.normal(key))


def test_another_simulation_is_refused(key, tmp_path):
    path = tmp_path / "c"
    one, other = closing_over([1.0, 2.0]), closing_over([1.0, 3.0])
    jaxcp.simulate(one, key, 10, batch_size=5, checkpoint=path)
    kept = sorted(p.name for p in path.iterdir())
    with pytest.raises(ValueError, match=r"trial .*, got trial"):
        jaxcp.simulate(other, key, 10, checkpoint=path)
    with pytest.raises(ValueError, match=r"with key \[0, 0\], got key \[0, 1\]"):
        jaxcp.simulate(one, jax.random.key(1), 10, checkpoint=path)
    with pytest.raises(ValueError, match=r"statistics .*Every.*got statistics .*Mom"):
        jaxcp.simulate(one, key, 10, checkpoint=path, reduce=Moments())
    with pytest.raises(ValueError, match=r"results .*float\d\d\[2\].*got results"):
        jaxcp.simulate(lambda k: jnp.zeros(3), key, 10, checkpoint=path)
    with pytest.raises(ValueError, match=r"num_trials >= 10, got .*, fewer than in"):
        jaxcp.simulate(one, key, 9, checkpoint=path)
    assert sorted(p.name for p in path.iterdir()) == kept
    jaxcp.simulate(closing_over([1.0, 2.0]), key, 10, checkpoint=path)  # the same


DAMAGED = "expected the settings of a simulation in .*json, got a file that is damaged"


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("backup.npz", "", r"no files but its own in the folder .*, got .*backup\.npz"),
        ("00-10 (1).npz", "", r"no files but its own in the folder .*\(1\)\.npz; move"),
        ("simulation.json", "", DAMAGED),
        ("simulation.json", '{"trials": 1', DAMAGED),
        ("simulation.json", "[1]", DAMAGED),
        ("simulation.json", "{}", DAMAGED),
        ("simulation.json", '{"trials": 10, "span": 3}', DAMAGED),
    ],
)
def test_damaged_folders_are_told_in_words(file, content, message, key, tmp_path):
    jaxcp.simulate(trial, key, 10, checkpoint=tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        jaxcp.simulate(trial, key, 10, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=message):
        merge([tmp_path])


def test_hidden_folders_are_no_spans(key, tmp_path):
    jaxcp.simulate(trial, key, 10, checkpoint=tmp_path / "a")
    (tmp_path / ".hidden").mkdir()
    assert len(merge(tmp_path)["all"]) == 10


def test_spans_and_statistics_of_another_kind(key):
    with pytest.raises(ValueError, match=r"span as \(start, stop\), got 3"):
        jaxcp.simulate(trial, key, 10, span=3)
    with pytest.raises(
        ValueError, match=r"statistics, such as simulation.Mom.*got str"
    ):
        jaxcp.simulate(trial, key, 10, reduce="mean")


def test_folders_that_cannot_be_checkpoints(key, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match=r"got .* with thesis\.tex"):
        jaxcp.simulate(trial, key, 3, checkpoint=tmp_path)
    with pytest.raises(OSError, match=r"thesis\.tex"):
        jaxcp.simulate(trial, key, 3, checkpoint=tmp_path / "thesis.tex" / "c")
    path = tmp_path / "c"
    jaxcp.simulate(trial, key, 6, batch_size=3, checkpoint=path)
    with (path / ".lock").open("w") as lock:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="no other process is using"):
            jaxcp.simulate(trial, key, 7, checkpoint=path)
        jaxcp.simulate(trial, key, 6, checkpoint=path)  # nothing to write
    first = min(path.glob("*.npz"))
    whole = first.read_bytes()
    for damaged in (whole[:50], b"", whole):
        first.write_bytes(damaged)
        if damaged is whole:  # another number of values than its name says
            first.rename(path / "0000000000-0000000002.npz")
        with pytest.raises(ValueError, match=r"chunk .*-.*\.npz, which cannot be read"):
            jaxcp.simulate(trial, key, 6, checkpoint=path)
    (path / "0000000000-0000000002.npz").unlink()
    (path / "notes.npz").write_bytes(whole)
    with pytest.raises(ValueError, match=r"no files but its own .*notes"):
        jaxcp.simulate(trial, key, 6, checkpoint=path)
    (path / "notes.npz").unlink()
    for damaged in ('{"key"', "[" * 10**5):
        (path / "simulation.json").write_text(damaged)
        with pytest.raises((ValueError, RecursionError)):
            jaxcp.simulate(trial, key, 6, checkpoint=path)


def test_a_full_disk_keeps_earlier_chunks(key, tmp_path):
    """A limit on the size of files stands in for a disk without room."""
    wide = lambda key: jax.random.normal(key, (3000,))  # noqa: E731
    path = tmp_path / "c"
    options = {"batch_size": 2, "mesh": mesh_of(1), "checkpoint": path}
    jaxcp.simulate(wide, key, 2, **options)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, hard))
    try:
        with pytest.raises(OSError, match="large") as caught:
            jaxcp.simulate(wide, key, 6, **options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "the same call goes on at 2" in caught.value.__notes__[0]
    assert [p.name for p in path.glob("*.npz")] == ["0000000000-0000000002.npz"]
    assert not list(path.glob("*.draft"))
    out = jaxcp.simulate(wide, key, 6, **options)
    assert_array_equal(out, jaxcp.simulate(wide, key, 6, batch_size=2))


def test_trials_may_be_objects_with_arrays(key):
    @jax.tree_util.register_dataclass
    @dataclass(frozen=True)
    class Scaled:
        scale: jax.Array

        def __call__(self, key):
            return self.scale * jax.random.normal(key)

    scaled = Scaled(jnp.array([1.0, 2.0]))  # its hash would be that of an array
    out = jaxcp.simulate(scaled, key, 5)
    assert_array_equal(out, jaxcp.simulate(lambda key: scaled(key), key, 5))
    assert_array_equal(jaxcp.simulate(partial(Scaled.__call__, scaled), key, 5), out)


def test_checkpoints_go_on_with_their_batch_size(key, tmp_path):
    """So that a sum of many floats has the same bits, whoever goes on."""
    mean = lambda key: jnp.mean(jax.random.normal(key, (99,)))  # noqa: E731
    path = tmp_path / "c"
    whole = digest(jaxcp.simulate(mean, key, 300, batch_size=5, checkpoint=path))
    for chunk in list(path.glob("*.npz"))[1:]:
        chunk.unlink()
    assert digest(jaxcp.simulate(mean, key, 300, checkpoint=path)) == whole
    # Many more trials have a size of their own: one at a time would take long.
    jaxcp.simulate(mean, key, 20_000, checkpoint=path)
    assert json.loads((path / "simulation.json").read_text())["batch size"] > 1000


@pytest.mark.parametrize("name", ["values", "count"])
def test_chunks_that_do_not_fit_are_refused(name, key, tmp_path):
    reduce = {"values": None, "count": Moments()}[name]
    options = {"batch_size": 2, "mesh": mesh_of(1), "reduce": reduce}
    one = lambda key: jax.random.normal(key)  # noqa: E731
    path = tmp_path / "c"
    jaxcp.simulate(one, key, 6, checkpoint=path, **options)
    first = path / "0000000000-0000000002.npz"
    whole = first.read_bytes()
    for other in ("0000000000-0000000003", "0000000001-0000000004"):
        (path / f"{other}.npz").write_bytes(whole)
        with pytest.raises(ValueError, match="chunks that do not overlap, got"):
            jaxcp.simulate(one, key, 6, checkpoint=path, **options)
        (path / f"{other}.npz").unlink()
    with np.load(first) as file:
        arrays = dict(file)
    wrong = {"values": np.zeros(2, complex), "count": np.asarray(7)}[name]
    for damaged in (arrays | {f"0.{name}": wrong}, {"1.sum": wrong}, {}):
        np.savez(first, **damaged)
        with pytest.raises(ValueError, match=r"0000000002\.npz, which cannot be read"):
            jaxcp.simulate(one, key, 6, checkpoint=path, **options)


def flipped(path, part):
    """Returns the bytes of a file with another digit in an array."""
    whole = path.read_bytes()
    assert whole.count(part) == 1
    return whole.replace(part, bytes([part[0] ^ 1]) + part[1:])


def test_chunks_are_those_that_were_written(key, tmp_path):
    """Not copies of others, nor of another simulation, nor with a changed digit."""
    options = {"batch_size": 2, "mesh": mesh_of(1)}
    one = lambda key: jax.random.normal(key)  # noqa: E731
    path, other = tmp_path / "c", tmp_path / "other"
    whole = jaxcp.simulate(one, key, 4, checkpoint=path, **options)
    jaxcp.simulate(one, jax.random.key(1), 2, checkpoint=other, **options)
    first, second = sorted(path.glob("*.npz"))  # of the same length
    with np.load(first) as file:
        arrays = dict(file)
    part = arrays["1.0.values"].tobytes()
    (changed := tmp_path / "changed.npz").write_bytes(flipped(first, part))
    np.savez(unsealed := tmp_path / "unsealed.npz", **{"0.values": np.ones(2)})
    np.savez_compressed(small := tmp_path / "small.npz", **arrays)
    for source, message in [
        (changed, "Bad CRC-32"),
        (unsealed, "expected a file of jaxcp.save"),
        (small, "entries without compression, and not"),
        (next(other.glob("*.npz")), "of another simulation"),
        (second, "of other replicates"),
    ]:
        shutil.copy(source, first)
        with pytest.raises(
            ValueError, match=rf"{message}.*\); without that file its rep"
        ):
            jaxcp.simulate(one, key, 4, checkpoint=path, **options)
    first.unlink()
    again = jaxcp.simulate(one, key, 4, checkpoint=path, **options)
    assert_array_equal(again, whole)


def test_sums_of_a_tampered_chunk_are_refused():
    """At once: some texts that Fraction reads would take it for ever."""
    chunk, leaf = Moments().of_chunk(np.ones(2)), jax.ShapeDtypeStruct((), float)
    texts = ["1e3000000", "nan", "1/0", "1.5", "", " 1", "1_0", "٣", "1/-2", "9" * 5000]
    for text in texts:
        changed = chunk | {"sum": np.asarray(text)}
        with pytest.raises(ValueError, match="expected a fraction of two integers"):
            Moments().combine([changed], leaf)


def test_sums_of_the_largest_and_smallest_floats_can_be_read():
    values = np.array([[1e149, 5e-324]] * 8 + [[-1e149, 1.7e308]])
    leaf = jax.ShapeDtypeStruct((2,), float)
    out = Moments().combine([Moments().of_chunk(values)], leaf)
    assert_allclose(out.mean, [7e149 / 9, 1.7e308 / 9])


def calling_back(host, call):
    def trial(key):
        x = jax.random.normal(key)
        return call(host, jax.ShapeDtypeStruct((), x.dtype), x)

    return trial


def pure(host, shape, x):
    return jax.pure_callback(host, shape, x, vmap_method="sequential")


def inside(host, shape, x):
    called = jax.jit(lambda x: pure(host, shape, x))
    return jax.lax.cond(x > 0, called, lambda x: x, x)


def aside(host, shape, x):
    jax.debug.callback(host, x)
    return x


def times(factor):
    return lambda x: np.asarray(factor * x, x.dtype)


@pytest.mark.parametrize("call", [pure, io_callback, inside, aside])
def test_other_code_on_the_host_is_another_trial(call, key, tmp_path):
    options = {"batch_size": 2, "checkpoint": tmp_path}
    jaxcp.simulate(calling_back(times(1), call), key, 4, **options)
    jaxcp.simulate(calling_back(times(1), call), key, 6, **options)
    for other in (times(1000), lambda x: np.asarray(-x)):
        with pytest.raises(ValueError, match=r"trial .*, got trial"):
            jaxcp.simulate(calling_back(other, call), key, 8, **options)
    with pytest.raises(ValueError, match=r"with a generator; leave it out of the tri"):
        strange = calling_back(times(n for n in [1]), call)
        jaxcp.simulate(strange, key, 8, checkpoint=tmp_path / "new")


def test_other_flags_are_another_simulation(key, tmp_path):
    one = lambda key: jax.random.bits(key, (3,), "uint16") > 9  # noqa: E731
    before = jax.config.jax_threefry_partitionable
    jaxcp.simulate(one, key, 2, checkpoint=tmp_path)
    with (
        jax.threefry_partitionable(not before),
        pytest.raises(ValueError, match=r"flags .*threefry.*got flags .*choose anoth"),
    ):
        jaxcp.simulate(one, key, 4, checkpoint=tmp_path)


class Largest:
    """A statistic without a repr of its own."""

    def __init__(self, at_most):
        self.at_most = at_most

    def of_chunk(self, values):
        return {"most": np.minimum(values.max(axis=0), self.at_most)}

    def combine(self, chunks, leaf):
        return np.max([c["most"] for c in chunks], axis=0)


class Named(Largest):
    def __repr__(self):
        return "Named"


@pytest.mark.parametrize("kind", [Largest, Named])
def test_own_statistics_are_told_by_class_and_fields(kind, key, tmp_path):
    one = lambda key: jax.random.normal(key)  # noqa: E731
    jaxcp.simulate(one, key, 5, reduce=kind(0.3), checkpoint=tmp_path)
    out = jaxcp.simulate(one, key, 9, reduce=kind(0.3), checkpoint=tmp_path)
    assert out == jaxcp.simulate(one, key, 9, reduce=kind(0.3))
    other = {Largest: Named, Named: Largest}[kind]
    for statistic in (kind(0.4), other(0.3)):
        with pytest.raises(ValueError, match=r"statistics .*got statistics \["):
            jaxcp.simulate(one, key, 9, reduce=statistic, checkpoint=tmp_path)


def test_a_finished_checkpoint_is_only_read(key, tmp_path):
    """With settings that may change, and beside a writer of something else."""
    path = tmp_path / "c"
    one = lambda key: jax.random.normal(key)  # noqa: E731
    whole = jaxcp.simulate(one, key, 6, batch_size=3, checkpoint=path)
    (path / ".lock").unlink()
    (path / ".0.npz.draft").write_text("")
    state = lambda: sorted((p.name, p.stat().st_mtime_ns) for p in path.iterdir())  # noqa: E731
    before = state(), path.stat().st_mtime_ns
    again = jaxcp.simulate(one, key, 6, batch_size=2, checkpoint=path)
    assert_array_equal(again, whole)
    assert (state(), path.stat().st_mtime_ns) == before


def test_a_lock_is_no_link(key, tmp_path):
    (tmp_path / "precious").write_text("precious")
    path = tmp_path / "c"
    path.mkdir()
    (path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=r"c/\.lock"):
        jaxcp.simulate(trial, key, 3, checkpoint=path)
    assert (tmp_path / "precious").read_text() == "precious"
    (path / ".lock").unlink()
    jaxcp.simulate(trial, key, 3, checkpoint=path)


def test_checkpoints_of_an_earlier_version_are_refused(key, tmp_path):
    jaxcp.simulate(trial, key, 3, checkpoint=tmp_path)
    path = tmp_path / "simulation.json"
    settings = json.loads(path.read_text())
    del settings["format"], settings["flags"]
    path.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="format None, got format 3"):
        jaxcp.simulate(trial, key, 3, checkpoint=tmp_path)


def test_numpy_inside_of_a_trial_is_explained(key):
    for host in (np.sort, lambda x: np.asarray(x)[0], lambda x: {"a": np.median(x)}):
        one = lambda key, host=host: host(jax.random.normal(key, (3,)))  # noqa: E731
        for options in ({}, {"batch_size": 2}):
            with pytest.raises(ValueError, match=r"use jax\.numpy.*run_grid") as caught:
                jaxcp.simulate(one, key, 3, **options)
            assert isinstance(
                caught.value.__cause__, jax.errors.TracerArrayConversionError
            )


def test_a_signal_is_delivered_once(key, tmp_path):
    """To a handler that only takes note, and also if the chunk cannot be saved."""
    noted = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: noted.append(number))
    try:
        with PatientStop() as patient:
            signal.raise_signal(signal.SIGTERM)
            assert noted == [] and patient.signal == signal.SIGTERM
            patient.deliver(patient.signal)
            assert noted == [signal.SIGTERM] and patient.signal == 0
        with pytest.raises(OSError, match="full"), PatientStop():
            signal.raise_signal(signal.SIGTERM)
            raise OSError("full")
        assert noted == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_waits_for_the_chunk(key, tmp_path):
    """Also after some chunks: it acts where the loop lets it, and all is saved."""

    def interrupt():
        while len(list(tmp_path.glob("c/*.npz"))) < 4:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(number, frame):
        raise InterruptedError

    before = signal.signal(signal.SIGTERM, stop)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        options = {"batch_size": 4, "checkpoint": tmp_path / "c"}
        with pytest.raises(InterruptedError) as caught:
            jaxcp.simulate(trial, key, 10**8, **options)
    finally:
        signal.signal(signal.SIGTERM, before)
        thread.join()
    assert "deliver" in [entry.name for entry in caught.traceback]
    assert len(list(tmp_path.glob("c/*.npz"))) >= 4


def test_what_trials_may_return(key):
    number = jaxcp.simulate(lambda key: 1.0, key, 3)
    assert_array_equal(number, np.ones(3))
    with pytest.raises(ValueError, match="returns arrays, got None"):
        jaxcp.simulate(lambda key: None, key, 3)
    for bad in ("text", {"a": {"b": "text"}}, {"k": key}, np.array(["a"])):
        with pytest.raises((ValueError, TypeError)):
            jaxcp.simulate(lambda key, bad=bad: bad, key, 3)


def test_a_trial_that_changes_shape_is_refused(key, tmp_path):
    sizes = iter(range(1, 9))
    growing = lambda key: jax.random.normal(key, (next(sizes),))  # noqa: E731
    path = tmp_path / "c"
    with pytest.raises(ValueError, match=r"(results|another)"):
        jaxcp.simulate(growing, key, 4, batch_size=2, checkpoint=path)
        jaxcp.simulate(growing, key, 4, batch_size=1, checkpoint=path)
    shutil.rmtree(path)


def test_errors(key):
    for name, value, message in [
        ("num_trials", -1, "num_trials as an int >= 0, got -1"),
        ("num_trials", 2**64 + 1, r"num_trials <= 2\^64"),
        ("span", (2, 1), r"span\[1\] as an int >= 2, got 1"),
        ("span", (-1, 1), r"span\[0\] as an int >= 0, got -1"),
        ("span", (2, 4), r"num_trials as an int >= 4, got 3"),
        ("span", (0, 1.0), r"span\[1\] as an int >= 0, got 1\.0"),
        ("batch_size", 0, "batch_size as an int >= 1, got 0"),
        ("key", 3, "a key from jax.random.key, got int"),
        ("reduce", {"mean": Moments()}, "structure"),
        ("reduce", Total(), r"integers or flags for Total, got float\d\d; use Moments"),
    ]:
        arguments = {"trial": trial, "key": key, "num_trials": 3} | {name: value}
        with pytest.raises(ValueError, match=message):
            jaxcp.simulate(**arguments)
    for reduce in (Moments, "mean"):
        with pytest.raises(ValueError, match="reduce of statistics, such as"):
            jaxcp.simulate(trial, key, 3, reduce=reduce)
    with pytest.raises(ValueError, match="expected a trial that jax can trace"):
        jax.jit(lambda k: jaxcp.simulate(trial, k, 3))(key)
    with pytest.raises(ValueError, match=r"numbers in \(0, 1\], got \[0.0\]"):
        Quantiles((0.0,))


@pytest.mark.parametrize(
    "num_trials", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)]
)
def test_many_replicates_follow_the_beta_law(num_trials, key):
    """Mean within 4 standard errors of k / (n + 1), variance within 2 %."""
    n, alpha = 100, 0.1

    def coverage(key):
        # Order statistics of uniform scores are what thresholds are.
        return jaxcp.conformal_quantile(jax.random.uniform(key, (n,)), alpha)

    out = jaxcp.simulate(coverage, key, num_trials, reduce=Moments())
    proof = jaxcp.certificates.certificate(n, alpha)
    assert abs(out.mean - proof.coverage) < 4 * out.standard_error
    assert_allclose(out.variance, proof.standard_deviation**2, rtol=0.02)
