"""Sets with soft edges: membership and size that have gradients in the threshold."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks, _numbers
from jaxcp._arrays import as_arrays
from jaxcp._batching import evaluate, invert, label_scores, widened
from jaxcp._numbers import as_float
from jaxcp._tree import jit
from jaxcp.scores import inputs
from jaxcp.sets import BoundingBox
from jaxcp.typing import ArrayLike, HasSoftSize, PyTree, Score


def soft_membership(
    score: Score, preds: PyTree, y: ArrayLike, q: ArrayLike, *, temperature: ArrayLike
) -> Array:
    """Returns how far targets are inside their sets, between 0 and 1.

    sigmoid((q - S) / temperature), 1/2 on the edge; with components their product. For
    temperature -> 0 it is the indicator of score(pred, y) <= q, but for scores equal to
    q, which stay at 1/2.

    Args:
      score: Nonconformity score of one example.
      preds: Predictions, a pytree with leading axis m.
      y: Targets, shape (m, ...).
      q: Threshold, shape (), or (c,) with components, or (k,) for one a label; in units
        of the score.
      temperature: Softness of the edge > 0, shape (), in units of the score.

    Returns:
      Soft membership, shape (m,). Where score or threshold is infinite it is 0 or 1,
      with a gradient of zero; NaN stays NaN.

    Raises:
      ValueError: if lengths differ, shapes of `q` and the score do not fit, a concrete
        temperature is not positive, or predictions or targets are not valid for the
        score.

    Guarantee:
      None: a stand-in for membership, for training.

    Assumption:
      None.

    Cost:
      One score for each of m rows.

    References:
      Stutz, Dvijotham, Cemgil, Doucet, Learning Optimal Conformal Classifiers, ICLR,
      2022.

    See also:
      training.soft_size, training.SizeLoss, soft_conformal_quantile

    Example:
      >>> from jaxcp.scores import Absolute
      >>> y = jnp.array([0.0, 1.0, 9.0])
      >>> soft_membership(Absolute(), jnp.zeros(3), y, 1.0, temperature=0.1).round(3)
      Array([1. , 0.5, 0. ], dtype=float32)
    """
    inputs.check_score(score)
    preds, y = _checks.rows(preds=preds, y=y)
    q = as_arrays(q=q)
    inputs.check(score, preds, y)
    check_positive("temperature", temperature)
    _check_threshold(score, preds, y, q)
    return memberships(score, preds, y, as_float(q), temperature)


def soft_size(
    score: Score,
    preds: PyTree,
    q: ArrayLike,
    *,
    temperature: ArrayLike,
    key: Array | None = None,
    num_samples: int = 64,
) -> Array:
    """Returns the sizes of sets with soft edges, to minimize in training.

    Labels: the sum of their soft memberships. Intervals, boxes and ellipsoids: their
    width or volume with every length w (a side, a radius) as temperature * log(1 +
    exp(w / temperature)), so that crossed ends have a gradient too. Unions of balls,
    and other sets with an estimate: the volume itself, with its gradient as in
    `jaxcp.volume`. Sets of your own offer `soft_size(temperature)`. For temperature ->
    0 these are the sizes of the sets, except that a label whose score equals q counts
    1/2, as is common for `TopK`.

    Args:
      score: Nonconformity score of one example.
      preds: Predictions, a pytree with leading axis m.
      q: Threshold, shape (), or (c,) with components, or (k,) for one a label; in units
        of the score.
      temperature: Softness of the edges > 0, shape (): in units of the score for
        labels and ellipsoids, of the target for other sets.
      key: Random key for sets whose volume is estimated, such as unions of balls.
      num_samples: Points in each of these sets.

    Returns:
      Soft sizes, shape (m,): counts of labels, widths, areas or volumes in units of the
      target. +inf for a set without end; its gradient is zero. NaN stays NaN.

    Raises:
      ValueError: if sets are known by membership alone (no size to make small), are
        inner boxes (whose size is to be large) or inclusive (train without, calibrate
        with), a key is missing, `q` does not fit, a concrete temperature is not
        positive, or predictions are not valid for the score.

    Guarantee:
      None: a stand-in for the size, for training.

    Assumption:
      None.

    Cost:
      One set for each of m rows; unions of balls take `num_samples` points each.

    References:
      Stutz, Dvijotham, Cemgil, Doucet, Learning Optimal Conformal Classifiers, ICLR,
      2022.

    See also:
      training.soft_membership, training.SizeLoss, metrics.sizes

    Example:
      >>> from jaxcp.scores import LAC
      >>> p = jnp.array([[0.7, 0.2, 0.1]])
      >>> round(soft_size(LAC(), p, 0.8, temperature=0.01).item(), 3)
      1.5
    """
    inputs.check_score(score)
    preds, q = _checks.rows(preds=preds), as_arrays(q=q)
    inputs.check(score, preds)
    _checks.check_count("num_samples", num_samples, 1)
    check_positive("temperature", temperature)
    _check_threshold(score, preds, None, q)
    if key is not None:
        _checks.check_key(key)
    return sizes(score, preds, as_float(q), temperature, key, num_samples)


def check_positive(name, value):
    """Raises ValueError unless this is one number, above 0 where it is known."""
    _checks.check_number(name, value, lambda v: v > 0, "> 0")


@jit
def memberships(score, preds, y, q, temperature):
    """Returns `soft_membership` of checked arguments."""
    scores = evaluate(score, preds, y)
    q = at_labels(q, y) if q.ndim and inputs.has_labels(score) else q
    q = q[None] if scores.ndim > q.ndim > 0 else q
    parts = _numbers.step(scores, q, temperature)
    return parts if parts.ndim == 1 else jnp.prod(parts, axis=1)


def label_memberships(score, preds, q, temperature):
    """Returns the soft membership of every label, shape (m, k)."""
    if inputs.is_inclusive(score):
        raise ValueError(
            "expected a score with inclusive=False to train with, got inclusive=True: "
            "calibrate with it afterwards"
        )
    labels = label_scores(score, widened(preds))
    return _numbers.step(labels, q[None] if q.ndim else q, temperature)


@jit(static_argnames="num_samples")
def sizes(score, preds, q, temperature, key, num_samples):
    """Returns `soft_size` of checked arguments."""
    preds = widened(preds)
    if inputs.has_labels(score):
        return jnp.sum(label_memberships(score, preds, q, temperature), axis=1)
    sets = jax.vmap(lambda pred: score.invert(pred, q))(preds)
    check_large_is_bad(sets)
    if isinstance(sets, HasSoftSize):
        return jax.vmap(lambda region: region.soft_size(temperature))(sets)
    _checks.check_key(key)  # volumes are estimated
    keys = jax.random.split(key, _checks.num_rows(preds=preds))
    return jax.vmap(partial(_estimate, num_samples))(keys, sets)


def at_labels(values, y):
    """Returns values[y], and 0 for labels out of range."""
    y = y.astype(int)  # narrow types cannot hold every label
    rows = values.at[y].get(mode="fill", fill_value=0)
    known = (y >= 0).reshape(y.shape + (1,) * (values.ndim - 1))
    return jnp.where(known, rows, 0)


def check_large_is_bad(region):
    """Raises ValueError for inner boxes, which say the more the larger they are."""
    if isinstance(region, BoundingBox) and region.inner:
        raise ValueError(
            "expected sets to make small, got inner boxes, which say more when large"
        )


def _estimate(num_samples, key, region):
    log_size, _ = region.estimate_log_size(key, num_samples, sobol=False)
    finite = log_size < jnp.inf  # the gradient of exp would be NaN
    return jnp.where(finite, jnp.exp(jnp.where(finite, log_size, 0)), log_size)


def _check_threshold(score, preds, y, q):
    """Raises ValueError unless there is one threshold, or those that a score takes."""
    if q.ndim == 0:
        return
    shapes = []
    if inputs.has_labels(score):
        shapes.append(jax.eval_shape(label_scores, score, preds).shape[1:])
    if y is not None:
        shapes.append(jax.eval_shape(evaluate, score, preds, y).shape[1:])
    elif not shapes:  # then sets at q must be like those at a number, if there are any
        one = jnp.zeros((), q.dtype)
        found, like = (_shapes_of_sets(score, preds, v) for v in (q, one))
        if found is not None and like in (None, found):
            return
    if q.shape not in shapes:
        known = " or ".join(map(str, sorted({(), *shapes})))
        raise ValueError(f"expected q of shape {known}, got {q.shape}")


def _shapes_of_sets(score, preds, q):
    """Returns the shapes of what sets at a threshold hold, None if there are none."""
    try:
        sets = jax.eval_shape(invert, score, preds, q)
    except (IndexError, TypeError, ValueError):
        return None  # an inverse may well ask for a threshold of each component
    return [leaf.shape for leaf in jax.tree.leaves(sets)]
