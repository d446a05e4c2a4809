"""What all online methods share: a step predicts a set and learns from its target."""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array, as_arrays, check_digits_of_sets, is_rounded
from jaxcp._batching import evaluate, score_of
from jaxcp._numbers import as_float, varying_like
from jaxcp._tree import jit
from jaxcp.certificates.promises import Promised
from jaxcp.held.taking import check_digits_of_targets
from jaxcp.online import delayed
from jaxcp.quantiles.levels import Alpha, as_alpha, split_alpha
from jaxcp.scores import inputs
from jaxcp.typing import AnySet, ArrayLike, Online, PyTree, Score

_MISSING = (
    "; a target that never came teaches nothing: predict(state, pred, alpha) gives the "
    "set of its row, and run and update go on without the row"
)


class Stream(Promised, ABC):
    """A method that keeps sets calibrated on a stream: the base of your own.

    Decorate the class with `jaxcp.pytree` and give it a field `score` and three
    functions of one example; `predict`, `quantile`, `update`, `step` and `run` come
    from them.

    * `init(scores, alpha, *, mask=None)` returns the state, a pytree of arrays, before
      the stream, from past scores in order of time, shape (n,) or (n, c).
    * `threshold(state, rank)` returns the threshold of the next set, shape () or (c,).
    * `learn(state, pred, y, rank, q)` returns the state after the target came, of the
      same shapes and types as before; `q` is the threshold of the set for it, which
      missed it where score(pred, y) > q. Where the target came late that is not the
      threshold of `state`.

    `rank` is the result of `rank(state, alpha)`, computed once for a stream: by default
    alpha as a float, one for each of c components. `state_type` may name the class of
    your states; other states are then refused. `promise` and `assumption` may say in
    words what the sets keep to, with a place for {alpha}, as for a `Rule`.

    Guarantee:
      None of its own: that of the thresholds.

    Assumption:
      Those of the thresholds.

    Cost:
      One `threshold` and one `learn` for a step.

    See also:
      online.run, online.ACI, pytree, typing.Online

    Example:
      >>> @jaxcp.pytree
      ... class LargestScore(jaxcp.online.Stream):
      ...     score: jaxcp.typing.Score
      ...     def init(self, scores, alpha, *, mask=None):
      ...         return jnp.max(scores, axis=0)
      ...     def threshold(self, state, rank):
      ...         return state
      ...     def learn(self, state, pred, y, rank, q):
      ...         return jnp.maximum(state, self.score(pred, y))
      >>> method = LargestScore(jaxcp.scores.Absolute())
      >>> state = method.init(jnp.arange(3.0), 0.1)
      >>> y = jnp.array([1.0, 5.0, 3.0])
      >>> state, sets = jaxcp.online.run(method, state, jnp.zeros(3), y, 0.1)
      >>> sets.upper.tolist()
      [2.0, 2.0, 5.0]
    """

    score: Score
    state_type: ClassVar[type] = object
    _over = ""

    @abstractmethod
    def init(
        self, scores: ArrayLike, alpha: ArrayLike, *, mask: ArrayLike | None = None
    ) -> PyTree:
        """Returns the state before the stream, from past scores in order of time."""

    @abstractmethod
    def threshold(self, state: PyTree, rank: PyTree) -> Array:
        """Returns the threshold of the next set, shape () or (c,)."""

    @abstractmethod
    def learn(
        self, state: PyTree, pred: PyTree, y: Array, rank: PyTree, q: Array
    ) -> PyTree:
        """Returns the state after the target of a set at threshold `q` came."""

    def rank(self, state: PyTree, alpha: ArrayLike) -> PyTree:
        """Returns the ranks for alpha, or alpha as a float, once for a stream.

        The default is alpha as a float, shape () or (c,), shared out over components.
        """
        return as_floats(component_alpha(alpha, _some_threshold(self, state).shape))

    def predict(self, state: PyTree, pred: PyTree, alpha: ArrayLike) -> AnySet:
        """Returns the set for the next target, before it is known."""
        return issued(self, state, pred, alpha)[1]

    def quantile(self, state: PyTree, alpha: ArrayLike) -> Array:
        """Returns the threshold of the next set, shape () or (c,).

        Where targets come late it is kept with the prediction, for `update`.
        """
        _check_state(self, state)
        method, own = delayed.method_of(self, state), delayed.learned(state)
        return _quantile(method, own, self.rank(own, alpha))

    def update(
        self,
        state: PyTree,
        pred: PyTree,
        y: ArrayLike,
        alpha: ArrayLike,
        *,
        threshold: ArrayLike | None = None,
    ) -> PyTree:
        """Returns the state after the target `y` of `pred` became known.

        Args:
          state: The state of now.
          pred: The prediction that a set was issued for, of one example.
          y: Its target, or label.
          alpha: Level of the sets.
          threshold: `quantile(state, alpha)` when that set was issued, shape () or
            (c,): a target that comes late is charged to its own set. Defaults to the
            threshold of now. A state with a delay keeps thresholds itself and takes
            none: it is then a `step`.

        Raises:
          ValueError: as `run`, and for a threshold of another shape, or NaN, or with a
            state that has a delay.

        Example:
          >>> from jaxcp import online, scores
          >>> method = online.ACI(scores.Absolute(), step_size=0.1)
          >>> state, pred = method.init(jnp.arange(1.0, 20.0), 0.2), jnp.array(0.0)
          >>> first = method.quantile(state, 0.2)
          >>> for _ in range(3):  # targets of other rows come: sets shrink
          ...     state = method.update(state, pred, 0.0, 0.2)
          >>> first.item(), method.quantile(state, 0.2).item()
          (16.0, 15.0)
          >>> state = method.update(state, pred, 15.5, 0.2, threshold=first)
          >>> round(state.alpha.item(), 2)  # its own set held it
          0.28
        """
        if threshold is None:
            return self.step(state, pred, y, alpha)[0]
        delayed.check_waits_for_none(state)
        _checks.check_given(y=y)
        q = as_array("threshold", threshold)
        _checks.check_not_nan("threshold", q)
        pred, y, rank = _one_example(self, state, pred, y, alpha)
        return _settle(self, state, pred, y, rank, q)

    def step(
        self, state: PyTree, pred: PyTree, y: ArrayLike, alpha: ArrayLike
    ) -> tuple[PyTree, AnySet]:
        """Returns the next state and the set that was predicted before `y` came.

        A state with a delay of D steps keeps the row, and learns that of D steps ago.
        """
        _checks.check_given(y=y)
        given = state, pred, y
        pred, y, rank = _one_example(self, state, pred, y, alpha)
        after, found = _step(self, state, pred, y, rank)
        again = lambda: self.step(_widest(given[0]), *given[1:], alpha)[1]  # noqa: E731
        return after, check_digits_of_sets("preds", given[1], found, again)

    _own_delay = property(lambda self: 0)

    def _threshold_for(self, state, pred, rank):
        """Returns the threshold of the set for a prediction."""
        return self.threshold(state, rank)

    def _coded(self, preds):
        """Returns predictions with names as numbers."""
        return preds

    def _late(self, delay):
        """Returns the method for targets that come `delay` steps late."""
        return self

    def _started(self, state, rank):
        """Returns the state of `init` as one of a method for late targets."""
        return state


@_checks.by_labels
def run(
    method: Online,
    state: PyTree,
    preds: PyTree,
    y: ArrayLike,
    alpha: ArrayLike,
    *,
    delay: int | None = None,
) -> tuple[PyTree, AnySet]:
    """Returns the state after a stream and the sets predicted along it.

    One `lax.scan` of `method.step`, also of a method of your own with `init` and
    `step(state, pred, y, alpha) -> (state, set)`. Feed a stream in pieces by passing
    the state on; `jax.vmap` runs many series or hyperparameters at once. (A method of
    your own is traced at every call: wrap calls that you repeat in `jax.jit`.)

    Where targets come late `delay` is the number of steps D: step t learns row t - D,
    at the threshold that was issued for it. `y` is as without a delay: the target of
    each row stands beside its prediction, as past data have it, and waits in the state.
    A live service, which does not know the target of now, takes `online.Queue`, or
    `quantile` and `update(..., threshold=)`: the thresholds are the same, of `Similar`
    and `SPCI` with a `delay` of their own, for they read the lags that are known.

    Args:
      method: An online method, from `jaxcp.online`.
      state: Its state, from `method.init` or from an earlier run.
      preds: Predictions in order of time, a pytree with leading axis t; each may use
        the targets before it.
      y: Targets, shape (t, ...), or labels.
      alpha: Miscoverage level, shape (), or (c,) for scores with c components.
      delay: How many steps late targets come, an int; it may exceed the length of the
        stream: then nothing is learned yet. A state with a delay goes on with its own.
        Defaults to that of the state or the method, else 0.

    Returns:
      (state, sets): the state after the last target, a `Delayed` one where there is a
      delay, and sets with leading axis t, each predicted before its target was seen.

    Raises:
      ValueError: if lengths differ, a concrete prediction or target is NaN or not valid
        for the score, or a number `alpha` is outside (0, 1); for a `delay` unlike that
        of the state, or of a method that is no `online.Stream`; where rows have other
        shapes or types than those that wait.

    Guarantee:
      That of the method. With a delay of D steps, of ACI and tracking: their bound with
      D + 1 times the step size in place of one, on the mean error of the T - D rows
      that were learned. Proof: q (or alpha) is step_size times the sum of their errors
      less alpha away from its start; beyond its range new sets do not err in the one
      direction, and at most D + 1 rows issued before still move it. `DtACI` may cover
      much less, the more the later targets come: take `ACI`.

    Assumption:
      That of the method; each prediction uses earlier targets at most.

    Cost:
      t steps in one `lax.scan`, and O(D) memory of the state with a delay of D steps.
      One compilation for a method of the library and shapes;
      a method of your own that is no `online.Stream` is traced at every call.

    References:
      Gibbs, Candes, Adaptive Conformal Inference Under Distribution Shift, NeurIPS,
      2021 (their argument, with a delay).

    See also:
      online.Delayed, online.Queue, online.Stream, online.ACI, online.PID

    Example:
      >>> from jaxcp import online, scores
      >>> method = online.ACI(scores.Absolute(), step_size=0.05)
      >>> state = method.init(jnp.arange(1.0, 20.0), 0.1)
      >>> y = 30 * jnp.sin(jnp.arange(100.0))
      >>> state, sets = run(method, state, jnp.zeros(100), y, 0.1)
      >>> round(jnp.mean(abs(y) <= sets.upper).item(), 2)
      0.9
      >>> start = method.init(jnp.arange(1.0, 20.0), 0.1)
      >>> late, sets = run(method, start, jnp.zeros(60), y[:60], 0.1, delay=24)
      >>> late, more = run(method, late, jnp.zeros(40), y[60:], 0.1)  # goes on
      >>> int(late.steps), type(late.state).__name__
      (100, 'ACIState')
    """
    _checks.check_given(method=method)
    delayed.check_delay(state, delay)
    start = state
    preds = method._coded(preds) if isinstance(method, Stream) else preds
    rounded, given = is_rounded("y", y), (preds, y)
    preds, y = _checks.rows(preds=preds, y=y)
    if not isinstance(method, Stream):
        _checks.check_kind("a method with init and step", method, Online)
        if delay:
            _checks.check_kind("a jaxcp.online.Stream for a delay", method, Stream)
        as_alpha(alpha)  # the method is given it as it came
        state = _varying(state, (preds, y, alpha))
        return lax.scan(lambda s, row: method.step(s, *row, alpha), state, (preds, y))
    _check_state(method, state)
    inputs.check(method.score, preds, y, missing=_MISSING)
    if rounded:
        scores = evaluate(method.score, preds, y)
        check_digits_of_targets(method.score, preds, y, scores, None, given)
    rank = method.rank(delayed.learned(state), alpha)
    if not isinstance(state, delayed.Delayed):
        delay = method._own_delay if delay is None else delay
        late = method._late(delay)
        if delay:
            begin = late._started(state, rank)  # not in `_start`: as `init` compiled it
            state = _start(late, begin, preds, y, rank, delay)
    state, sets = _run(method, state, preds, y, rank)
    again = lambda: run(method, _widest(start), *given, alpha, delay=delay)[1]  # noqa: E731
    return state, check_digits_of_sets("preds", given[0], sets, again)


def _widest(state: PyTree) -> PyTree:
    """Returns a state with its floats in the default type, which may be wider now."""
    is_float = lambda v: jnp.issubdtype(jnp.result_type(v), jnp.floating)  # noqa: E731
    return jax.tree.map(lambda v: v.astype(float) if is_float(v) else v, state)


@_checks.by_labels
def past_scores(scores: ArrayLike, mask: ArrayLike | None) -> Array:
    """Returns scores of the past as floats, NaN where there is none."""
    scores, mask = _checks.rows(scores=scores, mask=_checks.mask(mask))
    _checks.check_kind("past scores, as cp.scores", scores, Array)
    if scores.ndim not in (1, 2) or not len(scores):
        raise ValueError(
            "expected past scores of shape (n,) or (n, c), at least one, got "
            f"{scores.shape}; a mask of False starts a stream without a past"
        )
    return _as_past(scores, mask)


def component_alpha(alpha: ArrayLike, components: tuple[int, ...]) -> Alpha:
    """Returns alpha read exactly, for each of the components of a threshold."""
    alpha = split_alpha(alpha, components)
    if alpha.shape != components:
        raise ValueError(f"expected alpha of shape {components}, got {alpha.shape}")
    return alpha


def check_rank(is_rank: bool, rank: Any) -> None:
    """Raises ValueError for an alpha in place of what a method makes of it."""
    if not is_rank:
        expected = "rank as method.rank(state, alpha) returns it"
        raise ValueError(f"expected {expected}, got {rank}")


def as_floats(alpha: Alpha) -> Array | np.ndarray:
    """Returns alpha as floats, on the host where it is known: a step is then faster."""
    if isinstance(alpha, Array):
        return alpha
    return np.asarray(alpha, jax.dtypes.canonicalize_dtype(float))


def known(scores: Array) -> Array:
    """Returns in which rows of `past_scores` there is a score, bool (n,)."""
    return ~jnp.isnan(scores.reshape(len(scores), -1)[:, 0])


@jax.jit
def _as_past(scores, mask):
    scores = as_float(scores)
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    if mask is None:
        return scores
    return jnp.where(mask.reshape(-1, *(1,) * (scores.ndim - 1)), scores, jnp.nan)


@jit
def _some_threshold(method, state):
    """Returns zeros of the shape of a threshold, from a cache after the first time."""
    like = jax.eval_shape(method.threshold, state, jax.ShapeDtypeStruct((), float))
    return jnp.zeros(like.shape)


def issued(method, state, pred, alpha):
    """Returns the threshold of now and the set for a prediction, after checks."""
    given = pred
    pred, _, rank = _one_example(method, state, pred, None, alpha)
    late, learned = delayed.method_of(method, state), delayed.learned(state)
    q, found = _issued(late, learned, pred, rank)
    again = lambda: issued(method, _widest(state), given, alpha)[1]  # noqa: E731
    return q, check_digits_of_sets("preds", given, found, again)


@jit
def _quantile(method, state, rank):
    return jnp.asarray(method.threshold(state, rank))


@jit
def _issued(method, state, pred, rank):
    q = jnp.asarray(method._threshold_for(state, pred, rank))
    if all(jnp.shape(leaf) for leaf in jax.tree.leaves(pred)):
        one, row = (_shapes_of_scores(method.score, v) for v in (pred, _row(pred)))
        if q.shape in row - one:
            raise ValueError("expected one example, got a batch; online.run takes one")
    return q, method.score.invert(pred, q)


def _shapes_of_scores(score, pred):
    """Returns the shapes of the score for targets shaped as a part of a prediction."""
    parts = [jnp.shape(leaf) for leaf in jax.tree.leaves(pred)]
    shapes, found = {(), *parts, *(part[1:] for part in parts)}, set()
    for shape, kind in itertools.product(shapes, (float, int)):
        with contextlib.suppress(Exception):  # of a target that does not fit
            target = jax.ShapeDtypeStruct(shape, kind)
            found.add(jax.eval_shape(score, pred, target).shape)
    return found


def _row(tree):
    """Returns the shapes and types of one row of a batch."""
    return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype), tree)


@jit
def _step(method, state, pred, y, rank):
    _check_scores(method, state, pred, y, rank)
    return _advance(method, state, pred, y, rank)


@jit
def _settle(method, state, pred, y, rank, q):
    like = _check_scores(method, state, pred, y, rank)
    _checks.check_shape("threshold", like.shape, q.shape)
    return method.learn(state, pred, y, rank, q.astype(like.dtype))


@jit(static_argnames="delay")
def _start(method, state, preds, y, rank, delay):
    """Returns a state with a delay, before the first row."""
    row = _row((preds, y))
    like = *row, jax.eval_shape(method._threshold_for, state, row[0], rank)
    rows = jax.tree.map(lambda v: jnp.zeros((delay, *v.shape), v.dtype), like)
    return delayed.Delayed(state, rows, jnp.zeros((), int))


@jit
def _run(method, state, preds, y, rank):
    pred, target = _row((preds, y))
    _check_scores(method, state, pred, target, rank)
    state = _varying(state, (method, preds, y, rank))
    return lax.scan(lambda s, row: _advance(method, s, *row, rank), state, (preds, y))


def _varying(state: PyTree, rows: PyTree) -> PyTree:
    """Returns a state that varies over a mesh within shard_map as the rows do."""
    within = not jax.sharding.get_abstract_mesh().empty
    return varying_like(state, (state, rows)) if within else state


def _advance(method, state, pred, y, rank):
    method = delayed.method_of(method, state)
    q = method._threshold_for(delayed.learned(state), pred, rank)
    return delayed.learn(method, state, pred, y, rank, q), method.score.invert(pred, q)


def _check_scores(method, state, pred, y, rank):
    """Returns what a threshold is like; ValueError for past scores of another score."""
    own = delayed.learned(state)
    past = jax.eval_shape(method._threshold_for, own, pred, rank)
    scores = jax.eval_shape(partial(score_of, method.score), pred, y).shape
    if scores != past.shape:
        raise ValueError(
            f"expected past scores with components {scores}, as from one example, got "
            f"{past.shape} in the state; online.run takes a batch of them, and "
            "jax.vmap of it several series"
        )
    if own is not state:
        delayed.check_row(state.rows, (pred, y))
    return past


def _one_example(method, state, pred, y, alpha):
    """Returns one example as arrays and its rank, after the checks of `run`."""
    pred, y = as_arrays(pred=method._coded(pred), y=y)
    _checks.check_given(pred=pred)
    _check_state(method, state)
    rank = method.rank(delayed.learned(state), alpha)
    preds, targets = _as_batch((pred, y))
    inputs.check(method.score, preds, targets, missing=_MISSING)
    return pred, y, rank


def _check_state(method, state):
    """Raises ValueError for no method, or for the state of another one."""
    _checks.check_pytree("method", method, "one of jaxcp.online")
    inputs.check_own_score(method, "a method")
    kinds = f"{type(method).__name__}, {method.state_type.__name__}"
    cure = "; the first one comes from the method's init"
    own = delayed.learned(state)
    _checks.check_kind(f"a state of {kinds}", own, method.state_type, cure)


@jax.jit
def _as_batch(tree):
    return jax.tree.map(lambda v: v[None], tree)
