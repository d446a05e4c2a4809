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

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks, _geometry
from jaxcp._arrays import is_concrete
from jaxcp.typing import LabelScore, PyTree, Score


class Input(NamedTuple):
    """What a score takes for the prediction of one example.

    Args:
      text: What `pred` is, in the words of a docstring.
      check: `(preds, y, mask)`, raises ValueError for batches of anything else. The
        targets y are None where sets are asked for.
      of_draws: Whether the first axis of an array counts draws and may change after
        calibration; a flag for each of several parts, whose first may be many arrays.
      refuses_nan: Whether `check` itself raises ValueError for NaN in `preds`.
      within: Where the numbers of each part lie: "" anywhere, "positive", "logits", a
        "share" in [0, 1], "shares" that sum to 1 along the last axis, or "boxes".
      seen: `(preds, y)`, returns the targets with numbers for NaN that are allowed.
    """

    text: str
    check: Callable[[PyTree, Array | None, Array | None], None]
    of_draws: tuple[bool, ...] = (False,)
    refuses_nan: bool = False
    within: tuple[str, ...] = ("",)
    seen: Callable[[PyTree, Any], Any] = lambda preds, y: y

    def free_axes(self, num_arrays: int) -> tuple[bool, ...]:
        """Returns for each array whether its first axis may change."""
        first, *others = self.of_draws
        return (first,) * (num_arrays - len(others)) + tuple(others)


_OF_PAIRS = (
    "; CQR takes (lower, upper), Normalized (mu, sigma), and preds[:, 0] is one column"
)
_OF_SEVERAL = "; of pairs (n, 2) numpy.stack([p[:, 1] for p in preds], 1) is one"
_OF_ONE_HOT = "; y.argmax(axis=1) are those of one-hot rows"
_ANYTHING = Input("any arrays", lambda preds, y, mask: None)


def of(score: Score) -> Input:
    """Returns what a score takes: its `takes`, but for what its own `check` refuses."""
    takes, own = getattr(score, "takes", _ANYTHING), getattr(score, "check", None)
    if own is None:
        return takes

    def check(*rows):
        takes.check(*rows)
        own(*rows)

    return takes._replace(check=check)


def check(
    score: Score,
    preds: PyTree,
    y: Array | None = None,
    mask: Array | None = None,
    missing: str = "",
) -> None:
    """Raises ValueError for NaN, and for what the score does not take.

    `missing` is the cure of targets that are NaN.
    """
    takes = of(score)
    if not takes.refuses_nan:
        _checks.check_not_nan("preds", preds, mask)
    _checks.check_not_nan("y", takes.seen(preds, y), mask, missing)
    takes.check(preds, y, mask)


def check_score(score: Score) -> None:
    """Raises ValueError for anything but a score."""
    _checks.check_given(score=score)
    instead = "scores.Custom(evaluate, inverse)"
    cure = f"; wrap a function as {instead}"
    _checks.check_kind("a score with an inverse", score, Score, cure)
    _checks.check_pytree("score", score, instead)


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
    return getattr(score, "labels", None) is not None


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
        _check_real(preds, y)
        _check_one(preds, _OF_PAIRS)
        several = y is not None and y.ndim == 1 and preds.shape[1:] not in ((), (1,))
        _expect(not several, "preds of shape (n,) like y", preds, _OF_PAIRS)
        if positive:
            _checks.check_range(lambda mu: mu > 0, "preds > 0", preds, mask)

    within = ("positive" if positive else "",)
    return Input("mu, shape () or (d,)", check, within=within)


def pair(first: str, second: str, *, positive: str | None = None) -> Input:
    """Two numbers for each output; one of them may have to be positive."""
    names = f"({first}, {second})"

    def check(preds, y, mask):
        halves = dict(zip((first, second), _halves(names, preds, y), strict=True))
        if positive is not None and y is not None:
            valid = f"{positive} > 0"
            _checks.check_range(lambda v: v > 0, valid, halves[positive], mask)

    return Input(f"{names}, each of shape () or (d,)", check)


def quantiles(count: int) -> Input:
    """Predicted quantiles of the target, one for each of several levels."""

    def check(preds, y, mask):
        _check_real(preds, y)
        _check_one(preds)
        expected = f"preds of shape (n, {count}), one column a level"
        _expect(preds.shape[1:] == (count,), expected, preds)
        if y is not None:
            _checks.check_vectors(y=y)

    return Input("quantiles, shape (k,)", check)


def band() -> Input:
    """A lower and an upper end for each output, in order in most rows."""

    def check(preds, y, mask):
        lower, upper = _halves("(lower, upper)", preds, y)
        _check_order(lower, upper, y, mask)

    return pair("lower", "upper")._replace(check=check)


def field() -> Input:
    """A center of any shape, and scales that broadcast against it in each row."""

    def check(preds, y, mask):
        _check_real(preds, y)
        center, scale = _parts("a tuple (center, scale)", preds, 2)
        # Of one row: a scale (n, 1, t) is not one of (n, t).
        ones = zip(scale.shape[:0:-1], (shape := center.shape)[:0:-1], strict=False)
        fits = scale.ndim <= center.ndim and all(a in (1, b) for a, b in ones)
        _expect(fits, f"a scale whose rows broadcast to {shape[1:]}", scale)
        if y is not None:
            _expect(y.shape == shape, f"y of shape {shape} like center", y)
            cure = "; np.where(scale > 0, scale, np.inf) leaves points out"
            _checks.check_range(lambda s: s > 0, "scale > 0", scale, mask, cure)

    def seen(preds, y):
        if y is None or not is_concrete(preds, y) or not np.isnan(y).any():
            return y
        check(preds, None, None)
        out = np.isinf(np.asarray(preds[1]))
        out = out.reshape(len(y), *(1,) * (y.ndim - out.ndim), *out.shape[1:])
        return np.where(out, 0, y)

    return Input("(center, scale), any shape", check, seen=seen)


def location_scale() -> Input:
    """A mean, and standard deviations or a triangular factor of the covariance."""

    def check(preds, y, mask):
        _check_real(preds, y)
        _, scale = _parts("a tuple (mu, scale)", preds, 2)
        off: Any = False  # the diagonal, where there is one
        if scale.ndim == 3:
            expected = "a lower triangular scale (e.g. from a Cholesky decomposition)"
            _checks.check_values(lambda s: np.triu(s, 1) == 0, expected, scale, mask)
            off = np.eye(*scale.shape[1:]) == 0
        if y is not None:
            _checks.check_values(lambda s: (s > 0) | off, "scales > 0", scale, mask)

    return Input("(mu, scale)", check)


def columns() -> Input:
    """A number for each label."""
    return Input("p, shape (k,)", _check_columns)


def logits() -> Input:
    """A logit for each label, below +inf."""

    def check(preds, y, mask):
        _check_columns(preds, y, mask)
        _checks.check_range(lambda z: z < math.inf, "logits below +inf", preds, mask)

    return Input("z, shape (k,)", check, within=("logits",))


def probabilities(*, randomized: bool = False) -> Input:
    """A probability for each label; for a randomized score a uniform beside them."""

    def check(p, y, mask):
        if _are_probabilities(p, mask):
            return _check_columns(p, y, mask)
        _checks.check_not_nan("preds", p, mask)
        _check_columns(p, y, mask)
        expected = "probabilities >= 0 (of logits: jax.nn.softmax)"
        _checks.check_values(lambda v: v >= 0, expected, p, mask)
        if is_concrete(p):
            sums, rounding = np.asarray(p).sum(axis=1, dtype=float), _rounding(p)
            expected = "probabilities that sum to 1 in each row"
            _checks.check_values(lambda s: abs(s - 1) <= rounding, expected, sums, mask)

    alone = Input("p, shape (k,)", check, refuses_nan=True, within=("shares",))
    if not randomized:
        return alone
    expected = "a pair (probabilities (n, k), uniforms (n,)) for a randomized score"
    return _together("(p, u)", expected, alone, uniform("uniforms"))


def on_line(kind: Input) -> Input:
    """Arrays of another kind, such as `columns`, with a number as the target."""

    def check(preds, y, mask):
        if y is not None:
            _checks.check_vectors(y=y)
        kind.check(preds, None, mask)

    return kind._replace(check=check)


def multilabel(*, bounded: bool = True) -> Input:
    """A probability for each of several labels or pixels, and a mask as the target.

    Not bounded, heat of any range in place of probabilities.
    """

    def check(p, y, mask):
        _check_one(p, _OF_SEVERAL)
        if bounded:
            expected = "probabilities in [0, 1] (of logits: jax.nn.sigmoid)"
            cure = "; heat of any range: scores.MultiLabel(bounded=False)"
            _checks.check_range(lambda v: (v >= 0) & (v <= 1), expected, p, mask, cure)
        else:
            _check_real(p, None)
        if y is not None:
            expected = f"y as a mask of shape {p.shape} like preds"
            cure = "; of one label a row, or a pixel: jax.nn.one_hot(y, k, axis=1) > 0"
            _expect(y.shape == p.shape, expected, y, cure)
            check_flags(y, mask)

    text, within = ("p", "share") if bounded else ("heat", "")
    return Input(f"{text}, any shape", check, within=(within,))


def claims() -> Input:
    """A confidence for each claim, a mask of the claims there are, a mask as target."""

    def check(preds, y, mask):
        expected = "preds as a tuple (confidences, mask), both of shape (n, m)"
        fits = isinstance(preds, tuple | list) and len(preds) == 2
        fits = fits and jnp.ndim(preds[0]) == 2 and preds[0].shape == preds[1].shape
        _expect(fits, expected, preds)
        expected = "the mask of preds as flags or 0 and 1, true where there is a claim"
        _checks.check_flags(expected, preds[1], mask)
        if is_concrete(preds):  # padding may be NaN
            found = np.asarray(preds[0])
            found = np.where(preds[1], found, np.zeros_like(found))
            _checks.check_not_nan("confidences", found, mask)
        if y is not None:
            expected = f"y as a mask of shape {preds[0].shape} like the confidences"
            _expect(y.shape == preds[0].shape, expected, y)
            check_flags(y, mask)

    text, draws = "(confidences, mask), each of shape (m,)", (True, True)
    return Input(text, check, draws, refuses_nan=True, within=("", "share"))


def uniform(name: str = "u") -> Input:
    """A number in [0, 1]."""

    def check(u, y, mask):
        _checks.check_vectors(**{name: u})
        _checks.check_uniforms(name, u, mask)

    return Input(f"{name}, shape ()", check, within=("share",))


def quantile(*, positive: bool = False) -> Input:
    """The predicted quantile of a score: a number, or one for each component."""

    def check(tau, y, mask):
        _check_one(tau)
        if positive and y is not None:
            _checks.check_range(lambda v: v > 0, "tau > 0", tau, mask)

    return Input("tau, shape () or (c,)", check)


def draws(*, log_densities: bool = False) -> Input:
    """Draws of a model, shaped like targets, perhaps with a log density each."""
    alone = Input("draws from the predicted law, shape (l, d)", _check_draws, (True,))
    if not log_densities:
        return alone
    return parts(draws=alone, log_densities=_ANYTHING._replace(of_draws=(True,)))


def boxes() -> Input:
    """A box in an image; the target is one as well."""

    def check(preds, y, mask):
        for name, found in {"preds": preds, "y": y}.items():
            if found is not None:
                shape = jnp.shape(found)
                _checks.check_shape(name, (*shape[:1], 4), shape)
                _geometry.check_boxes(name, found, mask)

    return Input("(x_min, y_min, x_max, y_max), shape (4,)", check, within=("boxes",))


def parts(**kinds: Input) -> Input:
    """A tuple with a part of each kind; all but the first are single arrays."""
    names = f"({', '.join(name.replace('_', ' ') for name in kinds)})"
    return _together(names, f"a tuple {names}", *kinds.values())


def _together(text, expected, *kinds):
    def check(preds, y, mask):
        split = _parts(expected, preds, len(kinds))
        for kind, part in zip(kinds, split, strict=True):
            kind.check(part, y, mask)

    of_draws = sum((kind.of_draws for kind in kinds), ())
    within = sum((kind.within for kind in kinds), ())
    return Input(text, check, of_draws, within=within)


def check_flags(y: Array, mask: Array | None = None) -> None:
    """Raises ValueError unless known targets are flags, or 0 and 1."""
    expected = "y as flags or 0 and 1, true where a label holds"
    cure = "; of 0 and 255, or -1 and 1: y > 0; of labels: jax.nn.one_hot(y, k, axis=1)"
    _checks.check_flags(expected, y, mask, cure)


def _expect(fits, expected, got, cure=""):
    """Raises ValueError unless arrays fit: what was expected, and the shapes got."""
    if not fits:
        shapes = jax.tree.map(jnp.shape, got)
        raise ValueError(f"expected {expected}, got {shapes}{cure}")


def _parts(expected, preds, length):
    """Returns `preds` if it is a tuple or list of `length` parts."""
    fits = isinstance(preds, tuple | list) and len(preds) == length
    uniforms = "; jaxcp.uniforms(key, n) draws them" * ("uniforms" in expected)
    _expect(fits, f"preds as {expected}", preds, uniforms)
    return tuple(preds)


def _halves(names, preds, y):
    """Returns the two halves of `preds`: a pair of arrays or an array (n, 2)."""
    _check_real(preds, y)
    if not (isinstance(preds, Array) and preds.shape[1:] == (2,)):
        return _parts(f"a tuple {names}", preds, 2)
    if y is not None and y.shape == preds.shape:
        raise ValueError(
            f"expected preds as a pair {names} of arrays {y.shape} like y, got one "
            "array; Absolute, Signed and Gamma take predictions of the targets"
        )
    columns = np.asarray(preds) if is_concrete(preds) else preds  # jax would compile
    return columns[:, 0], columns[:, 1]


def _check_one(preds: PyTree, cure: str = "") -> None:
    _expect(isinstance(preds, Array), "preds as one array", preds, cure)


def _check_real(preds, y):
    """Raises ValueError unless predictions and targets are real numbers, if any."""
    for name, tree in {"preds": preds, "y": y}.items():
        for leaf in jax.tree.leaves(tree):
            _expect(0 not in leaf.shape[1:], f"{name} of at least one output", leaf)
            if leaf.dtype == bool or jnp.issubdtype(leaf.dtype, jnp.complexfloating):
                raise ValueError(f"expected {name} as real numbers, got {leaf.dtype}")


def _check_order(lower, upper, y, mask):
    """Raises ValueError unless lower <= upper in most concrete rows."""
    if not is_concrete(lower, upper, mask) or lower.shape != upper.shape:
        return
    rows = slice(None) if mask is None else np.asarray(mask)
    crossed = (np.asarray(lower) > np.asarray(upper))[rows]
    if not _are_most(crossed):
        return
    # Copies of one row are one.
    known = [v for v in (lower, upper, y) if v is not None and is_concrete(v)]
    columns = [np.asarray(v, float)[rows].reshape(len(crossed), -1) for v in known]
    distinct, d = np.unique(np.hstack(columns), axis=0), columns[0].shape[1]
    crossed = distinct[:, :d] > distinct[:, d : 2 * d]
    if _are_most(crossed):
        raise ValueError(
            "expected preds as (lower, upper), lower <= upper in most rows, got lower "
            f"> upper in {crossed.sum()} of {crossed.size}; swap the two"
        )


def _are_most(crossed):
    """Returns whether more bands are crossed than by chance, as those of width 0."""
    return crossed.sum() > crossed.size / 2 + crossed.size**0.5


def _are_probabilities(p, mask):
    """Returns whether rows are surely >= 0 and sum to 1, read where they lie."""
    if not (isinstance(p, Array) and p.ndim == 2 and is_concrete(p, mask)):
        return False
    wide = np.promote_types(p.dtype, np.float32)
    # Of k numbers in four lanes or more: (k / 4) (eps / 2) is how far a sum is off.
    slack = _rounding(p) - p.shape[1] * jnp.finfo(wide).eps / 8
    if _checks.are_far(p):
        sums = np.asarray(jnp.sum(p, axis=1, dtype=wide))
    else:  # one thread, faster than np.sum
        sums = np.einsum("ij->i", np.asarray(p), dtype=wide)
    near = abs(sums - 1) <= slack
    near = near if mask is None else near | ~np.asarray(mask, bool)
    return near.all() and _checks.are_between(lambda v: v >= 0, p, ("min",))


def _rounding(p):
    """Returns how far the sum of probabilities may be from 1."""
    dtype = p.dtype if jnp.issubdtype(p.dtype, jnp.floating) else float
    return max(1e-3, 8 * float(jnp.finfo(dtype).eps))


def _check_columns(preds, y, mask):
    """Raises ValueError unless labels, if given, are in range of the columns."""
    fits = isinstance(preds, Array) and preds.ndim == 2 and preds.shape[1] > 0
    expected = "preds of shape (n, k), one column a label"
    _expect(fits, expected, preds, "; of the pixels of images: scores.MultiLabel")
    if y is not None:
        is_one_hot = y.ndim == 2 and y.shape == preds.shape
        _expect(not is_one_hot, "labels y of shape (n,)", y, _OF_ONE_HOT)
        _checks.check_vectors(y=y)
        cure = "; calibrate(..., classes=model.classes_) takes labels of any kind"
        _checks.check_labels("y", y, preds.shape[1], mask, cure)


def _check_draws(draws, y, mask):
    """Raises ValueError unless there are draws for each row, shaped like targets."""
    shape = jnp.shape(draws) if isinstance(draws, Array) else ()
    fits = len(shape) > 1 and shape[1] > 0
    if y is not None and fits:  # a single output may have an axis or not
        single = math.prod(shape[2:]) == 1 == math.prod(y.shape[1:])
        fits = shape[2:] == y.shape[1:] or single
    like = ["d"] if y is None else [str(v) for v in y.shape[1:]]
    names = ", ".join(["n", "l", *like])
    _expect(fits, f"draws of shape ({names}), l >= 1", draws)
