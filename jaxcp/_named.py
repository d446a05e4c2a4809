"""Groups and sets with names."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np

from jaxcp._arrays import is_concrete
from jaxcp._names import Names, as_names, codes, is_missing, on_host
from jaxcp.typing import AnySet, ArrayLike, HasNames


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
