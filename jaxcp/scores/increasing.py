"""Scores that rise with the target: bounds on one side, both sides, distributions."""

from __future__ import annotations

import dataclasses
from typing import Self

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float
from jaxcp._tree import pytree, static
from jaxcp.scores import inputs, regression
from jaxcp.scores.regression import alike, between, known_units
from jaxcp.sets import Box, Interval
from jaxcp.typing import HasEnds, Increasing, PyTree

_OUT = {"upper": 1, "lower": -1}  # the way out of a set that is bounded there


class _OneSided:
    """What scores that are bounded on one side have in common."""

    side: str

    def __post_init__(self) -> None:
        _checks.check_one_of("side", self.side, _OUT)

    def negated(self) -> Self:
        """Returns minus this score, whose sets are bounded on the other side."""
        other = "lower" if self.side == "upper" else "upper"
        return dataclasses.replace(self, side=other)  # type: ignore[type-var]

    def _error(self, y, mu):
        return y - mu if self.side == "upper" else mu - y

    def _up_to(self, end):
        """Returns all targets up to an end, or from it on."""
        out = _OUT[self.side]
        return between(*(jnp.full_like(end, -out * jnp.inf), end)[::out])


@pytree
class Residual(_OneSided):
    """The error with its sign, y - mu: sets (-inf, mu + q], a bound from above.

    All of alpha goes to one side. `pred` is mu, shape () or (d,); with d outputs there
    are d components, each with a bound at alpha / d.

    Args:
      side: "upper", or "lower" for mu - y and sets [mu - q, inf).

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      O(d) time for a score and for a set.

    References:
      Vovk, Shen, Manokhin, Xie, Nonparametric Predictive Distributions Based on
      Conformal Prediction, Machine Learning, 2019.

    See also:
      scores.ScaledResidual, scores.TwoSided, predictive.calibrate_predictive

    Example:
      >>> Residual().invert(jnp.asarray(1.0), 2.0).upper.item()
      3.0
      >>> round(Residual("lower").invert(jnp.asarray(1.0), 2.0).lower.item(), 3)
      -1.0
    """

    side: str = static(default="upper")
    takes = inputs.numbers()

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns y - mu, or mu - y for the lower side, shape () or (d,)."""
        return self._error(*alike(y, pred))

    def invert(self, pred: Array, q: Array) -> Interval | Box:
        """Returns (-inf, mu + q], or [mu - q, inf) for the lower side."""
        mu, inside = as_float(pred), lambda y: self(pred, y) <= q
        return self._up_to(regression.moved_out(mu, _OUT[self.side], q, inside))

    def units(self, pred: Array) -> Array:
        """Returns 1, the units of the target in one of the score, shape () or (d,)."""
        return jnp.ones_like(as_float(pred))


@pytree
class ScaledResidual(_OneSided):
    """The error with its sign in units of the scale: sets (-inf, mu + q sigma].

    (y - mu) / sigma. `pred` is (mu, sigma), each of shape () or (d,). Where sigma is
    not positive and finite, nothing is known about the scale: the score is -inf and the
    set the whole line.

    Args:
      side: "upper", or "lower" for (mu - y) / sigma and sets [mu - q sigma, inf).

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples; mu and sigma were fitted on other data.

    Cost:
      O(d) time for a score and for a set.

    References:
      Vovk, Petej, Nouretdinov, Manokhin, Gammerman, Computationally Efficient Versions
      of Conformal Predictive Distributions, Neurocomputing, 2020.

    See also:
      scores.Residual, scores.Normalized, learners.MeanScale,
      predictive.calibrate_predictive

    Example:
      >>> pred = jnp.asarray(1.0), jnp.asarray(4.0)
      >>> ScaledResidual()(pred, jnp.asarray(3.0)).item()
      0.5
      >>> ScaledResidual().invert(pred, 0.5).upper.item()
      3.0
    """

    side: str = static(default="upper")
    takes = inputs.pair("mu", "sigma", positive="sigma")

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns (y - mu) / sigma, or minus that for the lower side."""
        y, mu, sigma = alike(y, *pred)
        known, sigma = known_units(sigma)
        return jnp.where(known, self._error(y, mu) / sigma, -jnp.inf)

    def invert(self, pred: tuple[Array, Array], q: Array) -> Interval | Box:
        """Returns (-inf, mu + q sigma], or [mu - q sigma, inf) for the lower side."""
        mu, sigma = map(as_float, pred)
        known, sigma = known_units(sigma)
        step = regression.in_targets(q, known, sigma)
        own = _OUT[self.side], step, lambda y: self(pred, y) <= q, sigma
        return self._up_to(regression.moved_out(mu, *own))

    def units(self, pred: tuple[Array, Array]) -> Array:
        """Returns sigma, NaN where it is not positive and finite, shape () or (d,)."""
        sigma = as_float(pred[1])
        return jnp.where(known_units(sigma)[0], sigma, jnp.nan)


def _are_levels(v):
    return v.ndim == 1 and v.size > 1 and np.all(np.diff(v, prepend=0, append=1) > 0)


class _OfQuantiles:
    """What scores by a distribution function through predicted quantiles share."""

    levels: Array

    def __post_init__(self) -> None:
        levels = as_float(as_array("levels", self.levels))
        expected = "rising levels of quantiles in (0, 1), shape (k,), k >= 2"
        _checks.check_values(_are_levels, expected, levels)
        object.__setattr__(self, "levels", levels)

    @property
    def takes(self) -> inputs.Input:
        """A quantile for each level."""
        return inputs.quantiles(len(self.levels))

    def _law(self, pred):
        """Returns quantiles in order, their levels, and whether they are finite."""
        # Sorted quantiles are nowhere further from the true ones: Chernozhukov et al.
        # 2010, proposition 4.
        x = jnp.sort(as_float(pred))
        return x, self.levels.astype(x.dtype), jnp.isfinite(x[-1] - x[0])

    def _cdf(self, pred, y, below=False):
        """Returns F(y), or F of all targets below y; whether it is known."""
        x, levels, known = self._law(pred)
        return _through(jnp.reshape(as_float(y), ()), x, levels, below)[0], known

    def _end(self, pred, level, out, inside):
        """Returns the last target with a level of at most this, or the first."""
        x, levels, known = self._law(pred)
        end, slope = _through(level, levels, x)
        slope = jnp.maximum(slope, _through(level, levels, x, below=True)[1])
        jumps = (x[-1] <= x[0]) & (level != out * jnp.inf)  # from -inf to inf at x
        end = jnp.where(jumps, x[0], end)
        far = jnp.where(jnp.isfinite(level), jnp.abs(level), 0)
        size = jnp.abs(end) + slope * (0.5 + far)  # as levels are rounded
        moved = regression.end_moved_out(end, out, size, inside)
        at = lax.stop_gradient(end)  # a jump, or rounded to beyond
        back = end + jnp.where(inside(at), 0, regression.next_number(at, -out) - at)
        return jnp.where(known, jnp.where(inside(at), moved, back), out * jnp.inf)


def _through(at, x, y, below=False):
    """Returns the height and slope at a place of the line through points, x rising.

    Beyond the points it goes on at their mean slope. Where several have one x it is
    the height of the last of them, or of the first for what lies `below`.
    """
    i, last = jnp.sum(x < at if below else x <= at), len(x) - 1
    inside, j = (i > 0) & (i <= last), jnp.maximum(i - 1, 0)
    following = jnp.minimum(i, last)
    run = jnp.where(inside, x[following] - x[j], x[-1] - x[0])
    rise = jnp.where(inside, y[following] - y[j], y[-1] - y[0])
    finite, steep = jnp.isfinite(at), run <= 0
    gone = jnp.where(finite, at, 0) - x[j]
    run = jnp.where(steep, 1, run)
    height = y[j] + gone / run * rise
    jump = jnp.where(gone == 0, y[j], jnp.sign(gone) * jnp.inf)
    height = jnp.where(steep, jump, height)
    height = jnp.where(inside, jnp.minimum(height, y[following]), height)
    return jnp.where(finite, height, at), rise / run


@pytree
class PredictedQuantiles(_OfQuantiles, _OneSided):
    """The level of the target among predicted quantiles: sets (-inf, F^-1(q)].

    F(y), linear between the quantiles and beyond them at their mean slope (l_k - l_1) /
    (x_k - x_1): below 0 and above 1 far out, so that sets have finite ends. Quantiles
    that cross are sorted; where some are equal, F jumps. `pred` are the quantiles,
    shape (k,), for each of the levels. Where they are not finite the score is -inf and
    the set the whole line.

    Args:
      levels: Levels of the quantiles in (0, 1), rising, shape (k,), k >= 2.
      side: "upper", or "lower" for -F(y) and sets [F^-1(-q), inf).

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`, whatever the quantiles.

    Assumption:
      Exchangeable examples, and quantiles fitted on other data.

    Cost:
      One sort of the k quantiles for a score and for a set.

    References:
      Chernozhukov, Fernandez-Val, Galichon, Quantile and Probability Curves Without
      Crossing, Econometrica, 2010.
      Vovk, Petej, Nouretdinov, Manokhin, Gammerman, Computationally Efficient Versions
      of Conformal Predictive Distributions, Neurocomputing, 2020.

    See also:
      scores.DCP, scores.CQR, learners.QuantileRidge, predictive.calibrate_predictive

    Example:
      >>> score = PredictedQuantiles(jnp.array([0.25, 0.5, 0.75]))
      >>> x = jnp.array([1.0, 2.0, 4.0])
      >>> score(x, 3.0).item(), round(score.invert(x, 0.625).upper.item(), 3)
      (0.625, 3.0)
    """

    levels: Array
    side: str = static(default="upper")

    def __post_init__(self) -> None:
        _OneSided.__post_init__(self)
        _OfQuantiles.__post_init__(self)

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns F(y), or -F(y) for the lower side, shape ()."""
        level, known = self._cdf(pred, y)
        return jnp.where(known, _OUT[self.side] * level, -jnp.inf)

    def invert(self, pred: Array, q: Array) -> Interval:
        """Returns (-inf, F^-1(q)], or [F^-1(-q), inf) for the lower side."""
        out, inside = _OUT[self.side], lambda y: self(pred, y) <= q
        return self._up_to(self._end(pred, out * jnp.asarray(q), out, inside))

    def units(self, pred: Array) -> None:
        """Returns None: they differ along the line."""


@pytree
class DCP(_OfQuantiles):
    """How far the target is from the predicted median, by level: distributional.

    The distance of F(y) from 1/2; 0 where F jumps across it. F goes through predicted
    quantiles, as for `PredictedQuantiles`: sets are [F^-1(1/2 - q), F^-1(1/2 + q)], and
    all of alpha is shared out over both sides as the law of the target is. `pred` are
    the quantiles, shape (k,); where they are not finite the set is the whole line.

    Args:
      levels: Levels of the quantiles in (0, 1), rising, shape (k,), k >= 2.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`, whatever the quantiles.

    Assumption:
      Exchangeable examples, and quantiles fitted on other data.

    Cost:
      One sort of the k quantiles for a score and for a set.

    References:
      Chernozhukov, Wuthrich, Zhu, Distributional Conformal Prediction, Proceedings of
      the National Academy of Sciences, 2021.

    See also:
      scores.PredictedQuantiles, scores.CQR, scores.CDF

    Example:
      >>> score = DCP(jnp.array([0.25, 0.5, 0.75]))
      >>> x = jnp.array([1.0, 2.0, 4.0])
      >>> score(x, 3.0).item(), score.invert(x, 0.125).to_numpy().round(3).tolist()
      (0.125, [1.5, 3.0])
    """

    levels: Array

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns the distance of [F(y-), F(y)] from 1/2, shape ()."""
        above = jnp.maximum(self._over(1, pred, y), self._over(-1, pred, y))
        return jnp.maximum(above, jnp.where(above == -jnp.inf, -jnp.inf, 0))

    def invert(self, pred: Array, q: Array) -> Interval:
        """Returns [F^-1(1/2 - q), F^-1(1/2 + q)], crossed for q < 0."""
        q = jnp.asarray(q)

        def end(out):
            inside = lambda y: self._over(out, pred, y) <= q  # noqa: E731
            found = self._end(pred, 0.5 + out * q, out, inside)
            empty = (q < 0) & jnp.isfinite(found)
            return jnp.where(empty, -out * jnp.inf, found)

        return Interval(end(-1), end(1))

    def _over(self, out, pred, y):
        """Returns F(y-) - 1/2, or 1/2 - F(y); -inf where F is not known."""
        level, known = self._cdf(pred, y, below=out > 0)
        return jnp.where(known, out * (level - 0.5), -jnp.inf)


@pytree
class TwoSided:
    """An increasing score and minus that, (-A, A), calibrated apart at alpha / 2 each.

    Sets are the intervals [A^-1(-q_0), A^-1(q_1)]. `TwoSided(ScaledResidual())` is an
    interval in units of a scale that is not symmetric. `pred` is that of the base.

    Args:
      base: An increasing score with side "upper", one of these or of your own
        (`typing.Increasing`).

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`; (n + 1 - 2 floor(alpha (n + 1)
      / 2)) / (n + 1) where scores do not tie.

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      Twice that of the base.

    References:
      Linusson, Johansson, Lofstrom, Signed-Error Conformal Regression, Pacific-Asia
      Conference on Knowledge Discovery and Data Mining, 2014.

    See also:
      scores.Signed, scores.AsymmetricCQR, predictive.calibrate_predictive

    Example:
      >>> score, pred = TwoSided(ScaledResidual()), (jnp.asarray(1.0), jnp.asarray(4.0))
      >>> score(pred, jnp.asarray(3.0)).tolist()
      [-0.5, 0.5]
      >>> ends = score.invert(pred, jnp.array([0.5, 0.75])).ends()
      >>> [round(end.item(), 3) for end in ends]
      [-1.0, 4.0]
    """

    base: Increasing

    def __post_init__(self) -> None:
        cure = "; scores.Residual(), scores.ScaledResidual() are such"
        _checks.check_kind("an increasing score", self.base, Increasing, cure)
        if isinstance(self.base, _OneSided):
            _checks.check_one_of("side of base", self.base.side, ["upper"])

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns (-A, A), shape (2,), or (2 d,) of a base with d components."""
        return jnp.append(self.base.negated()(pred, y), self.base(pred, y))

    def invert(self, pred: PyTree, q: Array) -> HasEnds:
        """Returns [A^-1(-q_0), A^-1(q_1)]."""
        q = jnp.asarray(q)
        q = jnp.split(q, 2) if q.size > 2 else jnp.broadcast_to(q, (2,))
        above: HasEnds = self.base.invert(pred, q[1])  # type: ignore[assignment]
        below: HasEnds = self.base.negated().invert(pred, q[0])  # type: ignore[assignment]
        return above.with_ends(below.ends()[0], above.ends()[1])

    @property
    def takes(self) -> inputs.Input:
        """What the base takes."""
        return inputs.of(self.base)

    @property
    def exact(self) -> bool:
        """Whether sets are those of the score and no larger, as the base's are."""
        return inputs.is_exact(self.base)


_ERRORS = TwoSided(Residual())


@pytree
class Signed:
    """The two signed errors (mu - y, y - mu), calibrated apart at alpha / 2 each.

    `pred` is mu, shape () or (d,), with 2 or 2 d components. For skewed errors the
    interval [mu - q_0, mu + q_1] is not symmetric. It is `TwoSided(Residual())`.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate` (union bound over the sides).

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      O(d) time for a score and for a set.

    References:
      Linusson, Johansson, Lofstrom, Signed-Error Conformal Regression, Pacific-Asia
      Conference on Knowledge Discovery and Data Mining, 2014.

    See also:
      scores.TwoSided, scores.Residual, scores.AsymmetricCQR

    Example:
      >>> Signed()(jnp.asarray(1.0), jnp.asarray(3.0)).tolist()
      [-2.0, 2.0]
    """

    takes = inputs.numbers()

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns (mu - y, y - mu), shape (2,) or (2 d,)."""
        return _ERRORS(pred, y)

    def invert(self, pred: Array, q: Array) -> HasEnds:
        """Returns [mu - q_0, mu + q_1]."""
        return _ERRORS.invert(pred, q)
