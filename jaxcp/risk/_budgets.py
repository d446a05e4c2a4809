"""What the losses of rows may come to: a budget for each level."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._tracing import Untraceable
from jaxcp.quantiles._binomial import critical_count, hoeffding_bentkus_level
from jaxcp.quantiles._shares import share_of
from jaxcp.quantiles.levels import Alpha, as_delta, exact_rank, ranks
from jaxcp.risk._inputs import one_each


def as_levels(
    alpha: Any, bounds: tuple[float, ...], several: bool, num_groups: int | None
) -> list[Alpha]:
    """Returns the level of each loss, shape () or (g,), in shares of its bound."""
    many = (tuple, list)
    if isinstance(alpha, many) and not several:
        raise ValueError(f"expected alpha as a number or an array, got {alpha}")
    given = one_each("alpha", alpha, len(bounds), many)
    levels = [share_of(*pair) for pair in zip(given, bounds, strict=True)]
    allowed = [()] if num_groups is None else [(), (num_groups,)]
    for level in levels:
        if level.shape not in allowed:
            text = " or ".join(map(str, allowed))
            raise ValueError(f"expected alpha of shape {text}, got {level.shape}")
    return levels


def budgets(
    count: int | np.ndarray | Array,
    levels: list[Alpha],
    bounds: tuple[float, ...],
    counted: tuple[bool, ...],
    delta: Any,
) -> tuple[Array | np.ndarray, ...]:
    """Returns what each loss may sum to over so many rows, () or (g,)."""
    own = zip(levels, bounds, counted, strict=True)
    if delta is None:
        return tuple(expected_budget(count, *v) for v in own)
    delta = as_delta(delta)
    return tuple(sure_budget(count, *v, delta) for v in own)


def expected_budget(
    count: int | np.ndarray | Array, level: Alpha, bound: float, counted: bool
) -> Array | np.ndarray:
    """Returns alpha (n + 1) - B, what losses may sum to; below 0 where nothing fits.

    Of losses that are counted it is an integer, floor(alpha (n + 1)) - 1.
    """
    # Angelopoulos, Bates, Fisch, Lei, Schuster 2024, theorem 1, with alpha = level B.
    known = not (isinstance(level, Array) or isinstance(count, Array))
    if counted:
        if not known:
            return jnp.asarray(count) - ranks(count, level)
        misses = np.frompyfunc(lambda n, a: n - exact_rank(n, a), nin=2, nout=1)
        return np.asarray(misses(np.asarray(count, object), level), int)
    if not known:
        level = level if isinstance(level, Array) else np.asarray(level, float)
        level = jnp.asarray(level, float)
        exact = 1 + 3 * jnp.finfo(level.dtype).eps  # undoes the rounding of alpha
        spare = level * exact * (jnp.asarray(count) + 1) - 1
        return jnp.where(spare >= 0, bound * spare, -jnp.inf)
    spare = np.asarray(level * (np.asarray(count, object) + 1) - 1)
    return np.where(spare >= 0, bound * spare.astype(float), -np.inf)


def sure_budget(
    count: int | np.ndarray | Array,
    level: Alpha,
    bound: float,
    counted: bool,
    delta: Fraction,
) -> np.ndarray:
    """Returns what losses may sum to for a risk of alpha with probability 1 - delta."""
    if isinstance(count, Array) or isinstance(level, Array):
        raise Untraceable(
            "expected alpha as a number and rows that are known with delta, got a "
            "traced or jax array: the count of losses is computed on the host"
        )
    # Bates, Angelopoulos, Lei, Malik, Jordan 2021: p <= delta iff the mean is at most
    # a level, of losses that are counted iff their sum is at most a count.
    pairs = np.broadcast_arrays(np.asarray(count, object), level)
    if counted:
        of = lambda n, a: critical_count(int(n), a, delta)  # noqa: E731
    else:
        of = lambda n, a: bound * _sum(int(n), a, delta)  # noqa: E731
    found = np.frompyfunc(of, nin=2, nout=1)(*pairs)
    return np.asarray(found, int if counted else float)


def _sum(n, alpha, delta):
    mean = hoeffding_bentkus_level(n, alpha, delta) if n else -1
    return n * mean if mean >= 0 else -np.inf
