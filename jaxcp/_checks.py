"""Checks of public arguments: made arrays, and checked where values are known."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from numbers import Real
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._arrays import (
    as_array,
    as_arrays,
    as_groups,
    as_numpy,
    check_digits_of_sets,
    in_units,
    is_array_like,
    is_concrete,
)
from jaxcp._numbers import as_float
from jaxcp._tree import EXACT, check_process, is_ours
from jaxcp.checking.captured import is_library
from jaxcp.typing import ArrayLike, PyTree

_Call = TypeVar("_Call", bound=Callable[..., Any])
_WARNS = "with_alpha.<locals>.checked"
_FEW = 2**15  # numbers that are copied sooner than a program is compiled for them


class Column(NamedTuple):
    """An argument with one number a row for `rows`; None if it is not required."""

    value: Any
    check: Callable[[str, Array, Array | None], None] = lambda *_: None
    convert: Callable[[str, Any], Array] = as_array
    is_vector: bool = True
    required: bool = False


def optional(value: Any) -> Column:
    """Any pytree with a leading axis, which may be None."""
    return Column(value, convert=lambda k, v: as_arrays(**{k: v}), is_vector=False)


def vector(value: Any) -> Column:
    """Any numbers, shape (n,), which must be given."""
    return Column(value, required=True)


def scores(value: Any) -> Column:
    """Scores without NaN, shape (n,), which must be given."""
    return Column(value, check_not_nan, required=True)


def mask(value: Any) -> Column:
    """True where a row counts, shape (n,): other arguments are checked there alone."""
    return Column(value, convert=flags)


def weights(value: Any) -> Column:
    """Weights that are finite and >= 0, shape (n,)."""
    if are_bounds(value):
        raise ValueError(
            "expected weights of shape (n,), got bounds (low, high) of them, which "
            "calibrate, calibrate_groups and split_conformal take"
        )
    return Column(value, check_weights)


def bounds(value: Any) -> Column:
    """Weights of shape (n,), or a tuple of two arrays, bounds of each of them."""
    if not are_bounds(value):
        return weights(value)
    return Column(value, check_bounds, _as_bounds, False)


def test_weights(value: Any, axes_of_labels: int | None = None) -> Column:
    """Weights of test points, of bounds the upper ends; of labels with these axes."""
    if are_bounds(value):
        return Column(value, check_weights, _upper_ends)
    if axes_of_labels is not None and np.ndim(value) == axes_of_labels:
        return Column(value, _check_weights_of_labels, is_vector=False)
    return weights(value)


def are_bounds(weights: Any) -> bool:
    """Returns whether weights are known by bounds: a tuple of two arrays (n,)."""
    return isinstance(weights, tuple) and [np.ndim(v) for v in weights] == [1, 1]


def uniforms(value: Any) -> Column:
    """Numbers in [0, 1], shape (n,)."""
    return Column(value, check_uniforms)


def groups(value: Any, num_groups: int) -> Column:
    """Groups or labels in 0, ..., num_groups - 1, shape (n,)."""
    check_count("num_groups", num_groups, 1)
    check = lambda name, v, mask: check_labels(name, v, num_groups, mask)  # noqa: E731
    return Column(value, check, as_groups, required=True)


def rows(**named: Any) -> Any:
    """Returns arguments with a leading axis as arrays, after checks.

    A tuple of them in their order, or the one. Plain arguments are pytrees that must be
    given; `vector`, `scores`, `weights`, ... say what a column is, and one named mask
    where it is checked.
    """
    found, columns = {}, {}
    for name, value in named.items():
        if not isinstance(value, Column):
            check_given(**{name: value})
            found[name] = as_arrays(**{name: value})
        elif value.value is None and not value.required:
            found[name] = None
        else:
            found[name], columns[name] = value.convert(name, value.value), value
    num_rows(**found)
    check_vectors(**{k: found[k] for k, v in columns.items() if v.is_vector})
    for name, column in columns.items():
        column.check(name, found[name], found.get("mask"))
    return tuple(found.values()) if len(found) > 1 else found.popitem()[1]


def num_rows(**named: PyTree) -> int:
    """Returns the common length of the leading axes of all leaves."""
    (first, expected), *others = (
        (name, _leading(name, tree)) for name, tree in named.items() if tree is not None
    )
    for name, rows in others:
        if rows != expected:
            listed = _listed(named[first], rows) or _listed(named[name], expected)
            wanted = f"{name} with {expected} rows like {first}"
            raise ValueError(f"expected {wanted}, got {rows}{listed}")
    return expected


def check_not_nan(name, tree, mask=None, cure=""):
    """Raises ValueError if a concrete leaf has a NaN in a row that `mask` keeps."""
    known, expected = lambda x: ~np.isnan(x), f"{name} without NaN"
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            check_range(known, expected, leaf, mask, cure, ends=("min",))


def check_range(valid, expected, values, mask=None, cure="", ends=("min", "max")):
    """Does as `check_values`: valid are all values between those that are valid.

    It looks at the ends, of NaN if there is any, where values lie; at all if one is
    invalid.
    """
    if is_concrete(values, mask) and not are_between(valid, values, ends):
        check_values(valid, expected, values, mask, cure)


def are_between(valid, values, ends):
    """Returns whether the ends are valid, of rows that a mask hides as well."""
    if are_far(values):
        if jnp.isnan(values).any():  # which ends over many devices may lack
            return False
    elif (values := np.asarray(values)).dtype.kind == "V":
        return False  # bfloat16, whose NaN numpy warns of
    found = [getattr(values, end)() for end in ends if values.size]
    return all(valid(np.asarray(end)) for end in found)


def are_far(values: Any) -> bool:
    """Returns whether values are many, and not in memory that numpy can read."""
    if not isinstance(values, Array) or values.size <= _FEW:
        return False
    return len(found := values.devices()) > 1 or found.pop().platform != "cpu"


def check_values(valid, expected, values, mask=None, cure=""):
    """Raises ValueError if a concrete value, in a row that `mask` keeps, is invalid."""
    if not is_concrete(values, mask):
        return
    values = np.asarray(values)
    bad = ~np.asarray(valid(values), bool)
    if mask is not None:
        bad &= np.asarray(mask, bool).reshape((-1,) + (1,) * (bad.ndim - 1))
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        at = f" at {where if len(where) > 1 else where[0]}" if where else ""
        raise ValueError(f"expected {expected}, got {values[where]}{at}{cure}")


def check_given(**named: Any) -> None:
    """Raises ValueError for arguments that are None, or classes."""
    for name, value in named.items():
        if value is None:
            raise ValueError(f"expected {name} as a value, got None")
        if isinstance(value, type):
            got = f"the class {value.__name__}; write {value.__name__}(...)"
            raise ValueError(f"expected {name} as a value, got {got}")


def check_kind(expected: str, value: Any, kind: type, cure: str = "") -> None:
    """Raises ValueError unless `value` is of a class, or follows a protocol."""
    # By its class first: isinstance of a protocol is slow, and holds for the class too.
    if issubclass(type(value), kind):
        return
    if isinstance(value, type) or not isinstance(value, kind):
        raise ValueError(f"expected {expected}, got {type(value).__name__}{cure}")


def check_pytree(name: str, value: Any, instead: str) -> None:
    """Raises ValueError for a value of a class that jax does not know."""
    if jax.tree_util.all_leaves([value]):  # of its class alone, whatever is inside
        raise ValueError(
            f"expected {name} as a pytree, got {type(value).__name__}; decorate its "
            "class with jaxcp.pytree, fields that are no arrays with jaxcp.static, or "
            f"use {instead}"
        )


def check_key(key: Any) -> None:
    """Raises ValueError unless `key` is a random key."""
    check_process()
    dtype = getattr(key, "dtype", None)
    legacy = dtype == np.uint32 and np.shape(key) == (2,)
    is_key = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not legacy and (not is_key or key.ndim):
        kind = type(key).__name__ if dtype is None else f"{dtype}{np.shape(key)}"
        raise ValueError(f"expected a key from jax.random.key, got {kind}")


def check_scalars(**named: Any) -> None:
    """Raises ValueError unless each value is one number."""
    for name, value in named.items():
        is_duration = isinstance(value, timedelta)
        typed = np.timedelta64(value) if is_duration else value
        cure = in_units(name, getattr(typed, "dtype", None))
        if cure or not (isinstance(value, Real) or hasattr(value, "dtype")):
            raise ValueError(f"expected {name} as a number, got {value!r}{cure}")
        if shape := jnp.shape(value):
            raise ValueError(f"expected {name} of shape (), got {shape}; use jax.vmap")


def numbers(name: str, values: Any, shape: Any = None) -> np.ndarray:
    """Returns known numbers as floats of numpy, of one axis unless `shape` is given."""
    if not is_concrete(values):
        raise ValueError(f"expected {name} with numbers, got a traced array")
    values = as_numpy(name, values)
    if values.dtype.kind not in "biuf":
        raise ValueError(f"expected {name} as numbers, got {values.dtype}")
    check_shape(name, (values.size,) if shape is None else shape, values.shape)
    return values.astype(float)


def check_number(
    name: str, value: Any, valid: Callable | None = None, bounds: str = ""
) -> Any:
    """Returns one number, valid where it is known; ValueError for others.

    A Fraction or Decimal, which jax has no type for, becomes a float.
    """
    value = float(value) if isinstance(value, EXACT) else value
    check_scalars(**{name: value})
    if valid is not None:
        check_values(valid, f"{name} {bounds}", value)
    return value


def share(name: str, value: Any) -> Any:
    """Returns one number in (0, 1); ValueError for others."""
    return check_number(name, value, lambda v: (v > 0) & (v < 1), "in (0, 1)")


def check_one_of(name: str, value: Any, known: Iterable[Any]) -> None:
    """Raises ValueError for an option that is not known."""
    if value not in (names := list(known)):
        raise ValueError(f"expected {name} as one of {names}, got {value!r}")


def flags(name: str, value: Any) -> Array:
    """Returns flags as bool; ValueError for a known number other than 0 and 1."""
    given = as_array(name, value)
    check_flags(f"{name} as flags or 0 and 1", given)
    return given.astype(bool)


def check_flags(expected, values, mask=None, cure=""):
    """Raises ValueError for a known number other than 0 and 1."""
    if values.dtype != bool:
        check_values(lambda v: (v == 0) | (v == 1), expected, values, mask, cure)


def check_vectors(**named: Array | np.ndarray | None) -> None:
    """Raises ValueError unless each array given has one axis."""
    for name, value in named.items():
        if value is not None and value.ndim != 1:
            cures = {(1,): f"numpy.ravel({name}) is one", (2,): "[:, 1] of two columns"}
            cure = f"; {cures[own]}" if (own := value.shape[1:]) in cures else ""
            raise ValueError(f"expected {name} of shape (n,), got {value.shape}{cure}")


def check_shape(name: str, expected: tuple[int, ...], got: tuple[int, ...]) -> None:
    """Raises ValueError unless the shapes are the same."""
    if expected != got:
        raise ValueError(f"expected {name} of shape {expected}, got {got}")


# Arguments that have a row for each of the same things.
_ROWS = frozenset(
    [
        "preds",
        "x",
        "x_new",
        "sets",
        "probs",
        "draws",
        "scores",
        "losses",
        "effects",
        "y",
        "groups",
        "folds",
        "labels",
        "features",
        "anchors",
        "u",
        "missing",
        "where",
        "weights",
        "calibration_weights",
        "test_weights",
        "clusters",
        "mask",
        "sizes",
        "treated",
        "propensity",
        "time",
        "event",
        "censoring",
        "probability",
        "rates",
        "control",
        "treatment",
        "residuals",
        "confidence",
        "p0",
        "p1",
    ]
)


def by_labels(call: _Call, only: Iterable[str] = _ROWS) -> _Call:
    """Returns a call whose rows are in one order: that of the first with labels.

    `only` names the arguments that have a row for each of the same things.
    """
    names = [*inspect.signature(call).parameters]

    @functools.wraps(call)
    def in_order(*args: Any, **options: Any) -> Any:
        pandas = sys.modules.get("pandas")
        kinds = (pandas.Series, pandas.DataFrame) if pandas is not None else ()
        if any(_has_labels(value, kinds) for value in (*args, *options.values())):
            first: dict[str, Any] = {}  # the name and the labels of the first
            args = tuple(
                _like_first(name, value, first, kinds) if name in only else value
                for name, value in itertools.zip_longest(names[: len(args)], args)
            )
            for name in (*names, *options):  # predictions before what comes with them
                if name in only and name in options:
                    options[name] = _like_first(name, options[name], first, kinds)
        return call(*args, **options)

    vars(in_order)["by_labels"] = frozenset(only)
    return cast(_Call, in_order)


def _like_first(name: str, rows: Any, first: dict[str, Any], kinds: tuple) -> Any:
    """Returns rows in the order of the labels of the first, which may be these."""
    if not _has_labels(rows, kinds):
        return rows
    if not isinstance(rows, kinds):
        in_order = functools.partial(_like_first, name, first=first, kinds=kinds)
        return jax.tree.map(in_order, rows, is_leaf=is_array_like)
    first_name, labels = first.setdefault("labels", (name, rows.index))
    if rows.index is labels or len(rows) != len(labels) or rows.index.equals(labels):
        return rows  # other lengths are refused where they are compared
    got = "labels that repeat, in another order"
    if labels.is_unique and rows.index.is_unique:
        wanted, index = labels, rows.index
        if getattr(index, "is_overlapping", False):  # intervals, which pandas refuses
            wanted, index = labels.astype(object), index.astype(object)
        places = index.get_indexer(wanted)
        if (places >= 0).all():
            return rows.iloc[places]
        got = f"none for {labels[places < 0].tolist()[0]!r}"
    raise ValueError(
        f"expected {name} with the labels of {first_name}, in any order, got {got}; "
        f"{name}.to_numpy() takes rows by position"
    )


def _has_labels(rows: Any, kinds: tuple) -> bool:
    """Returns whether rows, or arrays inside of them, are of pandas."""
    if isinstance(rows, kinds) or hasattr(rows, "dtype"):
        return isinstance(rows, kinds)
    parts: Iterable[Any] = ()
    if isinstance(rows, tuple | list):
        parts = rows if isinstance(rows, tuple) else rows[:1]
    elif isinstance(rows, dict) or is_ours(type(rows)):
        parts = (rows if isinstance(rows, dict) else vars(rows)).values()
    return any(_has_labels(part, kinds) for part in parts)


def verb(
    call: _Call,
    only: Iterable[str] = _ROWS,
    refused: Mapping[str, Callable[[Any], None]] | None = None,
) -> _Call:
    """Returns a verb that takes rows `by_labels`, and says where alpha goes.

    What `refused` names is no argument of it: a function raises for what it is given.
    """
    in_order = by_labels(call, only)

    @functools.wraps(in_order)
    def checked(*args: Any, **options: Any) -> Any:
        if "alpha" in options:
            raise TypeError(
                f"expected {call.__name__} without alpha, got {options['alpha']!r}; it "
                "goes into the call for sets, cp(preds, alpha=0.1)"
            )
        for name, refuse in (refused or {}).items():
            refuse(options.pop(name, None))
        return in_order(*args, **options)

    return cast(_Call, checked)


def with_digits(call: _Call) -> _Call:
    """Returns a method for sets of rows whose digits single precision must hold."""
    first = [*inspect.signature(call).parameters][1]

    @functools.wraps(call)
    def looked_at(self: Any, *args: Any, **options: Any) -> Any:
        again = functools.partial(call, self, *args, **options)
        sets = again()  # first, for it refuses calls without rows
        rows = args[0] if args else options[first]
        return check_digits_of_sets(first, rows, sets, again)

    return cast(_Call, looked_at)


def with_alpha(
    call: Any,
    place: int = 1,
    of_losses: bool = False,
    only: Iterable[str] = _ROWS,
) -> Any:
    """Returns a call for sets that says what alpha is: left out, or above a half.

    `place` is that of alpha among the arguments. Levels `of_losses` may be large. Rows
    are taken `by_labels`.
    """
    call = with_digits(by_labels(call, only))

    @functools.wraps(call)
    def checked(self, *args, **options):
        if len(args) <= place and "alpha" not in options:
            got = ", ".join(options) or "none"
            raise TypeError(f"expected alpha (1 - confidence) as a number, got {got}")
        alpha = args[place] if len(args) > place else options["alpha"]
        if not (of_losses or (isinstance(alpha, float) and alpha <= 0.5)):
            warn_of_misses(alpha)
        return call(self, *args, **options)

    return checked


def warn_of_misses(alpha: Any) -> None:
    """Warns where a known alpha is above a half, at the line that asks for the sets."""
    if not is_concrete(alpha):
        return
    try:
        largest = max(float(level) for level in np.ravel(alpha))
    except (TypeError, ValueError):  # no numbers, which are refused in words
        return
    if not 0.5 < largest < 1:
        return
    frame, depth = inspect.currentframe(), 0
    while frame is not None and is_library(frame.f_globals.get("__name__", "")):
        if depth > 1 and frame.f_code.co_qualname == _WARNS:  # around this call
            return
        frame, depth = frame.f_back, depth + 1
    covered, missed = (f"{100 * v:.4g} %" for v in (1 - largest, largest))
    warnings.warn(
        f"sets that cover {covered}: alpha is the share of misses; for sets that cover "
        f"{missed} say alpha={1 - largest:.4g}",
        stacklevel=depth + 1,
    )


def check_uniforms(name: str, u: ArrayLike, mask: ArrayLike | None = None) -> None:
    """Raises ValueError if a concrete value is outside [0, 1]."""
    check_range(lambda v: (v >= 0) & (v <= 1), f"{name} in [0, 1]", u, mask)


def check_labels(name, labels, num_classes, mask=None, cure=""):
    """Raises ValueError unless labels are integers in 0, ..., num_classes - 1."""
    labels = labels if isinstance(labels, Array) else jnp.asarray(labels)
    expected = f"{name} in 0, ..., {num_classes - 1}"
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        # Integers beyond those of jax have come in as floats.
        check_values(lambda v: ~(abs(v) >= 2**31), expected, labels, mask)
        raise ValueError(
            f"expected {name} of an integer type, got {labels.dtype}; "
            "numpy.unique(labels, return_inverse=True)[1] codes any as 0, 1, ..."
        )
    check_range(lambda v: (v >= 0) & (v < num_classes), expected, labels, mask, cure)


def check_weights(name: str, weights: ArrayLike, mask: ArrayLike | None = None) -> None:
    """Raises ValueError if a concrete weight is negative, infinite or NaN."""
    valid = f"finite {name} >= 0"
    check_range(lambda w: np.isfinite(w) & (w >= 0), valid, weights, mask)


def check_bounds(name, bounds, mask=None):
    """Raises ValueError for concrete bounds that are no weights, or cross."""
    num_rows(**{name: bounds})
    low, high = bounds
    check_weights(name, low, mask)
    check_weights(name, high, mask)
    check_values(lambda v: v >= 0, f"high - low >= 0 of {name}", high - low, mask)


def _as_bounds(name, bounds):
    return jax.tree.map(as_float, as_arrays(**{name: bounds}))


def _upper_ends(name, bounds):
    check_bounds(name, found := _as_bounds(name, bounds))
    return found[1]


def _check_weights_of_labels(name, weights, mask=None):
    """Allows +inf: of a label that no row of calibration has, which is always in."""
    check_range(lambda w: w >= 0, f"{name} of labels >= 0", weights, mask)


def check_test_weights(name, test_weights, weights, mask=None):
    """Raises ValueError for test weights without weights, or weights that need them."""
    if weights is None and test_weights is not None:
        raise ValueError(f"expected {name} only with calibration weights")
    if weights is not None and test_weights is None:
        # Barber et al. 2023, theorem 2: fixed weights in [0, 1], the test point's is 1.
        at_most = f"weights <= 1 of calibration rows where {name} is left out"
        cure = (
            f"; give likelihood ratios, as survey weights are, their {name}, divide "
            "fading weights by the largest, repeat a row that stands for several rows "
            "that were each drawn"
        )
        weights = weights[1] if isinstance(weights, tuple) else weights
        check_range(lambda w: ~(w > 1), at_most, weights, mask, cure, ends=("max",))


def check_count(name: str, count: int, at_least: int) -> None:
    """Raises ValueError unless `count` is an int and large enough."""
    is_int = isinstance(count, int | np.integer) and not isinstance(count, bool)
    if not is_int or count < at_least:
        raise ValueError(f"expected {name} as an int >= {at_least}, got {count!r}")


def as_vector(name: str, value: Array | float, size: int) -> Array:
    """Returns one row of shape (size,); a number is a row of one."""
    check_shape(name, (size,), (row := jnp.atleast_1d(value)).shape)
    return row


def shapes_of_rows(tree: PyTree) -> tuple:
    """Returns the shape of one row of every array, and how they are nested."""
    leaves, structure = jax.tree.flatten(tree)
    return tuple(leaf.shape[1:] for leaf in leaves), structure


def check_like_rows(name: str, tree: PyTree, shapes: tuple) -> None:
    """Raises ValueError for inputs that are not nested and shaped like those of x."""
    (expected, nested), (got, found) = shapes, shapes_of_rows(tree)
    for a, b in zip((nested, *expected), (found, *got), strict=False):
        if a != b:
            raise ValueError(f"expected {name} with rows of shape {a} like x, got {b}")


def _listed(tree, rows):
    """Returns a cure for a list with one array for each row."""
    if not isinstance(tree, list) or len(tree) != rows:
        return ""
    return f"; a list of {rows} arrays means {rows} outputs: make rows by jnp.stack"


def _of_a_scalar(name: str) -> str:
    """Returns a cure for one value in place of rows: the rows, or one of them."""
    if name in ("groups", "weights", "test_weights"):
        return "; numpy.full(n, value) gives it to n rows"
    return "; [value] is one row"


def _leading(name, tree):
    leaves = jax.tree.leaves(tree)
    if not leaves:
        raise ValueError(f"expected {name} as arrays, got {tree!r}")
    shapes = [jnp.shape(leaf) for leaf in leaves]
    if not all(shapes):
        listed = _listed(tree, len(leaves))
        listed = listed or _of_a_scalar(name)
        raise ValueError(f"expected {name} with a leading axis, got a scalar{listed}")
    rows = {shape[0] for shape in shapes}
    if len(rows) > 1:
        cure = "; numpy.pad gives images one size (p = 0)" * isinstance(tree, list)
        cure += "; numpy.broadcast_to(part, shape) repeats it" * isinstance(tree, tuple)
        raise ValueError(f"expected {name} of one length, got {sorted(rows)}{cure}")
    return rows.pop()
