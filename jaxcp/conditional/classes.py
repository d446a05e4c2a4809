"""Groups: of classes whose scores are alike, and of rows by a number of theirs."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _checks, _geometry
from jaxcp.typing import ArrayLike

LEVELS = 0.5, 0.6, 0.7, 0.8, 0.9


@_checks.by_labels
def group_classes(
    key: Array,
    scores: ArrayLike,
    labels: ArrayLike,
    num_groups: int,
    *,
    num_classes: int | None = None,
    min_count: int = 10,
) -> Array:
    """Returns the group of each class, of classes whose scores have like quantiles.

    A class is its five scores of rank ceil(level n_c), at levels 0.5 to 0.9; groups are
    those of k-means of them, weighted by sqrt(n_c). For `calibrate_groups`, on other
    rows than these.

    Args:
      key: Random key, for the first centers.
      scores: Scores at the labels of rows that do not calibrate, shape (n,), finite.
      labels: Labels of the rows, 0, ..., k - 1, int, shape (n,).
      num_groups: Number of groups.
      num_classes: Number of classes k. Defaults to the largest label plus 1.
      min_count: Rows that a class needs. Others are in no group, -1.

    Returns:
      Group of each class, 0, ..., num_groups - 1 or -1, shape (k,).

    Raises:
      ValueError: if lengths differ, a score is not finite, a label is out of range,
        values are traced, or fewer than `num_groups` classes have `min_count` rows.

    Guarantee:
      None of its own: any groups from other rows keep those of `calibrate_groups`.

    Assumption:
      For classes to be covered each, and not their groups alone: their scores have
      nearly one distribution within a group.

    Cost:
      One sort of the rows, on the host, and 25 steps of k-means.

    References:
      Ding, Angelopoulos, Bates, Jordan, Tibshirani, Class-Conditional Conformal
      Prediction with Many Classes, NeurIPS, 2023.

    See also:
      calibrate_groups, metrics.class_coverage, scores.Truncated

    Example:
      >>> scores = jnp.array([0.1, 0.2, 0.1, 0.3, 0.8, 0.9])
      >>> labels, key = jnp.array([0, 0, 1, 1, 2, 2]), jax.random.key(0)
      >>> groups = group_classes(key, scores, labels, 2, min_count=2)
      >>> (groups[0] == groups[1]).item(), (groups[0] == groups[2]).item()
      (True, False)
    """
    _checks.check_key(key)
    _checks.check_count("num_groups", num_groups, 1)
    _checks.check_count("min_count", min_count, 1)
    given = _checks.optional(labels)._replace(required=True)
    scores, labels = _checks.rows(scores=_checks.scores(scores), labels=given)
    if not _arrays.is_concrete(scores, labels):
        raise ValueError("expected scores and labels with values, got traced arrays")
    _checks.check_values(np.isfinite, "finite scores", scores)
    k = int(np.max(labels, initial=0)) + 1 if num_classes is None else num_classes
    _checks.check_labels("labels", labels, k)
    counts, points = quantiles_of_classes(np.asarray(scores), np.asarray(labels), k)
    large = np.flatnonzero(counts >= min_count)
    if len(large) < num_groups:
        raise ValueError(
            f"expected num_groups of at most {len(large)}, the classes with "
            f"{min_count} rows, got {num_groups}; min_count= may be less"
        )
    weights = jnp.asarray(np.sqrt(counts[large]))
    cells = _geometry.cells(key, jnp.asarray(points[large]), weights, num_groups)
    return jnp.full(k, -1).at[large].set(cells)


def quantiles_of_classes(scores, labels, k):
    """Returns the number of rows of each class, and its scores of rank ceil(l n_c)."""
    counts = np.bincount(labels, minlength=k)
    ordered = np.append(scores[np.lexsort((scores, labels))], np.inf)
    ranks = np.ceil(np.outer(counts, LEVELS) - 1e-9).astype(int)
    places = (np.cumsum(counts) - counts)[:, None] + np.maximum(ranks, 1) - 1
    return counts, ordered[np.minimum(places, len(scores))]


def bins(values: Any, k: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns groups of rows by a number, such as their difficulty, and the edges.

    Bin j holds the values in (e_j, e_(j+1)]. The ends are infinite; inside are the
    quantiles at 1/k, ..., (k - 1)/k of `values`, interpolated, but for those that
    would leave a bin of these without values.

    Args:
      values: A number for each row, shape (n,), finite.
      k: Number of bins, or the edges that an earlier call returned: other rows then get
        the same bins.

    Returns:
      (groups, edges): the bin of each row, 0, ..., g - 1, int (n,), and the edges,
      shape (g + 1,), for `calibrate_groups(..., groups, num_groups=len(edges) - 1)`.
      There are fewer than k bins where values tie.

    Raises:
      ValueError: if a value is not finite or traced, there are no rows to make edges
        of, or `k` is neither a count nor edges that rise from -inf to inf.

    Guarantee:
      None of its own: that of `calibrate_groups`, for edges from rows that do not
      calibrate, such as those that fitted the difficulty.

    Assumption:
      The edges do not depend on the rows that calibrate.

    Cost:
      A sort of the values, on the host, for edges; a binary search a row for bins.

    References:
      Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, 2005 (a taxonomy
      of rows).

    See also:
      learners.Difficulty, calibrate_groups, metrics.group_coverage

    Example:
      >>> groups, edges = bins([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 3)
      >>> groups.tolist(), edges.round(2).tolist()
      ([0, 0, 1, 1, 2, 2], [-inf, 0.27, 0.43, inf])
      >>> bins([0.0, 0.3, 9.0], edges)[0].tolist()
      [0, 1, 2]
    """
    values = _checks.numbers("values", values)
    _checks.check_values(np.isfinite, "finite values", values)
    if np.ndim(k) == 0:
        _checks.check_count("k", k, 1)
        _checks.check_count("the number of values", len(values), 1)
        inner = np.quantile(values, np.arange(1, k) / k)
        below = np.searchsorted(np.sort(values), inner, side="right")
        counts, first = np.unique(below, return_index=True)  # no bin is empty
        k = [-np.inf, *inner[first[counts < len(values)]], np.inf]
    edges = _checks.numbers("k", k)
    ends = [*edges[:1], *edges[-1:]]
    if not (np.diff(edges) > 0).all() or ends != [-np.inf, np.inf]:
        raise ValueError(f"expected edges that rise from -inf to inf, got {edges}")
    return np.searchsorted(edges[1:-1], values), edges
