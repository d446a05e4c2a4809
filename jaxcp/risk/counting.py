"""Losses of a grid of settings, counted where they are errors, and their p-values."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import as_float, at_least_single
from jaxcp.quantiles._binomial import binomial_tails
from jaxcp.quantiles.levels import as_alpha
from jaxcp.risk import bounds
from jaxcp.risk._inputs import losses_and_rows, one_each
from jaxcp.risk._tails import binomial_tail
from jaxcp.typing import ArrayLike


class Counts(NamedTuple):
    """Errors among the rows that count, at each setting of a grid.

    `errors`, integers of shape (g,), among as many `trials`, integers of shape (g,).

    Guarantee:
      none: they are data.

    Assumption:
      Rows that are i.i.d., so that errors are binomial given the trials.

    Cost:
      Two integers for each setting.

    See also:
      risk.learn_then_test, risk.pareto_test

    Example:
      >>> Counts(jnp.array([2, 0]), jnp.array([100, 0])).trials.shape
      (2,)
    """

    errors: ArrayLike
    trials: ArrayLike


def as_risks(name: str, losses: Any) -> tuple[tuple[Array | Counts, ...], int]:
    """Returns losses (n, g) or counts (g,) of each risk, and the number of settings."""
    several = isinstance(losses, tuple) and not isinstance(losses, Counts)
    risks = tuple(_as_risk(name, v) for v in (losses if several else (losses,)))
    if not risks:
        raise ValueError(f"expected {name} of at least one risk, got ()")
    g = _settings(risks[0])
    for other in risks:
        if _settings(other) != g:
            raise ValueError(
                f"expected {name} with {g} settings for each risk, got "
                f"{_settings(other)}"
            )
    check_settings(g)
    return risks, g


def risk_p_values(
    risks: tuple[Array | Counts, ...],
    alpha: Any,
    delta: Any,
    p_value: bounds.Method | None,
    where: Any,
    bound: Any,
    tests: int | None,
) -> Array:
    """Returns the largest p-value of each setting, (g,): its claim is a union."""
    r = len(risks)
    each = zip(
        risks,
        one_each("alpha", alpha, r),
        one_each("where", where, r),
        one_each("bound", bound, r),
        strict=True,
    )
    level = delta / (tests or 1)
    p = [_p_values(*risk, p_value, level) for risk in each]
    if r == 1:
        return p[0]
    dtype = jnp.result_type(*p)
    return jnp.max(jnp.stack([v.astype(dtype) for v in p]), axis=0)


def _as_risk(name, value):
    if isinstance(value, Counts):
        return Counts(*_check_counts(value))
    value = as_array(name, value)
    if value.ndim != 2:
        raise ValueError(f"expected {name} of shape (n, g), got {value.shape}")
    return value


def _check_counts(counts):
    """Returns errors and trials as integers of shape (g,)."""
    errors, trials = (as_array(k, v) for k, v in counts._asdict().items())
    _checks.check_vectors(errors=errors, trials=trials)
    _checks.check_shape("trials", errors.shape, trials.shape)
    for name, value in (("errors", errors), ("trials", trials)):
        if value.size and not jnp.issubdtype(value.dtype, jnp.integer):
            raise ValueError(f"expected {name} as integers, got {value.dtype}")
        _checks.check_values(lambda v: v >= 0, f"{name} >= 0", value)
    if is_concrete(errors, trials):
        within = lambda v: v <= np.asarray(trials)  # noqa: E731
        _checks.check_values(within, "errors of at most the trials", errors)
    return errors.astype(int), trials.astype(int)


def _settings(risk: Any) -> int:
    return len(jnp.asarray(risk.errors)) if isinstance(risk, Counts) else risk.shape[1]


def check_settings(g: int) -> None:
    """Raises ValueError for a grid without settings."""
    if g == 0:
        raise ValueError("expected a grid of at least one setting, got none")


def _p_values(risk, alpha, where, bound, p_value, delta):
    """Returns the p-values of one risk, (g,)."""
    if isinstance(risk, Counts):
        if (
            p_value not in (None, "binomial")
            or where is not None
            or not _is_unit(bound)
        ):
            raise ValueError("expected counts without p_value, where and bound")
        return _of_counts(risk, alpha)
    method = p_value or _default(risk, bound)
    if method == "binomial" and is_concrete(risk, where, alpha):
        return _of_counts(_counted(risk, where, bound), alpha)
    return bounds.p_value(
        risk, alpha, method=method, delta=delta, where=where, bound=bound
    )


def _default(losses: Array, bound: Any) -> bounds.Method:
    """Returns the exact law for errors, else what holds in any order of the rows."""
    whole = not jnp.issubdtype(losses.dtype, jnp.floating)
    errors = losses.dtype == bool or (whole and _is_unit(bound))
    return "binomial" if errors else "hoeffding_bentkus"


def _is_unit(bound):
    return is_concrete(bound) and bound == 1


def _counted(losses, where, bound):
    """Returns the counts of 0/1 losses with known values, after the checks of them."""
    losses, where = losses_and_rows(losses, where, bound, "binomial")
    return Counts(*_count(losses, where))


@jax.jit
def _count(losses, where):
    counts = jnp.ones_like(losses, bool) if where is None else where
    counts = counts if counts.ndim == 2 else counts[:, None]
    counts = jnp.broadcast_to(counts, losses.shape)
    return jnp.sum((losses != 0) & counts, axis=0), jnp.sum(counts, axis=0)


def _of_counts(counts, alpha):
    """Returns P(Bin(trials, alpha) <= errors): 1 where nothing counts."""
    _checks.share("alpha", alpha)
    exact = None if isinstance(alpha, Array) else as_alpha(alpha).item()
    if not is_concrete(counts, alpha):
        return _traced_tails(
            *counts, as_float(alpha if exact is None else float(exact))
        )
    exact = Fraction(float(alpha)) if exact is None else exact
    errors, trials = map(np.asarray, counts)
    return jnp.asarray(binomial_tails(trials, errors, exact))


@jax.jit
def _traced_tails(errors, trials, alpha):
    alpha = jnp.clip(at_least_single(alpha), 0, 1)
    trials = jnp.maximum(trials, 0)
    errors = jnp.clip(errors, 0, trials)
    of_one = lambda k, n: binomial_tail(  # noqa: E731
        k.astype(alpha.dtype), n.astype(alpha.dtype), alpha
    )
    p = jax.vmap(of_one)(errors, trials)
    return jnp.where(jnp.isnan(alpha), 1, p)
