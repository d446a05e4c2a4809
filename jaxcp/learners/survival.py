"""Survival functions of censored times."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _arrays, _checks
from jaxcp._numbers import as_float, at_least_single
from jaxcp._tree import jit, pytree, static
from jaxcp.typing import ArrayLike, PyTree


@pytree
class KaplanMeier:
    """The survival function of a censored time, or of the time of censoring.

    P(T > t) is the product, over times u <= t with d_u events among the n_u rows at
    risk, of 1 - d_u / n_u. Events precede censorings at the same time, so that the
    function of C, with `reverse`, has the factors 1 - c_u / (n_u - d_u). Beyond the
    last row it stays where it is.

    `KaplanMeier(reverse=True).fit(time, event)` is a law of C for `survival`: called
    with rows x, which it does not read, and times c it returns P(C >= c), the limit
    from the left.

    Args:
      reverse: Whether it is of the time of censoring C, and not of the event T.
      fitted: Times in order and P(T > time) there; `fit` sets it.

    Raises:
      ValueError: when it is called before `fit`.

    Guarantee:
      None of its own; the true function as rows become many.

    Assumption:
      T and C are independent: one law of C for all x, for weights of
      `survival.calibrate_lower`. Where it differs between groups, fit one for each.

    Cost:
      One sort of the rows; a binary search for each time that is asked for.

    References:
      Kaplan, Meier, Nonparametric Estimation from Incomplete Observations, Journal of
      the American Statistical Association, 1958.

    See also:
      survival.calibrate_lower, survival.impute_censoring

    Example:
      >>> time, event = jnp.array([1.0, 2.0, 2.0, 3.0]), jnp.array([1, 1, 0, 0])
      >>> model = KaplanMeier(reverse=True).fit(time, event)
      >>> model(None, jnp.array([2.0, 3.0])), model.survival(2.0)
      (Array([1. , 0.5], dtype=float32), Array(0.5, dtype=float32))
    """

    reverse: bool = static(default=False)
    fitted: Any = None

    @_checks.by_labels
    def fit(self, time: ArrayLike, event: ArrayLike) -> KaplanMeier:
        """Returns the function fitted to rows that do not calibrate.

        Args:
          time: Observed times min(T, C), shape (n,).
          event: True where T was observed, T <= C, shape (n,).

        Returns:
          A `KaplanMeier` that is called with (x, c).

        Raises:
          ValueError: if lengths differ, a time is NaN, or a flag neither 0 nor 1.
        """
        flags = _checks.mask(event)._replace(required=True)
        time, event = _checks.rows(time=_checks.scores(time), event=flags)
        found = _survival(as_float(time), event, reverse=self.reverse)
        return dataclasses.replace(self, fitted=found)

    def __call__(self, x: PyTree, c: ArrayLike) -> Array:
        """Returns P(T >= c), of C with `reverse`, one a row of x; of c if x is None."""
        found = self._at(c, side="left")
        return found if x is None else jnp.broadcast_to(found, _checks.num_rows(x=x))

    def survival(self, c: ArrayLike) -> Array:
        """Returns P(T > c), of C with `reverse`, shaped like c."""
        return self._at(c, side="right")

    def _at(self, c, side):
        _checks.check_given(**{"what fit(time, event) returns": self.fitted})
        _checks.check_not_nan("c", c := _arrays.as_array("c", c))
        return _looked_up(*self.fitted, c, side=side)


@partial(jit, static_argnames="reverse")
def _survival(time, event, reverse):
    """Returns times in order, and what is left before all and after each."""
    # Rows one by one, events first: (n - 1)/n (n - 2)/(n - 1) ... = 1 - d/n. As a sum
    # of logarithms, of which a small one is not rounded to a step of floats near 1.
    time, last = lax.sort((time, ~event), num_keys=2)
    at_risk = jnp.arange(len(time), 0, -1, dtype=at_least_single(time).dtype)
    log_left = jnp.where(last if reverse else ~last, jnp.log1p(-1 / at_risk), 0)
    return time, jnp.exp(jnp.cumsum(jnp.pad(log_left, (1, 0))))


@partial(jit, static_argnames="side")
def _looked_up(times, left, c, side):
    return left[jnp.searchsorted(times, c, side=side)]
