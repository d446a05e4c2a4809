"""Hyperparameters of a score: learned by gradient, or chosen from a grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_arrays, is_concrete
from jaxcp._batching import evaluate, invert
from jaxcp._numbers import as_float
from jaxcp._tree import jit
from jaxcp.quantiles.thresholds import thresholds
from jaxcp.scores import inputs
from jaxcp.training.losses import SizeLoss, prepare, rank_of, value_of
from jaxcp.training.soft import check_large_is_bad
from jaxcp.typing import ArrayLike, PyTree, Score

_Score = TypeVar("_Score", bound=Score)


@_checks.by_labels
def train_score(
    key: Array,
    score: _Score | SizeLoss[_Score],
    preds: PyTree,
    y: ArrayLike,
    alpha: ArrayLike | None = None,
    *,
    optimizer: Any,
    num_steps: int,
    project: Callable[[_Score], _Score] | None = None,
    **options: Any,
) -> _Score:
    """Returns the score with hyperparameters trained towards small sets.

    Every step splits the rows into two random halves and takes a gradient step on the
    `SizeLoss` of one half, calibrated by the other. All leaves of the score are
    trained: the penalty of `RAPS`, the parameters of a `Custom` score. Define optimizer
    and projection once: each new one compiles.

    Args:
      key: Random key.
      score: Where to start, or a `SizeLoss` of it, which has alpha and the options.
        Hyperparameters that are integers become floats.
      preds: Predictions, a pytree with leading axis n >= 2.
      y: Targets, shape (n, ...).
      alpha: Miscoverage level, shape (), or (c,) for scores with components; left out
        with a `SizeLoss`, like the options.
      optimizer: An `optax.GradientTransformation`.
      num_steps: Number of steps.
      project: A function from score to score that keeps hyperparameters in range, such
        as `lambda s: replace(s, penalty=jnp.maximum(s.penalty, 0), k_reg=2)` with
        `dataclasses.replace`, which also keeps k_reg fixed. Without it a penalty may
        end below 0, and `jaxcp.calibrate` refuses the score.
      **options: Of the `SizeLoss`: `temperature`, which must be given, `bandwidth`,
        `nearest`, `target_size`, `size_weights` and `classification_weights`.

    Returns:
      The trained score.

    Raises:
      ValueError: if the score has no hyperparameters, `project` changes its structure,
        there are fewer than two rows or too few for alpha, or arguments are not valid
        for the `SizeLoss`.

    Guarantee:
      None on these rows; 1 - alpha after `jaxcp.calibrate(score, ...)` on other rows.

    Assumption:
      Rows of the final calibration are others, exchangeable with test examples.

    Cost:
      `num_steps` gradients of a `SizeLoss` on all rows, in one scan.

    References:
      Stutz, Dvijotham, Cemgil, Doucet, Learning Optimal Conformal Classifiers, ICLR,
      2022.

    See also:
      training.SizeLoss, training.select_score, calibrate

    Example:
      >>> import functools, optax
      >>> from jaxcp import scores, sets
      >>> def error(center, pred, y):
      ...     return jnp.abs(y - center)
      >>> def interval(pred, q):  # its width does not depend on the center
      ...     return sets.Interval(pred - q, pred + q)
      >>> start = scores.Custom(functools.partial(error, jnp.array(0.0)), interval)
      >>> y = 3 + jnp.linspace(-1, 1, 40)
      >>> loss = SizeLoss(start, alpha=0.2, temperature=0.1)
      >>> how = {"optimizer": optax.adam(0.2), "num_steps": 100}
      >>> score = train_score(jax.random.key(0), loss, 0 * y, y, **how)
      >>> jax.tree.leaves(score)[0].round().item()
      3.0
    """
    loss = _as_loss(score, alpha, options)
    preds, y = _check_rows(key, loss.score, preds, y)
    _checks.check_count("num_steps", num_steps, 0)
    inputs.check(loss.score, preds, y)
    if not jax.tree.leaves(loss.score):
        kind = type(loss.score).__name__
        raise ValueError(f"expected a score with hyperparameters, got {kind}")
    loss = replace(loss, score=jax.tree.map(as_float, loss.score))
    halves = _halves((preds, y), jnp.arange(len(y)))
    loss, rank = prepare(loss, *halves)
    _check_enough(len(y), rank)
    return _train(key, loss, rank, (preds, y), optimizer, num_steps, project)


@_checks.by_labels
def select_score(
    key: Array,
    scores: _Score,
    preds: PyTree,
    y: ArrayLike,
    alpha: ArrayLike,
    *,
    num_splits: int = 10,
) -> _Score:
    """Returns the score from a grid whose sets are the smallest.

    Every candidate is calibrated, exactly, on one half of the rows and its sets of the
    other half are measured; sizes are means over random splits.

    Args:
      key: Random key.
      scores: A score whose hyperparameters have a leading axis of g candidates, such
        as `RAPS(jnp.array([0.0, 0.01, 0.1]), 2)`; single ones serve all candidates.
      preds: Predictions, a pytree with leading axis n >= 2.
      y: Targets, shape (n, ...).
      alpha: Miscoverage level, shape (), or (c,) for scores with components.
      num_splits: Number of random splits.

    Returns:
      The first of the best candidates, a score like `scores` without the axis.

    Raises:
      ValueError: if no hyperparameter has a leading axis or their lengths differ, a
        candidate is not valid, there are fewer than two rows or too few for alpha, or
        the sets have no size in closed form, or are inner boxes, which should be large.

    Guarantee:
      None on these rows; 1 - alpha after `jaxcp.calibrate(score, ...)` on other rows.

    Assumption:
      Rows of the final calibration are others, exchangeable with test examples.

    Cost:
      `num_splits` times g calibrations of half of the rows, in one program.

    References:
      Angelopoulos, Bates, Malik, Jordan, Uncertainty Sets for Image Classifiers Using
      Conformal Prediction, ICLR, 2021, appendix E.

    See also:
      training.train_score, scores.RAPS, calibrate

    Example:
      >>> from jaxcp.scores import RAPS
      >>> p = jax.nn.softmax(jax.random.normal(jax.random.key(0), (50, 20)))
      >>> grid = RAPS(jnp.array([0.0, 0.1]), 1)
      >>> y = jnp.argmax(p, axis=1)
      >>> round(select_score(jax.random.key(1), grid, p, y, 0.1).penalty.item(), 3)
      0.1
    """
    preds, y = _check_rows(key, scores, preds, y)
    _checks.check_count("num_splits", num_splits, 1)
    scores = _candidates(as_arrays(scores=scores))
    first, *others = _each(scores)
    inputs.check(first, preds, y)
    for score in others:  # its hyperparameters; the rows have been checked
        inputs.check(score, *jax.tree.map(lambda v: v[:1], (preds, y)))
    calibration, _ = _halves((preds, y), jnp.arange(len(y)))
    rank = rank_of(alpha, first, *calibration)
    _check_enough(len(y), rank)
    return _select(key, scores, (preds, y), rank, num_splits)


@jit(static_argnames=("optimizer", "num_steps", "project"))
def _train(key, loss, rank, rows, optimizer, num_steps, project):
    n = len(rows[1])

    def value(score, *batch):
        return value_of(replace(loss, score=score), rank, *batch)

    def step(carry, key):
        score, state = carry
        key_order, key_balls = jax.random.split(key)
        halves = _halves(rows, jax.random.permutation(key_order, n))
        slopes = jax.grad(value)(score, *halves, key_balls)
        updates, state = optimizer.update(slopes, state, score)
        moved = jax.tree.map(jnp.add, score, updates)
        moved = moved if project is None else project(moved)
        # What a projection puts in place of a leaf may be of another type.
        score = jax.tree.map(lambda old, v: jnp.asarray(v, old.dtype), score, moved)
        return (score, state), None

    start = loss.score, optimizer.init(loss.score)
    return lax.scan(step, start, jax.random.split(key, num_steps))[0][0]


@jit(static_argnames="num_splits")
def _select(key, scores, rows, rank, num_splits):
    n = len(rows[1])

    def mean_sizes(key):
        calibration, (preds, _) = _halves(rows, jax.random.permutation(key, n))

        def mean_size(score):
            q = thresholds(as_float(evaluate(score, *calibration)), rank)
            sets = invert(score, preds, q)
            check_large_is_bad(sets)
            return jnp.mean(jax.vmap(lambda s: s.size())(sets))

        return lax.map(mean_size, scores)

    means = lax.map(mean_sizes, jax.random.split(key, num_splits))
    means = jnp.mean(means, axis=0)
    best = jnp.argmin(jnp.where(jnp.isnan(means), jnp.inf, means))
    return jax.tree.map(lambda v: v[best], scores)


def _halves(rows, order):
    """Returns rows in this order as two halves, the first the larger if they differ."""
    half = (len(order) + 1) // 2
    parts = order[:half], order[half:]
    return [jax.tree.map(lambda v, part=part: v[part], rows) for part in parts]


def _candidates(scores):
    """Returns candidates with one leading axis; single hyperparameters are repeated."""
    scores = jax.tree.map(jnp.asarray, scores)
    (length,) = {v.shape[0] for v in jax.tree.leaves(scores) if v.ndim}
    repeated = lambda v: jnp.broadcast_to(v, (length, *v.shape[1:]))  # noqa: E731
    return jax.tree.map(repeated, scores)


def _each(scores):
    count = len(jax.tree.leaves(scores)[0])
    return [jax.tree.map(lambda v, i=i: v[i], scores) for i in range(count)]


def _as_loss(score, alpha, options):
    if not isinstance(score, SizeLoss):
        return SizeLoss(score, alpha, **options)
    if alpha is not None or options:
        raise ValueError(
            "expected alpha and options in the SizeLoss alone, got "
            f"{['alpha'] * (alpha is not None) + list(options)} beside it; "
            "dataclasses.replace changes them there"
        )
    return score


def _check_enough(n, rank):
    """Raises ValueError if a half of n rows has an infinite threshold, if known."""
    if is_concrete(rank) and int(jnp.max(rank)) > (n + 1) // 2:
        raise ValueError(
            f"expected more rows, got {n}: half of them give an infinite threshold at "
            "this alpha"
        )


def _check_rows(key, score, preds, y):
    """Returns rows as arrays, with the checks that training and choosing share."""
    _checks.check_key(key)
    inputs.check_score(score)
    preds, y = _checks.rows(preds=preds, y=y)
    return preds, y
