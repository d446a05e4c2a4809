"""Calibration that keeps the mean of any loss at alpha."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks, _named
from jaxcp._batching import map_evenly
from jaxcp._counting import count_groups, count_true
from jaxcp._numbers import as_float, at_least_single, over_shards
from jaxcp._pytree import pytree, static
from jaxcp._tracing import jit
from jaxcp.calibration._rows import RowShapes, weight_for, weights_for
from jaxcp.calibration._thresholds import Thresholds
from jaxcp.quantiles.levels import as_delta
from jaxcp.risk import _levels
from jaxcp.risk._rows import Rows
from jaxcp.risk._solving import least_threshold
from jaxcp.typing import AnySet, ArrayLike, AxisName, PyTree, Score

_NUMBERS = 2**19  # of predictions that are gone through for test weights at a time
_ROUNDINGS = 8  # of a sum, in eps of the largest one: budgets are often met exactly


@pytree
class RiskCalibration(Thresholds):
    """Losses of calibration rows, ready for sets whose mean loss is at most alpha.

    Args:
      score: The score: sets are `score.invert(pred, q)`.
      risks: For each loss its rows, from `calibrate_risk`.
      several: Whether losses came as a tuple.
      row_shapes: Shapes of one prediction, which later ones must have, or None.
      classes: Names of the labels of the sets, or None.
      group_names: Names of the groups, or None.

    See also:
      calibrate_risk, Calibration, save
    """

    score: Score
    preds: PyTree
    y: PyTree
    losses: tuple[Any, ...]
    tails: tuple[Any, ...]
    mask: Array | None = None
    weights: Array | None = None
    groups: Array | None = None
    grid: Array | None = None
    bounds: tuple[float, ...] = static(default=(1.0,))
    counted: tuple[bool, ...] = static(default=(False,))
    several: bool = static(default=False)
    monotone: bool = static(default=True)
    num_groups: int | None = static(default=None)
    row_shapes: RowShapes | None = static(default=None)
    classes: tuple[Hashable, ...] | None = static(default=None)
    group_names: tuple[Hashable, ...] | None = static(default=None)

    def __post_init__(self) -> None:
        _named.keep_names(self, "classes", "group_names")

    def quantile(
        self,
        alpha: ArrayLike,
        *,
        delta: Any = None,
        test_weight: ArrayLike | None = None,
        axis_name: AxisName = None,
    ) -> Array:
        """Returns the least threshold that keeps the risk at alpha, () or (g,)."""
        self._check()
        context = weight_for(self.weights, test_weight)
        rank = self.rank(alpha, delta, axis_name)
        return _quantile(self, rank, context, axis_name=axis_name)

    def __call__(
        self,
        preds: PyTree,
        alpha: ArrayLike,
        *,
        delta: Any = None,
        groups: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> AnySet:
        """Returns the prediction sets of new predictions."""
        context = {"test_weights": weights_for(self.weights, test_weights)}
        if self.num_groups is not None or groups is not None:
            context["groups"] = self._groups_of(groups)
        return self._sets_at(preds, alpha, context, delta=delta)

    def risk(self, q: ArrayLike) -> Array:
        """Returns the mean loss of the calibration rows at a threshold.

        Args:
          q: Threshold, shape (), or (g,) with one for each group.

        Returns:
          Mean loss, shape (); (g,) for groups, and (r,) or (r, g) for several losses.
          NaN where there is no row.
        """
        q = jnp.asarray(q)
        shapes = {(), () if self.num_groups is None else (self.num_groups,)}
        if q.shape not in shapes:
            expected = " or ".join(map(str, sorted(shapes)))
            raise ValueError(f"expected q of shape {expected}, got {q.shape}")
        risks = _risk(self, as_float(q))
        return risks if self.several else risks[0]

    def rank(
        self, alpha: ArrayLike, delta: Any = None, axis_name: AxisName = None
    ) -> tuple[Array, ...]:
        """Returns what the losses may sum to, one or (g,) for each loss.

        With weights the level of each, in shares of its bound.
        """
        alphas = self._alphas(alpha)
        if self.weights is not None:
            if delta is not None:
                raise ValueError(
                    "expected delta=None with weights, for which no bound is known, "
                    f"got {delta}"
                )
            return tuple(jnp.asarray(_as_floats(a)) for a in alphas)
        count = self._count(axis_name)
        budgets = zip(alphas, self._tops, self.counted, strict=True)
        if delta is None:
            return tuple(_levels.expected_budget(count, *v) for v in budgets)
        delta = as_delta(delta)
        return tuple(_levels.sure_budget(count, *v, delta) for v in budgets)

    def threshold(
        self,
        rank: tuple[Array, ...],
        groups: Array | None = None,
        test_weights: Array | None = None,
        axis_name: AxisName = None,
    ) -> Array:
        """Returns the threshold of all test points, or of one; (g,) for groups."""
        found = [
            _threshold_of(rows, budget, test_weights, axis_name)
            for rows, budget in zip(self.risks(), rank, strict=True)
        ]
        q = jnp.max(jnp.stack(found), axis=0) if len(found) > 1 else found[0]
        return q if groups is None else self._of_group(q, groups)

    def risks(self) -> list[Rows]:
        """Returns the rows of each loss."""
        mass = self.mask if self.weights is None else self.weights
        shared = self.preds, self.y, mass, self.groups, self.grid, None
        own = zip(self.losses, self.tails, self._tops, strict=True)
        return [
            Rows(self.score, loss, *shared, tail, top, self.num_groups, self.monotone)
            for loss, tail, top in own
        ]

    @property
    def _tops(self):
        """What each loss is at most: 1 for those that are counted."""
        pairs = zip(self.bounds, self.tails, strict=True)
        return tuple(b if tail is None else 1.0 for b, tail in pairs)

    def _alphas(self, alpha):
        """Returns the level of each loss, in shares of its bound."""
        if isinstance(alpha, tuple | list):
            if len(alpha) != len(self.losses) or not self.several:
                text = f"alpha for {len(self.losses)} losses"
                raise ValueError(f"expected {text}, got {len(alpha)} of them")
            given = tuple(alpha)
        else:
            given = (alpha,) * len(self.losses)
        levels = [_levels.as_level(*v) for v in zip(given, self._tops, strict=True)]
        allowed = {(), (self.num_groups,)} if self.num_groups else {()}
        for level in levels:
            if level.shape not in allowed:
                text = " or ".join(map(str, sorted(allowed)))
                raise ValueError(f"expected alpha of shape {text}, got {level.shape}")
        return levels

    def _count(self, axis_name):
        """Returns how many rows count, of all shards, () or (g,)."""
        if self.num_groups is not None:
            count = count_groups(self.groups, self.num_groups, self.mask)
        elif self.mask is not None:
            count = count_true(self.mask)
        else:
            count = len(jax.tree.leaves(self.preds)[0])
        return over_shards(lax.psum, count, axis_name)

    def _thresholds(self, rank, context):
        groups, weights = context.get("groups"), context.get("test_weights")
        if weights is None:
            return self._of_group(self.threshold(rank), groups)
        numbers = sum(v.size for v in jax.tree.leaves(self.preds))
        one = lambda row: self.threshold(rank, **row)  # noqa: E731
        return map_evenly(one, context, at_a_time=max(_NUMBERS // (numbers + 1), 1))

    def _of_group(self, q, groups):
        """Returns the thresholds of groups, +inf for those out of range."""
        groups = groups.astype(int)
        inside = (groups >= 0) & (groups < self.num_groups)
        return jnp.where(inside, q[jnp.where(inside, groups, 0)], jnp.inf)

    def _groups_of(self, groups):
        if self.num_groups is None:
            raise ValueError("expected groups only of a calibration with groups")
        if groups is None:
            raise ValueError("expected the group of each test point, got groups=None")
        if self.group_names is not None:
            groups = _named.group_codes(self.group_names, groups)
        return _checks.groups(groups, self.num_groups)

    def _check_one_alpha(self, alpha):
        """Allows one alpha for each loss or group: `rank` checks the shape."""


@jit(static_argnames="axis_name")
def _quantile(held, rank, context, axis_name):
    return held.threshold(rank, **context, axis_name=axis_name)


@jit
def _risk(held, q):
    found = []
    for rows in held.risks():
        losses = as_float(rows.losses(rows.of_rows(q) if q.ndim else q))
        count = rows.sums(jnp.ones_like(losses))
        found.append(rows.sums(losses) / count)
    return jnp.stack(found)


def _threshold_of(rows, rank, test_weight, axis_name):
    """Returns the threshold of one loss, for the budget or level that is its rank."""
    rows = rows.with_suprema()
    if not rows.weighted:
        if not jnp.issubdtype(rank.dtype, jnp.floating):
            return least_threshold(rows, rank, axis_name)
        ones = jnp.ones(len(jax.tree.leaves(rows.preds)[0]), rows.sum_dtype())
        most = (rows.sums(ones, axis_name) + 1) * rows.bound
        return least_threshold(rows, _with_slack(rank, most), axis_name)
    weights = at_least_single(as_float(rows.mass))
    largest = over_shards(lax.pmax, jnp.max(weights, initial=0), axis_name)
    scale = -jnp.frexp(largest)[1]  # sums neither overflow nor vanish
    rows = dataclasses.replace(rows, mass=jnp.ldexp(weights, scale))
    weight = jnp.asarray(1.0 if test_weight is None else test_weight, weights.dtype)
    weight = jnp.ldexp(weight, scale)
    total = rows.sums(jnp.ones_like(weights), axis_name) + weight
    # sum_i w_i L_i + w B <= alpha (sum_i w_i + w)
    exact = 1 + 3 * jnp.finfo(total.dtype).eps  # undoes the rounding of alpha
    spare = rank.astype(total.dtype) * exact * total - weight
    budget = jnp.where((total > 0) & (spare >= 0), rows.bound * spare, -jnp.inf)
    budget = _with_slack(budget, rows.bound * total)
    return least_threshold(rows, lax.stop_gradient(budget), axis_name)


def _with_slack(budget, most):
    """Returns a budget with room for the rounding of sums of at most `most`."""
    return budget.astype(most.dtype) + _ROUNDINGS * jnp.finfo(most.dtype).eps * most


def _as_floats(level):
    return level if isinstance(level, Array) else np.asarray(level, float)
