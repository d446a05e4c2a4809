"""The verb of full conformal prediction, and what it takes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import is_rounded
from jaxcp._numbers import as_float
from jaxcp._tracing import jit
from jaxcp.calibration._rows import classes_of
from jaxcp.full import _labels, _target_checks
from jaxcp.full._ends import POWERS
from jaxcp.full._smooth import Smoother
from jaxcp.full.conformal import FullConformal, Residuals
from jaxcp.learners import checking
from jaxcp.learners.affine import with_key
from jaxcp.learners.general import check_learner, check_refitted
from jaxcp.scores import Absolute, Signed, inputs
from jaxcp.typing import ArrayLike, Augments, Learner, PyTree, Score


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
      A `FullConformal`: call it with inputs and alpha.

    Raises:
      ValueError: if lengths differ, values are NaN, the learner or the score has no
        closed form, labels are out of range, or the learner tells rows apart.

    Guarantee:
      At least 1 - alpha; exactly k / (n + 1), k = n + 1 - floor(alpha (n + 1)), where
      scores do not tie and no interval stands for a set with holes. Repeated rows tie,
      but in the closed form rounding breaks their ties, to either side.

    Assumption:
      The rows and test examples are exchangeable, and the learner treats rows alike.

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
    """
    inputs.check_score(score)
    _check_learner(learner, batch_size)
    _check_residuals(residuals)
    names = classes_of(score, classes)
    if inputs.has_labels(score):
        given = x, y, calibration_weights, mask, names
        of = _labels.labels(key, learner, score, *given, check=check)
        rows = of.source, of.weights, of.mask, len(of.source.y)
        return FullConformal(score, *rows, batch_size=batch_size, classes=names)
    _check_kinds(score)
    given = y if is_rounded("y", y) else None
    y, x, weights, mask = _checks.rows(
        y=y,
        x=x,
        calibration_weights=_checks.weights(calibration_weights),
        mask=_checks.mask(mask),
    )
    _checks.check_key(key)
    if weights is not None and mask is not None:
        weights = jnp.where(mask, weights, 0)
    source = _smoother(key, learner, residuals, (x, y, mask), check, given)
    shape, dtype = y.shape[1:], as_float(y).dtype
    components = (2 * math.prod(shape),) if isinstance(score, Signed) else shape
    static = len(y), components, shape, residuals, batch_size, dtype
    return FullConformal(score, source, weights, mask, *static)


def _check_learner(learner, batch_size):
    """Raises ValueError for a learner that is not fitted inside of a program."""
    check_refitted(learner)
    if batch_size is not None:
        _checks.check_count("batch_size", batch_size, 1)


def _check_kinds(score):
    """Raises ValueError for what has no closed form here."""
    if not isinstance(score, Absolute | Signed):
        raise ValueError(
            "expected scores.Absolute() or scores.Signed() for the closed form, got "
            f"{type(score).__name__}; discretized_conformal takes any score with an "
            "interval inverse"
        )


def _check_residuals(residuals):
    """Raises ValueError unless there are such residuals."""
    if not isinstance(residuals, str) or residuals not in POWERS:
        names = ", ".join(map(repr, POWERS))
        raise ValueError(f"expected residuals as one of {names}, got {residuals!r}")


def _smoother(key, learner, residuals, rows, check, given):
    """Returns the fit of a learner that is linear in the targets, after checks."""
    x, y, mask = rows
    _target_checks.check_targets(y)
    for name, value in (("y", y), ("x", x)):
        _checks.check_not_nan(name, value, mask)
    check_learner(learner, x, y)
    kind = type(learner).__name__
    if not isinstance(learner, Augments):
        raise ValueError(
            f"expected a learner with prepare and augmented, got {kind}; "
            "learners.Affine(learner) if its predictions are affine in the targets, "
            "and discretized_conformal for any other"
        )
    if check:
        checking.check_symmetric_once(learner, x, y, key)
    learner = with_key(learner, key)
    with checking.traceable(learner):
        prepared = _prepare(learner, x, y, mask)
        found = jax.eval_shape(_first, learner, prepared, _one_row(x))
    if found.rest is None and residuals != "ordinary":
        raise ValueError(
            f"expected residuals='ordinary' for {kind}, whose leverages are not known, "
            f"got {residuals!r}"
        )
    if given is not None and len(y):
        found = _first(learner, prepared, jax.tree.map(lambda v: v[:1], x))
        _target_checks.check_digits_of_fit(y, given, found, mask)
    return Smoother(learner, prepared)


def _one_row(x):
    """Returns the shapes of one row."""
    row = lambda v: jax.ShapeDtypeStruct((1, *v.shape[1:]), v.dtype)  # noqa: E731
    return jax.tree.map(row, x)


@jit
def _first(learner, prepared, x):
    return learner.augmented(prepared, x)


@jit
def _prepare(learner, x, y, mask):
    return learner.prepare(x, y, mask)
