"""Calibrated probabilities: isotonic regression and Venn-Abers predictors.

Isotonic regression is the slope of the greatest convex curve below the points (mass,
sum of targets) of the first rows. Venn-Abers adds one more row, with label 0 and with
label 1, and reads the slope at it.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.ops import segment_min

from jaxcp import _arrays, _batching, _checks
from jaxcp._numbers import as_float, at_least_single
from jaxcp.quantiles._keys import to_keys
from jaxcp.typing import ArrayLike

_Loss = Literal["log", "brier"]
_is_weight = lambda v: (v > 0) & np.isfinite(v)  # noqa: E731
_MOST_ROWS = 2000  # with levels of their own: time grows with the square


@_checks.by_labels
def isotonic(x: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None) -> Array:
    """Returns the isotonic regression of y on x: the closest fit that never falls.

    The minimizer f of sum_i w_i (y_i - f(x_i))^2 over functions f that do not fall. A
    segment of rows in the order of x is split at the lowest point below its chord, in
    the curve (sum of w, sum of w y), until there is none; f is the slope of the chords.

    Args:
      x: Where rows lie, e.g. scores, shape (n,). Rows with equal x have one fit. For a
        fit that never rises give -x.
      y: Targets, shape (n,), e.g. labels 0 and 1.
      weights: Weights >= 0, shape (n,). Defaults to ones.

    Returns:
      Fit of each row, shape (n,), in units and dtype of y (a float). NaN where no row
      has weight. The gradient averages over the rows of a block.

    Raises:
      ValueError: if lengths differ, a concrete value is NaN, or a concrete weight is
        negative or infinite.

    Guarantee:
      None for the fit at new rows: `venn_abers` has one.

    Cost:
      One sort, and O(n) time for each split of all segments at once, of which about
      log2 of the number of blocks are needed.

    References:
      Barlow, Bartholomew, Bremner, Brunk, Statistical Inference under Order
      Restrictions, Wiley, 1972.

    See also:
      predictive.venn_abers, metrics.expected_calibration_error

    Example:
      >>> isotonic(jnp.arange(4.0), jnp.array([1.0, 3.0, 2.0, 4.0]))
      Array([1. , 2.5, 2.5, 4. ], dtype=float32)
    """
    x, y, weights = _checks.rows(
        x=_checks.scores(x), y=_checks.vector(y), weights=_checks.weights(weights)
    )
    _checks.check_values(np.isfinite, "finite y", y)
    return _isotonic(x, as_float(y), weights)


@jax.jit
def _isotonic(x, y, weights):
    keys, wide = to_keys(x), at_least_single(y)
    weights = jnp.ones_like(wide) if weights is None else weights.astype(wide.dtype)
    last = jnp.searchsorted(lax.sort(keys), keys, side="right") - 1  # row of a level
    mass = _arrays.sums_of_groups(weights, last, x.size)
    total = _arrays.sums_of_groups(weights * wide, last, x.size)
    left, value = lax.stop_gradient(_segments(mass, total))
    rest = total - mass * value
    gap = _arrays.sums_of_groups(rest, left, x.size)[left]
    width = _arrays.sums_of_groups(mass, left, x.size)[left]
    fit = value + gap / jnp.where(width > 0, width, 1)
    fit = lax.associative_scan(jnp.maximum, fit)  # values may fall by rounding
    # Means lie between the least and the largest target; the slope is that of the fit.
    least = jnp.min(jnp.where(weights > 0, wide, jnp.inf), initial=jnp.inf)
    largest = jnp.max(jnp.where(weights > 0, wide, -jnp.inf), initial=-jnp.inf)
    fixed = lax.stop_gradient(fit)
    fit = lax.stop_gradient(jnp.clip(fit, least, largest)) + (fit - fixed)
    return fit[last].astype(y.dtype)


def _points(values):
    """Returns 0 and the sums of the first rows; twice as fast as jnp.cumsum on CPUs."""
    return jnp.append(0, lax.associative_scan(jnp.add, values))


def _segments(mass, total):
    """Returns where the segment of each row starts, and its mean.

    Segments go from point `left` to `right`; row i lies between points i and i + 1.
    Sums are of what the mean of the segment leaves, so that rounding is relative to
    that, not to all rows before.
    """
    n, row, before = mass.size, jnp.arange(mass.size), _points(mass)
    starts = jnp.append(False, mass[:-1] > 0)  # of segments: after a level with mass

    def split(state):
        left, right, value, _ = state
        rest = _points(total - mass * value)
        rise, width = rest[right] - rest[left], before[right] - before[left]
        slope = rise / jnp.where(width > 0, width, 1)
        at, chord = rest[:-1] - rest[left], slope * (before[:-1] - before[left])
        rounding = 4 * jnp.finfo(mass.dtype).eps * (jnp.abs(at) + jnp.abs(chord))
        below = at - chord
        is_below = starts & (row > left) & (below < -rounding)
        least = segment_min(below, jnp.where(is_below, left, n), n)  # n is dropped
        lowest = is_below & (below == least[left])
        place = segment_min(row, jnp.where(lowest, left, n), n)[left]
        left = jnp.where(row >= place, place, left)
        right = jnp.where(row < place, jnp.minimum(right, place), right)
        return left, right, value + slope, jnp.any(lowest)

    value = jnp.full_like(mass, jnp.sum(total) / jnp.sum(mass))
    state = jnp.zeros_like(row), jnp.full_like(row, n), value, jnp.array(True)
    left, _, value, _ = lax.while_loop(lambda state: state[-1], split, state)
    return left, value


@_checks.by_labels
def venn_abers(
    scores: ArrayLike,
    labels: ArrayLike,
    test_scores: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    test_weight: ArrayLike = 1.0,
    num_levels: int | None = None,
) -> tuple[Array, Array]:
    """Returns two probabilities of label 1 for each score; one of them is calibrated.

    p_t is the isotonic regression of labels on scores, of the calibration rows and the
    test row with label t, at its score, for t = 0 and 1. With sums W_a, S_a of weights
    and of labels up to place a in the order of scores, it is the largest over a < j of
    the smallest over b >= j of (S_b - S_a + t w) / (W_b - W_a + w), j the test row's
    place and w its weight. The wider the pair, the less the rows say.

    Args:
      scores: Scores of calibration rows, shape (n,): any number that tends to rise with
        the probability of label 1, as a model's probability, logit or margin.
      labels: Labels 0 and 1, int or bool, shape (n,).
      test_scores: Scores of test rows, shape (m,).
      weights: Weights >= 0 of calibration rows, shape (n,); a mask is 0 and 1. Defaults
        to ones.
      test_weight: Weight > 0 of a test row, shape ().
      num_levels: Number of cells of equal width on [0, 1], in which scores count as
        equal: those of calibration and of test rows, so that the guarantee stays.
        Needed above 2000 rows; scores are probabilities then, traced ones beyond [0, 1]
        are in the first and last cell. 1000 cells cost little.

    Returns:
      (p0, p1), p0 <= p1, each of shape (m,), in the dtype of `scores` (a float). 0 and
      1 without calibration rows. `merge_pairs` makes one probability of both.

    Raises:
      ValueError: if lengths differ, a label is neither 0 nor 1, a concrete score is
        NaN, a weight is negative or infinite, there are more than 2000 rows and no
        `num_levels`, or with it a score outside [0, 1].

    Guarantee:
      With p the one of p0 and p1 that belongs to the label Y of the test row,
      E[Y | p] = p exactly, for unit weights. None for p0 or p1 alone, nor for what
      `merge_pairs` makes of them.

    Assumption:
      Calibration rows and the test row are exchangeable, and the score does not depend
      on their labels: the model was fitted to other rows.

    Cost:
      O(n^2) time for all test rows together and O(n) memory, or O(n + num_levels^2).

    References:
      Vovk, Petej, Fedorova, Large-Scale Probabilistic Predictors with and without
      Guarantees of Validity, NeurIPS, 2015.

    See also:
      predictive.merge_pairs, predictive.cross_venn_abers,
      predictive.venn_abers_classes, metrics.calibration_test

    Example:
      >>> labels = jnp.array([0, 1, 0, 1])
      >>> p0, p1 = venn_abers(jnp.arange(4.0), labels, jnp.array([-1.0, 1.5, 3.0]))
      >>> p0
      Array([0.        , 0.33333334, 0.5       ], dtype=float32)
      >>> p1
      Array([0.5      , 0.6666667, 1.       ], dtype=float32)
    """
    scores, labels, weights = _checks.rows(
        scores=_checks.scores(scores),
        labels=_checks.Column(labels, convert=_checks.flags, required=True),
        weights=_checks.weights(weights),
    )
    test_scores = _checks.rows(test_scores=_checks.scores(test_scores))
    test_weight = as_float(_arrays.as_array("test_weight", test_weight))
    _checks.check_number("test_weight", test_weight, _is_weight, "> 0")
    if num_levels is not None:
        _checks.check_count("num_levels", num_levels, 1)
        _checks.check_uniforms("scores with num_levels", scores)
        _checks.check_uniforms("test_scores with num_levels", test_scores)
    elif (n := scores.size) > _MOST_ROWS:
        expected = f"expected num_levels for more than {_MOST_ROWS} rows"
        raise ValueError(f"{expected}, got {n} rows; num_levels=1000 is one")
    program = partial(_pair, num_levels=num_levels)
    fixed = scores, labels, weights, test_weight
    return _batching.by_rows(program, *fixed, rows=(test_scores,))


@jax.jit(static_argnames="num_levels")
def _pair(scores, labels, weights, test_weight, test_scores, num_levels):
    """Returns p0 and p1 of each test row."""
    places = jnp.concatenate([as_float(scores), as_float(test_scores)])
    if num_levels is None:
        places = to_keys(places)
        levels = lax.sort(places[: scores.size])
    else:
        places = jnp.floor(places * num_levels).astype(int).clip(0, num_levels - 1)
        levels = jnp.arange(num_levels)
    first, last = (jnp.searchsorted(levels, places, side=s) for s in ("left", "right"))
    (first, last), own = (v[scores.size :] for v in (first, last)), last[: scores.size]
    weights = 1 * (jnp.ones_like(labels) if weights is None else weights)
    mass, ones = (
        jnp.cumsum(_arrays.sums_of_groups(v, own, levels.size + 1))
        for v in (weights, weights * labels)
    )
    at, between = _slopes(mass, ones, test_weight)
    p = jnp.where((first < last)[:, None], at[last], between[first])
    p = jnp.clip(p, 0, 1)  # sums of weights are rounded
    return tuple(p.astype(as_float(scores).dtype).T)


def _slopes(mass, ones, weight):
    """Returns p0 and p1 at each place j = 0, ..., n: of a row on level j, or after it.

    Backwards over the ends b of a block, with the smallest slope from each start a so
    far. Vovk et al. 2015 walk on hulls in linear time, which XLA copies at each step.
    """
    place, label = jnp.arange(mass.size), jnp.arange(2)[:, None]

    def step(least, end):
        b, up_to, ones_up_to = end
        gap = jnp.maximum(up_to - mass, 0) + weight  # starts after b do not count
        slope = ((ones_up_to - ones)[None] + label * weight) / gap[None]
        least = jnp.minimum(least, slope)
        at = jnp.max(jnp.where((place < b)[None], least, -jnp.inf), axis=1)
        return least, (at, jnp.maximum(at, least[:, b]))

    start = jnp.full((2, mass.size), jnp.inf, jnp.result_type(mass, weight))
    return lax.scan(step, start, (place, mass, ones), reverse=True)[1]


@_checks.by_labels
def merge_pairs(
    p0: ArrayLike, p1: ArrayLike, *, loss: _Loss, axis: int | None = None
) -> Array:
    """Returns one probability for each pair of a Venn-Abers predictor.

    The one with the least regret in the worse case of both labels: p1 / (1 - p0 + p1)
    for the log loss, p1 + (p0^2 - p1^2) / 2 for the Brier score. Folds are merged by
    GM(p1) / (GM(1 - p0) + GM(p1)) with geometric means GM, and by the mean.

    Args:
      p0: Probabilities with label 0, shape (...).
      p1: Probabilities with label 1, the same shape.
      loss: "log" or "brier".
      axis: Axis of folds, which are merged too. Defaults to none.

    Returns:
      Probabilities, of the shape of p0, without `axis`.

    Raises:
      ValueError: if shapes differ, a concrete value is outside [0, 1], or the loss is
        not known.

    Guarantee:
      None: only the pair is calibrated. p0 <= p <= p1 for each pair.

    Cost:
      O(1) time for each pair.

    References:
      Vovk, Petej, Fedorova, Large-Scale Probabilistic Predictors with and without
      Guarantees of Validity, NeurIPS, 2015.

    See also:
      predictive.venn_abers, predictive.cross_venn_abers

    Example:
      >>> p0, p1 = jnp.array([0.0, 0.4]), jnp.array([0.5, 0.6])
      >>> merge_pairs(p0, p1, loss="log")
      Array([0.33333334, 0.5       ], dtype=float32)
      >>> merge_pairs(p0, p1, loss="brier")
      Array([0.375, 0.5  ], dtype=float32)
    """
    p0, p1 = map(as_float, _arrays.as_arrays(p0=p0, p1=p1))
    _checks.check_shape("p1", p0.shape, p1.shape)
    _checks.check_uniforms("p0", p0)
    _checks.check_uniforms("p1", p1)
    _checks.check_one_of("loss", loss, ("log", "brier"))
    return _merge(p0, p1, loss, () if axis is None else axis)


@jax.jit(static_argnames=("loss", "axis"))
def _merge(p0, p1, loss, axis):
    if loss == "brier":
        return jnp.mean(p1 + (p0**2 - p1**2) / 2, axis)
    return jax.nn.sigmoid(jnp.mean(jnp.log(p1) - jnp.log1p(-p0), axis))


@_checks.by_labels
def cross_venn_abers(
    scores: ArrayLike,
    labels: ArrayLike,
    held_out: ArrayLike,
    test_scores: ArrayLike,
    *,
    num_levels: int | None = None,
) -> tuple[Array, Array]:
    """Returns `venn_abers` of each fold: on the rows that its model was not fitted to.

    Args:
      scores: Scores of all n rows by the models of b folds, shape (b, n); or of each
        row by the model that left it out, shape (n,).
      labels: Labels 0 and 1, shape (n,).
      held_out: True where a model was fitted without a row, shape (b, n), as
        `cross_calibrate` takes it.
      test_scores: Scores of the test rows by each model, shape (b, m).
      num_levels: As for `venn_abers`.

    Returns:
      (p0, p1), each of shape (b, m): `merge_pairs(p0, p1, loss=..., axis=0)` makes one
      probability of them.

    Raises:
      ValueError: as `venn_abers`, or if shapes do not fit.

    Guarantee:
      That of `venn_abers` for each fold; none for folds together.

    Assumption:
      That of `venn_abers`, for the rows of each fold.

    Cost:
      That of `venn_abers` for n rows, b times.

    References:
      Vovk, Petej, Fedorova, Large-Scale Probabilistic Predictors with and without
      Guarantees of Validity, NeurIPS, 2015.

    See also:
      predictive.venn_abers, predictive.merge_pairs, cross_calibrate

    Example:
      >>> scores, labels = jnp.arange(4.0), jnp.array([0, 1, 0, 1])
      >>> held_out = jnp.array([[True, True, False, False], [False, False, True, True]])
      >>> p0, p1 = cross_venn_abers(scores, labels, held_out, jnp.ones((2, 1)))
      >>> merge_pairs(p0, p1, loss="log", axis=0)
      Array([0.5], dtype=float32)
    """
    scores, test_scores = _arrays.as_arrays(scores=scores, test_scores=test_scores)
    held_out = _checks.flags("held_out", held_out)
    _checks.check_shape("scores", held_out.shape[-scores.ndim :], scores.shape)
    _checks.num_rows(held_out=held_out, test_scores=test_scores)
    scores = jnp.broadcast_to(scores, held_out.shape)
    for name, values in {"scores": scores, "test_scores": test_scores}.items():
        _checks.check_not_nan(name, values)
        if num_levels is not None:
            _checks.check_uniforms(f"{name} with num_levels", values)
    return jax.vmap(
        lambda s, t, w: venn_abers(s, labels, t, weights=w, num_levels=num_levels)
    )(scores, test_scores, held_out)


@_checks.by_labels
def venn_abers_classes(
    probs: ArrayLike,
    labels: ArrayLike,
    test_probs: ArrayLike,
    *,
    scheme: Literal["pairs", "rest"],
    num_levels: int | None = None,
) -> Array:
    """Returns calibrated probabilities of k classes, by Venn-Abers predictors of two.

    "pairs": p_ij for class i against j from the rows of both, score p_i / (p_i + p_j),
    1/2 where both are 0; then p_i = 1 / (sum_j 1 / p_ij - (k - 2)). "rest": each class
    against all others. Pairs (p0, p1) are merged for the log loss, and the p_i divided
    by their sum. A class without rows keeps its column.

    Args:
      probs: Probabilities of the classes for calibration rows, shape (n, k).
      labels: Labels 0, ..., k - 1, int, shape (n,).
      test_probs: Probabilities of the classes for test rows, shape (m, k).
      scheme: "pairs" or "rest".
      num_levels: As for `venn_abers`.

    Returns:
      Probabilities, shape (m, k); each row sums to 1.

    Raises:
      ValueError: if shapes differ, there is one class, a label is out of range, a
        concrete probability is outside [0, 1], the scheme is not known, or as
        `venn_abers` for many rows.

    Guarantee:
      None: that of `venn_abers` holds for the pair (p0, p1) of one column, by
      `venn_abers(probs[:, i], labels == i, test_probs[:, i])`.

    Assumption:
      That of `venn_abers`.

    Cost:
      That of `venn_abers` for n rows, k (k - 1) / 2 or k times.

    References:
      Manokhin, Multi-Class Probabilistic Classification Using Inductive and Cross
      Venn-Abers Predictors, COPA, 2017.

    See also:
      predictive.venn_abers, predictive.merge_pairs

    Example:
      >>> probs = jax.nn.softmax(jax.random.normal(jax.random.key(0), (30, 3)))
      >>> labels = jnp.argmax(probs, axis=1)
      >>> p = venn_abers_classes(probs, labels, probs[:2], scheme="pairs")
      >>> p.shape, jnp.argmax(p, axis=1) == labels[:2]
      ((2, 3), Array([ True,  True], dtype=bool))
    """
    probs, test_probs = _arrays.as_arrays(probs=probs, test_probs=test_probs)
    if probs.ndim != 2 or probs.shape[1] < 2:
        raise ValueError(f"expected probs of shape (n, k), k > 1, got {probs.shape}")
    k = probs.shape[1]
    probs, labels = _checks.rows(probs=probs, labels=_checks.groups(labels, k))
    _checks.check_shape("test_probs", (len(test_probs), k), test_probs.shape)
    _checks.check_uniforms("probs", probs)
    _checks.check_uniforms("test_probs", test_probs)
    _checks.check_one_of("scheme", scheme, ("pairs", "rest"))
    return _classes(probs, labels, test_probs, scheme, num_levels)


@jax.jit(static_argnames=("scheme", "num_levels"))
def _classes(probs, labels, test_probs, scheme, num_levels):
    k = probs.shape[1]
    flags = jax.nn.one_hot(labels, k, dtype=int, axis=0)

    def odds_against(scores, test_scores, flags, counts):
        options = {"weights": counts, "num_levels": num_levels}
        p0, p1 = venn_abers(scores, flags, test_scores, **options)
        return (1 - p0) / p1  # (1 - p) / p of the merged p

    if scheme == "rest":
        rows = probs.T, test_probs.T, flags, flags**0
        odds = _batching.map_rows(odds_against, *rows)
    else:  # 1 / p_ij - 1 is the odds, so that 1 / p_i - 1 is their sum
        i, j = jnp.triu_indices(k, 1)
        share = lambda a, b: jnp.where(a + b > 0, a / (a + b), 0.5).T  # noqa: E731
        scores, test_scores = (share(v[:, i], v[:, j]) for v in (probs, test_probs))
        rows = scores, test_scores, flags[i], flags[i] + flags[j]
        found = _batching.map_rows(odds_against, *rows)  # of class i against class j
        odds = jnp.zeros((k, len(test_probs)), found.dtype)
        odds = odds.at[i].add(found).at[j].add(1 / found)
    p = 1 / (1 + odds).T
    return p / jnp.sum(p, axis=1, keepdims=True)
