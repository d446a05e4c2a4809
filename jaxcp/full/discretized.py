"""Full conformal prediction of numbers by any learner: a refit for each cell of a grid."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._counting import count_true
from jaxcp._pytree import pytree, static
from jaxcp.calibration._rows import check_lawful, weights_for
from jaxcp.full import _cell_checks, _cells
from jaxcp.quantiles.levels import alpha_as_float, as_alpha, ranks, split_alpha
from jaxcp.sets import Intervals
from jaxcp.typing import ArrayLike, Learner, PyTree, Score


@pytree
class DiscretizedConformal:
    """Rows and a grid of targets, with which each test point is fitted.

    Made by `discretized_conformal`. Nothing is fitted before it is called: every fit
    sees a test point.

    Args:
      key: Random key of the fits, the same for all.
      learner: The learner.
      score: The nonconformity score.
      x: Inputs, a pytree with leading axis n.
      y: Targets, shape (n,).
      grid: Values that targets are rounded to in the fits, shape (g,).
      weights: Weights >= 0 of the rows' scores, shape (n,), or None.
      mask: True where a row counts, shape (n,), or None.
      components: Shape of one score: () or (c,).
      batch_size: Test points that run at a time, or None.

    See also:
      discretized_conformal, full_conformal
    """

    key: Array
    learner: Learner
    score: Score
    x: PyTree
    y: Array
    grid: Array
    weights: Array | None = None
    mask: Array | None = None
    components: tuple[int, ...] = static(default=())
    batch_size: int | None = static(default=None)

    def __call__(
        self, x_new: PyTree, alpha: ArrayLike, *, test_weights: ArrayLike | None = None
    ) -> Intervals:
        """Returns the sets of new inputs.

        With f_j the fit on the n rows and (x_new, grid_j), targets rounded, and k = n +
        1 - floor(alpha (n + 1)): the union over the cells j of {y in cell : s(f_j(x_new),
        y) <= the k-th smallest of s(f_j(x_i), y_i)}. Cells end halfway between values of
        the grid, and the outer two are infinite.

        Args:
          x_new: Inputs, a pytree with leading axis m.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components (a
            scalar is split to alpha / c).
          test_weights: Weight of each test point, shape (m,), for rows with weights.
            Defaults to 1.

        Returns:
          `Intervals` with ends of shape (m, g), pieces that touch joined; the whole line
          where the rank is n + 1.

        Raises:
          ValueError: if a number `alpha` is outside (0, 1), or lengths or shapes differ.

        Guarantee:
          P(Y in set) >= 1 - alpha, on average over rows and test points.

        Assumption:
          The rows and test examples are exchangeable, the learner treats rows alike, and
          the grid was chosen without the targets.

        Cost:
          g fits on n + 1 rows, and g thresholds in O(n), for each test point. Fits that
          share their inputs factorize once: `Ridge` in O(n p^2 + p^3 + g n p).

        References:
          Chen, Chun, Barber, Discretized Conformal Prediction for Efficient
          Distribution-Free Inference, Stat, 2018.
        """
        x_new, _, test_weights, _ = self._rows(x_new, test_weights)
        return _cells.sets(self, x_new, self.rank(alpha), test_weights)

    def p_values(
        self,
        x_new: PyTree,
        y: ArrayLike,
        *,
        u: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> Array:
        """Returns how exceptional each example is among the rows.

        p = (1 + #{S_i >= S_new}) / (n + 1), with all scores under the fit on the n rows
        and the example, targets rounded.

        Args:
          x_new: Inputs, a pytree with leading axis m.
          y: Targets or candidate targets, shape (m,).
          u: Uniforms for smoothed p-values, shape (m,). Defaults to 1: conservative.
          test_weights: Weight of each test point, shape (m,). Defaults to 1.

        Returns:
          p-values, shape (m,); with c components min(1, c times the smallest one). `y`
          is in the set at alpha iff its conservative p-value exceeds alpha; halfway
          between values of the grid, `y` belongs to the lower cell here, and the set
          holds it if it belongs to either.

        Raises:
          ValueError: as calling, and if lengths differ.

        Guarantee:
          P(p <= alpha) <= alpha.

        Assumption:
          That of the sets.

        Cost:
          One fit on n + 1 rows for each example.
        """
        rows = self._rows(x_new, test_weights, _checks.required(_checks.vector(y)), u)
        x_new, y, test_weights, u = rows
        _checks.check_not_nan("y", y)
        return _cells.p_values(self, x_new, y, u, test_weights)

    def rank(self, alpha: ArrayLike) -> Array:
        """Returns the rank k = n + 1 - floor(alpha (n + 1)) of the thresholds.

        One for each component, shape (c,); alpha as a float where there are weights.
        """
        if np.ndim(alpha) > len(self.components):
            shapes = f"{self.components} or ()" if self.components else "()"
            raise ValueError(
                f"expected alpha of shape {shapes}, got {np.shape(alpha)}; use "
                "jax.vmap for sets at several levels"
            )
        alpha = split_alpha(as_alpha(alpha), self.components)
        if self.weights is not None:
            return alpha_as_float(alpha)
        return ranks(self._num_rows(), alpha)

    def _num_rows(self):
        return len(self.y) if self.mask is None else count_true(self.mask)

    def _rows(self, x_new, test_weights, y=_checks.vector(None), u=None):
        """Returns inputs and what belongs to each, or raises ValueError."""
        x_new, y, test_weights, u = _checks.rows(
            x_new=x_new,
            y=y,
            test_weights=weights_for(self.weights, test_weights),
            u=_checks.uniforms(u),
        )
        _cell_checks.check_like_rows(self.x, x_new)
        return x_new, y, test_weights, u


def discretized_conformal(
    key: Array,
    learner: Learner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    grid: ArrayLike,
    *,
    calibration_weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    batch_size: int | None = None,
    check: bool = True,
) -> DiscretizedConformal:
    """Returns full conformal prediction by any learner, with targets rounded in its fits.

    Every fit sees all n rows and a test point. Targets are rounded to a grid in the fits
    alone, so that a test point needs one fit for each value of the grid; scores see the
    targets themselves. Sets are exactly valid, and only the fits are a little coarser.

    There are no sets by a plain grid, which test the values of the grid alone: targets
    fall between these, and nothing is guaranteed of what was not tested.

    Args:
      key: Random key of the fits, the same for all: a learner that draws its start
        draws it once.
      learner: A learner that treats all rows alike.
      score: Nonconformity score of one example whose sets are intervals.
      x: Inputs, a pytree with leading axis n.
      y: Targets, shape (n,), in their own units.
      grid: Increasing finite values, shape (g,), chosen without looking at the targets:
        from what they can be. Each y is rounded to the nearest, halves down; targets
        beyond the ends cost nothing but a coarser fit.
      calibration_weights: Weights >= 0 of the rows' scores, shape (n,): likelihood
        ratios of test to training inputs, for thresholds alone. The fits do not see them.
      mask: True where a row counts, shape (n,), for padded data. Defaults to all rows.
      batch_size: Test points that run at a time, with g fits each. Defaults to as many
        as keep the scores within a fixed budget.
      check: Whether a learner of your own is first tried in another order of the rows.

    Returns:
      A `DiscretizedConformal`: call it with inputs and alpha.

    Raises:
      ValueError: if the grid does not increase or lengths differ, for several outputs,
        scores of labels or without intervals, models of other libraries, and learners
        that do not treat rows alike.

    Guarantee:
      1 - alpha; exactly k / (n + 1) without ties.

    Assumption:
      The rows and test examples are exchangeable, the learner treats rows alike, and the
      grid was chosen without the targets.

    Cost:
      One fit here, to check predictions; g fits for each test point later.

    References:
      Chen, Chun, Barber, Discretized Conformal Prediction for Efficient
      Distribution-Free Inference, Stat, 2018.
      Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, Springer, 2005.

    See also:
      full_conformal, jackknife_plus, sets.Intervals

    Example:
      >>> from jaxcp import datasets, learners, scores
      >>> x, y = datasets.linear(jax.random.key(0), 30)
      >>> grid, median = jnp.linspace(-6, 6, 25), learners.QuantileRidge((0.5,), 0.1)
      >>> score = scores.Custom(
      ...     lambda pred, y: jnp.abs(y - pred[0]),
      ...     lambda pred, q: jaxcp.sets.Interval(pred[0] - q, pred[0] + q),
      ... )
      >>> cp = discretized_conformal(jax.random.key(1), median, score, x, y, grid)
      >>> cp(x[:2], alpha=0.1).num_pieces()
      Array([1, 1], dtype=int32)
    """
    rows = _cell_checks.checked(
        key, learner, score, x, y, grid, calibration_weights, mask, check
    )
    if batch_size is not None:
        _checks.check_count("batch_size", batch_size, 1)
    return DiscretizedConformal(
        key, learner, score, *rows, batch_size=batch_size
    )
