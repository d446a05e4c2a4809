"""What calibrations share: a score with thresholds, and the sets at them."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, Self

import jax
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._batching import invert, invert_each, map_evenly
from jaxcp._named import named
from jaxcp._numbers import as_float
from jaxcp._padding import by_rows
from jaxcp._tracing import jit
from jaxcp.calibration._rows import (
    RowShapes,
    check_columns,
    check_row_shapes,
    smoothed_ranks,
)
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
