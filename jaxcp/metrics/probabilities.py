"""How well predicted probabilities fit what happens: errors, scores and tests."""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import erfc

from jaxcp import _checks
from jaxcp._arrays import sums_of_groups
from jaxcp._numbers import as_float, at_least_single, kept, mean, quotient
from jaxcp.metrics._sets import Count, metric
from jaxcp.quantiles._keys import to_keys
from jaxcp.typing import ArrayLike


def _of_probs(probs, y, **options):
    probs = _checks.rows(probs=probs)
    _checks.check_shape("probs", probs.shape[:2], probs.shape)
    _checks.check_uniforms("probs", probs)
    of_event = _checks.Column(y, convert=_checks.flags, required=True)
    column = of_event if probs.ndim == 1 else _checks.groups(y, probs.shape[1])
    return _checks.rows(probs=as_float(probs), y=column), options


def of_bins(probs, y, *, num_bins, bins="width", kind=None):
    """Returns probabilities and events, and options, after checks."""
    rows, options = _of_probs(probs, y, num_bins=num_bins, bins=bins, kind=kind)
    _checks.check_count("num_bins", num_bins, 1)
    _checks.check_one_of("bins", bins, ("width", "mass"))
    kinds: list = [None] if rows[0].ndim == 1 else ["top_label", "classwise"]
    _checks.check_one_of(f"kind for probs of {rows[0].ndim} axes", kind, kinds)
    return rows, options


def _columns(probs, y):
    """Returns probabilities (m, c) of events, and which of them happened."""
    if probs.ndim == 1:
        return probs[:, None], y[:, None]
    return probs, y[:, None] == jnp.arange(probs.shape[1])[None]


@metric(of_bins)
def expected_calibration_error(
    count: Count,
    probs: ArrayLike,
    y: ArrayLike,
    *,
    num_bins: int,
    bins: Literal["width", "mass"] = "width",
    kind: Literal["top_label", "classwise"] | None = None,
) -> Array:
    """Returns how far probabilities are from rates, over bins of probability: ECE.

    sum_b abs(sum_{i in b} (y_i - p_i)) / m over bins b of rows with similar p_i. It
    depends on the bins, and is above 0 for finitely many rows of calibrated
    probabilities: `calibration_test` says whether what is seen may be chance.

    Args:
      probs: Probabilities of one event, shape (m,), or of k classes, shape (m, k).
      y: True where the event happened, shape (m,); or labels 0, ..., k - 1.
      num_bins: Number of bins.
      bins: "width" for bins (a, b] of equal width, 0 in the first one; "mass" for runs
        of equally many rows in the order of p (rows with equal p in their order; the
        first runs have one row more if m is not a multiple of their number).
      kind: What is judged of k classes: "top_label", the largest probability against
        whether it is of the label, in bins of each predicted class; "classwise", each
        column against whether it is that of the label. (Without bins for each class,
        the largest probability is that of one event: whether its class is right.)

    Returns:
      Error in [0, 1], shape (); of shape (k,) for "classwise". NaN without rows. Bins
      without rows count nothing.

    Raises:
      ValueError: if lengths differ, a concrete probability is outside [0, 1], a label
        is out of range, or an option is not known; for k classes `kind` must be given.

    Cost:
      O(m) time for bins of equal width, a sort for bins of equal mass; k times for
      k classes.

    References:
      Naeini, Cooper, Hauskrecht, Obtaining Well Calibrated Probabilities Using Bayesian
      Binning, AAAI, 2015.
      Gupta, Ramdas, Top-Label Calibration and Multiclass-to-Binary Reductions, ICLR,
      2022.

    See also:
      metrics.calibration_test, metrics.brier_score, plotting.plot_reliability

    Example:
      >>> probs, y = jnp.array([0.1, 0.2, 0.9, 0.9]), jnp.array([0, 1, 1, 1])
      >>> round(expected_calibration_error(probs, y, num_bins=2).item(), 6)
      0.225
    """
    p, happened = _columns(probs, y)
    rows = kept(jnp.ones(p.shape, bool), count, False)
    if kind == "top_label":
        rows &= jnp.argmax(p, axis=1)[:, None] == jnp.arange(p.shape[1])[None]
    gaps = jnp.where(rows, happened - at_least_single(p), 0)
    in_bins = partial(_bin_sums, num_bins=num_bins, bins=bins)
    total = jnp.sum(jnp.abs(jax.vmap(in_bins, 1)(p, gaps, rows)), axis=1)
    total = total if kind == "classwise" else jnp.sum(total)
    return quotient(total, jnp.sum(kept(jnp.ones(len(p)), count))).astype(p.dtype)


def _bin_sums(p, values, rows, num_bins, bins):
    """Returns the sums of values in bins of p, of the rows that count."""
    if bins == "width":
        edges = jnp.asarray(np.linspace(0, 1, num_bins + 1)[1:-1], p.dtype)
        place = jnp.searchsorted(edges, p)
    else:
        keys = to_keys(jnp.where(rows, p, jnp.inf))
        _, values = lax.sort((keys, values), num_keys=1)
        length, longer = jnp.divmod(jnp.sum(rows), num_bins)
        run = jnp.arange(1, num_bins + 1)
        ends = run * length + jnp.minimum(run, longer)
        place = jnp.searchsorted(ends, jnp.arange(len(p)), side="right")
    return sums_of_groups(values, place, num_bins)


@metric(_of_probs)
def brier_score(count: Count, probs: ArrayLike, y: ArrayLike) -> Array:
    """Returns the mean squared distance of probabilities and what happened.

    mean (p - y)^2 for one event; for k classes the mean of sum_c (p_c - 1(y = c))^2,
    twice as much for two. It is proper: least, on average, for the true probabilities.

    Args:
      probs: Probabilities of one event, shape (m,), or of k classes, shape (m, k).
      y: True where the event happened, shape (m,); or labels 0, ..., k - 1.

    Returns:
      Score, shape (), less is better: at most 1 for one event, 2 for classes. NaN
      without rows.

    Raises:
      ValueError: if lengths differ, a concrete probability is outside [0, 1], or a
        label is out of range.

    Cost:
      O(m k) time.

    References:
      Brier, Verification of Forecasts Expressed in Terms of Probability, Monthly
      Weather Review, 1950.

    See also:
      metrics.expected_calibration_error, predictive.merge_pairs

    Example:
      >>> round(brier_score(jnp.array([0.5, 0.9]), jnp.array([0, 1])).item(), 6)
      0.13
    """
    p, happened = _columns(probs, y)
    return mean(jnp.sum((p - happened) ** 2, axis=1), count)


class CalibrationTest(NamedTuple):
    """How well probabilities fit what happened. Made by `calibration_test`.

    Args:
      p_value: Probability of a statistic as large, if the probabilities are true.
      statistic: In units of its spread, if they are.

    See also:
      metrics.calibration_test
    """

    p_value: Array
    statistic: Array


def _of_test(probs, y, *, kind):
    rows, options = _of_probs(probs, y, kind=kind)
    _checks.check_vectors(probs=rows[0])
    _checks.check_one_of("kind", kind, ("kolmogorov", "kuiper", "spiegelhalter"))
    return rows, options


@metric(_of_test)
def calibration_test(
    count: Count,
    probs: ArrayLike,
    y: ArrayLike,
    *,
    kind: Literal["kolmogorov", "kuiper", "spiegelhalter"],
) -> CalibrationTest:
    """Returns a test of whether events happen with their predicted probabilities.

    Sums D_t of y_i - p_i over rows with p_i <= t (all of one p at once) are a walk with
    independent steps. In units of s = sqrt(sum p_i (1 - p_i)): "kolmogorov" takes
    max abs(D_t) / s, which tends to the largest distance of a Brownian motion from 0,
    and "kuiper" (max D_t - min D_t) / s, its range, 0 at the start counting.
    "spiegelhalter" takes sum (y - p) (1 - 2 p) / sqrt(sum (1 - 2 p)^2 p (1 - p)),
    normal in the limit, on both sides.

    Args:
      probs: Probabilities of one event, shape (m,): of k classes e.g. one column, or
        the largest probability.
      y: True where the event happened, shape (m,).
      kind: The statistic. The walks see errors of one sign for a range of p; the sum
        sees probabilities that are too bold or too timid, and is blind near 1/2.

    Returns:
      `CalibrationTest(p_value, statistic)`, shape () each. NaN without rows. Where
      no row is uncertain, events that contradict it have an infinite statistic.

    Raises:
      ValueError: as `brier_score`, or if `kind` is not known.

    Guarantee:
      Asymptotic: P(p_value <= t) -> t as m grows, if the probabilities are true.

    Assumption:
      Events are independent given their probabilities, which do not come from them:
      probabilities that share a small calibration set are judged together with it.

    Cost:
      A sort; O(m) time for "spiegelhalter".

    References:
      Arrieta-Ibarra, Gujral, Tannen, Tygert, Xu, Metrics of Calibration for
      Probabilistic Predictions, JMLR, 2022.
      Spiegelhalter, Probabilistic Prediction in Patient Management and Clinical
      Trials, Statistics in Medicine, 1986.
      Feller, The Asymptotic Distribution of the Range of Sums of Independent Random
      Variables, Annals of Mathematical Statistics, 1951.

    See also:
      metrics.expected_calibration_error, metrics.brier_score, predictive.venn_abers

    Example:
      >>> probs = jax.random.uniform(jax.random.key(0), (1000,))
      >>> y = jax.random.bernoulli(jax.random.key(1), probs)
      >>> calibration_test(probs, y, kind="kuiper").p_value > 0.05
      Array(True, dtype=bool)
      >>> calibration_test(probs**2, y, kind="kuiper").p_value < 1e-6
      Array(True, dtype=bool)
    """
    probs, y = jnp.asarray(probs), jnp.asarray(y)
    p = at_least_single(probs)
    gap, spread = kept(y - p, count), kept(p * (1 - p), count)
    if kind == "spiegelhalter":
        size = jnp.abs(jnp.sum(gap * (1 - 2 * p)))
        spread *= (1 - 2 * p) ** 2
    else:
        keys, gap = lax.sort((to_keys(p), gap), num_keys=1)
        last = jnp.append(keys, keys[-1:] + 1)[1:] != keys  # of rows with equal p
        walk = jnp.where(last, jnp.cumsum(gap), 0)
        above, below = jnp.max(walk, initial=0), -jnp.min(walk, initial=0)
        size = above + below if kind == "kuiper" else jnp.maximum(above, below)
    ratio = size / jnp.sqrt(jnp.sum(spread))
    ratio = jnp.where((size == 0) & (p.size > 0), 0, ratio)  # no row may be uncertain
    result = jnp.clip(_TAILS[kind](ratio), 0, 1), ratio
    return CalibrationTest(*(v.astype(probs.dtype) for v in result))


def _of_normal(x):
    return erfc(x / np.sqrt(2))


def _of_motion(x):
    """Returns P(sup abs(B) > x) of a Brownian motion on [0, 1]; it is 1 at 0.2."""
    k = np.arange(1, 40, 2)
    return 2 * jnp.sum((-1.0) ** (k // 2) * _of_normal(k * jnp.maximum(x, 0.2)))


def _of_range(x):
    """Returns P(max B - min B > x) of a Brownian motion on [0, 1]; it is 1 at 0.4."""
    k = np.arange(1, 20)  # Feller 1951
    return -4 * jnp.sum((-1.0) ** k * k * _of_normal(k * jnp.maximum(x, 0.4)))


_TAILS = {"kolmogorov": _of_motion, "kuiper": _of_range, "spiegelhalter": _of_normal}
