"""Labels and groups of any hashable kind: names of 0, ..., k - 1.

Names that are all numbers are numbers everywhere: targets are compared with them, also
inside of a program, where a target that is none of them is out of range. Other names
are known on the host alone; an integer target is then a label 0, ..., k - 1 by itself.

Groups and sets with names.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._arrays import as_host_array, is_concrete
from jaxcp.typing import AnySet, ArrayLike, HasNames

_FEW = 5  # names that a message lists
_MANY = 20  # names that are shown in full


class Names(tuple[Hashable, ...]):
    """Distinct names of 0, ..., k - 1, made by `as_names`.

    Equal to other names of the same types alone, for 1 and True are equal: programs are
    kept by them. The hash is taken once, however many there are.
    """

    def __eq__(self, other: object) -> bool:
        """Returns whether all names are the same; of other names also the types."""
        if self is other or not isinstance(other, Names):
            return self is other or tuple.__eq__(self, other)
        same = self._hash == other._hash and self._types == other._types
        return same and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        """Returns whether names differ."""
        return not self == other

    def __hash__(self) -> int:
        """Returns the hash of the tuple."""
        return self._hash

    def __repr__(self) -> str:
        """Returns the names as a tuple; of many only the first ones."""
        if len(self) <= _MANY:
            return tuple.__repr__(self)
        return f"({_listed(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns how to rebuild them: hashes of text differ between processes."""
        return Names, (tuple(self),)

    @cached_property
    def _hash(self):
        return tuple.__hash__(self)

    @cached_property
    def _types(self):
        return tuple(map(type, self))

    @cached_property
    def _places(self):
        """The place of each name, by what stands for it."""
        return {_key(name): place for place, name in enumerate(self)}

    @cached_property
    def _numbers(self):
        """The names in order and their places, if all are numbers, else None."""
        values = np.asarray(self) if _are_numbers(self._types) else None
        if values is None or values.dtype == object:
            return None
        order = np.argsort(values, kind="stable")
        known = values[order]
        same = known[1:] == known[:-1]  # as floats, of integers beyond them
        return None if same.any() else (known, order.astype(np.int32))


def as_names(argument: str, values: Any) -> Names:
    """Returns distinct hashable names, of Python where numpy has its own types."""
    if isinstance(values, Names):
        return values
    if isinstance(values, str | bytes | Mapping | AbstractSet):
        raise ValueError(
            f"expected {argument} in an order, as a list or an array, got {values!r}"
        )
    is_list = isinstance(values, Iterable) and not _is_one(values)
    if not is_list or not is_concrete(values):
        raise ValueError(f"expected {argument} as a list of names, got {values!r}")
    if isinstance(values, Array):
        values = np.asarray(values)
    names = Names(_plain(value) for value in values)
    if not names:
        raise ValueError(f"expected {argument} with at least one name, got none")
    if not _are_distinct(names):
        _check_names(argument, names)
    return names


def _is_one(values):
    """Returns whether values are an array of shape (), which iterates in name alone."""
    return isinstance(values, np.ndarray | Array) and values.ndim == 0


def _are_distinct(names):
    """Returns whether names hash, are none of them missing, and no two the same."""
    try:
        distinct = len(set(map(_key, names))) == len(names)
    except TypeError:
        return False
    return distinct and not any(map(is_missing, names))


def _check_names(argument, names):
    """Raises ValueError for the first name that cannot be told from others."""
    seen = set()
    for place, name in enumerate(names):
        try:
            hash(name)
        except TypeError:
            kind = type(name).__name__
            raise ValueError(
                f"expected hashable {argument}, got {kind} at {place}"
            ) from None
        found = f"got {name!r} at {place}"
        if is_missing(name):
            raise ValueError(f"expected {argument} without missing ones, {found}")
        if _key(name) in seen:
            raise ValueError(f"expected distinct {argument}, {found} once more")
        seen.add(_key(name))


def check_count(argument: str, names: Collection[Hashable], count: int) -> None:
    """Raises ValueError unless there is a name for each column."""
    if len(names) != count:
        raise ValueError(
            f"expected {argument} with {count} names, one a column, got {len(names)}"
        )


def codes(
    names: Iterable[Hashable],
    argument: str,
    values: Any,
    among: str,
    mask: ArrayLike | None = None,
    cure: str = "",
) -> Any:
    """Returns the place of every value among the names, int; k where it is none.

    Raises ValueError for a value on the host that is none of them in a row that `mask`
    keeps: `among` says what the names are, and `cure` what to do. Else as `places`.
    """
    names = as_names("classes", names)
    found = places(names, argument, values)
    is_known = isinstance(found, np.ndarray) and found.dtype.kind in "iu"
    if is_known and is_concrete(mask):
        unknown = (found < 0) | (found >= len(names))
        if mask is not None and np.shape(mask) == found.shape[:1]:
            unknown = (unknown.T & np.asarray(mask, bool)).T
        if unknown.any():
            where = tuple(int(i) for i in np.argwhere(unknown)[0])
            at = f" at {where if len(where) > 1 else where[0]}" if where else ""
            value = _plain(on_host(argument, values)[where])
            wanted = f"among {among} {_listed(names)}"
            if is_missing(value):
                wanted, cure = "without missing ones", ""
            raise ValueError(f"expected {argument} {wanted}, got {value!r}{at}{cure}")
    return found


def places(names: Names, argument: str, values: Any) -> Any:
    """Returns the place of every value among the names, int; k where it is none.

    An array of numpy where the values are known. Numbers are left as they are where the
    names are none; so is None.
    """
    if values is None:
        return None
    if isinstance(values, Array) and names._numbers is None:
        return values
    if not is_concrete(values):
        return _places_of(values, names)
    values = on_host(argument, values)
    if values.dtype.kind in "biuf":
        if names._numbers is None:
            return values
        known, order = _in_type_of(values, names)
        return _search(np, values, known, order, len(names))
    flat = map(_key, values.ravel().tolist())
    found = np.fromiter((_place(names, key) for key in flat), np.int32, values.size)
    return found.reshape(values.shape)


def _place(names, key):
    try:
        return names._places.get(key, len(names))
    except TypeError:  # does not hash
        return len(names)


def _places_of(values, names):
    """Returns the places of values of a program among names that are numbers."""
    known, order = _in_type_of(values, names)
    if known.dtype != values.dtype:
        values = values.astype(known.dtype)
    if not known.size:
        return jnp.full(values.shape, len(names))
    return _search(jnp, values, jnp.asarray(known), jnp.asarray(order), len(names))


def _search(xp, values, known, order, count):
    """Returns the place of every value among sorted numbers; `count` if it is none."""
    at = xp.minimum(xp.searchsorted(known, values), len(known) - 1)
    return xp.where(known[at] == values, order[at], count).astype(np.int32)


def _in_type_of(values, names):
    """Returns sorted names and their places in a type to compare values in.

    In programs that is a type of jax; names beyond its range are left out.
    """
    known, order = names._numbers
    is_known = isinstance(values, np.ndarray)
    whole = known.dtype.kind != "f" and values.dtype.kind != "f"
    if whole and is_known:
        return known, order
    if whole:
        dtype = jax.dtypes.canonicalize_dtype(int)
        limits = np.iinfo(dtype)
        fits = (known >= limits.min) & (known <= limits.max)
        return known[fits].astype(dtype), order[fits]
    is_float = jnp.issubdtype(values.dtype, jnp.floating)
    default = np.dtype(float) if is_known else jax.dtypes.canonicalize_dtype(float)
    dtype = values.dtype if is_float else default
    cast = known.astype(dtype)
    if (cast[1:] == cast[:-1]).any():
        raise ValueError(f"expected classes or groups that differ in {dtype}")
    return cast, order


def on_host(argument: str, values: Any) -> np.ndarray:
    """Returns values as a numpy array, of numbers if they are numbers."""
    if isinstance(values, tuple | list):
        if any(isinstance(v, list | np.ndarray | Array) for v in values):
            values = np.asarray(values)
        else:
            values = np.fromiter(values, object, len(values))
    array = as_host_array(argument, values)
    if array.dtype.kind == "O":
        flat = array.ravel().tolist()
        if flat and _are_numbers(set(map(type, flat))):
            return np.asarray(flat).reshape(array.shape)
    return array.astype("datetime64[us]") if array.dtype.kind == "M" else array


def _are_numbers(types):
    return all(issubclass(kind, Real | np.bool_) for kind in types)


def _plain(value):
    """Returns a value of numpy as one of Python, but for dates."""
    is_plain = isinstance(value, np.generic) and value.dtype.kind in "biufUS"
    return value.item() if is_plain else value


def _key(value):
    """Returns what stands for a name: dates and times of one day hash the same."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if type(value) is date:
        return datetime.combine(value, time())
    return value


def is_missing(value: Any) -> bool:
    """Returns whether a value is None, NaN, NaT or NA."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def _listed(names):
    """Returns the first names as a message shows them."""
    shown = ", ".join(map(repr, names[:_FEW]))
    return shown if len(names) <= _FEW else f"{shown}, ... ({len(names)})"


class Groups(NamedTuple):
    """Groups as 0, ..., count - 1, and their names if they have any."""

    codes: Any
    count: Any
    names: Names | None


def as_groups(
    groups: Any,
    num_groups: Any,
    group_names: Iterable[Hashable] | None,
    mask: ArrayLike | None = None,
) -> Groups:
    """Returns groups by number, or by name: by their own names if none are given."""
    check_one_column(groups)
    if num_groups is not None and group_names is None and not _are_text(groups):
        return Groups(groups, num_groups, None)
    if group_names is None:
        names = _distinct(groups, mask)
    else:
        names = as_names("group_names", group_names)
    if num_groups is not None and num_groups != len(names):
        raise ValueError(
            f"expected num_groups as many as group_names, {len(names)}, got "
            f"{num_groups!r}"
        )
    return Groups(group_codes(names, groups, mask), len(names), names)


def group_codes(
    names: Iterable[Hashable],
    groups: Any,
    mask: ArrayLike | None = None,
    cure: str = "",
) -> Any:
    """Returns groups by name as 0, ..., g - 1, after checks."""
    check_one_column(groups)
    return codes(names, "groups", groups, "the group_names", mask, cure)


def check_one_column(groups: Any) -> None:
    """Raises ValueError for a frame of several columns."""
    columns = getattr(groups, "columns", ())
    if len(columns) > 1:
        raise ValueError(
            "expected groups of shape (n,), got a frame of the columns "
            f"{', '.join(map(str, columns))}; groups.astype(str).agg(' '.join, axis=1) "
            "joins their names"
        )


def are_integers(groups: Any) -> bool:
    """Returns whether groups are integers or flags, also traced ones."""
    if is_concrete(groups):
        groups = on_host("groups", groups)
    return groups.dtype.kind in "biu"


def _are_text(groups):
    """Returns whether groups come in an array of words, or of other objects."""
    kind = getattr(getattr(groups, "dtype", None), "kind", None)
    if kind not in ("O", "U", "S"):
        return False
    return on_host("groups", groups).dtype.kind in "OUS"


def _distinct(groups, mask):
    """Returns the names that groups have: categories, or distinct values in order."""
    if groups is None:
        raise ValueError("expected groups as a value, got None")
    categories = getattr(getattr(groups, "dtype", None), "categories", None)  # pandas
    if categories is not None:
        return as_names("groups", categories)
    if not is_concrete(groups, mask):
        raise ValueError("expected num_groups with traced groups, got None")
    values = on_host("groups", groups)
    if values.dtype.kind == "b":
        return Names((False, True))
    if values.dtype.kind in "iu":
        raise ValueError(
            "expected num_groups with groups 0, ..., num_groups - 1, got None; of "
            "other integers say group_names=numpy.unique(groups)"
        )
    if mask is not None and np.shape(mask) == values.shape[:1]:
        values = values[np.asarray(mask, bool)]
    return _in_order(values.ravel().tolist())


def _in_order(groups):
    """Returns the distinct groups in order, after checks."""
    if not groups:
        raise ValueError("expected group_names with groups of no rows, got None")
    for row, group in enumerate(groups):
        if is_missing(group):
            raise ValueError(
                f"expected groups without missing ones, got {group!r} at {row}"
            )
    try:
        return as_names("groups", sorted(dict.fromkeys(groups)))
    except TypeError:  # some do not hash, or there is no order
        raise ValueError(
            "expected hashable groups with an order, or group_names, got "
            f"{', '.join(sorted({type(group).__name__ for group in groups}))}"
        ) from None


def named(sets: AnySet, classes: Iterable[Hashable] | None) -> AnySet:
    """Returns sets with names of their labels, of sets that take them."""
    if classes is None or not issubclass(type(sets), HasNames):
        return sets
    return sets.named(classes)


def unnamed(sets: AnySet) -> AnySet:
    """Returns sets without the names of their labels."""
    return sets.named(None) if issubclass(type(sets), HasNames) else sets


def codes_of(sets: AnySet, y: Any) -> Any:
    """Returns targets of sets, labels by name as 0, ..., k - 1."""
    return sets.codes(y) if issubclass(type(sets), HasNames) else y


def keep_names(value: Any, *fields: str) -> None:
    """Turns the fields of a new value, unless they are None, into names."""
    for field in fields:
        names = getattr(value, field)
        if names is not None:
            object.__setattr__(value, field, as_names(field, names))
