"""What all online methods share: a step is a prediction and what is learnt of it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_arrays, is_rounded
from jaxcp._batching import evaluate
from jaxcp._numbers import as_float
from jaxcp._tracing import jit
from jaxcp.calibration._rows import check_digits_of_targets
from jaxcp.online._shapes import check_components, check_example
from jaxcp.quantiles.levels import Alpha, as_alpha, split_alpha
from jaxcp.scores import inputs
from jaxcp.typing import AnySet, ArrayLike, Online, PyTree, Score


class Stream:
    """A method made of `init`, `_level`, `_threshold` and `_learn`.

    `_level(state, alpha)` is what a level comes to, computed once for a stream;
    `_threshold(state, level)` the threshold of the next set; `_learn(state, pred, y,
    level, q)` the state after the target came.
    """

    score: Score
    _level: Callable[[PyTree, ArrayLike], PyTree]
    _threshold: Callable[[PyTree, PyTree], Array]
    _learn: Callable[[PyTree, PyTree, Array, PyTree, Array], PyTree]

    def predict(self, state: PyTree, pred: PyTree, alpha: ArrayLike) -> AnySet:
        """Returns the set for the next target, before it is known."""
        pred, _, level = _check_one(self, state, pred, None, alpha)
        return _predict(self, state, pred, level)

    def update(
        self, state: PyTree, pred: PyTree, y: ArrayLike, alpha: ArrayLike
    ) -> PyTree:
        """Returns the state after the target `y` of `pred` became known."""
        return self.step(state, pred, y, alpha)[0]

    def step(
        self, state: PyTree, pred: PyTree, y: ArrayLike, alpha: ArrayLike
    ) -> tuple[PyTree, AnySet]:
        """Returns the next state and the set that was predicted before `y` came."""
        _checks.check_given(y=y)
        pred, y, level = _check_one(self, state, pred, y, alpha)
        return _step(self, state, pred, y, level)

    def _advance(self, state, pred, y, level):
        q = self._threshold(state, level)
        return self._learn(state, pred, y, level, q), self.score.invert(pred, q)


def run(
    method: Online, state: PyTree, preds: PyTree, y: ArrayLike, alpha: ArrayLike
) -> tuple[PyTree, AnySet]:
    """Returns the state after a stream and the sets predicted along it.

    One `lax.scan` of `method.step`, also of a method of your own with `init` and
    `step(state, pred, y, alpha) -> (state, set)`. Feed a stream in pieces by passing
    the state on; `jax.vmap` runs many series or hyperparameters at once. (A method of
    your own is traced at every call: wrap calls that you repeat in `jax.jit`.)

    Args:
      method: An online method, from `jaxcp.online`.
      state: Its state, from `method.init` or from an earlier run.
      preds: Predictions in order of time, a pytree with leading axis t; each may use
        the targets before it.
      y: Targets, shape (t, ...), or labels.
      alpha: Miscoverage level, shape (), or (c,) for scores with c components.

    Returns:
      (state, sets): the state after the last target, and sets with leading axis t, each
      predicted before its target was seen.

    Raises:
      ValueError: if lengths differ, a concrete prediction or target is NaN or not valid
        for the score, or a number `alpha` is outside (0, 1).

    Guarantee:
      That of the method.

    Example:
      >>> from jaxcp import online, scores
      >>> method = online.ACI(scores.Absolute(), step_size=0.05)
      >>> state = method.init(jnp.arange(1.0, 20.0), 0.1)
      >>> y = 30 * jnp.sin(jnp.arange(100.0))
      >>> state, sets = run(method, state, jnp.zeros(100), y, 0.1)
      >>> round(jnp.mean(abs(y) <= sets.upper).item(), 2)
      0.9
    """
    _checks.check_given(method=method, preds=preds, y=y)
    rounded, given = is_rounded("y", y), (preds, y)
    preds, y = as_arrays(preds=preds, y=y)
    _checks.num_rows(preds=preds, y=y)
    if not isinstance(method, Stream):
        return _run_steps(method, state, preds, y, alpha)
    inputs.check_score(method.score)
    _check_state(method, state)
    inputs.check(method.score, preds, y)
    if rounded:
        scores = evaluate(method.score, preds, y)
        check_digits_of_targets(method.score, preds, y, scores, given=given)
    return _run(method, state, preds, y, method._level(state, alpha))


def past_scores(scores: ArrayLike, mask: ArrayLike | None) -> Array:
    """Returns scores of the past as floats, NaN where there is none."""
    scores, mask = as_arrays(scores=scores, mask=mask)
    if scores.ndim not in (1, 2) or not len(scores):
        raise ValueError(
            "expected past scores of shape (n,) or (n, c), at least one, got "
            f"{scores.shape}; a mask of False starts a stream without a past"
        )
    _checks.num_rows(scores=scores, mask=mask)
    _checks.check_vectors(mask=mask)
    scores = as_float(scores)
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    if mask is None:
        return scores
    mask = mask.astype(bool).reshape(-1, *(1,) * (scores.ndim - 1))
    return jnp.where(mask, scores, jnp.nan)


def split_level(alpha: ArrayLike, scores: Array) -> Alpha:
    """Returns the level, one for each component of past scores (n,) or (n, c)."""
    alpha = split_alpha(as_alpha(alpha), scores.shape[1:])
    if alpha.ndim > scores.ndim - 1:
        expected = scores.shape[1:]
        raise ValueError(f"expected alpha of shape {expected}, got {alpha.shape}")
    return alpha


def errors(score: Score, pred: PyTree, y: Array, q: Array) -> Array:
    """Returns 1 where the set at `q` misses `y`, else 0, shape () or (c,).

    With components each is judged by the set that binds it alone.
    """
    missed = lambda q: 1.0 - score.invert(pred, q).contains(y)  # noqa: E731
    if q.ndim == 0:
        return missed(q)
    return jax.vmap(missed)(jnp.where(jnp.eye(len(q), dtype=bool), q[None], jnp.inf))


@jit
def _predict(method, state, pred, level):
    check_example(method, state, pred, None, level)
    return method.score.invert(pred, method._threshold(state, level))


@jit
def _step(method, state, pred, y, level):
    check_example(method, state, pred, y, level)
    return method._advance(state, pred, y, level)


@jit
def _run(method, state, preds, y, level):
    check_components(method, state, preds, y, level)

    def step(state, row):
        return method._advance(state, *row, level)

    return lax.scan(step, state, (preds, y))


def _run_steps(method, state, preds, y, alpha):
    if not hasattr(method, "step"):
        kind = type(method).__name__
        raise ValueError(f"expected a method with init and step, got {kind}")
    as_alpha(alpha)  # the method is given it as it came
    step = lambda state, row: method.step(state, *row, alpha)  # noqa: E731
    return lax.scan(step, state, (preds, y))


def _check_state(method, state):
    """Raises ValueError for the state of another method."""
    expected = getattr(method, "state_type", object)
    if not isinstance(state, expected):
        raise ValueError(
            f"expected a state of {type(method).__name__}, {expected.__name__}, got "
            f"{type(state).__name__}"
        )


@jax.jit
def _as_batch(tree):
    return jax.tree.map(lambda v: v[None], tree)


def _check_one(method, state, pred, y, alpha):
    """Returns one example as arrays and the level, or refuses them as `run` does."""
    pred, y = as_arrays(pred=pred, y=y)
    _checks.check_given(pred=pred)
    _check_state(method, state)
    _checks.check_not_nan("pred", pred)
    _checks.check_not_nan("y", y)
    level = method._level(state, alpha)
    try:
        inputs.check(method.score, *_as_batch((pred, y)))
    except ValueError:
        check_example(method, state, pred, y, level)  # says more of a batch
        raise
    return pred, y, level
