"""Labels and groups by name, of any hashable kind: codes 0, ..., k - 1 by one dict.

Names that are all numbers are numbers everywhere: targets are compared with them, also
inside of a program, where a target that is none of them is out of range. Other names
are known on the host alone; an integer target is then a label 0, ..., k - 1 by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_host_array, is_concrete
from jaxcp.typing import AnySet, HasNames

_FEW = 5  # names that a message lists
_MANY = 20  # names that are shown in full


class Names(tuple[Hashable, ...]):
    """Distinct names of 0, ..., k - 1, made by `as_names`.

    Equal to other names of the same types alone, for 1 and True are equal: programs are
    kept by them.
    """

    def __eq__(self, other: object) -> bool:
        """Returns whether all names are the same; of other names also the types."""
        if self is other or not isinstance(other, Names):
            return self is other or tuple.__eq__(self, other)
        same = [*map(type, self)] == [*map(type, other)]
        return same and tuple.__eq__(self, other)

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
        if _key(name) in seen:
            raise ValueError(f"expected distinct {argument}, got {name!r} once more")
        if is_missing(name):
            raise ValueError(f"expected {argument} without missing ones, got {name!r}")
        seen.add(_key(name))
    return names


def check_count(argument: str, names: Collection[Hashable], count: int) -> None:
    """Raises ValueError unless there is a name for each column."""
    if len(names) != count:
        expected = f"{argument} with {count} names, one a column"
        raise ValueError(f"expected {expected}, got {len(names)}")


def codes(names, argument, values, among, mask=None, cure=""):
    """Returns the place of every value among the names, int; k where it is none.

    Raises ValueError for a value on the host that is none of them in a row that `mask`
    keeps: `among` says what the names are, and `cure` what to do. Else as `places`.
    """
    names = as_names("classes", names)
    found = places(names, argument, values)
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu":
        return found
    known = (found >= 0) & (found < len(names))
    if not known.all():
        flat = on_host(argument, values).ravel().tolist()
        is_there = ~np.reshape([*map(is_missing, flat)], known.shape)
        shown = np.reshape([*map(repr, flat)], known.shape)
        expected = f"{argument} without missing ones"
        _checks.check_values(lambda _: known | is_there, expected, shown, mask)
        expected = f"{argument} among {among} {_listed(names)}"
        _checks.check_values(lambda _: known, expected, shown, mask, cure)
    return found


def places(names: Names, argument: str, values: Any) -> Any:
    """Returns the place of every value among the names, int; k where it is none.

    An array of numpy where the values are known. Numbers are left as they are where the
    names are none; so is None.
    """
    if values is None:
        return None
    numbers = np.asarray(names) if _are_numbers(set(map(type, names))) else None
    are_codes = numbers is None or numbers.dtype == object
    if isinstance(values, Array) and are_codes:
        return values
    if not is_concrete(values):
        return _places_in_program(values, numbers)
    values = on_host(argument, values)
    if values.dtype.kind in "biuf" and are_codes:
        return values
    known = names if values.dtype.kind != "f" else _as_type(numbers, values.dtype)
    table = {_key(name): place for place, name in enumerate(known)}
    flat = [table.get(_key(value), len(names)) for value in values.ravel().tolist()]
    return np.array(flat, np.int32).reshape(values.shape)


def _places_in_program(values, names):
    dtype = jnp.promote_types(values.dtype, jax.dtypes.canonicalize_dtype(names.dtype))
    if jnp.issubdtype(values.dtype, jnp.floating):
        dtype = values.dtype
    known = _as_type(names, dtype)
    fits = known == names if known.dtype.kind in "iu" else np.ones(known.shape, bool)
    each = (None,) * values.ndim
    same = (values[..., None].astype(dtype) == known[each]) & fits[each]
    return jnp.where(same.any(-1), same.argmax(-1), len(names)).astype(np.int32)


def _as_type(names, dtype):
    """Returns names that are numbers in the type that they are compared in."""
    cast = names.astype(dtype)
    if cast.dtype.kind not in "biu" and len(np.unique(cast)) < len(cast):
        raise ValueError(f"expected classes or groups that differ in {dtype}")
    return cast


def on_host(argument: str, values: Any) -> np.ndarray:
    """Returns values as a numpy array, of numbers if they are numbers."""
    if isinstance(values, tuple | list):
        nested = any(isinstance(v, list | np.ndarray | Array) for v in values)
        values = values if nested else np.fromiter(values, object, len(values))
    array = as_host_array(argument, values)
    if array.dtype == object and array.size:
        are_numbers = _are_numbers(set(map(type, array.ravel().tolist())))
        return np.asarray(array.tolist()) if are_numbers else array
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
    return datetime.combine(value, time()) if type(value) is date else value


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
    names: Names | None


def as_groups(groups, num_groups, group_names, mask=None):
    """Returns groups by number, or by name: by their own names if none are given."""
    if isinstance(groups, Groups):
        return groups
    _check_one_column(groups)
    if group_names is not None:
        names = as_names("group_names", group_names)
    elif num_groups is not None and not _are_text(groups):
        return Groups(groups, num_groups, None)
    else:
        names = _distinct(groups, mask)
    if num_groups is not None and num_groups != len(names):
        expected = f"num_groups as many as group_names, {len(names)}"
        raise ValueError(f"expected {expected}, got {num_groups!r}")
    return Groups(group_codes(names, groups, mask), len(names), names)


def group_codes(names, groups, mask=None, cure=""):
    """Returns groups by name as 0, ..., g - 1, after checks."""
    if not isinstance(groups, str):  # of one example
        _check_one_column(groups)
    return codes(names, "groups", groups, "the group_names", mask, cure)


def cluster_codes(clusters, mask=None, name="clusters"):
    """Returns clusters by id as 0, 1, ...; traced integers as they are."""
    _check_one_column(clusters, name)
    if not is_concrete(clusters):
        _checks.check_labels(name, clusters, 2**31 - 1)
        return clusters
    values = on_host(name, clusters)
    if values.dtype.kind in "iu":
        if values.min(initial=0) >= 0 and values.max(initial=0) < values.size:
            return clusters if isinstance(clusters, Array) else values
        return np.unique(values, return_inverse=True)[1].astype(np.int32)
    flat, table = values.ravel().tolist(), dict[Hashable, int]()
    number = {v: table.setdefault(_key(v), len(table)) for v in dict.fromkeys(flat)}
    if any(map(is_missing, number)):
        known = np.frompyfunc(lambda v: not is_missing(v), 1, 1)
        _checks.check_values(known, f"{name} without missing ones", values, mask)
    return np.array([number[v] for v in flat], np.int32).reshape(values.shape)


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


def _are_text(groups):
    """Returns whether groups come in an array of words, or of other objects."""
    kind = getattr(getattr(groups, "dtype", None), "kind", None)
    return kind in ("O", "U", "S") and on_host("groups", groups).dtype.kind in "OUS"


def _distinct(groups, mask):
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
    distinct = as_names("groups", [*dict.fromkeys(values.ravel().tolist())])
    return Names(sorted(distinct))  # type: ignore[type-var]


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
