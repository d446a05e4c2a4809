"""What jaxcp asks of scores, sets, learners, methods and bets: also of yours.

A class need not name the protocol that it follows: its methods are enough. Classes with
hyperparameters are a `jaxcp.pytree`. Optional methods have protocols of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import jax
import numpy as np
from jax import Array

# fmt: off
__all__ = [
    "AnyLearner", "AnySet", "ArrayLike", "Augments", "AxisName", "CheckedMartingale",
    "ChecksData", "EstimatesSets", "FitsOnHost", "HasBounds", "HasEnds", "HasEstimate",
    "HasLabels", "HasLogSize", "HasMarks", "HasNames", "HasPieces", "HasRounding",
    "HasShapes", "HasSize", "HasSoftSize", "HasSteps", "HasWidths", "Increasing",
    "LabelScore", "Learner", "LeavesOneOut", "Martingale", "MayBeEmpty",
    "MemorylessMartingale", "Number", "Online", "Predict", "PyTree", "Score",
    "Scorecaster", "Set", "Splitter",
]
# fmt: on
__dir__ = __all__.copy


class _HasArray(Protocol):
    """An array of numpy, pandas or torch."""

    def __array__(self) -> Any:
        """Returns it as a numpy array."""


Number = jax.typing.ArrayLike  # of Python or numpy, or an array of jax
ArrayLike = Number | _HasArray | Sequence[Any]  # all that verbs take for one
PyTree = Any  # any nest of arrays
Predict = Callable[[PyTree, PyTree], PyTree]  # (params, x) -> preds
AxisName = str | tuple[str, ...] | None  # of a mapped axis, as in `jax.lax.psum`


@runtime_checkable
class Learner(Protocol):
    """A model class: pure functions that fit and predict.

    Hyperparameters are fields of a pytree. Parameters that are the same in every fit
    may be wrapped in `learners.Shared`; they are then kept once. A learner may also be
    a `LeavesOneOut` or a `ChecksData`.

    Verbs try a learner by `learners.check` unless its class declares, as a plain class
    attribute, `holds_out = True`: fits leave out rows of weight 0; `symmetric = True`:
    fits do not depend on the order of the rows. A class that inherits declares it
    anew, and learners in the fields of a learner are asked too.

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
class Splitter(Protocol):
    """What parts rows into folds, such as the splitters of scikit-learn.

    See also:
      cv_plus
    """

    def split(self, x: Any, y: Any) -> Iterable[tuple[Any, Any]]:
        """Returns pairs (train, test) of row numbers or flags, one a fold."""


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


@runtime_checkable
class Score(Protocol):
    """A nonconformity score of one example: larger means stranger.

    A score may also say what `pred` is, by `takes` from `jaxcp.scores.inputs`, and
    offer `check(preds, y=None, mask=None)`, which raises ValueError for other batches
    that it cannot score: `calibrate` and every predictor check by both at the door.
    With a false `exact` its sets may hold more than {y : score <= q}: certificates say
    "at least".

    See also:
      scores.Custom, scores.check, pytree
    """

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns the score of `y`, shape () or, with components, (c,)."""

    def invert(self, pred: PyTree, q: Array) -> Set:
        """Returns {y : all(score(pred, y) <= q)}."""


@runtime_checkable
class LabelScore(Score, Protocol):
    """A score of labels 0, ..., k - 1, as `scores.Labelwise` is by `labels` alone.

    With a true `inclusive` its sets add the label that crosses the threshold.

    See also:
      scores.Labelwise, sets.LabelSet
    """

    def labels(self, pred: PyTree) -> Array:
        """Returns the score of every label, shape (k,)."""


@runtime_checkable
class Increasing(Score, Protocol):
    """A score that rises with the target: its sets are (-inf, upper].

    Where nothing is known of a target both the score and minus it are -inf.

    See also:
      predictive.calibrate_predictive, scores.TwoSided, scores.Residual
    """

    def negated(self) -> Score:
        """Returns minus this score, whose sets are [lower, inf)."""

    def units(self, pred: PyTree) -> Array | None:
        """Returns the units in y = mu + units s, for a score s, shape (), or None.

        None where targets are not linear in scores, NaN where nothing is known.
        """


@runtime_checkable
class HasSteps(Score, Protocol):
    """A score whose sets change at finitely many thresholds, which it knows.

    The risk of a loss that is not monotone is then known at all thresholds.

    See also:
      risk.calibrate_risk, scores.MultiLabel
    """

    def steps(self, pred: PyTree) -> Array:
        """Returns all thresholds q at which invert(pred, q) changes, of any shape.

        It holds at q itself what it holds just above.
        """


@runtime_checkable
class EstimatesSets(Score, Protocol):
    """A score that estimates volumes of its sets, which are known by membership.

    See also:
      volume, scores.Density, scores.Latent
    """

    def estimate_log_size(
        self, key: Array, pred: PyTree, q: Array, num_samples: int, *, sobol: bool
    ) -> tuple[Array, Array]:
        """Returns the log volume of {y : score(pred, y) <= q} and its error."""


@runtime_checkable
class Online(Protocol):
    """A method that keeps sets calibrated on a stream, one example at a time.

    The state is a pytree of arrays: save it, load it and go on. It keeps its shapes and
    types from step to step, for `online.run` is a scan. `online.Stream` makes `step`,
    with its checks, from `threshold` and `learn`.

    See also:
      online.Stream, online.run
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
    """A forecast of the next score's quantile from the scores so far, for `online.PID`.

    It is a pytree, and so is its state, which keeps its shapes and types. Scores have
    one component; a forecast may be any finite number.

    See also:
      online.PID
    """

    def init(self, scores: Array, alpha: ArrayLike) -> tuple[PyTree, Array]:
        """Returns the state after past scores and the first forecast, shape ()."""

    def step(self, state: PyTree, score: Array) -> tuple[PyTree, Array]:
        """Returns the state after one more score and the next forecast, shape ()."""


@runtime_checkable
class Martingale(Protocol):
    """A strategy that bets against uniform p-values, for `pvalues.watch`.

    It starts with a capital of 1, and each bet has a mean of at most 1 under a uniform
    p-value: then the capital reaches c with probability at most 1/c. It is a pytree,
    and its state keeps its shapes and types.

    See also:
      pvalues.watch, pvalues.SimpleJumper
    """

    def init(self) -> PyTree:
        """Returns the state before the first p-value."""

    def step(self, state: PyTree, p_value: Array) -> tuple[PyTree, Array]:
        """Returns the state after a p-value and the log of the capital, shape ()."""


@runtime_checkable
class CheckedMartingale(Martingale, Protocol):
    """A martingale that is asked whether its parameters are valid before it bets.

    See also:
      pvalues.watch, typing.Martingale
    """

    def check(self) -> None:
        """Raises ValueError for parameters that are known and not valid."""


@runtime_checkable
class MemorylessMartingale(Martingale, Protocol):
    """A martingale whose bets do not depend on earlier wins: `watch` sums their logs.

    `step` adds `log_bet(p_value)` to the state, and returns its `log_capital` too.

    See also:
      pvalues.watch, pvalues.PowerMartingale
    """

    def log_bet(self, p_value: Array) -> PyTree:
        """Returns what a p-value adds to the state, like the state."""

    def log_capital(self, state: PyTree) -> Array:
        """Returns the log of the capital in a state, shape ()."""


@runtime_checkable
class Set(Protocol):
    """A prediction set for one example: any object that knows its members.

    The next protocols say what else a set may offer. They look at its methods, not at
    its class. A method is for one example; leading axes are batches.

    See also:
      sets.Interval, sets.membership
    """

    def contains(self, y: Array) -> Array:
        """Returns whether `y` is in the set, a bool of shape ()."""


@runtime_checkable
class HasSize(Set, Protocol):
    """A set with a size in closed form: sizes, their means and strata by size.

    See also:
      metrics.sizes, metrics.mean_size
    """

    def size(self) -> Array:
        """Returns the width, count or volume of the set, shape ()."""


@runtime_checkable
class MayBeEmpty(Set, Protocol):
    """A set that knows whether it is empty; others are where their size is 0.

    See also:
      metrics.empty_rate
    """

    def is_empty(self) -> Array:
        """Returns whether nothing is in the set, a bool of shape ()."""


@runtime_checkable
class HasLabels(Set, Protocol):
    """A set of labels out of 0, ..., k - 1: metrics of classes and of single labels.

    See also:
      sets.LabelSet, metrics.class_coverage
    """

    def members(self) -> Array:
        """Returns which labels are in the set, bool of shape (k,)."""


@runtime_checkable
class HasMarks(Set, Protocol):
    """A set of several labels, or of pixels, whose target is a mask: losses of these.

    See also:
      sets.LabelMask, risk.false_negative_rate
    """

    def marks(self) -> Array:
        """Returns what is in the set, bool of the shape of a target."""


@runtime_checkable
class HasNames(Set, Protocol):
    """A set of labels that may have names: calibrations with `classes` give theirs.

    See also:
      sets.LabelSet, sets.LabelMask, calibrate
    """

    def named(self, classes: Iterable[Hashable] | None) -> Self:
        """Returns the set with these k names for its labels, or without for None."""

    def codes(self, y: Any) -> Any:
        """Returns labels by the names of the set as 0, ..., k - 1."""


@runtime_checkable
class HasShapes(Set, Protocol):
    """A set that checks its own arrays, and says what its targets look like.

    Metrics then refuse targets of another shape; a single output may come with an axis
    of its own or without.

    See also:
      metrics.coverage
    """

    def checked(self, num_sets: int) -> Self:
        """Returns a batch of so many sets; ValueError for arrays of other shapes."""

    def target_shape(self) -> tuple[int, ...]:
        """Returns the shape of one target."""


@runtime_checkable
class HasEnds(Set, Protocol):
    """A set of all targets between two ends, which is closed: an interval or a box.

    See also:
      sets.Interval, sets.Box
    """

    def ends(self) -> tuple[Array, Array]:
        """Returns (lower, upper): y is in the set iff all(lower <= y <= upper).

        Each of the shape of a target; leading axes are batches.
        """

    def with_ends(self, lower: Array, upper: Array) -> HasEnds:
        """Returns the set of this kind with other ends."""


@runtime_checkable
class HasPieces(Set, Protocol):
    """A set on the line that is a union of closed intervals, with gaps between them.

    Metrics of intervals refuse it: it has more ends than two.

    See also:
      sets.Intervals
    """

    def pieces(self) -> tuple[Array, Array]:
        """Returns (lower, upper): y is in the set iff any(lower <= y <= upper).

        Each of shape (k,), pieces that do not meet; leading axes are batches.
        """

    def hull(self) -> HasEnds:
        """Returns the smallest interval that holds all pieces."""


@runtime_checkable
class HasWidths(Set, Protocol):
    """A set that says how wide it is, so that metrics notice lost digits.

    See also:
      metrics.coverage
    """

    def widths(self) -> Array:
        """Returns how far the ends of each number are apart, shaped as a target."""


@runtime_checkable
class HasBounds(Set, Protocol):
    """A set that fits into a box: pictures show what lies in it.

    See also:
      plotting.plot_region
    """

    def bounds(self) -> tuple[Array, Array]:
        """Returns corners (lower, upper) of a box around it, each of shape (d,)."""


@runtime_checkable
class HasLogSize(Set, Protocol):
    """A set in R^d with a volume in closed form, for `jaxcp.volume`.

    See also:
      volume
    """

    def log_size(self) -> Array:
        """Returns the log of the volume, shape (); -inf for nothing."""


@runtime_checkable
class HasEstimate(Set, Protocol):
    """A set in R^d whose volume is estimated, for `jaxcp.volume` and training.

    See also:
      volume, training.soft_size
    """

    def estimate_log_size(
        self, key: Array, num_samples: int, *, sobol: bool
    ) -> tuple[Array, Array]:
        """Returns the log of the volume and its standard error, each of shape ().

        From `num_samples` points, scrambled Sobol points if `sobol`.
        """


@runtime_checkable
class HasSoftSize(Set, Protocol):
    """A set with a size that has a gradient where it is crossed too, for training.

    See also:
      training.soft_size
    """

    def soft_size(self, temperature: Array) -> Array:
        """Returns the size with lengths w as temperature log(1 + exp(w / temperature)).

        Shape (), in units of the target. For temperature -> 0 it is `size()`.
        """


@runtime_checkable
class HasRounding(Set, Protocol):
    """A set that may hold targets beyond its threshold by rounding.

    See also:
      sets.LevelSet.exact, sets.Ball.exact
    """

    def exact(self) -> Self:
        """Returns the set without them."""


# What a predictor returns: a `Set`, or a batch of them, of the kind that its score
# gives (Interval, LabelSet, ...). Which one no annotation of a predictor can say.
AnySet = Any
