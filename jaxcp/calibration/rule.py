"""What every calibration is: a score, and a rule that turns alpha into thresholds.

What calibrations share: a score with thresholds, and the sets at them.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Hashable
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._batching import by_rows, invert, invert_each, map_evenly, score_of, widened
from jaxcp._names import named
from jaxcp._numbers import as_float, rounding
from jaxcp._tree import jit
from jaxcp.calibration._rows import (
    RowShapes,
    check_columns,
    check_row_shapes,
    coded,
    smoothed_ranks,
)
from jaxcp.quantiles._keys import bisect_keys, from_keys, to_keys
from jaxcp.quantiles.levels import alpha_as_float, as_alpha, split_alpha
from jaxcp.scores import inputs
from jaxcp.typing import AnySet, ArrayLike, HasRounding, Number, PyTree, Score

_NONE = _checks.optional(None)
_NUMBERS = 2**19  # of rows that are gone through for test points at a time


class Thresholds(ABC):
    """A score with a threshold for every alpha: sets, checks and work by rows."""

    score: Score
    components: tuple[int, ...] = ()
    row_shapes: RowShapes | None = None
    classes: tuple[Hashable, ...] | None = None

    def rank(self, alpha: ArrayLike) -> PyTree:
        """Returns alpha as a float; with components one share for each, shape (c,)."""
        return alpha_as_float(split_alpha(as_alpha(alpha), self.components))

    @abstractmethod
    def threshold(self, rank: PyTree, **context: Any) -> Array:
        """Returns the threshold of one test point, shape () or (c,)."""

    def quantile(
        self, alpha: ArrayLike, *, delta: Number | None = None, **context: Any
    ) -> Array:
        """Returns the threshold at alpha, for the context of one test point."""
        self._check()
        rank = self._rank(alpha, delta, context.get("u"))
        return by_rows(_threshold, rank, context, rows=(), holder=self)

    def __call__(
        self,
        preds: PyTree,
        alpha: ArrayLike,
        *,
        delta: Number | None = None,
        **context: Any,
    ) -> AnySet:
        """Returns the prediction sets of new predictions, leading axis m."""
        return self._sets(preds, alpha, delta=delta, **context)

    def _rank(self, alpha, delta=None, u=None):
        """Returns the rank, of a class that knows it where delta or u is given."""
        if u is not None:
            if not _takes(type(self).threshold, "u"):
                raise ValueError(
                    f"expected u=None for {type(self).__name__}, got uniforms"
                )
            return smoothed_ranks(self, alpha, delta)
        if delta is None:
            return self.rank(alpha)
        if not _takes(type(self).rank, "delta"):
            raise ValueError(
                f"expected delta=None for {type(self).__name__}, whose coverage has no "
                f"known law, got {delta}; leave it out, or write rank(alpha, delta)"
            )
        rank: Any = self.rank
        return rank(alpha, delta=delta)

    def _sets(self, preds, alpha, *, delta=None, u=None, **context):
        self._check_one_alpha(alpha)
        preds, _, u, context = self._rows(preds, context, u=_checks.uniforms(u))
        rows = preds, context if u is None else context | {"u": as_float(u)}
        sets = by_rows(_sets_of, self._rank(alpha, delta, u), rows=rows, holder=self)
        return named(sets, self.classes)

    def _thresholds(self, rank, context):
        """Returns the threshold of every row of context."""
        return jax.vmap(lambda row: self.threshold(rank, **row))(context)

    def _thresholds_in_blocks(self, rank, context, held):
        """Returns the threshold of every row, for each of which all `held` is read."""
        numbers = sum(v.size for v in jax.tree.leaves(held))
        one = lambda row: self.threshold(rank, **row)  # noqa: E731
        return map_evenly(one, context, at_a_time=max(_NUMBERS // (numbers + 1), 1))

    def _rows(self, preds, context, y=_NONE, u=_NONE):
        """Returns predictions, targets, uniforms and context, after checks."""
        self._check()
        check_columns(self.classes, preds)
        preds, y, u, *columns = _checks.rows(preds=preds, y=y, u=u, **context)
        check_row_shapes(self.score, preds, self.row_shapes)
        inputs.check(self.score, preds, y)
        pairs = zip(context, columns, strict=True)
        return preds, y, u, {name: v for name, v in pairs if v is not None}

    def _num_held(self) -> int:
        """Returns how many rows of calibration can be filled up: 0, none."""
        return 0

    def _filled(self, size: int) -> Self:
        """Returns the same rule with `size` rows of calibration."""
        return self

    def _check(self):
        """Raises ValueError for a rule that jax does not know, or without a score."""
        _checks.check_pytree("the rule", self, "jaxcp.calibrate")
        inputs.check_own_score(self, "a rule")

    def _check_one_alpha(self, alpha):
        """Raises ValueError for several levels, which sets do not have."""
        if np.ndim(alpha) > len(self.components):
            shapes = f"{self.components} or ()" if self.components else "()"
            raise ValueError(
                f"expected alpha of shape {shapes}, got {np.shape(alpha)}; use "
                "jax.vmap for sets at several levels"
            )


@functools.lru_cache(maxsize=1024)
def _takes(method, name):
    """Returns whether a method of a class has an argument of this name."""
    return name in inspect.signature(method).parameters


@jit
def _threshold(rule, rank, context):
    return rule.threshold(rank, **context)


@jit
def _sets_of(rule, rank, preds, context):
    """Returns {y : score(pred, y) <= q} of every row, q one for all or one each."""
    if not context:
        return invert(rule.score, preds, rule.threshold(rank))
    sets = invert_each(rule.score, preds, rule._thresholds(rank, context))
    # The bound of a smoothed set may be next to a score: no room for rounding.
    exact = "u" in context and isinstance(sets, HasRounding)
    return sets.exact() if exact else sets


class Rule(Thresholds):
    """A score with a threshold for every alpha: the base of all calibrations.

    Sets, p-values, checks of arguments and work in blocks of rows are written here
    once. Your class is a `jaxcp.pytree` with a field `score` and

    * `threshold(rank, **context)`: the threshold of one test point, shape () or, for
      scores with c components, (c,). Context is what the class reads from a test point,
      such as a weight. The verbs take it by keyword with a leading axis m, under names
      of your own (not preds, y, u or delta); `threshold` gets one row of it at a time.
      Without context one threshold serves all test points.
    * `rank(alpha)`, if `threshold` needs more than alpha as a float. It runs once,
      outside of `jit`. Write `rank(alpha, delta=None)` where ranks are known that cover
      with probability 1 - delta over calibration sets: the verbs then take `delta`.
    * `components`: () unless scores have shape (c,). `row_shapes`: shapes of one
      prediction, which are then checked. `classes`: names of the labels, for targets
      and for sets of labels.

    Raises:
      ValueError: when it is called, if the class is no pytree, the score is no score,
        or predictions, targets or context do not fit, as for `Calibration`.

    Guarantee:
      None of its own: that of the thresholds.

    Assumption:
      Those of the thresholds.

    Cost:
      One threshold for all rows, or one for each row with context; p-values take one
      for each bit of a float and row.

    See also:
      calibrate, Calibration, GroupCalibration, pytree

    Example:
      >>> from jaxcp.scores import Absolute
      >>> @jaxcp.pytree
      ... class Mean(Rule):  # of the thresholds of two calibrations
      ...     score: jaxcp.typing.Score
      ...     both: tuple
      ...     def rank(self, alpha):
      ...         return [cp.rank(alpha) for cp in self.both]
      ...     def threshold(self, rank):
      ...         pairs = zip(self.both, rank)
      ...         return sum(cp.threshold(k) for cp, k in pairs) / 2
      >>> one = jaxcp.calibrate(Absolute(), jnp.zeros(9), jnp.arange(1.0, 10.0))
      >>> two = jaxcp.calibrate(Absolute(), jnp.zeros(9), jnp.arange(3.0, 12.0))
      >>> Mean(Absolute(), (one, two))(jnp.zeros(1), 0.2).upper
      Array([9.], dtype=float32)
    """

    def p_values(self, preds: PyTree, y: ArrayLike, **context: Any) -> Array:
        """Returns the smallest level whose set leaves each target out, shape (m,).

        1 where every set holds the target. Exact but for rounding: alpha is a jax array
        here.
        """
        return self._p_values(preds, y, **context)

    def _p_values(self, preds, y, u=None, **context):
        y = coded(self.classes, y)
        rows = self._rows(preds, context, y, _checks.uniforms(u))
        return by_rows(_p_values_of, rows=rows, holder=self)

    def _p_values_of_scores(self, scores, u, rounds, **context):
        """Returns p-values of any rule: the first level whose set lacks a score."""
        if u is not None:
            raise ValueError(f"expected u=None for {type(self).__name__}, got uniforms")
        one = lambda score, row: _first_level_without(self, score, rounds, row)  # noqa: E731
        return jax.vmap(one)(scores, context)


@jit
def _p_values_of(rule, preds, y, u, context):
    scores = jax.vmap(partial(score_of, rule.score))(*widened((preds, y)))
    rounds = u is None and _sets_round(rule.score, preds, scores)
    return rule._p_values_of_scores(scores, u, rounds, **context)


def _first_level_without(rule, score, rounds, context):
    """Returns inf{alpha : score > q(alpha)}, 1 if every set holds the score."""
    dtype = jax.dtypes.canonicalize_dtype(float)
    tiny, below = jnp.finfo(dtype).tiny, 1 - jnp.finfo(dtype).epsneg

    def is_held(key):
        alpha = from_keys(key, dtype)
        q = rule.threshold(rule.rank(jnp.clip(alpha, tiny, below)), **context)
        if jnp.shape(q) != score.shape:
            expected = f"threshold(rank) of shape {score.shape} like the score"
            raise ValueError(f"expected {expected}, got {jnp.shape(q)}")
        q = q + rounding(q) if rounds else q
        return (alpha < tiny) | ((alpha < 1) & jnp.all(score <= q))

    last = bisect_keys(is_held, to_keys(jnp.zeros((), dtype)).dtype)
    return from_keys(last + 1, dtype)


def _sets_round(score, preds, scores):
    """Returns whether sets hold targets that exceed the threshold by rounding alone."""
    one = lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype)  # noqa: E731
    region = jax.eval_shape(score.invert, *jax.tree.map(one, (widened(preds), scores)))
    return getattr(region, "rounds", False) or inputs.rounds_up(score)
