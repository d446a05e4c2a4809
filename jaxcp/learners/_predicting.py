"""What fitted models of any library predict, as numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxcp._arrays import on_host
from jaxcp.learners import _rows
from jaxcp.learners._fitting import has
from jaxcp.learners._hosting import ModelFits, run
from jaxcp.typing import PyTree

Predict = Callable[[Any, Any], PyTree] | None


def predict_one(
    predict: Predict, model: Any, fits: ModelFits, x: Any, fit: str
) -> PyTree:
    """Returns the predictions of one fit, which `fit` names; leading axis m."""
    m = _rows.num_rows("x", x)
    if not m:  # which most models refuse: a training row tells the shapes
        known = _rows.take(fits.x, np.arange(1))
        preds = predict_one(predict, model, fits, known, fit)
        return jax.tree.map(lambda v: v[:0], preds)
    if predict is not None:
        preds = predict(list(model) if isinstance(model, tuple) else model, x)
    elif isinstance(model, tuple):
        preds = tuple(_ask(one, fits.classes, x) for one in model)
    else:
        preds = _ask(model, fits.classes, x)
    return _rows.as_predictions(preds, m, fit)


def predict_each(
    predict: Predict,
    fits: ModelFits,
    x: Any,
    rows: Sequence[np.ndarray | None],
    num_workers: int,
) -> list[PyTree]:
    """Returns what each fit predicts for its rows: all if None, nothing if empty."""
    preds: list = [None] * len(rows)
    everything = all_rows(x)

    def one(j):
        own = _rows.take(x, everything if rows[j] is None else rows[j])
        return predict_one(predict, fits.models[j], fits, own, f"fit {j}")

    jobs = {j: (j,) for j, own in enumerate(rows) if own is None or len(own)}
    failed = run(one, jobs, preds.__setitem__, num_workers)
    if failed is not None:
        failed[1].add_note(f"raised while fit {failed[0]} predicted")
        raise failed[1]
    _check_alike(preds)
    return preds


def all_rows(x: Any) -> np.ndarray:
    """Returns the places of all rows of inputs."""
    return np.arange(_rows.num_rows("x", x))


def spread(each: list[PyTree], rows: list[np.ndarray], n: int) -> PyTree:
    """Returns predictions of its rows by each fit as arrays (b, n, ...), 0 elsewhere.

    The predictions of a fit without rows are None.
    """

    def leaf(*parts):
        shape = len(each), n, *parts[0].shape[1:]
        whole = np.zeros(shape, np.result_type(*(v.dtype for v in parts)))
        for j, part in zip(given, parts, strict=True):
            whole[j, rows[j]] = part
        return whole

    given = [j for j, own in enumerate(rows) if len(own)]
    return jax.tree.map(leaf, *(each[j] for j in given))


def _ask(model, classes, x):
    if not has(model, "predict_proba"):
        return model.predict(x)
    probs = on_host("probabilities", model.predict_proba(x))
    seen = list(getattr(model, "classes_", classes))
    if probs.ndim != 2 or probs.shape[1] != len(seen) or set(seen) - set(classes):
        raise ValueError(
            f"expected probabilities of the {len(classes)} classes {_few(classes)}, "
            f"got shape {probs.shape} of {_few(seen)} by {type(model).__name__}; give "
            "the classes to the Estimator, or predict=(model, x) -> preds"
        )
    if seen == list(classes):
        return probs
    place = {name: j for j, name in enumerate(classes)}
    whole = np.zeros((len(probs), len(classes)), probs.dtype)
    whole[:, [place[name] for name in seen]] = probs
    return whole


def _check_alike(each):
    """Raises ValueError unless all fits predict arrays of the same shapes."""
    given = [(j, preds) for j, preds in enumerate(each) if preds is not None]
    rows = lambda preds: jax.tree.map(lambda v: v.shape[1:], preds)  # noqa: E731
    shapes = [(j, rows(preds)) for j, preds in given]
    for j, found in shapes[1:]:
        first, expected = shapes[0]
        if found != expected:
            raise ValueError(
                f"expected predictions of one shape from all fits, got {expected} a "
                f"row of fit {first}, {found} of fit {j}; classes that a resample does "
                "not hold need their columns too"
            )


def _few(names):
    shown = ", ".join(map(repr, list(names)[:5]))
    return f"{shown}, ..." if len(names) > 5 else shown
