"""The loss of conformal training: how large sets calibrated in the batch would be."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, replace
from functools import partial
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_arrays
from jaxcp._batching import evaluate, label_scores
from jaxcp._numbers import as_float
from jaxcp._tree import jit, pytree, static
from jaxcp.quantiles.levels import conformal_rank, split_alpha
from jaxcp.quantiles.thresholds import soft_order_statistic, thresholds
from jaxcp.scores import inputs
from jaxcp.training import soft
from jaxcp.typing import ArrayLike, PyTree, Score

_NUM_SAMPLES = 64  # points in a union of balls
_WEIGHTS = {"size_weights": 1, "classification_weights": 2}  # axes, of labels
_Score = TypeVar("_Score", bound=Score)


@pytree
class SizeLoss(Generic[_Score]):
    """The mean soft size of sets that are calibrated in the batch: a loss to minimize.

    mean_i [w(y_i) max(size_i - target_size, 0) + L_i]. Half of the batch gives the
    threshold q, the other half the soft sets at q. The classification loss L is 0, or a
    weight times 1 - m(y), m the soft membership, or with a matrix of weights
    L[y, y] (1 - m(y)) + sum over other labels c of L[y, c] m(c).

    The threshold is the exact one, its gradient that of the `nearest` scores; with a
    `bandwidth` it is the soft one. Stutz et al. minimize the log of this loss with
    target_size = 1: sets of one label cost nothing.

    Args:
      score: Nonconformity score; its hyperparameters may be trained as well.
      alpha: Miscoverage level, shape (), or (c,) for scores with components.
      temperature: Softness of the sets > 0, shape (), as in `soft_size`.
      bandwidth: Softness of the threshold > 0, shape (), in units of the score.
      nearest: Scores whose gradients are averaged, without a bandwidth. Defaults to
        sqrt(n), whose variance falls with n; 1 is the gradient of the threshold itself.
        Many more bias it: their mean is below q, and scales in the score drift.
      target_size: Size that costs nothing, shape (), in units of the size.
      size_weights: Weight w >= 0 of the size by true label, shape (k,). Defaults to 1.
      classification_weights: Weights >= 0 of missing the target, shape (), or of every
        label in the set of each true label (rows), shape (k, k). Defaults to none.

    Guarantee:
      None: calibrate the trained model with `jaxcp.calibrate` on rows that training did
      not see; then 1 - alpha.

    Assumption:
      None for coverage after calibration.

    Cost:
      n + m scores, one selection in O(n) and m soft sizes; a gradient takes a few times
      as long.

    References:
      Stutz, Dvijotham, Cemgil, Doucet, Learning Optimal Conformal Classifiers, ICLR,
      2022.
      Noorani, Romero, Dal Fabbro, Hassani, Pappas, Conformal Risk Minimization with
      Variance Reduction, arXiv 2411.01696, 2024.

    See also:
      training.conformal_training_loss, training.train_score, training.soft_size,
      calibrate

    Example:
      >>> from jaxcp.scores import Absolute
      >>> loss = SizeLoss(Absolute(), alpha=0.2, temperature=0.1)
      >>> y, zeros = jnp.arange(1.0, 10.0), jnp.zeros(4)
      >>> def width(mu):  # of intervals around mu
      ...     return loss(mu + 0 * y, y, mu + zeros)
      >>> round(width(0.0).item(), 3), round(jax.grad(width)(0.0).item(), 3)
      (16.0, -2.0)
    """

    score: _Score
    alpha: ArrayLike
    _: KW_ONLY
    temperature: ArrayLike
    bandwidth: ArrayLike | None = None
    nearest: int | None = static(default=None)
    target_size: ArrayLike = 0.0
    size_weights: ArrayLike | None = None
    classification_weights: ArrayLike | None = None

    def __call__(
        self,
        preds_cal: PyTree,
        y_cal: ArrayLike,
        preds: PyTree,
        y: ArrayLike | None = None,
        *,
        key: Array | None = None,
    ) -> Array:
        """Returns the loss of one batch.

        Args:
          preds_cal: Predictions for one half of the batch, leading axis n.
          y_cal: Their targets, shape (n, ...).
          preds: Predictions for the other half, leading axis m.
          y: Their targets, shape (m, ...), for the weights, which depend on them.
          key: Random key, for scores whose sets are unions of balls.

        Returns:
          Loss, shape (), in units of the size. Where the half that calibrates is too
          small for alpha, sets are infinite (all labels) and the gradient is zero.

        Raises:
          ValueError: if lengths differ or rows of the halves are unlike, both
            `bandwidth` and `nearest` are given, a weight lacks `y`, a number `alpha` is
            outside (0, 1), or arguments are not valid for `soft_size`.
        """
        calibration = _checks.rows(preds_cal=preds_cal, y_cal=y_cal)
        new = _checks.rows(preds=preds), as_arrays(y=y)
        if key is not None:
            _checks.check_key(key)
        return value_of(*prepare(self, calibration, new), calibration, new, key)


def conformal_training_loss(
    score: Score,
    preds_cal: PyTree,
    y_cal: ArrayLike,
    preds: PyTree,
    alpha: ArrayLike,
    *,
    y: ArrayLike | None = None,
    key: Array | None = None,
    **options: Any,
) -> Array:
    """Returns the mean soft size of sets that are calibrated in the batch.

    The `SizeLoss` with these options, on one batch.

    Args:
      score: Nonconformity score; its hyperparameters may be trained as well.
      preds_cal: Predictions for one half of the batch, leading axis n.
      y_cal: Their targets, shape (n, ...).
      preds: Predictions for the other half, leading axis m.
      alpha: Miscoverage level, shape (), or (c,) for scores with components.
      y: Targets of the other half, shape (m, ...), for the options that need them.
      key: Random key, for scores whose sets are unions of balls.
      **options: Of a `SizeLoss`: `temperature`, which must be given, `bandwidth`,
        `nearest`, `target_size`, `size_weights` and `classification_weights`.

    Returns:
      Loss, shape (), in units of the size.

    Raises:
      ValueError: as a call of the `SizeLoss`.

    Guarantee:
      None: calibrate the trained model with `jaxcp.calibrate` on rows that training did
      not see; then 1 - alpha.

    Assumption:
      None for coverage after calibration.

    Cost:
      That of `training.SizeLoss`.

    References:
      Stutz, Dvijotham, Cemgil, Doucet, Learning Optimal Conformal Classifiers, ICLR,
      2022.

    See also:
      training.SizeLoss, training.train_score, calibrate

    Example:
      >>> from jaxcp.scores import LAC
      >>> p, y = jnp.array([[0.8, 0.2], [0.4, 0.6]] * 5), jnp.array([0, 1] * 5)
      >>> new = jnp.array([[0.7, 0.3], [0.5, 0.5]])  # a set of one label, and none
      >>> loss = conformal_training_loss(LAC(), p, y, new, 0.2, temperature=0.01)
      >>> round(loss.item(), 3)
      0.5
    """
    loss = SizeLoss(score, alpha, **options)
    return loss(preds_cal, y_cal, preds, y, key=key)


def prepare(loss, calibration, new):
    """Returns a loss with checked options, and the rank of its alpha."""
    inputs.check_score(loss.score)
    _check_halves(loss.score, calibration, new)
    known = {"alpha": None, **_numbers_of(loss), **_weights_of(loss, *new)}
    return replace(loss, **known), rank_of(loss.alpha, loss.score, *calibration)


def rank_of(alpha, score, preds, y):
    """Returns the rank of the threshold of these rows, shape () or (c,)."""
    n, *components = jax.eval_shape(evaluate, score, preds, y).shape
    level = split_alpha(alpha, tuple(components))
    _checks.check_shape("alpha", tuple(components), level.shape)
    return conformal_rank(n, level)


@jit
def value_of(loss, rank, calibration, new, key):
    """Returns the value of a `SizeLoss` that `prepare` returned."""
    score, (preds, y), temperature = loss.score, new, loss.temperature
    q = _threshold(loss, rank, as_float(evaluate(score, *calibration)))
    size = soft.sizes(score, preds, q, temperature, key, _NUM_SAMPLES)
    size = jnp.maximum(size - jnp.asarray(loss.target_size, size.dtype), 0)
    if loss.size_weights is not None:
        by_row = soft.at_labels(loss.size_weights, y).astype(size.dtype)
        size = jnp.where(by_row > 0, by_row * size, 0)  # 0 * inf is 0 here
    weights = loss.classification_weights
    if weights is None:
        return jnp.mean(size)
    if weights.ndim == 0:
        outside = 1 - soft.memberships(score, preds, y, q, temperature)
        return jnp.mean(size + weights.astype(size.dtype) * outside)
    members = soft.label_memberships(score, preds, q, temperature)
    true = y[:, None] == jnp.arange(members.shape[1])[None]
    costs = soft.at_labels(weights, y).astype(size.dtype)
    costs *= jnp.where(true, 1 - members, members)
    return jnp.mean(size + jnp.sum(costs, axis=1))


def _threshold(loss, rank, scores):
    """Returns the threshold to differentiate, shape () or (c,)."""
    if loss.bandwidth is None:
        nearest = loss.nearest or max(math.isqrt(len(scores)), 1)
        return thresholds(scores, rank, nearest=nearest)
    quantile = partial(soft_order_statistic, bandwidth=loss.bandwidth)
    if scores.ndim == 1:
        return quantile(scores, rank)
    return jax.vmap(quantile)(scores.T, rank)


def _numbers_of(loss):
    """Returns checked numbers in one type, so that nothing is traced anew."""
    _checks.check_scalars(target_size=loss.target_size)
    soft.check_positive("temperature", loss.temperature)
    if loss.nearest is not None:
        _checks.check_count("nearest", loss.nearest, 1)
    if loss.bandwidth is not None:
        soft.check_positive("bandwidth", loss.bandwidth)
        if loss.nearest is not None:
            both = f"{loss.bandwidth} and {loss.nearest}"
            raise ValueError(f"expected one of bandwidth and nearest, got {both}")
    names = "temperature", "bandwidth", "target_size"
    numbers = {name: getattr(loss, name) for name in names}
    return jax.tree.map(lambda v: jnp.asarray(v, float), numbers)


def _check_halves(score, calibration, new):
    """Raises ValueError unless there are rows, each like those that calibrate."""
    if _checks.num_rows(preds=new[0], y=new[1]) == 0:
        raise ValueError("expected preds with at least 1 row, got 0")
    for name, *halves in zip(("preds", "y"), calibration, new, strict=True):
        cal, other = ([v.shape[1:] for v in jax.tree.leaves(tree)] for tree in halves)
        if halves[1] is not None and cal != other:
            like = f"{cal} like {name}_cal"
            raise ValueError(f"expected {name} with rows of shapes {like}, got {other}")
    inputs.check(score, *calibration)
    inputs.check(score, *new)


def _weights_of(loss, preds, y):
    """Returns weights as arrays, which must fit the labels, if there are targets."""
    weights = {name: as_arrays(**{name: getattr(loss, name)}) for name in _WEIGHTS}
    for name, value in weights.items():
        if value is not None:
            _checks.check_given(y=y)  # on which they depend
            _checks.check_weights(name, value)
            if value.ndim or name == "size_weights":
                k = jax.eval_shape(label_scores, loss.score, preds).shape[1]
                _checks.check_shape(name, (k,) * _WEIGHTS[name], value.shape)
    return weights
