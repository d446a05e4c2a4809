"""Labels and groups by name, of any hashable kind: codes 0, ..., k - 1 by one dict.

Names are one where Python says that they are equal: 1, 1.0 and True are, 2**53 + 1 and
float(2**53) are not. So are dates and times of one instant, in any unit.

Where a name is a number, numbers are names: targets are compared with them, also inside
of a program, where a target that is none of them is out of range. Other names are known
on the host alone; where no name is a number, an integer is a label 0, ..., k - 1.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_host_array, is_concrete
from jaxcp.typing import AnySet, HasNames

_FEW = 5  # names that a message lists
_MANY = 20  # names that are shown in full
_MANY_VALUES = 2**8  # for a name, from which on numpy takes less time than a dict
_FLOATS = float, np.floating
_TO_CONVERT = np.generic, date, timedelta


class Names(tuple[Hashable, ...]):
    """Distinct names of 0, ..., k - 1, made by `as_names`.

    Equal to other names of the same types alone, for 1 and True are equal: programs are
    kept by them.
    """

    def __eq__(self, other: object) -> bool:
        """Returns whether all names are the same; of other names also the types."""
        if self is other or not isinstance(other, Names):
            return self is other or tuple.__eq__(self, other)
        return _types(self) == _types(other) and tuple.__eq__(self, other)

    __ne__ = object.__ne__
    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        """Returns the names as a tuple; of many only the first ones."""
        return tuple.__repr__(self) if len(self) <= _MANY else f"({_listed(self)})"


def as_names(argument: str, values: Any) -> Names:
    """Returns distinct hashable names, of Python where numpy has its own types."""
    if isinstance(values, Names):
        return values
    if isinstance(values, str | bytes | Mapping | AbstractSet):
        expected = f"{argument} in an order, as a list or an array"
        raise ValueError(f"expected {expected}, got {values!r}")
    values = np.asarray(values) if isinstance(values, Array) else values
    names, seen = Names(map(_plain, values)), set()
    for name in names:
        if (key := _key(name)) in seen:
            raise ValueError(f"expected distinct {argument}, got {name!r} once more")
        if is_missing(name):
            raise ValueError(f"expected {argument} without missing ones, got {name!r}")
        seen.add(key)
    return names


def check_count(argument: str, names: Collection[Hashable], count: int) -> None:
    """Raises ValueError unless there is a name for each column."""
    if len(names) != count:
        expected = f"{argument} with {count} names, one a column"
        raise ValueError(f"expected {expected}, got {len(names)}")


def codes(
    names: Iterable[Hashable],
    argument: str,
    values: Any,
    among: str,
    mask: Any = None,
    cure: str = "",
) -> Any:
    """Returns the place of every value among the names, int; k where it is none.

    Raises ValueError for a value on the host that is none of them in a row that `mask`
    keeps: `among` says what the names are, and `cure` what to do. Else as `places`.
    """
    names = as_names("classes", names)
    codes = places(names, argument, values)
    if not isinstance(codes, np.ndarray) or codes.dtype.kind not in "iu":
        return codes
    is_named = (codes >= 0) & (codes < len(names))
    if not is_named.all():
        flat = as_list(on_host(argument, values))
        is_there = ~np.reshape([*map(is_missing, flat)], codes.shape)
        shown = np.reshape([*map(repr, flat)], codes.shape)
        expected = f"{argument} without missing ones"
        _checks.check_values(lambda _: is_named | is_there, expected, shown, mask)
        expected = f"{argument} among {among} {_listed(names)}"
        _checks.check_values(lambda _: is_named, expected, shown, mask, cure)
    return codes


def places(names: Names, argument: str, values: Any) -> Any:
    """Returns the place of every value among the names, int; k where it is none.

    An array of numpy where the values are known. Numbers are left as they are where no
    name is one; so is None.
    """
    if values is None:
        return None
    are_codes = not any(map(_is_number, set(map(type, names))))
    if isinstance(values, Array) and are_codes:
        return values
    if not is_concrete(values):
        return _places_in_program(values, names)
    values = on_host(argument, values)
    if values.dtype.kind in "biuf" and are_codes:
        return values
    return equal_places(names, values)


def equal_places(names: Sequence[Hashable], values: np.ndarray) -> np.ndarray:
    """Returns the place of every value of numpy among the names, k where it is none."""
    kind, many = values.dtype.kind, values.size > _MANY_VALUES * len(names)
    if kind in "biufU" and (many or (kind == "f" and values.dtype.itemsize < 8)):
        codes = np.full(values.shape, len(names), np.int32)
        for number, place in zip(*_as_type(names, values.dtype), strict=True):
            codes[values == number] = place
        return codes
    table = {_key(name): place for place, name in enumerate(names)}
    flat = as_list(values)
    place_of = {v: table.get(_key(v), len(names)) for v in dict.fromkeys(flat)}
    return _looked_up(place_of, flat).reshape(values.shape)


def _places_in_program(values: Array, names: Names) -> Array:
    numbers, places = _as_type(names, values.dtype)
    each = (None,) * values.ndim
    same = values[..., None] == numbers[each]
    return jnp.where(same, places[each], len(names)).min(-1, initial=len(names))


def _as_type(names: Sequence[Hashable], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the names that are values of a type, and the places of these.

    Floats are rounded to it; of other names none is rounded or cut.
    """
    kinds: Any = str if dtype.kind == "U" else (Real, Decimal)
    numbers: list[np.ndarray] = []
    places: list[int] = []
    is_float = jnp.issubdtype(dtype, jnp.floating)
    for place, name in enumerate(names):
        if isinstance(name, kinds):
            with suppress(OverflowError), np.errstate(all="ignore"):
                number = np.array(float(name) if is_float else name).astype(dtype)
                if number.item() == name or (is_float and isinstance(name, float)):
                    numbers.append(number)
                    places.append(place)
    if is_float and len(np.unique(numbers)) < len(numbers):
        raise ValueError(f"expected classes or groups that differ in {dtype}")
    return np.array(numbers, dtype), np.array(places, np.int32)


def on_host(argument: str, values: Any) -> np.ndarray:
    """Returns values as a numpy array: of a type that has each as it is, or of objects.

    Tuples in a list are names.
    """
    if isinstance(values, tuple | list):
        nested = any(isinstance(v, list | np.ndarray | Array) for v in values)
        values = values if nested else np.fromiter(values, object, len(values))
    values = one_name(values) if isinstance(values, date) else values
    array = as_host_array(argument, values)
    if array.dtype.kind in "mM":
        return _in_microseconds(array)
    return _as_numbers(array) if array.dtype == object and array.size else array


def one_name(name: Hashable) -> np.ndarray:
    """Returns a name as an array without axes, also a tuple or a time in a zone."""
    return np.fromiter([name], object, 1).reshape(())


def as_list(values: np.ndarray) -> list[Any]:
    """Returns values of Python; of numpy dates and times that Python does not have."""
    flat = values.ravel().tolist()
    is_beyond = values.dtype.kind in "mM" and int in set(map(type, flat))
    return [*values.ravel()] if is_beyond else flat


def distinct(values: np.ndarray) -> tuple[list[Any], np.ndarray]:
    """Returns distinct values in order of appearance, and the place of each value.

    All that are missing are one of them.
    """
    flat, names = as_list(values), list[Any]()
    place_of_key, place_of_value = dict[Hashable, int](), dict[Hashable, int]()
    for value in dict.fromkeys(flat):
        key = None if is_missing(value) else _key(value)
        place = place_of_key.setdefault(key, len(names))
        place_of_value[value] = place
        if place == len(names):
            names.append(value)
    return names, _looked_up(place_of_value, flat).reshape(values.shape)


def _looked_up(place_of: Mapping[Hashable, int], values: list[Any]) -> np.ndarray:
    return np.fromiter(map(place_of.__getitem__, values), np.int32, len(values))


def in_order(names: Iterable[Any]) -> Names:
    """Returns names sorted; as they come, where they have no order."""
    names = Names(names)
    with suppress(TypeError):
        return Names(sorted(names))  # type: ignore[type-var]
    return names


def _as_numbers(array: np.ndarray) -> np.ndarray:
    """Returns objects as numbers, if all are and one type has each of them."""
    flat = array.ravel().tolist()
    types = set(map(type, flat))
    if not all(map(_is_number, types)):
        return array
    numbers = np.asarray(array.tolist())
    # Next to floats, or beyond 64 bits, integers become the floats that are nearest.
    if numbers.dtype.kind == "f" and not all(issubclass(t, _FLOATS) for t in types):
        pairs = zip(numbers.ravel().tolist(), flat, strict=True)
        return numbers if all(a == b or b != b for a, b in pairs) else array
    return array if numbers.dtype == object else numbers


def _in_microseconds(array: np.ndarray) -> np.ndarray:
    """Returns dates or times in the unit of Python, if it has each; else in theirs."""
    found = array.astype(f"{array.dtype.kind}8[us]")
    is_exact = (found.astype(array.dtype) == array) | np.isnat(array)
    return found if is_exact.all() else array


def _is_number(kind: type) -> bool:
    return issubclass(kind, Real | np.bool_ | Decimal)


def _types(names: Iterable[Hashable]) -> list[Any]:
    """Returns the types of names: of tuples those inside, of numpy with the unit."""
    return [
        _types(v) if isinstance(v, tuple) else getattr(v, "dtype", type(v))
        for v in names
    ]


def _plain(value: Any) -> Any:
    """Returns a value of numpy as one of Python, but for dates."""
    is_plain = isinstance(value, np.generic) and value.dtype.kind in "biufUS"
    return value.item() if is_plain else value


def _key(value: Any) -> Hashable:
    """Returns what stands for a name: dates and times of one instant hash the same."""
    if not isinstance(value, _TO_CONVERT):
        return value
    if hasattr(value, "to_numpy") and getattr(value, "tzinfo", None) is None:  # pandas
        value = value.to_numpy()
    if isinstance(value, np.datetime64 | np.timedelta64):
        value = _in_microseconds(np.asarray(value))[()]
        if not isinstance(plain := value.item(), int):
            value = plain
        elif isinstance(value, np.datetime64):
            return np.datetime64, np.datetime_as_string(value, "as")
    return datetime.combine(value, time()) if type(value) is date else _plain(value)


def is_missing(value: Any) -> bool:
    """Returns whether a value is None, NaN, NaT or NA."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def told(names: Iterable[Hashable]) -> list[str]:
    """Returns names as distinct words, by their repr where two of them print alike."""
    words = [*map(str, names)]
    return words if len({*words}) == len(words) else [*map(repr, names)]


def _listed(names):
    """Returns the first names as a message shows them."""
    shown = ", ".join(map(repr, names[:_FEW]))
    return shown if len(names) <= _FEW else f"{shown}, ... ({len(names)})"


class Groups(NamedTuple):
    """Groups as 0, ..., count - 1, and their names if they have any."""

    codes: Any
    count: Any
    names: tuple[Hashable, ...] | None


def as_groups(
    groups: Any, num_groups: Any, group_names: Any, mask: Any = None
) -> Groups:
    """Returns groups by number, or by name: by their own names if none are given."""
    if isinstance(groups, Groups):
        return groups
    _check_one_column(groups)
    groups = as_column(groups)
    if group_names is not None:
        names = as_names("group_names", group_names)
    elif num_groups is not None and not _are_names(groups):
        return Groups(groups, num_groups, None)
    else:
        names = _names_of(groups, mask)
    if num_groups is not None and num_groups != len(names):
        expected = f"num_groups as many as group_names, {len(names)}"
        raise ValueError(f"expected {expected}, got {num_groups!r}")
    return Groups(group_codes(names, groups, mask), len(names), names)


def as_column(groups: Any) -> Any:
    """Returns groups in a list as an array, in which tuples are names."""
    return on_host("groups", groups) if isinstance(groups, tuple | list) else groups


def group_codes(
    names: Iterable[Hashable], groups: Any, mask: Any = None, cure: str = ""
) -> Any:
    """Returns groups by name as 0, ..., g - 1, after checks."""
    if not isinstance(groups, str):  # of one example
        _check_one_column(groups)
    return codes(names, "groups", groups, "the group_names", mask, cure)


def cluster_codes(clusters: Any, mask: Any = None, name: str = "clusters") -> Any:
    """Returns clusters by id as 0, 1, ...; traced integers as they are."""
    _check_one_column(clusters, name)
    if not is_concrete(clusters):
        _checks.check_labels(name, clusters, 2**31 - 1)
        return clusters
    values = on_host(name, clusters)
    kind = values.dtype.kind
    if kind in "iu":
        if values.min(initial=0) >= 0 and values.max(initial=0) < values.size:
            return clusters if isinstance(clusters, Array) else values
        return np.unique(values, return_inverse=True)[1].astype(np.int32)
    if kind in "mM" and not np.isnat(values).any():
        _, first, codes = np.unique(values, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first)).astype(np.int32)[codes]  # as they appear
    ids, codes = distinct(values)
    if any(map(is_missing, ids)):
        is_there = np.frompyfunc(lambda v: not is_missing(v), 1, 1)
        _checks.check_values(is_there, f"{name} without missing ones", values, mask)
    return codes


def _check_one_column(groups: Any, name: str = "groups") -> None:
    if isinstance(groups, str):
        raise ValueError(
            f"expected {name} of shape (n,), got {groups!r}; give the column itself, "
            f"such as frame[{groups!r}]"
        )
    columns = getattr(groups, "columns", ())
    if len(columns) > 1:
        raise ValueError(
            f"expected {name} of shape (n,), got a frame of the columns "
            f"{', '.join(map(str, columns))}; {name}.astype(str).agg(' '.join, axis=1) "
            "joins their names"
        )


def _are_names(groups: Any) -> bool:
    """Returns whether groups come in an array of words, dates, or other objects."""
    if getattr(getattr(groups, "dtype", None), "kind", None) not in [*"OUSmM"]:
        return False
    values = on_host("groups", groups)
    return values.size > 0 and values.dtype.kind in "OUSmM"


def _names_of(groups: Any, mask: Any) -> Names:
    """Returns the names that groups have: categories, or distinct values in order."""
    categories = getattr(getattr(groups, "dtype", None), "categories", None)  # pandas
    if categories is not None:
        return as_names("groups", categories)
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
    return in_order(as_names("groups", distinct(values)[0]))


def clusters_in_order(ids: Any, mask: Any = None) -> tuple[Any, int]:
    """Returns the cluster of every row as 0, ..., K - 1, of known ids, and K."""
    if not is_concrete(ids):
        raise ValueError("expected clusters with values, got a traced array")
    codes: Any = on_host("clusters", cluster_codes(ids, mask))
    _checks.check_vectors(clusters=codes)
    distinct, codes = np.unique(codes, return_inverse=True)
    return codes, len(distinct)


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
