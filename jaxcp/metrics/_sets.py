"""What all metrics share: checks of sets and targets, and programs of formulas."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _batching, _checks, _names, _tree
from jaxcp.held.taking import codes_of_clusters
from jaxcp.quantiles.levels import as_alpha
from jaxcp.sets import Interval, LabelSet
from jaxcp.typing import HasLabels, HasShapes, HasSize, HasWidths, Set

Count = Array | None  # the number of rows that count; None for all
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Formula = Callable[Concatenate[Count, _P], _R]
_ROWS = "sets", "probs", "y", "groups", "sizes", "draws", "log_densities", "clusters"
_STATIC = "num_groups", "rooted", "weighted", "fair", "num_bins", "bins", "kind"
_STATIC += "beta", "order", "side"


def metric(
    check: Callable[..., tuple[tuple, dict]], by_pairs: bool = False
) -> Callable[[_Formula[_P, _R]], Callable[_P, _R]]:
    """Makes a metric of its formula, by checks, one program, and rows filled up.

    The formula takes how many rows count, then arguments as `check` returns them: rows,
    in the order of its own signature, and options. `by_pairs` as `counted` takes it.
    """
    rows_of = [name for name in inspect.signature(check).parameters if name in _ROWS]

    def of(formula: _Formula[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(formula)
        _, *public = signature.parameters.values()
        static = tuple(each.name for each in public if each.name in _STATIC)
        compiled = _tree.jit(formula, static_argnames=static)

        def program(*given, **options):
            *rows, count = given
            return compiled(count, **dict(zip(rows_of, rows, strict=True)), **options)

        @functools.wraps(formula)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                rows, options = check(*args, **kwargs)
            except TypeError:
                _check_call(call, args, kwargs)
                raise
            return _batching.counted(program, *rows, by_pairs=by_pairs, **options)

        vars(call)["__signature__"] = signature.replace(parameters=public)
        return _checks.by_labels(call, only={*rows_of, "x"})

    return of


def _check_call(function: Callable, args: tuple, kwargs: dict) -> None:
    """Raises TypeError, with the name of a function, for a call that does not fit."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function.__name__}() {error}") from None


def of_targets(sets, y):
    """Checks the arguments of metrics of sets and targets."""
    return check_sets(sets, y), {}


def of_sets(sets):
    """Checks the arguments of metrics of sets alone."""
    return (as_batch(sets),), {}


def check_sets(sets, y):
    """Returns sets and targets as arrays, one target shaped as each set takes it.

    Labels are 0, ..., k - 1, and sets without names.
    """
    sets = as_sets(sets)
    y = _names.codes_of(sets, y)
    rounded = _arrays.is_rounded("y", y)
    sets, y = as_batch(sets), _arrays.as_array("y", y)
    _checks.num_rows(sets=sets, y=y)
    # By the class: isinstance takes as long as a metric.
    has_shapes, has_labels = (issubclass(type(sets), v) for v in (HasShapes, HasLabels))
    expected = (len(y), *(sets.target_shape() if has_shapes else y.shape[1:]))
    if y.shape != expected and not y.size == math.prod(expected) == len(y):
        raise ValueError(f"expected y of shape {expected} like sets, got {y.shape}")
    y = y.reshape(expected)  # a single output may come with an axis or without
    # Of sets that allow NaN somewhere with numbers there.
    y = getattr(sets, "_seen", lambda y: y)(y)
    _checks.check_not_nan("y", y)
    if rounded:
        _check_digits(sets, y)
    if has_labels:
        y = _arrays.as_groups("y", y)
        _checks.check_labels("y", y, sets.members().shape[-1])
    return sets, y


def check_clusters(clusters: Any, **rows: Any) -> Array | None:
    """Returns the cluster of each row by an integer, if rows come in clusters."""
    return None if clusters is None else codes_of_clusters(clusters, **rows)


def _check_digits(sets, y):
    """Raises ValueError if sets are no wider than the rounding of the targets."""
    if isinstance(sets, HasWidths) and _arrays.is_concrete(sets, y):
        floats = np.asarray(y, jax.dtypes.canonicalize_dtype(float))
        with np.errstate(invalid="ignore"):
            widths = jax.tree.map(np.asarray, sets).widths()  # jax would compile
        _arrays.check_digits("y", np.spacing(floats), widths)


def as_sets(sets):
    """Returns sets as they are, ends (m, 2) as intervals, flags as label sets."""
    if issubclass(type(sets), Set):
        return sets
    expected = "sets with contains(y), an array (m, 2) of ends or a mask (m, k)"
    if not (isinstance(sets, Array | np.ndarray) or _arrays.is_array_like(sets)):
        _checks.check_kind(expected, sets, Set, cure=_cure(sets))
        return sets
    columns = getattr(sets, "columns", None)
    if columns is not None and {*columns} == {"lower", "upper"}:
        sets = sets[["lower", "upper"]]  # whatever their order
    found: Any = _arrays.as_array("sets", sets)
    if _arrays.is_concrete(found):
        found = np.asarray(found)  # compiles nothing
    if found.ndim == 2 and found.dtype == bool:
        return LabelSet(found, columns)
    if found.ndim == 2 and found.shape[1] == 2 and found.dtype.kind in "iuf":
        return Interval(found[:, 0], found[:, 1])
    raise ValueError(f"expected {expected}, got {found.dtype}{found.shape}")


def _cure(sets):
    """Returns a cure for arguments that are no sets."""
    if isinstance(sets, tuple) and len(sets) == 2:
        return "; numpy.stack(ends, axis=1) makes an array of a pair of ends"
    return "; sets[ints] and sets[mask] are batches" if isinstance(sets, list) else ""


def as_batch(sets):
    """Returns sets as arrays with a leading axis, without names, after checks."""
    sets = _names.unnamed(as_sets(sets))
    _checks.check_pytree("sets", sets, "those of jaxcp.sets")
    sets = _arrays.as_arrays(sets=sets)
    m = _checks.num_rows(sets=sets)
    return sets.checked(m) if issubclass(type(sets), HasShapes) else sets


def as_label_sets(sets):
    """Returns sets of labels; ValueError for others."""
    sets = as_sets(sets)
    _checks.check_kind("sets of kind LabelSet", sets, HasLabels)
    return sets


def check_level(alpha):
    """Returns one miscoverage level as a float, after checks."""
    alpha = as_alpha(alpha)
    _checks.check_scalars(alpha=alpha)
    if isinstance(alpha, Array):
        return alpha
    # Of numpy: a program takes it in less time than to put it on a device.
    return np.asarray(alpha, jax.dtypes.canonicalize_dtype(float))


def check_sizes(sets, sizes):
    """Returns the sizes given for sets, if there are any, as an array."""
    column = _checks.Column(sizes, _checks.check_not_nan)
    return _checks.rows(sets=sets, sizes=column)[1]


def distances(rates, alpha):
    """Returns how far rates of coverage are from 1 - alpha."""
    return jnp.abs(rates - (1 - alpha))


def above_level(rates, alpha):
    """Returns rates - (1 - alpha), 0 where they are the same but for rounding."""
    error = rates - (1 - alpha)
    return jnp.where(jnp.abs(error) < 4 * jnp.finfo(rates.dtype).eps, 0, error)


@_tree.jit
def is_covered(sets, y):
    """Returns 1 or 0 for each row, NaN where the set or the target has a NaN."""
    found = jax.vmap(lambda s, target: s.contains(target))(sets, y)
    if found.ndim > 1:
        found = f"{y.shape} for {type(sets).__name__}"
        raise ValueError(f"expected y with one target for each set, got {found}")
    return where_known(found, (sets, y))


@_tree.jit
def closed_form_sizes(sets):
    """Returns the size of every set, shape (m,); ValueError where it has no formula."""
    cure = ": give it one, or estimate it by metrics.mean_volume(key, sets, within=...)"
    _checks.check_kind("sets with size()", sets, HasSize, cure)
    return jax.vmap(lambda s: s.size())(sets)


def where_known(values, rows):
    """Returns `values`, shape (m,), as floats, NaN where a row of `rows` has a NaN."""
    values = values.astype(float) if values.dtype.kind in "biu" else values
    for leaf in jax.tree.leaves(rows):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            unknown = jnp.isnan(leaf).any(axis=tuple(range(1, leaf.ndim)))
            values = jnp.where(unknown, jnp.nan, values)
    return values
