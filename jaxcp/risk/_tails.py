"""Binomial tails of any number of rows and any mean, as exact as the float type."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp._numbers import varying_like

_SMALL = 16  # counts below it take the error of Stirling's formula from a table
_ERRORS = np.array(
    [0.0]
    + [
        math.lgamma(k + 1) - (k + 0.5) * math.log(k) + k - math.log(2 * math.pi) / 2
        for k in range(1, _SMALL)
    ]
)
_STIRLING = [1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188]
_ATANH = [1 / (2 * j + 1) for j in range(1, 9)]


@jax.custom_jvp
def binomial_tail(count: Array, rows: Array, mean: Array) -> Array:
    """Returns P(Bin(rows, mean) <= count) of whole floats 0 <= count <= rows."""
    certain = (count >= rows) | (mean <= 0)
    usual = ~certain & (mean < 1)
    count, mean = jnp.where(usual, count, 0), jnp.where(usual, mean, 0.5)
    rows = jnp.where(usual, rows, 1)
    # The side of the count that the mean is not on has the smaller sum.
    below = count <= rows * mean
    odds = mean / (1 - mean)
    terms = _sum_of_ratios(
        jnp.where(below, count, rows - count),
        jnp.where(below, rows - count + 1, count + 1),
        jnp.where(below, 1 / odds, odds),
    )
    mass = _binomial_mass(count, rows, mean)
    tail = jnp.where(below, mass * (1 + terms), 1 - mass * terms)
    return jnp.where(usual, tail, jnp.where(certain, 1, 0).astype(tail.dtype))


@binomial_tail.defjvp
def _binomial_tail_jvp(primals, tangents):
    count, rows, mean = primals
    # d/da P(Bin(n, a) <= k) = -(n - k) P(Bin(n, a) = k) / (1 - a).
    inside = (count < rows) & (mean > 0) & (mean < 1)
    safe = jnp.where(inside, mean, 0.5)
    mass = _binomial_mass(jnp.minimum(count, rows), rows, safe)
    slope = jnp.where(inside, -(rows - count) * mass / (1 - safe), 0)
    return binomial_tail(*primals), slope * tangents[2]


def binomial_deviance(count: Array, rows: Array, mean: Array) -> Array:
    """Returns n h1(r, a), r = count / n: r log(r / a) + (1-r) log((1-r) / (1-a))."""
    # Each of two terms that are not negative has the gap between the counts: there is
    # no difference of numbers that are nearly the same (Loader 2000).
    gap = count - rows * mean
    return _deviance(count, rows * mean, gap) + _deviance(
        rows - count, rows * (1 - mean), -gap
    )


def _deviance(count, mean, gap):
    """Returns count log(count / mean) - gap, gap = count - mean."""
    positive = (count > 0) & (mean > 0)
    safe, safe_mean = jnp.where(positive, count, 1), jnp.where(positive, mean, 1)
    # log(count / mean) = 2 atanh(v), v = gap / (count + mean).
    v = jnp.where(positive, gap, 0) / (safe + safe_mean)
    near = gap * v + 2 * count * v**3 * _series(_ATANH, v * v)
    far = count * jnp.log(safe / safe_mean) - gap
    usual = jnp.where(jnp.abs(v) < 0.1, near, far)
    impossible = jnp.where(count > 0, jnp.inf, -gap)
    return jnp.where(positive, usual, impossible)


def _binomial_mass(count, rows, mean):
    """Returns P(Bin(rows, mean) = count)."""
    # Loader, Fast and Accurate Computation of Binomial Probabilities, 2000.
    rest = rows - count
    inner = (count > 0) & (rest > 0)
    spread = jnp.where(inner, 2 * math.pi * count * (rest / jnp.maximum(rows, 1)), 1)
    errors = _stirling_error(rows) - _stirling_error(count) - _stirling_error(rest)
    log_mass = jnp.where(inner, errors, 0) - binomial_deviance(count, rows, mean)
    return jnp.exp(log_mass) / jnp.sqrt(spread)


def _stirling_error(count):
    """Returns log(count!) - log(sqrt(2 pi count) (count / e)^count), 0 of 0."""
    small = jnp.asarray(_ERRORS, count.dtype)[
        jnp.minimum(count, _SMALL - 1).astype(int)
    ]
    inverse = 1 / jnp.maximum(count, _SMALL)
    series = inverse * _series(_STIRLING, inverse * inverse)
    return jnp.where(count < _SMALL, small, series)


def _sum_of_ratios(count, rest, odds):
    """Returns sum_(j >= 1) prod_(i < j) odds (count - i) / (rest + i)."""

    def goes_on(state):
        _, term, total = state
        return term > 1e-3 * jnp.finfo(term.dtype).eps * total

    def add(state):
        i, term, total = state
        term = term * (odds * ((count - i) / (rest + i)))
        return i + 1, term, total + term

    zero = jnp.zeros_like(odds)
    start = varying_like((zero, zero + 1, zero), count + rest + odds)
    return lax.while_loop(goes_on, add, start)[-1]


def _series(coefficients, x):
    """Returns c_0 + c_1 x + c_2 x^2 + ..."""
    return functools.reduce(lambda total, c: total * x + c, reversed(coefficients))
