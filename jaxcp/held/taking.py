"""What comes in: rows of a calibration, and context of test points, after checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _checks, _names
from jaxcp._batching import evaluate, label_scores, on_device
from jaxcp._names import Groups, Names
from jaxcp.held.rows import Held
from jaxcp.scores import inputs
from jaxcp.typing import PyTree, Score

RowShapes = tuple[tuple[int, ...], ...]
_PAIR: RowShapes = ((2,),)
NO_GROUPS = Groups(None, None, None)


def held_rows(score, preds, y, weights, mask, groups=NO_GROUPS, classes=None):
    """Returns the rows of predictions and targets, after checks of lengths.

    Weights may be bounds (low, high) of them.
    """
    check_same_columns(preds, y)
    check_columns(classes, preds)
    y = coded(classes, y, mask) if inputs.has_labels(score) else y
    codes = _checks.optional(None)
    if groups.count is not None:
        codes = _checks.groups(groups.codes, groups.count)
    columns = {"weights": _checks.bounds(weights), "mask": _checks.mask(mask)}
    rows = _checks.rows(preds=preds, y=y, groups=codes, **columns)
    preds, y, codes, weights, mask = rows
    if mask is not None:
        weights = jax.tree.map(lambda w: jnp.where(mask, w, 0), weights)
    return Held((preds, y), weights, mask, codes, groups.count)


def groups_of(y, groups, num_groups, group_names, mask=None):
    """Returns the groups of rows with these targets, after checks."""
    if groups is None:
        if num_groups is not None or group_names is not None:
            raise ValueError("expected groups with num_groups or group_names, got None")
        return NO_GROUPS
    of = _names.as_groups(groups, num_groups, group_names, mask)
    columns = {"groups": _checks.groups(of.codes, of.count), "mask": _checks.mask(mask)}
    return of._replace(codes=_checks.rows(y=y, **columns)[1])


def scored(score, preds, y, weights=None, mask=None, groups=NO_GROUPS, classes=None):
    """Returns rows with their scores, after checks, and the shapes of a prediction."""
    inputs.check_score(score)
    given = preds, y
    rounded = not inputs.has_labels(score) and _arrays.is_rounded("y", y)
    held = held_rows(score, preds, y, weights, mask, groups, classes)
    preds, y = held.values
    if classes is not None:
        _check_classes(score, preds, held.mask, classes)
    inputs.check(score, preds, y, held.mask)
    scores = evaluate(score, preds, y)
    if rounded:
        check_digits_of_targets(score, preds, y, scores, held.mask, given)
    rows = held.weights, held.mask, held.groups, held.num_groups
    return Held(scores, *rows), row_shapes(preds)


def codes_of_clusters(clusters: Any, mask: Any = None, **rows: Any) -> Array:
    """Returns the cluster of each of the rows, after checks of lengths."""
    codes = _checks.vector(_names.cluster_codes(clusters, mask))
    return _checks.rows(**rows, clusters=codes)[-1].astype(int)


def clustered(of: Any, clusters: Any) -> Any:
    """Returns a calibration whose rows weigh 1 / N_k in clusters of N_k, after checks.

    Traced clusters out of 0, ..., n - 1 do not count.
    """
    if clusters is None:
        return of
    if of.weights is not None:
        raise ValueError(
            "expected clusters or weights, got both: rows of a cluster of N weigh 1 / N"
        )
    mask, held = of.mask, of.held
    codes = codes_of_clusters(clusters, mask, preds=held.values)
    if not _arrays.is_concrete(codes):
        mask = _arrays.group_codes(codes, n := codes.shape[0], mask) < n
    held = dataclasses.replace(held, clusters=codes, mask=mask).of_clusters()
    return dataclasses.replace(of, clusters=codes, weights=held.weights, mask=mask)


def classes_of(score: Score, classes: Any) -> Names | None:
    """Returns the names of labels, if there are any; only of a score of labels."""
    if classes is None:
        return None
    inputs.check_score(score)
    if not inputs.has_labels(score):
        kind = type(score).__name__
        raise ValueError(f"expected classes only with scores of labels, got {kind}")
    return _names.as_names("classes", classes)


def coded(classes: Iterable[Hashable] | None, y: Any, mask: Any = None) -> Any:
    """Returns labels by name as 0, ..., k - 1; as they are where there are no names."""
    if classes is None:
        return y
    return _names.codes(classes, "y", y, "the classes", mask)


def target_of(score: Score, classes: Any, y: Any) -> Any:
    """Returns targets, labels as 0, ..., k - 1; nothing, where all labels are meant."""
    if y is None and not inputs.has_labels(score):
        expected = f"y, as {type(score).__name__} has no labels to be candidates"
        raise ValueError(f"expected {expected}, got None; cp.p_values(preds, y)")
    return _checks.optional(None) if y is None else coded(classes, y)


def _check_classes(score, preds, mask, classes):
    """Raises ValueError unless there is a name for each column of predictions."""
    inputs.check(score, preds, None, mask)
    _names.check_count("classes", classes, num_labels(score, preds))


def num_labels(score: Score, preds: PyTree) -> int:
    """Returns the number of labels that a score of labels has for predictions."""
    return jax.eval_shape(label_scores, score, preds).shape[1]


def check_columns(classes, preds):
    """Raises ValueError for a frame whose columns are the classes in another order."""
    frame = preds[0] if isinstance(preds, tuple | list) and len(preds) else preds
    if classes is not None and hasattr(frame, "columns"):
        wanted = f"columns of preds in the order of the classes {classes}"
        _check_order(wanted, frame.columns, classes, "preds[list(classes)]")


def check_same_columns(preds, y):
    """Raises ValueError for frames with the same columns in two orders."""
    if hasattr(preds, "columns") and hasattr(y, "columns"):
        wanted = f"columns of y in the order of those of preds {tuple(preds.columns)}"
        _check_order(wanted, y.columns, preds.columns, "y[list(preds.columns)]")


def _check_order(wanted, columns, expected, cure):
    found, expected = tuple(columns), tuple(expected)
    if found != expected and set(found) == set(expected):
        raise ValueError(f"expected {wanted}, got {found}; {cure} puts them in order")


def are_labels(groups: Any, y: Any, classes: Names) -> bool:
    """Returns whether groups are the labels with these names, as far as is known."""
    if groups is y:
        return True
    named = {"groups": groups, "y": y}.items()
    known = [_names.places(classes, *item) for item in named]
    return all(isinstance(v, np.ndarray) for v in known) and np.array_equal(*known)


def weights_for(weights, test_weights, name="test_weights"):
    """Returns weights of test points as a column; only with those of calibration."""
    _checks.check_test_weights(name, test_weights, weights)
    return _checks.weights(test_weights)


def weight_for(weights: Any, test_weight: Any, column: Any = None) -> dict[str, Array]:
    """Returns the context of one test point: its weight, if there is one."""
    column = column or weights_for(weights, test_weight, "test_weight")
    found = one_row(test_weight=column)
    return {"test_weights": found["test_weight"]} if found else {}


def declared(value: Any, like: Any, lead: int) -> _checks.Column:
    """Returns what a rule reads of test points as a column: like a row, without NaN.

    `lead` axes stand before those of one row: 1, or 0 for one test point.
    """

    def check(name: str, found: PyTree, mask: Any) -> None:
        _checks.check_not_nan(name, found)
        for v, row in zip(*map(jax.tree.leaves, (found, like)), strict=True):
            whole = jnp.issubdtype(row.dtype, jnp.integer)
            if v.shape[lead:] != row.shape or (
                whole and not jnp.issubdtype(v.dtype, jnp.integer)
            ):
                raise ValueError(
                    f"expected {name} with rows of shape {row.shape} and type "
                    f"{row.dtype}, got {v.shape[lead:]} and {v.dtype}"
                )

    if like is None:
        check = lambda name, found, mask: _checks.check_not_nan(name, found)  # noqa: E731
    return _checks.optional(value)._replace(check=check)


def one_row(**columns: _checks.Column) -> dict[str, Any]:
    """Returns the context of one test point, after the checks of its columns."""
    found = {}
    for name, column in columns.items():
        if column.value is not None:
            value = column.convert(name, column.value)
            if column.is_vector:
                _checks.check_scalars(**{name: value})
            column.check(name, value, None)
            found[name] = value
    return found


def row_shapes(preds: PyTree) -> RowShapes:
    """Returns the shape of one row of every array of predictions."""
    return tuple(leaf.shape[1:] for leaf in jax.tree.leaves(preds))


def check_row_shapes(score: Score, preds: PyTree, expected: RowShapes | None) -> None:
    """Raises ValueError for predictions of other shapes than those at calibration.

    Only the number of draws may differ: the first axis of arrays of draws.
    """
    found = row_shapes(preds)
    if expected is None or _split(found) == _split(expected):
        return
    free = inputs.of(score).free_axes(len(found))
    if len(found) != len(expected) or not all(map(_fits, expected, found, free)):
        shapes = ", ".join(map(str, expected)), ", ".join(map(str, found))
        raise ValueError(
            f"expected preds with rows of shape {shapes[0]} as at calibration, got "
            f"{shapes[1]}"
        )


def check_digits_of_targets(score, preds, y, scores, mask, given):
    """Raises ValueError if targets have lost the digits that their scores are about.

    For targets that were rounded when they became arrays. Labels have no digits to
    lose. `given` are predictions and targets before rounding: predictions that are
    right to the last digits have lost none there, and equal scores count once.
    """
    if inputs.has_labels(score) or not _arrays.is_concrete(preds, y, scores, mask):
        return
    some = _arrays.some_rows(len(y))
    if some.step > 1:
        cut = jax.tree.map(lambda v: v[some], (preds, y, scores, mask))
        preds, y, scores, mask = cut
    floats = np.asarray(y, jax.dtypes.canonicalize_dtype(float))
    moved = evaluate(score, preds, on_device(np.nextafter(floats, np.inf)))
    rows = slice(None) if mask is None else np.asarray(mask)
    scores, moved = (np.asarray(v, float)[rows] for v in (scores, moved))
    with np.errstate(invalid="ignore"):
        steps = abs(moved - scores)
    with suppress(ValueError):
        _arrays.check_digits("y", steps, scores)
        return
    with jax.enable_x64(True):
        preds, y = _arrays.as_arrays(preds=given[0], y=given[1])
        exact = np.asarray(evaluate(score, preds, y.astype(float)))[some][rows]
    finer = np.finfo(float).eps / np.finfo(floats.dtype).eps
    close = steps * finer / _arrays.SHARE  # to the last digits of double precision
    which = _arrays.one_of_each(exact, close) & ~(abs(exact) <= close)
    _arrays.check_digits("y", steps, exact, which)


def _fits(known, new, free):
    return len(known) == len(new) and known[free:] == new[free:]


def _split(shapes):
    """Returns shapes with two numbers in place of an array of a pair."""
    return ((), ()) if shapes == _PAIR else shapes
