"""p-values along a stream: every score among those before it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._numbers import as_float, at_least_single
from jaxcp.quantiles._keys import to_keys
from jaxcp.typing import ArrayLike


def sequential_p_values(scores: ArrayLike, u: ArrayLike) -> Array:
    """Returns the smoothed p-value of each score of a stream among those up to it.

    p_t = (#{i <= t : S_i > S_t} + u_t #{i <= t : S_i = S_t}) / t. All of them together
    take O(t log t). To start from past scores, such as those of a calibration
    (`cp.scores`), put these in front and drop their p-values.

    Args:
      scores: Anomaly scores in order of time, shape (t,); larger is stranger. NaN
        counts as +inf. The detector must be fitted on other rows.
      u: Uniforms in [0, 1], shape (t,).

    Returns:
      p-values in [0, 1], shape (t,).

    Raises:
      ValueError: if shapes differ or a concrete uniform is outside [0, 1].

    Guarantee:
      Independent and uniform on [0, 1], ties or not: what `watch` asks for, unlike
      p-values among one calibration set, which depend on each other.

    Assumption:
      The scores are exchangeable, and the uniforms independent of them.

    Cost:
      O(t log t) time for all p-values together.

    References:
      Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, Springer, 2005,
      ch. 8.

    See also:
      pvalues.watch, pvalues.SimpleJumper, outliers.outlier_p_values

    Example:
      >>> sequential_p_values(jnp.array([1.0, 3.0, 2.0, 3.0]), jnp.full(4, 0.5))
      Array([0.5 , 0.25, 0.5 , 0.25], dtype=float32)
    """
    scores, u = _checks.rows(
        scores=_checks.required(_checks.vector(scores)),
        u=_checks.required(_checks.uniforms(u)),
    )
    return _sequential(as_float(scores), at_least_single(as_float(u)))


@jax.jit
def _sequential(scores, u):
    above, equal = counts_before(scores)
    count = jnp.arange(1, len(scores) + 1, dtype=u.dtype)
    return (above + u * (equal + 1)) / count


def counts_before(scores: Array) -> tuple[Array, Array]:
    """Returns how many earlier scores are above each one, and how many equal, (t,).

    The ranks are sorted bit by bit, from the highest, into runs that keep the order of
    time: an earlier score is above if it is in the same run and has a one where this
    one has a zero.
    """
    keys, n = to_keys(scores), len(scores)
    ordered = lax.sort(keys)
    rank = jnp.searchsorted(ordered, keys)  # equal scores have one rank
    ranks = jnp.searchsorted(ordered, ordered)
    num_below = jnp.searchsorted(ranks, jnp.arange(n + 1))
    num_bits = max(n - 1, 0).bit_length()

    def split(i, carry):
        return _split_runs(num_bits - 1 - i, num_below, *carry)

    start = rank, jnp.arange(n), jnp.zeros(n, rank.dtype)
    rank, time, above = lax.fori_loop(0, num_bits, split, start)
    equal = jnp.arange(n) - num_below[rank]
    above, equal = (jnp.zeros_like(v).at[time].set(v) for v in (above, equal))
    return above, equal


def _split_runs(bit, num_below, rank, time, above):
    """Returns ranks, times and counts after runs of equal higher bits are split."""
    start = num_below[(rank >> bit >> 1) << bit << 1]  # of the run so far
    one = (rank >> bit) & 1
    # Before each place of its run: ones, which are above a zero, and zeros.
    ones = jnp.cumsum(one) - one
    ones -= ones[start]
    zeros = jnp.arange(len(rank)) - start - ones
    above += jnp.where(one == 1, 0, ones)
    # Zeros come first: both halves keep the order of time.
    place = num_below[(rank >> bit) << bit] + jnp.where(one == 1, ones, zeros)
    return tuple(jnp.zeros_like(v).at[place].set(v) for v in (rank, time, above))
