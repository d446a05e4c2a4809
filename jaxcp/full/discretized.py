"""Full conformal prediction of numbers by any learner: refits with cells of a grid."""

from __future__ import annotations

from jax import Array

from jaxcp import _checks
from jaxcp._pytree import pytree, static
from jaxcp.calibration._rows import weights_for
from jaxcp.full import _cell_checks, _cells
from jaxcp.full._levels import Levels
from jaxcp.sets import Intervals
from jaxcp.typing import ArrayLike, Learner, PyTree, Score

_NO_TARGETS = _checks.vector(None)


@pytree
class DiscretizedConformal(Levels):
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
        1 - floor(alpha (n + 1)): the union over the cells j of {y in cell :
        s(f_j(x_new), y) <= the k-th smallest of s(f_j(x_i), y_i)}. Cells end halfway
        between values of the grid, and the outer two are infinite.

        Args:
          x_new: Inputs, a pytree with leading axis m.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components (a
            scalar is split to alpha / c).
          test_weights: Weight of each test point, shape (m,), for rows with weights.
            Defaults to 1, and no weight may then be larger.

        Returns:
          `Intervals` with ends of shape (m, g), pieces that touch joined; the whole
          line where the rank is n + 1. A cell whose fit is NaN stays in the set.

        Raises:
          ValueError: if a number `alpha` is outside (0, 1), or lengths or shapes
            differ.

        Guarantee:
          P(Y in set) >= 1 - alpha, on average over rows and test points.

        Assumption:
          The rows and test examples are exchangeable, the learner treats rows alike,
          and the grid was chosen without the targets.

        Cost:
          g fits on n + 1 rows, and g thresholds in O(n), for each test point. Fits that
          share their inputs factorize once: `Ridge` in O(n p^2 + p^3 + g n p).

        References:
          Chen, Chun, Barber, Discretized Conformal Prediction for Efficient
          Distribution-Free Inference, Stat, 2018.

        Example:
          >>> from jaxcp import discretized_conformal, learners, scores
          >>> x, y, grid = jnp.zeros((9, 1)), jnp.arange(-4.0, 5), jnp.array([0.0])
          >>> key, ridge = jax.random.key(0), learners.Ridge(1.0)
          >>> cp = discretized_conformal(key, ridge, scores.Absolute(), x, y, grid)
          >>> round(cp(x[:1], alpha=0.25).upper.item(), 3)
          4.0
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
          test_weights: Weight of each test point, shape (m,), as for the sets.

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

    @property
    def num_rows(self) -> int:
        """Number of rows n."""
        return len(self.y)

    def _rows(self, x_new, test_weights, y=_NO_TARGETS, u=None):
        """Returns inputs and what belongs to each, or raises ValueError."""
        x_new, y, test_weights, u = _checks.rows(
            x_new=x_new,
            y=y,
            test_weights=weights_for(self.weights, test_weights),
            u=_checks.uniforms(u),
        )
        shapes = _checks.shapes_of_rows(self.x)
        _checks.check_like_rows("x_new", x_new, shapes)
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
    """Returns full conformal prediction by any learner, fitted to rounded targets.

    Every fit sees all n rows and a test point. Targets are rounded to a grid in the
    fits alone, so that a test point needs one fit for each value of the grid; scores
    see the targets themselves. The guarantee stays whole, and only the fits are a
    little coarser.

    A plain grid, which tries its values alone with targets as they are, is not offered.
    Targets fall between its values, and of what was not tried nothing is guaranteed.

    Args:
      key: Random key of the fits, the same for all: a learner that draws its start
        draws it once.
      learner: A learner that treats all rows alike.
      score: Nonconformity score of one example whose sets are intervals.
      x: Inputs, a pytree with leading axis n.
      y: Targets, shape (n,), in their own units.
      grid: Increasing finite values, shape (g,), chosen without looking at the targets:
        from what they can be. Each y is rounded to the nearest, halves down; targets
        beyond the ends only make the fits coarser.
      calibration_weights: Weights >= 0 of the rows' scores, shape (n,): likelihood
        ratios of test to training inputs, for thresholds alone, and the sets are asked
        for with `test_weights`; no fit sees them.
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
      At least 1 - alpha; exactly k / (n + 1) without ties.

    Assumption:
      The rows and test examples are exchangeable, the learner treats rows alike, and
      the grid was chosen without the targets.

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
      >>> grid, bands = jnp.linspace(-6, 6, 25), learners.QuantileRidge((0.1, 0.9), 1.0)
      >>> score = scores.CQR()
      >>> cp = discretized_conformal(jax.random.key(1), bands, score, x, y, grid)
      >>> cp(x[:2], alpha=0.1).contains(y[:2])
      Array([ True,  True], dtype=bool)
    """
    rows = _cell_checks.checked(
        key, learner, score, x, y, grid, calibration_weights, mask, check
    )
    if batch_size is not None:
        _checks.check_count("batch_size", batch_size, 1)
    return DiscretizedConformal(key, learner, score, *rows, batch_size=batch_size)
