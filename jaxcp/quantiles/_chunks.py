"""Order statistics of scores in chunks that stay where they are, in numpy alone.

A chunk is scores (n,), a pair of them and their weights, or a function of no arguments
that returns one of these. Scores become unsigned integers of the same order, as in
`_keys`. A round adds up, over all chunks, a histogram of the next 16 bits of those keys
that begin like the answer: two rounds settle a number of single precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial, reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcp import _arrays, _batching, _checks, _numbers
from jaxcp.quantiles import _keys, levels, thresholds

_DIGIT = 16  # bits that a histogram settles
_BLOCK = 2**18  # scores at once: their keys stay in the cache
_SUMS = 16  # histograms that one worker adds up


def quantiles(chunks, alpha, client, test_weight):
    """Returns `distributed.quantile` of the same arguments."""
    if hasattr(chunks, "to_delayed"):
        cure = "array.to_delayed() are those of dask"
        raise ValueError(f"expected chunks of scores, got an array of them; {cure}")
    if not _arrays.is_concrete(chunks := list(chunks), alpha):
        raise ValueError("expected chunks and alpha with values, got traced arrays")
    here = lambda v: np.asarray(v) if isinstance(v, jax.Array) else v  # noqa: E731
    alphas = levels.as_alpha(here(alpha))
    if not (chunks := jax.tree.map(here, chunks)):
        raise ValueError("expected chunks of scores, got none")
    chunks = client.compute(chunks) if hasattr(client, "compute") else chunks
    add_up = partial(_summed, client, chunks)
    default = jax.dtypes.canonicalize_dtype(float)
    dtype, largest, unit = _alike(add_up(partial(_look, default=default)))
    own = float(thresholds.weight_of_test(test_weight, largest))
    own = Fraction(own) * Fraction(2) ** unit  # like sums of weights
    count = partial(_histogram, default=default, unit=unit)
    rounds = cache(lambda key, shift: add_up(partial(count, key=key, shift=shift)))
    bits = 8 * dtype.itemsize
    total = int(rounds(0, bits - _DIGIT).sum())
    # mass{S > v} <= alpha (total + w) - w iff mass{S <= v} >= (1 - alpha) (total + w)
    ranks = [max(math.ceil((1 - a) * (total + own)), 1) for a in alphas.ravel()]
    keys = np.array([select(rounds, rank, bits) for rank in ranks], f"uint{bits}")
    signed = (keys ^ 2 ** (bits - 1)).view(f"int{bits}")
    return _keys.from_keys(_batching.on_device(signed), dtype).reshape(alphas.shape)


def select(rounds: Callable[[int, int], np.ndarray], rank: int, bits: int) -> int:
    """Returns the first key up to which counts, or sums of weights, reach a rank.

    The highest if none does. `rounds(key, shift)` are the counts by the next 16 bits of
    the keys that begin with `key`, before the last `shift` bits; shape (2^16,).
    """
    key = 0
    for shift in range(bits - _DIGIT, -1, -_DIGIT):
        up_to = np.cumsum(rounds(key, shift))
        digit = min(int(np.searchsorted(up_to, rank)), 2**_DIGIT - 1)
        rank -= int(up_to[digit - 1]) if digit else 0
        key = key << _DIGIT | digit
    return key


def _summed(client, chunks, function):
    """Returns the sum of what a function returns for each chunk, where that lies."""
    if not hasattr(client, "gather"):  # of results
        return reduce(add, (map if client is None else client.map)(function, chunks))
    parts = client.map(function, chunks, pure=False)
    while len(parts) > 1:  # a tree: no worker gets all
        some = (parts[i : i + _SUMS] for i in range(0, len(parts), _SUMS))
        parts = [client.submit(reduce, add, group, pure=False) for group in some]
    return client.gather(parts[0])


def _look(chunk, default):
    """Returns the type and number of scores and their largest weight, in a list."""
    scores, weights = _read(chunk)
    if scores.dtype.kind in "cOSU":
        raise ValueError(f"expected chunks as real numbers, got {scores.dtype}")
    if weights is not None:
        _checks.check_weights("weights", weights)
        weights = float(np.max(weights, initial=0))
    return [(_as_floats(scores[:0], default).dtype, scores.size, weights)]


def _alike(found):
    """Returns what `_look` has found: the type of all, the largest weight and its unit.

    Weights are integers in units of 2^-unit, whose sum is below 2^62.
    """
    kinds = {f"{dtype}{' with weights' * (w is not None)}" for dtype, _, w in found}
    if len(kinds) > 1:
        expected = "expected chunks of one type, all with weights or none"
        raise ValueError(f"{expected}, got {' and '.join(sorted(kinds))}")
    dtypes, counts, largest = zip(*found, strict=True)
    if None in largest:
        return dtypes[0], None, 0
    most = max(largest)
    return dtypes[0], most, 62 - math.frexp(most)[1] - sum(counts).bit_length()


def _histogram(chunk, key, shift, default, unit):
    """Returns counts for `select`, or sums of weights in units of 2^-unit."""
    scores, weights = _read(chunk)
    sums = np.zeros(2**_DIGIT, np.int64)
    for start in range(0, scores.size, _BLOCK):
        rows = slice(start, start + _BLOCK)
        keys = _to_keys(_as_floats(scores[rows], default))
        begins = keys >> (shift + _DIGIT) == key
        digits = (keys[begins] >> shift & (2**_DIGIT - 1)).astype(int)
        if weights is None:
            sums += np.bincount(digits, minlength=2**_DIGIT)
        else:
            words = np.ldexp(weights[rows][begins].astype(float), unit)
            np.add.at(sums, digits, np.rint(words).astype(np.int64))
    return sums


def _read(chunk):
    """Returns scores (n,) and weights (n,) or None, of numpy."""
    chunk = chunk() if callable(chunk) else chunk
    is_pair = isinstance(chunk, tuple) and len(chunk) == 2
    given = zip(("chunks", "weights"), chunk if is_pair else (chunk,), strict=False)
    columns: Any = {name: _arrays.as_numpy(name, v) for name, v in given}
    _checks.check_vectors(**columns)
    _checks.num_rows(**columns)
    return columns["chunks"], columns.get("weights")


@np.errstate(over="ignore")
def _as_floats(x, default):
    """Returns what jax makes of numbers where this is its default type of floats."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return _numbers.rounded_up(x, default)
    is_narrow = x.itemsize < default.itemsize
    dtype = x.dtype.newbyteorder("=") if is_narrow else default
    return x.astype(dtype, copy=False)


def _to_keys(x):
    """Returns `_keys.to_keys` of numpy's floats, as unsigned integers."""
    signed = _keys.key_type(x.dtype)
    keys = _keys.in_order(x.view(signed), x.dtype, np) ^ np.iinfo(signed).min
    return keys.view(f"u{x.itemsize}")
