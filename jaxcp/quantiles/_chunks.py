"""Order statistics of scores in chunks that stay where they are, in numpy alone.

A chunk is scores (n,), a pair of them and their weights, or a function of no arguments
that returns one of these. Scores become unsigned integers of the same order, as in
`_keys`. A round adds up, over all chunks, a histogram of the next 16 bits of those keys
that begin like the answer: two rounds settle a number of single precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxcp import _checks
from jaxcp._arrays import as_numpy
from jaxcp._numbers import rounded_up

DIGIT = 16  # bits that a histogram settles
_BLOCK = 2**18  # scores at once: their keys stay in the cache
_SUMS = 16  # histograms that one worker adds up


def select(rounds: Callable[[int, int], np.ndarray], rank: int, bits: int) -> int:
    """Returns the first key up to which counts, or sums of weights, reach a rank.

    All together reach it. `rounds(key, shift)` are the counts by the next 16 bits of
    the keys that begin with `key`, before the last `shift` bits; shape (2^16,).
    """
    key = 0
    for shift in range(bits - DIGIT, -1, -DIGIT):
        up_to = np.cumsum(rounds(key, shift))
        digit = int(np.searchsorted(up_to, rank))
        rank -= int(up_to[digit - 1]) if digit else 0
        key = key << DIGIT | digit
    return key


def summed(client: Any, chunks: list, function: Callable) -> Any:
    """Returns the sum of what a function returns for each chunk, where that lies."""
    if not hasattr(client, "gather"):  # of results
        return reduce(add, (map if client is None else client.map)(function, chunks))
    parts = client.map(function, chunks, pure=False)
    while len(parts) > 1:  # a tree: no worker gets all
        some = (parts[i : i + _SUMS] for i in range(0, len(parts), _SUMS))
        parts = [client.submit(reduce, add, group, pure=False) for group in some]
    return client.gather(parts[0])


def look(chunk: Any, default: np.dtype) -> list[tuple]:
    """Returns the type and number of scores and their largest weight, in a list."""
    scores, weights = _read(chunk)
    if weights is not None:
        _checks.check_weights("weights", weights)
        weights = float(np.max(weights, initial=0))
    return [(_as_floats(scores[:0], default).dtype, scores.size, weights)]


def alike(found: list[tuple]) -> tuple:
    """Returns what `look` has found: the type of all, the largest weight and its unit.

    Weights are integers in units of 2^-unit, whose sum is below 2^62.
    """
    kinds = {f"{dtype}{' with weights' * (w is not None)}" for dtype, _, w in found}
    if len(kinds) > 1:
        expected = "expected chunks of one type, all with weights or none"
        raise ValueError(f"{expected}, got {' and '.join(sorted(kinds))}")
    (dtype, *_), (_, counts, largest) = found[0], zip(*found, strict=True)
    if None in largest:
        return dtype, None, 0
    most = max(largest)
    return dtype, most, 62 - math.frexp(most)[1] - sum(counts).bit_length()


def histogram(chunk, key, shift, default, unit):
    """Returns counts for `select`, or sums of weights in units of 2^-unit."""
    scores, weights = _read(chunk)
    sums = np.zeros(2**DIGIT, np.int64)
    for start in range(0, scores.size, _BLOCK):
        rows = slice(start, start + _BLOCK)
        keys = _to_keys(_as_floats(scores[rows], default))
        begins = keys >> (shift + DIGIT) == key
        digits = (keys[begins] >> shift & (2**DIGIT - 1)).astype(int)
        if weights is None:
            sums += np.bincount(digits, minlength=2**DIGIT)
        else:
            words = np.ldexp(weights[rows][begins].astype(float), unit)
            np.add.at(sums, digits, np.rint(words).astype(np.int64))
    return sums


def _read(chunk):
    """Returns scores (n,) and weights (n,) or None, of numpy."""
    chunk = chunk() if callable(chunk) else chunk
    is_pair = isinstance(chunk, tuple) and len(chunk) == 2
    scores, weights = chunk if is_pair else (chunk, None)
    scores = as_numpy("chunks", scores)
    weights = None if weights is None else as_numpy("weights", weights)
    _checks.check_vectors(chunks=scores, weights=weights)
    _checks.num_rows(chunks=scores, weights=weights)
    return scores, weights


@np.errstate(over="ignore")
def _as_floats(x, default):
    """Returns what jax makes of numbers where this is its default type of floats."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return rounded_up(x, default)
    is_narrow = x.itemsize < default.itemsize
    dtype = x.dtype.newbyteorder("=") if is_narrow else default
    return x.astype(dtype, copy=False)


def _to_keys(x):
    """Returns unsigned keys ordered like floats: NaN counts as +inf, -0.0 as 0.0."""
    keys = x.view(f"i{x.itemsize}")
    lowest = np.iinfo(keys.dtype).min
    keys = np.where(keys < 0, lowest - keys, keys)  # sign and magnitude, negated
    infinity = np.array(np.inf, x.dtype).view(keys.dtype)
    return (np.where(np.isnan(x), infinity, keys) ^ lowest).view(f"u{x.itemsize}")
