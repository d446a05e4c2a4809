"""Quantiles of scores in chunks: those of the chunks joined, whatever does the work."""

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
from jaxcp import distributed
from jaxcp.quantiles import _chunks

N = 1000
DRAW = np.random.default_rng(0)
INTEGERS = [np.int8, np.int32, np.int64, np.uint16, np.uint32, np.uint64, bool]
FLOATS = [np.float16, np.float32, np.float64, jnp.bfloat16, ">f4"]
ALPHAS = [0.0005, 0.001, 0.1, 0.5, 0.9, 0.999, 0.9999]


def hard(dtype):
    """Returns numbers with all that order statistics stumble on, in no order."""
    draw = np.random.default_rng(0)
    if np.dtype(dtype).kind in "biu":  # small and large ones
        return (draw.integers(0, 2**63, N) >> draw.integers(1, 63, N)).astype(dtype)
    x = (50 * draw.standard_normal(N)).astype(dtype)
    tiny = np.finfo(np.float32).smallest_subnormal
    special = [np.nan, -np.nan, -0.0, 0.0, np.inf, -np.inf, tiny, -3 * tiny, 7, 7, 1e30]
    with np.errstate(over="ignore"):
        x[:330] = np.resize(np.array(special), 330).astype(dtype)
    x[330:700] = np.trunc(x[330:700].astype(float)).astype(dtype)
    return draw.permutation(x)


def bits_of(x):
    return np.atleast_1d(np.asarray(x)).view(np.uint8)


def assert_same(q, wanted, told=None):
    assert isinstance(q, jax.Array) and q.dtype == wanted.dtype, told
    assert np.array_equal(bits_of(q), bits_of(wanted)), (told, q, wanted)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS, ids=str)
def test_chunks_have_the_bits_of_the_whole(dtype, x64):
    x = hard(dtype)
    whole = x.astype(x.dtype.newbyteorder("="))
    with jax.enable_x64(x64):
        wanted = [jaxcp.conformal_quantile(whole, alpha) for alpha in ALPHAS]
        found = distributed.quantile([x[:1], x[1:1], x[1:400], x[400:]], ALPHAS)
        assert_same(found, jnp.stack(wanted), dtype)


SOME = hard(np.float32)
LISTS = {
    "one chunk": [SOME],
    "chunks of one": list(SOME[:, None]),
    "empty chunks": [SOME[:0], SOME, SOME[:0]],
    "all alike": [np.full(70, 2.5, np.float32), np.full(3, 2.5, np.float32)],
    "one bin": np.split((1 + np.arange(900) * 2.0**-23).astype(np.float32), 9),
    "infinities": [np.full(9, np.inf, np.float32), np.full(1, -np.inf, np.float32)],
    "no scores": [SOME[:0], SOME[:0]],
    "too few": [SOME[:3], SOME[3:5]],
    "strides": [SOME[::-2], SOME[::2]],
    "rows": SOME.reshape(10, 100),
    "lists": [[1, 2, 3], [4]],
}


@pytest.mark.parametrize("name", LISTS)
def test_chunks_of_all_kinds(name):
    chunks = LISTS[name]
    whole = np.concatenate([np.asarray(chunk) for chunk in chunks])
    for alpha in (0.1, 0.5):
        wanted = jaxcp.conformal_quantile(whole, alpha)
        assert_same(distributed.quantile(chunks, alpha), wanted)
        assert_same(distributed.quantile(list(chunks)[::-1], alpha), wanted)


class Client:
    """As that of Dask: futures, and sums where chunks are; all is pickled."""

    def __init__(self):
        self.most = 0

    def compute(self, chunks):
        return chunks

    def map(self, function, chunks, pure):
        assert not pure
        function = pickle.loads(pickle.dumps(function))
        return [Future(function(chunk)) for chunk in chunks]

    def submit(self, function, combine, futures, pure):
        assert not pure
        self.most = max(self.most, len(futures))
        return Future(function(combine, [future.value for future in futures]))

    def gather(self, future):
        return future.value


class Future:
    def __init__(self, value):
        self.value = value


def test_whatever_maps_does_the_work():
    """Functions are called where they are needed, and nothing is kept."""
    calls = itertools.count()

    def load(i):
        next(calls)
        return SOME[10 * i : 10 * (i + 1)]

    chunks = [lambda i=i: load(i) for i in range(N // 10)]
    wanted = jaxcp.conformal_quantile(SOME, 0.1)
    client = Client()
    with ThreadPoolExecutor(2) as pool:
        for worker in (None, pool, client):
            assert_same(distributed.quantile(chunks, 0.1, client=worker), wanted)
    assert next(calls) == 3 * 3 * len(chunks)
    assert client.most == 16
    on_device = [jnp.asarray(SOME[:300]), jnp.asarray(SOME[300:])]
    assert_same(distributed.quantile(on_device, 0.1), wanted)


def test_files_are_chunks(tmp_path):
    np.save(tmp_path / "x.npy", SOME)
    file = np.load(tmp_path / "x.npy", mmap_mode="r")
    wanted = jaxcp.conformal_quantile(SOME, 0.1)
    assert_same(distributed.quantile([file[:123], file[123:]], 0.1), wanted)


def test_levels_are_read_as_decimals():
    x = np.arange(999, dtype=np.float32)
    for alpha in (0.1, 1 - 0.9, Fraction(1, 10), np.float32(0.1), jnp.array(0.1)):
        assert distributed.quantile([x], alpha) == 899
    with pytest.raises(ValueError, match=r"alpha in \(0, 1\), got 1.5"):
        distributed.quantile([x], 1.5)
    assert distributed.quantile([x], [0.1, 0.2]).shape == (2,)


def in_fractions(scores, weights, alpha, test_weight):
    """Returns min{v : mass{S > v} + w <= alpha (mass{all} + w)} from its definition."""
    masses = [Fraction(float(w)) for w in weights]
    own, alpha = Fraction(float(test_weight)), Fraction(str(alpha))
    for v in np.unique(scores):
        above = sum(m for m, s in zip(masses, scores, strict=True) if s > v)
        if above + own <= alpha * (sum(masses) + own) and sum(masses) + own:
            return v
    return np.float32(np.inf)


WEIGHTS = {
    "ones": np.ones(200),
    "sixteenths": DRAW.integers(0, 17, 200) / 16,
    "none": np.zeros(200),
    "drawn": DRAW.random(200),
    "of many sizes": np.exp(8 * DRAW.standard_normal(200)),
    "huge": 6e37 * DRAW.random(200),
    "tiny": 1e-37 * DRAW.random(200),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_summed_as_fractions(name):
    """Exactly as defined; and as of the whole, which rounds, where nothing is near."""
    weights = WEIGHTS[name].astype(np.float32)
    scores = np.round(4 * DRAW.standard_normal(200)).astype(np.float32)
    chunks = [(scores[:7], weights[:7]), (scores[7:7], weights[7:7])]
    chunks += [(scores[7:], weights[7:])]
    for alpha in (0.05, 0.1, 0.5):
        for own in (0, weights.max(), 5 * weights.max()):
            q = distributed.quantile(chunks, alpha, test_weight=own)
            assert q == in_fractions(scores, weights, alpha, own), (alpha, own)
            whole = jaxcp.weighted_conformal_quantile(
                scores, weights, alpha, test_weight=own
            )
            assert q == whole, (alpha, own)


def test_unit_weights_change_nothing():
    pairs = [(SOME[:300], np.ones(300)), (SOME[300:], np.ones(700))]
    for alpha in ALPHAS:
        wanted = jaxcp.conformal_quantile(SOME, alpha)
        assert_same(distributed.quantile(pairs, alpha), wanted)


def test_counts_have_no_end():
    """Of 2^40 numbers 0, 2^41 numbers 1 and 2^40 numbers 2, in one digit and in two."""
    counts = {0: 2**40, 1: 2**41, 2: 2**40}

    def rounds(shift_of_all, key, shift):
        found = np.zeros(2**16, np.int64)
        for value, count in counts.items():
            value <<= shift_of_all
            if value >> (shift + 16) == key:
                found[value >> shift & (2**16 - 1)] += count
        return found

    for rank, value in ((1, 0), (2**40, 0), (2**40 + 1, 1), (2**42, 2)):
        for shift_of_all in (0, 8, 15, 20):
            key = _chunks.select(
                lambda *at, s=shift_of_all: rounds(s, *at), rank, bits=32
            )
            assert key == value << shift_of_all


X, W = SOME[:4], np.ones(4)


class Delayed:
    """An array whose numbers would be tasks, as of dask."""

    def to_delayed(self):
        return np.array([X])

    def __iter__(self):
        raise AssertionError("a task was sent for each number")


def test_traced_chunks_are_refused_in_words():
    for call in (
        lambda v: distributed.quantile([v], 0.1),
        lambda v: distributed.quantile([X], v[0]),
    ):
        with pytest.raises(
            ValueError, match="chunks and alpha with values, got traced"
        ):
            jax.jit(call)(jnp.ones(3))


@pytest.mark.parametrize(
    "chunks, options, message",
    [
        ([], {}, "chunks of scores, got none"),
        ([X + 1j], {}, "chunks as real numbers, got complex64"),
        ([X.astype(str)], {}, "chunks as real numbers, got <U"),
        ([X, X.astype(np.float16)], {}, "got float16 and float32$"),
        ([(X, W), X], {}, "got float32 and float32 with weights$"),
        ([X.reshape(2, 2)], {}, r"chunks of shape \(n,\), got \(2, 2\)"),
        (X, {}, r"chunks of shape \(n,\), got \(\)"),
        (
            Delayed(),
            {},
            r"got an array of them; array.to_delayed\(\) are those of dask",
        ),
        ([(X, W[:3])], {}, "weights with 4 rows like chunks, got 3"),
        ([(X, -W)], {}, "finite weights >= 0, got -1.0"),
        ([(X, 2 * W)], {}, "weights <= 1 of calibration rows"),
        ([X], {"test_weight": 2.0}, "test_weight only with calibration weights"),
    ],
)
def test_errors_say_what_to_do(chunks, options, message):
    with pytest.raises(ValueError, match=message):
        distributed.quantile(chunks, 0.1, **options)
