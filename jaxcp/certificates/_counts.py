"""Sums of Beta-binomial counts: exact tails, in double precision on the host."""

from __future__ import annotations

import numpy as np

_ALL = 2**22  # numbers of which all are computed; beyond, a window of them
_SPREADS = 20  # half the width of the window, in standard deviations


def tails(a: int, b: int, m: int, num_sets: int, total: int) -> tuple[float, float]:
    """Returns P(sum <= total) and P(sum >= total) of independent counts.

    The counts, `num_sets` of them, are BetaBinomial(m, a, b). Their law is the power of
    a Fourier transform, tilted so that its mean lies at `total`: the smaller tail keeps
    its relative precision however small it is.
    """
    if b == 0:  # every test point is covered
        return float(total >= m * num_sets), 1.0
    log_mass = log_beta_binomial(a, b, m)
    if num_sets == 1:
        sides = log_mass[: total + 1], log_mass[total:]
        below, above = (float(np.exp(min(_log_sum(side), 0))) for side in sides)
        return below, above
    tilt = _tilt_to(log_mass, total / num_sets)
    tilted = log_mass + tilt * np.arange(m + 1)
    log_norm = _log_sum(tilted)
    offsets, law = _law_around(np.exp(tilted - log_norm), num_sets, total)
    log_scale = num_sets * log_norm - tilt * total
    side = offsets >= 0 if tilt >= 0 else offsets <= 0
    # A product of which each factor may leave the range of floats.
    with np.errstate(divide="ignore"):
        terms = np.log(law[side]) - tilt * offsets[side] + log_scale
    tail = float(np.exp(np.minimum(_log_sum(terms), 0)))
    here = float(np.exp(terms[offsets[side] == 0][0]))
    other = min(1 - tail + here, 1.0)
    return (other, tail) if tilt >= 0 else (tail, other)


def log_beta_binomial(a: int, b: int, m: int) -> np.ndarray:
    """Returns the log probabilities of 0, ..., m, from the ratios of neighbors."""
    x = np.arange(m, dtype=float)
    steps = np.log((m - x) / (x + 1)) + np.log((x + a) / (m - x - 1 + b))
    # Sums start at the mode, where the mass is, and so do their rounding errors.
    mode = int(np.searchsorted(-steps, 0)) if (steps[:1] > 0).any() else 0
    down, up = -np.cumsum(steps[:mode][::-1])[::-1], np.cumsum(steps[mode:])
    log_mass = np.concatenate([down, [0.0], up])
    return log_mass - _log_sum(log_mass)


def _tilt_to(log_mass, mean):
    """Returns the t for which exp(log_mass + t x) has this mean, within bounds."""
    x = np.arange(len(log_mass))

    def tilted_mean(t):
        weights = np.exp(log_mass + t * x - np.max(log_mass + t * x))
        return weights @ x / weights.sum()

    lower, upper = -1.0, 1.0
    while tilted_mean(lower) > mean and lower > -64:
        lower *= 2
    while tilted_mean(upper) < mean and upper < 64:
        upper *= 2
    for _ in range(60):
        middle = (lower + upper) / 2
        below = tilted_mean(middle) < mean
        lower, upper = (middle, upper) if below else (lower, middle)
    return (lower + upper) / 2


def _law_around(mass, num_sets, total):
    """Returns offsets from `total` and the probabilities of the sum at them."""
    x = np.arange(len(mass))
    largest = num_sets * (len(mass) - 1)
    size = largest + 1
    if size > _ALL:
        spread = np.sqrt(num_sets * (mass @ (x - mass @ x) ** 2))
        size = int(min(size, max(2 * _SPREADS * spread, 1024)))
    size = 2 ** int(np.ceil(np.log2(max(size, 2))))
    # On a circle of this size; around the mean, so that powers lose no digits.
    center = round(float(mass @ x))
    around = np.bincount((x - center) % size, mass, minlength=size)
    law = np.fft.irfft(np.fft.rfft(around) ** num_sets, size)
    # From 0 where all sums have a place, else half of the circle below `total`.
    low = -total if size > largest else max(-total, -size // 2)
    offsets = np.arange(low, min(largest - total, low + size - 1) + 1)
    return offsets, np.maximum(law[(offsets + total - num_sets * center) % size], 0)


def _log_sum(logs):
    largest = np.max(logs)
    return largest + np.log(np.sum(np.exp(logs - largest)))
