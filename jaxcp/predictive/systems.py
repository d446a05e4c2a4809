"""Predictive distributions from a calibration of a score that rises with the target."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _batching, _checks
from jaxcp._tree import jit, pytree
from jaxcp.calibration import SplitConformal, calibrate, calibrate_groups
from jaxcp.calibration.calibrating import predicted
from jaxcp.calibration.predictor import predictions
from jaxcp.held import taking
from jaxcp.held.rows import at_groups
from jaxcp.predictive.atoms import crps_among, ranks_of
from jaxcp.quantiles import levels as at_levels
from jaxcp.scores import TwoSided
from jaxcp.typing import AnySet, ArrayLike, Increasing, Predict, PyTree

Side = Literal["upper", "lower", "between"]


@pytree
class PredictiveSystem:
    """A predictive distribution for every input. Made by `calibrate_predictive`.

    With the scores A_i of the n rows and a = A(pred, y) the distribution is

      Q(y, u) = (#{A_i < a} + u (1 + #{A_i = a})) / (n + 1).

    Args:
      calibration: The calibration of `scores.TwoSided(score)`: a `Calibration`, a
        `GroupCalibration`, or a `SplitConformal` with one of these, which takes inputs
        in place of predictions.

    Guarantee:
      That of `cdf` and `quantile`, and of the calibration for sets.

    Assumption:
      Exchangeable calibration and test examples, and a model fitted on other data.

    References:
      Vovk, Petej, Nouretdinov, Manokhin, Gammerman, Computationally Efficient Versions
      of Conformal Predictive Distributions, Neurocomputing, 2020.

    See also:
      predictive.calibrate_predictive, predictive.Atoms, metrics.crps
    """

    calibration: Any

    @_checks.with_alpha
    def __call__(self, preds: PyTree, alpha: ArrayLike, **context: Any) -> AnySet:
        """Returns the interval between two quantiles, at alpha / 2 a side.

        Arguments, errors and guarantee are those of calling the calibration.
        """
        return self.calibration(preds, alpha, **context)

    @_checks.by_labels
    def cdf(
        self, preds: PyTree, y: ArrayLike, *, u: ArrayLike, **context: Any
    ) -> Array:
        """Returns the distribution function at targets: the probability of less.

        Q(y, u), as the p-value of minus the score, which keeps the digits of a small
        probability. With weights counts are masses, and the 1 is the weight of the test
        point; with groups they are of the rows of its group.

        Args:
          preds: Predictions, a pytree with leading axis m, as at calibration.
          y: Targets, shape (m,).
          u: Uniforms in [0, 1], one drawn afresh for each point (`uniforms`), shape
            (m,); or 0 or 1 for the bounds of Q, shape ().
          **context: `groups`, the group of each test point, int or by name, shape (m,),
            for a calibration with groups; `test_weights`, shape (m,), for one with
            weights. They default to 1, and no weight may then be larger.

        Returns:
          Q(y, u), shape (m,), in [0, 1]; u where nothing is known: no row, no unit, a
          traced group that is unknown.

        Raises:
          ValueError: as calling the calibration, and if a concrete `u` is outside
            [0, 1].

        Guarantee:
          Q(Y, U) is uniform on [0, 1], ties or not. Values of several test points
          share the rows, and depend on each other.

        Assumption:
          Exchangeable calibration and test examples (of a group), uniforms that are
          drawn afresh; with weights independent examples, and true likelihood ratios.

        Cost:
          O((n + m) log n): one sort serves all m points; with groups and weights one
          for each group.

        Example:
          >>> from jaxcp.scores import Residual
          >>> y = jnp.arange(1.0, 10.0)
          >>> system = calibrate_predictive(Residual(), jnp.zeros(9), y)
          >>> system.cdf(jnp.zeros(2), jnp.array([2.5, 9.5]), u=1.0)
          Array([0.3, 1. ], dtype=float32)
        """
        u = u if np.ndim(u) else u + np.zeros(np.shape(y))
        known = _checks.scores(y), _checks.uniforms(u)
        rule, *asked = self._asked(preds, *known, **_WEIGHED | context)
        return _batching.by_rows(_cdf, rows=asked, holder=rule)

    @_checks.by_labels
    def quantile(
        self, preds: PyTree, levels: ArrayLike, *, side: Side, **context: Any
    ) -> Array:
        """Returns quantiles of the distribution, of many levels at once.

        A^-1 of the score of rank k among n: k = ceil(l (n + 1)) for "upper", floor(l (n
        + 1)) for "lower", where rank 0 is -inf and n + 1 is +inf; "between" is linear
        between the two, through A^-1(A_(i)) at i / (n + 1).

        Args:
          preds: Predictions, a pytree with leading axis m, as at calibration.
          levels: Levels l in (0, 1), shape () or any. Known ones are read exactly, as
            alpha is; a traced one has a rounding error, and l (n + 1) next to a whole
            number may have the rank one further out.
          side: "upper", "lower", or without weights "between".
          **context: `groups` and `test_weights` as for `cdf`.

        Returns:
          Quantiles, shape (m,) and then that of `levels`, in units of the target.

        Raises:
          ValueError: as calling the calibration, if a known level is outside (0, 1), or
            `side` is none of these, or "between" with weights.

        Guarantee:
          P(Y <= upper) >= l and P(Y < lower) <= l, on average over calibration and test
          data. None for "between".

        Assumption:
          Those of `cdf`.

        Cost:
          O(n) for each level, or one sort for many; then one set for each point and
          level. With weights and `test_weights` one sort of all.

        Example:
          >>> from jaxcp.scores import Residual
          >>> y = jnp.arange(1.0, 10.0)
          >>> system = calibrate_predictive(Residual(), jnp.zeros(9), y)
          >>> system.quantile(jnp.array([10.0]), [0.05, 0.5, 0.95], side="upper")
          Array([[11., 15., inf]], dtype=float32)
        """
        _checks.check_one_of("side", side, ["upper", "lower", "between"])
        levels = np.asarray(levels) if _arrays.is_concrete(levels) else levels
        level = at_levels.as_alpha(levels, "levels", "")
        rule, *asked = self._asked(preds, **_WEIGHED | context)
        if side == "between" and rule.weights is not None:
            raise ValueError("expected side 'upper' or 'lower' with weights")
        fixed = _ranks(rule.held, level.ravel(), side)
        found = _batching.by_rows(_quantile, *fixed, rows=asked, holder=rule)
        return found.reshape(len(found), *level.shape)

    @_checks.by_labels
    def crps(self, preds: PyTree, y: ArrayLike, *, groups: Any = None) -> Array:
        """Returns the continuous ranked probability score of each test point.

        E|C - y| - E|C - C'| / 2 with C and C' among the atoms A^-1(A_i), by their
        weights: a loss in units of the target, less is better. The mass of the test
        point is left out, for it would make all of them infinite.

        Args:
          preds: Predictions, a pytree with leading axis m, as at calibration.
          y: Targets, shape (m,).
          groups: As for `cdf`.

        Returns:
          Scores, shape (m,); NaN where nothing is known.

        Raises:
          ValueError: as calling the calibration.

        Guarantee:
          None: it measures distributions.

        Cost:
          O((n + m) log n): one sort of the scores, with groups one for each. Of a score
          whose units differ along the line (`PredictedQuantiles`) O(n log n) for each
          point.

        References:
          Gneiting, Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation,
          JASA, 2007.

        Example:
          >>> from jaxcp.scores import Residual
          >>> y = jnp.array([1.0, 3.0])
          >>> system = calibrate_predictive(Residual(), jnp.zeros(2), y)
          >>> system.crps(jnp.zeros(2), jnp.array([2.0, 3.0]))
          Array([0.5, 0.5], dtype=float32)
        """
        rule, *asked = self._asked(preds, _checks.scores(y), groups=groups)
        return _batching.by_rows(_crps, rows=asked, holder=rule)

    @_checks.by_labels
    def mean(self, preds: PyTree, *, groups: Any = None) -> Array:
        """Returns the mean of the atoms at each test point, shape (m,).

        NaN where nothing is known. Arguments and errors as for `crps`.
        """
        rule, *asked = self._asked(preds, groups=groups)
        return _batching.by_rows(_mean, rows=asked, holder=rule)

    @_checks.by_labels
    def draw(
        self, key: Array, preds: PyTree, num_draws: int, *, groups: Any = None
    ) -> Array:
        """Returns draws from the distribution at each test point.

        Atoms A^-1(A_i) by their weights, with replacement: the mass of the test point
        is left out.

        Args:
          key: Random key.
          preds: Predictions, a pytree with leading axis m, as at calibration.
          num_draws: Number of draws l for each test point.
          groups: As for `cdf`.

        Returns:
          Draws, shape (m, l), in units of the target; NaN where nothing is known.

        Raises:
          ValueError: as calling the calibration, if `key` is no key or `num_draws` is
            not positive.

        Guarantee:
          None: they are draws from the empirical law of the rows.

        Cost:
          O(n), and O(log n) for each draw; with groups that for each group.

        Example:
          >>> from jaxcp.scores import Residual
          >>> y = jnp.arange(1.0, 10.0)
          >>> system = calibrate_predictive(Residual(), jnp.zeros(9), y)
          >>> system.draw(jax.random.key(0), jnp.zeros(2), 5).shape
          (2, 5)
        """
        _checks.check_key(key)
        _checks.check_count("num_draws", num_draws, 1)
        return _draw(key, *self._asked(preds, groups=groups), num_draws=num_draws)

    def certificate(self, alpha: Any) -> Any:
        """Returns the law of the coverage of intervals at alpha, of each group its own.

        Given the calibration set Beta(j, n + 1 - j), j = n + 1 - 2 floor(alpha (n + 1)
        / 2): two components of one score have a law, where those of others have none.

        Args:
          alpha: Miscoverage level in (0, 1), a number.

        Returns:
          A `certificates.Certificate`, or a tuple of them, one for each group.

        Raises:
          ValueError: if `alpha` is outside (0, 1), the mask is traced, or there are
            weights.

        Guarantee:
          Exact for exchangeable scores without ties (for `law`: i.i.d.). Where scores
          tie coverage is at least this.

        Example:
          >>> from jaxcp.scores import Residual
          >>> y = jnp.arange(1.0, 20.0)
          >>> system = calibrate_predictive(Residual(), jnp.zeros(19), y)
          >>> system.certificate(0.2).law
          (16, 4)
        """
        rule, exact = self._rule, at_levels.one_alpha(alpha)
        rule._check_without("min_size", "a certificate")
        held = replace(rule.held, values=rule.scores[:, 1])

        def both(one):  # n + 1 - rank scores are beyond, on each side
            return replace(one, alpha=exact, rank=2 * one.rank - one.n - 1)

        found = held.certificate(rule.score, exact / 2)
        return tuple(map(both, found)) if held.shape else both(found)

    @property
    def _rule(self):
        return getattr(self.calibration, "calibration", self.calibration)

    def _asked(self, preds, *known, groups=None, **weights):
        """Returns the calibration, predictions, and what is known of test points."""
        model, rule = self.calibration, self._rule
        if others := weights.keys() - _WEIGHED:
            raise ValueError(f"expected groups or test_weights, got {min(others)}")
        if rule is not model:
            preds = predictions(model.predict, model.params, preds)
        columns = {k: taking.weights_for(rule.weights, v) for k, v in weights.items()}
        columns["groups"] = rule._groups_of(preds, groups)
        preds, y, u, context = rule._rows(preds, columns, *known, for_sets=True)
        found = {"y": y, "u": u} | context
        return rule, preds, {k: v for k, v in found.items() if v is not None}


_WEIGHED: dict[str, Any] = {"test_weights": None}  # which weights may be in need of


def _ranks(held, level, side):
    """Returns ranks by the side that they are of, and shares between two of them.

    Each of shape (a,), or (g, a) of groups; alpha as a float where there are weights.
    """
    counts, weighted = held.counts(), held.weights is not None
    if held.shape:  # one row for each group
        level = level[None] + np.zeros((len(counts), 1), int)
        counts = counts[:, None]
    sides = ["upper", "lower"] if side == "between" else [side]
    found = {v: ranks_of(counts, level, v, weighted) for v in sides}
    if side != "between":
        return found, None
    level = at_levels.alpha_as_float(level) if isinstance(counts, Array) else level
    return found, at_levels.alpha_as_float(level * (counts + 1) % 1)


def _targets(score, pred, q, side=1):
    """Returns the end of one side of the set at each score, q of shape (a,)."""
    return jax.vmap(lambda q: score.invert(pred, q).ends()[side])(q)


def _of_rows(rule, of, context, given):
    """Returns `of(rows)`, row by row, of all rows or those of each group."""
    held = rule.held
    held = replace(held, values=held.values[:, 1])
    if "groups" not in context:
        return of(held)
    return held.in_groups(of, context["groups"], jnp.nan, given)


@jit
def _cdf(rule, preds, context):
    preds, y = _batching.widened((preds, context.pop("y")))
    scores = _batching.evaluate_at_once(rule.score, preds, y)
    below = rule.held
    below = replace(below, values=below.values[:, 0])
    q = below.p_values(scores[:, 0], **context)  # of -A; not 1 - p, which cancels
    unknown = jnp.all(scores == -jnp.inf, axis=1)
    if "groups" in context:
        g = below.num_groups
        unknown |= _arrays.group_codes(context["groups"], g) == g
    return jnp.where(unknown, context["u"], q)


@jit
def _quantile(rule, ranks, share, preds, context):
    preds, m = _batching.widened(preds), len(jax.tree.leaves(preds)[0])

    def of(side):
        last, k = int(side == "upper"), ranks[side]
        base = rule.score.base if last else rule.score.base.negated()
        own = replace(rule, score=base, scores=rule.scores[:, last])
        if context:
            q = jax.vmap(lambda k: own._thresholds(k, context), -1, -1)(k)
        else:
            q = jnp.tile(own.threshold(k), (m, 1))
        return _batching.map_rows(partial(_targets, base, side=last), preds, q)

    if share is None:
        return of(*ranks)
    lower, upper = of("lower"), of("upper")
    share = at_groups(share, context["groups"]) if context else share[None]
    known = jnp.isfinite(lower) & jnp.isfinite(upper)
    step = share.astype(lower.dtype) * jnp.where(known, upper - lower, 0)
    return jnp.where(known, lower + step, jnp.where(lower == -jnp.inf, lower, upper))


@jit
def _crps(rule, preds, context):
    base, (preds, y) = rule.score.base, _batching.widened((preds, context["y"]))
    z, units = _batching.evaluate_at_once(base, preds, y), jax.vmap(base.units)(preds)
    below = _batching.evaluate_at_once(base.negated(), preds, y)
    known = jnp.maximum(z, below) > -jnp.inf if units is None else jnp.isfinite(units)

    def of(held):
        if units is not None:
            at, unit = jnp.where(known, z, 0), jnp.where(known, units, 1)
            return unit * crps_among(held.values, at, held.mass)
        atoms = lambda pred: _targets(base, pred, held.values)  # noqa: E731
        one = lambda pred, y: crps_among(atoms(pred), y, held.mass)  # noqa: E731
        n = held.values.size
        return _batching.map_blocks(jax.vmap(one), preds, y[:, None], width=n)[:, 0]

    found = _of_rows(rule, of, context, (z, units, preds, y))
    return jnp.where(known, found, jnp.nan)


@jit
def _mean(rule, preds, context):
    preds, base = _batching.widened(preds), rule.score.base
    linear = jax.vmap(base.units)(preds) is not None

    def of(held):
        values = held.values
        mean = lambda v: held.sums(v) / held.sums(jnp.ones_like(v))  # noqa: E731
        # The mean of targets that are linear in scores is at the mean of these.
        q, of_atoms = (mean(values)[None], jnp.sum) if linear else (values, mean)
        one = lambda pred: of_atoms(_targets(base, pred, q))  # noqa: E731
        return _batching.map_blocks(jax.vmap(one), preds, width=q.size)

    found = _of_rows(rule, of, context, preds)
    return jnp.where(jnp.isfinite(found), found, jnp.nan)


@jit(static_argnames="num_draws")
def _draw(key, rule, preds, context, num_draws):
    preds, shape = _batching.widened(preds), (len(jax.tree.leaves(preds)[0]), num_draws)

    def of(held):
        values, mass = held.values, held.mass
        mass = jnp.ones_like(values) if mass is None else mass.astype(values.dtype)
        mass = jnp.append(mass, jnp.sum(mass) == 0)  # of NaN, where no row counts
        return jax.random.choice(key, jnp.append(values, jnp.nan), shape, p=mass)

    scores = _of_rows(rule, of, context, preds)
    found = _batching.map_rows(partial(_targets, rule.score.base), preds, scores)
    return jnp.where(jnp.isfinite(found), found, jnp.nan)


@_checks.verb
def calibrate_predictive(
    score: Increasing,
    preds: PyTree = None,
    y: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    *,
    predict: Predict | None = None,
    params: PyTree = None,
    **options: Any,
) -> PredictiveSystem:
    """Returns a conformal predictive system: a distribution of the target, calibrated.

    One-sided bounds, percentiles, intervals, whole distributions and their CRPS from
    one calibration of a score that rises with the target.

    Args:
      score: `scores.Residual()`, `scores.ScaledResidual()`,
        `scores.PredictedQuantiles(levels)`, or an increasing score of your own.
      preds: Predictions for the calibration set as for `calibrate`; inputs with
        `predict`.
      y: Targets, shape (n,). Of several outputs each column has a system of its own,
        by `jax.vmap`.
      groups: Group of each row as for `calibrate_groups`, or None.
      predict: Function `(params, x) -> preds`, to be called with inputs as
        `split_conformal`, or None.
      params: First argument of `predict`, any pytree.
      **options: `weights`, `mask` and `batches` as for `calibrate`; with groups also
        `num_groups`, `group_names` and `min_size` as for `calibrate_groups`.

    Returns:
      A `PredictiveSystem`: ask it for `cdf`, `quantile`, `crps`, `mean` and `draw`, or
      call it with predictions and alpha.

    Raises:
      ValueError: as `calibrate`, with groups as `calibrate_groups`; if the score is not
        increasing, `y` has several outputs, or `predict` is no function.

    Guarantee:
      Q(Y, U) is uniform for every law of the data, and quantiles bound the target with
      the probability of their level; with groups within each of them.

    Assumption:
      Exchangeable calibration and test examples (of a group), and a model fitted on
      other data.

    Cost:
      n scores, which are kept.

    References:
      Vovk, Shen, Manokhin, Xie, Nonparametric Predictive Distributions Based on
      Conformal Prediction, Machine Learning, 2019.
      Vovk, Petej, Nouretdinov, Manokhin, Gammerman, Computationally Efficient Versions
      of Conformal Predictive Distributions, Neurocomputing, 2020.
      Jonkers, Van Wallendael, Duchateau, Van Hoecke, Conformal Predictive Systems Under
      Covariate Shift, COPA, 2024.

    See also:
      predictive.Atoms, calibrate, calibrate_groups, scores.TwoSided

    Example:
      >>> from jaxcp.scores import Residual
      >>> y = jnp.arange(1.0, 20.0)
      >>> system = calibrate_predictive(Residual(), jnp.zeros(19), y)
      >>> system.quantile(jnp.array([0.0, 100.0]), 0.9, side="upper")
      Array([ 18., 118.], dtype=float32)
      >>> system(jnp.array([100.0]), alpha=0.2).ends()
      (Array([102.], dtype=float32), Array([118.], dtype=float32))
    """
    if predict is not None:
        preds = predicted(predict, params, preds)
    verb: Any = calibrate
    if groups is not None or {"num_groups", "group_names", "min_size"} & options.keys():
        verb = partial(calibrate_groups, groups=groups)
    rule = verb(TwoSided(score), preds, y, **options)
    if rule.components != (2,):
        cure = "jax.vmap over columns of predictions and y makes a system of each"
        outputs = rule.components[0] // 2
        raise ValueError(f"expected y of shape (n,), got {outputs} outputs; {cure}")
    _checks.weights(rule.weights)  # no bounds of them
    if predict is None:
        return PredictiveSystem(rule)
    return PredictiveSystem(SplitConformal(predict, params, rule))
