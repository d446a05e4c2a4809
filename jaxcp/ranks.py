"""Conformal ranks: which order statistic is the threshold, in integers."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._types import ArrayLike
from jaxcp.selection import as_float


def conformal_rank(count: ArrayLike, alpha: ArrayLike) -> Array:
    """Returns which order statistic of `count` scores is the conformal threshold.

    k = ceil((n + 1)(1 - alpha)) = n + 1 - floor(alpha (n + 1)), in [0, n + 1].

    A level that is a number (or numpy array, Fraction, Decimal) is read as the decimal
    it prints as, or the one of at most 6 digits that it is but for rounding, as
    `1 - 0.9` is 0.1, and the rank is computed in integers; write `Fraction(1, 3)` for a
    third. A jax array is taken with its rounding error, which
    `floor(alpha (n + 1) (1 + 3 eps))` undoes; in single precision that is exact for
    levels of three decimals and n up to 2000, of two up to 20,000, and for 0.1, 0.05 or
    0.01 far beyond.

    Args:
      count: Number of scores n, int, any shape.
      alpha: Miscoverage level, broadcastable with `count`.

    Returns:
      Rank, counted from 1, int. n + 1 means +inf: too few scores for this level. A
      traced `alpha` >= 1 gives 0 (-inf, the empty set), <= 0 or NaN gives n + 1.

    Raises:
      ValueError: if `count` is negative or not an integer, or an `alpha` that is known
        here is not in (0, 1).

    Example:
      >>> conformal_rank(9, 0.1), conformal_rank(8, 0.1)
      (Array(9, dtype=int32), Array(9, dtype=int32))
    """
    alpha = _checks.as_alpha(alpha)
    count = count if isinstance(count, Array) else np.asarray(count)
    if not jnp.issubdtype(count.dtype, jnp.integer):
        raise ValueError(f"expected an integer count, got {count.dtype}")
    _checks.check_values(lambda n: n >= 0, "count >= 0", count)
    most = np.iinfo(jax.dtypes.canonicalize_dtype(int)).max
    _checks.check_values(lambda n: n < most, f"count below {most}", count)
    count = count.astype(int)  # a narrow type may not hold n + 1
    if isinstance(alpha, Array):
        return rank_at_any_level(jnp.asarray(count), as_float(alpha))
    if isinstance(count, Array):
        return _integer_rank(count, *_integer_ratio(alpha))
    return jnp.asarray(np.asarray(_exact_ranks(count.astype(object), alpha), int))


def exact_rank(n: int, alpha: Fraction) -> int:
    """Returns the conformal rank as a Python integer, also while jax traces."""
    return n + 1 - alpha.numerator * (n + 1) // alpha.denominator


_exact_ranks = np.frompyfunc(exact_rank, nin=2, nout=1)


def _integer_ratio(alpha):
    """Returns numerators and denominators that give the same ranks, n + 1 < 2^30."""
    exact = [_largest_below(a, 2**30) for a in alpha.ravel()]
    ratio = np.array([(a.numerator, a.denominator) for a in exact], int)
    return ratio.reshape(*alpha.shape, 2)[..., 0], ratio.reshape(*alpha.shape, 2)[
        ..., 1
    ]


def _largest_below(alpha, limit):
    """Returns the largest fraction <= `alpha` with a denominator of at most `limit`."""
    near = alpha.limit_denominator(limit)
    if near <= alpha:
        return near
    # Its left neighbour c/d in the Farey sequence: a d - b c = 1 with the largest d.
    a, b = near.numerator, near.denominator
    inverse = pow(a, -1, b) if b > 1 else 0
    d = limit - (limit - inverse) % b
    return Fraction((a * d - 1) // b, d)


@jax.jit
def _integer_rank(count, numerator, denominator):
    """Returns n + 1 - floor((n + 1) a / b), by long division in 32 bits."""
    total, a, b = jnp.broadcast_arrays(count + 1, numerator, denominator)
    total, a, b = (v.astype(jnp.uint32) for v in (total, a, b))

    def take_bit(i, carry):
        floor, rest = carry
        rest = 2 * rest + ((total >> jnp.asarray(31 - i, jnp.uint32)) & 1) * a
        return 2 * floor + rest // b, rest % b

    floor, _ = lax.fori_loop(0, 32, take_bit, (0 * (total + a + b),) * 2)
    return (total - floor).astype(int)


@jax.jit
def rank_at_any_level(count: Array, alpha: Array) -> Array:
    """Returns the rank at a level that may leave (0, 1), known or not."""
    alpha = alpha.astype(jnp.promote_types(alpha.dtype, jnp.float32))
    total = (count + 1).astype(alpha.dtype)
    # The representation of alpha and the two products err by at most 1.5 eps.
    floor = jnp.floor(alpha * total * (1 + 3 * jnp.finfo(alpha.dtype).eps))
    floor = jnp.clip(jnp.where(jnp.isnan(floor), 0, floor), 0, total)
    return count + 1 - floor.astype(count.dtype)
