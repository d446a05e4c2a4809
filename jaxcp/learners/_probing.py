"""Other targets or another order of rows, and whether predictions move with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._numbers import distance
from jaxcp.typing import PyTree

_FAR = 10  # ranges of the targets by which some of them change
_REPEATS = 3  # fits that show how far a learner with noise of its own moves


def other_targets(y: Array, rows: np.ndarray) -> Iterator[Array]:
    """Yields the targets, and then those with others in `rows`.

    Labels become another label that occurs. Floats move to an end of their range, which
    a learner of bounded numbers accepts, and far away, which shows more.
    """
    yield y
    values = np.asarray(y)
    lowest, highest = values.min(axis=0), values.max(axis=0)
    held, end = values[rows], values.copy()
    at_highest = (held == highest).sum(axis=0) > (held == lowest).sum(axis=0)
    end[rows] = np.where(at_highest, lowest, highest)
    yield jnp.asarray(end)
    if jnp.issubdtype(values.dtype, jnp.inexact):
        spread = highest.astype(float) - lowest
        far = values.astype(float)
        far[rows] += _FAR * np.where(spread > 0, spread, np.maximum(abs(highest), 1))
        with np.errstate(over="ignore"):  # of half precision
            yield jnp.asarray(far.astype(values.dtype))


def first_moved(
    predict: Callable[[Array], PyTree], targets: Iterator[Array], at: slice | int
) -> tuple[int, str] | None:
    """Returns where a prediction moves and how, or None."""
    y = next(targets)
    before = predict(y)
    for other in targets:
        after = predict(other)
        if _moved(before, after, [], at) is None:
            continue
        again = [predict(y) for _ in range(_REPEATS)]  # which may differ by itself
        if (moved := _moved(before, after, again, at)) is not None:
            return moved
    return None


def moved_by_order(
    predict: Callable[[PyTree], PyTree], rows: PyTree
) -> tuple[int, str] | None:
    """Returns where a prediction moves with the order of rows (x, y), or None.

    Many steps of a fit may blow up rounding: predictions may move ten times as far as
    with targets that are off by their last digits.
    """
    n, rng = len(rows[1]), np.random.default_rng(0)
    before = predict(rows)
    for order in (np.arange(n)[::-1], rng.permutation(n)):
        after = predict(jax.tree.map(lambda v, order=order: v[order], rows))
        if _moved(before, after, [], slice(None)) is None:
            continue
        again = [predict(_rounded_otherwise(rows, rng)) for _ in range(_REPEATS)]
        if (moved := _moved(before, after, again, slice(None))) is not None:
            return moved
    return None


def _rounded_otherwise(rows, rng):
    """Returns rows (x, y) with other last digits, of y or else of x."""

    def nudge(v):
        if not jnp.issubdtype(v.dtype, jnp.inexact):
            return v
        signs = jnp.asarray(rng.choice([-1, 1], v.shape), v.dtype)
        return v * (1 + jnp.finfo(v.dtype).eps * signs)

    x, y = rows
    if jnp.issubdtype(y.dtype, jnp.inexact):
        return x, nudge(y)
    return jax.tree.map(nudge, x), y


def _moved(before, after, again, at):
    """Returns the first row whose prediction moves by more than rounding, and how.

    A prediction that is no longer finite says nothing: few learners take any target.
    """
    trees = before, after, *again
    for leaves in zip(*(jax.tree.leaves(tree) for tree in trees), strict=True):
        a, b, *repeats = (np.asarray(leaf).astype(float) for leaf in leaves)
        noise = [_largest(distance(v, a)) for v in repeats]
        within = rounding_of(a, leaves[0].dtype) + 10 * max(noise, default=0.0)
        a, b = a[at], b[at]
        moved = ~(distance(a, b) <= within) & np.isfinite(b)
        if moved.any():
            where = tuple(np.argwhere(moved)[0])
            return (where or (0,))[0], f"from {a[where]:.4g} to {b[where]:.4g}"
    return None


def rounding_of(values, dtype):
    """Returns how far rounding may move predictions, also of fits by differences."""
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    eps, finite = float(jnp.finfo(dtype).eps), values[np.isfinite(values)]
    spread = np.ptp(finite) if finite.size else 0.0
    return eps ** (1 / 3) * spread + 100 * eps * _largest(abs(finite))


def _largest(values):
    return np.max(values, initial=0.0, where=np.isfinite(values))
