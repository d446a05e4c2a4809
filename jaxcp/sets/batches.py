"""Shapes of targets, and volumes of sets that may be flat.

Batches of sets as data: a set by its index, some of them, arrays, frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._arrays import as_arrays, is_concrete
from jaxcp._arrays import as_numpy as as_numpy
from jaxcp._numbers import as_float, rounding
from jaxcp._tree import Untraceable
from jaxcp.typing import Number

Shape = tuple[int, ...]


def without_axis(y: Array, ndim: int) -> Array:
    """Returns targets of one number each, which may come with an axis of their own."""
    return y[..., 0] if y.ndim == ndim + 1 and y.shape[-1] == 1 else y


def answer_shape(targets: Shape, sets: Shape) -> Shape:
    """Returns the shape of the answers of a batch of sets to a batch of targets."""
    try:
        return np.broadcast_shapes(targets, sets)
    except ValueError:
        raise ValueError(
            "expected one target for each set or one for all, got targets of shape "
            f"{targets} for sets of shape {sets}"
        ) from None


def log_of_solid(log_volume: Array, least: Array) -> Array:
    """Returns a log volume where the least side is above 0; -inf at 0, NaN at NaN."""
    flat = jnp.where(least <= 0, -jnp.inf, jnp.nan)
    return jnp.where(least > 0, log_volume, flat)


def over_batch(method: Callable[..., Any], ndim: int, region: Any, *y: Any) -> Any:
    """Returns `method(region, y)` of each set of a batch with `ndim` leading axes."""
    y = tuple(as_arrays(y=v) for v in y)
    for v in y:
        if v.ndim < ndim:
            raise ValueError(
                f"expected one set, or a target for each of several, got {v.shape}"
            )
    for _ in range(ndim):
        method = jax.vmap(method)
    return method(region, *y)


def at_most(score: Array, bound: Number, rounds: bool) -> Array:
    """Returns whether a score is at most a bound, or beyond it by rounding alone."""
    bound = as_float(bound)
    return score <= (bound + rounding(bound) if rounds else bound)


if TYPE_CHECKING:
    import pandas as pd


class Batch:
    """A batch of sets as a sequence along its first axis.

    `_batch` of a class says which leading axes are those of the batch; `to_numpy` and
    `_columns` say what its numbers are, if it has any.
    """

    # Sets are no numbers: `y <= sets` is refused instead of taken for all their ends.
    def __array_ufunc__(self, function: Any, *_: Any, **options: Any) -> Any:
        """Raises TypeError, as other functions of numpy do."""
        self.__array_function__(function)

    def __array_function__(self, function: Any, *_: Any) -> Any:
        """Raises TypeError: functions of numpy have no meaning for sets."""
        raise TypeError(
            f"expected arrays for numpy.{function.__name__}, got sets of kind "
            f"{type(self).__name__}; sets.to_numpy() makes an array, and "
            "jax.tree.map(jnp.exp, sets) moves ends by an increasing function"
        )

    def _batch(self) -> tuple[int, ...]:
        """Returns the lengths of the leading axes; () for one set."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Returns the number of sets, m."""
        batch = self._batch()
        if not batch:
            kind = type(self).__name__
            raise TypeError(
                f"expected sets with a leading axis, got one {kind}, which has no "
                "length and no rows; to_numpy() has its numbers"
            )
        return batch[0]

    def __bool__(self) -> bool:
        """Returns True, also for no sets at all: the length says how many there are."""
        return True

    def __contains__(self, y: Number) -> bool:
        """Returns whether `y` is in this one set."""
        if self._batch():
            raise TypeError(
                "expected one set for `y in`, got several: sets.contains(y) answers "
                "for each set"
            )
        return bool(self.contains(y))  # type: ignore[attr-defined]

    def __getitem__(self, index: Any) -> Self:
        """Returns one set for an int, and a batch for a slice, ints or a mask."""
        index = _as_index(index, len(self))
        return jax.tree.map(lambda v: rows_of(v, index), self)

    def __iter__(self) -> Iterator[Self]:
        """Returns an iterator over the sets, one by one."""
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.to_numpy(), dtype=dtype, copy=copy)

    def to_numpy(self) -> np.ndarray:
        """Raises ValueError: these sets are not given by numbers of one kind."""
        kind = type(self).__name__
        raise ValueError(
            f"expected sets with ends or labels for an array of them, got {kind}: "
            "sets.contains(y) says what is in each"
        )

    def to_pandas(
        self, index: Any = None, columns: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """Returns a frame with a row for each set, of the numbers of `to_numpy`.

        Args:
          index: Index of the rows, or a frame or series that has it, of m rows.
            Defaults to 0, ..., m - 1.
          columns: Names of the outputs for boxes, of the labels for label sets, of the
            columns themselves for others.

        Returns:
          A pandas DataFrame. Its columns are lower and upper for intervals; lower_0,
          upper_0, lower_1, ... for boxes; x_min, y_min, x_max, y_max for bounding
          boxes; a flag for each label, 0, ..., k - 1, for label sets.

        Raises:
          ValueError: for sets of other kinds or with several leading axes, for lengths
            that differ, or if pandas is not installed.
        """
        rows = self.to_numpy()
        self.checked(len(self))  # type: ignore[attr-defined]
        rows = rows.reshape(len(rows), math.prod(rows.shape[1:]))
        return as_frame(rows, self._columns(rows.shape[1], columns), index)

    def _columns(self, count: int, names: Sequence | None) -> list:
        """Returns the names of so many columns."""
        return list(range(count)) if names is None else named(names, count)


def named(names: Sequence, count: int) -> list:
    """Returns so many names, after checks."""
    names = list(names)
    if len(names) != count:
        raise ValueError(f"expected columns as {count} names, got {len(names)}")
    return names


def on_host(values: Any) -> np.ndarray:
    """Returns an array of a set as numpy's; Untraceable where it has no values yet."""
    if not is_concrete(values):
        raise Untraceable(
            "expected sets with values for an array or a frame of them, got traced "
            "ones: return the sets, and make it outside of jit and vmap"
        )
    return np.array(values)


def as_frame(values: np.ndarray, columns: list, index: Any) -> pd.DataFrame:
    """Returns a frame of an array of shape (m, c)."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ValueError(
            "expected pandas to be installed for to_pandas, got no such package: "
            "pip install pandas, or take to_numpy()"
        ) from error
    if isinstance(index, pd.DataFrame | pd.Series):
        index = index.index
    is_list = isinstance(index, Sized) and not isinstance(index, str)
    if index is not None and not (is_list and len(index) == len(values)):
        raise ValueError(
            f"expected index with {len(values)} rows like sets, got "
            f"{len(index) if is_list else repr(index)}"
        )
    if values.dtype.kind == "V":  # a float of jax that pandas does not know
        values = values.astype(float)
    return pd.DataFrame(values, index=index, columns=columns)


def _as_index(index, m):
    """Returns an index of one axis of length m, numpy's where it is known."""
    if isinstance(index, slice):
        return index
    if isinstance(index, tuple) or index is None:
        _refuse(m, repr(index))
    if not isinstance(index, jax.core.Tracer):
        index = as_numpy("index", index)  # also flags and ints of pandas' own types
        if index.shape == (0,) and index.dtype.kind == "f":  # an empty list
            index = index.astype(int)
    is_mask = index.dtype == bool and index.shape == (m,)
    if is_mask and isinstance(index, jax.core.Tracer):
        raise Untraceable(
            "expected a mask with values as an index of sets, got a traced one, which "
            "does not say how many sets there are: pass ints, or index outside of jit"
        )
    if not is_mask and (index.dtype.kind not in "iu" or index.ndim > 1):
        _refuse(m, f"{index.dtype}{index.shape}")
    if isinstance(index, np.ndarray) and not is_mask:
        outside = index[(index < -m) | (index >= m)]
        if outside.size:
            raise IndexError(f"expected an index of {m} sets, got {outside.flat[0]}")
    return index


def _refuse(m, got):
    raise IndexError(
        f"expected an int, a slice, ints or a mask of {m} flags as an index of sets, "
        f"got {got}; sets.to_numpy() is an array to index"
    )


def rows_of(values: Any, index: Any) -> Any:
    """Returns rows of an array; by the host, where no index compiles anything."""
    if isinstance(index, jax.core.Tracer):
        return jnp.asarray(values)[index]
    if not (isinstance(values, Array) and is_concrete(values)):
        return values[index]
    devices = values.devices()
    to = devices.pop() if values.committed and len(devices) == 1 else None
    # Not `jnp.asarray`, which compiles a program for every shape.
    return jax.device_put(np.asarray(values)[index], to)
