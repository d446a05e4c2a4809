"""The capital of bets that a mean is below a level: one for all rows."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from jaxcp._numbers import varying_like

_UNROLL = 4  # rows of a step of the loop, whose own time is that of a row


def largest_log_capital(
    losses: Array, risk: Array, delta: Array, where: Array | None = None
) -> Array:
    """Returns log max_i K_i(risk) of losses in [0, 1], shape (n,), with K_0 = 1.

    Rows outside `where` are skipped: neither the capital nor the bets move.
    """
    counts = jnp.ones(len(losses), bool) if where is None else where
    counts = counts.astype(losses.dtype)
    rows = len(losses) if where is None else jnp.maximum(jnp.sum(counts), 1)
    scale = -2 * jnp.log(delta) / rows
    lost = jnp.finfo(losses.dtype).eps - 1

    def step(state, row):
        i, total, squares, capital, best = state
        x, counts = row
        # Bates et al. 2021, section 3.1.3: nu_i is known before row i.
        variance = (0.25 + squares[0]) / (1 + i)
        nu = jnp.minimum(1, jnp.sqrt(scale / variance))
        # K_i = prod_(j <= i) (1 - nu_j (x_j - R)); a factor of 0 needs R = 0.
        growth = jnp.log1p(jnp.maximum(nu * (risk - x), lost))
        capital = _add(capital, counts * growth)
        total, i = _add(total, counts * x), i + counts
        # m_i = (1/2 + sum x) / (1 + i)
        gap = x - (0.5 + total[0]) / (1 + i)
        squares = _add(squares, counts * gap * gap)
        return (i, total, squares, capital, jnp.maximum(best, capital[0])), None

    zero = jnp.zeros((), losses.dtype)
    start = zero, (zero, zero), (zero, zero), (zero, zero), zero
    start = varying_like(start, (losses, counts, risk, scale))
    return lax.scan(step, start, (losses, counts), unroll=_UNROLL)[0][-1]


def _add(total, term):
    """Returns a sum with what its rounding has added: thousands of rows cost no digit.

    Kahan, Further Remarks on Reducing Truncation Errors, 1965.
    """
    rounded, excess = total
    term = term - excess
    grown = rounded + term
    return grown, (grown - rounded) - term
