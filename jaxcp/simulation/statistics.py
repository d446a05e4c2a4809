"""Statistics of replicates that do not depend on how replicates were grouped.

Each leaf of a trial's result has a statistic: numbers of a chunk of replicates
(`of_chunk`), and the statistic of all chunks (`combine`). Counts are integers, sums of
floats are exact, quantiles are order statistics: no chunk size, number of devices or
interruption changes a bit of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from jaxcp import _checks
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.saving._nodes import fraction
from jaxcp.simulation._storage import exact_moments
from jaxcp.typing import PyTree

Chunk = dict[str, np.ndarray]


@runtime_checkable
class Statistic(Protocol):
    """A statistic of one leaf of a trial's result."""

    def of_chunk(self, values: np.ndarray) -> Chunk:
        """Returns the numbers to keep of replicates, values of shape (r, ...)."""
        ...

    def combine(self, chunks: list[Chunk], leaf: jax.ShapeDtypeStruct) -> Any:
        """Returns the statistic of all chunks, in order; `leaf` is of one replicate."""
        ...


class Estimate(NamedTuple):
    """Statistics of the replicates of a leaf, arrays of its shape. Made by `Moments`.

    Args:
      mean: Mean over the replicates, NaN without any.
      standard_error: Of the mean: sqrt(variance / count).
      variance: Sample variance, with count - 1; NaN if a value is not finite (or beyond
        1e150).
      minimum: Smallest value; NaN if any is.
      maximum: Largest value; NaN if any is.
      count: Number of replicates.

    See also:
      simulation.Moments, simulate
    """

    mean: np.ndarray
    standard_error: np.ndarray
    variance: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    count: int  # type: ignore[assignment]  # a field, not the method of tuples


@dataclass(frozen=True)
class Every:
    """All values, in order: what `simulate` returns without a statistic."""

    def of_chunk(self, values: np.ndarray) -> Chunk:
        """Returns the values."""
        return {"values": values}

    def combine(self, chunks: list[Chunk], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        """Returns the values of all chunks, shape (r, ...)."""
        # On the host: a program that joins a thousand arrays would compile for long.
        return jnp.asarray(_joined(chunks, leaf))


@dataclass(frozen=True)
class Total:
    """The sum of integers or flags over replicates, exactly.

    A sum is an integer of 64 bits, also where jax counts in 32 (a count in single
    precision stops at 16,777,216), and a Python integer where those are too few.

    See also:
      simulate, simulation.Moments, simulation.Quantiles

    Example:
      >>> trial = lambda key: jax.random.uniform(key, (3,)) < 0.5
      >>> totals = jaxcp.simulate(trial, jax.random.key(0), 1000, reduce=Total())
      >>> totals.dtype, totals.shape
      (dtype('int64'), (3,))
    """

    def of_chunk(self, values: np.ndarray) -> Chunk:
        """Returns the sums of a chunk."""
        if values.dtype.kind not in "biu":
            kind = f"{values.dtype}; use Moments"
            raise ValueError(f"expected integers or flags for Total, got {kind}")
        wide = values if values.itemsize > 4 else values.astype(np.int64)
        halves = {"high": wide >> 32, "low": wide & 0xFFFFFFFF}
        return {k: v.sum(axis=0, dtype=np.int64) for k, v in halves.items()}

    def combine(self, chunks: list[Chunk], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        """Returns the sums of all chunks."""
        whole = [{k: v.astype(object) for k, v in c.items()} for c in chunks]
        totals = (c["high"] * 2**32 + c["low"] for c in whole)
        total = np.asarray(sum(totals, start=np.zeros(leaf.shape, object)), object)
        fits = np.abs(total) < 2**63
        return total.astype(np.int64) if np.all(fits) else total


@dataclass(frozen=True)
class Moments:
    """Mean, standard error, variance, minimum and maximum over replicates.

    Sums of values and of their squares are exact (up to underflow); the mean and the
    variance are rounded once, to double precision. An infinite value makes the mean
    infinite: it is not left out.

    See also:
      simulate, simulation.Estimate, simulation.Total, simulation.Quantiles

    Example:
      >>> trial = lambda key: {"width": jax.random.uniform(key)}
      >>> out = jaxcp.simulate(trial, jax.random.key(0), 1000, reduce=Moments())
      >>> bool(abs(out["width"].mean - 0.5) < 4 * out["width"].standard_error)
      True
    """

    def of_chunk(self, values: np.ndarray) -> Chunk:
        """Returns exact sums of a chunk, as fractions in text."""
        if values.dtype.kind == "c":
            raise ValueError(f"expected real numbers for Moments, got {values.dtype}")
        return exact_moments(values)

    def combine(self, chunks: list[Chunk], leaf: jax.ShapeDtypeStruct) -> Estimate:
        """Returns the `Estimate` of all chunks."""
        count = sum(int(c["count"]) for c in chunks)
        if count == 0:
            unknown = (np.full(leaf.shape, np.nan) for _ in range(5))
            return Estimate._make([*unknown, 0])
        of = {name: [c[name] for c in chunks] for name in chunks[0]}
        fractions = np.vectorize(fraction, otypes=[object])
        total, squares = (sum(map(fractions, of[k])) for k in ("sum", "squares"))
        with np.errstate(invalid="ignore"):
            infinite = np.sum(of["infinite"], axis=0)
        finite, small = np.all(of["finite"], axis=0), np.all(of["small"], axis=0)
        mean = np.where(finite, _as_float(total / count), infinite)
        spread = (squares - total * total / count) / max(count - 1, 1)
        spread = np.where(small, spread, np.asarray(Fraction(0)))
        variance = np.where(small & (count > 1), _as_float(spread), np.nan)
        error = np.sqrt(variance / count)
        lowest, highest = np.min(of["minimum"], axis=0), np.max(of["maximum"], axis=0)
        return Estimate(mean, error, variance, lowest, highest, count)


@dataclass(frozen=True)
class Quantiles:
    """Order statistics over replicates: the smallest v with share{x <= v} >= level.

    Exact: the values of the leaf are kept, four bytes each in single precision, and
    selected among at the end. The quantiles have the leaf's type; NaN counts as +inf.

    Args:
      levels: Level or levels in (0, 1], numbers, read as the decimals they print as.

    See also:
      simulate, simulation.Moments, empirical_quantile

    Example:
      >>> trial = lambda key: jax.random.uniform(key)
      >>> halves = Quantiles((0.25, 0.5, 0.75))
      >>> jaxcp.simulate(trial, jax.random.key(0), 1000, reduce=halves).shape
      (3,)
    """

    levels: float | Sequence[float]

    def __post_init__(self) -> None:
        given: Any = self.levels
        levels = [given] if np.ndim(given) == 0 else list(given)
        numbers = all(isinstance(v, Real) and not isinstance(v, bool) for v in levels)
        if not levels or not numbers or not all(0 < level <= 1 for level in levels):
            raise ValueError(f"expected levels as numbers in (0, 1], got {levels}")
        object.__setattr__(self, "levels", tuple(Fraction(str(v)) for v in levels))

    def of_chunk(self, values: np.ndarray) -> Chunk:
        """Returns the values."""
        if values.dtype.kind == "c":
            raise ValueError(f"expected real numbers for Quantiles, got {values.dtype}")
        return {"values": values}

    def combine(self, chunks: list[Chunk], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        """Returns the quantiles, shape (number of levels, ...)."""
        values = _joined(chunks, leaf)
        levels: Any = self.levels  # a tuple by now
        shape = (len(levels), *leaf.shape)
        if values.size == 0:
            return np.full(shape, np.nan)
        ranks = np.array([math.ceil(level * len(values)) for level in levels])
        if values.dtype.kind in "biu":  # the kernel would make floats of them
            return np.partition(values, ranks - 1, axis=0)[ranks - 1]
        columns = values.reshape(len(values), -1).T
        picked = [np.asarray(kth_smallest(c, jnp.asarray(ranks))) for c in columns]
        return np.stack(picked, axis=1).reshape(shape)


def statistics_of(reduce: Any, results: PyTree) -> list[Statistic]:
    """Returns the statistic of each leaf; `reduce` is a prefix of the results' tree."""
    is_one = lambda v: isinstance(v, Statistic)  # noqa: E731
    every = lambda v: Every() if v is None else v  # noqa: E731
    given = jax.tree.map(every, reduce, is_leaf=lambda v: v is None or is_one(v))
    tree = jax.tree.broadcast(given, results, is_leaf=is_one)
    statistics = jax.tree.leaves(tree, is_leaf=is_one)
    for statistic in statistics:
        expected = "reduce of statistics, such as simulation.Moments()"
        _checks.check_kind(expected, statistic, Statistic)
    return statistics


def _joined(chunks, leaf):
    empty = np.zeros((0, *leaf.shape), leaf.dtype)
    return np.concatenate([empty, *(c["values"] for c in chunks)])


def _as_float(fractions):
    return np.asarray(fractions, float)
