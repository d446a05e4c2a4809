"""Full conformal prediction: the test point is in the fit, and no row is held out."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Literal

import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._named import named
from jaxcp._pytree import pytree, static
from jaxcp.calibration._rows import coded, weights_for
from jaxcp.full._levels import Levels
from jaxcp.typing import AnySet, ArrayLike, PyTree, Score

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

    def __call__(
        self,
        x_new: PyTree,
        alpha: ArrayLike,
        *,
        test_weights: ArrayLike | None = None,
        union: bool = False,
    ) -> AnySet:
        """Returns the full conformal sets at new inputs.

        All y with #{i : S_i(y) < S_n+1(y)} below k = n + 1 - floor(alpha (n + 1)),
        where S(y) are scores under the fit on the n rows and (x, y).

        Args:
          x_new: Inputs, a pytree with leading axis m.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components,
            whose sets are intersected (a scalar is split to alpha / c).
          test_weights: Weight of each test point, shape (m,), for calibration weights.
            Defaults to 1, and no weight may then be larger.
          union: Whether residuals that are not studentized give the exact set, with its
            holes, as `Intervals` with ends of shape (m, l), in place of the interval.

        Returns:
          Sets with leading axis m: `Interval`, `Box` for several outputs, `LabelSet`
          for labels; the whole line where k > n, and where the fit interpolates the
          test point.

        Raises:
          ValueError: if a number `alpha` is outside (0, 1), inputs are NaN or of other
            columns, lengths differ, or a union is asked for of several components.

        Guarantee:
          P(Y in set) >= 1 - alpha; exactly k / (n + 1) where scores do not tie and no
          interval stands for a set with holes.

        Assumption:
          The rows and test examples are exchangeable, and the learner treats rows
          alike.

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
        x, weights = self._rows(x_new, test_weights)
        sets = self.source.sets(self, x, self.rank(alpha), weights, bool(union))
        return named(sets, self.classes)

    def p_values(
        self,
        x_new: PyTree,
        y: ArrayLike,
        *,
        u: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> Array:
        """Returns how exceptional each example is among the rows, fitted with them.

        p = (#{S_i > S_n+1} + u (1 + #{S_i = S_n+1})) / (n + 1).

        Args:
          x_new: Inputs, a pytree with leading axis m.
          y: Targets or candidate targets, shape (m, ...); labels by name if there are
            classes.
          u: Uniforms for smoothed p-values, shape (m,). Defaults to 1: conservative.
          test_weights: Weight of each test point, shape (m,), as for the sets.

        Returns:
          p-values, shape (m,); with c components min(1, c times the smallest one). `y`
          is in the set at alpha iff its conservative p-value exceeds alpha; where an
          interval closes holes, in the set of `union=True`.

        Raises:
          ValueError: as calling it, and if targets are NaN, of another shape or out of
            range.

        Guarantee:
          P(p <= alpha) <= alpha; with uniforms equal to alpha.

        Assumption:
          Those of the sets.

        Cost:
          O(n p) time for each example, without a selection; a refit for a label.

        Example:
          >>> from jaxcp import full_conformal, learners, scores
          >>> x, y = jnp.zeros((4, 1)), jnp.array([1.0, 2.0, 3.0, 4.0])
          >>> key, ridge = jax.random.key(0), learners.Ridge(1.0)
          >>> cp = full_conformal(key, ridge, scores.Absolute(), x, y)
          >>> cp.p_values(x[:2], jnp.array([9.0, 2.5]))
          Array([0.2, 1. ], dtype=float32)
        """
        x, weights = self._rows(x_new, test_weights)
        y = coded(self.classes, y)
        columns = {"x_new": x, "y": y, "u": _checks.uniforms(u)}
        x, y, u = _checks.rows(**columns)
        _checks.check_not_nan("y", y)
        _checks.check_shape("one target", self.target_shape, y.shape[1:])
        return self.source.p_values(self, x, y, u, weights)

    def predictive(self, x_new: PyTree) -> Array:
        """Returns the atoms of the predictive distribution at new inputs.

        y is at most C_i iff the residual of row i is at least that of (x, y), with
        signs: Q(y) = (#{C_i < y} + u (1 + #{C_i = y})) / (n + 1) is uniform.

        Args:
          x_new: Inputs, a pytree with leading axis m.

        Returns:
          Atoms C_i = f + (1 + g) r_i / (rho_i + v_i), shape (m, n) or (m, n, d), in the
          order of the rows; +inf for rows that tie whatever the target. Meaningless
          for rows off the mask.

        Raises:
          ValueError: as calling it, and for labels.

        Guarantee:
          Q(Y) is uniform on [0, 1], with a uniform u.

        Assumption:
          Those of the sets.

        Cost:
          O(n p) time for each input, and m n numbers.

        References:
          Vovk, Shen, Manokhin, Xie, Nonparametric Predictive Distributions Based on
          Conformal Prediction, Machine Learning, 2019.
        """
        x_new = _checks.rows(x_new=x_new)
        self.source.check_new(x_new)
        return self.source.predictive(self, x_new)

    @property
    def has_hulls(self) -> bool:
        """Whether sets are intervals that may close holes, unless `union=True`."""
        return self.residuals != "studentized"

    def _rows(self, x_new, test_weights):
        """Returns inputs, and weights if there are those of calibration."""
        weights = weights_for(self.weights, test_weights)
        x, weights = _checks.rows(x_new=x_new, test_weights=weights)
        self.source.check_new(x)
        if weights is None and self.weights is not None:
            weights = np.ones(_checks.num_rows(x_new=x))
        return x, weights
