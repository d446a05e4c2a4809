"""The contracts: what a score, a set and a prediction function must offer."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
from jax import Array


class _HasArray(Protocol):
    """An array of numpy, pandas or torch."""

    def __array__(self) -> Any:
        """Returns it as a numpy array."""


Number = jax.typing.ArrayLike  # of Python or numpy, or an array of jax
ArrayLike = Number | _HasArray | Sequence[Any]  # all that public verbs take for one
PyTree = Any  # any nest of arrays
Predict = Callable[[PyTree, PyTree], PyTree]  # (params, x) -> preds
AxisName = str | tuple[str, ...] | None  # of a mapped axis, as in `jax.lax.psum`


@runtime_checkable
class Learner(Protocol):
    """A model class: pure functions that fit and predict.

    Hyperparameters are fields of a pytree. Parameters that are the same in every fit
    may be wrapped in `learners.Shared`; they are then kept once. A learner may also be
    a `LeavesOneOut` or a `ChecksData`.
    """

    def fit(self, key: Array, x: PyTree, y: Array, weights: Array) -> PyTree:
        """Returns parameters; `weights` of shape (n,) are >= 0, 0 leaves a row out."""

    def predict(self, params: PyTree, x: PyTree) -> PyTree:
        """Returns predictions: leading axis m of x to leading axis m of preds."""


@runtime_checkable
class LeavesOneOut(Learner, Protocol):
    """A learner with a closed form of all n refits without one row."""

    def leave_one_out(self, x: PyTree, y: Array) -> PyTree:
        """Returns the parameters of the refits, stacked: the i-th without row i."""


@runtime_checkable
class ChecksData(Learner, Protocol):
    """A learner that says what it cannot be fitted with."""

    def check(self, x: PyTree, y: Array) -> None:
        """Raises ValueError for inputs, targets or hyperparameters that do not fit."""


@runtime_checkable
class Set(Protocol):
    """A prediction set for one example."""

    def contains(self, y: Array) -> Array:
        """Returns whether `y` is in the set, a bool of shape ()."""

    def size(self) -> Array:
        """Returns the width, count or volume of the set, shape ()."""


@runtime_checkable
class HasEnds(Set, Protocol):
    """A set of all targets between two ends, which is closed: an interval or a box."""

    def ends(self) -> tuple[Array, Array]:
        """Returns (lower, upper): y is in the set iff all(lower <= y <= upper).

        Each of the shape of a target; leading axes are batches.
        """

    def with_ends(self, lower: Array, upper: Array) -> "HasEnds":
        """Returns the set of this kind with other ends."""


# What a predictor returns: a `Set`, or a batch of them, of the kind that its score
# gives (Interval, LabelSet, ...). Which one no annotation of a predictor can say.
AnySet = Any


@runtime_checkable
class Score(Protocol):
    """A nonconformity score of one example: larger means stranger.

    A score may also offer `check(preds, y, mask)`, which raises ValueError for batches
    that it cannot score; `calibrate` and every predictor call it at the door.
    """

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns the score of `y`, shape () or, with components, (c,)."""

    def invert(self, pred: PyTree, q: Array) -> Set:
        """Returns {y : all(score(pred, y) <= q)}."""


@runtime_checkable
class LabelScore(Score, Protocol):
    """A score on labels 0, ..., k - 1."""

    def labels(self, pred: PyTree) -> Array:
        """Returns the score of every label, shape (k,)."""


@runtime_checkable
class Online(Protocol):
    """A method that keeps sets calibrated on a stream, one example at a time.

    The state is a pytree of arrays: save it, load it and go on.
    """

    def init(
        self, scores: Array, alpha: ArrayLike, *, mask: ArrayLike | None = None
    ) -> PyTree:
        """Returns the state before the stream, from past scores in order of time."""

    def step(
        self, state: PyTree, pred: PyTree, y: Array, alpha: ArrayLike
    ) -> tuple[PyTree, Set]:
        """Returns the next state and the set that was predicted before `y` came."""


@runtime_checkable
class Scorecaster(Protocol):
    """A forecast of the next score's quantile from the scores so far."""

    def init(self, scores: Array, alpha: ArrayLike) -> tuple[PyTree, Array]:
        """Returns the state after past scores and the first forecast, shape ()."""

    def step(self, state: PyTree, score: Array) -> tuple[PyTree, Array]:
        """Returns the state after one more score and the next forecast, shape ()."""
