"""Labels and groups of any hashable kind: names of 0, ..., k - 1, mapped at the door.

Names that are all numbers are numbers everywhere: targets are compared with them, also
inside of a program, where a target that is none of them is out of range. Other names
are known on the host alone; an integer target is then a label 0, ..., k - 1 by itself.
"""

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
        """Returns the names as a tuple of them, of many the first ones."""
        if len(self) <= _MANY:
            return tuple.__repr__(self)
        return f"({_listed(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns what makes them anew: hashes of text are those of a process."""
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
    if not isinstance(values, Iterable) or not is_concrete(values):
        raise ValueError(f"expected {argument} as a list of names, got {values!r}")
    if isinstance(values, Array):
        values = np.asarray(values)
    names = Names(_plain(value) for value in values)
    if not names:
        raise ValueError(f"expected {argument} with a name at least, got none")
    _check_names(argument, names)
    return names


def _check_names(argument, names):
    """Raises ValueError for names that cannot be told apart."""
    seen = set()
    for place, name in enumerate(names):
        if not isinstance(name, Hashable) or not _can_hash(name):
            kind = type(name).__name__
            raise ValueError(f"expected {argument} that hash, got {kind} at {place}")
        if _is_missing(name):
            raise ValueError(
                f"expected {argument} without missing ones, got {name!r} at {place}"
            )
        if _key(name) in seen:
            raise ValueError(
                f"expected distinct {argument}, got {name!r} again at {place}"
            )
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
    of: str,
    mask: ArrayLike | None = None,
) -> Any:
    """Returns the place of every value among the names, int; k where it is none.

    Raises ValueError for a value on the host that is none of them in a row that `mask`
    keeps: `of` says what the names are. None is returned as it is.
    """
    names = as_names("classes", names)
    found = places(names, argument, values)
    on_host = isinstance(found, np.ndarray) and found.dtype.kind in "iu"
    if not on_host or not is_concrete(mask):
        return found
    unknown = (found < 0) | (found >= len(names))
    if mask is not None and np.shape(mask) == found.shape[:1]:
        kept = np.asarray(mask, bool)
        unknown &= kept.reshape(-1, *(1,) * (found.ndim - 1))
    if unknown.any():
        where = tuple(int(i) for i in np.argwhere(unknown)[0])
        at = f" at {where if len(where) > 1 else where[0]}" if where else ""
        value = _plain(_on_host(argument, values)[where])
        raise ValueError(
            f"expected {argument} among {of} {_listed(names)}, got {value!r}{at}"
        )
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
    values = _on_host(argument, values)
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

    In programs that is a type of jax, in which names beyond its range are left out.
    """
    known, order = names._numbers
    on_host = isinstance(values, np.ndarray)
    whole = known.dtype.kind != "f" and values.dtype.kind != "f"
    if whole and on_host:
        return known, order
    if whole:
        dtype = jax.dtypes.canonicalize_dtype(int)
        limits = np.iinfo(dtype)
        fits = (known >= limits.min) & (known <= limits.max)
        return known[fits].astype(dtype), order[fits]
    is_float = jnp.issubdtype(values.dtype, jnp.floating)
    default = np.dtype(float) if on_host else jax.dtypes.canonicalize_dtype(float)
    dtype = values.dtype if is_float else default
    cast = known.astype(dtype)
    if (cast[1:] == cast[:-1]).any():
        raise ValueError(f"expected classes or groups that differ in {dtype}")
    return cast, order


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
    if num_groups is not None and group_names is None:
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
    found = codes(names, "groups", groups, "the group_names", mask)
    return Groups(found, len(names), names)


def are_integers(groups: Any) -> bool:
    """Returns whether groups are integers or flags, also traced ones."""
    if is_concrete(groups):
        groups = _on_host("groups", groups)
    return groups.dtype.kind in "biu"


def _distinct(groups, mask):
    """Returns the names that groups have: categories, or distinct values in order."""
    if groups is None:
        raise ValueError("expected groups as a value, got None")
    categories = getattr(getattr(groups, "dtype", None), "categories", None)  # pandas
    if categories is not None:
        return as_names("groups", categories)
    if not is_concrete(groups, mask):
        raise ValueError("expected num_groups with traced groups, got None")
    values = _on_host("groups", groups)
    if values.dtype.kind == "b":
        return Names((False, True))
    if values.dtype.kind in "iu":
        raise ValueError(
            "expected num_groups with groups 0, ..., num_groups - 1, got None; of "
            "other integers say group_names=numpy.unique(groups)"
        )
    if mask is not None and np.shape(mask) == values.shape[:1]:
        values = values[np.asarray(mask, bool)]
    if not values.size:
        raise ValueError("expected group_names with groups of no rows, got None")
    return _in_order(as_names("groups", list(dict.fromkeys(values.ravel().tolist()))))


def _in_order(names):
    try:
        return Names(sorted(names))
    except TypeError:
        raise ValueError(
            "expected group_names with groups that do not sort, got None"
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


def _on_host(argument, values):
    """Returns values as an array of numpy: of numbers, or of what they are."""
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


def _can_hash(value):
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _is_missing(value):
    """Returns whether a value is None, NaN, NaT or NA."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def _listed(names):
    """Returns the first names as a message shows them."""
    shown = ", ".join(map(repr, names[:_FEW]))
    return shown if len(names) <= _FEW else f"{shown}, ... ({len(names)})"
