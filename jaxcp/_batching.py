"""Batches: filled up so that many sizes share a program, in blocks, and of scores.

jax compiles a program for every number of rows. Here all numbers up to the same power
of two share one, and where rows cost little those up to 64 or 256: the last row is
repeated until the batch is that long, and results are cut back, both in numpy, which
compiles nothing and takes 0.1 ms or so. Large batches, traced arrays, and those that
lie elsewhere than in the memory of the host, are never filled up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp._tree import jit
from jaxcp.typing import AnySet, LabelScore, PyTree, Score

_MOST_ROWS = 2**14
_MOST = 2**15  # numbers of a batch: beyond, running may outweigh compiling
_MOST_PAIRED = 2**10  # rows of which all pairs are looked at
# Numbers of a batch, or held rows, and pairs of the two that take few microseconds.
_CHEAP, _CHEAP_PAIRS = 2**8, 2**12
_LEAST = 64  # rows that a cheap batch is filled up to


def by_rows(program, *fixed, rows, holder=None):
    """Returns `program(holder, *fixed, *rows)`: results row by row.

    Without a holder `program(*fixed, *rows)`; without rows results are of any shape. A
    holder has `_num_held()` rows of its own, 0 for those that cannot be filled up, and
    `_filled(size)` returns it with more, which do not count. It says whether its work
    is that of all pairs of rows (`_by_pairs`).
    """
    given = () if holder is None else (holder,)
    sizes = _sizes((holder, fixed), rows, holder)
    if sizes is None:
        return program(*given, *fixed, *rows)
    held, size = sizes
    if holder is not None and held != holder._num_held():
        given = (holder._filled(held),)
    if not rows:
        return program(*given, *fixed)
    num_rows = len(jax.tree.leaves(rows)[0])
    out = program(*given, *fixed, *repeated(rows, size))
    return jax.tree.map(lambda v: _cut(v, num_rows), out)


def counted(program, *rows, by_pairs=False, **options):
    """Returns `program(*rows, count, **options)`: results of all rows together.

    The first `count` rows count, all if it is None. `by_pairs` says that a program goes
    through all pairs of rows: filling up adds many.
    """
    sizes = _sizes(options, rows, by_pairs=by_pairs)
    if sizes is None:
        return program(*rows, None, **options)
    count = np.asarray(_num_rows(rows), np.int32)
    return program(*repeated(rows, sizes[1]), count, **options)


def repeated(rows: PyTree, size: int) -> PyTree:
    """Returns arrays of the host with `size` rows, the last one again and again."""

    def fill(v):
        v = np.asarray(v)
        filled = np.empty((size, *v.shape[1:]), v.dtype)
        filled[: len(v)], filled[len(v) :] = v, v[-1:]
        return filled

    return jax.tree.map(fill, rows)


def on_device(x: np.ndarray) -> Array:
    """Returns `jnp.asarray(x)`, a copy, but compiles nothing for its shape."""
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    with np.errstate(over="ignore"):
        return jax.device_put(np.array(x, dtype))


def on_host(*trees: PyTree) -> bool:
    """Returns whether all arrays have values here, in memory that numpy can read."""
    return all(map(_is_on_host, jax.tree.leaves(trees)))


def _is_on_host(leaf):
    if isinstance(leaf, jax.core.Tracer):
        return False
    if not isinstance(leaf, Array):
        return True
    if leaf.weak_type or not isinstance(leaf.dtype, np.dtype) or leaf.committed:
        return False  # as numpy it would lose its type, or its place
    return all(device.platform == "cpu" for device in leaf.devices())


def _sizes(
    fixed: PyTree, rows: PyTree, holder: Any = None, by_pairs: bool = False
) -> tuple[int, int] | None:
    """Returns the numbers of rows to fill up to, held and given; None to leave all."""
    num_held, num_rows = 0 if holder is None else holder._num_held(), _num_rows(rows)
    if not (isinstance(num_held, int) and isinstance(num_rows, int)):
        return None  # an export leaves them open
    numbers = sum(leaf.size for leaf in jax.tree.leaves(rows))
    if by_pairs or (holder is not None and holder._by_pairs):
        sizes = _size(num_held, 0), _size(num_rows, 0)
    else:
        held = _size(num_held, _CHEAP)
        cheap = _CHEAP * num_rows // max(numbers, 1)
        sizes = held, _size(num_rows, min(cheap, _CHEAP_PAIRS // max(held, 1)))
    most = _MOST_PAIRED if by_pairs else _MOST_ROWS
    if sizes == (num_held, num_rows) or max(sizes) > most:
        return None
    if sizes[1] * numbers > _MOST * num_rows or not on_host(fixed, rows):
        return None
    return sizes


def _size(n: int, cheap: int) -> int:
    """Returns to how many rows `n` are filled up, unless they are a power of two.

    64, 256, ... if so many are cheap, else the least power of two.
    """
    if n & (n - 1) == 0:
        return n
    bits = (n - 1).bit_length()
    coarse = max(1 << bits + bits % 2, _LEAST)
    return coarse if coarse <= cheap else 1 << bits


def alike(size: int) -> tuple[int, ...]:
    """Returns sizes that have the programs of all up to the same power of two."""
    power = 1 << max(size - 1, 0).bit_length()
    # Few rows may be filled up to more, but a power of two is left as it is.
    return (size, power - 1, power) if 2 < size <= _CHEAP else (size,)


def _num_rows(rows):
    """Returns the number of rows, 0 if there are none."""
    for v in rows:
        if isinstance(v, Array):  # not all leaves: this is on every path
            return v.shape[0]
    return next((leaf.shape[0] for leaf in jax.tree.leaves(rows)), 0)


def _cut(v, num_rows):
    """Returns the first rows, without a program for their number."""
    if isinstance(v, jax.core.Tracer):  # all was known, inside of a program to come
        return v[:num_rows]
    return jax.device_put(np.asarray(v)[:num_rows])


# Numbers in a block: on a CPU 2 MB in single precision, to fit a cache. Elsewhere it
# only bounds the memory: a loop over small blocks would wait for launches.
_BLOCK, _BLOCK_ELSEWHERE = {"cpu": 2**19}, 2**28
_WIDE = 64  # numbers in a row from which passes over the row outweigh the loop


def rows_at_a_time(width: int) -> int:
    """Returns how many rows with so many numbers each are a block, at least one."""
    # Of the process, not of the lowering: `platform_dependent` would trace all twice.
    most = _BLOCK.get(jax.default_backend(), _BLOCK_ELSEWHERE)
    return max(most // max(width, 1), 1)


def map_rows(fn: Callable[..., PyTree], *rows: PyTree) -> PyTree:
    """Returns `jax.vmap(fn)(*rows)`, in blocks if the rows are wide and many.

    A function that passes over its row many times is then two to four times faster on a
    CPU; on other devices the blocks only bound the memory.
    """
    leaves: list[Array] = jax.tree.leaves(rows)
    width = sum(math.prod(leaf.shape[1:]) for leaf in leaves)
    if width < _WIDE:
        return jax.vmap(fn)(*rows)
    return map_evenly(fn, *rows, at_a_time=rows_at_a_time(width))


def map_evenly(fn: Callable[..., PyTree], *rows: PyTree, at_a_time: int) -> PyTree:
    """Returns `jax.vmap(fn)(*rows)`, in blocks of one size, at most `at_a_time`."""
    return map_batches(jax.vmap(fn), *rows, at_a_time=at_a_time)


def map_blocks(fn: Callable[..., PyTree], *rows: PyTree, width: int) -> PyTree:
    """Returns `fn(*rows)` of batches, in blocks so that memory stays small.

    Args:
      fn: Function of batches, row by row.
      *rows: Pytrees with one leading axis.
      width: Intermediate numbers that `fn` makes for each row.

    Returns:
      What `fn` returns for all rows.
    """
    return map_batches(fn, *rows, at_a_time=rows_at_a_time(width))


def map_batches(fn: Callable[..., PyTree], *rows: PyTree, at_a_time: int) -> PyTree:
    """Returns `fn(*rows)` of batches, in blocks of one size, at most `at_a_time`.

    The last block is filled up with the first rows, whose results are dropped: what
    remains of even blocks would be another program, and take as long to compile.
    """
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    num_blocks = -(-num_rows // at_a_time)
    if not isinstance(num_rows, int) or num_blocks <= 1:  # an export may leave it open
        return fn(*rows)
    size = -(-num_rows // num_blocks)
    missing = num_blocks * size - num_rows

    def blocks(v):
        again = lax.stop_gradient(v[:missing])
        filled = jnp.concatenate([v, again]) if missing else v
        return filled.reshape(num_blocks, size, *v.shape[1:])

    out = lax.map(lambda block: fn(*block), jax.tree.map(blocks, rows))
    return jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:])[:num_rows], out)


def score_of(score: Score, pred: PyTree, y: Array) -> Array:
    """Returns the score of one example; ValueError unless real, () or (c,)."""
    return _checked(score(pred, y), "score(pred, y) of shape () or (c,)", (0, 1))


def labels_of(score: LabelScore, pred: PyTree) -> Array:
    """Returns the scores of all labels of one example; ValueError unless (k,)."""
    return _checked(score.labels(pred), "labels(pred) of shape (k,)", (1,))


def _checked(found, expected, ndims):
    kind = None if found is None else type(found).__name__
    if hasattr(found, "dtype") or isinstance(found, Real):
        found = found if isinstance(found, Array) else jnp.asarray(found)
        is_complex = jnp.iscomplexobj(found)
        if found.ndim in ndims and found.size and not is_complex:
            return found
        kind = found.dtype if is_complex else found.shape
    raise ValueError(f"expected {expected}, got {kind}")


def evaluate(score: Score, preds: PyTree, y: Array) -> Array:
    """Returns the score of every row."""
    preds, y = widened((preds, y))
    for leaf in jax.tree.leaves((preds, y)):
        if not isinstance(leaf, jax.core.Tracer) and len(leaf.devices()) > 1:
            return evaluate_at_once(score, preds, y)  # blocks would gather all rows
    return by_rows(_evaluate_in_blocks, score, rows=(preds, y))


@jit
def evaluate_at_once(score: Score, preds: PyTree, y: Array) -> Array:
    """Returns the score of every row, without blocks."""
    return jax.vmap(partial(score_of, score))(preds, y)


@jit
def _evaluate_in_blocks(score, preds, y):
    return map_rows(partial(score_of, score), preds, y)


@jit
def label_scores(score: LabelScore, preds: PyTree) -> Array:
    """Returns the scores of all labels in every row, shape (n, k)."""
    return jax.vmap(partial(labels_of, score))(preds)


@jit
def invert(score: Score, preds: PyTree, q: Array) -> AnySet:
    """Returns the set of every row at one threshold."""
    return map_rows(lambda pred: score.invert(pred, q), widened(preds))


@jit
def invert_each(score: Score, preds: PyTree, q: Array) -> AnySet:
    """Returns the set of every row at a threshold of its own."""
    return map_rows(score.invert, widened(preds), q)


def widened(tree: PyTree) -> PyTree:
    """Returns narrow and unsigned integers as default ones, whose differences fit.

    As floats where default integers do not hold them all.
    """
    default = jax.dtypes.canonicalize_dtype(int)

    def widen(v):
        unsigned = jnp.issubdtype(v.dtype, jnp.unsignedinteger)
        narrow = jnp.issubdtype(v.dtype, jnp.integer) and v.dtype.itemsize < 4
        if not (unsigned or narrow):
            return v
        return v.astype(default if np.can_cast(v.dtype, default) else float)

    return jax.tree.map(widen, tree)


@contextmanager
def bar(
    total: int, finished: int, unit: str, shown: bool
) -> Iterator[Callable[[int], object]]:
    """Gives a function that takes how much is done and shows it in a bar of tqdm."""
    if not shown:
        yield lambda count: None
        return
    from tqdm.auto import tqdm

    scaled = unit == "trial"
    with tqdm(total=total, initial=finished, unit=unit, unit_scale=scaled) as shows:
        yield shows.update
