"""Targets of closed forms: real numbers that keep the digits of their errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._arrays import (
    check_digits,
    is_concrete,
    on_host,
    one_of_each,
    some_rows,
)
from jaxcp.learners import Augmented

_LEAST = 1e-4  # what a fit leaves of the residual of a row that it does not go through


def check_targets(y: Array) -> None:
    """Raises ValueError unless targets are real numbers of shape (n,) or (n, d)."""
    if y.ndim not in (1, 2) or 0 in y.shape[1:]:
        least = ", d >= 1" if y.ndim == 2 else ""
        raise ValueError(f"expected y of shape (n,) or (n, d){least}, got {y.shape}")
    check_real(y)


def check_real(y: Array) -> None:
    """Raises ValueError for complex targets."""
    if jnp.issubdtype(y.dtype, jnp.complexfloating):
        raise ValueError(f"expected y as real numbers, got {y.dtype}")


def check_digits_of_fit(y: Array, given: Any, found: Augmented, mask: Any) -> None:
    """Raises ValueError if targets have lost the digits that their errors are about.

    For targets that were rounded from those given. Outputs whose targets are all the
    same, and rows that the fit goes through, have no errors to lose; equal targets
    count once.
    """
    if not is_concrete(y, found, mask):
        return
    some = some_rows(len(y))
    floats, kept = np.asarray(y, jax.dtypes.canonicalize_dtype(float)), slice(None)
    kept = kept if mask is None else np.asarray(mask)[some]
    columns = floats, on_host("y", given), _errors(found)
    y, given, errors = (v.reshape(len(v), -1)[some][kept] for v in columns)
    vary = np.any(given != given[:1], axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.nextafter(y, np.inf) - y
    check_digits("y", steps, errors, one_of_each(given) & vary)


def _errors(found):
    """Returns the errors of fits without each row, infinite where they are not told."""
    residuals, shares = (np.asarray(v, float) for v in (found.residuals, found.shares))
    if residuals.shape[: shares.ndim] == shares.shape:
        residuals = residuals[0]
    rest = 1.0
    if found.rest is not None:  # 1 - h_i of the fit on n rows
        rest = np.asarray(found.rest) - shares**2 / np.asarray(found.spread)[:, None]
    rest = np.broadcast_to(rest, shares.shape)[0]
    rest = rest.reshape(-1, *(1,) * (residuals.ndim - 1))
    told = rest > _LEAST
    return np.where(told, residuals / np.where(told, rest, 1), np.inf)
