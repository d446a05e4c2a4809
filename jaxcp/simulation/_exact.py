"""Sums of floats without rounding, so that their order does not matter."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

_HUGE = 1e150  # beyond, squares overflow


def exact_moments(values: np.ndarray) -> dict[str, np.ndarray]:
    """Returns exact sums of values and squares over the first axis, and their range.

    `sum` and `squares` are fractions as text. They leave out values that are not
    finite: of these `finite` tells, with `infinite` their own sum. Squares leave out
    values too large for them, too: of these `small` tells.
    """
    wide = values.astype(float)
    finite, small = np.isfinite(wide), np.abs(wide) < _HUGE
    if values.dtype.kind in "biu":
        total, squares = _integer_sums(values)
    else:
        total, squares = exact_sum(np.where(finite, wide, 0)), _squares(wide, small)
    with np.errstate(invalid="ignore"):
        infinite = np.sum(np.where(finite, 0, wide), axis=0)
    return {
        "count": np.asarray(len(values)),
        "sum": np.asarray(total, object).astype(str),
        "squares": np.asarray(squares, object).astype(str),
        "finite": finite.all(axis=0),
        "small": small.all(axis=0),
        "infinite": infinite,
        "minimum": wide.min(axis=0),
        "maximum": wide.max(axis=0),
    }


def _squares(values, small):
    """Returns the sum of squares: of two halves of the digits, whose are exact."""
    kept = np.where(small, values, 0)
    high = _leading_digits(kept)
    low = kept - high
    squares = exact_sum(high * high)
    if low.any():
        squares = squares + exact_sum(2 * high * low) + exact_sum(low * low)
    return squares


def _integer_sums(values):
    """Returns the sums of integers and of their squares, which doubles may not hold."""
    wide = values.astype(float)
    if np.all(np.abs(wide) < 2**26):  # their squares are doubles, too
        return exact_sum(wide), exact_sum(wide * wide)
    whole = values.astype(object)
    return np.sum(whole, axis=0), np.sum(whole * whole, axis=0)


def exact_sum(values: np.ndarray) -> np.ndarray:
    """Returns the sum of finite doubles over the first axis as an array of Fractions.

    Cuts the leading bits off all values, so few that their sum is exact, and goes on
    with the rest until nothing is left: two or three times for single precision.
    """
    rest = np.atleast_1d(values).reshape(len(values), -1)
    total = np.full(rest.shape[1], Fraction(0), object)
    bits = 52 - len(values).bit_length()
    while rest.any():
        unit = np.frexp(np.max(np.abs(rest), axis=0))[1] - bits
        leading = np.trunc(np.ldexp(rest, -unit))
        sums = leading.sum(axis=0)
        for i, (s, u) in enumerate(zip(sums.tolist(), unit.tolist(), strict=True)):
            total[i] += int(s) * Fraction(2) ** u
        rest = rest - np.ldexp(leading, unit)
    return total.reshape(values.shape[1:])


def _leading_digits(values):
    """Returns doubles rounded to their first 26 bits."""
    mantissas, exponents = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(mantissas, 26)), exponents - 26)
