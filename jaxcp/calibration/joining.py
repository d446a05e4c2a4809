"""Calibrations of parts of the rows, joined to one of all rows, and rows in parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate, count
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import is_array_like, is_concrete
from jaxcp.calibration.rule import Thresholds

_BYTES = 2**26  # of a block of rows that lie in a file
_AT_ONCE = "calibrate(..., clusters=ids) takes those of all rows, also of batches"
_OF_GROUPS = "; calibrate_groups takes groups"
_HEAD = 48  # bytes before large columns, which then start where jax needs no copy
_Calibration = TypeVar("_Calibration", bound=Thresholds)


def join(calibrations: Iterable[_Calibration]) -> _Calibration:
    """Returns the calibration of all the rows of several calibrations, in their order.

    For rows that never meet: each worker of a cluster calibrates its own, and sends or
    saves the calibration, which has one number a row.

    Args:
      calibrations: What `calibrate`, `calibrate_groups` or `risk.calibrate_risk`
        returned for parts of the rows, in any iterable, also after `load` or pickle.
        Only their rows may differ: the score has the same class and settings, names
        are the same, and all have weights or a mask, or none has.

    Returns:
      A calibration of their kind, of the same bits as that of the rows together. Scores
      with exp, log or products of matrices, such as LogLAC, may differ from it in the
      last digits: XLA rounds these by how many rows it is given, if they are few.

    Raises:
      ValueError: if there are none, or something else than rows differs: it says what,
        and in which calibration, counted from 0.

    Guarantee:
      That of the calibration of the rows together.

    Assumption:
      Those of the calibration, of all rows: parts are exchangeable with each other.

    Cost:
      The rows of all parts and of the result; of a generator, as
      `map(jaxcp.load, files)`, those of one part and of the result. Compiles nothing.

    See also:
      calibrate, calibrate_groups, risk.calibrate_risk, save, load

    Example:
      >>> from jaxcp.scores import Absolute
      >>> y = jnp.arange(1.0, 10.0)
      >>> parts = [jaxcp.calibrate(Absolute(), 0 * v, v) for v in (y[:4], y[4:])]
      >>> jaxcp.join(parts).quantile(0.2)
      Array(8., dtype=float32)
    """
    cure = "; write join([first, second])"
    _checks.check_kind("calibrations in a list", calibrations, Iterable, cure)
    return _joined(calibrations, "calibrations")


def _joined(parts, name):
    """Returns the join of parts, which are dropped one by one."""
    first, columns = None, list[bytearray]()
    for number, part in enumerate(parts):
        first = part if first is None else first
        _check_same(part, first, f"{name}[{number}]")
        fields = {name: getattr(part, name) for name in part._row_fields}
        rows, structure = jax.tree.flatten(fields)
        if not is_concrete(rows):
            raise ValueError(f"expected {name} with values, got traced ones")
        columns = columns or [bytearray(_HEAD) for _ in rows]
        for column, v in zip(columns, rows, strict=True):
            column += np.asarray(v).tobytes()  # grows in place
    if first is None:
        raise ValueError(f"expected {name} with at least one, got none")
    for i, v in enumerate(rows):
        column = np.frombuffer(columns[i], v.dtype, offset=_HEAD)
        rows[i] = jax.device_put(column.reshape(-1, *v.shape[1:]))
    return dataclasses.replace(first, **jax.tree.unflatten(structure, rows))


def _check_same(part, first, place):
    """Raises ValueError unless a part has all that the first one has, but for rows."""
    if type(part) is not type(first) or not hasattr(part, "_row_fields"):
        raise ValueError(
            f"expected {place} of calibrate, calibrate_groups or calibrate_risk, and "
            f"of one class with those before, got {type(part).__name__}"
        )
    if part.clusters is not None:
        raise ValueError(f"expected {place} without clusters, got some; {_AT_ONCE}")
    for field in dataclasses.fields(first):
        trees = getattr(first, field.name), getattr(part, field.name)
        if field.name in first._row_fields:
            trees = jax.tree.map(_kind_of_rows, trees)
        flat: Any = [*map(jax.tree.flatten, trees)]
        (known, nested), (found, as_known) = flat
        same = nested == as_known and all(map(np.array_equal, known, found))
        if field.metadata.get("static"):
            same = trees[0] == trees[1]
        if not same:
            expected = f"{place} with {field.name} {trees[0]} as before"
            raise ValueError(f"expected {expected}, got {trees[1]}")


def _kind_of_rows(v):
    return f"{v.dtype}[{','.join(map(str, ('n', *v.shape[1:])))}]"


def by_batches(one: Callable[..., Any], batches: Any, **rows: Any) -> Any:
    """Returns `one(**rows)`: of all rows, or of batches, joined.

    Rows that lie in files, or are not computed yet, come in blocks.
    """
    given = [name for name, value in rows.items() if value is not None]
    if (batches is None) == (not given):
        found = ", ".join([*given, "batches"]) if given else "neither"
        raise ValueError(f"expected either preds and y, or batches, got {found}")
    name = "blocks" if batches is None else "batches"
    if batches is None:
        is_leaf = lambda v: isinstance(v, Iterator)  # noqa: E731
        if not any(map(_is_far, jax.tree.leaves(rows, is_leaf))):
            return one(**rows)
        leaves, structure = jax.tree.flatten(rows, is_leaf=_is_column)
        if not is_concrete(leaves):
            return one(**rows)
        batches = _blocks(leaves, partial(jax.tree.unflatten, structure))
    # No loop over batches: its variable would hold one while the next is made.
    take = partial(_of_batch, _checks.by_labels(one), name, tuple(rows))
    return _joined(map(take, count(), batches), name)


def _of_batch(
    one: Callable[..., Any],
    name: str,
    columns: tuple[str, ...],
    number: int,
    batch: Any,
) -> Any:
    """Returns the calibration of one batch; errors say which it is."""
    try:
        if isinstance(batch, Mapping):
            if "clusters" in batch:
                raise ValueError(f"expected batches without clusters; {_AT_ONCE}")
            if unknown := [str(key) for key in batch if key not in columns]:
                raise ValueError(
                    f"expected a mapping with {', '.join(columns)}, got "
                    f"{', '.join(unknown)}{_OF_GROUPS * ('groups' in unknown)}"
                )
            return one(**batch)
        if isinstance(batch, tuple | list) and len(batch) == 2:
            return one(*batch)
        kind = type(batch).__name__
        raise ValueError(f"expected (preds, y), or a mapping with both, got {kind}")
    except Exception as error:
        error.add_note(f"in {name}[{number}]")
        if isinstance(error, StopIteration):  # which would end the batches
            raise RuntimeError("expected a score, got StopIteration") from error
        raise


def _is_column(v):
    """Returns whether a list is of numbers or names, and not of arrays."""
    is_list = isinstance(v, list) and not any(hasattr(u, "shape") for u in v)
    return is_list or is_array_like(v)


def _blocks(leaves, unflatten):
    """Gives rows in chunks of the first dask array, or in blocks of some bytes."""
    n = _checks.num_rows(**unflatten([np.empty((len(v), 0)) for v in leaves]))
    total = sum(getattr(v, "nbytes", 8 * n) for v in leaves)
    size = max(_BYTES * n // max(total, 1), 1)
    ends = [0, *range(size, n, size), n]
    chunks = [c for v in leaves if (c := getattr(v, "chunks", None))]
    if chunks and isinstance(chunks[0][0], tuple):
        ends = [*accumulate(chunks[0][0], initial=0)]
    for rows in map(slice, ends[:-1], ends[1:]):
        yield unflatten([_cut(v, rows) for v in leaves])


def _cut(v, rows):
    """Returns some rows, read or computed."""
    v = np.asarray(v) if isinstance(v, Array) else getattr(v, "iloc", v)
    return np.asarray(v[rows]) if _is_far(v) else v[rows]


def _is_far(v):
    """Returns whether an array is in a file or computed on demand: dask, HDF5, zarr."""
    return isinstance(v, np.memmap) or hasattr(type(v), "chunks")
