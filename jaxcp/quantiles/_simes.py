"""Bounds that hold for all order statistics of uniforms together."""

from __future__ import annotations

import math

import numpy as np


def log_simes_bounds(n: int, delta: float) -> np.ndarray:
    """Returns log b_n, ..., log b_1, where U_(i) >= b_i for all i but with odds delta.

    b_i = (delta prod_(j<k) (i - j) / (n - j))^(1/k) with k = n // 2, 0 for i < k.
    """
    # Sarkar 2008, generalized Simes inequality; as in Bates et al. 2023, section 3.2
    if n == 0:
        return np.zeros(0)
    k = max(n // 2, 1)
    i = np.arange(n, k, -1.0)
    # From i to i - 1 the product shrinks by (i - k) / i; it is 0 for i < k.
    log_product = np.append(0.0, np.cumsum(np.log((i - k) / i)))
    return np.append((math.log(delta) + log_product) / k, np.full(k - 1, -np.inf))
