"""Conditional calibration: thresholds that are linear in features of the test point."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _checks, _names
from jaxcp._arrays import is_concrete
from jaxcp._batching import by_rows, invert_each, repeated, score_of, widened
from jaxcp._numbers import as_float, at_least_single
from jaxcp._tree import jit, pytree, static
from jaxcp.calibration.rule import Rule
from jaxcp.certificates.promises import HELD_OUT
from jaxcp.held import taking
from jaxcp.quantiles import _regression
from jaxcp.typing import AnySet, ArrayLike, HasRounding, PyTree, Score


@pytree
class ConditionalCalibration(Rule):
    """Calibration scores with features: a threshold for each test point.

    Made by `calibrate_conditional`. Sets do not grow as alpha falls at every point, for
    quantile regressions at two levels may cross: there are no p-values, but `dual`.

    Args:
      score: The nonconformity score.
      scores: Scores of the calibration set, shape (n,) or (n, c).
      features: Features of the rows, shape (n, p), zeros for rows that do not count.
      row_shapes: Shapes of one prediction, which later ones must have, or None.
      classes: Names of the labels, used by sets and targets, or None.

    See also:
      calibrate_conditional, calibrate_groups, calibrate_local, Rule
    """

    score: Score
    scores: Array
    features: Array
    row_shapes: taking.RowShapes | None = static(default=None)
    classes: tuple[Hashable, ...] | None = static(default=None)
    promise = (
        "E f(X) (1(Y in set) - (1 - {alpha})) >= 0 for every f >= 0 that is linear in "
        "the features"
    )
    assumption = HELD_OUT
    _by_pairs = True
    nested, _instead = False, "; take dual"
    at_a_time = 32  # of which each pivots by itself

    def __post_init__(self) -> None:
        _names.keep_names(self, "classes")

    @_checks.with_alpha
    def __call__(
        self,
        preds: PyTree,
        alpha: ArrayLike,
        *,
        features: ArrayLike,
        u: ArrayLike | None = None,
    ) -> AnySet:
        """Returns the prediction sets of new predictions.

        Args:
          preds: Predictions, a pytree with leading axis m, as at calibration.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components.
          features: Features of the test points, shape (m, p), as at calibration.
          u: Uniforms in [0, 1], shape (m,), one drawn afresh for each point
            (`uniforms`), for the randomized sets.

        Returns:
          Sets with leading axis m. Everything where the features are zeros or outside
          of the span of those at calibration, as in a group without rows; with `u`
          outside of the span nothing, where u is below alpha.

        Raises:
          ValueError: if a number `alpha` is outside (0, 1), a concrete prediction or
            feature is NaN, or shapes differ from those at calibration; with `u` for
            several components.

        Guarantee:
          That of `calibrate_conditional`.

        Cost:
          The fit of the level, once, and some pivots of O(n p) for each test point.
          New values of alpha compile nothing. With `u`, where rows tie, some steps of
          O(n p^2) more, in a second program that runs all points anew; under `jit` and
          `vmap` one program has both, and takes about 2 s longer to compile.

        Example:
          >>> from jaxcp.scores import Absolute
          >>> y, old = jnp.arange(1.0, 9.0), jnp.arange(8) < 4
          >>> features = jnp.stack([jnp.ones(8), old], 1)
          >>> cp = jaxcp.calibrate_conditional(Absolute(), 0 * y, y, features)
          >>> cp(jnp.zeros(2), 0.3, features=jnp.array([[1, 0], [1, 1]])).upper
          Array([8., 4.], dtype=float32)
        """
        columns = self._declared({"features": features})
        return self._sets(preds, alpha, u=u, **columns)

    @_checks.by_labels
    def dual(
        self, preds: PyTree, y: ArrayLike, alpha: ArrayLike, *, features: ArrayLike
    ) -> Array:
        """Returns how exceptional each example is at alpha: its dual variable.

        That of the quantile regression of all rows and the example, of least norm where
        rows tie. `y` is in the set if it is below 1 - alpha (of c components each below
        1 - alpha / c), without ties only then, and in that with `u` iff it is below u -
        alpha, but for rounding.

        Args:
          preds: Predictions, a pytree with leading axis m.
          y: Targets, shape (m, ...); of a calibration with classes labels by name.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components.
          features: Features of the test points, shape (m, p).

        Returns:
          Duals in [-alpha, 1 - alpha], shape (m,), or (m, c) with components; 0 for
          features of zeros.

        Raises:
          ValueError: as calling the calibration.

        Guarantee:
          P(dual < u - alpha) = 1 - alpha with an intercept and fresh uniforms u, of
          scores with one component; ties change nothing.

        Assumption:
          That of `calibrate_conditional`.

        Cost:
          As calling the calibration with `u`.

        Example:
          >>> from jaxcp.scores import Absolute
          >>> y, ones = jnp.arange(1.0, 9.0), jnp.ones((8, 1))
          >>> cp = jaxcp.calibrate_conditional(Absolute(), 0 * y, y, ones)
          >>> cp.dual(jnp.zeros(2), jnp.array([0.5, 9.0]), 0.3, features=ones[:2])
          Array([-0.3,  0.7], dtype=float32)
        """
        columns = self._declared({"features": features})
        y = taking.coded(self.classes, y)
        preds, y, _, context = self._rows(preds, columns, y)
        return self._where_tied(_duals_of, self.rank(alpha), preds, y, context)

    @property
    def components(self) -> tuple[int, ...]:
        """Shape of one score: () or (c,)."""
        return self.scores.shape[1:]

    @property
    def context(self) -> dict[str, Any]:
        """What is known of one test point: features like a row of calibration."""
        like = jax.ShapeDtypeStruct(self.features.shape[1:], self.features.dtype)
        return {"features": like}

    def rank(self, alpha: ArrayLike) -> _regression.Fit:
        """Returns the quantile regression of the rows, of each component its own."""
        self._check_one_alpha(alpha)
        return by_rows(_fit, super().rank(alpha), rows=(), holder=self)

    def threshold(self, rank: Any, features: Array, u: Array | None = None) -> Array:
        """Returns the threshold of one test point, shape () or (c,)."""
        fits = rank if u is None else rank[0]
        return self._at_point(_regression.threshold, features, fits, u)

    def _sets(self, preds, alpha, *, u=None, **columns):
        if u is None or not is_concrete(self, preds, alpha, u, columns):
            return super()._sets(preds, alpha, u=u, **columns)
        self._check_one_alpha(alpha)
        preds, _, u, context = self._rows(preds, columns, u=_checks.uniforms(u))
        fits, _ = self._rank(alpha, u=u)
        context |= {"u": as_float(u)}
        q = self._where_tied(_thresholds_of, fits, context)
        sets = by_rows(invert_each, self.score, rows=(preds, q))
        sets = sets.exact() if isinstance(sets, HasRounding) else sets
        return _names.named(sets, self.classes)

    def _where_tied(
        self, program: Callable, fits: _regression.Fit, *rows: PyTree
    ) -> Array:
        """Returns the results of rows, of a program that projects only if some tie."""
        if is_concrete(self, fits, rows):
            quick = partial(program, projects=False)
            found = by_rows(quick, fits, rows=rows, holder=self)
            # In a program to come nothing is known.
            if is_concrete(found) and not np.isnan(found).any():
                return found
        program = partial(program, projects=True)
        return by_rows(program, fits, rows=rows, holder=self)

    def _at_point(self, function, phi, fits, *rows):
        """Returns a function of the regression of each component, shape () or (c,)."""
        phi = phi.astype(self.features.dtype)
        of = lambda s, fit, *row: function(s, self.features, fit, phi, *row)  # noqa: E731
        return self._each_component(of, fits, *rows)

    def _each_component(self, of, *rows):
        if not self.components:
            return of(self.scores, *rows)
        return jax.vmap(of, (1, *[0] * len(rows)))(self.scores, *rows)

    def _num_held(self):
        return self.features.shape[0] if type(self) is ConditionalCalibration else 0

    def _filled(self, size):
        scores, features = repeated((self.scores, self.features), size)
        features[len(self.features) :] = 0
        return dataclasses.replace(self, scores=scores, features=features)


@jit
def _fit(rule, alpha):
    of = lambda s, alpha: _regression.fit(s, rule.features, alpha)  # noqa: E731
    return rule._each_component(of, alpha)


@partial(jit, static_argnames="projects")
def _thresholds_of(
    rule: ConditionalCalibration, fits: _regression.Fit, context: PyTree, projects: bool
) -> Array:
    """Returns thresholds of rows with uniforms; unless it projects NaN of ties."""
    at = partial(_regression.threshold, projects=projects)
    return rule._each(
        lambda row: rule._at_point(at, row["features"], fits, row["u"]), context
    )


@partial(jit, static_argnames="projects")
def _duals_of(
    rule: ConditionalCalibration,
    fits: _regression.Fit,
    preds: PyTree,
    y: Array,
    context: PyTree,
    projects: bool,
) -> Array:
    """Returns duals of rows; unless it projects NaN of those that may tie."""
    dual = partial(_regression.dual, projects=projects)

    def dual_of(row: PyTree, pred: PyTree, y: Array) -> Array:
        score = score_of(rule.score, pred, y)
        return rule._at_point(dual, row["features"], fits, score)

    return rule._each(dual_of, context, *widened((preds, y)))


@_checks.verb
def calibrate_conditional(
    score: Score,
    preds: PyTree,
    y: ArrayLike,
    features: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    classes: Iterable[Hashable] | None = None,
) -> ConditionalCalibration:
    """Returns a calibration whose sets cover 1 - alpha under each shift by features.

    The threshold of a test point is phi'g, rounded outwards, g = argmin sum_i rho(S_i -
    g'phi_i) - U g'phi with the pinball loss rho of level 1 - alpha and U = 1 - alpha: a
    linear quantile regression in which the score of the test point is as large as can
    be. With `u` U is u - alpha, and the set is {dual < U}: where rows lie on the plane
    through phi'g, the dual of least norm decides whether a score there is in it. With
    flags of groups as features (`conditional.indicators`) every group is covered,
    overlapping or not; with an intercept alone these are the sets of `calibrate`, with
    the flags of disjoint groups those of `calibrate_groups`.

    Args:
      score: The nonconformity score; one with a score for each side, as
        `scores.Signed`, has a regression at alpha / 2 for each.
      preds: Predictions, a pytree with leading axis n, from a model fitted on other
        data.
      y: Targets, shape (n, ...).
      features: Features phi of the rows, shape (n, p): flags or numbers, known without
        the target, of functions that were chosen on other data. `conditional.fourier`
        and `conditional.polynomial` make some.
      mask: True where a row counts, shape (n,). Defaults to all rows.
      classes: Names of the labels, for scores of labels.

    Returns:
      A `ConditionalCalibration`: call it with predictions, alpha and features.

    Raises:
      ValueError: as `calibrate`; if features are not of shape (n, p), or not finite, or
        are independent in double precision and not in single precision.

    Guarantee:
      E f(X) (1(covered) - (1 - alpha)) >= 0 for every f >= 0 that is linear in the
      features, on average over calibration sets: coverage 1 - alpha in every group with
      a flag. With fresh uniforms `u` it is 0 for every linear f, ties or not, but for
      rounding. Without them, where the score has a continuous law given the features,
      at most p / (n + 1) E max_i |f(X_i)|.

    Assumption:
      Exchangeable calibration and test examples. Features are not chosen by the scores
      of the calibration rows.

    Cost:
      The fit of a level takes some tens of pivots of O(n p), and a test point about as
      many as it has features; where rows tie, `u` and `dual` cost more. In
      single precision scores that agree to some 1e-6 tie, duals are known to 1e-4, of
      10^4 rows to 1e-3, and thresholds are those of a U that is off by this over the
      share of the test point; features that add less than 1e-5 to those before them are
      dropped.

    References:
      Gibbs, Cherian, Candes, Conformal Prediction with Conditional Guarantees, Journal
      of the Royal Statistical Society B, 2025.

    See also:
      calibrate_groups, calibrate_local, scores.Rectified, metrics.group_coverage

    Example:
      >>> from jaxcp.scores import Absolute
      >>> x = jnp.linspace(0.0, 1.0, 99)
      >>> y, line = x * jnp.sin(99 * x), jnp.stack([jnp.ones(99), x], 1)
      >>> cp = calibrate_conditional(Absolute(), jnp.zeros(99), y, line)
      >>> cp.quantile(0.1, features=line[9]) < cp.quantile(0.1, features=line[90])
      Array(True, dtype=bool)
    """
    names = taking.classes_of(score, classes)
    held, shapes = taking.scored(score, preds, y, mask=mask, classes=names)
    column = _checks.Column(features, _check_features, is_vector=False, required=True)
    columns = {"features": column, "mask": _checks.mask(mask)}
    scores, phis, mask = _checks.rows(scores=held.values, **columns)
    _check_digits(features, phis, mask)
    scores = at_least_single(as_float(scores))
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    phis = phis if mask is None else jnp.where(mask[:, None], phis, 0)
    phis = phis.astype(scores.dtype)
    return ConditionalCalibration(score, scores, phis, shapes, names)


def _check_features(name, features, mask):
    """Raises ValueError for features of another shape than (n, p), or not finite."""
    if features.ndim != 2 or not features.shape[1]:
        cure = f"; {name}[:, None] is one column" * (features.ndim == 1)
        raise ValueError(f"expected {name} of shape (n, p), got {features.shape}{cure}")
    _checks.check_values(np.isfinite, f"finite {name}", features, mask)


def _check_digits(given, features, mask):
    """Raises ValueError where rounding makes features depend on each other."""
    known = _arrays.is_concrete(features, mask)
    if not known or not _arrays.is_rounded("features", given):
        return
    some = _arrays.some_rows(len(features))
    rows = slice(None) if mask is None else np.asarray(mask)[some]
    exact = _arrays.as_numpy("features", given)[some][rows].astype(float)
    sizes = abs(exact).max(0, initial=np.finfo(float).tiny)
    rank = np.linalg.matrix_rank(exact / sizes, rtol=1e-9)
    if (kept := _num_independent(features[some][rows])) < rank:
        raise ValueError(
            f"expected {rank} features that are independent in single precision, got "
            f"{kept} that are; subtract the mean of each, or switch double precision "
            "on (JAX_ENABLE_X64=1)"
        )


@jax.jit
def _num_independent(features):
    kept = _regression.whitening(features)[1]
    return jnp.sum(kept & jnp.any(features != 0, 0))
