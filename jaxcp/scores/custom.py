"""Scores from functions: of the user, or of a model with densities or latent codes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from jaxcp import _checks, _geometry
from jaxcp._arrays import is_concrete
from jaxcp._batching import score_of, widened
from jaxcp._numbers import with_rounding
from jaxcp._tree import jit, keep_functions, pytree, static
from jaxcp.scores import inputs
from jaxcp.sets import LevelSet
from jaxcp.typing import AnySet, PyTree, Set
from jaxcp.volumes.estimate import log_volume_by_density, log_volume_of_image

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
    if y is None or not len(y) or not is_concrete(score, preds, y, mask):
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


@pytree
class Density:
    """Minus the log density of the target: DR-CP. Sets are density level sets.

    `pred` is whatever the functions take, such as the input x itself. Give parameters
    by `functools.partial(log_prob, params)`: they are then leaves of the score: new
    ones compile nothing, everything is differentiable in them, and every set carries
    them. `Density.of(model, params)` does that for a model with `log_prob(params, x,
    y)`. A function that closes over its parameters makes them constants of the program.

    Args:
      log_prob: `(pred, y) -> ()`, the log density at `y`; -inf and NaN are the worst.
      sample: `(key, pred, n) -> (n, d)`, draws of the same law, or None. The volume of
        a set is estimated with them.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      One call of `log_prob` for a score and for each candidate target of a set.

    References:
      Sadinle, Lei, Wasserman, Least Ambiguous Set-Valued Classifiers with Bounded Error
      Levels, JASA, 2019.
      Dheur, Bosser, Izbicki, Ben Taieb, Distribution-Free Conformal Joint Prediction
      Regions for Neural Marked Temporal Point Processes, Machine Learning, 2024.

    See also:
      scores.CDF, scores.Latent, models.CouplingFlow, volume

    Example:
      >>> normal = Density(lambda pred, y: -0.5 * jnp.sum((y - pred) ** 2))
      >>> normal(jnp.zeros(2), jnp.array([1.0, 1.0])).item()
      1.0
    """

    log_prob: Callable[[PyTree, Array], Array]
    sample: Callable[[Array, PyTree, int], Array] | None = None

    def __post_init__(self):
        keep_functions(self, "log_prob", "sample")

    @classmethod
    def of(cls, model: Any, params: PyTree) -> Density:
        """Returns the score of a model with `log_prob(params, x, y)`; `pred` is x."""
        sample = getattr(model, "sample", None)
        return cls(_at(params, model.log_prob), _at(params, sample))

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns -log f(y), shape (); +inf where the density is 0 or NaN."""
        log_prob = self.log_prob(pred, y)
        _checks.check_shape("log_prob(pred, y)", (), jnp.shape(log_prob))
        unknown = jnp.isnan(log_prob)
        return jnp.where(unknown, jnp.inf, -jnp.where(unknown, 0, log_prob))

    def invert(self, pred: PyTree, q: Array) -> LevelSet:
        """Returns {y : log f(y) >= -q}."""
        return LevelSet(self, pred, q)

    def estimate_log_size(
        self, key: Array, pred: PyTree, q: Array, num_samples: int, *, sobol: bool
    ) -> tuple[Array, Array]:
        """Returns the log volume of the set at q and its error, from draws."""
        _checks.check_given(sample=self.sample)
        if sobol:
            raise ValueError("expected sobol=False for draws of a model, got True")
        return log_volume_by_density(key, self, pred, q, num_samples)


@pytree
class Latent:
    """The norm of the target's latent code: L-CP. Sets are images of a latent ball.

    norm(inverse(pred, y)), of any model that maps a standard normal z to y and back: a
    normalizing flow, or flow matching by its differential equation; no density is
    needed. `pred` and parameters are as for `Density`.

    Args:
      inverse: `(pred, y) -> (d,)`, the latent code of `y`.
      forward: `(pred, z) -> (d,)`, its inverse, or None. The volume of a set is
        estimated with its Jacobian.
      dim: Number of outputs d, or None; volumes need it.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      One call of `inverse` for a score and for each candidate target of a set.

    References:
      Feldman, Bates, Romano, Calibrated Multiple-Output Quantile Regression with
      Representation Learning, JMLR, 2023.
      Dheur, Fontana, Estievenart, Desobry, Ben Taieb, A Unified Comparative Study with
      Generalized Conformity Scores for Multi-Output Conformal Regression, ICML, 2025.

    See also:
      scores.Density, models.CouplingFlow, models.FlowMatching, volume

    Example:
      >>> shifted = Latent(lambda pred, y: y - pred)
      >>> shifted(jnp.ones(2), jnp.array([4.0, 5.0])).item()
      5.0
    """

    inverse: Callable[[PyTree, Array], Array]
    forward: Callable[[PyTree, Array], Array] | None = None
    dim: int | None = static(default=None)

    def __post_init__(self):
        keep_functions(self, "inverse", "forward")

    @classmethod
    def of(cls, model: Any, params: PyTree, *, dim: int | None = None) -> Latent:
        """Returns the score of a model with `to_latent(params, x, y)`; `pred` is x.

        For volumes, `dim` is the number of outputs d, by default `num_targets` of the
        parameters or the model, and the model needs `from_latent(params, x, z)`.
        """
        if dim is None:
            dim = getattr(params, "num_targets", getattr(model, "num_targets", None))
        forward = getattr(model, "from_latent", None)
        return cls(_at(params, model.to_latent), _at(params, forward), dim)

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns norm(inverse(pred, y)), shape (); +inf where the code is NaN."""
        z = jnp.atleast_1d(self.inverse(pred, y))
        unknown = jnp.any(jnp.isnan(z))
        return jnp.where(unknown, jnp.inf, _geometry.norm(jnp.where(unknown, 0, z)))

    def invert(self, pred: PyTree, q: Array) -> LevelSet:
        """Returns {y : norm(inverse(pred, y)) <= q}."""
        return LevelSet(self, pred, q)

    def estimate_log_size(
        self, key: Array, pred: PyTree, q: Array, num_samples: int, *, sobol: bool
    ) -> tuple[Array, Array]:
        """Returns the log volume of the set at q and its error, from latent points."""
        forward: Any = self.forward
        dim: Any = self.dim
        _checks.check_given(forward=forward, dim=dim)
        maps = partial(self.inverse, pred), partial(forward, pred)
        return log_volume_of_image(key, maps, dim, q, num_samples, sobol)


def _at(params, function):
    """Returns a function of a model at its parameters, or None if there is none."""
    return None if function is None else Partial(function, params)
