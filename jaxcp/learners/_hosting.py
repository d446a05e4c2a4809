"""Models of any library on the host: their rows, their fits, what these predict.

Rows stay in their own containers: frames, arrays, sparse matrices, lists, dicts. Fits
run in threads or by an executor, and are kept when one of them fails.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from numbers import Number
from typing import Any

import jax
import numpy as np

from jaxcp import _checks
from jaxcp._arrays import as_numpy, is_concrete
from jaxcp._tree import Untraceable
from jaxcp.typing import PyTree

_SEED = "random_state"
_METHODS = "predict", "predict_proba"


def as_rows(value: Any) -> Any:
    """Returns rows as they are, but arrays of jax as numpy's, numbers as a list."""
    if isinstance(value, tuple) and not any(map(_has_rows, value)):
        return list(value)
    if isinstance(value, jax.Array) and is_concrete(value):
        return np.asarray(value)
    return _by_part(as_rows, value)


def num_rows(name: str, x: Any) -> int:
    """Returns the number of rows, the same in each part of a dict or tuple."""
    if isinstance(x, dict | tuple):
        parts = x.values() if isinstance(x, dict) else x
        counts = {num_rows(name, part) for part in parts}
        if len(counts) != 1:
            raise ValueError(f"expected {name} of one length, got {sorted(counts)}")
        return counts.pop()
    return x.shape[0] if hasattr(x, "shape") else len(x)


def take(x: Any, rows: np.ndarray) -> Any:
    """Returns a copy of some of the rows, in a container of the same kind.

    It is a copy, because some models change their data in place.
    """
    if isinstance(x, dict | tuple):
        return _by_part(lambda part: take(part, rows), x)
    if isinstance(x, list):
        return [x[i] for i in rows]
    if hasattr(x, "iloc"):  # of pandas
        return x.iloc[rows].copy()  # which may be a view
    return (x.tocsr() if hasattr(x, "tocsr") else x)[rows]  # of scipy


def _has_rows(value):
    if hasattr(value, "shape"):
        return bool(value.shape)
    return hasattr(value, "__len__") and not isinstance(value, str | bytes)


def _by_part(function, x):
    """Returns a function of each part of a dict or a tuple, and anything else as is."""
    if isinstance(x, dict):
        return {key: function(part) for key, part in x.items()}
    return tuple(map(function, x)) if isinstance(x, tuple) else x


def fit_models(models, entropy, x, y, weights):
    """Returns fitted copies of models, with seeds of their own, on rows of weight > 0.

    Rows with whole-number weights are repeated, others weighed by `sample_weight`.
    """
    main, own = entropy  # a stream for each fit
    copies = tuple(map(unfitted, models))
    named = [(model, name) for model in copies for name in _open_seeds(model)]
    words = np.random.SeedSequence(main, spawn_key=own).generate_state(len(named))
    for (model, name), word in zip(named, words, strict=True):
        model.set_params(**{name: int(word >> 1)})  # 31 bits, which C libraries hold
    rows, options = np.flatnonzero(weights), {}
    if np.all(weights == np.floor(weights)):
        rows = np.repeat(np.arange(len(weights)), weights.astype(int))
    else:
        options["sample_weight"] = weights[rows]
    x, y = take(x, rows), take(y, rows)
    return tuple(_fitted(model, model.fit(x, y, **options)) for model in copies)


def check_model(model: Any, needs_predict: bool) -> None:
    """Raises ValueError for what has no `fit(X, y)`, or nothing to predict with."""
    kind = type(model).__name__
    if isinstance(model, type):
        kind = f"the class {model.__name__}"
        cure = f"write {model.__name__}(...)"
    elif not has(model, "fit"):
        cure = "a function of a fitted model goes into split_conformal"
    elif not can_call(model.fit, 2):
        cure = "a learner of jax goes into the verbs as it is"
    elif needs_predict and not any(has(model, name) for name in _METHODS):
        cure = "say predict=(fitted model, x) -> preds"
    else:
        return
    raise ValueError(
        f"expected a model with fit(X, y) and predict(X), got {kind}; {cure}"
    )


def has(model: Any, name: str) -> bool:
    """Returns whether a model of another library has a method, which may depend."""
    return callable(getattr(model, name, None))


def can_call(function: Callable, count: int) -> bool:
    """Returns whether a function takes so many arguments by position."""
    try:
        inspect.signature(function).bind(*(None,) * count)
    except TypeError:
        return False
    except ValueError:  # of an extension module
        return True
    return True


def takes_weights(model: Any) -> bool:
    """Returns whether `fit` takes `sample_weight` by name: **kwargs may ignore it."""
    try:
        return "sample_weight" in inspect.signature(model.fit).parameters
    except (TypeError, ValueError):  # of an extension module
        return False


def unfitted(model: Any) -> Any:
    """Returns an unfitted copy where the model knows how, and a deep copy otherwise."""
    if has(model, "get_params"):
        with suppress(ImportError):
            from sklearn import base

            return base.clone(model)
    return copy.deepcopy(model)


def _open_seeds(model):
    """Returns the names of the seeds that a model leaves open, in one order."""
    if not (has(model, "get_params") and has(model, "set_params")):
        return []
    params = model.get_params().items()
    return sorted(k for k, v in params if v is None and k.split("__")[-1] == _SEED)


def _fitted(model, returned):
    """Returns what can predict: the model, or results that its `fit` returns."""
    own = [name for name in _METHODS if has(model, name)]
    found = any(has(returned, name) for name in own[:1] or _METHODS)
    return returned if found else model


def predict_one(learner, model, fits, x, fit):
    """Returns what one fit, which `fit` names, predicts for rows that it may change."""
    m = num_rows("x", x)
    if not m:  # which most models refuse: a training row tells the shapes
        known = take(fits.x, np.arange(1))
        preds = predict_one(learner, model, fits, known, fit)
        return jax.tree.map(lambda v: v[:0], preds)
    if learner.predict is not None:
        preds = learner.predict(list(model) if isinstance(model, tuple) else model, x)
    elif isinstance(model, tuple):
        preds = tuple(_ask(one, fits.classes, x) for one in model)
    else:
        preds = _ask(model, fits.classes, x)

    def checked(leaf):
        values = as_numpy("predictions", leaf)
        if values.dtype.kind not in "biuf" or values.shape[:1] != (m,):
            raise ValueError(
                f"expected predictions as numbers, with a leading axis of {m}, one for "
                f"each row of x, got {values.dtype} of shape {values.shape} of {fit}; "
                "a classifier needs predict_proba, and predict=(model, x) -> preds "
                "says what else to ask a model for"
            )
        _checks.check_not_nan(f"predictions of {fit}", values)
        return values

    return jax.tree.map(checked, preds, is_leaf=_is_array)


def _is_array(x):
    """Returns whether a prediction is one array: also a frame, and a list of rows."""
    return isinstance(x, list) or hasattr(x, "to_numpy") or hasattr(x, "detach")


def predict_each(learner, fits, x, asked):
    """Returns what each fit predicts where it is asked, (b, n); 0 elsewhere."""
    rows = [np.flatnonzero(row) for row in asked]
    found: dict[int, PyTree] = {}

    def one(j):
        return predict_one(learner, fits.models[j], fits, take(x, rows[j]), f"fit {j}")

    # Where no fit is asked, each tells the shapes.
    jobs = {j: (j,) for j, own in enumerate(rows) if len(own) or not asked.any()}
    failed = run(one, jobs, found.__setitem__, learner.num_workers)
    if failed is not None:
        failed[1].add_note(f"raised while fit {failed[0]} predicted")
        raise failed[1]

    def spread(*parts):
        row = parts[0].shape[1:]
        whole = np.zeros(
            (*asked.shape, *row), np.result_type(*(v.dtype for v in parts))
        )
        for j, part in zip(jobs, parts, strict=True):
            if part.shape[1:] != row:  # one column would be spread over several
                raise ValueError(
                    f"expected predictions of one shape from all fits, got {row} a row "
                    f"of fit {min(jobs)}, {part.shape[1:]} of fit {j}; classes that a "
                    "resample does not hold need their columns too"
                )
            whole[j, rows[j]] = part
        return whole

    return jax.tree.map(spread, *(found[j] for j in jobs))


def _ask(model, classes, x):
    if not has(model, "predict_proba"):
        return model.predict(x)
    probs = as_numpy("probabilities", model.predict_proba(x))
    seen = list(getattr(model, "classes_", classes))
    if probs.ndim != 2 or probs.shape[1] != len(seen) or set(seen) - set(classes):
        raise ValueError(
            f"expected probabilities of the {len(classes)} classes, got those of "
            f"{len(seen)}, shape {probs.shape}, by {type(model).__name__}; give the "
            "classes to the Estimator, or predict=(model, x) -> preds"
        )
    if seen == list(classes):
        return probs
    place = {name: j for j, name in enumerate(classes)}
    whole = np.zeros((len(probs), len(classes)), probs.dtype)
    whole[:, [place[name] for name in seen]] = probs
    return whole


@jax.tree_util.register_static
@dataclass(frozen=True, eq=False, repr=False)
class ModelFits:
    """Fitted models of any library, in the order of the resamples. Made by `Estimator`.

    Args:
      models: The fitted models, a list of length b; None where a fit is not done.
        Where the estimator holds several models, each entry is a tuple of them.
      classes: Classes in the order of the columns of probabilities, or None.
      entropy: Words of the key.
      weights: Weights of the rows in each fit, shape (b, n).
      x: Training inputs.
      y: Training targets.
      full: The fit on all rows, once it is asked for.
      digest: Fingerprint of x and y, of fits that an error carries.
    """

    models: list[Any]
    classes: tuple | None
    entropy: tuple[int, ...]
    weights: np.ndarray
    x: Any
    y: Any
    full: list[Any] = field(default_factory=list)
    digest: bytes | None = None

    def __repr__(self) -> str:
        done = sum(model is not None for model in self.models)
        return f"ModelFits({done} of {len(self.models)} fits)"

    def marked(self) -> ModelFits:
        """Returns the fits with the fingerprint of their data, taken once.

        A later change of the data in place is then noticed.
        """
        return self if self.digest else replace(self, digest=_digest(self.x, self.y))

    def check_same(self, other: ModelFits) -> None:
        """Raises ValueError unless other fits are of the same key, data and weights."""
        same = self.entropy == other.entropy
        same = same and np.array_equal(self.weights, other.weights)
        if not same or self.marked().digest != other.marked().digest:
            raise ValueError(
                "expected the key, weights, x and y of the fits that are resumed, got "
                "others; fit anew without resume"
            )


class FitError(ValueError):
    """A fit that raised, with the fits that are done. Made by the fits of `Estimator`.

    Its cause is what the model raised. `Estimator.resume(error.fits)` goes on.

    Args:
      message: What happened, and in which resample.
      fits: The fits that are done; its `models` are None where a fit is missing.

    See also:
      learners.Estimator, learners.Estimator.resume

    Example:
      >>> error = FitError("expected a fit, got RuntimeError")
      >>> isinstance(error, ValueError), error.fits
      (True, None)
    """

    def __init__(self, message: str, fits: ModelFits | None = None) -> None:
        super().__init__(message)
        self.fits = fits


@contextmanager
def keeping(fits: ModelFits) -> Iterator[None]:
    """Attaches the fits that are done to an error or an interrupt."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        vars(error)["fits"] = fits.marked()
        error.add_note(f"{fits} are kept: learner.resume(error.fits) goes on")
        raise


def run(task, jobs, done, num_workers, executor=None):
    """Runs jobs and tells `done` each result; returns the first job that raises.

    No job starts after it; running jobs are completed, also after Ctrl-C.
    """
    if executor is None and (num_workers == 1 or len(jobs) < 2):
        for name, job in jobs.items():
            try:
                result = task(*job)
            except Exception as error:
                return name, error
            done(name, result)
        return None
    own = ThreadPoolExecutor(num_workers) if executor is None else nullcontext(executor)
    with own as pool:
        return _run(task, jobs, done, pool)


def _run(task, jobs, done, pool):
    futures: dict[Future, int] = {}
    try:
        for name, job in jobs.items():
            futures[pool.submit(task, *job)] = name
        for future in as_completed(list(futures)):
            if isinstance(error := future.exception(), Exception):
                return futures[future], error
            done(futures[future], future.result())  # an interrupt reaches processes too
            del futures[future]
    finally:
        running = [future for future in futures if not future.cancel()]
        for future in wait(running).done:
            if not future.exception():
                done(futures[future], future.result())
    return None


def _digest(*values):
    """Returns a fingerprint of data; of objects without known content their place."""
    known = hashlib.sha256()
    for part in _inside(values):
        known.update(hashlib.sha256(part).digest())
    return known.digest()


def _inside(value):
    """Yields the content of data as bytes, however it lies in memory."""
    if isinstance(value, dict):
        yield from _inside(list(value.items()))
    elif hasattr(value, "iloc") and value.ndim == 2:  # of pandas
        columns = range(value.shape[1])
        yield from _inside([(str(value.columns[j]), value.iloc[:, j]) for j in columns])
    elif hasattr(value, "to_numpy"):
        yield from _inside(value.to_numpy())
    elif hasattr(value, "tocsr"):  # of scipy
        rows = value.tocsr()
        yield from _inside((rows.shape, rows.data, rows.indices, rows.indptr))
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, np.ndarray | list | tuple):
        yield f"{len(value)}".encode()
        for part in value:
            yield from _inside(part)
    else:
        plain = isinstance(value, str | bytes | Number | np.generic | date | None)
        yield (repr(value) if plain else str(id(value))).encode()


def check_untraced(learner: object, *values: PyTree) -> None:
    """Raises ValueError for traced values, which models of the host cannot see."""
    if not is_concrete(values):
        raise Untraceable(
            f"expected {type(learner).__name__} outside of jit, vmap and grad, for its "
            "models fit and predict on the host; record their predictions first, and "
            "give those to jaxcp.cross_calibrate"
        )
