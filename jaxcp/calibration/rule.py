"""What every calibration is: a score, and a rule that turns alpha into thresholds."""

from __future__ import annotations

import inspect
import math
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _batching, _checks
from jaxcp._batching import by_rows, invert, invert_each, map_evenly, score_of, widened
from jaxcp._names import named
from jaxcp._numbers import as_float, rounding
from jaxcp._tree import jit
from jaxcp.calibration.predictor import Predictor, Scored, sets_at
from jaxcp.certificates.promises import promised
from jaxcp.held import taking
from jaxcp.held.rows import Held
from jaxcp.pvalues.conformal import mass_of
from jaxcp.quantiles._keys import bisect_keys, from_keys, to_keys
from jaxcp.quantiles.levels import alpha_as_float, as_alpha, split_alpha
from jaxcp.scores import inputs
from jaxcp.typing import AnySet, ArrayLike, HasRounding, Number, PyTree


class Thresholds(Scored):
    """A score with a threshold for every alpha: sets, checks and work by rows."""

    components: tuple[int, ...] = ()
    at_a_time: ClassVar[int | None] = None
    _by_pairs: ClassVar[bool] = False  # whether each test point goes through all rows
    _reads: ClassVar[dict[str, dict[str, bool]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        names = ("rank", "threshold", "weights_at", "values_at")
        methods = {k: getattr(cls, k) for k in names if hasattr(cls, k)}
        cls._reads = {k: _arguments(v) for k, v in methods.items()}

    def rank(self, alpha: ArrayLike) -> PyTree:
        """Returns alpha as a float; with components one share for each, shape (c,)."""
        return alpha_as_float(split_alpha(alpha, self.components))

    def threshold(self, rank: PyTree, **context: Any) -> Array:
        """Returns the threshold of one test point, shape () or (c,)."""
        raise NotImplementedError

    def quantile(
        self, alpha: ArrayLike, *, delta: Number | None = None, **context: Any
    ) -> Array:
        """Returns the threshold at alpha, for the context of one test point."""
        u = context.pop("u", None)
        context = taking.one_row(**self._declared(context, lead=0))
        return self._quantile(alpha, delta, u, context)

    @_checks.with_alpha
    def __call__(
        self,
        preds: PyTree,
        alpha: ArrayLike,
        *,
        delta: Number | None = None,
        **context: Any,
    ) -> AnySet:
        """Returns the prediction sets of new predictions, leading axis m."""
        u = context.pop("u", None)
        return self._sets(preds, alpha, delta=delta, u=u, **self._declared(context))

    @partial(_checks.with_alpha, place=0)
    def at(self, alpha: ArrayLike, *, delta: Number | None = None) -> Predictor:
        """Returns the sets at one level, without the rows: a `Predictor`.

        Args:
          alpha: Level of the sets, as for calling this.
          delta: Probability of a bad calibration set, as for calling this.

        Returns:
          A `Predictor`: `cp.at(alpha)(preds)` are the sets `cp(preds, alpha)`.

        Raises:
          ValueError: as `quantile`, and for rules that read something of each test
            point but its group: these need the rows, and so do likelihood ratios (here
            weights are fixed ones, and none is above 1, the weight of a test point).

        Cost:
          The thresholds, once.
        """
        self._check_one_alpha(alpha)
        needs = [name for name, needed in self._context_read().items() if needed]
        if needs:
            kind = type(self).__name__
            raise ValueError(
                f"expected a rule with one threshold for all test points, got {kind}, "
                f"which reads {', '.join(needs)} of each: call it, with its rows"
            )
        q, known = self.quantile(alpha, delta=delta), Scored.__annotations__
        kept = {name: getattr(self, name) for name in known}
        typed = Array, np.floating
        as_leaf = lambda a: a if isinstance(a, typed) else np.asarray(a, float)  # noqa: E731
        alpha = jax.tree.map(as_leaf, alpha)
        claim, assumption = promised(self, delta, ratios=False)
        return Predictor(q=q, alpha=alpha, claim=claim, assumption=assumption, **kept)

    def _quantile(self, alpha, delta, u, context):
        self._check()
        rank = self._rank(alpha, delta, u)
        if u is not None:
            context |= {"u": as_float(taking.one_row(u=_checks.uniforms(u))["u"])}
        elif not context and (q := self._known_threshold(rank, context)) is not None:
            return _batching.on_device(q)
        return by_rows(_threshold, rank, context, rows=(), holder=self)

    def _sets(self, preds, alpha, *, delta=None, u=None, **columns):
        self._check_one_alpha(alpha)
        preds, _, u, context = self._rows(preds, columns, u=_checks.uniforms(u))
        rank = self._rank(alpha, delta, u)
        if u is None and (q := self._known_threshold(rank, context)) is not None:
            sets = by_rows(sets_at, self.score, q, rows=(preds, context))
        else:
            rows = preds, context if u is None else context | {"u": as_float(u)}
            sets = by_rows(_sets_of, rank, rows=rows, holder=self)
        return named(sets, self.classes)

    def _known_threshold(self, rank: PyTree, context: dict[str, Array]) -> Any:
        """Returns thresholds that are computed on the host; None where none are."""

    def _rank(self, alpha, delta=None, u=None):
        """Returns the rank, of a class that knows it where delta or u is given."""
        kind = type(self).__name__
        if u is not None and "u" not in self._reads["threshold"]:
            raise ValueError(f"expected u=None for {kind}, got uniforms")
        if u is not None and delta is not None:
            raise ValueError(
                f"expected u=None with delta, got uniforms and delta={delta}; smoothed "
                "sets cover 1 - alpha on average over uniforms: leave out one of the "
                "two"
            )
        if u is not None and (c := math.prod(self.components)) > 1:
            raise ValueError(
                f"expected u=None for scores with {c} components, whose sets cover "
                "more than 1 - alpha in any case, got uniforms; leave out u, or take a "
                "score of one number such as scores.Distance or scores.CQR"
            )
        if delta is None:
            rank = self.rank(alpha)
            return rank if u is None else (rank, alpha_as_float(as_alpha(alpha)))
        if "delta" not in self._reads["rank"]:
            raise ValueError(
                f"expected delta=None for {kind}, whose coverage has no known law, as "
                f"with weights, got {delta}; leave it out, or in a rule of your own "
                "write rank(alpha, delta)"
            )
        rank_of: Any = self.rank
        return rank_of(alpha, delta=delta)

    def _declared(self, given, lead=1):
        """Returns the context of test points as columns, or raises ValueError."""
        self._check()
        reads = self._context_read()
        kind, like = type(self).__name__, self.context
        for name in given:
            if name not in reads and "**" not in reads:
                names = ", ".join(k for k in reads if k != "**") or "nothing"
                raise ValueError(
                    f"expected {kind} with {names} of test points, got {name}"
                )
        for name, required in reads.items():
            if required and given.get(name) is None:
                raise ValueError(
                    f"expected {name} of each test point, which {kind} reads, got "
                    f"none; give {name}= with a row for each prediction"
                )
        return {k: taking.declared(v, like.get(k), lead) for k, v in given.items()}

    def _context_read(self):
        """Returns the names that a rule reads of test points, and which it needs."""
        _, *context = self._reads["threshold"].items()
        return {k: v for k, v in context if k != "u"}

    @property
    def context(self) -> dict[str, Any]:
        """What is known of the context of one test point: arrays of its shape."""
        return {}

    def _thresholds(self, rank, context):
        """Returns the threshold of every row of context."""
        return self._each(lambda row: self.threshold(rank, **row), context)

    def _each(self, one, context, *rows):
        """Returns `one` of every row, of as many at a time as the rule says."""
        at_a_time = self._at_a_time(context)
        if at_a_time is None:
            return jax.vmap(one)(context, *rows)
        return map_evenly(one, context, *rows, at_a_time=at_a_time)

    def _at_a_time(self, context):
        """Returns how many test points go through the rows together; None for all."""
        return self.at_a_time

    def _num_held(self) -> int:
        """Returns how many rows of calibration can be filled up: 0, none."""
        return 0

    def _filled(self, size: int) -> Self:
        """Returns the same rule with `size` rows of calibration."""
        return self

    def _check_one_alpha(self, alpha):
        """Raises ValueError for several levels, which sets do not have."""
        if np.ndim(alpha) > len(self.components):
            shapes = f"{self.components} or ()" if self.components else "()"
            raise ValueError(
                f"expected alpha of shape {shapes}, got {np.shape(alpha)}; use "
                "jax.vmap for sets at several levels"
            )


def _arguments(method):
    """Returns the arguments of a method by name, and which ones it needs."""
    _, *found = inspect.signature(method).parameters.values()
    names = {v.name: v.default is v.empty for v in found if v.kind != v.VAR_KEYWORD}
    return names if len(names) == len(found) else names | {"**": False}


def blocks_of(held: Held) -> int:
    """Returns how many test points go through all rows together in little memory."""
    numbers = sum(v.size for v in jax.tree.leaves(held.values))
    return _batching.rows_at_a_time(numbers + 1)


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
    once. Your class is a `jaxcp.pytree` with a field `score` and one of these:

    * `weights_at(**context)`, and a field `held` with the rows (`Held`), for a rule
      that weighs rows by the test point: their weights w >= 0, shape (n,), and that of
      the test point, () or, one a label, (k,). Two arrays (low, high) in place of w are
      bounds of weights that are not known: sets are those of the worst ones. Scores
      that depend on the test point too are `values_at(**context)`, shape (n,).
    * `threshold(rank, **context)`: the threshold of one test point, shape () or, for
      scores with c components, (c,). Without context one serves all test points.

    Context is what the class reads from a test point, such as a weight: the arguments
    of these methods, under names of your own (not preds, y, u or delta). The verbs take
    it by keyword with a leading axis m, the methods one row at a time. It may have

    * `context`: a property with an array or `jax.ShapeDtypeStruct` like that of one
      test point by name; rows of another shape are then refused.
    * `at_a_time`: how many test points with context go at a time, for rules that need
      much memory for each.
    * `nested = False` where sets do not grow as alpha falls: there are no p-values.
    * `rank(alpha)`, if `threshold` needs more than alpha as a float. It runs once,
      outside of `jit`. Write `rank(alpha, delta=None)` where ranks are known that cover
      with probability 1 - delta over calibration sets: the verbs then take `delta`.
    * `threshold(rank, u=None, **context)`, if sets (not p-values) take `u`: with
      uniforms `u` is that of the test point, and `rank` the pair (rank, alpha).
    * `promise` and `assumption`: text that says what sets keep to, with a place for
      the level, as "P(Y in set) >= 1 - {alpha}", and what that assumes. `at(alpha)`,
      `report` and `repr` add "on average over calibration sets", or with which delta,
      and print them; without them nothing is reported or exported.
    * `components`: () unless scores have shape (c,). `row_shapes`: shapes of one
      prediction, which are then checked. `classes`: names of the labels, for targets
      and for sets of labels.

    Raises:
      ValueError: when it is called, if the class is no pytree, the score is no score,
        predictions, targets or context do not fit, or context is missing, unknown or
        NaN.

    Guarantee:
      None of its own: that of the thresholds, which `promise` says.

    Assumption:
      Those of the thresholds, which `assumption` says.

    Cost:
      One threshold for all rows, or one for each row with context. p-values take one
      count for each row of a rule that weighs rows, and else one threshold for each bit
      of a float and row.

    See also:
      calibrate, Calibration, GroupCalibration, Held, pytree

    Example:
      >>> from jaxcp.scores import Absolute
      >>> @jaxcp.pytree
      ... class Near(Rule):  # weights fall with the distance of inputs
      ...     score: jaxcp.typing.Score
      ...     held: jaxcp.Held
      ...     x: jax.Array
      ...     def weights_at(self, x):
      ...         return jnp.exp(-jnp.abs(self.x - x)), 1.0
      >>> rows = jaxcp.Held(jnp.arange(1.0, 10.0))
      >>> near = Near(Absolute(), rows, jnp.arange(9.0))
      >>> near(jnp.zeros(2), 0.5, x=jnp.array([0.0, 8.0])).upper
      Array([2., 9.], dtype=float32)
    """

    held: Held
    weights_at: Any
    values_at: Any
    nested: ClassVar[bool] = True
    _instead: ClassVar[str] = ""  # of p-values

    def threshold(self, rank: Any, u: Array | None = None, **context: Any) -> Array:
        """Returns the threshold of one test point, of rows as the rule weighs them."""
        held, own = self._at(context)
        return held.threshold(rank, own, u)

    def effective_size(self, **context: Any) -> Array:
        """Returns (sum w)^2 / sum w^2 of the weights at one test point, shape ()."""
        self._check()
        if not hasattr(self, "held"):
            kind = type(self).__name__
            raise ValueError(f"expected a rule that weighs held rows, got {kind}")
        if not self._weighs:  # fixed ones
            return self.held.effective_size()
        return _effective_size(self, taking.one_row(**self._declared(context, lead=0)))

    @_checks.by_labels
    def p_values(self, preds: PyTree, y: Any = None, **context: Any) -> Array:
        """Returns the smallest level whose set leaves each target out, shape (m,).

        1 where every set holds the target. Exact but for rounding: alpha is a jax array
        here. Without `y`, those of all k labels, shape (m, k), for scores of labels.
        """
        u = context.pop("u", None)
        return self._p_values(preds, y, u, **self._declared(context))

    def _p_values(self, preds, y, u=None, **columns):
        if not self.nested:
            kind = type(self).__name__
            raise ValueError(
                f"expected a rule whose sets grow as alpha falls, got {kind}, which "
                f"says nested = False: it has sets, and no p-values{self._instead}"
            )
        y = taking.target_of(self.score, self.classes, y)
        rows = self._rows(preds, columns, y, _checks.uniforms(u))
        return by_rows(_p_values_of, rows=rows, holder=self)

    def _p_values_of_scores(self, scores, y, u, rounds, **context):
        """Returns p-values: a count of rows, or the first level whose set lacks it."""
        if self._weighs:
            one = partial(_share_of_rows, self, rounds)
            return self._each(one, context, scores, y, u)
        if u is not None:
            raise ValueError(f"expected u=None for {type(self).__name__}, got uniforms")
        first = lambda row, score: _first_level_without(self, score, rounds, row)  # noqa: E731
        return self._each(first, context, scores)

    def _at(self, context):
        """Returns rows as one test point weighs them, and its own weight."""
        weights, own = self.weights_at(**context)
        held, read = self.held, "values_at" in self._reads
        values = self.values_at(**context) if read else held.values
        return Held(values, mass_of(weights, held.mask)), own

    @property
    def _weighs(self):
        """Whether thresholds are those of rows with weights."""
        return type(self).threshold is Rule.threshold

    def _context_read(self):
        if not self._weighs:
            return super()._context_read()
        return self._reads["weights_at"] | self._reads.get("values_at", {})

    def _at_a_time(self, context):
        if self.at_a_time is None and self._weighs:
            return blocks_of(self.held)
        return self.at_a_time

    def _check(self):
        super()._check()
        if self._weighs and "weights_at" not in self._reads:
            raise ValueError(
                f"expected {type(self).__name__} with threshold(rank, **context) or "
                "weights_at(**context), got neither"
            )


class WithSameRows(Rule):
    """A rule that weighs rows alike for all test points, which share one sort."""

    def _p_values_of_scores(self, scores, y, u, rounds, **context):
        own = self.weights_at(**context)[1]
        return self.held.p_values(scores, u, own, rounds=rounds)

    def _at_a_time(self, context):
        return blocks_of(self.held) if "u" in context else None


@jit
def _p_values_of(rule, preds, y, u, context):
    shape = None
    if y is None:  # all labels, one after the other
        scores = _batching.label_scores(rule.score, preds)
        m, k = shape = scores.shape
        y, scores = jnp.tile(jnp.arange(k), m), scores.reshape(-1)
        repeat = lambda v: jnp.repeat(v, k, axis=0, total_repeat_length=m * k)  # noqa: E731
        u, context = jax.tree.map(repeat, (u, context))
    else:
        scores = jax.vmap(partial(score_of, rule.score))(*widened((preds, y)))
        if math.prod(scores.shape[1:]) == math.prod(rule.components) == 1:
            scores = scores.reshape(-1, *rule.components)  # of columns
    rounds = u is None and _sets_round(rule.score, preds, scores)
    found = rule._p_values_of_scores(scores, y, u, rounds, **context)
    return found if shape is None else found.reshape(shape)


@jit
def _effective_size(rule, context):
    return rule._at(context)[0].effective_size()


def _share_of_rows(rule, rounds, context, score, y, u):
    """Returns the p-value of one test point by a count of the rows."""
    held, own = rule._at(context)
    own = own[y] if jnp.ndim(own) else own  # of its label
    return held.p_value(score, u, own, rounds=rounds)


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
