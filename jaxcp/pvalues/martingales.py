"""Conformal test martingales: evidence that a stream has changed, in logarithms."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._pytree import pytree, static
from jaxcp.typing import (
    Number,
)


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
      >>> from jaxcp.pvalues import watch
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
      >>> from jaxcp.pvalues import watch
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
      >>> from jaxcp.pvalues import watch
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


def _log_bet(epsilon, p_value):
    """Returns log(epsilon p^(epsilon - 1)), which for p = 0 would be infinite for good.

    The bet is a little below this one, which keeps the guarantee.
    """
    tiny, known = jnp.finfo(p_value.dtype).tiny, ~jnp.isnan(p_value)
    log_p = jnp.log(jnp.clip(jnp.where(known, p_value, 1), tiny, 1))
    return jnp.where(known, jnp.log(epsilon) + (epsilon - 1) * log_p, 0)
