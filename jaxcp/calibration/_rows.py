"""Checks of the rows that go into a calibration: lengths, shapes and digits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _arrays, _checks, _names
from jaxcp._arrays import (
    SHARE,
    as_arrays,
    check_digits,
    is_concrete,
    is_rounded,
    one_of_each,
    some_rows,
)
from jaxcp._batching import evaluate, label_scores, on_device, repeated
from jaxcp._names import Names
from jaxcp._numbers import as_float, varying_like
from jaxcp._tree import known_at_once
from jaxcp.certificates import Certificate, certificate
from jaxcp.quantiles.levels import alpha_as_float, as_alpha, as_delta, sure_ranks
from jaxcp.scores import inputs
from jaxcp.typing import PyTree, Score

RowShapes = tuple[tuple[int, ...], ...]
_PAIR: RowShapes = ((2,),)
_NO_GROUPS = _checks.vector(None)


class Scored(NamedTuple):
    """Scores of held-out rows, shape (n,) or (n, c), with weights, mask and groups."""

    scores: Array
    weights: Array | None
    mask: Array | None
    row_shapes: RowShapes
    groups: Any  # an Array, or None without groups


def scored(
    score: Score,
    preds: PyTree,
    y: Any,
    weights: Any,
    mask: Any,
    groups: _checks.Column = _NO_GROUPS,
    classes: Names | None = None,
) -> Scored:
    """Returns the scores of held-out rows, after checks; masked rows get weight 0."""
    inputs.check_score(score)
    check_same_columns(preds, y)
    y = coded(classes, y, mask)
    rounded, given = is_rounded("y", y), (preds, y)
    weights, mask = _checks.weights(weights), _checks.mask(mask)
    preds, y, groups, weights, mask = _checks.rows(
        preds=preds, y=y, groups=groups, weights=weights, mask=mask
    )
    if classes is not None:
        check_columns(classes, given[0])
        _check_classes(score, preds, mask, classes)
    inputs.check(score, preds, y, mask)
    if weights is not None and mask is not None:
        weights = jnp.where(mask, weights, 0)
    scores = evaluate(score, preds, y)
    if rounded:
        check_digits_of_targets(score, preds, y, scores, mask, given)
    return Scored(scores, weights, mask, row_shapes(preds), groups)


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


def _check_classes(score, preds, mask, classes):
    """Raises ValueError unless there is a name for each column of predictions."""
    inputs.check(score, preds, None, mask)
    count = jax.eval_shape(label_scores, score, preds).shape[1]
    _names.check_count("classes", classes, count)


def check_columns(classes: tuple[Hashable, ...] | None, preds: Any) -> None:
    """Raises ValueError for a frame whose columns are the classes in another order."""
    frame = preds[0] if isinstance(preds, tuple | list) and len(preds) else preds
    if classes is None or not hasattr(frame, "columns"):
        return
    columns = tuple(frame.columns)
    if set(columns) == set(classes) and columns != tuple(classes):
        raise ValueError(
            f"expected columns of preds in the order of the classes {classes}, got "
            f"{columns}; preds[list(classes)] puts them in order"
        )


def check_same_columns(preds: Any, y: Any) -> None:
    """Raises ValueError for frames with the same columns in two orders."""
    if not (hasattr(preds, "columns") and hasattr(y, "columns")):
        return
    columns, expected = tuple(y.columns), tuple(preds.columns)
    if set(columns) == set(expected) and columns != expected:
        raise ValueError(
            f"expected columns of y in the order of those of preds {expected}, got "
            f"{columns}; y[list(preds.columns)] puts them in order"
        )


def are_labels(groups: Any, y: Any, classes: Names) -> bool:
    """Returns whether groups are the labels with these names, as far as is known."""
    if groups is y:
        return True
    named = {"groups": groups, "y": y}.items()
    known = [_names.places(classes, *item) for item in named]
    return all(isinstance(v, np.ndarray) for v in known) and np.array_equal(*known)


def check_labels_are_groups(rule: Any, preds: PyTree) -> None:
    """Raises ValueError unless each group of a calibration is a label of its score."""
    if not inputs.has_labels(rule.score):
        raise ValueError(
            "expected the group of each test point, got groups=None; only scores "
            "of labels have classes for groups"
        )
    if rule.group_names not in (None, rule.classes):
        raise ValueError(
            "expected the group of each test point, got groups=None, for which the "
            f"group_names {rule.group_names} have to be the classes {rule.classes}"
        )
    preds = _checks.rows(preds=preds)
    check_row_shapes(rule.score, preds, rule.row_shapes)
    k = jax.eval_shape(label_scores, rule.score, preds).shape[1]
    if k != rule.num_groups:
        raise ValueError(
            f"expected predictions of {rule.num_groups} classes (groups), got {k}"
        )


def filled(held: Any, size: int) -> dict[str, Any]:
    """Returns scores, weights and mask of a calibration with `size` rows."""
    counts = np.arange(size) < len(held.scores)
    scores, weights, mask = repeated((held.scores, held.weights, held.mask), size)
    weights = None if weights is None else np.where(counts, weights, 0)
    mask = counts if mask is None else counts & mask
    return {"scores": scores, "weights": weights, "mask": mask}


def count_rows(held: Any) -> int | Array:
    """Returns how many rows of a calibration count."""
    return _arrays.count_rows(held.scores, held.mask)


def of_known_groups(q: Array, groups: Array, num_groups: int) -> Array:
    """Returns thresholds of rows in these groups, +inf for groups out of range."""
    return jnp.where((groups >= 0) & (groups < num_groups), q, jnp.inf)


def weights_for(weights: Array | None, test_weights: Any) -> _checks.Column:
    """Returns weights of test points for `rows`; only with those of calibration."""
    _checks.check_test_weights("test_weights", test_weights, weights)
    return _checks.weights(test_weights)


def weight_for(weights: Array | None, test_weight: Any) -> dict[str, Array]:
    """Returns the context of one test point: its weight, if there is one."""
    _checks.check_test_weights("test_weight", test_weight, weights)
    if test_weight is None:
        return {}
    test_weight = as_arrays(test_weight=test_weight)
    _checks.check_scalars(test_weight=test_weight)
    _checks.check_weights("test_weight", test_weight)
    return {"test_weights": test_weight}


def sure_ranks_of(count: Callable[[], Any], alpha: Any, delta: Any, held: Any) -> Array:
    """Returns ranks for which all components cover, with probability 1 - delta."""
    exact = as_delta(delta)
    if held.weights is not None:
        raise ValueError(
            f"expected delta=None for a calibration with weights, got {delta}; its "
            "coverage has no exact law: leave out delta, or keep each row with "
            "probability weight / bound and calibrate on those without weights"
        )
    is_open = not isinstance(held.scores.shape[0], int)  # in an export: not known
    with nullcontext() if is_open else known_at_once():
        rows = count()
    # A union bound: each of c components misses its share of delta at most.
    return sure_ranks(rows, alpha, exact / math.prod(held.components))


def smoothed_ranks(held: Any, alpha: Any, delta: Any) -> tuple[Array, Array]:
    """Returns ranks, and alpha itself, for sets {y : p(y, u) > alpha}."""
    if delta is not None:
        raise ValueError(
            f"expected u=None with delta, got uniforms and delta={delta}; smoothed "
            "sets cover 1 - alpha on average over uniforms: leave out one of the two"
        )
    if (c := math.prod(held.components)) > 1:
        raise ValueError(
            f"expected u=None for scores with {c} components, whose sets cover more "
            "than 1 - alpha in any case, got uniforms; leave out u, or take a score of "
            "one number such as scores.Distance or scores.CQR"
        )
    return held.rank(alpha), alpha_as_float(as_alpha(alpha))


def uniform_for(u: Any) -> dict[str, Array]:
    """Returns the context of one test point: its uniform, if there is one."""
    if u is None:
        return {}
    u = as_float(as_arrays(u=u))
    _checks.check_scalars(u=u)
    _checks.check_uniforms("u", u)
    return {"u": u}


def check_lawful(scores: Array, weights: Array | None, mask: PyTree) -> None:
    """Raises ValueError where coverage has no exact law, or is not known here."""
    if weights is not None or scores.ndim > 1:
        raise ValueError(
            "expected a calibration without weights or several components, whose "
            f"coverage has no exact law, got scores of shape {scores.shape}"
            + ("" if weights is None else " with weights")
        )
    if not is_concrete(mask):
        raise ValueError("expected a mask with values, got a traced one")


def certificate_of(score: Score, count: Any, alpha: Any, delta: Any) -> Certificate:
    """Returns the law of the coverage of a score's sets; of larger ones a bound."""
    proof = certificate(int(count), alpha, delta)
    return dataclasses.replace(proof, exact=inputs.is_exact(score))


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


def check_digits_of_targets(
    score: Score,
    preds: PyTree,
    y: Array,
    scores: Array,
    mask: Array | None,
    given: tuple[PyTree, PyTree],
) -> None:
    """Raises ValueError if targets have lost the digits that their scores are about.

    For targets that were rounded when they became arrays. Labels have no digits to
    lose. `given` are predictions and targets before rounding: predictions that are
    right to the last digits have lost none there, and equal scores count once.
    """
    if inputs.has_labels(score) or not is_concrete(preds, y, scores, mask):
        return
    some = some_rows(len(y))
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
        check_digits("y", steps, scores)
        return
    with jax.enable_x64(True):
        preds, y = as_arrays(preds=given[0], y=given[1])
        exact = np.asarray(evaluate(score, preds, y.astype(float)))[some][rows]
    finer = np.finfo(float).eps / np.finfo(floats.dtype).eps
    close = steps * finer / SHARE  # to the last digits of double precision
    which = one_of_each(exact, close) & ~(abs(exact) <= close)
    check_digits("y", steps, exact, which)


def _fits(known, new, free):
    return len(known) == len(new) and known[free:] == new[free:]


def _split(shapes):
    """Returns shapes with two numbers in place of an array of a pair."""
    return ((), ()) if shapes == _PAIR else shapes


def of_own_group(
    of: Callable[[Array], Array], groups: Array, num_groups: int, results: PyTree
) -> Array:
    """Returns `of(g)` of each row's group g, shape (m,), 1 for groups out of range.

    A pass for each group; `results` are what `of` computes from.
    """
    fill = lambda p, g: (jnp.where(groups == g, of(g), p), None)  # noqa: E731
    like = jax.eval_shape(of, jnp.zeros((), int))
    start = varying_like(jnp.ones(like.shape, like.dtype), (results, groups))
    return lax.scan(fill, start, jnp.arange(num_groups))[0]
