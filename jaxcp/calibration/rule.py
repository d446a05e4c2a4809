"""What every calibration is: a score, and a rule that turns alpha into thresholds."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._batching import score_of, widened
from jaxcp._numbers import rounding
from jaxcp._padding import by_rows
from jaxcp._tracing import jit
from jaxcp.calibration._rows import coded
from jaxcp.calibration._thresholds import Thresholds
from jaxcp.quantiles._keys import bisect_keys, from_keys, to_keys
from jaxcp.scores import inputs
from jaxcp.typing import ArrayLike, PyTree


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
