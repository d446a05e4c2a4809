"""Local calibration: rows count more the nearer they are (RLCP and LCP)."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks, _names, _numbers
from jaxcp._batching import map_evenly, repeated
from jaxcp._numbers import as_float, at_least_single
from jaxcp._tree import pytree, static
from jaxcp.calibration.rule import Rule, blocks_of
from jaxcp.certificates.promises import COVERED
from jaxcp.held.rows import Held, len_of
from jaxcp.held.taking import RowShapes, classes_of, scored
from jaxcp.quantiles._keys import bisect_keys
from jaxcp.quantiles.levels import ranks
from jaxcp.quantiles.thresholds import thresholds
from jaxcp.typing import ArrayLike, PyTree, Score


@pytree
class LocalCalibration(Rule):
    """Calibration scores with inputs, for sets of rows near each test point.

    Made by `calibrate_local`. It is called as `cp(preds, alpha, x=x)`, LCP, or with
    `anchors` too, RLCP; `quantile` and `effective_size` take the `x` of one test point,
    and its anchor. The effective size without an anchor is that around x.

    Args:
      score: The nonconformity score.
      held: Scores of the calibration rows, and which count.
      x: Inputs of the rows, shape (n, ...).
      kernel: What a row counts: `weight(x, z)`.
      row_shapes: Shapes of one prediction, which later ones must have, or None.
      classes: Names of the labels, used by sets and targets, or None.
      pairs: Sums over the pairs of rows, which LCP makes at each call.

    See also:
      calibrate_local, Rule, save
    """

    score: Score
    held: Held
    x: Array
    kernel: Any
    row_shapes: RowShapes | None = static(default=None)
    classes: tuple[Hashable, ...] | None = static(default=None)
    pairs: Any = None
    promise = COVERED
    assumption = (
        "rows of calibration and new ones are exchangeable, the model saw neither, and "
        "the kernel, chosen without their scores, is symmetric; or anchors are drawn "
        "from it afresh"
    )
    _by_pairs = True

    def __post_init__(self) -> None:
        _names.keep_names(self, "classes")

    @property
    def components(self) -> tuple[int, ...]:
        """Shape of one score: () or (c,)."""
        return self.held.components

    @property
    def context(self) -> dict[str, Any]:
        """What is known of one test point: inputs like a row of calibration."""
        row = jax.ShapeDtypeStruct(self.x.shape[1:], self.x.dtype)
        return {"x": row, "anchors": row}

    @property
    def _weighs(self):
        return True

    def weights_at(self, x: Array, anchors: Array | None = None) -> tuple[Array, Array]:
        """Returns H(x_i, anchor) and H(x, anchor), by default around x itself."""
        z = x if anchors is None else anchors
        near = jax.vmap(self.kernel.weight, (0, None))(self.x, z)
        return near, self.kernel.weight(x, z)

    def threshold(
        self,
        rank: Any,
        u: Array | None = None,
        x: Any = None,
        anchors: Array | None = None,
    ) -> Array:
        """Returns the threshold of one test point: RLCP, without an anchor LCP."""
        if anchors is not None:
            return super().threshold(rank, u, x=x, anchors=anchors)
        _check_no_uniforms(u)
        n = self.held.counts()
        return self._with_pairs()._lcp(partial(_last_kept, n), x, ranks(n, rank))

    def _thresholds(self, rank, context):
        rule = self if _drawn(context) else self._with_pairs()
        return Rule._thresholds(rule, rank, context)

    def _p_values_of_scores(self, scores, y, u, rounds, **context):
        if _drawn(context):
            return super()._p_values_of_scores(scores, y, u, rounds, **context)
        _check_no_uniforms(u)
        held, rule = self.held, self._with_pairs()
        values = _numbers.with_rounding(held.values) if rounds else held.values
        rule = dataclasses.replace(rule, held=dataclasses.replace(held, values=values))
        of = lambda values, s, count: count(s) / (1 + held.counts())  # noqa: E731
        p = rule._each(lambda row, s: rule._lcp(of, row["x"], s), context, scores)
        # Bonferroni
        return jnp.minimum(1, p.shape[1] * jnp.min(p, 1)) if p.ndim > 1 else p

    def _with_pairs(self):
        """Returns the rule with sum_j H_ij 1(S_j < S_i) and sum_j H_ij of each row."""
        if self.pairs is not None:
            return self

        def of_row(x, value):
            rows, _ = self._at({"x": x})
            values, near = rows.values, rows.weights
            below = lambda v, s: jnp.sum(jnp.where(_is_below(v, s), near, 0))  # noqa: E731
            below = below if values.ndim == 1 else jax.vmap(below, (1, 0))
            return below(values, value), jnp.sum(near)

        rows, most = (self.x, self.held.values), blocks_of(self.held)
        return dataclasses.replace(
            self, pairs=map_evenly(of_row, *rows, at_a_time=most)
        )

    def _lcp(self, of, x, given):
        """Returns of(values, given, count) of each component: count is (n + 1) p(v)."""
        rows, own = self._at({"x": x})
        values, near = rows.values, rows.weights
        counts = True if self.held.mask is None else self.held.mask

        def one(values, below, given):
            def count(v):  # Guan 2023: p(v) = (1 + #{T_i(v) >= T_new(v)}) / (n + 1)
                t = below + jnp.where(_is_below(v, values), near, 0)
                new = jnp.sum(jnp.where(_is_below(values, v), near, 0))
                t, new = t / (self.pairs[1] + near), new / (jnp.sum(near) + own)
                # Sums in other orders are equal but for rounding; 0 / 0 is no evidence.
                slack = 1 + 8 * jnp.finfo(t.dtype).eps
                return 1 + jnp.sum(counts & ~(t * slack < new))

            return of(values, given, count)

        each = one if values.ndim == 1 else jax.vmap(one, (1, 1, 0))
        return each(values, self.pairs[0], given)

    def _num_held(self):
        return len_of(self.x) if type(self) is LocalCalibration else 0

    def _filled(self, size):
        held, x = self.held.filled(size), repeated(self.x, size)
        return dataclasses.replace(self, held=held, x=x)


def _drawn(context):
    return context.get("anchors") is not None


def _check_no_uniforms(u):
    if u is not None:
        raise ValueError(
            "expected u=None without anchors (LCP), got uniforms; give "
            "anchors=kernel.draw(key, x)"
        )


def _is_below(a, b):
    """Returns a < b, where NaN counts as +inf."""
    return (a < b) | (jnp.isnan(b) & (a < jnp.inf))


def _last_kept(n, values, rank, count):
    """Returns the largest v with p(v) > alpha: p falls, in steps at the scores."""
    values = _numbers.floats_above(values)
    holds = lambda v: count(v) > n + 1 - rank  # noqa: E731
    size = values.shape[0]
    ordered = jnp.append(jnp.sort(values), jnp.inf)
    falls_short = lambda k: (k <= size) & holds(ordered[jnp.minimum(k - 1, size)])  # noqa: E731
    bits = (size + 1).bit_length() if isinstance(size, int) else 31
    k = bisect_keys(falls_short, int, bits=bits)
    last, after = thresholds(values, jnp.stack([k, k + 1]))
    # Between two scores p may be larger than at the second: all below it is in.
    below = _numbers.just_below(after)
    last = jnp.where(holds(below), below, last)
    return jnp.where(holds(after), after, last)


@_checks.verb
def calibrate_local(
    score: Score,
    preds: PyTree,
    y: ArrayLike,
    x: ArrayLike,
    kernel: Any,
    *,
    mask: ArrayLike | None = None,
    classes: Iterable[Hashable] | None = None,
) -> LocalCalibration:
    """Returns the calibration of a score by rows near the test point (RLCP, LCP).

    With anchors z ~ H(x, .), drawn afresh (`kernel.draw(key, x)`), the threshold is the
    weighted conformal quantile with weights H(x_i, z), and H(x, z) of the test point:
    RLCP. Without them it is the largest v with p(v) > alpha, where p(v) = (1 + #{T_i(v)
    >= T_new(v)}) / (n + 1), T_i(v) = (sum_j H_ij 1(S_j < S_i) + h_i 1(v < S_i)) /
    (sum_j H_ij + h_i), T_new(v) = sum_j h_j 1(S_j < v) / (sum_j h_j + H(x, x)), H_ij =
    H(x_i, x_j) and h_i = H(x_i, x): LCP, which is not random.

    Args:
      score: Nonconformity score of one example.
      preds: Predictions for the calibration set, a pytree with leading axis n.
      y: Targets, shape (n, ...), or labels.
      x: Inputs of the rows in which near ones are alike, shape (n, ...), such as a few
        features on one scale; integers become floats.
      kernel: `conditional.Gaussian(bandwidth)`, `conditional.Within(radius)`, or a
        pytree with `weight(x, z)` >= 0 of one pair, the same for (z, x), and
        `draw(key, x)` of a batch.
      mask: True where a row counts, shape (n,). Defaults to all rows.
      classes: Names of the k labels, as for `calibrate`.

    Returns:
      A `LocalCalibration`: call it with predictions, alpha, `x` (m, ...) and perhaps
      `anchors` (m, ...), for smoothed sets with `u` (m,).

    Raises:
      ValueError: as `calibrate`, if a concrete `x` is NaN, or `kernel.weight` of two
        rows is not one number; when called, if `x` is missing or of another shape, or
        there is `u` without `anchors`.

    Guarantee:
      P(Y in set) >= 1 - alpha with anchors, whatever the kernel, and without them for a
      kernel that is symmetric; with anchors and a fresh uniform `u` exactly 1 - alpha.
      Within the kernel coverage is close to 1 - alpha too, the closer the more rows it
      holds (RLCP). Sets are infinite where the rows near by weigh too little. An anchor
      at x itself would have no guarantee.

    Assumption:
      Exchangeable calibration and test examples, and a model fitted on other data;
      anchors drawn from the kernel, a density in z but for a factor that is the same at
      each x; without anchors a symmetric kernel, weight(x, z) = weight(z, x); a kernel
      chosen without the calibration scores.

    Cost:
      RLCP takes O(n) for each test point, and a sort for a block of them; LCP O(n log
      n) for each, and O(n^2) for each call. Test points go in blocks that keep memory
      small.

    References:
      Hore, Barber, Conformal Prediction with Local Weights: Randomization Enables
      Robust Guarantees, Journal of the Royal Statistical Society B, 2025.
      Guan, Localized Conformal Prediction: A Generalized Inference Framework for
      Conformal Prediction, Biometrika, 2023.

    See also:
      calibrate, calibrate_groups, weighted_conformal_quantile, conditional.Gaussian,
      conditional.Within, LocalCalibration

    Example:
      >>> from jaxcp.conditional import Gaussian
      >>> from jaxcp.scores import Absolute
      >>> x, kernel = jnp.arange(9.0), Gaussian(1.0)
      >>> cp = calibrate_local(Absolute(), jnp.zeros(9), x + 1, x, kernel)
      >>> near = jnp.array([1.0, 7.0])
      >>> cp(jnp.zeros(2), 0.4, x=near).upper
      Array([2., 8.], dtype=float32)
      >>> anchors = kernel.draw(jax.random.key(0), near)
      >>> sets = cp(jnp.zeros(2), 0.4, x=near, anchors=anchors)
    """
    names = classes_of(score, classes)
    held, shapes = scored(score, preds, y, mask=mask, classes=names)
    given = _checks.Column(x, _checks.check_not_nan, is_vector=False, required=True)
    _, x, _ = _checks.rows(preds=preds, x=given, mask=_checks.mask(mask))
    x = at_least_single(as_float(x))
    row = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    _checks.check_given(kernel=kernel)
    if not callable(getattr(kernel, "weight", None)):
        kind = type(kernel).__name__
        raise ValueError(
            f"expected a kernel with weight(x, z), such as Gaussian(1.0), got {kind}"
        )
    _checks.check_pytree("kernel", kernel, "conditional.Gaussian")
    found = jax.eval_shape(kernel.weight, row, row)
    if jnp.shape(found) != ():
        raise ValueError(
            f"expected kernel.weight(x, z) of shape (), got {jnp.shape(found)}"
        )
    return LocalCalibration(score, held, x, kernel, shapes, names)
