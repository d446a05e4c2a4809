"""Which rows count, and from alpha to ranks and certificates of these."""

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
from jaxcp.scores import inputs
from jaxcp.typing import ArrayLike


class Levels:
    """A mixin for values with a number of rows, and how they count."""

    num_rows: Any
    components: Any
    weights: Any
    mask: Any
    score: Any

    @property
    def has_hulls(self) -> bool:
        """Whether sets close the holes of those of p-values above alpha."""
        return False

    def rank(self, alpha: ArrayLike) -> Array:
        """Returns the rank k = n + 1 - floor(alpha (n + 1)) of the ends of sets.

        One for each component, shape (c,); alpha as a float where there are weights.
        """
        shares = shares_of(alpha, self.components)
        if self.weights is not None:
            return alpha_as_float(shares)
        return ranks(count_of(self.num_rows, self.mask), shares)

    def certificate(self, alpha: Any) -> MarginalCertificate:
        """Returns the marginal coverage of sets at alpha, k / (n + 1).

        Coverage given the training set has no known law: the fits depend on the test
        point, and scores of other test points are not those of the same ones.

        Args:
          alpha: Miscoverage level in (0, 1), a number.

        Returns:
          A `certificates.MarginalCertificate` for the number of rows that count; not
          `exact` for residuals that are not studentized, whose intervals close holes
          (`union=True` leaves them open), and for scores whose sets may hold more than
          {score <= q}.

        Raises:
          ValueError: if `alpha` is outside (0, 1), there are several components or
            weights, whose coverage has no such law, or the mask is traced.

        Guarantee:
          Exact for exchangeable examples whose scores do not tie, where sets are; else
          at least this.

        Example:
          >>> from jaxcp import full_conformal, learners, scores
          >>> x, y = jnp.zeros((9, 1)), jnp.arange(9.0)
          >>> key, ridge = jax.random.key(0), learners.Ridge(1.0)
          >>> cp = full_conformal(key, ridge, scores.Absolute(), x, y)
          >>> cp.certificate(0.25).coverage
          0.8
        """
        scores = np.zeros((1, *self.components))
        check_lawful(scores, self.weights, self.mask)  # type: ignore[arg-type]
        count = int(count_of(self.num_rows, self.mask))
        level = as_alpha(alpha)
        _checks.check_shape("alpha", (), level.shape)
        if isinstance(level, Array):
            level = as_alpha(np.asarray(level))
        share = level.item()
        exact = inputs.is_exact(self.score) and not self.has_hulls
        return MarginalCertificate(count, share, exact_rank(count, share), exact)


def shares_of(alpha: ArrayLike, components: tuple[int, ...] = ()) -> Any:
    """Returns the share of alpha of each component, after checks."""
    if np.ndim(alpha) > len(components):
        shapes = f"{components} or ()" if components else "()"
        raise ValueError(
            f"expected alpha of shape {shapes}, got {np.shape(alpha)}; use jax.vmap "
            "for sets at several levels"
        )
    return split_alpha(as_alpha(alpha), components)


def count_of(num_rows: int, mask: Array | None) -> Any:
    """Returns how many rows count."""
    return num_rows if mask is None else count_true(mask)
