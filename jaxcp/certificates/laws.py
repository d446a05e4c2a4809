"""The law of the coverage of split conformal prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.quantiles.levels import as_delta, exact_rank, one_alpha
from jaxcp.typing import ArrayLike, Number

_FINEST = Fraction(1, 10**6)


@dataclass(frozen=True)
class Certificate:
    """The law of split conformal coverage. Made by `certificate`.

    Args:
      n: Number of calibration scores.
      alpha: Miscoverage level, exactly.
      rank: Which order statistic is the threshold, k, from 1; n + 1 means +inf.
      delta: Probability of a coverage below 1 - alpha that the rank allows, exactly;
        None for a rank that covers on average.
      exact: Whether sets are {score <= q} and no more. Larger ones cover at least as
        much as this law says: lower bounds hold, and what would bound coverage from
        above is refused.

    See also:
      certificates.certificate, Calibration.certificate, certificates.coverage_test
    """

    n: int
    alpha: Fraction
    rank: int
    delta: Fraction | None = None
    exact: bool = True

    def __str__(self) -> str:
        least = "" if self.exact else "at least "
        given = f"{least}Beta{self._law} given the calibration set"
        return f"coverage {told(self)} on average, {given}"

    @property
    def coverage(self) -> float:
        """The marginal coverage k / (n + 1), or at least this where not `exact`."""
        return self.rank / (self.n + 1)

    @property
    def law(self) -> tuple[int, int]:
        """(a, b) of the Beta law of coverage given the calibration set."""
        self._check_exact()
        return self._law

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of coverage given the calibration set."""
        self._check_exact()
        mean = self.coverage
        return (mean * (1 - mean) / (self.n + 2)) ** 0.5

    def probability(self, lower: float, upper: float = 1.0) -> float:
        """Returns the probability of a range of coverage, over calibration sets.

        Args:
          lower: Smallest coverage, inclusive.
          upper: Largest coverage, inclusive. Where not `exact` there is none, and the
            probability is at least what is returned.
        """
        if upper < 1:
            self._check_exact()
        return float(max(1 - sum(_tails(*self._law, lower, upper)), 0))

    def interval(self, probability: float) -> tuple[float, float]:
        """Returns the central interval that holds coverage given the calibration set.

        Args:
          probability: How often it does, in (0, 1), over calibration sets.
        """
        _check_shares(probability=probability)
        tail, law = (1 - probability) / 2, self.law
        return _beta_quantile(*law, tail), _beta_quantile(*law, 1 - tail)

    def lower_bound(self, probability: float) -> float:
        """Returns the coverage that is reached with this probability, or more.

        Args:
          probability: How often, in (0, 1), over calibration sets.
        """
        _check_shares(probability=probability)
        return _beta_quantile(*self._law, 1 - probability)

    def num_needed(self, slack: float, probability: float) -> int:
        """Returns `calibration_size` at this alpha."""
        self._check_exact()
        return calibration_size(self.alpha, slack, probability)

    @property
    def _law(self) -> tuple[int, int]:
        return self.rank, self.n + 1 - self.rank

    def _check_exact(self):
        """Raises ValueError where sets may cover more, by an unknown law."""
        if not self.exact:
            raise ValueError(
                "expected an exact certificate, got one of sets that may hold more "
                "than {score <= q}, whose coverage has no known law and no upper "
                "bound; lower_bound(probability) and probability(lower) hold"
            )


def told(proof: Any) -> str:
    """Returns the coverage of a certificate in words: "at least" where not exact."""
    least = "" if proof.exact else "at least "
    return f"{least}{proof.rank}/{proof.n + 1} = {proof.coverage:.4g}"


def certificate(n: int, alpha: Any, delta: Number | None = None) -> Certificate:
    """Returns the law of coverage at alpha with n calibration scores.

    The threshold is the k-th smallest score, k = `conformal_rank(n, alpha, delta)`;
    coverage is k / (n + 1) on average and Beta(k, n + 1 - k) given the calibration set.

    Args:
      n: Number of calibration scores.
      alpha: Miscoverage level in (0, 1), a number, read as the decimal it prints as.
      delta: Probability of a bad calibration set in (0, 1), a number: `probability(1 -
        alpha)` then is at least 1 - delta. Without it the sets cover on average.

    Returns:
      A `Certificate`: `rank`, `coverage`, `law`, `interval(probability)`,
      `lower_bound(probability)`, `probability(lower, upper)` and
      `num_needed(slack, probability)`. It is `exact`, that of {score <= q};
      `Calibration.certificate` knows which sets a score has.

    Raises:
      ValueError: if `alpha` or `delta` is outside (0, 1), or n is negative.

    Guarantee:
      Exact for sets {score <= q} with one threshold from unit weights. Where scores tie
      or sets hold more, coverage is at least this.

    Assumption:
      Exchangeable scores that do not tie (given the calibration set: i.i.d.).

    Cost:
      O(1), on the host.

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.

    See also:
      coverage_law, certificates.calibration_size, certificates.coverage_test,
      Calibration.certificate

    Example:
      >>> proof = certificate(99, 0.1)
      >>> proof.rank, proof.coverage, proof.law
      (90, 0.9, (90, 10))
      >>> round(proof.lower_bound(0.9), 3)
      0.86
      >>> proof.num_needed(slack=0.01, probability=0.9)
      2520
      >>> round(certificate(99, 0.1, delta=0.1).lower_bound(0.9), 3)
      0.908
    """
    _checks.check_count("n", n, 0)
    exact, share = one_alpha(alpha), None if delta is None else as_delta(delta)
    return Certificate(int(n), exact, exact_rank(int(n), exact, share), share)


def coverage_law(n: int, alpha: ArrayLike) -> tuple[int, int]:
    """Returns the Beta law of split coverage given the calibration set, for any n.

    With continuous scores P(Y in set | calibration set) ~ Beta(k, n + 1 - k), k the
    conformal rank; its mean k / (n + 1) is the exact coverage.

    Args:
      n: Number of calibration scores.
      alpha: Miscoverage level in (0, 1), a number.

    Returns:
      (a, b) of the Beta law. b = 0 means that sets are infinite: coverage is 1.

    Raises:
      ValueError: if `alpha` is outside (0, 1) or n is negative.

    Guarantee:
      Exact for sets {score <= q}. Where scores tie or sets hold more, coverage is at
      least this.

    Assumption:
      Scores that are i.i.d. and do not tie.

    Cost:
      O(1), on the host.

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.

    See also:
      certificates.certificate, certificates.calibration_size

    Example:
      >>> coverage_law(99, 0.1)
      (90, 10)
    """
    return certificate(n, alpha).law


def calibration_size(alpha: Any, slack: float, probability: float) -> int:
    """Returns how many calibration scores keep coverage within a slack.

    The smallest n from which on the central interval that holds coverage with this
    probability, over calibration sets, lies within 1 - alpha +- slack. (The rank jumps
    with n, so that some smaller n, like the 102 of the published table at alpha = 0.1
    and slack 0.05, do as well and others between do not.)

    Args:
      alpha: Miscoverage level in (0, 1), a number.
      slack: Largest distance of coverage from 1 - alpha, in (0, 1).
      probability: Probability that it is kept, in (0, 1); coverage is too low, or too
        high, with at most half of the rest each.

    Returns:
      Number of calibration scores.

    Raises:
      ValueError: if an argument is outside (0, 1), or `alpha` nearer than 1e-6 to
        its ends, where the search would take long.

    Guarantee:
      Exact.

    Assumption:
      Scores that are i.i.d. and do not tie.

    Cost:
      On the host: O(log n) steps, each over 2 / min(alpha, 1 - alpha) sizes, at least
      100.

    References:
      Angelopoulos, Bates, Conformal Prediction: A Gentle Introduction, Foundations and
      Trends in Machine Learning, 2023, Table 1.

    See also:
      certificates.certificate, certificates.smallest_size, coverage_law

    Example:
      >>> calibration_size(0.1, slack=0.05, probability=0.9)
      110
    """
    exact = one_alpha(alpha)
    _check_shares(slack=slack, probability=probability)
    if not _FINEST <= exact <= 1 - _FINEST:
        raise ValueError(f"expected alpha in [1e-6, 1 - 1e-6], got {alpha}")
    # The rank jumps, and so the tails move in teeth of 1 / alpha sizes. The first tooth
    # has infinite sets: a coverage of 1, which may be near enough while others are not.
    tooth = max(math.ceil(2 / min(exact, 1 - exact)), 100)

    def kept(i: int) -> np.ndarray:
        n = np.arange(i * tooth, (i + 1) * tooth)
        return _is_kept(n, exact, slack, (1 - probability) / 2)

    last = _first(lambda i: kept(i).all()) - 1
    failing = np.flatnonzero(~kept(last))
    return last * tooth + int(failing[-1]) + 1 if failing.size else 0


def _is_kept(n, alpha, slack, tail):
    """Returns for which sizes coverage leaves 1 - alpha +- slack with at most `tail`.

    On each side, P(Beta(k, n + 1 - k) < 1 - alpha - slack) and > 1 - alpha + slack.
    """
    if (n[-1] + 1) * alpha.numerator >= 2**63:
        n = n.astype(object)
    k = n + 1 - (n + 1) * alpha.numerator // alpha.denominator
    lower, upper = float(1 - alpha) - slack, float(1 - alpha) + slack
    below, above = _tails(k.astype(float), (n + 1 - k).astype(float), lower, upper)
    return np.maximum(below, above) <= tail


def _first(holds):
    """Returns the smallest i >= 1 from which on `holds(i)`: by doubling and halving."""
    fails, found = 0, 1
    while not holds(found):
        fails, found = found, 2 * found
    while found - fails > 1:
        middle = (found + fails) // 2
        fails, found = (fails, middle) if holds(middle) else (middle, found)
    return found


def _tails(a, b, lower, upper):
    """Returns the Beta mass below `lower` and above `upper`; b = 0: an atom at 1."""
    from scipy.special import betainc, betaincc  # scipy comes with jax

    positive = np.maximum(b, 1)
    below = betainc(a, positive, np.clip(lower, 0, 1))
    above = betaincc(a, positive, np.clip(upper, 0, 1))
    atom = np.equal(b, 0)
    return np.where(atom, lower > 1, below), np.where(atom, upper < 1, above)


def _beta_quantile(a, b, probability):
    from scipy.special import betaincinv

    return 1.0 if b == 0 else float(betaincinv(a, b, probability))


def _check_shares(**named):
    for name, value in named.items():
        _checks.share(name, value)
