"""Full conformal prediction of numbers by any learner: refits with cells of a grid."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete, is_rounded
from jaxcp._batching import evaluate, map_evenly, score_of, widened
from jaxcp._numbers import as_float, rounding
from jaxcp._tree import jit, pytree, static
from jaxcp.checking import learners
from jaxcp.full import fitting
from jaxcp.held.taking import check_digits_of_targets
from jaxcp.pvalues.conformal import p_values_among
from jaxcp.quantiles.thresholds import threshold_at
from jaxcp.scores import inputs
from jaxcp.sets import Intervals
from jaxcp.sets.unions import joined
from jaxcp.typing import ArrayLike, HasEnds, HasShapes, Learner, PyTree, Score

# Numbers of the fits of some cells of one test point: 64 MB in single precision.
_CELL_NUMBERS = 2**24
_FEW = 4  # eps that predictions of equal rows may be apart


def as_grid(grid):
    """Returns a grid of floats, or raises ValueError unless it increases."""
    _checks.check_given(grid=grid)
    grid = as_float(as_array("grid", grid))
    _checks.check_vectors(grid=grid)
    _checks.check_count("length of grid", len(grid), 1)
    _checks.check_values(np.isfinite, "grid of finite values", grid)
    rises = lambda v: np.append(True, v[1:] > v[:-1])  # noqa: E731
    cure = "; numpy.unique(grid) sorts it, without repetitions"
    _checks.check_values(rises, "grid in increasing order", grid, cure=cure)
    return grid


def _ends(grid):
    """Returns lower and upper ends of cells, and whether the grid increases.

    They end half way between two points; the outer ones reach to infinity.
    """
    halfway = 0.5 * grid[:-1] + 0.5 * grid[1:]
    infinity = jnp.full(1, jnp.inf, grid.dtype)
    lower = jnp.concatenate([-infinity, halfway])
    upper = jnp.concatenate([halfway, infinity])
    valid = jnp.all(jnp.isfinite(grid)) & jnp.all(grid[:-1] < grid[1:])
    return lower, upper, valid


def _rounded(grid, y):
    """Returns the nearest value of the grid, the lower one of two."""
    # Compared with the very ends of the cells: y <= end belongs to the lower one.
    halfway = _ends(grid)[0][1:]
    # All are compared: a smaller program than a search, and far less than one fit each.
    return grid[jnp.searchsorted(halfway, y, side="left", method="compare_all")]


def _union(lower, upper, valid):
    """Returns the union of a piece of each cell; the whole line if not valid.

    A traced grid that does not increase tells nothing.
    """
    lower = jnp.where(valid, lower, -jnp.inf)
    return joined(lower, jnp.where(valid, upper, jnp.inf))


def cells(grid, kept):
    """Returns the union of the cells around points of a grid that are kept, (g,)."""
    lower, upper, valid = _ends(grid)
    lower, upper = jnp.where(kept, lower, jnp.inf), jnp.where(kept, upper, -jnp.inf)
    return _union(lower, upper, valid)


@jit
def _sets(cp, x_new, rank, test_weights):
    """Returns the union of what is left of each cell, at each input."""
    lows, highs, valid = _ends(cp.grid)
    y = _rounded(cp.grid, cp.y)
    at_a_time = max(_CELL_NUMBERS // _numbers(cp), 1)

    def one(x, test_weight):
        def piece(target, low, high):
            pred, scores = _refit(cp, x, y, target)
            q = threshold_at(scores, rank, cp.mask, cp.weights, test_weight)
            return _within(cp.score.invert(pred, q), low, high)

        lower, upper = map_evenly(piece, cp.grid, lows, highs, at_a_time=at_a_time)
        return _union(lower, upper, valid)

    return _at_each(cp, one, len(cp.grid), x_new, test_weights)


@jit
def _p_values(cp, x_new, targets, u, test_weights):
    """Returns the p-value of each example among the rows, shape (m,)."""
    valid, y = _ends(cp.grid)[2], _rounded(cp.grid, cp.y)
    masses = cp.mask if cp.weights is None else cp.weights

    def one(x, target, u, test_weight):
        cell = _rounded(cp.grid, target)
        pred, scores = _refit(cp, x, y, cell, exact=u is not None)
        own = cp.score(*widened((pred, target)))
        own = jnp.where(jnp.isnan(own), -jnp.inf, own)  # says nothing against it
        p = p_values_among(scores, own[None], u, masses, test_weight)[0]
        return jnp.where(valid, p, 1)

    return _at_each(cp, one, 1, x_new, targets, u, test_weights)


def _refit(cp, x, y, target, *, exact=False):
    """Returns the prediction at x and the scores of the rows, under one fit on all."""
    everything = jax.tree.map(lambda v, new: jnp.append(v, new[None], 0), cp.x, x)
    y = jnp.append(y, target)
    preds = widened(fitting.fitted(cp.learner, cp.key, everything, y, cp.mask)[1])
    pred = jax.tree.map(lambda v: v[-1], preds)
    scores = _scores(cp, jax.tree.map(lambda v: v[:-1], preds), exact)
    return pred, scores


def _scores(cp, preds, exact):
    """Returns the scores of the rows, unless exact with room for rounding.

    A row equal to the test point ties with it on paper, but a product with many rows
    may round the last one otherwise.
    """
    y = widened(cp.y)
    scores = jax.vmap(cp.score)(preds, y)
    if exact:
        return scores
    moved = jax.vmap(cp.score)(jax.tree.map(_apart, preds), y)
    room = jnp.abs(moved - scores)
    room = jnp.where(jnp.isfinite(room), room, 0) + rounding(scores)
    return scores + lax.stop_gradient(room)


def _apart(v):
    """Returns floats as those of an equal row may be, and others as they are."""
    is_float = jnp.issubdtype(v.dtype, jnp.floating)
    return v + _FEW * jnp.finfo(v.dtype).eps * v if is_float else v


def _within(region, low, high):
    """Returns the ends of what a set holds of a cell; all of it where they are NaN."""
    lower, upper = (jnp.reshape(end, low.shape) for end in region.ends())
    lower = jnp.where(jnp.isnan(lower), low, jnp.maximum(lower, low))
    return lower, jnp.where(jnp.isnan(upper), high, jnp.minimum(upper, high))


def _at_each(cp, one, num_cells, *rows):
    """Returns `one(*row)` of each test point, some points at a time."""
    width = fitting.size_of(cp.x) + num_cells * _numbers(cp)
    return fitting.in_blocks(cp, jax.vmap(one), *rows, width=width)


def _numbers(cp):
    """Returns how many numbers a fit, its predictions and scores are."""
    of_fit = fitting.sizes_of_fit(cp.learner, cp.key, cp.x, cp.y)[1]
    return max(of_fit + cp.y.size * math.prod(cp.components), 1)


def _check_fit(score, rows, grid, given):
    """Returns the shape of a score; raises ValueError for predictions that do not fit.

    By a fit on the rows alone where there are values, and by shapes elsewhere.
    """
    key, learner, x, y, _, mask = rows
    known = is_concrete(learner, key, x, y, grid, mask) and len(y) > 0
    with learners.traceable(learner):
        if known:
            preds = _first_fit(learner, key, x, y, grid, mask)
        else:
            x, y = fitting.with_one_more((x, y))
            preds = jax.eval_shape(_first_fit, learner, key, x, y, grid, mask)
    _checks.num_rows(y=y, predictions=preds)
    if known:
        learners.check_predictions(preds, x, mask)
        inputs.check(score, preds, y, mask)
        if is_rounded("y", given):
            scores = evaluate(score, preds, y)
            check_digits_of_targets(score, preds, y, scores, mask, (preds, given))
    one = lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype)  # noqa: E731
    pred, target = jax.tree.map(one, jax.eval_shape(widened, (preds, y)))
    level = jax.eval_shape(partial(score_of, score), pred, target)
    region = jax.eval_shape(score.invert, pred, level)
    is_line = isinstance(region, HasEnds) and isinstance(region, HasShapes)
    if not is_line or region.target_shape() not in ((), (1,)):
        raise ValueError(
            "expected a score whose sets are intervals, got "
            f"{type(region).__name__} from {type(score).__name__}; "
            "scores.Custom takes an inverse, or a start"
        )
    return level.shape


@jit
def _first_fit(learner, key, x, y, grid, mask):
    """Returns what a fit on the rows predicts for them."""
    return fitting.fitted(learner, key, x, _rounded(grid, y), mask)[1]


@pytree
class DiscretizedConformal(fitting.Levels):
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

    @_checks.with_alpha
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
        x_new, context = self._points(x_new, test_weights)
        return _sets(self, x_new, self.rank(alpha), context.weight)

    @_checks.by_labels
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
        columns = {"y": _checks.vector(y), "u": _checks.uniforms(u)}
        x_new, context, y, u = self._points(x_new, test_weights, **columns)
        _checks.check_not_nan("y", y)
        return _p_values(self, x_new, y, u, context.weight)

    @property
    def num_rows(self) -> int:
        """Number of rows n."""
        return len(self.y)

    def _check_new(self, x_new):
        _checks.check_like_rows("x_new", x_new, _checks.shapes_of_rows(self.x))


@_checks.verb
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
    inputs.check_score(score)
    given = x, _checks.vector(y), calibration_weights, mask
    rows = fitting.fitted_rows(key, learner, *given, batch_size)
    grid = as_grid(grid)
    dtype = jnp.promote_types(as_float(rows.y).dtype, grid.dtype)
    rows, grid = rows._replace(y=rows.y.astype(dtype)).filled(), grid.astype(dtype)
    rows.check_symmetric(check)
    components = _check_fit(score, rows, grid, y)
    known = grid, rows.weights, rows.mask, components, batch_size
    return DiscretizedConformal(key, learner, score, rows.x, rows.y, *known)
