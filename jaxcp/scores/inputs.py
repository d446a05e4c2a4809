"""What a score takes for a prediction: declared by its class, and asked here alone.

A class says `takes = inputs.numbers()`, or has a property `takes` if it depends on its
fields. Every public function checks its predictions by it.

Example:
  >>> from jaxcp.scores import CQR, inputs
  >>> inputs.of(CQR()).text
  '(lower, upper), each of shape () or (d,)'
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

from jax import Array

from jaxcp import _checks
from jaxcp.scores import _preds
from jaxcp.typing import LabelScore, PyTree, Score


class Input(NamedTuple):
    """What a score takes for the prediction of one example.

    Args:
      text: What `pred` is, in the words of a docstring.
      check: `(preds, y, mask)`, raises ValueError for batches of anything else. The
        targets y are None where sets are asked for.
      of_draws: Whether the first axis of an array counts draws and may change after
        calibration; a flag for each of several parts, whose first may be many arrays.
    """

    text: str
    check: Callable[[PyTree, Array | None, Array | None], None]
    of_draws: tuple[bool, ...] = (False,)

    def free_axes(self, num_arrays: int) -> tuple[bool, ...]:
        """Returns for each array whether its first axis may change."""
        first, *others = self.of_draws
        return (first,) * (num_arrays - len(others)) + tuple(others)


def of(score: Score) -> Input:
    """Returns what a score takes: its `takes`, but for what its own `check` refuses."""
    takes, own = getattr(score, "takes", _ANYTHING), getattr(score, "check", None)
    if not isinstance(takes, Input):
        raise ValueError(f"expected takes from jaxcp.scores.inputs, got {takes!r}")
    if own is None:
        return takes

    def check(*rows):
        takes.check(*rows)
        own(*rows)

    return takes._replace(check=check)


def check(
    score: Score, preds: PyTree, y: Array | None = None, mask: Array | None = None
) -> None:
    """Raises ValueError for NaN, and for what the score does not take."""
    _checks.check_not_nan("preds", preds, mask)
    _checks.check_not_nan("y", y, mask)
    of(score).check(preds, y, mask)


def check_score(score: Score) -> None:
    """Raises ValueError for anything but a score."""
    _checks.check_given(score=score)
    if not hasattr(score, "invert"):
        raise ValueError(
            f"expected a score with an inverse, got {type(score).__name__}; wrap a "
            "function as scores.Custom(evaluate, inverse)"
        )
    _checks.check_pytree("score", score, "scores.Custom(evaluate, inverse)")


def check_own_score(holder: Any, what: str) -> None:
    """Raises ValueError unless a rule or method of the user has a score."""
    if not hasattr(holder, "score"):
        kind = type(holder).__name__
        raise ValueError(
            f"expected {what} with a score, got {kind} without; write score: "
            "jaxcp.typing.Score among the fields of its class"
        )
    check_score(holder.score)


def has_labels(score: Score) -> TypeGuard[LabelScore]:
    """Returns whether targets are labels 0, ..., k - 1, each with a score."""
    return hasattr(score, "labels")


def is_inclusive(score: Score) -> bool:
    """Returns whether sets add the label that crosses the threshold."""
    return getattr(score, "inclusive", False)


def is_exact(score: Score) -> bool:
    """Returns whether sets hold no more than {y : score <= q}, but for rounding."""
    return getattr(score, "exact", True) and not is_inclusive(score)


def is_randomized(score: Score) -> bool:
    """Returns whether a prediction carries a uniform for each row."""
    return getattr(score, "randomized", False)


def rounds_up(score: Score) -> bool:
    """Returns whether the score itself gives thresholds room for rounding."""
    return getattr(score, "rounds_up", False)


def anything() -> Input:
    """Any arrays: what a score takes that declares nothing."""
    return _ANYTHING


def numbers(*, positive: bool = False) -> Input:
    """One number for each output."""

    def check(preds, y, mask):
        _preds.check_numbers(preds, y)
        if positive:
            _checks.check_values(lambda mu: mu > 0, "preds > 0", preds, mask)

    return Input("mu, shape () or (d,)", check)


def pair(first: str, second: str, *, positive: str | None = None) -> Input:
    """Two numbers for each output; one of them may have to be positive."""
    names = f"({first}, {second})"
    if positive not in (None, first, second):
        raise ValueError(f"expected positive as one of {names}, got {positive!r}")

    def check(preds, y, mask):
        halves = dict(zip((first, second), _preds.halves(names, preds, y), strict=True))
        if positive is not None and y is not None:
            valid = f"{positive} > 0"
            _checks.check_values(lambda v: v > 0, valid, halves[positive], mask)

    return Input(f"{names}, each of shape () or (d,)", check)


def band() -> Input:
    """A lower and an upper end for each output, in order in most rows."""

    def check(preds, y, mask):
        _preds.check_order(*_preds.halves("(lower, upper)", preds, y), y, mask)

    return pair("lower", "upper")._replace(check=check)


def location_scale() -> Input:
    """A mean, and standard deviations or a triangular factor of the covariance."""
    return Input("(mu, scale)", _preds.check_location_scale)


def columns() -> Input:
    """A number for each label."""
    return Input("p, shape (k,)", _preds.check_columns)


def logits() -> Input:
    """A logit for each label, below +inf."""

    def check(preds, y, mask):
        _preds.check_columns(preds, y, mask)
        _checks.check_values(lambda z: z < math.inf, "logits below +inf", preds, mask)

    return Input("z, shape (k,)", check)


def probabilities(*, randomized: bool = False) -> Input:
    """A probability for each label; for a randomized score a uniform beside them."""
    alone = Input("p, shape (k,)", _preds.check_probabilities)
    if not randomized:
        return alone
    expected = "a pair (probabilities (n, k), uniforms (n,)) for a randomized score"
    return _together("(p, u)", expected, alone, uniform("uniforms"))


def multilabel() -> Input:
    """A probability for each of several labels or pixels, and a mask as the target."""
    return Input("p, any shape", _preds.check_multilabel)


def uniform(name: str = "u") -> Input:
    """A number in [0, 1]."""

    def check(u, y, mask):
        _checks.check_vectors(**{name: u})
        _checks.check_uniforms(name, u, mask)

    return Input(f"{name}, shape ()", check)


def draws(*, log_densities: bool = False) -> Input:
    """Draws of a model, shaped like targets, perhaps with a log density each."""
    if log_densities:
        return Input("(draws, log densities)", _preds.check_densities, (True,))
    text = "draws from the predicted law, shape (l, d)"
    return Input(text, _preds.check_draws, (True,))


def boxes() -> Input:
    """A box in an image; the target is one as well."""
    return Input("(x_min, y_min, x_max, y_max), shape (4,)", _preds.check_boxes)


def parts(**kinds: Input) -> Input:
    """A tuple with a part of each kind; all but the first are single arrays."""
    names = f"({', '.join(name.replace('_', ' ') for name in kinds)})"
    return _together(names, f"a tuple {names}", *kinds.values())


def _together(text, expected, *kinds):
    def check(preds, y, mask):
        split = _preds.split(expected, preds, len(kinds))
        for kind, part in zip(kinds, split, strict=True):
            kind.check(part, y, mask)

    return Input(text, check, sum((kind.of_draws for kind in kinds), ()))


_ANYTHING = Input("any arrays", lambda preds, y, mask: None)
