"""Full conformal prediction: every fit knows the test point, and none is held out."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._counting import count_true
from jaxcp._named import named
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree, static
from jaxcp._tracing import jit
from jaxcp.calibration._rows import weights_for
from jaxcp.full import _smooth
from jaxcp.learners import checking
from jaxcp.learners.general import check_learner
from jaxcp.quantiles.levels import alpha_as_float, as_alpha, ranks, split_alpha
from jaxcp.scores import Absolute, Signed, inputs
from jaxcp.typing import (
    AnySet,
    ArrayLike,
    Augments,
    FitsOnHost,
    Learner,
    PyTree,
    Score,
)

Residuals = Literal["studentized", "ordinary", "deleted"]


@pytree
class FullConformal:
    """Fits that know the test point: full conformal sets. Made by `full_conformal`.

    Args:
      score: The nonconformity score.
      source: What the fits are.
      weights: Weights >= 0 of the rows' scores, shape (n,), or None.
      mask: True where a row counts, shape (n,), or None.
      num_rows: Number of rows n.
      components: Shape of one score: (), or (c,).
      target_shape: Shape of one target.
      residuals: Which residuals are compared.
      batch_size: Test points at a time, or None.
      dtype: Type of the ends of sets.
      classes: Names of the labels, or None.

    See also:
      full_conformal, jackknife_plus, CrossConformal
    """

    score: Score
    source: Any
    weights: Array | None
    mask: Array | None
    num_rows: int = static()
    components: tuple[int, ...] = static(default=())
    target_shape: tuple[int, ...] = static(default=())
    residuals: Residuals = static(default="studentized")
    batch_size: int | None = static(default=None)
    dtype: Any = static(default=None)
    classes: tuple[Hashable, ...] | None = static(default=None)

    def __call__(
        self,
        x: PyTree,
        alpha: ArrayLike,
        *,
        test_weights: ArrayLike | None = None,
        union: bool = False,
    ) -> AnySet:
        """Returns the full conformal sets at new inputs."""
        weights = weights_for(self.weights, test_weights)
        x, weights = _checks.rows(x=x, test_weights=weights)
        level = self.rank(alpha)
        if weights is None and self.weights is not None:
            weights = np.ones(_checks.num_rows(x=x), np.float32)
        sets = self.source.sets(self, x, level, weights, union)
        return named(sets, self.classes)

    def rank(self, alpha: ArrayLike) -> Array:
        """Returns the rank k = n + 1 - floor(alpha (n + 1)), of each component.

        Alpha as a float where there are weights.
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
        count = self.num_rows if self.mask is None else count_true(self.mask)
        return ranks(count, shares)


def full_conformal(
    key: Array,
    learner: Learner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    residuals: Residuals = "studentized",
    calibration_weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    batch_size: int | None = None,
    check: bool = True,
) -> FullConformal:
    """Returns full conformal prediction: exactly 1 - alpha, and no row held out."""
    inputs.check_score(score)
    _checks.check_given(learner=learner)
    x, y, weights, mask = _checks.rows(
        x=x,
        y=y,
        calibration_weights=_checks.weights(calibration_weights),
        mask=_checks.mask(mask),
    )
    y = as_float(y)
    check_learner(learner, x, y)
    signed = isinstance(score, Signed)
    shape = y.shape[1:]
    components = (2 * int(np.prod(shape)),) if signed else shape
    if weights is not None and mask is not None:
        weights = jnp.where(mask, weights, 0)
    source = _smooth.Smoother(learner, _prepare(learner, x, y, mask))
    return FullConformal(
        score,
        source,
        weights,
        mask,
        len(y),
        components,
        shape,
        residuals,
        batch_size,
        y.dtype,
    )


@jit
def _prepare(learner, x, y, mask):
    return learner.prepare(x, y, mask)
