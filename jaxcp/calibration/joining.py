"""Calibrations of parts of the rows, joined to one of all rows, and rows in parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import accumulate, count, pairwise
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import is_array_like, is_concrete
from jaxcp.calibration.rule import Thresholds

_BYTES = 2**26  # of a block of rows that lie in a file
_HEAD = 48  # bytes before large columns, which then start where jax needs no copy
_Calibration = TypeVar("_Calibration", bound=Thresholds)


def join(calibrations: Iterable[_Calibration]) -> _Calibration:
    """Returns the calibration of all the rows of several calibrations, in their order.

    For rows that never meet: each worker of a cluster calibrates its own, and sends or
    saves the calibration, which has one number a row.

    Args:
      calibrations: What `calibrate`, `calibrate_groups` or `risk.calibrate_risk`
        returned for parts of the rows, in any iterable, also after `load` or pickle.
        Only their rows may differ: the score has the same class and settings.

    Returns:
      A calibration of their kind. It equals that of the rows together in every bit if
      the scores of the parts do: those of +, -, *, / and square roots do. XLA may round
      exp, log and products of matrices in the last digit by how many rows a program
      has.

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
      calibrate, calibrate_groups, load, distributed

    Example:
      >>> from jaxcp.scores import Absolute
      >>> y = jnp.arange(1.0, 10.0)
      >>> parts = [jaxcp.calibrate(Absolute(), 0 * v, v) for v in (y[:4], y[4:])]
      >>> jaxcp.join(parts).quantile(0.2)
      Array(8., dtype=float32)
    """
    return _joined(calibrations, "calibrations")


def _joined(parts: Iterable[Any], name: str) -> Any:
    """Returns the join of parts, which are dropped one by one."""
    common: dict[str, Any] = {}
    for number, part in enumerate(parts):
        found, leaves = _common(part), jax.tree.leaves(_rows_of(part))
        if not common:
            common, like, columns = found, part, [bytearray(_HEAD) for _ in leaves]
        _check_same(found, common, f"{name}[{number}]")
        for column, leaf in zip(columns, leaves, strict=True):
            column += np.asarray(leaf).tobytes()  # grows in place
    if not common:
        raise ValueError(f"expected {name} with at least one, got none")
    rows, structure = jax.tree.flatten(_rows_of(like))
    whole = map(_as_array, columns, rows)
    return dataclasses.replace(like, **jax.tree.unflatten(structure, whole))


def _as_array(column, like):
    rows = np.frombuffer(column, like.dtype, offset=_HEAD)
    return jax.device_put(rows.reshape(-1, *like.shape[1:]))


def _rows_of(part):
    """Returns the fields with a leading axis of rows, by name."""
    return {name: getattr(part, name) for name in part._row_fields}


def _common(part):
    """Returns what parts share, by name, as it is shown and compared."""
    if not getattr(part, "_row_fields", ()):
        kind = type(part).__name__
        raise ValueError(f"expected calibrations whose rows can be joined, got {kind}")
    found: dict[str, Any] = {"class": (type(part).__name__, type(part))}
    for field in dataclasses.fields(part):
        value = shown = getattr(part, field.name)
        if field.name in part._row_fields:
            shown = value = jax.tree.map(_kind_of_rows, value)
        elif not field.metadata.get("static"):
            leaves, structure = jax.tree.flatten(value)
            value = structure, [np.asarray(v).tolist() for v in leaves]
        found[field.name] = shown, value
    return found


def _kind_of_rows(v):
    return f"{v.dtype}[{','.join(map(str, ('n', *v.shape[1:])))}]"


def _check_same(found, common, place):
    """Raises ValueError unless a part has what the first one has."""
    for name, (shown, value) in common.items():
        if found[name][1] != value:
            raise ValueError(
                f"expected {name} {shown} in {place} as in those before, got "
                f"{found[name][0]}"
            )


def by_batches(one: Callable[..., Any], batches: Any, **rows: Any) -> Any:
    """Returns `one(**rows)`: of all rows, or of batches, joined.

    Rows that lie in files, or are not computed yet, come in blocks.
    """
    given = {name: value for name, value in rows.items() if value is not None}
    if (batches is None) == (not given):
        found = " and ".join([*given, *["batches"] * bool(given)]) or "neither"
        raise ValueError(f"expected either preds and y, or batches, got {found}")
    if batches is None:
        arrays = _arrays_of(given)
        if not any(map(_is_far, arrays)) or not is_concrete(arrays):
            return one(**rows)
        batches = _blocks(given, arrays)
    # No loop over batches: its variable would hold one while the next is made.
    calibrated = map(partial(_of_batch, one, [*rows]), count(), batches)
    return _joined(calibrated, "batches")


def _of_batch(one, names, number, batch):
    """Returns the calibration of one batch; errors say which it is."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        batch = dict(zip(("preds", "y"), batch, strict=True))
    has_names = isinstance(batch, Mapping)
    if not (has_names and {"preds", "y"} <= {*batch} <= {*names}):
        found = ", ".join(map(str, batch)) if has_names else type(batch).__name__
        raise ValueError(
            f"expected batches[{number}] as a pair (preds, y), or a mapping with some "
            f"of {', '.join(names)}, got {found}"
        )
    try:
        return one(**batch)
    except Exception as error:
        error.add_note(f"in batches[{number}]")
        raise


def _blocks(rows, arrays):
    """Gives rows in chunks of the first dask array, or in blocks of some bytes."""
    n = _checks.num_rows(**_map(lambda v: np.empty((len(v), 0)), rows))
    total = sum(getattr(v, "nbytes", 8 * n) for v in arrays)
    size = max(_BYTES * n // max(total, 1), 1)
    ends = [0, *range(size, n, size), n]
    for chunks in (v.chunks for v in arrays if hasattr(type(v), "chunks")):
        if isinstance(chunks[0], tuple):
            ends = [*accumulate(chunks[0], initial=0)]
    for start, stop in pairwise(ends):
        yield _map(partial(_cut, slice(start, stop)), rows)


def _cut(rows, v):
    """Returns some rows, read or computed."""
    v = np.asarray(v) if isinstance(v, Array) else getattr(v, "iloc", v)
    return np.asarray(v[rows]) if _is_far(v) else v[rows]


def _is_far(v):
    """Returns whether an array is in a file or computed on demand: dask, HDF5, zarr."""
    return isinstance(v, np.memmap) or hasattr(type(v), "chunks")


def _arrays_of(rows):
    preds = jax.tree.leaves(rows.get("preds"), is_leaf=is_array_like)
    return [*preds, *(v for name, v in rows.items() if name != "preds")]


def _map(function, rows):
    """Returns rows with `function` of each array: predictions alone are nested."""
    preds = jax.tree.map(function, rows["preds"], is_leaf=is_array_like)
    return {k: function(v) for k, v in rows.items()} | {"preds": preds}
