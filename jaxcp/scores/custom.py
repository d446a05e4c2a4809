"""A score of the user's own."""

from collections.abc import Callable

from jax import Array

from jaxcp._pytree import keep_functions, pytree
from jaxcp.sets import LevelSet
from jaxcp.typing import AnySet, PyTree, Set


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
        Without it the sets are `LevelSet`s, which know membership but not size.
      start: In place of an inverse, for targets of one number: returns the target with
        the least score, `pred -> ()`, such as the prediction itself. The sets are then
        intervals around it, as of `LevelSet.interval`, with ends to the float. That is
        right if the score falls up to there and rises from there on; `check` says if
        it does not, and `LevelSet.intervals` makes a set of several pieces.

    Guarantee:
      1 - alpha for exchangeable data, whatever the function.

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
