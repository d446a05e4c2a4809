"""Learners made of the user's own functions, and of other learners."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._numbers import as_float
from jaxcp._tree import jit, pytree, static
from jaxcp.learners._hosting import can_call, has
from jaxcp.typing import AnyLearner, ChecksData, FitsOnHost, Learner, Number, PyTree


@pytree
class FunctionLearner:
    """A pair of pure functions as a learner.

    `learners.check` tells whether it leaves out rows of weight 0. For models of other
    libraries take `Estimator`.

    Args:
      fit: `(key, x, y, weights) -> params`; it gets weights with zeros, and must give
        these rows no part in the fit.
      predict: `(params, x) -> preds`, over the leading axis of x.

    Guarantee:
      None of its own; the verb that takes the learner has one.

    Assumption:
      Pure functions that give rows of weight 0 no part in the fit.

    Cost:
      That of the functions, compiled once; all resamples are fitted in one program.

    See also:
      learners.check, learners.Estimator, learners.GradientLearner

    Example:
      >>> mean = FunctionLearner(
      ...     lambda key, x, y, weights: weights @ y / weights.sum(),
      ...     lambda params, x: jnp.full(len(x), params),
      ... )
      >>> x, y = jnp.zeros((3, 1)), jnp.array([1.0, 2.0, 9.0])
      >>> mean.fit(jax.random.key(0), x, y, jnp.array([1.0, 1.0, 0.0])).item()
      1.5
    """

    fit: Callable[[Array, PyTree, Array, Array], PyTree] = static()
    predict: Callable[[PyTree, PyTree], PyTree] = static()


@pytree
class GradientLearner:
    """Any differentiable model, trained by an optax optimizer in one scan.

    Mini-batches are drawn with replacement, each row in proportion to its weight; rows
    of weight zero are never seen. Without a batch size every step takes the weighted
    mean loss of all rows. Functions must be pure: they are traced once. Define them and
    the optimizer once: each new one compiles anew.

    Args:
      init: `key -> params`.
      predict: `(params, x) -> preds`, over the leading axis of x.
      loss: `(pred, y) -> ()` for one example.
      optimizer: An `optax.GradientTransformation`.
      num_steps: Number of optimizer steps.
      batch_size: Rows in a mini-batch, or None for all.

    Guarantee:
      None of its own; the verb that takes the learner has one.

    Assumption:
      Pure functions, and a loss that has a gradient.

    Cost:
      `num_steps` gradients of a mini-batch for each fit; all resamples train in one
      program.

    See also:
      learners.FunctionLearner, learners.Estimator, training.SizeLoss

    Example:
      >>> import optax
      >>> learner = GradientLearner(
      ...     init=lambda key: jnp.zeros(()),
      ...     predict=lambda params, x: params * x[:, 0],
      ...     loss=optax.squared_error,
      ...     optimizer=optax.sgd(0.1),
      ...     num_steps=50,
      ... )
      >>> x = jnp.array([[1.0], [2.0]])
      >>> params = learner.fit(jax.random.key(0), x, 3 * x[:, 0], jnp.ones(2))
      >>> round(params.item(), 3)
      3.0
    """

    init: Callable[[Array], PyTree] = static()
    predict: Callable[[PyTree, PyTree], PyTree] = static()
    loss: Callable[[PyTree, Array], Array] = static()
    optimizer: PyTree = static()
    num_steps: int = static()
    batch_size: int | None = static(default=None)
    holds_out = symmetric = True  # see typing.Learner

    def fit(self, key: Array, x: PyTree, y: Array, weights: Array) -> PyTree:
        """Returns the parameters after the last step."""
        return _descend(self, key, x, y, weights)

    def check(self, x: PyTree, y: Array) -> None:
        """Raises ValueError unless steps and rows of a mini-batch are counts."""
        _checks.check_count("num_steps", self.num_steps, 0)
        if self.batch_size is not None:
            _checks.check_count("batch_size", self.batch_size, 1)

    def _mean_loss(self, params, x, y, weights, rows):
        if rows is not None:
            x, y = jax.tree.map(lambda v: v[rows], (x, y))
        losses = jax.vmap(self.loss)(self.predict(params, x), y)
        if losses.ndim != 1:
            raise ValueError(
                f"expected a loss of shape () for one example, got {losses.shape[1:]}"
            )
        if rows is not None:
            return jnp.mean(losses)
        total = jnp.sum(weights)
        return jnp.sum(weights * losses) / jnp.where(total > 0, total, 1)


@pytree
class MeanScale:
    """A learner of the mean and one of the size of its errors: predictions (mu, sigma).

    sigma is fitted to abs(y - mu) on the rows that mu was fitted on, and is at least
    `floor` times the mean of these. `Normalized` reads such predictions; adaptive
    EnbPI is `enbpi` with the two.

    Args:
      mean: Learner of the target.
      scale: Learner of the absolute errors.
      floor: Smallest sigma, as a share of the mean absolute error, shape ().

    Guarantee:
      None of its own; the verb that takes the learner has one.

    Assumption:
      None for coverage; sets of the right width need errors whose size the second
      learner can predict.

    Cost:
      One fit of each learner, and predictions for the training rows.

    References:
      Papadopoulos, Gammerman, Vovk, Normalized Nonconformity Measures for Regression
      Conformal Prediction, Artificial Intelligence and Applications, 2008.

    See also:
      scores.Normalized, learners.Ridge, enbpi

    Example:
      >>> from jaxcp.learners import Ridge
      >>> learner = MeanScale(Ridge(1.0), Ridge(1.0))
      >>> x, y = jnp.zeros((4, 1)), jnp.array([1.0, -1.0, 1.0, -1.0])
      >>> params = learner.fit(jax.random.key(0), x, y, jnp.ones(4))
      >>> learner.predict(params, x[:1])
      (Array([0.], dtype=float32), Array([1.], dtype=float32))
    """

    mean: Learner
    scale: Learner
    floor: Number = 0.1
    holds_out = symmetric = True  # see typing.Learner

    def fit(self, key: Array, x: PyTree, y: Array, weights: Array) -> PyTree:
        """Returns the parameters of both learners and the smallest scale."""
        key_mean, key_scale = jax.random.split(key)
        mean = self.mean.fit(key_mean, x, y, weights)
        errors = jnp.abs(y - self.mean.predict(mean, x))
        scale = self.scale.fit(key_scale, x, errors, weights)
        weights = jnp.asarray(weights, errors.dtype)
        total = jnp.sum(weights)
        lowest = jnp.tensordot(weights, errors, 1) / jnp.where(total > 0, total, 1)
        return mean, scale, self.floor * lowest

    def check(self, x: PyTree, y: Array) -> None:
        """Raises ValueError for a negative floor, or as the two learners."""
        _checks.check_values(lambda v: v >= 0, "floor >= 0", self.floor)
        for learner in (self.mean, self.scale):
            check_refitted(learner)
            check_learner(learner, x, y)

    def predict(self, params: PyTree, x: PyTree) -> tuple[Array, Array]:
        """Returns (mu, sigma), each like the targets."""
        mean, scale, lowest = params
        sigma = self.scale.predict(scale, x)
        return self.mean.predict(mean, x), jnp.maximum(sigma, lowest[None])


def check_refitted(learner: AnyLearner) -> None:
    """Raises ValueError for models that cannot be fitted anew inside of a program."""
    _checks.check_given(learner=learner)
    if isinstance(learner, FitsOnHost) or _is_model(learner):
        raise ValueError(
            f"expected a learner of jax, got {type(learner).__name__}, a model that "
            "programs cannot fit; take one of jaxcp.learners (Ridge, KernelRidge, "
            "GradientLearner), or split_conformal or cv_plus, which takes "
            "learners.Estimator(model), as fit_quantile does"
        )


def check_learner(learner: AnyLearner, x: PyTree, y: Array) -> None:
    """Raises ValueError for no learner, or for data that it cannot be fitted with."""
    _checks.check_given(learner=learner)
    if isinstance(learner, FitsOnHost):
        return
    instead = "learners.FunctionLearner(fit, predict)"
    cure = f"; wrap two functions as {instead}, a model as learners.Estimator(model)"
    _checks.check_kind("a learner with fit and predict", learner, Learner, cure)
    check_refitted(learner)
    _checks.check_pytree("learner", learner, instead)
    if isinstance(learner, ChecksData):
        learner.check(x, y)


def _is_model(learner):
    """Returns whether something fits as models of scikit-learn do, not as a learner."""
    if not jax.tree_util.all_leaves([learner]):
        return False
    return has(learner, "get_params") or not can_call(learner.fit, 4)


@jit
def _descend(learner, key, x, y, weights):
    import optax

    key_init, key_steps = jax.random.split(key)
    params, weights = learner.init(key_init), as_float(weights)
    mass, size = jnp.cumsum(weights), learner.batch_size

    def step(carry, key):
        params, state = carry
        rows = None if size is None else _draw(key, mass, size)
        grads = jax.grad(learner._mean_loss)(params, x, y, weights, rows)
        updates, state = learner.optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    keys = jax.random.split(key_steps, learner.num_steps)
    start = params, learner.optimizer.init(params)
    return lax.scan(step, start, keys)[0][0]


def _draw(key, mass, size):
    u = jax.random.uniform(key, (size,), mass.dtype)
    # In (0, total]: the first row that reaches it has a weight.
    return jnp.searchsorted(mass, mass[-1] * (1 - u))


@pytree
class Shared:
    """A part of a learner's parameters that depends on the inputs x alone.

    A learner that keeps its training inputs wraps them: n refits then keep them once,
    and compute once what depends on them alone (a kernel matrix). A part that varies
    with the key or the weights raises ValueError; targets may vary where one learner is
    fitted to the errors of another, as in `MeanScale`.

    Args:
      value: Any pytree computed from x.

    See also:
      typing.Learner, learners.KernelRidge

    Example:
      >>> Shared(jnp.zeros(3)).value.shape
      (3,)
    """

    value: PyTree


def axes(params: PyTree) -> PyTree:
    """Returns the axis of the fits for each part: None for what they share."""
    axis = lambda part: None if is_shared(part) else 0  # noqa: E731
    return jax.tree.map(axis, params, is_leaf=is_shared)


def take(params: PyTree, index: Array | int | slice) -> PyTree:
    """Returns the parameters of the fits `index`, shared parts as they are."""
    taken = lambda part: part if is_shared(part) else part[index]  # noqa: E731
    return jax.tree.map(taken, params, is_leaf=is_shared)


def predict_each(learner: Learner, params: PyTree, x: PyTree) -> PyTree:
    """Returns the prediction of each fit for its own row of x, leading axis n."""

    def predict(params, row):
        return learner.predict(params, jax.tree.map(lambda v: v[None], row))

    preds = jax.vmap(predict, (axes(params), 0))(params, x)
    return jax.tree.map(lambda v: v[:, 0], preds)


def is_shared(part: PyTree) -> bool:
    """Returns whether a part of the parameters is shared."""
    return isinstance(part, Shared)
