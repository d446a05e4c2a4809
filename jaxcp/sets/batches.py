"""Batches of sets as data: a set by its index, some of them, arrays, frames."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._arrays import as_arrays, as_numpy, is_concrete
from jaxcp._numbers import as_float, rounding
from jaxcp.typing import Number

if TYPE_CHECKING:
    import pandas as pd

Shape = tuple[int, ...]


class Batch:
    """A batch of sets as a sequence along its first axis: the base of your own sets.

    Decorate the class with `jaxcp.pytree` and give it fields that are arrays,
    `contains(y)` and, if you can, `size()`, which of a batch is a number for each set:
    its shape says how many sets there are. (Without `size` the field with the fewest
    axes has those of the batch alone.) Then sets have a length, rows by `sets[i]`,
    `sets[2:5]`, `sets[[0, 7]]` and `sets[mask]`, a loop over them, `y in` for one of
    them, and the numbers of their fields as an array and as a frame.

    Guarantee:
      None of its own: that of the score whose `invert` returns the sets.

    Assumption:
      None.

    Cost:
      `len(sets)` traces `size`; rows are cut on the host, without a compilation.

    See also:
      sets.Interval, sets.membership, typing.Set, typing.HasSize, pytree

    Example:
      >>> @jaxcp.pytree
      ... class Disc(jaxcp.sets.Batch):
      ...     center: jax.Array
      ...     radius: jax.Array
      ...     def contains(self, y):
      ...         return jnp.linalg.norm(y - self.center, axis=-1) <= self.radius
      ...     def size(self):
      ...         return jnp.pi * self.radius**2
      >>> discs = Disc(jnp.zeros((3, 2)), jnp.array([1.0, 2.0, 3.0]))
      >>> len(discs), [round(disc.size().item(), 2) for disc in discs[1:]]
      (3, [12.57, 28.27])
      >>> list(discs.to_pandas())
      ['center_0', 'center_1', 'radius']
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
            "sets.transform(jnp.exp) maps intervals by a monotone function"
        )

    def _batch(self) -> Shape:
        """Returns the lengths of the leading axes; () for one set."""
        if hasattr(self, "size"):
            return jax.eval_shape(lambda sets: sets.size(), self).shape
        return min(map(np.shape, jax.tree.leaves(self)), key=len)

    def __len__(self) -> int:
        """Returns the number of sets, m."""
        batch = self._batch()
        if not batch:
            one = type(self).__name__
            raise TypeError(f"expected sets with a leading axis, got one {one}")
        return batch[0]

    def __bool__(self) -> bool:
        """Returns True, also for no sets at all: the length says how many there are."""
        return True

    def __contains__(self, y: Number) -> bool:
        """Returns whether `y` is in this one set."""
        return bool(self.contains(y))  # type: ignore[attr-defined]

    def __getitem__(self, index: Any) -> Self:
        """Returns one set for an int, and a batch for a slice, ints or a mask."""
        places = _places(index, len(self))
        return jax.tree.map(lambda v: rows_of(v, places), self)

    def __iter__(self) -> Iterator[Self]:
        """Returns an iterator over the sets, one by one."""
        row = lambda i: jax.tree.map(lambda v: rows_of(v, i), self)  # noqa: E731
        return map(row, range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.to_numpy(), dtype=dtype, copy=copy)

    def checked(self, num_sets: int) -> Self:
        """Returns the sets; ValueError unless there are so many, along one axis."""
        if (batch := self._batch()) != (num_sets,):
            kind = type(self).__name__
            raise ValueError(f"expected {kind} of shape {(num_sets,)}, got {batch}")
        return self

    def to_numpy(self) -> np.ndarray:
        """Returns the numbers of each set side by side, by fields, shape (m, c)."""
        shape = *self._batch(), -1
        fields = [np.asarray(v).reshape(shape) for v in jax.tree.leaves(self)]
        return np.concatenate(fields, axis=-1)

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
          boxes; a flag for each label, 0, ..., k - 1, for label sets; the fields for
          sets of your own.

        Raises:
          ValueError: for sets that are not given by numbers, or with several leading
            axes, and for lengths that differ.
          ImportError: if pandas is not installed.
        """
        import pandas as pd

        rows = self.to_numpy()
        self.checked(len(self))
        rows = rows.reshape(len(rows), np.prod(rows.shape[1:], dtype=int))
        if rows.dtype.kind == "V":  # a float of jax that pandas does not know
            rows = rows.astype(float)
        if isinstance(index, pd.DataFrame | pd.Series):
            index = index.index
        return pd.DataFrame(rows, index=index, columns=self._columns(columns))

    def to_dict(self) -> dict[str, Any]:
        """Returns the sets by field as lists, one entry a set, as JSON takes them.

        None stands for infinite ends and NaN, which JSON does not know. Fields are
        `lower` and `upper` for sets with ends, `labels` by name for label sets (`mask`
        for pixels), those of the class for others. One set has numbers in place of
        lists.

        Raises:
          ValueError: for sets that are not given by numbers, such as level sets.

        Example:
          >>> ends = jnp.array([0.5, -jnp.inf]), jnp.array([1.5, 2.0])
          >>> jaxcp.sets.Interval(*ends).to_dict()
          {'lower': [0.5, None], 'upper': [1.5, 2.0]}
        """
        self.to_numpy()
        none = np.array(None)
        finite = lambda v: np.where(np.isfinite(v), v, none).tolist()  # noqa: E731
        named = jax.tree.leaves_with_path(self)
        key = partial(jax.tree_util.keystr, simple=True, separator="_")
        return {key(path): finite(np.asarray(leaf)) for path, leaf in named}

    def to_json(self) -> str:
        """Returns `to_dict` as JSON; names that it does not know are written as text.

        Raises:
          ValueError: as `to_dict`.

        Example:
          >>> jaxcp.sets.LabelSet(jnp.array([True, False]), ("cat", "dog")).to_json()
          '{"labels": ["cat"]}'
        """
        return json.dumps(self.to_dict(), default=str, allow_nan=False)

    def _columns(self, names: Sequence | None) -> list:
        """Returns the names of the columns of a frame."""
        if names is not None:
            return list(names)
        found, ndim = [], len(self._batch())
        for path, leaf in jax.tree.leaves_with_path(self):
            name = jax.tree_util.keystr(path, simple=True, separator="_")
            count = np.prod(np.shape(leaf)[ndim:], dtype=int)
            is_one = np.ndim(leaf) == ndim
            found += [name] if is_one else [f"{name}_{i}" for i in range(count)]
        return found


def _places(index, m):
    """Returns which of m sets an index names: ints of one axis, or a slice of them."""
    if isinstance(index, slice | jax.core.Tracer):
        return index
    if not isinstance(index, list | tuple):
        index = as_numpy("index", index)  # also flags and ints of pandas' own types
    places = np.arange(m)[index]
    if places.ndim > 1:
        raise IndexError(
            f"expected an index of one axis, as {m} flags; sets.to_numpy() has more"
        )
    return places


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


def without_axis(y: Array, ndim: int) -> Array:
    """Returns targets of one number each, which may come with an axis of their own."""
    return y[..., 0] if y.ndim == ndim + 1 and y.shape[-1] == 1 else y


def over_batch(method: Callable[..., Any], ndim: int, region: Any, *y: Any) -> Any:
    """Returns `method(region, y)` of each set of a batch with `ndim` leading axes."""
    for _ in range(ndim):
        method = jax.vmap(method)
    return method(region, *(as_arrays(y=v) for v in y))


def at_most(score: Array, bound: Number, rounds: bool) -> Array:
    """Returns whether a score is at most a bound, or beyond it by rounding alone."""
    bound = as_float(bound)
    return score <= (bound + rounding(bound) if rounds else bound)


def log_of_solid(log_volume: Array, least: Array) -> Array:
    """Returns a log volume where the least side is above 0; -inf at 0, NaN at NaN."""
    flat = jnp.where(least <= 0, -jnp.inf, jnp.nan)
    return jnp.where(least > 0, log_volume, flat)
