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
from jaxcp.learners import _hosting
from jaxcp.learners._hosting import FitError, ModelFits, as_rows, check_untraced
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
        cure = "; those of a result, cp.fits, are all done: cp itself goes on"
        _checks.check_kind("fits of a FitError", fits, ModelFits, cure)
        return dataclasses.replace(self, done=fits)

    def num_rows(self, x: Any) -> int:
        """Returns the number of rows of inputs."""
        return _hosting.num_rows("x", as_rows(x))

    def fit_all(self, key: Array, x: Any, y: Any, weights: np.ndarray) -> ModelFits:
        """Returns a fit for each row of weights, shape (b, n)."""
        check_untraced(self, key, x, y, weights)
        _checks.check_key(key)
        x, y, weights = as_rows(x), as_rows(y), np.asarray(weights)
        n = _hosting.num_rows("y", y)
        _checks.num_rows(y=np.empty(n), x=np.empty(self.num_rows(x)))
        _checks.check_shape("weights", (len(weights), n), weights.shape)
        _checks.check_weights("weights", weights)
        if not (weights == np.floor(weights)).all():
            for model in self._models:
                if not _hosting.takes_weights(model):
                    raise ValueError(
                        "expected whole-number weights, or a model whose fit takes "
                        f"sample_weight, got others and {type(model).__name__}"
                    )
        entropy = tuple(np.asarray(jax.random.key_data(key)).ravel().tolist())
        models: list = [None] * len(weights)
        fits = ModelFits(models, self.classes_of(y), entropy, weights, x, y)
        if self.done is not None:
            fits.check_same(self.done)
            models[:] = self.done.models
        self._fit_missing(fits, models, weights)
        return fits

    def predict_all(self, fits: ModelFits, x: Any) -> PyTree:
        """Returns predictions of all fits as numpy arrays, leading axes (b, m)."""
        check_untraced(self, x)
        everything = np.ones((len(fits.models), self.num_rows(x)), bool)
        return _hosting.predict_each(self, fits, as_rows(x), everything)

    def predict_held_out(self, fits: ModelFits, x: Any, held_out: np.ndarray) -> PyTree:
        """Returns what each fit predicts where `held_out`, (b, n); 0 elsewhere."""
        check_untraced(self, x, held_out)
        with _hosting.keeping(fits):
            asked = np.asarray(held_out)
            return _hosting.predict_each(self, fits, as_rows(x), asked)

    def predict_full(self, fits: ModelFits, x: Any) -> PyTree:
        """Returns predictions of the fit on all rows, leading axis m.

        It is made when it is first asked for.
        """
        check_untraced(self, x)
        if not fits.full:
            ones, whole = np.ones((1, _hosting.num_rows("y", fits.y))), [None]
            self._fit_missing(fits, whole, ones)
            fits.full[:] = whole
        own = _hosting.take(as_rows(x), np.arange(self.num_rows(x)))
        return _hosting.predict_one(
            self, fits.full[0], fits, own, "the fit on all rows"
        )

    def classes_of(self, y: Any) -> tuple | None:
        """Returns the classes that columns of probabilities stand for, or None."""
        if self.classes is not None:
            return tuple(self.classes)
        proba = any(_hosting.has(model, "predict_proba") for model in self._models)
        if self.predict is not None or not proba:
            return None
        labels: Any = np.asarray(y)
        if labels.ndim == 2 and labels.shape[1] > 1:
            raise ValueError(
                f"expected y of shape (n,), got {labels.shape}; of several labels give "
                "predict=lambda model, x: numpy.stack([p[:, 1] for p in "
                "model.predict_proba(x)], 1)"
            )
        _checks.check_vectors(y=labels)
        return tuple(np.unique(labels).tolist())

    @property
    def _models(self):
        single = not isinstance(self.model, list | tuple)
        return (self.model,) if single else tuple(self.model)

    def _fit_missing(self, fits, models, weights):
        """Puts fits where there is None: all but the fit on all rows are in `fits`."""
        total, is_full = len(models), models is not fits.models
        seed = lambda j: (fits.entropy, () if is_full else (j,))  # noqa: E731
        jobs = {
            j: (self._models, seed(j), fits.x, fits.y, weights[j])
            for j, model in enumerate(models)
            if model is None
        }
        shown = self.progress and not is_full
        with bar(total, total - len(jobs), "fit", shown) as advance:

            def done(j, fitted):
                several = isinstance(self.model, list | tuple)
                models[j] = fitted if several else fitted[0]
                advance(1)

            with _hosting.keeping(fits):
                task = _hosting.fit_models
                failed = _hosting.run(task, jobs, done, self.num_workers, self.executor)
                if failed is None:
                    return
                j, error = failed
                of = "all" if is_full else f"resample {j} of 0, ..., {total - 1} with"
                fit = f"a fit to {of} {np.count_nonzero(weights[j])} rows"
                got = f"{type(error).__name__}: {error}"
                raise FitError(f"expected {fit}, got {got}") from error
