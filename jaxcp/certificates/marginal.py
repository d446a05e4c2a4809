"""Coverage that is known on average alone."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from jaxcp.certificates.laws import told


@dataclass(frozen=True)
class MarginalCertificate:
    """The marginal coverage of full conformal sets.

    Made by `FullConformal.certificate`. There is no law given the training set.

    Args:
      n: Number of rows.
      alpha: Miscoverage level, exactly.
      rank: Which order statistic the ends are, k, from 1; n + 1 means the whole line.
      exact: Whether sets hold no more than the targets whose p-values exceed alpha.
        Hulls of sets with holes do: they cover at least this.

    See also:
      FullConformal.certificate, certificates.Certificate
    """

    n: int
    alpha: Fraction
    rank: int
    exact: bool = True

    def __str__(self) -> str:
        return f"coverage {told(self)} on average"

    @property
    def coverage(self) -> float:
        """The marginal coverage k / (n + 1), or at least this where not `exact`."""
        return self.rank / (self.n + 1)
