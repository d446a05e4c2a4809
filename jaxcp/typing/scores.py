"""What scores are, methods for streams, and bets."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jax import Array

from jaxcp.typing.sets import Set
from jaxcp.typing.values import ArrayLike, PyTree


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
