"""For which targets of a test point a row is at least as strange: between two ends.

With d = (y - f) / (1 + g) the fit on all n + 1 rows leaves d at the test point and r_i
- v_i d at row i, whose score is |r_i - v_i d| against rho_i |d|: row i is at least as
strange while y - f is between -(1 + g) |r_i| / (rho_i - s_i v_i) and (1 + g) |r_i| /
(rho_i + s_i v_i), s_i the sign of r_i. A row with |v_i| > rho_i is so again further
out, which makes a hole.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jaxcp.learners import Augmented

POWERS = {"ordinary": 0, "studentized": 0.5, "deleted": 1}
_TIED = 128  # roundings within which a row ties with the test point
_FREE = 16  # roundings of 1 that a fit leaves of a row's residual
_WHOLE = 4  # roundings of 1 that a fit leaves of the test point's residual


class Rows(NamedTuple):
    """n rows beside m test points, of one output.

    Args:
      center: Predictions f, shape (m, 1); 0 where nothing is known.
      spread: 1 + g, shape (m, 1); 1 where nothing is known.
      residuals: r, shape (m, n) or (1, n).
      shares: v, shape (m, n).
      rho: What weighs the residual of the test point, shape (m, n) or ().
      whole: Where nothing is known of the test point, shape (m, 1).
      tied: Rows as strange as the test point whatever its target, shape (m, n).
    """

    center: Array
    spread: Array
    residuals: Array
    shares: Array
    rho: Array
    whole: Array
    tied: Array


def rows_of(found: Augmented, residuals: str) -> Rows:
    """Returns the rows of one output: `preds` (m,), `residuals` (n,) or (m, n)."""
    power, eps = POWERS[residuals], jnp.finfo(found.shares.dtype).eps
    center, spread, shares = found.preds[:, None], found.spread[:, None], found.shares
    # A fit that goes through its test point leaves no residual at any row either.
    known = jnp.isfinite(center) & (spread * (_WHOLE * eps) < 1)
    center, spread = jnp.where(known, center, 0), jnp.where(known, spread, 1)
    tied = ~known | jnp.zeros_like(shares, bool)
    rho = jnp.ones((), shares.dtype)
    if power and found.rest is not None:
        rest = jnp.broadcast_to(found.rest, shares.shape)
        tied |= ~(rest > _FREE * eps)
        if power < 1:  # then rho_i = |v_i| where 1 - h_i = 0
            tied |= ~(rest - shares**2 / spread > _FREE * eps)
        rho = jnp.where(tied, 1, spread * rest)  # ((1 + g)(1 - h_i'))^power
        rho = jnp.sqrt(rho) if power < 1 else rho
    tied |= jnp.abs(jnp.abs(shares) - rho) <= _TIED * eps * rho
    own = found.residuals if found.residuals.ndim > 1 else found.residuals[None]
    return Rows(center, spread, own, shares, rho, ~known, tied)


def halves(rows: Rows) -> tuple[Array, Array]:
    """Returns how far below and above f each row is as strange, shape (m, n).

    Infinite where rows tie, or where they are as strange however far out.
    """
    sizes, turned = jnp.abs(rows.residuals), _turned(rows)
    below = _ratio(rows, sizes, rows.rho - turned)
    return below, _ratio(rows, sizes, rows.rho + turned)


def without_holes(rows: Rows) -> Rows:
    """Returns rows that count as infinite where they would make a hole."""
    return rows._replace(tied=rows.tied | (jnp.abs(rows.shares) > rows.rho))


def beyond_holes(rows: Rows) -> tuple[Array, Array]:
    """Returns from how far below and above f rows are as strange again, (m, n).

    Infinite where that is never so.
    """
    gap, turned = jnp.abs(rows.shares) - rows.rho, _turned(rows)
    again = _ratio(rows, jnp.abs(rows.residuals), gap)
    below, above = turned < 0, turned > 0
    return jnp.where(below, again, jnp.inf), jnp.where(above, again, jnp.inf)


def sides(rows: Rows) -> tuple[Array, Array]:
    """Returns minus atoms and atoms about f, of signed residuals, shape (m, n).

    Row i has a residual at least as large while y is at most its atom, f + (1 + g) r_i
    / (rho_i + v_i): Vovk et al. 2019, the least squares prediction machine.
    """
    width = rows.rho + rows.shares
    return _ratio(rows, -rows.residuals, width), _ratio(rows, rows.residuals, width)


def _turned(rows):
    """Returns s_i v_i, where 0 has the sign of 1."""
    return jnp.where(rows.residuals < 0, -rows.shares, rows.shares)


def _ratio(rows, residuals, width):
    """Returns (1 + g) residuals / width, +inf without a width above 0, or for NaN."""
    free = rows.tied | ~(width > 0) | jnp.isnan(residuals)
    # Compilers do not fuse a choice with the sum that follows, so it rounds the same
    # in the program of sets and in that of p-values.
    ratio = jnp.where(free, 0, residuals) / jnp.where(free, 1, width)
    return jnp.where(free, jnp.inf, rows.spread * ratio)
