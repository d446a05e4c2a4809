"""The loss of conformal training: how large sets calibrated in the batch would be."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_arrays
from jaxcp._batching import evaluate
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree, static
from jaxcp._tracing import jit
from jaxcp.quantiles.conformal import thresholds
from jaxcp.quantiles.levels import as_alpha, conformal_rank, split_alpha
from jaxcp.quantiles.soft import soft_order_statistic
from jaxcp.training import soft
from jaxcp.typing import ArrayLike, Number, PyTree, Score

_NUM_SAMPLES = 64  # points in a union of balls


def conformal_training_loss(
    score: Score,
    preds_cal: PyTree,
    y_cal: ArrayLike,
    preds: PyTree,
    alpha: ArrayLike,
    *,
    temperature: ArrayLike,
    bandwidth: ArrayLike | None = None,
    nearest: int | None = None,
    target_size: ArrayLike = 0.0,
    y: ArrayLike | None = None,
    size_weights: ArrayLike | None = None,
    classification_weights: ArrayLike | None = None,
    key: Array | None = None,
) -> Array:
    """Returns the mean soft size of sets that one half of a batch calibrates.

    mean_i [w(y_i) max(size_i - target_size, 0) + L_i]. Half of the batch gives the
    threshold q, the other half the soft sets at q. The classification loss L is 0, or a
    weight times 1 - m(y), m the soft membership, or with a matrix of weights
    L[y, y] (1 - m(y)) + sum over other labels c of L[y, c] m(c).

    The threshold is the exact one, its gradient that of the `nearest` scores; with a
    `bandwidth` it is the soft one. Stutz et al. minimise the log of this loss with
    target_size = 1: sets of one label cost nothing.

    Args:
      score: Nonconformity score; its hyperparameters may be trained as well.
      preds_cal: Predictions for one half of the batch, leading axis n.
      y_cal: Their targets, shape (n, ...).
      preds: Predictions for the other half, leading axis m.
      alpha: Miscoverage level, shape (), or (c,) for scores with components.
      temperature: Softness of the sets > 0, shape (), as in `soft_size`.
      bandwidth: Softness of the threshold > 0, shape (), in units of the score.
      nearest: Scores whose gradients are averaged, without a bandwidth. Defaults to
        sqrt(n), whose variance falls with n; 1 is the gradient of the threshold itself.
        Many more are biased: as their mean is below q, scales in the score drift.
      target_size: Size that costs nothing, shape (), in units of the size.
      y: Targets of the other half, shape (m, ...), for the options that need them.
      size_weights: Weight w >= 0 of the size by true label, shape (k,). Defaults to 1.
      classification_weights: Weights >= 0 of missing the target, shape (), or of every
        label in the set of each true label (rows), shape (k, k). Defaults to none.
      key: Random key, for scores whose sets are unions of balls.

    Returns:
      Loss, shape (), in units of the size. Where the half that calibrates is too small
      for alpha, sets are infinite (all labels) and the gradient is zero.

    Raises:
      ValueError: if lengths differ or rows of the halves are unlike, both `bandwidth`
        and `nearest` are given, an option lacks `y`, a number `alpha` is outside
        (0, 1), or arguments are not valid for `soft_size`.

    Guarantee:
      None: calibrate the trained model with `jaxcp.calibrate` on rows that training did
      not see; then 1 - alpha.

    References:
      Stutz, Dvijotham, Cemgil, Doucet, Learning Optimal Conformal Classifiers, 2022.
      Noorani et al., Conformal Risk Minimization with Variance Reduction, 2024.

    Example:
      >>> from jaxcp.scores import Absolute
      >>> y, zeros = jnp.arange(1.0, 10.0), jnp.zeros(4)
      >>> def width(mu):  # of intervals around mu
      ...     preds = mu + 0 * y, mu + zeros
      ...     return conformal_training_loss(
      ...         Absolute(), preds[0], y, preds[1], 0.2, temperature=0.1
      ...     )
      >>> round(width(0.0).item(), 3), round(jax.grad(width)(0.0).item(), 3)
      (16.0, -2.0)
    """
    preds_cal, y_cal, preds, y = as_arrays(
        preds_cal=preds_cal, y_cal=y_cal, preds=preds, y=y
    )
    size_weights, weights = as_arrays(
        size_weights=size_weights, classification_weights=classification_weights
    )
    if key is not None:
        _checks.check_key(key)
    objective = prepare(
        score,
        (preds_cal, y_cal),
        (preds, y),
        alpha,
        temperature=temperature,
        bandwidth=bandwidth,
        nearest=nearest,
        target_size=target_size,
        size_weights=size_weights,
        classification_weights=weights,
    )
    return loss_of(objective, score, (preds_cal, y_cal), (preds, y), key)


@pytree
class Objective:
    """A conformal training loss: the rank of its threshold, and its options."""

    rank: Array
    temperature: Number
    bandwidth: Number | None
    target_size: Number
    size_weights: Array | None
    classification_weights: Array | None
    nearest: int = static()

    def threshold(self, scores: Array) -> Array:
        """Returns the threshold to differentiate, shape () or (c,)."""
        if self.bandwidth is None:
            return thresholds(scores, self.rank, nearest=self.nearest)
        quantile = partial(soft_order_statistic, bandwidth=self.bandwidth)
        return (
            quantile(scores, self.rank)
            if scores.ndim == 1
            else jax.vmap(quantile)(scores.T, self.rank)
        )


def prepare(
    score: Score,
    calibration: tuple[PyTree, Array],
    new: tuple[PyTree, Array | None],
    alpha: ArrayLike,
    *,
    temperature: ArrayLike,
    bandwidth: ArrayLike | None = None,
    nearest: int | None = None,
    target_size: ArrayLike = 0.0,
    size_weights: Array | None = None,
    classification_weights: Array | None = None,
) -> Objective:
    """Returns the objective of checked arguments, for halves of these shapes."""
    _checks.check_given(score=score, preds=new[0])
    n = _checks.num_rows(preds_cal=calibration[0], y_cal=calibration[1])
    m = _checks.num_rows(preds=new[0], y=new[1])
    _check_alike(m, calibration, new)
    _checks.check_preds(score, *calibration)
    _checks.check_preds(score, *new)
    _checks.check_scalars(target_size=target_size)
    soft.check_positive(temperature=temperature)
    if bandwidth is not None:
        soft.check_positive(bandwidth=bandwidth)
    if bandwidth is not None and nearest is not None:
        both = f"{bandwidth} and {nearest}"
        raise ValueError(f"expected one of bandwidth and nearest, got {both}")
    nearest = max(math.isqrt(n), 1) if nearest is None else nearest
    _checks.check_count("nearest", nearest, 1)
    weights = size_weights, classification_weights
    _check_weights(score, *new, *weights)
    scores = jax.eval_shape(evaluate, score, *calibration)
    rank = rank_of(alpha, scores)
    # Of one type whatever they come as, so that new ones trace nothing.
    given = temperature, bandwidth, target_size
    temperature, bandwidth, size = jax.tree.map(lambda v: jnp.asarray(v, float), given)
    return Objective(rank, temperature, bandwidth, size, *weights, nearest)


def rank_of(alpha: ArrayLike, scores: jax.ShapeDtypeStruct) -> Array:
    """Returns the rank of the threshold of these scores, shape () or (c,)."""
    level = split_alpha(as_alpha(alpha), scores.shape[1:])
    if level.shape != scores.shape[1:]:
        raise ValueError(f"expected alpha of shape (), got {level.shape}; use jax.vmap")
    return conformal_rank(scores.shape[0], level)


@jit
def loss_of(
    objective: Objective,
    score: Score,
    calibration: tuple[PyTree, Array],
    new: tuple[PyTree, PyTree],
    key: Array | None,
) -> Array:
    """Returns `conformal_training_loss` of checked arguments."""
    (preds, y), temperature = new, objective.temperature
    q = objective.threshold(as_float(evaluate(score, *calibration)))
    size = soft.sizes(score, preds, q, temperature, key, _NUM_SAMPLES)
    size = jnp.maximum(size - jnp.asarray(objective.target_size, size.dtype), 0)
    if objective.size_weights is not None:
        by_row = soft.at_labels(objective.size_weights, y).astype(size.dtype)
        size = jnp.where(by_row > 0, by_row * size, 0)  # 0 * inf is 0 here
    weights = objective.classification_weights
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


def _check_weights(score, preds, y, size_weights, weights):
    """Raises ValueError unless weights of labels fit them and the targets are there."""
    if y is None and not (size_weights is None and weights is None):
        raise ValueError("expected y, which size and classification weights go by")
    for name, value, ndim in [
        ("size_weights", size_weights, 1),
        ("classification_weights", weights, 2),
    ]:
        if value is not None:
            _checks.check_weights(name, value)
        if value is not None and (value.ndim or ndim == 1):
            _check_labels_of(score, preds, name, value.shape, ndim)


def _check_alike(m, calibration, new):
    """Raises ValueError unless there are rows, each like those that calibrate."""
    if m == 0:
        raise ValueError("expected preds with at least 1 row, got 0")
    for name, cal, other in zip(("preds", "y"), calibration, new, strict=True):
        leaves = (jax.tree.leaves(tree) for tree in (cal, other))
        shapes = [[v.shape[1:] for v in each] for each in leaves]
        if other is not None and shapes[0] != shapes[1]:
            raise ValueError(
                f"expected {name} with rows of shapes {shapes[0]} like {name}_cal, "
                f"got {shapes[1]}"
            )


def _check_labels_of(score, preds, name, shape, ndim):
    if not hasattr(score, "labels"):
        kind = type(score).__name__
        raise ValueError(f"expected a score of labels for {name}, got {kind}")
    k = jax.eval_shape(soft.labels_of, score, preds).shape[1]
    if shape != (k,) * ndim:
        raise ValueError(f"expected {name} of shape {(k,) * ndim}, got {shape}")
