"""A score of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._arrays import is_concrete
from jaxcp._batching import score_of, widened
from jaxcp._numbers import with_rounding
from jaxcp._pytree import keep_functions, pytree
from jaxcp._tracing import jit
from jaxcp.scores import inputs
from jaxcp.sets import LevelSet
from jaxcp.typing import AnySet, PyTree, Set

_ROWS = 256  # that are looked at, always as many: one program for every number of rows


@pytree
class Custom:
    """Any function of a prediction and a target as a nonconformity score.

    `scores.check` finds out whether an inverse belongs to its score.

    Parameters bound by `functools.partial(evaluate, params)` are leaves of the score:
    new ones compile nothing, and `training.train_score` learns them.

    Args:
      evaluate: Returns the score of one example, `(pred, y) -> ()` or `(c,)`; larger
        means stranger.
      inverse: Returns {y : all(evaluate(pred, y) <= q)} as a set, `(pred, q) -> Set`.
        It may be larger: certificates then say "at least".
        Without it the sets are `LevelSet`s, which know membership but not size.
      start: In place of an inverse, for targets of one number: returns the target with
        the least score, `pred -> ()`, such as the prediction itself. The sets are then
        intervals around it, as from `LevelSet.interval`, with ends exact to the float.
        That is right if the score falls up to this target and rises from there on.
        Calibration looks at 256 rows, and refuses targets that their own sets would
        miss; `scores.check` looks more closely. `LevelSet.intervals` finds sets of
        several pieces.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`, whatever the function, if the
      inverse holds all y that score at most q.

    Assumption:
      Exchangeable examples; the model and the function were chosen on other data.

    Cost:
      That of the functions; with `start` one evaluation for each bit of a float and end
      of a set.

    See also:
      scores.check, scores.Labelwise, sets.LevelSet, pytree

    Example:
      >>> score = Custom(lambda pred, y: jnp.abs(jnp.log(y / pred)))
      >>> score.invert(jnp.array(2.0), jnp.log(2.0)).contains(3.0)
      Array(True, dtype=bool)
      >>> score = Custom(score.evaluate, start=lambda pred: pred)
      >>> [round(v.item(), 3) for v in score.invert(jnp.array(2.0), 0.5).ends()]
      [1.213, 3.297]
    """

    evaluate: Callable[[PyTree, Array], Array]
    inverse: Callable[[PyTree, Array], Set] | None = None
    start: Callable[[PyTree], Array] | None = None

    def __post_init__(self):
        if self.inverse is not None and self.start is not None:
            raise ValueError("expected inverse or start, got both; choose one")
        keep_functions(self, "evaluate", "inverse", "start")

    @property
    def exact(self) -> bool:
        """Whether sets are known to hold no more than {y : evaluate(pred, y) <= q}."""
        return self.inverse is None

    @property
    def rounds_up(self) -> bool:
        """Whether sets have room for rounding: those around `start`, as level sets."""
        return self.start is not None

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns evaluate(pred, y), shape () or (c,)."""
        return self.evaluate(pred, y)

    def invert(self, pred: PyTree, q: Array) -> AnySet:
        """Returns inverse(pred, q), or the level set at q or its piece around start."""
        if self.inverse is not None:
            return self.inverse(pred, q)
        region = LevelSet(self, pred, q)
        return region if self.start is None else region.interval(self.start(pred))

    @property
    def takes(self) -> inputs.Input:
        """Any arrays; with `start` there must be no target that its set misses."""
        if self.start is None:
            return inputs.anything()
        return inputs.anything()._replace(check=partial(_check_start, self))


def _check_start(score, preds, y, mask):
    """Raises ValueError if a set around `start` misses a target that belongs to it."""
    known = y is not None and is_concrete(score, preds, y, mask)
    if not (known and len(y)):
        return
    rows = np.linspace(0, len(y) - 1, _ROWS).astype(int)
    missed = _missed(score, *jax.tree.map(lambda v: np.asarray(v)[rows], (preds, y)))
    kept = True if mask is None else np.asarray(mask)[rows]
    found = rows[np.asarray(missed) & kept]
    if found.size:
        raise ValueError(
            "expected start(pred) as the target with the least score, from which the "
            f"score rises on both sides, got another for row {found[0]}: the set "
            "around it would miss the target at its own score; without start, "
            "sets.intervals(within) finds several pieces"
        )


@jit
def _missed(score, preds, y):
    """Returns for each row whether the set at the score of its target is without it."""

    def one(pred, target):
        level = with_rounding(score_of(score, pred, target))
        level = jnp.where(jnp.isnan(level), jnp.inf, level)
        return ~jnp.all(score.invert(pred, level).contains(target))

    return jax.vmap(one)(*widened((preds, y)))
