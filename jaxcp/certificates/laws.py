"""The laws of coverage: of split conformal sets, on average alone, or as a bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from jaxcp import _checks
from jaxcp.quantiles.levels import as_delta, critical_errors, exact_rank, one_alpha
from jaxcp.typing import ArrayLike, Number

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
        probability = _checks.share("probability", probability)
        tail, law = (1 - probability) / 2, self.law
        return _beta_quantile(*law, tail), _beta_quantile(*law, 1 - tail)

    def lower_bound(self, probability: float) -> float:
        """Returns the coverage that is reached with this probability, or more.

        Args:
          probability: How often, in (0, 1), over calibration sets.
        """
        probability = _checks.share("probability", probability)
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
    slack = _checks.share("slack", slack)
    probability = _checks.share("probability", probability)
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


@dataclass(frozen=True)
class MarginalCertificate:
    """The marginal coverage of full conformal sets.

    Made by `FullConformal.certificate`. There is no law given the training set.

    Args:
      n: Number of rows.
      alpha: Miscoverage level, exactly.
      rank: Which order statistic the ends are, k, from 1; n + 1 means the whole line.
      exact: Whether sets hold no more than the targets whose p-values exceed alpha.
        Hulls of sets with holes do: they cover at least this.

    See also:
      FullConformal.certificate, certificates.Certificate
    """

    n: int
    alpha: Fraction
    rank: int
    exact: bool = True

    def __str__(self) -> str:
        return f"coverage {told(self)} on average"

    @property
    def coverage(self) -> float:
        """The marginal coverage k / (n + 1), or at least this where not `exact`."""
        return self.rank / (self.n + 1)


@dataclass(frozen=True, repr=False)
class CrossCertificate:
    """A lower bound of the marginal coverage of jackknife+, CV+ and minmax sets.

    Made by `CrossCalibration.certificate`. With m = n/K rows in a fold, f = floor(alpha
    (n + 1)) and k = n + 1 - f: a missed target is one of at most 2 (f - 1) + m rows
    among n + m, in minmax sets of at most n + m - k. The published bound rounds them.

    Args:
      n: Number of rows that calibrate.
      num_folds: Number of folds K, all of n / K rows.
      alpha: Miscoverage level, exactly.
      minmax: Whether it is for `minmax` in place of the "+" sets.
      num_components: Number of score components c, each at alpha / c.

    See also:
      CrossCalibration.certificate, certificates.MarginalCertificate
    """

    exact: ClassVar[bool] = False  # coverage may be more

    n: int
    num_folds: int
    alpha: Fraction
    minmax: bool = False
    num_components: int = 1

    @property
    def coverage(self) -> float:
        """What marginal coverage is at least, from counts of rows."""
        return self._left(_missed)

    @property
    def published(self) -> float:
        """The bound of the theorems, a function of alpha, n and K; 0 if negative."""
        return self._left(published_miss)

    def __repr__(self) -> str:
        of = "minmax sets" if self.minmax else '"+" sets'
        return (
            f"{type(self).__name__}(coverage of {of}: at least {self.coverage:.6g}; "
            f"published: {self.published:.6g}; alpha={float(self.alpha):.6g}, "
            f"n={self.n}, num_folds={self.num_folds})"
        )

    def _left(self, missed):
        c = self.num_components
        each = missed(self.n, self.num_folds, self.alpha / c, self.minmax)
        return float(max(1 - c * each, 0))


def _missed(n, num_folds, alpha, minmax):
    """Returns at most how often one component misses, from counts of rows."""
    rank_left, m = math.floor(alpha * (n + 1)), n // num_folds
    if rank_left == 0:  # infinite sets
        return Fraction(0)
    # A missed row beats k rows outside of its fold, and no two of different folds beat
    # each other: s missed ones have s (s - m) / 2 <= s (n - k).
    bounds = [Fraction(2 * (rank_left - 1) + m, n + m)]
    # Each fold has a p-value of the test point; twice their mean is one, too.
    bounds.append(Fraction(2 * (rank_left - 1 + num_folds), n + num_folds))
    if minmax:  # the missed row of least min_j R_ij beats k rows that are not missed
        bounds.append(Fraction(rank_left - 1 + m, n + m))
    return min(bounds)


def published_miss(
    n: int, num_folds: int, alpha: Fraction, minmax: bool = False
) -> Fraction:
    """Returns at most how often one component misses, by the theorems."""
    m = Fraction(n, num_folds) or Fraction(1)
    slack = (1 - 1 / m) / (num_folds + 1)
    if minmax:
        return alpha + slack
    # Barber, Candes, Ramdas, Tibshirani 2021, theorem 4
    return 2 * alpha + min(slack, 2 * (1 - Fraction(1, num_folds)) / (m + 1))


@dataclass(frozen=True)
class RiskCertificate:
    """What is proved of the mean loss of sets. Made by `RiskCalibration.certificate`.

    Args:
      n: Number of calibration rows.
      upper: What the risk is at most: on average, or with probability 1 - delta.
      lower: What it is at least, on average; 0 where nothing is proved.
      delta: Probability of a risk above alpha, exactly; None for one on average.
      rank: For a loss of 0 and 1, k: a new row loses nothing as often as its score is
        at most the k-th of n, and `upper` and `lower` are the mean. None where the mean
        alone is bounded.

    See also:
      risk.RiskCalibration, certificates.Certificate
    """

    n: int
    upper: float
    lower: float
    delta: Fraction | None = None
    rank: int | None = None

    def __str__(self) -> str:
        if self.rank is not None:
            return f"risk {self.upper:.4g} on average, Beta{self.law} given the rows"
        least = f", at least {self.lower:.4g} without ties" if self.lower else ""
        how = "on average"
        if self.delta is not None:
            how = f"with probability {float(1 - self.delta):.4g}"
        return f"risk at most {self.upper:.4g} {how} over calibration sets{least}"

    @property
    def law(self) -> tuple[int, int]:
        """(a, b) of the Beta law of the risk given the calibration set."""
        if self.rank is None:
            raise ValueError(
                "expected a loss of 0 or 1 with thresholds of all floats, whose risk "
                "has a law, got one whose mean alone is bounded, by lower and upper"
            )
        return self.n + 1 - self.rank, self.rank


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
    while critical_errors(n, exact, share) < 0:
        n += 1
    return n
