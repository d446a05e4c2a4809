"""The sets of a predictor as a file of NumPy."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxcp._batching import label_scores
from jaxcp.held.rows import at_groups
from jaxcp.saving import lines
from jaxcp.scores import inputs
from jaxcp.sets import Box, Interval
from jaxcp.typing import PyTree, Score

_TRIED = 64  # rows
_FIELDS = (["lower", "upper"], ["mask"])


def drawn(score: Score, row_shapes: Any, size: int, dtype: Any) -> PyTree:
    """Returns predictions that a score takes, drawn at random, by shapes of one."""
    rng = np.random.default_rng(0)
    laws: dict[str, Callable[..., np.ndarray]] = {
        "": lambda *shape: 3 * rng.normal(size=shape),
        "positive": lambda *shape: rng.exponential(size=shape) + 0.1,
        "share": lambda *shape: rng.uniform(size=shape),
        "shares": lambda *shape: rng.dirichlet(np.ones(shape[-1]), shape[:-1]),
    }
    pairs = zip(row_shapes, _within(score, row_shapes), strict=True)
    rows = [laws[kind](size, *shape).astype(dtype) for shape, kind in pairs]
    return tuple(rows) if len(rows) > 1 else rows[0]


def exported(of: Any, sets_at: Callable[..., Any]) -> str:
    """Returns a file of NumPy with the sets `sets_at(score, q, preds, context)`."""
    _check(of)
    score, shapes, g = of.score, of.row_shapes, of.num_groups
    preds = drawn(score, shapes, _TRIED, of.q.dtype)
    groups = {"groups": np.arange(_TRIED, dtype=np.int32) % (g or 1)}
    rows: dict[str, Any] = {"_of_all": (preds, {}), "_of_groups": (preds, groups)}
    if g is None or of.label_groups is not None:
        rows["_of_groups"] = None
    elif not _are_labels(of, preds):
        rows["_of_all"] = None
    try:
        sets = {k: sets_at(score, of.q, *v) for k, v in rows.items() if v}
    except Exception as error:
        raise ValueError(
            f"expected predictions as an array or a tuple of arrays, got {shapes} in "
            f"another way for {type(score).__name__}; keep this predictor where jax is"
        ) from error
    within = _within(score, shapes)
    settings = {"PROMISE": of.promise, **_settings(of, next(iter(sets.values())))}
    settings |= {"_SHAPES": shapes, "_WITHIN": within, "_DTYPE": str(of.q.dtype)}
    idle = ("summable",) if "shares" in within else ()
    by_label = inputs.has_labels(score) and not inputs.is_inclusive(score)
    program = _labels_at if by_label else sets_at
    whole = lambda known, *rows: program(*known, *rows)  # noqa: E731
    kind = type(score).__name__
    text = lines.module(whole, (score, of.q), rows, settings, idle, kind)
    names: dict[str, Any] = {}
    exec(text, names)
    for name, expected in sets.items():
        with np.errstate(all="ignore"):
            found = names[name](*jax.tree.leaves(rows[name]))
        if not all(map(_same_bits, found, jax.tree.leaves(expected))):
            raise ValueError(
                lines.refusal(kind, "operations that XLA rounds otherwise")
            )
    return text


def _labels_at(score, q, preds, context):
    """Returns which labels score at most q: the mask of `score.invert`, by one sort."""
    q = at_groups(q, context["groups"])[:, None] if context else q
    return label_scores(score, preds) <= q


def _check(of):
    """Raises ValueError for a predictor that no file of NumPy can stand for."""
    if of.row_shapes is None or of.q.dtype.itemsize < 4:
        raise ValueError(
            "expected a predictor that knows the shapes of its predictions, in single "
            f"or double precision, got {of.row_shapes} and {of.q.dtype}; those of "
            "jaxcp.calibrate do, of arrays in such precision"
        )
    for names in (of.classes, of.group_names):
        try:
            is_same = ast.literal_eval(repr(tuple(names or ()))) == tuple(names or ())
        except (ValueError, SyntaxError):
            is_same = False
        if not is_same:
            raise ValueError(
                f"expected names as text or numbers, got {names}; calibrate with "
                "names of these kinds"
            )


def _settings(of, sets):
    """Returns what the file says of sets, by name; ValueError for other kinds."""
    leaves = jax.tree.leaves_with_path(sets)
    fields = [jax.tree_util.keystr(path, simple=True) for path, _ in leaves]
    if fields not in _FIELDS:
        raise ValueError(
            f"expected sets with ends or of labels, got {type(sets).__name__}; keep "
            "this predictor where jax is, by jaxcp.save"
        )
    names = of.group_names and tuple(of.group_names)
    numbers = bool(names) and all(isinstance(v, bool | int | float) for v in names)
    found = {"_FIELDS": tuple(fields), "_CLIPS": isinstance(sets, Interval | Box)}
    found |= {
        "_CLASSES": of.classes and tuple(of.classes),
        "_NUM_GROUPS": of.num_groups,
    }
    return found | {"_NAMES": names, "_NUMBERS": numbers}


def _are_labels(of, preds):
    """Returns whether groups that are left out are the labels."""
    try:
        of._groups_of(preds, None)
    except ValueError:
        return False
    return True


def _within(score, row_shapes):
    """Returns where the numbers of each array of predictions lie."""
    known = inputs.of(score).within
    return (*known, *[""] * len(row_shapes))[: len(row_shapes)]


def _same_bits(found, expected):
    expected = np.asarray(expected)
    same = found.dtype == expected.dtype
    return same and np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")
