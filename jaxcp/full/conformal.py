"""Full conformal prediction: the test point is in the fit, and no row is held out."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any, Literal

import jax
import numpy as np
from jax import Array

from jaxcp import _arrays, _checks, _names
from jaxcp._numbers import as_float
from jaxcp._tree import jit, pytree, static
from jaxcp.checking import learners
from jaxcp.full import labels, residuals
from jaxcp.full.fitting import Levels, fitted_rows
from jaxcp.full.residuals import POWERS, Smoother
from jaxcp.held.taking import are_labels, classes_of, coded, groups_of, target_of
from jaxcp.learners.affine import with_key
from jaxcp.predictive.atoms import Atoms
from jaxcp.scores import Absolute, Signed, inputs
from jaxcp.typing import AnySet, ArrayLike, Augments, Learner, PyTree, Score

_LEAST = 1e-4  # what a fit leaves of the residual of a row that it does not go through
Residuals = Literal["studentized", "ordinary", "deleted"]


@pytree
class FullConformal(Levels):
    """Full conformal sets: fits that know the test point. Made by `full_conformal`.

    Args:
      score: The nonconformity score.
      source: The fits: of a learner that is linear in the targets, or with each label.
      weights: Weights >= 0 of the rows' scores, shape (n,), or None.
      mask: True where a row is fitted and counts, shape (n,), or None.
      num_rows: Number of rows n.
      components: Shape of one score: (), or (c,).
      target_shape: Shape of one target: (), or (d,).
      residuals: Which residuals are compared.
      batch_size: Test points at a time, or None.
      dtype: Type of the ends of sets.
      classes: Names of the labels, or None.
      groups: Group of each row in 0, ..., num_groups - 1, shape (n,), or None.
      num_groups: Number of groups g, or None.
      group_names: Names of the groups, also for those of new inputs, or None.
      labels_are_groups: Whether groups that are left out are the labels.

    See also:
      full_conformal, CrossConformal, Calibration
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
    groups: Array | None = None
    num_groups: int | None = static(default=None)
    group_names: tuple[Hashable, ...] | None = static(default=None)
    labels_are_groups: bool = static(default=False)

    def __post_init__(self) -> None:
        _names.keep_names(self, "classes", "group_names")

    @_checks.with_alpha
    def __call__(
        self,
        x_new: PyTree,
        alpha: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
        union: bool = False,
    ) -> AnySet:
        """Returns the full conformal sets at new inputs.

        All y with #{i : S_i(y) < S_n+1(y)} below k = n + 1 - floor(alpha (n + 1)),
        where S(y) are scores under the fit on the n rows and (x, y). With groups only
        the rows in the group of x are counted, and n is their number.

        Args:
          x_new: Inputs, a pytree with leading axis m.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components,
            whose sets are intersected (a scalar is split to alpha / c). With groups and
            one component also (g,), one for each.
          groups: Group of each input, int or by name, shape (m,). Without it they are
            the labels that are tried, where groups are the labels.
          test_weights: Weight of each test point, shape (m,), for calibration weights.
            Defaults to 1, and no weight may then be larger.
          union: Whether residuals that are not studentized give the exact set, with its
            holes, as `Intervals` with ends of shape (m, l), in place of the interval.

        Returns:
          Sets with leading axis m: `Interval`, `Box` for several outputs, `LabelSet`
          for labels; the whole line where k > n, where the fit interpolates the test
          point, and where a traced group is out of range.

        Raises:
          ValueError: if a number `alpha` is outside (0, 1), inputs are NaN or of other
            columns, lengths differ, a concrete group is not known, or a union is asked
            for of several components.

        Guarantee:
          P(Y in set) >= 1 - alpha; exactly k / (n + 1) where scores do not tie and no
          interval stands for a set with holes. With groups the same within each group.

        Assumption:
          The rows and test examples are exchangeable, with groups those of each group,
          and the learner treats rows alike.

        Cost:
          O(n p) time for each of m sets, and two selections; with `union` a sort of 2 n
          numbers; for k labels k refits. In blocks of inputs.

        References:
          Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, Springer,
          2005.

        Example:
          >>> from jaxcp import full_conformal, learners, scores
          >>> x = jnp.arange(9.0)[:, None]
          >>> y = x[:, 0] + jnp.where(x[:, 0] % 2, 1.0, -1.0)
          >>> key, ridge = jax.random.key(0), learners.Ridge(1.0)
          >>> cp = full_conformal(key, ridge, scores.Absolute(), x, y)
          >>> round(cp(jnp.array([[4.0]]), alpha=0.2).upper.item(), 1)
          5.1
        """
        if union and (self.components or inputs.has_labels(self.score)):
            kind = type(self.score).__name__
            raise ValueError(
                "expected union=True with scores.Absolute() and one output, y of shape "
                f"(n,), got {kind} with components {self.components}"
            )
        x, context = self._points(x_new, test_weights, groups)
        given = self, x, self.rank(alpha), context
        if isinstance(self.source, labels.Refits):
            return _names.named(labels.sets(*given), self.classes)
        return (
            residuals.union_sets(*given).trimmed() if union else residuals.sets(*given)
        )

    @_checks.by_labels
    def p_values(
        self,
        x_new: PyTree,
        y: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        u: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> Array:
        """Returns how exceptional each example is among the rows, fitted with them.

        p = (#{S_i > S_n+1} + u (1 + #{S_i = S_n+1})) / (n + 1).

        Args:
          x_new: Inputs, a pytree with leading axis m.
          y: Targets or candidate targets, shape (m, ...); labels by name if there are
            classes. Left out, all k labels.
          groups: Group of each input, shape (m,), as for the sets.
          u: Uniforms for smoothed p-values, shape (m,). Defaults to 1: conservative.
          test_weights: Weight of each test point, shape (m,), as for the sets.

        Returns:
          p-values, shape (m,), or (m, k) of all labels; with c components min(1, c
          times the smallest one). `y`
          is in the set at alpha iff its conservative p-value exceeds alpha; where an
          interval closes holes, in the set of `union=True`.

        Raises:
          ValueError: as calling it, and if targets are NaN, of another shape or out of
            range.

        Guarantee:
          P(p <= alpha) <= alpha; with uniforms equal to alpha. With groups in each.

        Assumption:
          Those of the sets.

        Cost:
          O(n p) time for each example, without a selection; a refit for each label.

        Example:
          >>> from jaxcp import full_conformal, learners, scores
          >>> x, y = jnp.zeros((4, 1)), jnp.array([1.0, 2.0, 3.0, 4.0])
          >>> key, ridge = jax.random.key(0), learners.Ridge(1.0)
          >>> cp = full_conformal(key, ridge, scores.Absolute(), x, y)
          >>> cp.p_values(x[:2], jnp.array([9.0, 2.5]))
          Array([0.2, 1. ], dtype=float32)
        """
        y, u = target_of(self.score, self.classes, y), _checks.uniforms(u)
        x, context, y, u = self._points(x_new, test_weights, groups, y=y, u=u)
        if y is not None:
            _checks.check_not_nan("y", y)
            _checks.check_shape("one target", self.target_shape, y.shape[1:])
        by = labels if isinstance(self.source, labels.Refits) else residuals
        return by.p_values(self, x, y, u, context)

    @_checks.by_labels
    def predictive(
        self,
        x_new: PyTree,
        *,
        groups: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> Atoms:
        """Returns the predictive distributions at new inputs.

        y is at most C_i iff the residual of row i is at least that of (x, y), with
        signs: Q(y) = (#{C_i < y} + u (1 + #{C_i = y})) / (n + 1) is uniform.

        Args:
          x_new: Inputs, a pytree with leading axis m.
          groups: Group of each input, shape (m,), as for the sets.
          test_weights: Weight of each test point, shape (m,), as for the sets.

        Returns:
          `predictive.Atoms` C_i = f + (1 + g) r_i / (rho_i + v_i), with `values` of
          shape (m, n), or (m, d, n) for d outputs, in the order of the rows; +inf for
          rows that tie whatever the target. Rows off the mask, and of other groups,
          have weight 0.

        Raises:
          ValueError: as calling it, and for labels.

        Guarantee:
          Q(Y) is uniform on [0, 1], with a uniform u. With groups in each.

        Assumption:
          Those of the sets.

        Cost:
          O(n p) time for each input, and m n numbers.

        References:
          Vovk, Shen, Manokhin, Xie, Nonparametric Predictive Distributions Based on
          Conformal Prediction, Machine Learning, 2019.

        See also:
          predictive.Atoms, CrossCalibration, metrics.crps

        Example:
          >>> from jaxcp import full_conformal, learners, scores
          >>> x, y = jnp.zeros((4, 1)), jnp.array([1.0, 2.0, 3.0, 4.0])
          >>> key, ridge = jax.random.key(0), learners.Ridge(1.0)
          >>> cp = full_conformal(key, ridge, scores.Signed(), x, y)
          >>> cp.predictive(x[:2]).cdf(jnp.array([9.0, 2.5]), u=0.5)
          Array([0.9, 0.5], dtype=float32)
        """
        if inputs.has_labels(self.score):
            kind = type(self.score).__name__
            raise ValueError(
                f"expected a score of numbers, got {kind}, a score of labels"
            )
        return residuals.atoms(self, *self._points(x_new, test_weights, groups))

    @property
    def has_hulls(self) -> bool:
        """Whether sets are intervals that may close holes, unless `union=True`."""
        return self.residuals != "studentized"

    def _check_new(self, x_new):
        self.source.check_new(x_new)


@_checks.verb
def full_conformal(
    key: Array,
    learner: Learner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    residuals: Residuals = "studentized",
    groups: ArrayLike | None = None,
    num_groups: int | None = None,
    group_names: Iterable[Hashable] | None = None,
    calibration_weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    classes: Iterable[Hashable] | None = None,
    batch_size: int | None = None,
    check: bool = True,
) -> FullConformal:
    """Returns full conformal prediction: at least 1 - alpha, with no row held out.

    A target y is in the set at x if its score, under the fit on all rows and (x, y), is
    not among the highest. For learners that are linear in the targets no fit is tried:
    with the fit f on n rows, its residuals r_i and leverages h_i, g = x'G^-1 x and v_i
    = x_i'G^-1 x for G = X'X + penalty I, and K_k the k-th smallest of n numbers,

      [f - (1 + g) K_k(|r_i| / (rho_i - s_i v_i)),
       f + (1 + g) K_k(|r_i| / (rho_i + s_i v_i))],

    s_i the sign of r_i and rho_i = ((1 + g)(1 - h_i) + v_i^2)^power. Labels are tried
    one by one: any learner is fitted anew with each label of each test point.

    With groups every fit is still on all rows, and scores are compared with those of
    the rows in the same group alone (Mondrian): K_k and n are those of the group.

    Args:
      key: Random key, for learners that draw; one for all fits.
      learner: A learner with `prepare` and `augmented`: `Ridge`, `KernelRidge`,
        `NearestNeighbors`, `Affine` of any that is affine in the targets. For labels
        any learner that treats rows alike, without mini-batches.
      score: `scores.Absolute()`, or `scores.Signed()` at alpha / 2 a side. Several
        outputs are boxes, at alpha / d each. Or any score of labels; a randomized one
        needs predictions (p, u), with uniforms u that are part of x.
      x: Inputs, a pytree with leading axis n.
      y: Targets, shape (n,) or (n, d), or labels 0, ..., k - 1.
      residuals: "studentized" (power 1/2): the set is an interval, and infinite only
        where it has to be. "ordinary" (0) or "deleted" (1): where a row has |v_i| >
        rho_i the set may have holes, and the interval counts that row as infinite.
      groups: Group of each row, shape (n,), int in 0, ..., num_groups - 1 or by name,
        known before the targets; or the labels `y`, for sets that cover each class.
      num_groups: Number of groups g, needed for groups that are integers.
      group_names: Names of the g groups, as for `calibrate_groups`.
      calibration_weights: Weights >= 0 of the rows' scores, shape (n,): likelihood
        ratios of test to training inputs, and the sets are asked for with
        `test_weights`. The fits do not use them.
      mask: True where a row is fitted and counts, shape (n,), for padded data. Defaults
        to all rows.
      classes: Names of the k labels, one a column of the predictions, as for
        `calibrate`: `y` is then given by name, and sets give names back.
      batch_size: Test points at a time. Defaults to as many as fit a cache.
      check: Whether a learner of your own is first tried: `learners.check` with
        `symmetric=True`, once for each learner and shapes of data.

    Returns:
      A `FullConformal`: call it with inputs and alpha, and with groups their groups.

    Raises:
      ValueError: if lengths differ, values are NaN, the learner or the score has no
        closed form, labels or groups are out of range, the number of groups is not
        known, or the learner tells rows apart.

    Guarantee:
      At least 1 - alpha; exactly k / (n + 1), k = n + 1 - floor(alpha (n + 1)), where
      scores do not tie and no interval stands for a set with holes. Repeated rows tie,
      but in the closed form rounding breaks their ties, to either side. With groups the
      same within each group, for its number of rows; one with fewer than 1/alpha - 1
      has infinite sets.

    Assumption:
      The rows and test examples are exchangeable, with groups those of each group (how
      many there are of each may differ), and the learner treats rows alike.

    Cost:
      One factorization, as a fit, and for each test point O(n p) time and two
      selections. For labels k fits on n + 1 rows for each test point, `batch_size`
      points at a time in one program.

    References:
      Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, Springer, 2005.
      Vovk, Shen, Manokhin, Xie, Nonparametric Predictive Distributions Based on
      Conformal Prediction, Machine Learning, 2019.

    See also:
      discretized_conformal, jackknife_plus, split_conformal, learners.Ridge,
      typing.Augments

    Example:
      >>> from jaxcp import datasets, learners, scores
      >>> x, y = datasets.linear(jax.random.key(0), 30)
      >>> key, score = jax.random.key(1), scores.Absolute()
      >>> cp = full_conformal(key, learners.Ridge(1.0), score, x, y)
      >>> cp(x[:2], alpha=0.1).contains(y[:2])
      Array([ True,  True], dtype=bool)
      >>> def fit(penalty):
      ...     return full_conformal(key, learners.Ridge(penalty), score, x, y)
      >>> paths = jax.vmap(fit)(jnp.logspace(-3, 3, 7))
      >>> sets = jax.vmap(lambda cp: cp(x[:2], alpha=0.1))(paths)
      >>> sets.lower.shape
      (7, 2)
      >>> site = jnp.arange(30) % 2
      >>> args = key, learners.Ridge(1.0), score, x, y
      >>> by_site = full_conformal(*args, groups=site, num_groups=2)
      >>> by_site(x[:2], alpha=0.1, groups=site[:2]).contains(y[:2])
      Array([ True,  True], dtype=bool)
    """
    inputs.check_score(score)
    _checks.check_one_of("residuals", residuals, POWERS)
    names = classes_of(score, classes)
    by_label, target = inputs.has_labels(score), y
    if by_label:
        target = _checks.vector(coded(names, y, mask))
    elif not isinstance(score, Absolute | Signed):
        raise ValueError(
            "expected scores.Absolute() or scores.Signed() for the closed form, got "
            f"{type(score).__name__}; discretized_conformal takes any score with an "
            "interval inverse"
        )
    rows = fitted_rows(key, learner, x, target, calibration_weights, mask, batch_size)
    count = rows.weights, rows.mask, len(rows.y)
    if names is not None and num_groups is None and group_names is None:
        group_names = names if are_labels(groups, y, names) else None
    of = groups_of(rows.y, groups, num_groups, group_names, rows.mask)
    known: dict[str, Any] = {"groups": of.codes, "batch_size": batch_size}
    known |= {"num_groups": of.count, "group_names": of.names}
    if by_label:
        source = labels.refits(score, rows, names, check)
        same = groups is y or _same(source.y, of.codes, rows.mask)
        alike = of.count == source.num_labels and of.names in (None, names)
        known["labels_are_groups"] = alike and same
        return FullConformal(score, source, *count, classes=names, **known)
    given = y if _arrays.is_rounded("y", y) else None
    source = _smoother(rows, residuals, check, given)
    shape, dtype = rows.y.shape[1:], as_float(rows.y).dtype
    components = (2 * math.prod(shape),) if isinstance(score, Signed) else shape
    held = *count, components, shape, residuals
    return FullConformal(score, source, *held, dtype=dtype, **known)


def _same(y, groups, mask):
    """Returns whether groups are known to be the labels of all rows that count."""
    if groups is None or not _arrays.is_concrete(y, groups, mask):
        return False
    apart = np.asarray(y) != np.asarray(groups)
    return not np.any(apart if mask is None else apart & np.asarray(mask))


def _smoother(rows, residuals, check, given):
    """Returns the fit of a learner that is linear in the targets, after checks."""
    learner, x, y, mask = rows.learner, rows.x, rows.y, rows.mask
    if y.ndim not in (1, 2) or 0 in y.shape[1:]:
        raise ValueError(f"expected y of shape (n,) or (n, d), d >= 1, got {y.shape}")
    _checks.check_not_nan("x", x, mask)
    cure = (
        "; learners.Affine(learner) if its predictions are affine in the targets, and "
        "discretized_conformal for any other"
    )
    _checks.check_kind("a learner with prepare and augmented", learner, Augments, cure)
    rows.check_symmetric(check)
    learner = with_key(learner, rows.key)
    with learners.traceable(learner):
        prepared = _prepare(learner, x, y, mask)
        found = jax.eval_shape(_of_first, learner, prepared, x)
    if found.rest is None and residuals != "ordinary":
        raise ValueError(
            f"expected residuals='ordinary' for {type(learner).__name__}, whose "
            f"leverages are not known, got {residuals!r}"
        )
    if given is not None and len(y):
        _check_digits(y, given, _of_first(learner, prepared, x), mask)
    return Smoother(learner, prepared)


@jit
def _prepare(learner, x, y, mask):
    return learner.prepare(x, y, mask)


@jit
def _of_first(learner, prepared, x):
    return learner.augmented(prepared, jax.tree.map(lambda v: v[:1], x))


def _check_digits(y, given, found, mask):
    """Raises ValueError if targets have lost the digits that their errors are about.

    For targets that were rounded from those given. Outputs whose targets are all the
    same, and rows that the fit goes through, have no errors to lose; equal targets
    count once.
    """
    if not _arrays.is_concrete(y, found, mask):
        return
    some = _arrays.some_rows(len(y))
    floats, kept = np.asarray(y, jax.dtypes.canonicalize_dtype(float)), slice(None)
    kept = kept if mask is None else np.asarray(mask)[some]
    columns = floats, _arrays.as_numpy("y", given), _errors(found)
    y, given, errors = (v.reshape(len(v), -1)[some][kept] for v in columns)
    vary = np.any(given != given[:1], axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.nextafter(y, np.inf) - y
    _arrays.check_digits("y", steps, errors, _arrays.one_of_each(given) & vary)


def _errors(found):
    """Returns the errors of fits without each row, infinite where they are not told."""
    residuals, shares = (np.asarray(v, float) for v in (found.residuals, found.shares))
    if residuals.shape[: shares.ndim] == shares.shape:
        residuals = residuals[0]
    rest = 1.0
    if found.rest is not None:  # 1 - h_i of the fit on n rows
        rest = np.asarray(found.rest) - shares**2 / np.asarray(found.spread)[:, None]
    rest = np.broadcast_to(rest, shares.shape)[0]
    rest = rest.reshape(-1, *(1,) * (residuals.ndim - 1))
    told = rest > _LEAST
    return np.where(told, residuals / np.where(told, rest, 1), np.inf)
