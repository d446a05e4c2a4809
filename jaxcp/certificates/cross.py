"""Coverage of sets by fits that leave rows out: a bound, sharper than the published."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import ClassVar


@dataclass(frozen=True, repr=False)
class CrossCertificate:
    """A lower bound of the marginal coverage of jackknife+, CV+ and minmax sets.

    Made by `CrossCalibration.certificate`. With m = n/K rows in a fold, f = floor(alpha
    (n + 1)) and k = n + 1 - f: a missed target is one of at most 2 (f - 1) + m rows
    among n + m, in minmax sets of at most n + m - k. The published bound rounds them.

    Args:
      n: Number of rows that calibrate.
      num_folds: Number of folds K, all of n / K rows.
      alpha: Miscoverage level, exactly.
      minmax: Whether it is for `minmax` in place of the "+" sets.
      num_components: Number of score components c, each at alpha / c.

    See also:
      CrossCalibration.certificate, certificates.MarginalCertificate
    """

    exact: ClassVar[bool] = False  # coverage may be more

    n: int
    num_folds: int
    alpha: Fraction
    minmax: bool = False
    num_components: int = 1

    @property
    def coverage(self) -> float:
        """What marginal coverage is at least, from counts of rows."""
        return self._left(_missed)

    @property
    def published(self) -> float:
        """The bound of the theorems, a function of alpha, n and K; 0 if negative."""
        return self._left(_published)

    def __repr__(self) -> str:
        of = "minmax sets" if self.minmax else '"+" sets'
        return (
            f"{type(self).__name__}(coverage of {of}: at least {self.coverage:.6g}; "
            f"published: {self.published:.6g}; alpha={float(self.alpha):.6g}, "
            f"n={self.n}, num_folds={self.num_folds})"
        )

    def _left(self, missed):
        c = self.num_components
        each = missed(self.n, self.num_folds, self.alpha / c, self.minmax)
        return float(max(1 - c * each, 0))


def _missed(n, num_folds, alpha, minmax):
    """Returns at most how often one component misses, from counts of rows."""
    rank_left, m = floor(alpha * (n + 1)), n // num_folds
    if rank_left == 0:  # infinite sets
        return Fraction(0)
    # A missed row beats k rows outside of its fold, and no two of different folds beat
    # each other: s missed ones have s (s - m) / 2 <= s (n - k).
    bounds = [Fraction(2 * (rank_left - 1) + m, n + m)]
    # Each fold has a p-value of the test point; twice their mean is one, too.
    bounds.append(Fraction(2 * (rank_left - 1 + num_folds), n + num_folds))
    if minmax:  # the missed row of least min_j R_ij beats k rows that are not missed
        bounds.append(Fraction(rank_left - 1 + m, n + m))
    return min(bounds)


def _published(n, num_folds, alpha, minmax):
    m = Fraction(n, num_folds)
    slack = (1 - 1 / m) / (num_folds + 1)
    if minmax:
        return alpha + slack
    # Barber, Candes, Ramdas, Tibshirani 2021, theorem 4
    return 2 * alpha + min(slack, 2 * (1 - Fraction(1, num_folds)) / (m + 1))
