"""Rows in their own containers: frames, arrays, sparse matrices, lists, dicts.

One fit of a model of any library: a copy, its seeds, its rows.

What fitted models of any library predict, as numpy arrays.

Many fits on the host: in threads or by an executor, kept when one of them fails.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from numbers import Number
from typing import Any

import jax
import numpy as np

from jaxcp._arrays import as_numpy, is_concrete
from jaxcp._tree import Untraceable
from jaxcp.typing import FitsOnHost, PyTree


def as_rows(name: str, value: Any) -> Any:
    """Returns rows as they are, arrays of jax as numpy's, after checks."""
    if isinstance(value, dict):
        return {key: as_rows(name, part) for key, part in value.items()}
    if isinstance(value, tuple) and any(map(_has_rows, value)):
        return tuple(as_rows(name, part) for part in value)
    if isinstance(value, jax.Array) and is_concrete(value):
        value = np.asarray(value)
    value = list(value) if isinstance(value, tuple) else value
    if not _has_rows(value):
        raise ValueError(f"expected {name} with rows, got {_kind(value)}")
    return value


def num_rows(name: str, x: Any) -> int:
    """Returns the number of rows, the same in each part of a dict or tuple."""
    if isinstance(x, dict | tuple):
        counts = {num_rows(name, part) for part in _parts(x)}
        if len(counts) != 1:
            raise ValueError(f"expected {name} of one length, got {sorted(counts)}")
        return counts.pop()
    return x.shape[0] if hasattr(x, "shape") else len(x)


def take(x: Any, rows: np.ndarray) -> Any:
    """Returns a copy of some of the rows, in a container of the same kind.

    It is a copy, because some models change their data in place.
    """
    if isinstance(x, dict):
        return {key: take(part, rows) for key, part in x.items()}
    if isinstance(x, tuple):
        return tuple(take(part, rows) for part in x)
    if isinstance(x, list):
        return [x[i] for i in rows]
    if hasattr(x, "iloc"):  # of pandas
        return x.iloc[rows].copy()  # which may be a view
    return (x.tocsr() if hasattr(x, "tocsr") else x)[rows]  # of scipy


def as_predictions(preds: PyTree, rows: int, fit: str) -> PyTree:
    """Returns predictions as numpy arrays, after checks; `fit` names the fit."""

    def convert(leaf):
        values = as_numpy("predictions", leaf)
        if values.dtype.kind not in "biuf":
            raise ValueError(
                f"expected predictions as numbers, got {values.dtype} of {fit}; a "
                "classifier needs predict_proba, and predict=(model, x) -> preds "
                "says what else to ask a model for"
            )
        if values.shape[:1] != (rows,):
            raise ValueError(
                f"expected predictions with a leading axis of {rows}, one for each "
                f"row of x, got shape {values.shape} of {fit}"
            )
        _check_not_nan(values, fit)
        return values

    return jax.tree.map(convert, preds, is_leaf=_is_array)


def _has_rows(value):
    if isinstance(value, str | bytes):
        return False
    shape = getattr(value, "shape", None)
    return bool(shape) if shape is not None else hasattr(value, "__len__")


def _parts(x):
    return x.values() if isinstance(x, dict) else x


def _kind(value):
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"shape {tuple(shape)}"


def _is_array(x):
    """Returns whether a prediction is one array: also a frame, and a list of rows."""
    return isinstance(x, list) or hasattr(x, "to_numpy") or hasattr(x, "detach")


def _check_not_nan(values, fit):
    if values.dtype.kind == "f" and np.isnan(values).any():
        row = int(np.argwhere(np.isnan(values))[0][0])
        raise ValueError(
            f"expected predictions without NaN, got nan at row {row} of {fit}"
        )


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


Predict = Callable[[Any, Any], PyTree] | None


def predict_one(
    predict: Predict, model: Any, fits: ModelFits, x: Any, fit: str
) -> PyTree:
    """Returns the predictions of one fit, which `fit` names; leading axis m."""
    m = num_rows("x", x)
    if not m:  # which most models refuse: a training row tells the shapes
        known = take(fits.x, np.arange(1))
        preds = predict_one(predict, model, fits, known, fit)
        return jax.tree.map(lambda v: v[:0], preds)
    if predict is not None:
        preds = predict(list(model) if isinstance(model, tuple) else model, x)
    elif isinstance(model, tuple):
        preds = tuple(_ask(one, fits.classes, x) for one in model)
    else:
        preds = _ask(model, fits.classes, x)
    return as_predictions(preds, m, fit)


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
        own = take(x, everything if rows[j] is None else rows[j])
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
    return np.arange(num_rows("x", x))


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
    probs = as_numpy("probabilities", model.predict_proba(x))
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
        if self.digest is not None:
            return self
        return replace(self, digest=_digest(self.x, self.y))

    def check_same(self, other: ModelFits) -> None:
        """Raises ValueError unless other fits are of the same key, data and weights."""
        same = {
            "key": self.entropy == other.entropy,
            "weights": np.array_equal(self.weights, other.weights),
            "x and y": self.marked().digest == other.marked().digest,
        }
        for name, is_same in same.items():
            if not is_same:
                raise ValueError(
                    f"expected the {name} of the fits that are resumed, got others; "
                    "fit anew without resume"
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


def run(
    task: Callable[..., Any],
    jobs: dict[int, tuple],
    done: Callable[[int, Any], None],
    num_workers: int,
    executor: Executor | None = None,
) -> tuple[int, Exception] | None:
    """Runs jobs and tells `done` each result; returns the first job that raises.

    No job starts after it; running jobs are completed, also after Ctrl-C.
    """
    if executor is not None:
        return _run(task, jobs, done, executor)
    if num_workers > 1 and len(jobs) > 1:
        with ThreadPoolExecutor(num_workers) as pool:
            return _run(task, jobs, done, pool)
    for name, job in jobs.items():
        try:
            result = task(*job)
        except Exception as error:
            return name, error
        done(name, result)
    return None


def _run(task, jobs, done, executor):
    futures: dict[Future, int] = {}
    kept: set[Future] = set()

    def keep(future):
        if future not in kept and not future.cancelled() and not future.exception():
            kept.add(future)
            done(futures[future], future.result())

    try:
        for name, job in jobs.items():
            futures[executor.submit(task, *job)] = name
        for future in as_completed(futures):
            if isinstance(error := future.exception(), Exception):
                return futures[future], error
            future.result()  # raises an interrupt, which reaches processes as well
            keep(future)
    finally:
        running = [future for future in futures if not future.cancel()]
        for future in wait(running).done:
            keep(future)
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


def check_untraced(learner: FitsOnHost, *values: PyTree) -> None:
    """Raises ValueError for traced values, which models of the host cannot see."""
    if not is_concrete(values):
        raise Untraceable(
            f"expected {type(learner).__name__} outside of jit, vmap and grad, for its "
            "models fit and predict on the host; record their predictions first, and "
            "give those to jaxcp.cross_calibrate"
        )
