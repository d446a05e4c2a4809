"""From alpha to ranks and certificates, for all that fit with the test point."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._counting import count_true
from jaxcp.calibration._rows import check_lawful
from jaxcp.certificates import MarginalCertificate
from jaxcp.quantiles.levels import (
    alpha_as_float,
    as_alpha,
    exact_rank,
    ranks,
    split_alpha,
)
from jaxcp.typing import ArrayLike


class Levels:
    """A mixin for values with a number of rows, and how they count."""

    num_rows: Any
    components: Any
    weights: Any
    mask: Any

    def rank(self, alpha: ArrayLike) -> Array:
        """Returns the rank k = n + 1 - floor(alpha (n + 1)) of the ends of sets.

        One for each component, shape (c,); alpha as a float where there are weights.
        """
        if np.ndim(alpha) > len(self.components):
            shapes = f"{self.components} or ()" if self.components else "()"
            raise ValueError(
                f"expected alpha of shape {shapes}, got {np.shape(alpha)}; use "
                "jax.vmap for sets at several levels"
            )
        shares = split_alpha(as_alpha(alpha), self.components)
        if self.weights is not None:
            return alpha_as_float(shares)
        return ranks(self._count(), shares)

    def certificate(self, alpha: Any) -> MarginalCertificate:
        """Returns the exact marginal coverage of sets at alpha, k / (n + 1).

        Coverage given the training set has no known law: the fits depend on the test
        point, and scores of other test points are not those of the same ones.

        Args:
          alpha: Miscoverage level in (0, 1), a number.

        Returns:
          A `certificates.MarginalCertificate` for the number of rows that count.

        Raises:
          ValueError: if `alpha` is outside (0, 1), there are several components or
            weights, whose coverage has no such law, or the mask is traced.

        Guarantee:
          Exact for exchangeable examples whose scores do not tie; else at least this.
        """
        scores = np.zeros((1, *self.components))
        check_lawful(scores, self.weights, self.mask)  # type: ignore[arg-type]
        count, exact = int(self._count()), as_alpha(alpha)
        _checks.check_shape("alpha", (), exact.shape)
        if isinstance(exact, Array):
            exact = as_alpha(np.asarray(exact))
        share = exact.item()
        return MarginalCertificate(count, share, exact_rank(count, share))

    def _count(self):
        """Returns how many rows count."""
        return self.num_rows if self.mask is None else count_true(self.mask)
