"""Thresholds on the host: exact counts, and nothing is compiled.

Of scores in cells, and of few scores that are known.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction

import numpy as np

from jaxcp.quantiles.levels import exact_rank

FEW_SCORES = 2**12  # of which a partition takes less time than to call a program


def cell_thresholds(
    scores: np.ndarray,
    cells: np.ndarray,
    num_cells: int,
    alpha: Fraction,
    clusters: np.ndarray | None = None,
) -> np.ndarray:
    """Returns the conformal threshold of each cell, +inf where there are too few rows.

    With clusters each of them weighs 1 in a cell, which its rows share. Rows that come
    sorted, by cell and then by score, take O(n); others a sort.
    """
    order = np.lexsort((scores, cells))
    scores, cells = scores[order], cells[order]
    sizes = np.bincount(cells, minlength=num_cells)
    starts = np.cumsum(sizes) - sizes
    if clusters is None:
        distinct_sizes, place = np.unique(sizes, return_inverse=True)
        ranks = np.array([exact_rank(n, alpha) for n in distinct_sizes.tolist()])[place]
    else:
        clusters_of_cells = np.split(clusters[order], starts[1:])
        ranks = np.array([_cluster_rank(ids, alpha) for ids in clusters_of_cells])
    in_range = np.minimum(starts + ranks, len(scores)) - 1
    return np.where(ranks <= sizes, scores[in_range], np.inf)


def _cluster_rank(clusters: np.ndarray, alpha: Fraction) -> int:
    """Returns the rank of the threshold among rows in order; n + 1 where it is +inf."""
    _, codes, rows = np.unique(clusters, return_inverse=True, return_counts=True)
    cluster_sizes, size_codes = np.unique(rows[codes], return_inverse=True)
    # min{k : sum_{i > k} 1 / N_i + 1 <= alpha (K + 1)}, in fractions.
    spare = alpha * (len(rows) + 1) - 1

    def leaves_little(rank: int) -> bool:
        counts = np.bincount(size_codes[rank:], minlength=len(cluster_sizes))
        shares = map(Fraction, counts.tolist(), cluster_sizes.tolist())
        return sum(shares) <= spare

    return 1 + bisect_left(range(1, len(clusters) + 1), True, key=leaves_little)


def known_thresholds(
    scores: np.ndarray,
    rank: np.ndarray,
    mask: np.ndarray | None = None,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Returns `thresholds` of floats (n, ...), with groups `group_thresholds` (g, ...).

    To the last bit: NaN counts as +inf, and -0.0 as 0.0.
    """
    values = np.where(np.isnan(scores), np.inf, scores) + scores.dtype.type(0)
    values = values.reshape(len(values), math.prod(scores.shape[1:]))
    counts = np.ones(len(values), bool) if mask is None else mask != 0
    if groups is None:
        cells, ranks = [counts], [rank]
    else:
        cells, ranks = [counts & (groups == g) for g in range(len(rank))], list(rank)
    found = np.empty((len(cells), values.shape[1]), scores.dtype)
    for row, rows, own in zip(found, cells, ranks, strict=True):
        own_ranks = np.broadcast_to(np.ravel(own), row.shape)
        for c, k in enumerate(own_ranks.tolist()):
            row[c] = _kth_smallest(values[rows, c], k)
    shape = () if groups is None else (len(cells),)
    return found.reshape((*shape, *scores.shape[1:]))


def _kth_smallest(values: np.ndarray, k: int) -> np.floating | float:
    if k < 1:
        return -math.inf
    return math.inf if k > len(values) else np.partition(values, k - 1)[k - 1]
