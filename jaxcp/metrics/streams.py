"""What the mean coverage of a stream hides: runs of misses, and the worst window."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import kept, quotient, unless_nan
from jaxcp.metrics import _sets
from jaxcp.metrics._sets import Count, metric
from jaxcp.typing import ArrayLike, Set


@metric(_sets.of_targets)
def longest_miss(count: Count, sets: Set | ArrayLike, y: ArrayLike) -> Array:
    """Returns how many rows the longest run of misses has.

    max{j - i : the sets of rows i, ..., j - 1 all miss}, of rows in order of time. By
    chance alone misses of m independent rows come in runs, too: at a share alpha of
    misses the longest has about log(m (1 - alpha)) / log(1 / alpha) rows, and at 0.1
    that of 1000 rows has 2.7 on average. Much longer ones are of sets that lag behind.

    Args:
      sets: Sets of consecutive rows, with leading axis m, as a predictor returns them.
      y: Targets, shape (m, ...), or labels, shape (m,), int or by the names
        that the sets have.

    Returns:
      Number of rows, an int of shape (), 0 where there is no miss. A row with a NaN in
      its set or its target may be one, and counts as a miss.

    Raises:
      ValueError: as `coverage`.

    Guarantee:
      None: it describes these rows.

    Assumption:
      Rows in order of time.

    Cost:
      O(m) time: one membership for each row.

    References:
      Erdos, Renyi, On a New Law of Large Numbers, Journal d'Analyse Mathematique, 1970.

    See also:
      metrics.worst_window_coverage, metrics.coverage, online.run

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets, y = Interval(jnp.zeros(5), jnp.ones(5)), jnp.array([2, 0, 3, 3, 1.0])
      >>> longest_miss(sets, y)
      Array(2, dtype=int32)
    """
    missed = kept(~(_sets.is_covered(sets, y) == 1), count, False)
    rows = jnp.arange(1, len(missed) + 1)
    return jnp.max(rows - lax.cummax(jnp.where(missed, 0, rows)), initial=0)


def _of_windows(sets, y, window):
    """Checks the arguments of metrics of windows of rows."""
    sets, y = _sets.check_sets(sets, y)
    fits = lambda w: (w <= len(y)) | (len(y) == 0)  # noqa: E731
    _checks.check_number("window", window, fits, f"<= {len(y)}, the number of rows")
    if is_concrete(window):
        _checks.check_count("window", window, 1)
    return (sets, y), {"window": as_array("window", window)}


@metric(_of_windows)
def worst_window_coverage(
    count: Count, sets: Set | ArrayLike, y: ArrayLike, window: int
) -> Array:
    """Returns the least coverage of so many consecutive rows.

    min over i of mean 1(y in C) of the rows i, ..., i + window - 1, in order of time.

    It is no test. The worst of many windows is far below 1 - alpha by chance alone: of
    1000 independent rows that are covered with probability 0.9 the worst 100 in a row
    have a coverage of 0.83 on average, and the worst 50 one of 0.79. Compare it with
    that of another method on the same rows, or with independent rows that are drawn.

    Args:
      sets: Sets of consecutive rows, with leading axis m, as a predictor returns them.
      y: Targets, shape (m, ...), or labels, shape (m,), int or by the names
        that the sets have.
      window: Number of rows of a window, an int in 1, ..., m. Each compiles nothing
        new, and `jax.vmap` takes several.

    Returns:
      Coverage in [0, 1], shape (); NaN for no rows, for a NaN in a set or a target, and
      for a traced window that is none of 1, ..., m.

    Raises:
      ValueError: as `coverage`, or if a concrete window is no int in 1, ..., m.

    Guarantee:
      None: it describes these rows.

    Assumption:
      Rows in order of time.

    Cost:
      O(m) time: one membership for each row.

    References:
      Glaz, Naus, Wallenstein, Scan Statistics, Springer, 2001.

    See also:
      metrics.longest_miss, metrics.coverage, metrics.worst_slab_coverage, online.run

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets, y = Interval(jnp.zeros(5), jnp.ones(5)), jnp.array([2, 0, 3, 3, 1.0])
      >>> worst_window_coverage(sets, y, 4)
      Array(0.25, dtype=float32)
    """
    m = len(covered := _sets.is_covered(sets, y))
    total = jnp.append(0, jnp.cumsum(covered == 1, dtype=int))  # of the rows before
    start = jnp.arange(m + 1)
    inside = (window > 0) & (window <= (m if count is None else count) - start)
    found = total[jnp.minimum(start + window, m)] - total
    least = jnp.min(jnp.where(inside, found, m + 1))
    rate = quotient(least.astype(covered.dtype), window)
    return unless_nan(covered, jnp.where(least > m, jnp.nan, rate))
