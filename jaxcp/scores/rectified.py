"""Any score, corrected by its own predicted quantile: sets that adapt to the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._numbers import as_float, at_least_single, quotient
from jaxcp._tree import pytree, static
from jaxcp.quantiles.selection import last_score
from jaxcp.scores import inputs
from jaxcp.scores.regression import known_units
from jaxcp.typing import AnySet, PyTree, Score


def _difference(s, tau):
    return jnp.where(jnp.isfinite(tau), s - tau, -jnp.inf)


def _ratio(s, tau):
    known, unit = known_units(tau)
    return jnp.where(known, quotient(s, unit), -jnp.inf)


def ratio_of_distances(s: Array, tau: Array) -> Array:
    """Returns s / tau of distances: 0 / 0 = 0, and +inf of all others."""
    ratio = s / jnp.where(tau > 0, tau, 1)
    return jnp.where(tau > 0, ratio, jnp.where(s > 0, jnp.inf, 0))


# What rounds alike in all programs, by what stands for it.
_FORMS: dict[Any, Any] = {"difference": _difference, "ratio": _ratio}
_FORMS |= {ratio_of_distances: ratio_of_distances}


@pytree
class Rectified:
    """Any score less its predicted quantile tau, or divided by it.

    f(base(y); tau), with f(s; tau) = s - tau or s / tau, or any f that increases in s.
    `pred` is (base prediction, tau): tau is what the 1 - alpha quantile of the base
    score is predicted to be at the input, shape () or, of a base with c components,
    (c,); from rows that do not calibrate (`fit_quantile`). Where a difference has a tau
    that is not finite, or a ratio one that is not finite and positive, nothing is known
    about the base score: the score is -inf and the set is that of the base at +inf.

    The sets are those of the base at a threshold of each input's own. `Normalized` is
    the ratio of `Absolute`, CQR-r that of `CQR` with tau = upper - lower, and `CP2PCP`
    that of `PCP`.

    Args:
      base: The base score.
      form: "difference", "ratio", or a function f(s, tau) of the score and of an array
        tau, applied to each component, nowhere falling in s, such as a distribution
        function of the score given the input. It may come as a pair with its inverse,
        which is not called: thresholds are found by f alone, so that no rounding of an
        inverse loses a target. Sets have room for the rounding of a function, smoothed
        ones too, which then hold more where scores tie.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`, whatever tau is. Where a
      difference or a ratio has the true 1 - alpha quantile, of scores without ties,
      coverage given the input tends to 1 - alpha with the number of rows.

    Assumption:
      Exchangeable examples; the model and tau were fitted on other data.

    Cost:
      One base score for a score; one base set, and one call of f for each bit of a
      float, for a set.

    References:
      Plassier, Fishkov, Dheur, Guizani, Ben Taieb, Panov, Moulines, Rectifying
      Conformity Scores for Better Conditional Coverage, ICML, 2025.
      Sesia, Candes, A Comparison of Some Conformal Quantile Regression Methods, Stat,
      2020 (CQR-r).

    See also:
      fit_quantile, scores.Normalized, scores.CDF, scores.CP2PCP

    Example:
      >>> from jaxcp.scores import Absolute
      >>> pred = jnp.array(1.0), jnp.array(4.0)
      >>> Rectified(Absolute(), "ratio")(pred, jnp.array(3.0)).item()
      0.5
      >>> Rectified(Absolute()).invert(pred, -1.0).upper.item()
      4.0
    """

    base: Score
    form: Any = static(default="difference")

    def __post_init__(self) -> None:
        _checks.check_given(base=self.base)
        if isinstance(self.form, tuple) and len(self.form) == 2:
            object.__setattr__(self, "form", self.form[0])
        if not callable(self.form):
            _checks.check_one_of("form", self.form, ["difference", "ratio"])

    def __call__(self, pred: tuple[PyTree, Array], y: Array) -> Array:
        """Returns f(base(y); tau), shaped like a base score."""
        return self._rectified(self.base(pred[0], y), pred[1])

    def invert(self, pred: tuple[PyTree, Array], q: Array) -> AnySet:
        """Returns the set of the base score at the threshold of this input."""
        return self.base.invert(pred[0], self.threshold(pred, q))

    def threshold(self, pred: tuple[PyTree, Array], q: Array) -> Array:
        """Returns the base score's threshold: the largest t with f(t; tau) <= q.

        +inf where q is, -inf where there is none; shaped like q, or like tau.
        """
        f, tau, q = _FORMS.get(self.form, self.form), pred[1], jnp.asarray(q)
        like, own = f(q, tau), self.form not in _FORMS
        if own:  # whose values may be integers, or of another type than base scores
            kinds = at_least_single(as_float(like)), as_float(tau)
            like = like.astype(jnp.result_type(*kinds))
        return last_score(f, tau, q, like, rounds=own)

    @property
    def labels(self) -> Callable[[tuple[PyTree, Array]], Array]:
        """The scores of all labels, (k,), of a prediction, if the base has labels."""
        of_base = self.base.labels  # type: ignore[attr-defined]  # or AttributeError
        return lambda pred: self._rectified(of_base(pred[0]), pred[1])

    @property
    def takes(self) -> inputs.Input:
        """A prediction for the base, and tau."""
        tau = inputs.quantile(positive=self.form == "ratio")
        return inputs.parts(base_prediction=inputs.of(self.base), tau=tau)

    @property
    def exact(self) -> bool:
        """Whether sets are those of the score and no larger, as the base's are."""
        return inputs.is_exact(self.base)

    @property
    def inclusive(self) -> bool:
        """Whether sets add the label that crosses the threshold, as the base's do."""
        return inputs.is_inclusive(self.base)

    @property
    def rounds_up(self) -> bool:
        """Whether thresholds have room for rounding."""
        return self.form not in _FORMS or inputs.rounds_up(self.base)

    def _rectified(self, s, tau):
        if self.form in _FORMS and jnp.ndim(tau):
            _checks.check_shape("tau", jnp.shape(s), jnp.shape(tau))
        found = _FORMS.get(self.form, self.form)(s, tau)
        _checks.check_shape("form(s, tau)", jnp.shape(s), jnp.shape(found))
        return found
