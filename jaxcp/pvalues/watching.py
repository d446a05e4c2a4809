"""Bets along a stream of p-values, and when to raise an alarm."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float, at_least_single, varying_like
from jaxcp._tracing import jit
from jaxcp.pvalues._bets import as_carry, summed_bets
from jaxcp.quantiles.levels import alpha_as_float, as_alpha
from jaxcp.typing import (
    ArrayLike,
    CheckedMartingale,
    Martingale,
    MemorylessMartingale,
    PyTree,
)

_SHORT = 2**12  # p-values up to which a scan takes less time than sums of blocks


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
        Not those among one calibration set, of `Calibration.p_values` or
        `outlier_p_values`, which depend on each other.
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
      it. Smoothed p-values among one calibration set are uniform, but not independent:
      for 500 rows against 100, `SimpleJumper` reaches `alarm_level(0.05)` in 24 % of
      the streams on which nothing changes.

    Cost:
      O(t) time: one `lax.scan`, or sums of blocks where bets depend on nothing but
      their p-value.

    References:
      Vovk, Testing Randomness Online, Statistical Science, 2021.

    See also:
      pvalues.sequential_p_values, pvalues.alarm_level, pvalues.SimpleJumper,
      typing.Martingale

    Example:
      >>> from jaxcp.pvalues import SimpleJumper
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
      An exchangeable stream, and p-values as `watch` asks for.

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
