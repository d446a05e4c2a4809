"""Conformal test martingales: evidence that a stream has changed, in logarithms."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float, at_least_single, varying_like
from jaxcp._pytree import pytree, static
from jaxcp._tracing import jit
from jaxcp.pvalues._bets import as_carry, summed_bets
from jaxcp.quantiles.levels import alpha_as_float, as_alpha
from jaxcp.typing import (
    ArrayLike,
    CheckedMartingale,
    Martingale,
    MemorylessMartingale,
    Number,
    PyTree,
)

_SHORT = 2**12  # p-values up to which a scan takes less time than sums of blocks


@pytree
class PowerMartingale:
    """Bets epsilon p^(epsilon - 1) on every p-value, and wins on small ones.

    Args:
      epsilon: In (0, 1), shape (); 1 bets nothing, small values bet on very small p.

    Guarantee:
      P(the capital ever reaches c) <= 1/c.

    Assumption:
      Independent uniform p-values, such as those of `sequential_p_values` on
      exchangeable streams.

    Cost:
      O(1) time for a p-value; a stream is summed at once.

    References:
      Vovk, Nouretdinov, Gammerman, Testing Exchangeability On-Line, ICML, 2003.

    See also:
      pvalues.watch, pvalues.MixtureMartingale, pvalues.SimpleJumper

    Example:
      >>> _, log_capital = watch(PowerMartingale(0.5), jnp.array([0.01, 0.01]))
      >>> log_capital.round(2)
      Array([1.61, 3.22], dtype=float32)
    """

    epsilon: Number

    def init(self) -> Array:
        """Returns the log of the capital, shape ()."""
        return jnp.zeros(())

    def step(self, state: Array, p_value: Array) -> tuple[Array, Array]:
        """Returns the log of the capital after a bet, twice."""
        state = state + self.log_bet(p_value)
        return state, state

    def log_bet(self, p_value: Array) -> Array:
        """Returns by how much a p-value adds to the log of the capital, shape ()."""
        return _log_bet(self.epsilon, p_value)

    def log_capital(self, state: Array) -> Array:
        """Returns the state, which is the log of the capital."""
        return state

    def check(self) -> None:
        """Raises ValueError if a concrete epsilon is outside (0, 1]."""
        valid = lambda v: (v > 0) & (v <= 1)  # noqa: E731
        _checks.check_number("epsilon", self.epsilon, valid, "in (0, 1]")


@pytree
class MixtureMartingale:
    """Shares its capital among power martingales with epsilons all over (0, 1).

    The mean over a grid of midpoints: there is no epsilon to choose, at the price of a
    factor of at most `num_powers`.

    Args:
      num_powers: Number of power martingales.

    Guarantee:
      P(the capital ever reaches c) <= 1/c.

    Assumption:
      Independent uniform p-values, such as those of `sequential_p_values` on
      exchangeable streams.

    Cost:
      O(`num_powers`) time for a p-value; a stream is summed at once.

    References:
      Vovk, Nouretdinov, Gammerman, Testing Exchangeability On-Line, ICML, 2003.

    See also:
      pvalues.watch, pvalues.PowerMartingale, pvalues.SimpleJumper

    Example:
      >>> _, log_capital = watch(MixtureMartingale(), jnp.full(3, 0.01))
      >>> log_capital.round(2)
      Array([1.49, 3.24, 5.1 ], dtype=float32)
    """

    num_powers: int = static(default=32)

    def init(self) -> Array:
        """Returns the log of the capital of each martingale, shape (num_powers,)."""
        return jnp.zeros(self.num_powers)

    def step(self, state: Array, p_value: Array) -> tuple[Array, Array]:
        """Returns the logs after a bet, and the log of their mean."""
        state = state + self.log_bet(p_value)
        return state, self.log_capital(state)

    def log_bet(self, p_value: Array) -> Array:
        """Returns by how much a p-value adds to each log, shape (num_powers,)."""
        epsilons = (jnp.arange(self.num_powers) + 0.5) / self.num_powers
        return _log_bet(epsilons, p_value)

    def log_capital(self, state: Array) -> Array:
        """Returns the log of the mean capital, shape ()."""
        return jax.nn.logsumexp(state) - math.log(self.num_powers)

    def check(self) -> None:
        """Raises ValueError unless `num_powers` is a positive int."""
        _checks.check_count("num_powers", self.num_powers, 1)


@pytree
class SimpleJumper:
    """Bets 1 + epsilon (p - 1/2) with epsilons -1, 0, 1, and jumps between them.

    Before every bet each epsilon gives the share `jump` of its capital to all three. It
    notices p-values that turn small, large, or small again.

    Args:
      jump: Share in [0, 1], shape ().

    Guarantee:
      P(the capital ever reaches c) <= 1/c.

    Assumption:
      Independent uniform p-values, such as those of `sequential_p_values` on
      exchangeable streams.

    Cost:
      O(1) time for a p-value, one after the other.

    References:
      Vovk et al., Retrain or Not Retrain: Conformal Test Martingales for Change-Point
      Detection, COPA, 2021.

    See also:
      pvalues.watch, pvalues.PowerMartingale, pvalues.alarm_level

    Example:
      >>> _, log_capital = watch(SimpleJumper(), jnp.full(100, 0.05))
      >>> round(log_capital[-1].item(), 2)
      35.42
    """

    jump: Number = 0.01

    def init(self) -> tuple[Array, Array]:
        """Returns the log of the capital, and the share of each epsilon in it."""
        return jnp.zeros(()), jnp.full(3, 1 / 3)

    def step(
        self, state: tuple[Array, Array], p_value: Array
    ) -> tuple[tuple[Array, Array], Array]:
        """Returns the state after a bet, and the log of the capital."""
        log_capital, shares = state
        epsilons = jnp.array([-1.0, 0.0, 1.0])
        edge = jnp.clip(jnp.where(jnp.isnan(p_value), 0.5, p_value), 0, 1) - 0.5
        shares = (shares * (1 - self.jump) + self.jump / 3) * (1 + epsilons * edge)
        growth = jnp.sum(shares)
        log_capital = log_capital + jnp.log(growth)
        return (log_capital, shares / growth), log_capital

    def check(self) -> None:
        """Raises ValueError if a concrete jump is outside [0, 1]."""
        valid = lambda v: (v >= 0) & (v <= 1)  # noqa: E731
        _checks.check_number("jump", self.jump, valid, "in [0, 1]")


def watch(
    martingale: Martingale, p_values: ArrayLike, state: PyTree | None = None
) -> tuple[PyTree, Array]:
    """Returns the log of the capital of a test martingale along a stream of p-values.

    One `lax.scan`, or sums where bets depend on nothing but their p-value; the state
    goes on with later p-values.

    Args:
      martingale: `PowerMartingale`, `MixtureMartingale`, `SimpleJumper`, or anything
        with their methods: `init` and `step`, and where bets do not depend on the state
        those of `jaxcp.typing.MemorylessMartingale`, which are faster.
      p_values: Smoothed p-values in order of time, shape (t,), independent and uniform
        as long as nothing changes: those of `sequential_p_values`. A NaN is no bet.
      state: State to go on from. Defaults to `martingale.init()`.

    Returns:
      (state after the stream, log of the capital after each p-value, shape (t,)). It
      reaches `alarm_level(alpha)` with probability at most alpha if nothing changes.

    Raises:
      ValueError: if a concrete p-value is outside [0, 1] or a parameter of the
        martingale is not valid.

    Guarantee:
      P(the capital ever reaches c) <= 1/c, at any time (Ville).

    Assumption:
      An exchangeable stream, and smoothed p-values that are independent and uniform on
      it.

    Cost:
      O(t) time: one `lax.scan`, or sums of blocks where bets depend on nothing but
      their p-value.

    References:
      Vovk, Testing Randomness Online, Statistical Science, 2021.

    See also:
      pvalues.sequential_p_values, pvalues.alarm_level, pvalues.SimpleJumper,
      typing.Martingale

    Example:
      >>> scores = jnp.arange(40.0)  # ever stranger
      >>> u = jax.random.uniform(jax.random.key(0), (40,))
      >>> p_values = jaxcp.pvalues.sequential_p_values(scores, u)
      >>> _, log_capital = watch(SimpleJumper(), p_values)
      >>> (log_capital >= alarm_level(0.01)).any().item()
      True
    """
    p_values = at_least_single(as_float(as_array("p_values", p_values)))
    _checks.check_given(martingale=martingale)
    _checks.check_kind("a martingale with init and step", martingale, Martingale)
    _checks.check_vectors(p_values=p_values)
    _checks.check_values(_are_p_values, "p_values in [0, 1]", p_values)
    if isinstance(martingale, CheckedMartingale):
        martingale.check()
    state = martingale.init() if state is None else state
    return _watch(martingale, p_values, state)


def alarm_level(alpha: ArrayLike) -> Array:
    """Returns the log of the capital at which to raise an alarm: log(1 / alpha).

    Args:
      alpha: Probability of a false alarm, ever, in (0, 1), any shape.

    Returns:
      log(1 / alpha), the shape of `alpha`.

    Raises:
      ValueError: if a number `alpha` is outside (0, 1).

    Guarantee:
      P(the log of the capital ever reaches it) <= alpha.

    Assumption:
      An exchangeable stream.

    Cost:
      O(1) time for each level.

    References:
      Ville, Etude critique de la notion de collectif, Gauthier-Villars, 1939.

    See also:
      pvalues.watch, pvalues.sequential_p_values

    Example:
      >>> alarm_level(0.01).round(4)
      Array(4.6052, dtype=float32)
    """
    return -jnp.log(alpha_as_float(as_alpha(alpha)))


def _are_p_values(p):
    """Returns whether all numbers are in [0, 1] or NaN, or which of them."""
    if np.fmin.reduce(p, initial=0) == 0 and np.fmax.reduce(p, initial=1) == 1:
        return True  # no arrays as long as the stream
    return ~((p < 0) | (p > 1))


def _log_bet(epsilon, p_value):
    """Returns log(epsilon p^(epsilon - 1)), which for p = 0 would be infinite for good.

    The bet is a little below this one, which keeps the guarantee.
    """
    tiny, known = jnp.finfo(p_value.dtype).tiny, ~jnp.isnan(p_value)
    log_p = jnp.log(jnp.clip(jnp.where(known, p_value, 1), tiny, 1))
    return jnp.where(known, jnp.log(epsilon) + (epsilon - 1) * log_p, 0)


@jit
def _watch(martingale, p_values, state):
    state = varying_like(as_carry(state, p_values.dtype), p_values)
    if _has_sums(type(martingale)) and _is_long(p_values):
        return summed_bets(martingale, p_values, state)

    def step(state, p_value):
        state, log_capital = martingale.step(state, p_value)
        return as_carry(state, p_values.dtype), log_capital

    return lax.scan(step, state, p_values)


def _has_sums(kind):
    """Returns whether bets can be summed: `step` of a subclass may do anything."""
    if not issubclass(kind, MemorylessMartingale):
        return False
    return "log_bet" in vars(next(k for k in kind.__mro__ if "step" in vars(k)))


def _is_long(p_values):
    n = p_values.shape[0]  # which an export may leave open
    return isinstance(n, int) and n > _SHORT
