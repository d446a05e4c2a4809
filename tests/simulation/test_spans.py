"""Spans of one simulation, on machines that do not know each other."""

import itertools
import json
import shutil
from dataclasses import dataclass
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from jaxcp.simulation import Moments, Quantiles, Total, _storage, merge
from jaxcp.simulation._storage import chunks_of, exact_moments

R, KEY = 60, jax.random.key(0)
STATISTICS = {"mean": Moments(), "all": Quantiles((0.1, 0.5)), "count": Total()}
REDUCES = {"values": None, "statistics": STATISTICS}


def trial(key):
    x = jax.random.normal(key, (5,))
    return {"mean": jnp.mean(x), "all": x, "count": jnp.sum(x > 0)}


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    for a, b in pairs:
        assert type(a) is type(b) and np.asarray(a).dtype == np.asarray(b).dtype
        assert_array_equal(a, b)


def run(key, folder=None, trial=trial, **options):
    return jaxcp.simulate(trial, key, R, checkpoint=folder, **options)


@pytest.fixture
def spans(key, tmp_path):
    """Makes folders of spans, by the first and last of their replicates."""

    def made(*cuts, **options):
        for start, stop in cuts:
            run(key, tmp_path / f"{start} {stop}", span=(start, stop), **options)
        return [tmp_path / f"{start} {stop}" for start, stop in cuts]

    return made


@pytest.mark.parametrize("reduce", REDUCES.values(), ids=REDUCES)
@pytest.mark.parametrize("cuts", [(0, 60), (0, 1, 30, 60), (0, 17, 17, 18, 60)])
def test_spans_in_any_cut_are_one_run(cuts, reduce, key, spans, tmp_path):
    """Also those that are no multiples of a batch, in any order, and empty ones."""
    whole = run(key, reduce=reduce)
    folders = spans(*itertools.pairwise(cuts), reduce=reduce)
    same(merge(reversed(folders)), whole)
    same(merge(str(tmp_path)), whole)


def test_a_span_is_a_part_of_the_results(key, tmp_path):
    whole = jax.tree.map(np.asarray, run(key))
    for folder in (None, tmp_path / "c", tmp_path / "c"):
        part = run(key, folder, span=(np.int64(7), 31))
        jax.tree.map(lambda v, w: assert_array_equal(v[7:31], w), whole, part)
    counted = run(key, span=(7, 31), reduce=STATISTICS)
    assert counted["count"] == whole["count"][7:31].sum()
    assert counted["mean"].count == 24


def test_a_span_goes_on(key, tmp_path):
    """As a longer span too, with what is there; what is missing is told."""
    folder = tmp_path / "c"
    run(key, folder, span=(20, 30), batch_size=4)
    before = {path.name: path.read_bytes() for path in folder.glob("*.npz")}
    run(key, folder, span=(12, R), batch_size=4)
    assert all((folder / name).read_bytes() == v for name, v in before.items())
    first = min(folder.glob("*.npz"))
    first.unlink()
    with pytest.raises(ValueError, match=rf"12 to 1\d not yet in {folder}"):
        merge([folder])
    run(key, folder, span=(12, R), batch_size=4)
    run(key, tmp_path / "d", span=(0, 12), batch_size=4)
    same(merge(tmp_path), run(key))
    with pytest.raises(ValueError, match=r"span from 12 to 60, or num_tr.*got \(0, 5"):
        run(key, folder, span=(0, R - 1), batch_size=4)


def test_a_whole_simulation_may_be_merged_and_extended(key, tmp_path):
    run(key, tmp_path / "a", reduce=STATISTICS, batch_size=8)
    same(merge([tmp_path / "a"]), run(key, reduce=STATISTICS))
    options = {"reduce": STATISTICS, "batch_size": 8, "checkpoint": tmp_path / "b"}
    jaxcp.simulate(trial, key, 80, span=(60, 80), **options)
    same(merge(tmp_path), jaxcp.simulate(trial, key, 80, reduce=STATISTICS))


def test_replicates_in_two_folders_or_in_none(spans):
    a, b, c = spans((0, 10), (20, 30), (25, 50))
    for folders, message in [
        ((b, c), rf"all 60 rep.* got replicates 25 to 29 in {b} and in {c}$"),
        ((c, a), r"replicates 10 to 24 in no folder, 50 to 59 in no folder$"),
        ((), "folders of spans of a simulation, got none"),
        ((a, a.parent), rf"folders of spans of a simulation, got {a.parent}$"),
        (a, "got none"),
        ((a, a.parent / "lost"), r"got .*lost$"),
    ]:
        with pytest.raises(ValueError, match=message):
            merge(folders)


def test_folders_of_other_simulations(key, tmp_path, spans):
    other = lambda key: jax.tree.map(lambda v: 2 * v, trial(key))  # noqa: E731
    (half,) = spans((0, 30), reduce=STATISTICS)
    usual = {"key": key, "span": (30, R), "reduce": STATISTICS}
    for name, changed in [
        ("trial", {"trial": other}),
        ("key", {"key": jax.random.key(1)}),
        ("statistics", {"reduce": STATISTICS | {"mean": None}}),
        ("batch size", {"batch_size": 3}),
    ]:
        run(folder=tmp_path / name, **usual | changed)
        message = rf"in {half}, with {name} .*, got {name} .* in {tmp_path / name}$"
        with pytest.raises(ValueError, match=message):
            merge([half, tmp_path / name])


def test_damaged_folders(tmp_path, spans):
    first, second = spans((0, 30), (30, R))
    chunk = next(iter(chunks_of(second).values()))
    content = chunk.read_bytes()
    for bad in (content[:99], next(first.glob("*.npz")).read_bytes()):
        chunk.write_bytes(bad)
        with pytest.raises(ValueError, match=r"30-\d*\.npz, which cannot be read"):
            merge(tmp_path)
    shutil.copy(first / "results.tree", chunk)
    (first / "results.tree").write_bytes(b"")
    with pytest.raises(ValueError, match=r"expected a file of jaxcp.*results\.tree"):
        merge([first, *spans((30, R - 1), (R - 1, R))])


@dataclass(frozen=True)
class Least:
    """A statistic of one's own that a file can hold."""

    def of_chunk(self, values):
        return {"least": values.min(axis=0, initial=np.inf)}

    def combine(self, chunks, leaf):
        return np.min([c["least"] for c in chunks], axis=0)


class Own:
    """One that a file cannot hold."""

    of_chunk, combine = Least.of_chunk, Least.combine


def test_results_with_structure(key, tmp_path):
    """Classes and functions are given again, as to `load`; else it is said at once."""

    def score(pred, y, scale=2.0):
        return jnp.abs(y - pred) * scale

    def calibrated(key):
        y = jax.random.normal(key, (9,))
        custom = jaxcp.scores.Custom(score)
        return (jaxcp.calibrate(custom, jnp.zeros(9), y), None, [y[0]])

    options = {"trial": calibrated, "reduce": (None, None, Least())}
    for span in ((0, 30), (30, R)):
        run(key, tmp_path / str(span), span=span, **options)
    same(merge(tmp_path, types=Least, evaluate=score), run(key, **options))
    with pytest.raises(ValueError, match=r"evaluate"):
        merge(tmp_path, types=Least)
    own = {"trial": lambda key: jax.random.normal(key), "reduce": Own()}
    with pytest.raises(ValueError, match=r"a file can hold, .*got Own at statistics"):
        run(key, tmp_path / "own", span=(0, 30), **own)
    assert run(key, tmp_path / "whole", **own) == run(key, **own)


def threefry(key, words):
    """Returns a block of Threefry-2x32, from Salmon et al. 2011, in Python integers."""
    most = 2**32
    keys = [*key, key[0] ^ key[1] ^ 0x1BD11BDA]
    x, y = (int(w + k) % most for w, k in zip(words, keys, strict=False))
    for i in range(20):
        turn = ((13, 15, 26, 6), (17, 29, 16, 24))[i // 4 % 2][i % 4]
        x = (x + y) % most
        y = x ^ ((y << turn | y >> (32 - turn)) % most)
        if i % 4 == 3:
            j = i // 4 + 1
            x, y = (x + keys[j % 3]) % most, (y + keys[(j + 1) % 3] + j) % most
    return [x, y]


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("middle", [2**32, 7 * 2**32, 10**10, 2**64 - 5])
def test_replicates_beyond_32_bits(middle, legacy, tmp_path):
    """Their keys are blocks of a counter of 64 bits, in one batch and in others."""
    key = (jax.random.PRNGKey if legacy else jax.random.key)(3)
    data = jax.random.key_data
    bits = lambda key: key if legacy else data(key)  # noqa: E731
    start, stop = middle - 5, middle + 5
    options = {"num_trials": 2**64, "span": (start, stop)}
    found = jaxcp.simulate(bits, key, batch_size=10, **options)
    numbers = [int(v) for v in np.asarray(data(key))]
    expected = [threefry(numbers, divmod(i, 2**32)) for i in range(start, stop)]
    assert_array_equal(found, np.array(expected, np.uint32))
    low = [i for i in range(start, stop) if i < 2**32]
    for i, row in zip(low, found, strict=False):
        assert_array_equal(data(jax.random.fold_in(key, np.uint32(i))), row)
    mesh = jax.make_mesh((2,), ("a",), devices=jax.devices()[:2])
    again = {"batch_size": 3, "mesh": mesh, "checkpoint": tmp_path / "c"}
    for _ in range(2):
        assert_array_equal(jaxcp.simulate(bits, key, **options, **again), found)


def test_chunks_are_in_the_order_of_their_numbers(key, tmp_path):
    """9,999,999,999 comes before 10^10, whose name has one digit more."""
    one = lambda key: jax.random.uniform(key)  # noqa: E731
    start, stop = 10**10 - 3, 10**10 + 3
    options = {"span": (start, stop), "batch_size": 1, "checkpoint": tmp_path}
    first = jaxcp.simulate(one, key, 2**40, **options)
    assert list(chunks_of(tmp_path)) == sorted(chunks_of(tmp_path))
    assert_array_equal(jaxcp.simulate(one, key, 2**40, **options), first)
    with pytest.raises(ValueError, match=r"0 to 9999999996 in no .* 1099511627775 in "):
        merge([tmp_path])


@pytest.mark.parametrize("extreme", [1e149, 5e-324, 1 / 3, -1e149 + 1e133])
def test_statistics_of_2_to_the_64_replicates(extreme):
    """Chunks as they would be after all the replicates, read from their texts."""
    ordinary, count = exact_moments(np.array([extreme, 1.0, 5e-324])), 2**62
    scaled = {k: np.vectorize(lambda t: str(Fraction(t) * count), otypes=[object])
              for k in ("sum", "squares")}  # fmt: skip
    many = {k: np.asarray(f(ordinary[k])).astype(str) for k, f in scaled.items()}
    chunk = ordinary | many | {"count": np.asarray(3 * count)}
    leaf = jax.ShapeDtypeStruct((), float)
    out = Moments().combine([chunk, ordinary, chunk], leaf)
    values = [Fraction(extreme), Fraction(1), Fraction(5e-324)]
    times, total = 2 * count + 1, 3 * (2 * count + 1)
    mean = sum(values) * times / total
    squares = sum(v * v for v in values) * times
    assert (out.count, out.mean) == (total, float(mean))
    assert out.variance == float((squares - total * mean * mean) / (total - 1))
    assert out.standard_error > 0


def test_totals_beyond_64_bits():
    chunk = {"high": np.asarray(2**62), "low": np.asarray(2**62)}
    leaf = jax.ShapeDtypeStruct((), np.int32)
    assert Total().combine([chunk] * 3, leaf) == 3 * 2**62 * (2**32 + 1)


def test_folders_of_before_have_no_spans(key, tmp_path):
    """They go on, and are then merged."""
    run(key, tmp_path / "c")
    (tmp_path / "c" / "results.tree").unlink()
    path = tmp_path / "c" / "simulation.json"
    settings = json.loads(path.read_text())
    del settings["span"]
    path.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="expected folders of spans"):
        merge(tmp_path)
    same(run(key, tmp_path / "c"), run(key))
    same(merge(tmp_path), run(key))


def test_spans_keep_their_batch_size_and_empty_ones_are_nowhere(tmp_path):
    def go(name, span, batch_size):
        options = {"batch_size": batch_size, "checkpoint": tmp_path / name}
        return jaxcp.simulate(normal, KEY, 500, span=span, **options)

    go("a", (0, 100), 16)
    with pytest.raises(ValueError, match="with batch size 16, got batch size 32"):
        go("a", (0, 200), 32)
    go("a", (0, 200), 16)
    go("none", (20, 20), 16)
    go("b", (200, 500), 16)
    whole = jaxcp.simulate(normal, KEY, 500, batch_size=16)
    assert_array_equal(merge(tmp_path), whole)


def test_a_whole_folder_of_before_is_read_where_nothing_can_be_written(
    tmp_path, monkeypatch
):
    options = {"batch_size": 16, "checkpoint": tmp_path}
    whole = jaxcp.simulate(normal, KEY, 50, **options)
    (tmp_path / _storage.ABOUT).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(_storage, "write_whole", refuse)
        assert_array_equal(jaxcp.simulate(normal, KEY, 50, **options), whole)
    jaxcp.simulate(normal, KEY, 50, **options)
    assert_array_equal(merge([tmp_path]), whole)


def normal(key):
    return jax.random.normal(key)


def refuse(*_):
    raise PermissionError("read-only")
