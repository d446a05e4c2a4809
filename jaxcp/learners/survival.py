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

    def fit(
        self, time: ArrayLike, event: ArrayLike, *, weights: ArrayLike | None = None
    ) -> KaplanMeier:
        """Returns the function fitted to rows that do not calibrate.

        Args:
          time: Observed times min(T, C), shape (n,).
          event: True where T was observed, T <= C, shape (n,).
          weights: How much each row counts, >= 0, shape (n,). Defaults to 1.

        Returns:
          A `KaplanMeier` that is called with (x, c).

        Raises:
          ValueError: if lengths differ, a time is NaN, a flag neither 0 nor 1, or a
            weight negative or infinite.
        """
        flags = _checks.mask(event)._replace(required=True)
        columns = {"event": flags, "weights": _checks.weights(weights)}
        time, event, weights = _checks.rows(time=_checks.scores(time), **columns)
        time = as_float(time)
        weights = jnp.ones_like(time) if weights is None else as_float(weights)
        found = _survival(time, event, weights, reverse=self.reverse)
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
        c = _arrays.as_array("c", c)
        _checks.check_not_nan("c", c)
        return _looked_up(*self.fitted, c, side=side)


@partial(jit, static_argnames="reverse")
def _survival(time, event, weights, reverse):
    """Returns times in order, and what is left after each row."""
    # Rows one by one, events first: (n - 1)/n (n - 2)/(n - 1) ... = 1 - d/n.
    time, last, weights = lax.sort((time, ~event, at_least_single(weights)), num_keys=2)
    at_risk = jnp.cumsum(weights[::-1])[::-1]
    gone = weights / jnp.where(at_risk > 0, at_risk, 1)
    return time, jnp.cumprod(1 - jnp.where(last if reverse else ~last, gone, 0))


@partial(jit, static_argnames="side")
def _looked_up(times, left, c, side):
    """Returns what is left after all times below c, or up to c."""
    place = jnp.searchsorted(times, c, side=side)
    return jnp.append(jnp.ones(1, left.dtype), left)[place]
