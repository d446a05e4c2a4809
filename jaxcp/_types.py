"""The contracts: what a score, a set and a prediction function must offer."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jax import Array

PyTree = Any  # any nest of arrays
Predict = Callable[[PyTree, PyTree], PyTree]  # (params, x) -> preds


@runtime_checkable
class Set(Protocol):
    """A prediction set for one example."""

    def contains(self, y: Array) -> Array:
        """Returns whether `y` is in the set, a bool of shape ()."""

    def size(self) -> Array:
        """Returns the width, count or volume of the set, shape ()."""


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
