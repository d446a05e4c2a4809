"""Coverage that is known on average alone."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class MarginalCertificate:
    """The exact marginal coverage of full conformal sets.

    Made by `FullConformal.certificate`. There is no law given the training set.

    Args:
      n: Number of rows.
      alpha: Miscoverage level, exactly.
      rank: Which order statistic the ends are, k, from 1; n + 1 means the whole line.

    See also:
      FullConformal.certificate, certificates.Certificate
    """

    n: int
    alpha: Fraction
    rank: int

    @property
    def coverage(self) -> float:
        """The exact marginal coverage k / (n + 1)."""
        return self.rank / (self.n + 1)
