"""What fits: learners."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax import Array

from jaxcp.typing.values import PyTree


@runtime_checkable
class Learner(Protocol):
    """A model class: pure functions that fit and predict.

    Hyperparameters are fields of a pytree. Parameters that are the same in every fit
    may be wrapped in `learners.Shared`; they are then kept once. A learner may also be
    a `LeavesOneOut` or a `ChecksData`.

    See also:
      learners.FunctionLearner, learners.check, typing.LeavesOneOut, typing.ChecksData
    """

    def fit(self, key: Array, x: PyTree, y: Array, weights: Array) -> PyTree:
        """Returns parameters; `weights` of shape (n,) are >= 0, 0 leaves a row out."""

    def predict(self, params: PyTree, x: PyTree) -> PyTree:
        """Returns predictions: leading axis m of x to leading axis m of preds."""


@runtime_checkable
class FitsOnHost(Protocol):
    """A learner of models that are not of jax, as `learners.Estimator`.

    It takes inputs and targets as they were given and returns numpy arrays.

    See also:
      learners.Estimator
    """

    def num_rows(self, x: Any) -> int:
        """Returns the number of rows of inputs."""

    def fit_all(self, key: Array, x: Any, y: Any, weights: np.ndarray) -> Any:
        """Returns a fit for each row of weights, (b, n), with the `models`."""

    def predict_all(self, fits: Any, x: Any) -> PyTree:
        """Returns what every fit predicts at inputs, leading axes (b, m)."""

    def predict_held_out(self, fits: Any, x: Any, held_out: np.ndarray) -> PyTree:
        """Returns what fits predict for rows held out, (b, n), leading axes (b, n)."""

    def predict_full(self, fits: Any, x: Any) -> PyTree:
        """Returns what a fit on all rows predicts at inputs, leading axis m."""


AnyLearner = Learner | FitsOnHost  # what the cross-conformal verbs take


@runtime_checkable
class LeavesOneOut(Learner, Protocol):
    """A learner with a closed form of all n refits without one row.

    See also:
      jackknife_plus, learners.Ridge
    """

    def leave_one_out(self, x: PyTree, y: Array) -> PyTree:
        """Returns the parameters of the refits, stacked: the i-th without row i."""


@runtime_checkable
class Augments(Learner, Protocol):
    """A learner with a closed form of the fits on n rows and one test point.

    See also:
      full_conformal, learners.Augmented, learners.Ridge
    """

    def prepare(self, x: PyTree, y: Array, mask: Array | None) -> PyTree:
        """Returns what fits with any test point share; rows off the mask do not count.

        The mask has shape (n,); None stands for all rows.
        """

    def augmented(self, prepared: PyTree, x_new: PyTree) -> PyTree:
        """Returns a `learners.Augmented` for test points, leading axis m."""


@runtime_checkable
class ChecksData(Learner, Protocol):
    """A learner that checks its data and hyperparameters.

    See also:
      typing.Learner, learners.check
    """

    def check(self, x: PyTree, y: Array) -> None:
        """Raises ValueError for inputs, targets or hyperparameters that do not fit."""
