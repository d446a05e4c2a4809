"""Numbers of rows that share a program: small batches, padded on the host.

jax compiles a program for every number of rows. Here the first number has one of its
own, as ever, and others up to the same power of two share one: the last row is repeated
until the batch is that long, and results are cut back, both in numpy, which compiles
nothing. Filling up takes 0.1 ms or so, and a number of rows that comes back often gets
its own program too. Traced arrays, and those that lie elsewhere than in the memory of
the host, are never filled up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp.typing import PyTree

_MOST_ROWS = 2**14
_MOST = 2**15  # numbers of a batch: beyond, running may outweigh compiling
_OFTEN = 2000  # calls after which filling up has taken as long as compiling
_MANY = 2**14  # numbers of rows that are counted at a time
_PAIRS = 2**15  # pairs of rows that take as long as filling up
_DEAR = 100  # times as long as filling up takes: too long, even once
_calls: dict[Any, int] = {}  # how often numbers of rows came to a program
_firsts: dict[Any, tuple[int, ...]] = {}  # the first that came, of each size


class HoldsRows(Protocol):
    """A value that has rows of its own, and can be filled up."""

    def _num_held(self) -> int:
        """Returns the number of its rows, 0 for those that cannot be filled up."""

    def _filled(self, size: int) -> Self:
        """Returns the same value with `size` rows; those added do not count."""


def by_rows(
    program: Callable[..., PyTree],
    *fixed: Any,
    rows: tuple[PyTree, ...],
    holder: HoldsRows | None = None,
) -> PyTree:
    """Returns `program(holder, *fixed, *rows)`: results row by row.

    Without a holder `program(*fixed, *rows)`; without rows results are of any shape.
    """
    given = () if holder is None else (holder,)
    sizes = _sizes(program, fixed, rows, holder)
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


def counted(
    program: Callable[..., PyTree],
    *rows: PyTree,
    at_once: bool = False,
    by_pairs: bool = False,
    **options: Any,
) -> PyTree:
    """Returns `program(*rows, count, **options)`: results of all rows together.

    The first `count` rows count, all if it is None. `at_once` fills up the first number
    of rows too: for programs that take long to compile. `by_pairs` says that a program
    goes through all pairs of rows: filling up adds many.
    """
    given = tuple(options.values())
    sizes = _sizes(program, given, rows, at_once=at_once, by_pairs=by_pairs)
    if sizes is None:
        return program(*rows, None, **options)
    count = np.asarray(len(jax.tree.leaves(rows)[0]), np.int32)
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
    """Returns `jnp.asarray(x)`, but compiles nothing for most shapes."""
    if x.ndim == 0 or x.size > _MOST or x.dtype.kind not in "biuf":
        return jnp.asarray(x)
    if _firsts.setdefault((x.dtype, *map(_power, x.shape)), x.shape) == x.shape:
        return jnp.asarray(x)
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    with np.errstate(over="ignore"):
        return jax.device_put(np.array(x, dtype))  # of a copy, for it may keep that


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


def _sizes(program, fixed, rows, holder=None, at_once=False, by_pairs=False):
    """Returns the numbers of rows to fill up to, held and given; None to leave all."""
    numbers = 0 if holder is None else holder._num_held(), _num_rows(rows)
    if not (isinstance(numbers[0], int) and isinstance(numbers[1], int)):
        return None  # an export leaves them open
    calls = _calls.get((program, numbers), 0)
    if calls >= _OFTEN:  # the hot path
        return None
    sizes = tuple(map(_power, numbers))
    pairs = sizes[1] ** 2 - numbers[1] ** 2 if by_pairs else 0
    cost = 1 + pairs // _PAIRS
    if sizes != numbers and max(sizes) <= _MOST_ROWS and cost <= _DEAR:
        leaves = jax.tree.leaves(rows)
        width = sum(leaf.size for leaf in leaves) // max(numbers[1], 1)
        if sizes[1] * width > _MOST or not on_host(holder, fixed, rows):
            return None
        if at_once or _firsts.setdefault((program, sizes), numbers) != numbers:
            _note(program, numbers, calls + cost)
            return sizes
    _note(program, numbers, _OFTEN)
    return None


def _note(program, numbers, calls):
    """Keeps how often numbers of rows came; of too many all anew."""
    if len(_calls) > _MANY:
        _calls.clear()
    _calls[program, numbers] = calls


def _power(n):
    """Returns the least power of two that is at least `n`; 0 of 0."""
    return 1 << (n - 1).bit_length() if n else 0


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
