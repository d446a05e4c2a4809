"""Models of any library as learners: fitted on the host, a copy for every resample."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._batching import bar
from jaxcp._names import is_missing
from jaxcp.learners import _hosting
from jaxcp.learners._hosting import (
    FitError,
    ModelFits,
    all_rows,
    check_untraced,
    keeping,
    predict_each,
    predict_one,
    run,
    spread,
)
from jaxcp.typing import PyTree


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class Estimator:
    """A model of any library as a learner: whatever has `fit(X, y)` and `predict(X)`.

    scikit-learn, LightGBM, XGBoost, skorch, pipelines on frames, a class of your own.
    It goes into `cross_conformal`, `jackknife_plus`, `cv_plus`, `enbpi`,
    `jackknife_plus_after_bootstrap` and `split_conformal_fit`.

    The model itself is never fitted. Each resample fits a copy (`sklearn.base.clone` of
    what has `get_params`, else a deep copy) to its rows alone, in their own container:
    a frame stays a frame. Rows of weight 0 are left out, rows of a whole-number weight
    repeated; if a fit has other weights, they are given as `sample_weight`. Every
    `random_state` that is None, also of a step of a pipeline, becomes a number drawn
    from the key, so that results do not depend on `num_workers`; a `random_state` that
    you set is kept.

    A model with `predict_proba` predicts probabilities, one column a class of `y`, 0
    for classes that a resample does not hold. A list of models predicts a tuple.

    When a fit raises, the `FitError` names its resample and carries the fits that are
    done: `learner.resume(error.fits)` goes on with the rest. KeyboardInterrupt carries
    them too, and so does a later error in predictions or scores.

    Args:
      model: The model, not fitted, or a list of models, such as of two quantiles.
      predict: `(fitted model, x) -> preds`, any pytree of arrays with the leading axis
        of x. Defaults to `predict_proba`, or else `predict`.
      classes: Classes in the order of the columns of probabilities. Defaults to the
        sorted ones in `y`.
      num_workers: Threads that fit and predict.
      executor: Where fits run instead, for instance in processes, as for
        `simulation.run_grid`; model and data are sent there.
      progress: Whether to show a progress bar (needs tqdm).
      done: Fits to go on with; `resume` sets them.

    Raises:
      ValueError: if a model has no `fit(X, y)` or nothing to predict with, or is a
        class.

    Guarantee:
      None of its own; the verb that takes the learner has one.

    Assumption:
      A model that treats rows alike, and whose copies share nothing.

    Cost:
      One fit on the host for each resample, `num_workers` at a time; the fit on all
      rows is made when it is first asked for. Fits compile nothing.

    See also:
      split_conformal_fit, cv_plus, cross_calibrate, learners.FitError

    Example:
      >>> from sklearn.linear_model import LinearRegression
      >>> learner = Estimator(LinearRegression())
      >>> x, y = jaxcp.datasets.linear(jax.random.key(0), 40)
      >>> key, score = jax.random.key(1), jaxcp.scores.Absolute()
      >>> cp = jaxcp.cv_plus(key, learner, score, x, y, num_folds=5)
      >>> len(cp.fits.models), cp(x[:2], alpha=0.1).lower.shape
      (5, (2,))
    """

    model: Any
    _: dataclasses.KW_ONLY
    predict: Callable[[Any, Any], PyTree] | None = None
    classes: Sequence | None = None
    num_workers: int = 1
    executor: Executor | None = None
    progress: bool = False
    done: ModelFits | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        for model in self._models:
            _hosting.check_model(model, self.predict is None)
        if not self._models:
            raise ValueError("expected a model, got an empty list")
        if self.predict is not None and not callable(self.predict):
            raise ValueError(f"expected predict as a function, got {self.predict!r}")
        _checks.check_count("num_workers", self.num_workers, 1)

    def resume(self, fits: ModelFits) -> Estimator:
        """Returns a learner that keeps the fits that are done and makes the others.

        Args:
          fits: `fits` of a `FitError`, of KeyboardInterrupt or of a later error.

        Returns:
          A learner for the same call: same key, data and resamples.

        Raises:
          ValueError: when it fits, if key, data or resamples are others.

        Example:
          >>> from sklearn.linear_model import LinearRegression
          >>> class Out(LinearRegression):
          ...     def fit(self, X, y):
          ...         if 3.0 not in y:
          ...             raise MemoryError("none left")
          ...         return super().fit(X, y)
          >>> key, score = jax.random.key(1), jaxcp.scores.Absolute()
          >>> x, y = jnp.arange(20.0)[:, None], jnp.arange(20.0)
          >>> try:
          ...     cp = jaxcp.jackknife_plus(key, Estimator(Out()), score, x, y)
          ... except FitError as error:
          ...     print(error.fits)  # and with what helped:
          ...     learner = Estimator(LinearRegression()).resume(error.fits)
          ...     cp = jaxcp.jackknife_plus(key, learner, score, x, y)
          ModelFits(3 of 20 fits)
        """
        _checks.check_kind("fits of an Estimator", fits, ModelFits)
        return dataclasses.replace(self, done=fits)

    def num_rows(self, x: Any) -> int:
        """Returns the number of rows of inputs."""
        return _hosting.num_rows("x", _hosting.as_rows("x", x))

    def fit_all(self, key: Array, x: Any, y: Any, weights: np.ndarray) -> ModelFits:
        """Returns a fit for each row of weights, shape (b, n)."""
        check_untraced(self, key, x, y, weights)
        _checks.check_key(key)
        x, y = _hosting.as_rows("x", x), _hosting.as_rows("y", y)
        weights = np.asarray(weights)
        self._check_weights(x, y, weights)
        entropy = tuple(np.asarray(jax.random.key_data(key)).ravel().tolist())
        models: list = [None] * len(weights)
        fits = ModelFits(models, self.classes_of(y), entropy, weights, x, y)
        if self.done is not None:
            fits.check_same(self.done)
            models[:] = self.done.models
        self._fit_missing(fits)
        return fits

    def predict_all(self, fits: ModelFits, x: Any) -> PyTree:
        """Returns predictions of all fits as numpy arrays, leading axes (b, m)."""
        check_untraced(self, x)
        x, everything = _hosting.as_rows("x", x), [None] * len(fits.models)
        each = predict_each(self.predict, fits, x, everything, self.num_workers)
        return jax.tree.map(lambda *parts: np.stack(parts), *each)

    def predict_held_out(self, fits: ModelFits, x: Any, held_out: np.ndarray) -> PyTree:
        """Returns what each fit predicts where `held_out`, (b, n); 0 elsewhere."""
        check_untraced(self, x, held_out)
        x, held_out = _hosting.as_rows("x", x), np.asarray(held_out)
        if not held_out.any():
            raise ValueError(
                "expected some row with weight 0 in a resample, got resamples that all "
                "hold every row"
            )
        rows = [np.flatnonzero(row) for row in held_out]
        with keeping(fits):
            each = predict_each(self.predict, fits, x, rows, self.num_workers)
        return spread(each, rows, held_out.shape[1])

    def predict_full(self, fits: ModelFits, x: Any) -> PyTree:
        """Returns predictions of the fit on all rows, leading axis m.

        It is made when it is first asked for.
        """
        check_untraced(self, x)
        if not fits.full:
            ones = np.ones(_hosting.num_rows("y", fits.y))
            jobs = {0: (self._models, (fits.entropy, ()), fits.x, fits.y, ones)}
            done = lambda _, fitted: fits.full.append(self._kept(fitted))  # noqa: E731
            failed = run(_hosting.fit_models, jobs, done, 1, self.executor)
            if failed is not None:
                raise self._error(fits, "all", ones, failed[1]) from failed[1]
        x, fit = _hosting.as_rows("x", x), "the fit on all rows"
        own = _hosting.take(x, all_rows(x))
        return predict_one(self.predict, fits.full[0], fits, own, fit)

    def classes_of(self, y: Any) -> tuple | None:
        """Returns the classes that columns of probabilities stand for, or None."""
        if self.classes is not None:
            return tuple(self.classes)
        proba = any(_hosting.has(model, "predict_proba") for model in self._models)
        if self.predict is not None or not proba:
            return None
        labels = np.asarray(y)
        if labels.ndim != 1:
            raise ValueError(f"expected labels y of shape (n,), got {labels.shape}")
        try:
            return tuple(np.unique(labels).tolist())
        except TypeError as error:
            missing = [i for i, label in enumerate(labels) if is_missing(label)]
            if missing:
                found = f"got {labels[missing[0]]!r} at {missing[0]}"
                expected = "expected labels y without missing ones"
                raise ValueError(f"{expected}, {found}") from error
            raise ValueError(
                "expected labels y that can be sorted, got several kinds; give the "
                "classes to the Estimator, in an order of your own"
            ) from error

    @property
    def _models(self):
        single = not isinstance(self.model, list | tuple)
        return (self.model,) if single else tuple(self.model)

    def _kept(self, fitted):
        return fitted if isinstance(self.model, list | tuple) else fitted[0]

    def _check_concrete(self, *values):
        check_untraced(self, *values)

    def _check_weights(self, x, y, weights):
        n = _hosting.num_rows("y", y)
        if (rows := _hosting.num_rows("x", x)) != n:
            raise ValueError(f"expected x with {n} rows like y, got {rows}")
        if weights.ndim != 2 or weights.shape[1] != n:
            raise ValueError(f"expected weights of shape (b, {n}), got {weights.shape}")
        _checks.check_weights("weights", weights)
        empty = ~weights.any(axis=1)
        if empty.any():
            raise ValueError(f"expected rows in each fit, got none in {empty.argmax()}")
        if _hosting.is_whole(weights).all():
            return
        for model in self._models:
            if not _hosting.takes_weights(model):
                raise ValueError(
                    "expected whole-number weights, or a model whose fit takes "
                    f"sample_weight, got others and {type(model).__name__}"
                )

    def _fit_missing(self, fits):
        total, models = len(fits.models), self._models
        jobs = {
            j: (models, (fits.entropy, (j,)), fits.x, fits.y, fits.weights[j])
            for j, model in enumerate(fits.models)
            if model is None
        }
        with bar(total, total - len(jobs), "fit", self.progress) as advance:

            def done(j, fitted):
                fits.models[j] = self._kept(fitted)
                advance(1)

            with keeping(fits):
                task = _hosting.fit_models
                failed = run(task, jobs, done, self.num_workers, self.executor)
        if failed is not None:
            j, error = failed
            where = f"resample {j} of 0, ..., {total - 1} with"
            raise self._error(fits, where, fits.weights[j], error) from error

    def _error(self, fits, where, weights, error):
        rows, kept = np.count_nonzero(weights), ""
        if any(model is not None for model in fits.models):
            kept = f"; {fits} are kept: learner.resume(error.fits) goes on"
        got = f"{type(error).__name__}: {error}"
        message = f"expected a fit to {where} {rows} rows, got {got}{kept}"
        return FitError(message, fits.marked())
