"""Censoring times of rows with an event, which nobody has seen: drawn."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import Partial, all_leaves

from jaxcp import _checks
from jaxcp._numbers import as_float
from jaxcp._tree import jit
from jaxcp.quantiles._keys import bisect_floats
from jaxcp.typing import ArrayLike, PyTree


def impute_censoring(
    key: Array,
    model: Callable[[PyTree, Array], Array],
    x: PyTree,
    time: ArrayLike,
    event: ArrayLike,
) -> Array:
    """Returns censoring times of all rows, those of rows with an event drawn.

    A row without an event was censored at its time. Of one with an event at T, only C
    >= T is known: C is drawn from the model's law given x and C >= T, as the largest c
    with P(C >= c | x) >= u P(C >= T | x), u uniform. It is at least a cutoff c > T with
    probability P(C >= c | x) / P(C >= T | x): G(c-) / G(T-) of a survival function G.

    Args:
      key: Random key.
      model: Function (x, c) of P(C >= c | x), shape (n,), of all rows x and one time
        for each, c (n,), in jax. `learners.KaplanMeier(reverse=True).fit(time, event)`
        is one that reads no x. A model on the host needs no draw: `calibrate_lower`
        takes its probabilities with `event`.
      x: Inputs as the model takes them, leading axis n, or None.
      time: Observed times min(T, C), shape (n,).
      event: True where T was observed, T <= C, shape (n,).

    Returns:
      Censoring times for `calibrate_lower`, shape (n,), of any cutoffs; +inf where the
      model lets C be larger than all times. A row with P(C >= T | x) = 0 keeps T.

    Raises:
      ValueError: if lengths differ, a time is NaN, a flag neither 0 nor 1, or the model
        is no function, cannot be traced or returns another shape.

    Guarantee:
      That of `calibrate_lower`, at least 1 - alpha, where the model is the true law of
      C given x. With a fitted one asymptotic: as the fit comes close to the law.

    Assumption:
      T and C independent given x, and a model from other rows.

    Cost:
      One call of the model for each bit of a float.

    References:
      Sesia, Svetnik, Doubly Robust Conformalized Survival Analysis with Right-Censored
      Data, arXiv, 2024.

    See also:
      survival.calibrate_lower, learners.KaplanMeier

    Example:
      >>> law = lambda x, c: jnp.exp(-c / x)  # exponential, of mean x
      >>> time, event = jnp.array([1.0, 2.0, 3.0]), jnp.array([1, 0, 1])
      >>> key, x = jax.random.key(0), jnp.full(3, 10.0)
      >>> drawn = impute_censoring(key, law, x, time, event)
      >>> (drawn >= time).all().item(), drawn[1].item()
      (True, 2.0)
    """
    _checks.check_key(key)
    if not callable(model):
        raise ValueError(
            "expected model as a function (x, c) of P(C >= c given x), such as "
            "learners.KaplanMeier(reverse=True).fit(time, event), got "
            f"{type(model).__name__}"
        )
    flags = _checks.mask(event)._replace(required=True)
    columns = {"time": _checks.scores(time), "event": flags}
    x, times, event = _checks.rows(x=_checks.optional(x), **columns)
    model = Partial(model) if all_leaves([model]) else model
    return _imputed(key, model, x, as_float(times), event)


@jit
def _imputed(key, model, x, time, event):
    """Returns the largest c with P(C >= c) >= u P(C >= T) of rows with an event."""
    at_least = model(x, time)
    _checks.check_shape("model(x, c)", time.shape, jnp.shape(at_least))
    u = 1 - jax.random.uniform(key, time.shape, time.dtype)  # above 0
    level = u * at_least
    holds = lambda c: (model(x, c) >= level) & (level > 0)  # noqa: E731
    drawn = bisect_floats(holds, time.dtype, time.shape)
    return jnp.where(event, jnp.maximum(drawn, time), time)
