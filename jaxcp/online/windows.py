"""Windows of the latest scores: sliding, and weighted by age."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._tree import pytree, static
from jaxcp.certificates.promises import COVERED, Promised
from jaxcp.online import stream
from jaxcp.quantiles.levels import conformal_rank
from jaxcp.quantiles.thresholds import threshold_at
from jaxcp.typing import ArrayLike, Number, Score


@pytree
class Window:
    """The latest w scores. Kept sorted: a new one shifts those between it and the old.

    A stream asks for a threshold at every step: keeping the order costs one pass where
    selection would take thirty.

    Args:
      scores: A ring in order of time, shape (w,) or (w, c); NaN where one is absent.
      ordered: The same scores in order of size, along the first axis; +inf for none.
      oldest: Place of the oldest score, int of shape ().
      count: Number of scores, int of shape (), or None for w.
    """

    scores: Array
    ordered: Array
    oldest: Array
    count: Array | None

    def push(self, score: Array) -> Window:
        """Returns the window with a new score in the place of the oldest."""
        score = jnp.where(jnp.isnan(score), jnp.inf, score).astype(self.scores.dtype)
        scores = self.scores.at[self.oldest].set(score)
        gone, count = self.scores[self.oldest], self.count
        if count is not None:
            count = count + jnp.isnan(gone if gone.ndim == 0 else gone[0])
            gone = jnp.where(jnp.isnan(gone), jnp.inf, gone)
        replace = jax.vmap(_replace, (1, 0, 0), 1) if score.ndim else _replace
        ordered = replace(self.ordered, gone, score)
        return Window(scores, ordered, (self.oldest + 1) % len(scores), count)

    @property
    def size(self) -> Array | int:
        """The number of scores in the window."""
        return len(self.scores) if self.count is None else self.count


def make_window(scores, mask, size=None):
    """Returns the window of past scores in order of time, the latest `size` or all."""
    scores = stream.past_scores(scores, mask)
    if size is not None:
        _checks.check_count("window", size, 1)
        n = len(scores)
        if size > n:
            raise ValueError(f"expected at least window = {size} past scores, got {n}")
        scores = scores[-size:]
    return _in_order(scores, mask is None)


@jax.jit(static_argnames="full")
def _in_order(scores, full):
    ordered = jnp.sort(jnp.where(jnp.isnan(scores), jnp.inf, scores), axis=0)
    count = None if full else jnp.sum(stream.known(scores))
    return Window(scores, ordered, jnp.zeros((), int), count)


def pick(ordered: Array, rank: Array) -> Array:
    """Returns the scores of a rank, () or (c,); -inf below 1 and +inf beyond all."""
    stream.check_rank(jnp.issubdtype(jnp.result_type(rank), jnp.integer), rank)
    if ordered.ndim == 2:
        return jax.vmap(pick, (1, 0))(ordered, rank)
    w = len(ordered)
    value = ordered[jnp.clip(rank - 1, 0, w - 1)]
    return jnp.where(rank < 1, -jnp.inf, jnp.where(rank > w, jnp.inf, value))


def nexcp_weights(n: int, decay: ArrayLike) -> Array:
    """Returns weights that fade with age: decay^(n + 1 - i) for the i-th of n rows.

    Args:
      n: Number of rows in order of time, the newest last.
      decay: Factor in (0, 1] from one row to the one before it, shape ().

    Returns:
      Weights for `calibrate`, for `calibration_weights` of `cv_plus` and others, or for
      `weighted_conformal_quantile`, shape (n,). The test point has weight 1.

    Raises:
      ValueError: if a concrete `decay` is outside (0, 1].

    Guarantee:
      At least 1 - alpha minus the weighted total variation distance from
      exchangeability.

    Assumption:
      Weights that do not depend on the data.

    Cost:
      n numbers.

    References:
      Barber, Candes, Ramdas, Tibshirani, Conformal Prediction Beyond Exchangeability,
      Annals of Statistics, 2023.

    See also:
      calibrate, weighted_conformal_quantile, online.NexCP

    Example:
      >>> nexcp_weights(3, 0.5).tolist()
      [0.125, 0.25, 0.5]
    """
    _checks.check_count("n", n, 0)
    _check_decay(decay)
    return jnp.asarray(decay, float) ** jnp.arange(n, 0, -1)


def _check_decay(decay):
    _checks.check_number("decay", decay, lambda d: (d > 0) & (d <= 1), "in (0, 1]")


@pytree
class SlidingState:
    """State of `SlidingWindow`: the window, the one in use, and steps since then."""

    window: Window
    used: Window
    steps: Array


@pytree
class SlidingWindow(stream.Stream):
    """The conformal quantile of the latest scores: EnbPI's rolling threshold.

    The window has the length of the past scores. After each `every`-th step its oldest
    scores leave and the newest `every` enter, across runs: the state persists.

    Args:
      score: The nonconformity score.
      every: Steps between updates, at least 1; may exceed the length of a run.
      empirical: Whether the threshold is the ceil((1 - alpha) w)-th smallest of the w
        scores, as in the papers, instead of the conformal rank
        ceil((1 - alpha)(w + 1)), which is never narrower.

    Guarantee:
      Asymptotic: conditional coverage tends to 1 - alpha (EnbPI). At least 1 - alpha if
      the window and the next score are exchangeable and `empirical` is False.

    Assumption:
      Strongly mixing errors and consistent predictions.

    Cost:
      O(w) time for a step with a window of w scores, without a sort.

    References:
      Xu, Xie, Conformal Prediction Interval for Dynamic Time-Series, ICML, 2021.

    See also:
      enbpi, CrossConformal.stream, online.NexCP, online.run

    Example:
      >>> from jaxcp import online, scores
      >>> method = online.SlidingWindow(scores.Absolute(), every=2)
      >>> state = method.init(jnp.arange(1.0, 10.0), 0.2)
      >>> y = jnp.arange(20.0, 24.0)
      >>> state, sets = online.run(method, state, jnp.zeros(4), y, 0.2)
      >>> sets.upper.tolist()
      [8.0, 8.0, 20.0, 20.0]
    """

    score: Score
    every: int = static(default=1)
    empirical: bool = static(default=False)
    state_type: ClassVar = SlidingState
    promise = f"{COVERED}, as rows become many, or from the start without `empirical`"
    assumption = (
        "errors mix strongly and predictions become right; or, from the start, scores "
        "of the window and the next one are exchangeable"
    )

    def init(
        self, scores: ArrayLike, alpha: ArrayLike, *, mask: ArrayLike | None = None
    ) -> SlidingState:
        """Returns the state after past scores, shape (w,) or (w, c), by time.

        The window has their length w. Rows where `mask`, shape (w,), is False are
        absent, and are replaced first; all False starts a stream without a past.
        """
        del alpha  # every step is given its own
        _checks.check_count("every", self.every, 1)
        window = make_window(scores, mask)
        return SlidingState(window, window, jnp.zeros((), int))

    def rank(self, state: SlidingState, alpha: ArrayLike) -> Array:
        """Returns the rank, or the ranks of 0, ..., w scores if some are absent."""
        scores, count = state.window.scores, state.window.count
        alpha = stream.component_alpha(alpha, scores.shape[1:])
        counts = np.asarray(len(scores))
        if count is not None:
            counts = np.arange(len(scores) + 1).reshape(-1, *(1,) * alpha.ndim)
        # w - floor(alpha w), the empirical rank, is the conformal one of w - 1 scores.
        return conformal_rank(np.maximum(counts - self.empirical, 0), alpha)

    def threshold(self, state, rank):
        used = state.used
        return pick(used.ordered, rank if used.count is None else rank[used.count])

    def learn(self, state, pred, y, rank, q):
        window = state.window.push(self.score(pred, y))
        steps = (state.steps + 1) % self.every
        update = lambda new, old: jnp.where(steps == 0, new, old)  # noqa: E731
        used = window if self.every == 1 else jax.tree.map(update, window, state.used)
        return SlidingState(window, used, steps)


@pytree
class NexCP(stream.Stream):
    """The weighted conformal quantile of the latest scores, weights falling with age.

    The newest of the w scores has weight `decay`, the one before it decay^2, and the
    test point 1 (`nexcp_weights`).

    Args:
      score: The nonconformity score.
      decay: Factor from one score to the one before it, in (0, 1], shape ().

    Guarantee:
      At least 1 - alpha minus the weighted total variation distance from
      exchangeability.

    Assumption:
      None on the data; weights do not depend on it.

    Cost:
      O(w) time for a step with a window of w scores, without a sort: one weighted
      selection.

    References:
      Barber, Candes, Ramdas, Tibshirani, Conformal Prediction Beyond Exchangeability,
      Annals of Statistics, 2023.

    See also:
      online.nexcp_weights, online.SlidingWindow, weighted_conformal_quantile

    Example:
      >>> from jaxcp import online, scores
      >>> method = online.NexCP(scores.Absolute(), 0.9)
      >>> state = method.init(jnp.arange(20.0), 0.2)
      >>> method.predict(state, jnp.array(0.0), 0.2).upper
      Array(19., dtype=float32)
    """

    score: Score
    decay: Number
    promise = f"{COVERED} {Promised._distance}"
    assumption = "weights that do not depend on the data"

    def init(
        self, scores: ArrayLike, alpha: ArrayLike, *, mask: ArrayLike | None = None
    ) -> Array:
        """Returns the past scores, shape (w,) or (w, c): the state is the window.

        Rows where `mask`, shape (w,), is False are absent: NaN in the state.
        """
        del alpha
        _check_decay(self.decay)
        return stream.past_scores(scores, mask)

    def rank(self, state, alpha):
        return stream.as_floats(stream.component_alpha(alpha, state.shape[1:]))

    def threshold(self, state, rank):
        weights = nexcp_weights(len(state), self.decay)
        weights = jnp.where(stream.known(state), weights, 0)
        return threshold_at(state, jnp.asarray(rank), None, weights)

    def learn(self, state, pred, y, rank, q):
        return shifted(state, self.score(pred, y))


def shifted(past: Array, score: Array) -> Array:
    """Returns scores in order of time with a new one, and without the oldest."""
    score = jnp.where(jnp.isnan(score), jnp.inf, score).astype(past.dtype)
    return jnp.concatenate([past[1:], score[None]])


def _replace(ordered: Array, old: Array, new: Array) -> Array:
    """Returns sorted values v with one `old` replaced by `new`, in order."""
    place = jnp.arange(len(ordered))
    leaves = jnp.sum(ordered < old)  # v[leaves] = old
    enters = jnp.sum(ordered < new) - (old < new)  # among those that stay
    # new[i] = v[i + 1] for leaves <= i < enters, v[i - 1] for enters < i <= leaves.
    up = jnp.concatenate([ordered[1:], ordered[-1:]])
    down = jnp.concatenate([ordered[:1], ordered[:-1]])
    moved = jnp.where((leaves <= place) & (place < enters), up, ordered)
    moved = jnp.where((enters < place) & (place <= leaves), down, moved)
    return jnp.where(place == enters, new, moved)
