"""The sets of a predictor as a file of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax
import numpy as np

from jaxcp._batching import invert_each, label_scores
from jaxcp.saving.lines import Lines, template
from jaxcp.scores import inputs
from jaxcp.sets import Box, Interval
from jaxcp.typing import HasSteps, PyTree, Score

_TRIED = 1000  # rows


def drawn(score: Score, row_shapes: Any, size: int, dtype: Any) -> PyTree:
    """Returns predictions that a score takes, drawn at random, by shapes of one."""
    rng, kinds = np.random.default_rng(0), inputs.of(score).within
    laws: dict[str, Callable[..., np.ndarray]] = {
        "": lambda *shape: 3 * rng.normal(size=shape),
        "logits": lambda *shape: 3 * rng.normal(size=shape),
        "boxes": lambda *shape: rng.exponential(size=shape).cumsum(axis=-1),
        "positive": lambda *shape: rng.exponential(size=shape) + 0.1,
        "share": lambda *shape: rng.uniform(size=shape),
        "shares": lambda *shape: rng.dirichlet(np.ones(shape[-1]), shape[:-1]),
    }
    pairs = zip(row_shapes, [*kinds, *[""] * len(row_shapes)], strict=False)
    rows = [laws[kind](size, *shape).astype(dtype) for shape, kind in pairs]
    return tuple(rows) if len(rows) > 1 else rows[0]


def exported(of: Any) -> str:
    """Returns a file of NumPy with the sets of a predictor.

    Raises ValueError where an operation has no line, or finds other bits than jax.
    """
    try:
        return _tried(of)
    except Exception as error:
        raise ValueError(
            "expected sets with ends or of labels, computed to the same bits by NumPy, "
            f"got those of {type(of.score).__name__} ({error}); keep this predictor "
            "where jax is, by jaxcp.save"
        ) from error


def _tried(of):
    """Returns the file, after a trial on rows; thresholds of labels tie with scores."""
    score, preds = of.score, drawn(of.score, of.row_shapes, _TRIED, of.q.dtype)
    q = np.resize(of.q, (_TRIED, *of.q.shape[of.num_groups is not None :]))
    has_labels, program = inputs.has_labels(score), invert_each
    if has_labels or isinstance(score, HasSteps):
        steps = (
            label_scores(score, preds) if has_labels else jax.vmap(score.steps)(preds)
        )
        steps, rows = np.reshape(steps, (_TRIED, -1)), np.arange(_TRIED)
        q = steps[rows, rows % steps.shape[1]].astype(q.dtype)
    sets = invert_each(score, preds, q)
    if has_labels and not inputs.is_inclusive(score):
        program = lambda *rows: label_scores(*rows[:2]) <= rows[2]  # noqa: E731
        q = np.repeat(q[:, None], steps.shape[1], axis=1)
    text = _written(of, sets, program, (preds, q))
    names: dict[str, Any] = {}
    exec(text, names)
    with np.errstate(all="ignore"):
        found = names["_program"](*jax.tree.leaves((preds, q)))
    for ours, theirs in zip(found, map(np.asarray, jax.tree.leaves(sets)), strict=True):
        same = ours.dtype == theirs.dtype
        if not (same and np.array_equal(ours, theirs, equal_nan=True)):
            raise ValueError("other bits on drawn rows")
    return text


def _written(of, sets, program, rows):
    """Returns the file of a program that makes such sets."""
    paths = [path for path, _ in jax.tree.leaves_with_path(sets)]
    fields = [jax.tree_util.keystr(path, simple=True) for path in paths]
    if fields not in (["lower", "upper"], ["mask"]):
        raise ValueError(f"sets of kind {type(sets).__name__}")
    q_shape, names = rows[1].shape[1:], (of.classes, of.group_names)
    by_label = of.q.shape == q_shape and of.group_names in (None, of.classes)
    settings = {"PROMISE": of.promise, "ASSUMPTION": of.assumption}
    settings |= {"_SHAPES": of.row_shapes}
    settings |= {"_WITHIN": inputs.of(of.score).within, "_FIELDS": tuple(fields)}
    settings |= {"_CLIPS": isinstance(sets, Interval | Box), "_Q_SHAPE": q_shape}
    named, grouped = [v and tuple(v) for v in names], of.num_groups is not None
    settings |= zip(("_CLASSES", "_NAMES"), named, strict=True)
    settings |= {"_NUM_GROUPS": of.num_groups, "_ALONE": not grouped or by_label}
    settings |= {"_BY_GROUP": grouped and of.label_groups is None}
    body, functions = template()
    lines = Lines(functions)
    q = lines.number(of.q)
    text = lines.program("_program", lambda *v: program(of.score, *v), rows)
    version = import_module("jaxcp").__version__
    head = f'"""Prediction sets, written by jaxcp {version}."""\n\nimport numpy as np'
    said = [f"{k} = {v!r}" for k, v in settings.items()]
    said += [body, *(f"{name} = {v}" for v, name in lines.numbers.items())]
    return "\n".join([head, "", *said, f"_Q = {q}", "", "", text, ""])
