"""How many calibration scores finite sets take."""

from __future__ import annotations

import math
from typing import Any

from jaxcp.quantiles._binomial import critical_count
from jaxcp.quantiles.levels import as_delta, one_alpha
from jaxcp.typing import Number


def smallest_size(alpha: Any, delta: Number | None = None) -> int:
    """Returns the fewest calibration scores with which sets are finite.

    The smallest n with alpha (n + 1) >= 1; with `delta` with (1 - alpha)^n <= delta.

    Args:
      alpha: Miscoverage level in (0, 1), a number, read as the decimal it prints as.
      delta: Probability of a bad calibration set in (0, 1), a number, as for the sets.

    Returns:
      Number of calibration scores.

    Raises:
      ValueError: if `alpha` or `delta` is outside (0, 1).

    Guarantee:
      Exact: with one score fewer the threshold is +inf.

    Assumption:
      None.

    Cost:
      O(1), on the host.

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.

    See also:
      certificates.calibration_size, conformal_rank

    Example:
      >>> smallest_size(0.1), smallest_size(0.1, delta=0.1)
      (9, 22)
    """
    exact = one_alpha(alpha)
    if delta is None:
        return math.ceil(1 / exact) - 1
    share = as_delta(delta)
    near = math.log(share) / math.log1p(-exact)
    n = max(math.floor(near * (1 - 1e-12)) - 1, 0)
    while critical_count(n, exact, share) < 0:
        n += 1
    return n
