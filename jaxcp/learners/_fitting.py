"""One fit of a model of any library: a copy, its seeds, its rows."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np

from jaxcp.learners import _rows

_SEED = "random_state"


def fit_models(
    models: tuple, entropy: tuple, x: Any, y: Any, weights: np.ndarray
) -> tuple:
    """Returns fitted copies of models, with seeds of their own, on rows of weight > 0.

    Rows with whole-number weights are repeated, others weighed by `sample_weight`.
    """
    copies = tuple(map(_copy, models))
    names = [_open_seeds(model) for model in copies]
    seeds = iter(_seeds(entropy, sum(map(len, names))))
    for model, own in zip(copies, names, strict=True):
        if own:
            model.set_params(**{name: next(seeds) for name in own})
    rows, options = _rows_of(weights)
    x, y = _rows.take(x, rows), _rows.take(y, rows)
    return tuple(_fitted(model, model.fit(x, y, **options)) for model in copies)


def check_model(model: Any, needs_predict: bool) -> None:
    """Raises ValueError for what has no `fit(X, y)`, or nothing to predict with."""
    kind = type(model).__name__
    if isinstance(model, type):
        kind = f"the class {model.__name__}"
        cure = f"write {model.__name__}(...)"
    elif not has(model, "fit"):
        cure = "a function of a fitted model goes into split_conformal"
    elif not _can_call(model.fit, 2):
        cure = "a learner of jax goes into the verbs as it is"
    elif needs_predict and not (has(model, "predict") or has(model, "predict_proba")):
        cure = "say predict=(fitted model, x) -> preds"
    else:
        return
    raise ValueError(
        f"expected a model with fit(X, y) and predict(X), got {kind}; {cure}"
    )


def looks_like_model(value: Any) -> bool:
    """Returns whether something fits as models of scikit-learn do, not as a learner."""
    return has(value, "get_params") or not _can_call(value.fit, 4)


def takes_weights(model: Any) -> bool:
    """Returns whether `fit` of a model takes `sample_weight` by name."""
    try:
        return "sample_weight" in inspect.signature(model.fit).parameters
    except (TypeError, ValueError):  # of an extension module
        return False


def is_whole(weights: np.ndarray) -> np.ndarray:
    """Returns whether all weights of a fit are whole numbers, along the last axis."""
    return np.all(weights == np.floor(weights), axis=-1)


def has(model: Any, name: str) -> bool:
    """Returns whether a model of another library has a method, which may depend."""
    return callable(getattr(model, name, None))


def _can_call(function, count):
    try:
        inspect.signature(function).bind(*(None,) * count)
    except TypeError:
        return False
    except ValueError:  # of an extension module
        return True
    return True


def _copy(model):
    """Returns an unfitted copy where the model knows how, and a deep copy otherwise."""
    if has(model, "get_params"):
        try:
            from sklearn.base import clone
        except ImportError:
            return copy.deepcopy(model)
        return clone(model)
    return copy.deepcopy(model)


def _open_seeds(model):
    """Returns the names of the seeds that a model leaves open, in one order."""
    if not (has(model, "get_params") and has(model, "set_params")):
        return []
    params = model.get_params()
    last = {name: name.rsplit("__", 1)[-1] for name in params}
    return sorted(k for k, v in params.items() if last[k] == _SEED and v is None)


def _seeds(entropy, count):
    """Returns seeds of 31 bits, which C libraries hold: one stream for each fit."""
    main, own = entropy
    sequence = np.random.SeedSequence(main, spawn_key=own)
    return [int(v >> 1) for v in sequence.generate_state(count)]


def _rows_of(weights):
    """Returns the rows of a fit, and the options of `fit`."""
    if is_whole(weights):
        return np.repeat(np.arange(len(weights)), weights.astype(int)), {}
    rows = np.flatnonzero(weights)
    return rows, {"sample_weight": weights[rows]}


def _fitted(model, returned):
    """Returns what can predict: the model, or results that its `fit` returns."""
    names = "predict", "predict_proba"
    own = [name for name in names if has(model, name)]
    found = any(has(returned, name) for name in own[:1] or names)
    return returned if found else model
