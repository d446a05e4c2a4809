"""Monitors: is the risk above its limit, has it changed, is the stream exchangeable?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, replace
from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import add_exactly, as_float
from jaxcp._tree import explained, jit, keep_functions, pytree, static
from jaxcp.pvalues.conformal import share_of
from jaxcp.pvalues.martingales import capital_along, counts_before, watch
from jaxcp.risk.bounds import losses_and_rows
from jaxcp.typing import ArrayLike, Martingale, Number, PyTree

_STAKES = 2.0 ** -np.arange(1, 11)


@pytree
class MonitorState:
    """State of `RiskMonitor` and `ChangeMonitor`: as large after any number of steps.

    Args:
      logs: Log of the capital of each stake, shape (s,).
      excess: What rounding has added to each of them, shape (s,).
      steps: Number of losses so far, int of shape ().
      total: Sum of the losses so far, and what rounding has added to it, shape () each.
      first_alarm: Step of the first alarm, from 1; 0 for none, int of shape ().
    """

    logs: Array
    excess: Array
    steps: Array
    total: tuple[Array, Array]
    first_alarm: Array

    @property
    def mean(self) -> Array:
        """The mean of the losses so far, 0 before the first, shape ()."""
        return self.total[0] / jnp.maximum(self.steps, 1)

    @property
    def log_capital(self) -> Array:
        """The log of the mean capital of the stakes, shape ()."""
        return jax.nn.logsumexp(self.logs, axis=-1) - np.log(self.logs.shape[-1])

    @property
    def alarm(self) -> Array:
        """Whether there has been an alarm, bool of shape ()."""
        return self.first_alarm > 0


class _Monitor:
    """What monitors share: one value is a run of one."""

    run: Callable
    _takes: Callable  # whether a state and a number need no other check
    _after: Callable  # what `run` does after its checks

    def update(self, state: PyTree, value: ArrayLike) -> PyTree:
        """Returns the state after one value, a number."""
        if isinstance(value, Real | np.bool_) and self._takes(state, value):
            return self._after(np.full(1, value), state)[0]  # a quarter of the time
        value = as_array("value", value)
        _checks.check_scalars(value=value)
        return self.run(value[None], state)[0]


class _RiskBets(_Monitor):
    """What monitors of a loss share: bets that its mean is above a limit."""

    limit: Number
    bound: Number
    stake: Callable | None
    _start: float = 0.0  # log of the capital before the first loss
    _alarm: tuple[str, str, Callable, Callable]  # parameter, its range, log capital

    def __post_init__(self) -> None:
        keep_functions(self, "stake")
        for name in ("limit", "bound", self._alarm[0]):
            if isinstance(value := getattr(self, name), int):
                object.__setattr__(self, name, float(value))  # what jax has no type for

    @property
    def alarm_level(self) -> Array:
        """The log of the capital at which there is an alarm, shape ()."""
        name, *_, log_of = self._alarm
        return log_of(getattr(self, name))

    def init(self) -> MonitorState:
        """Returns the state before the first loss."""
        self.check()
        logs = jnp.full(1 if self.stake else len(_STAKES), self._start, float)
        none, total = jnp.zeros((), int), (jnp.zeros(()), jnp.zeros(()))
        return MonitorState(logs, jnp.zeros(logs.shape), none, total, none)

    def run(
        self, losses: ArrayLike, state: MonitorState | None = None
    ) -> tuple[MonitorState, Array]:
        """Returns the state after losses (t,), and log capital after each of them."""
        losses, _ = _as_losses(losses, self.bound)
        state = self.init() if state is None else state
        _checks.check_kind("a state from init()", state, MonitorState)
        return self._after(losses, state)

    def _takes(self, state, loss):
        is_known = isinstance(state, MonitorState) and isinstance(self.bound, float)
        return is_known and 0 <= loss <= self.bound

    def _after(self, losses, state):
        return capital_along(self, losses.astype(state.logs.dtype), state)

    def step(self, state, loss):
        """Returns the state after one loss, and the log of the capital, unchecked."""
        dtype, logs = state.logs.dtype, state.logs
        limit, top = (jnp.asarray(v, dtype) for v in (self.limit, self.bound))
        loss = jnp.maximum(jnp.where(jnp.isnan(loss), top, loss), 0)
        ratio = jnp.minimum(loss / jnp.where(limit > 0, limit, 1), jnp.finfo(dtype).max)
        bets = jnp.log1p(self._stakes(state) * jnp.where(limit > 0, ratio - 1, 0))
        logs = logs if self._start == 0 else jnp.logaddexp(logs, 0)
        parts = *add_exactly((logs, state.excess), bets), state.steps + 1
        total = add_exactly(state.total, loss)
        state = MonitorState(*parts, total, state.first_alarm)
        is_first = ~state.alarm & (state.log_capital >= self.alarm_level)
        first_alarm = jnp.where(is_first, state.steps, state.first_alarm)
        return replace(state, first_alarm=first_alarm), state.log_capital

    def check(self):
        """Raises ValueError for parameters that are known and not valid."""
        top = np.asarray(self.bound) if is_concrete(self.bound) else np.inf
        inside = lambda v: (v > 0) & (v < top)  # noqa: E731
        expected = f"above 0 and below bound = {top:g}"
        _checks.check_number("limit", self.limit, inside, expected)
        name, expected, inside, _ = self._alarm
        _checks.check_number(name, getattr(self, name), inside, expected)

    def _stakes(self, state):
        """Returns the stakes of the next bets, (s,), of which none loses everything."""
        stakes, dtype = jnp.asarray(_STAKES), state.logs.dtype
        if self.stake is not None:
            stakes, inside = self.stake(state), lambda v: (v >= 0) & (v <= 1)
            _checks.check_number("stake(state)", stakes, inside, "in [0, 1]")
        most = 1 - jnp.finfo(dtype).eps
        return jnp.where(stakes >= 0, jnp.minimum(stakes, most), 0).astype(dtype)


def _as_losses(losses, bound):
    losses, _, bound = losses_and_rows(losses, None, bound, "betting")
    _checks.check_vectors(losses=losses)
    return as_float(losses), bound


@pytree
class RiskMonitor(_RiskBets):
    """Raises an alarm when the mean of a loss is above a limit: at any time, once.

    The capital is the mean over g = 1, ..., 10 of prod_s (1 + 2^-g (L_s / limit - 1)),
    L_s the loss of step s, on the log scale; the alarm is at 1 / delta. Nothing is
    tuned. `monitor.update(state, loss)` takes one loss, `monitor.run(losses)` many;
    `state.alarm`, `state.first_alarm` and `state.log_capital` tell. A loss whose label
    comes late steps when it comes.

    Args:
      limit: What the mean of the loss must not exceed, in (0, bound), shape ().
      delta: Probability of a false alarm, ever, in (0, 1), shape ().
      bound: Largest loss there can be, > 0, shape ().
      stake: A function that returns one stake in [0, 1], shape (), in place of the ten,
        from the state before a loss: `state.mean`, `state.steps`, `state.log_capital`.
        0 bets nothing; a traced stake outside counts as the nearer end, NaN as 0.

    Raises:
      ValueError: by `init` if a concrete parameter is not valid; by `update` and `run`
        if a concrete loss is NaN or outside [0, bound]. A traced NaN counts as `bound`,
        a traced negative loss as 0, and a traced limit that is not positive bets
        nothing.

    Guarantee:
      P(an alarm ever) <= delta.

    Assumption:
      Losses >= 0, the mean of each given those before it is at most `limit`: they need
      be neither independent nor alike. Late losses come in an order that does not
      depend on them.

    Cost:
      O(1) time and memory for a loss: ten stakes.

    References:
      Waudby-Smith, Ramdas, Estimating Means of Bounded Random Variables by Betting,
      Journal of the Royal Statistical Society B, 2024.
      Podkopaev, Ramdas, Tracking the Risk of a Deployed Model and Detecting Harmful
      Distribution Shifts, ICLR, 2022.

    See also:
      online.ChangeMonitor, online.confidence_sequence, plotting.plot_monitor,
      certificates.coverage_test

    Example:
      >>> monitor = jaxcp.online.RiskMonitor(0.1, delta=0.05)
      >>> state = monitor.init()
      >>> for miss in [1, 1, 1]:
      ...     state = monitor.update(state, miss)
      >>> state.first_alarm.item()
      3
    """

    limit: Number
    delta: Number
    _: KW_ONLY
    bound: Number = 1.0
    stake: Callable | None = None
    _alarm = "delta", "in (0, 1)", lambda v: (v > 0) & (v < 1), lambda v: -jnp.log(v)


@pytree
class ChangeMonitor(_RiskBets):
    """Raises an alarm soon after the mean of a loss has risen above a limit.

    The detector of Shiryaev and Roberts over the stakes of `RiskMonitor`: the mean over
    g of M_g, M_g <- (M_g + 1)(1 + 2^-g (L / limit - 1)), 0 at the start; the alarm is
    at `run_length`. Quiet years do not make it late, in which a `RiskMonitor` loses its
    capital; in return it raises a false alarm now and then. After an alarm start again
    from `init()`.

    Args:
      limit: What the mean of the loss must not exceed, in (0, bound), shape ().
      run_length: Least mean number of steps to a false alarm, >= 1, shape ().
      bound: Largest loss there can be, > 0, shape ().
      stake: A stake of your own, as for `RiskMonitor`.

    Raises:
      ValueError: as `RiskMonitor`.

    Guarantee:
      The mean number of steps to a false alarm is at least `run_length`.

    Assumption:
      As of `RiskMonitor` before the change.

    Cost:
      O(1) time and memory for a loss: ten stakes.

    References:
      Shin, Ramdas, Rinaldo, E-detectors: A Nonparametric Framework for Sequential
      Change Detection, New England Journal of Statistics in Data Science, 2024.

    See also:
      online.RiskMonitor, online.ExchangeabilityMonitor, plotting.plot_monitor

    Example:
      >>> losses = jnp.arange(400) % jnp.where(jnp.arange(400) < 300, 20, 2) == 0
      >>> monitor = jaxcp.online.ChangeMonitor(0.1, run_length=1000)
      >>> state, log_capital = monitor.run(losses)
      >>> state.first_alarm.item()
      313
    """

    limit: Number
    run_length: Number
    _: KW_ONLY
    bound: Number = 1.0
    stake: Callable | None = None
    _alarm = "run_length", ">= 1", lambda v: v >= 1, jnp.log
    _start = -np.inf


def confidence_sequence(
    losses: ArrayLike, delta: Number, *, bound: Number = 1.0, resolution: int = 1000
) -> tuple[Array, Array]:
    """Returns ends between which the mean of a loss lies at all times together.

    The lower end is the largest limit at which a `RiskMonitor` with delta / 2 has
    raised its alarm, the upper end `bound` minus that of `bound - losses`. Limits are
    `bound` / `resolution`, twice it, ...: ends are rounded outwards to these.

    Args:
      losses: Losses in [0, bound] in order of time, shape (t,).
      delta: Probability that the mean ever lies outside, in (0, 1), shape ().
      bound: Largest loss there can be, > 0, shape ().
      resolution: Number of steps from 0 to `bound`.

    Returns:
      (low, high), shape (t,) each, after each loss: `low` never falls, `high` never
      rises. They cross where the losses have no common mean.

    Raises:
      ValueError: if a concrete loss is NaN or outside [0, bound], `delta` outside (0,
        1), `bound` not positive, or `resolution` no int >= 2. A traced NaN counts as
        `bound`.

    Guarantee:
      P(low <= mean <= high at all times) >= 1 - delta.

    Assumption:
      The mean of each loss given those before it is the same. If it moves, `low` is at
      most the largest mean so far, and `high` at least the smallest.

    Cost:
      O(t `resolution`) time, memory of O(t + `resolution`).

    References:
      Waudby-Smith, Ramdas, Estimating Means of Bounded Random Variables by Betting,
      Journal of the Royal Statistical Society B, 2024.

    See also:
      online.RiskMonitor, risk.upper_bound, plotting.plot_monitor

    Example:
      >>> low, high = confidence_sequence(jnp.arange(500) % 10 == 0, 0.05)
      >>> round(low[-1].item(), 3), round(high[-1].item(), 3)
      (0.061, 0.154)
    """
    _checks.check_count("resolution", resolution, 2)
    (losses, bound), delta = _as_losses(losses, bound), _checks.share("delta", delta)
    return _sequence(losses, delta, bound, resolution)


@jax.jit(static_argnames="resolution")
def _sequence(losses, delta, bound, resolution):
    bound = jnp.asarray(bound, losses.dtype)
    limits = bound * (jnp.arange(1, resolution) / resolution).astype(losses.dtype)
    of_limit = lambda limit: RiskMonitor(limit, delta / 2, bound=bound)  # noqa: E731
    monitors = jax.vmap(of_limit)(limits)
    advance = jax.vmap(lambda m, s, x: m.step(s, x)[0], (0, 0, None))
    both_ends = jax.vmap(advance, (None, 0, 0))

    def step(states, loss):
        loss = jnp.where(jnp.isnan(loss), bound, loss)
        states = both_ends(monitors, states, jnp.stack([loss, bound - loss]))
        return states, jnp.max(jnp.where(states.alarm, limits, 0), axis=1)

    start = jax.vmap(jax.vmap(lambda m: m.init()), (None,), axis_size=2)(monitors)
    ends = lax.scan(step, start, losses)[1]
    return ends[:, 0], bound - ends[:, 1]


@pytree
class ExchangeabilityState:
    """State of `ExchangeabilityMonitor`.

    Args:
      key: The key from `init`, from which each step draws its own uniform.
      past: Scores so far: sorted, on the host, in two parts, of which the second has
        the latest ones; or a buffer (size,), NaN where it is free, and how many it
        holds.
      bets: State of the martingale.
      steps: Number of scores of the stream so far, int of shape ().
      log_capital: Log of the capital, shape (): there is an alarm where it is at least
        `pvalues.alarm_level(delta)`.
    """

    key: Array
    past: PyTree
    bets: PyTree
    steps: Array
    log_capital: Array


@pytree
class ExchangeabilityMonitor(_Monitor):
    """Bets that the scores of a stream are not exchangeable with those before them.

    p_t = (#{i < t : S_i > S_t} + u_t (1 + #{i < t : S_i = S_t})) / t among **all**
    scores before, those of the calibration and of the stream, and `martingale` bets
    against these. `state.log_capital >= pvalues.alarm_level(delta)` is an alarm.

    Args:
      martingale: How to bet, such as `pvalues.SimpleJumper()`.
      scores: Scores of the calibration in any order, shape (n,), such as `cp.scores`;
        the model was fitted on other rows. May be empty.
      size: None keeps all scores, sorted, on the host. An int is for jit, vmap and
        scan: a buffer of so many scores, at least n. When it is full, one of the
        `size` + 1 scores, drawn uniformly, the new one included, is dropped: p-values
        stay independent and uniform, and a change is forgotten after some `size` steps.

    Raises:
      ValueError: if a concrete score is NaN, `size` is less than n, scores are traced
        where `size` is None, or a state is of another monitor. A traced NaN counts as
        +inf; scores of the stream are rounded to the type of `scores`.

    Guarantee:
      P(the capital ever reaches c) <= 1/c.

    Assumption:
      Scores of calibration and stream are exchangeable.

    Cost:
      One number of memory for each score of the past. O(n + t log t) time for `run` of
      t scores after n, O(log n) for a few, but for one time in thousands. With `size`:
      O(`size`) time for a score.

    References:
      Vovk, Testing Randomness Online, Statistical Science, 2021.

    See also:
      pvalues.watch, pvalues.sequential_p_values, pvalues.alarm_level,
      online.RiskMonitor

    Example:
      >>> from jaxcp import pvalues
      >>> martingale = pvalues.SimpleJumper()
      >>> monitor = jaxcp.online.ExchangeabilityMonitor(martingale, jnp.arange(50.0))
      >>> state = monitor.init(jax.random.key(0))
      >>> for score in range(60, 90):  # ever stranger
      ...     state = monitor.update(state, score)
      >>> bool(state.log_capital >= pvalues.alarm_level(0.01))
      True
    """

    martingale: Martingale
    scores: ArrayLike
    _: KW_ONLY
    size: int | None = static(default=None)

    def init(self, key: Array) -> ExchangeabilityState:
        """Returns the state before the stream; each step draws from this key."""
        _checks.check_key(key)
        bets, _ = watch(self.martingale, jnp.zeros(0))
        scores = self._scores(self.scores)
        if self.size is None:
            past: PyTree = np.sort(scores), scores[:0]
        else:
            _checks.check_count("size", self.size, max(len(scores), 1))
            free = jnp.full(self.size - len(scores), jnp.nan, scores.dtype)
            past = jnp.append(scores, free), jnp.full((), len(scores))
        steps, log_capital = jnp.zeros((), int), jnp.zeros(())
        return ExchangeabilityState(key, past, bets, steps, log_capital)

    def run(
        self, scores: ArrayLike, state: ExchangeabilityState
    ) -> tuple[ExchangeabilityState, Array]:
        """Returns the state after scores (t,), and log capital after each of them."""
        _checks.check_kind("a state from init(key)", state, ExchangeabilityState)
        return self._after(self._scores(scores), state)

    def _takes(self, state, score):
        is_known = isinstance(state, ExchangeabilityState) and self.size is None
        return is_known and score == score

    def _after(self, scores, state):
        past = state.past
        if (np.ndim(past[1]) == 1) != (self.size is None):
            raise ValueError("expected the state of a monitor with this size=")
        scores = scores.astype(past[0].dtype)  # or ties would be lost
        if self.size is None:
            with explained(_ON_HOST):
                past, counts = _among_sorted([*map(np.asarray, past)], scores)
        else:
            keys, _ = _draws(state.key, state.steps, len(scores))
            past, counts = lax.scan(_among_buffer, past, (scores, keys))
        rest = replace(state, past=())  # whose shapes do not change
        state, log_capital = _bet(self.martingale, counts, rest)
        return replace(state, past=past), log_capital

    def _scores(self, scores):
        scores = as_float(_checks.rows(scores=_checks.scores(scores)))
        if self.size is not None:
            return jnp.where(jnp.isnan(scores), jnp.inf, scores)
        with explained(_ON_HOST):
            return np.asarray(scores)


@jax.jit(static_argnames="n")
def _draws(key, steps, n):
    """Returns a key for each of n steps, and its uniform."""

    def at(step):
        of_place, of_u = jax.random.split(jax.random.fold_in(key, step))
        return of_place, jax.random.uniform(of_u)

    return jax.vmap(at)(steps + jnp.arange(n))


@jit
def _bet(martingale, counts, state):
    """Returns the state after bets on p-values, and log capital after each of them."""
    above, equal, total = counts
    _, u = _draws(state.key, state.steps, len(total))
    p_values = share_of(above, equal, total, u, 1)
    bets, log_capital = capital_along(martingale, p_values, state.bets)
    last = jnp.append(state.log_capital, log_capital)[-1]
    steps = state.steps + len(u)
    return ExchangeabilityState(state.key, (), bets, steps, last), log_capital


def _among_buffer(past, row):
    """Returns the buffer with a score, and how many are above it, equal and in all."""
    (buffer, count), (score, key) = past, row
    size = len(buffer)
    counts = jnp.sum(buffer > score), jnp.sum(buffer == score), count
    # One of all, by a draw: what is kept says nothing of the order of time.
    dropped = jax.random.randint(key, (), 0, size + 1)  # the new one is beyond the end
    place = jnp.where(count < size, count, dropped)
    buffer = buffer.at[place].set(score, mode="drop")
    return (buffer, jnp.minimum(count + 1, size)), counts


def _among_sorted(past, scores):
    """Returns sorted scores with new ones, and counts of those before each of these.

    In two parts, so that a score moves few others: the second has the latest ones.
    """
    above = equal = np.zeros(len(scores), int)
    if len(scores) > 1:
        above, equal = map(np.asarray, _counts_before(scores))
    for part in past:
        first = np.searchsorted(part, scores)
        last = np.searchsorted(part, scores, "right")
        above, equal = above + len(part) - last, equal + last - first
    counts = above, equal, sum(map(len, past)) + np.arange(len(scores))
    full = (len(past[1]) + len(scores)) // _LATEST * _LATEST - len(past[1])
    if full > 0:
        past, scores = (_merged(*past, scores[:full]), scores[:0]), scores[full:]
    return (past[0], _merged(past[1], scores)), counts


def _merged(past, *others):
    new = np.sort(np.concatenate(others))
    return np.insert(past, np.searchsorted(past, new), new)


_LATEST = 2**12  # scores that may be in the second part
_ON_HOST = (
    "expected scores that are known here, got traced ones; give size=, a buffer of so "
    "many scores, for jit, vmap and scan"
)
_counts_before = jax.jit(counts_before)
