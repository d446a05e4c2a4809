"""What is fitted with each test point, and how its rows count.

A refit is not symmetric in its rows to the last bit: scores that differ by rounding
alone are equal, so that repeated rows tie.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._batching import map_batches, rows_at_a_time
from jaxcp._numbers import as_float, at_least_single
from jaxcp._tree import jit
from jaxcp.calibration.predictor import Scored
from jaxcp.certificates import MarginalCertificate
from jaxcp.certificates.promises import ALL_ROWS, COVERED
from jaxcp.checking import learners
from jaxcp.held.rows import Context, Held, check_lawful
from jaxcp.held.taking import weights_for
from jaxcp.learners.general import check_learner, check_refitted
from jaxcp.pvalues.conformal import share_of
from jaxcp.quantiles._rows import unit_scale
from jaxcp.quantiles.levels import as_alpha, exact_rank, one_alpha
from jaxcp.quantiles.thresholds import weighted_threshold
from jaxcp.scores import inputs
from jaxcp.typing import ArrayLike, Learner, PyTree

_FEW = 16  # eps that scores of equal rows may be apart


class FittedRows(NamedTuple):
    """A learner, and the rows that it is fitted with, after checks.

    Args:
      key: Random key, the same for all fits.
      learner: The learner.
      x: Inputs, a pytree with leading axis n.
      y: Targets, shape (n, ...).
      weights: Weights >= 0 of the rows' scores, 0 off the mask, shape (n,), or None.
      mask: True for rows that are fitted and count, shape (n,), or None.
    """

    key: Array
    learner: Learner
    x: PyTree
    y: Array
    weights: Array | None
    mask: Array | None

    def filled(self) -> FittedRows:
        """Returns rows with one that counts in the place of those off the mask.

        What padding holds, such as NaN, would be NaN times a weight of 0 too.
        """
        if self.mask is None or not len(self.mask):
            return self
        x, y = _filled((self.x, self.y), self.mask)
        return self._replace(x=x, y=y)

    def check_symmetric(self, check: bool) -> None:
        """Raises ValueError for a learner that tells rows apart, if that is asked."""
        if check:
            learners.check_symmetric_once(self.learner, self.x, self.y, self.key)


def fitted_rows(key, learner, x, y, weights, mask, batch_size):
    """Returns `FittedRows`, or raises ValueError; `y` may be a column of `_checks`."""
    check_refitted(learner)
    _checks.check_key(key)
    if batch_size is not None:
        _checks.check_count("batch_size", batch_size, 1)
    weights, mask = _checks.weights(weights), _checks.mask(mask)
    named = {"y": y, "x": x, "calibration_weights": weights, "mask": mask}
    y, x, weights, mask = _checks.rows(**named)
    check_real("y", y)
    _checks.check_not_nan("y", y, mask)
    check_learner(learner, x, y)
    if weights is not None and mask is not None:
        weights = jnp.where(mask, weights, 0)
    return FittedRows(key, learner, x, y, weights, mask)


def check_real(name, values):
    """Raises ValueError for complex numbers."""
    if jnp.issubdtype(values.dtype, jnp.complexfloating):
        raise ValueError(f"expected {name} as real numbers, got {values.dtype}")


@jit
def fitted(learner, key, x, y, mask):
    """Returns a fit and what it predicts for its rows; those after a mask count."""
    weights = jnp.ones(len(y))
    if mask is not None:
        weights = weights.at[: len(mask)].set(mask)
    params = learner.fit(jax.random.clone(key), x, y, weights)  # the key of every fit
    return params, learner.predict(params, x)


@jit
def _filled(rows, mask):
    one = jnp.argmax(mask)

    def fill(v):
        counts = mask.reshape(-1, *(1,) * (v.ndim - 1))
        return jnp.where(counts, v, v[one])

    return jax.tree.map(fill, rows)


def with_one_more(rows):
    """Returns the shapes of rows and a test point."""
    return jax.tree.map(
        lambda v: jax.ShapeDtypeStruct((len(v) + 1, *v.shape[1:]), v.dtype), rows
    )


def sizes_of_fit(learner, key, x, y):
    """Returns how many numbers inputs are with a test point, and fit and predictions.

    By shapes alone.
    """
    x, y = with_one_more((x, y))
    return size_of(x), size_of(jax.eval_shape(fitted, learner, key, x, y, None))


def in_blocks(cp, batch, *rows, width):
    """Returns `batch(*rows)` of all test points, some at a time, in a near cache.

    For each of them `batch` makes `width` numbers.
    """
    size = cp.batch_size or rows_at_a_time(width)
    return map_batches(batch, *rows, at_a_time=size)


def size_of(tree):
    """Returns how many numbers there are in a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


class Levels(Scored):
    """A mixin for values that are fitted with each test point, and how rows count."""

    num_rows: Any
    components: Any
    weights: Any
    mask: Any
    groups: Any = None
    labels_are_groups: Any = False
    _check_new: Any
    promise = COVERED
    assumption = ALL_ROWS
    _over = "training sets"

    @property
    def has_hulls(self) -> bool:
        """Whether sets close the holes of those of p-values above alpha."""
        return False

    @property
    def held(self) -> Held:
        """The rows, whose scores depend on the test point: their shape alone."""
        scores = jax.ShapeDtypeStruct((self.num_rows, *self.components), float)
        known = self.weights, self.mask, self.groups, self.num_groups
        return Held(scores, *known)

    def rank(self, alpha: ArrayLike) -> Array:
        """Returns the rank k = n + 1 - floor(alpha (n + 1)) of the ends of sets.

        One for each component, shape (c,), of each group, leading axis g; alpha as a
        float where there are weights.
        """
        if not self.components and self.num_groups is None:
            _checks.check_scalars(alpha=as_alpha(alpha))
        return self.held.rank(alpha)

    def certificate(self, alpha: Any) -> Any:
        """Returns the marginal coverage of sets at alpha, k / (n + 1).

        Coverage given the training set has no known law: the fits depend on the test
        point, and scores of other test points are not those of the same ones.

        Args:
          alpha: Miscoverage level in (0, 1), a number.

        Returns:
          A `certificates.MarginalCertificate` for the number of rows that count; not
          `exact` for residuals that are not studentized, whose intervals close holes
          (`union=True` leaves them open), and for scores whose sets may hold more than
          {score <= q}. With groups a tuple of one for each of them.

        Raises:
          ValueError: if `alpha` is outside (0, 1), there are several components or
            weights, whose coverage has no such law, or the mask is traced.

        Guarantee:
          Exact for exchangeable examples whose scores do not tie, where sets are; else
          at least this.

        Example:
          >>> from jaxcp import full_conformal, learners, scores
          >>> x, y = jnp.zeros((9, 1)), jnp.arange(9.0)
          >>> key, ridge = jax.random.key(0), learners.Ridge(1.0)
          >>> cp = full_conformal(key, ridge, scores.Absolute(), x, y)
          >>> cp.certificate(0.25).coverage
          0.8
        """
        check_lawful(self.components, self.weights, (self.mask, self.groups))
        share = one_alpha(np.asarray(alpha) if isinstance(alpha, Array) else alpha)
        exact = inputs.is_exact(self.score) and not self.has_hulls
        found = tuple(
            MarginalCertificate(n, share, exact_rank(n, share), exact)
            for n in np.ravel(self.held.counts()).tolist()
        )
        return found if self.held.shape else found[0]

    def _points(self, x_new, test_weights, groups=None, **columns):
        """Returns inputs, their context, and other columns, after checks."""
        weights, own = weights_for(self.weights, test_weights), _checks.optional(None)
        if groups is not None or not self.labels_are_groups:
            own = self._given_groups(groups)
        columns = {"test_weights": weights, "groups": own, **columns}
        named = {"x_new": x_new, **columns}
        x, weights, groups, *others = _checks.rows(**named)
        self._check_new(x)
        if weights is None and self.weights is not None:
            weights = jax.device_put(np.ones(_checks.num_rows(x_new=x)))
        return x, Context(groups, weights), *others


def slack_of(own, pred):
    """Returns how far rounding may move a score of a prediction."""
    leaves = [own, *map(as_float, jax.tree.leaves(pred))]
    eps = max(jnp.finfo(leaf.dtype).eps for leaf in leaves)
    sizes = [jnp.where(jnp.isfinite(v), jnp.abs(v), 0) for v in leaves]
    largest = sum(jnp.max(v, initial=0) for v in sizes)
    return lax.stop_gradient(_FEW * eps * largest).astype(own.dtype)


def is_kept(cp, rank, context, scores, own, slack):
    """Returns whether p > alpha: fewer than k scores are below the own one.

    With weights `rank` is alpha. Scores are of shape (n,); an own score that is NaN
    says nothing against its target.
    """
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    lowest = own - slack
    rank, mask, weights, test_weight = cp.held.at(context, rank)
    if weights is None:
        below = scores < lowest
        below = below if mask is None else below & mask
        fits = jnp.sum(below) < rank  # #{S_i < S_n+1} < k
    else:
        weights, test_weight = as_float(weights), as_float(test_weight)
        fits = lowest <= weighted_threshold(scores, weights, rank, test_weight)
    return fits | jnp.isnan(own)


def p_value(cp, u, context, scores, own, slack):
    """Returns (#{S_i > S_n+1} + u (1 + #{S_i = S_n+1}))/(n + 1), counts or masses."""
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    p = share_above(cp, u, context, scores >= own - slack, scores > own + slack)
    return jnp.where(jnp.isnan(own), 1, p)


def share_above(cp, u, context, at_least, above):
    """Returns the p-value where these rows are at least as strange, and stranger."""
    u = jnp.ones(()) if u is None else as_float(u)
    _, mask, weights, own = cp.held.at(context)
    if weights is None:
        counts = jnp.ones(len(at_least), bool) if mask is None else mask
        masses, test_weight = counts.astype(int), jnp.ones((), u.dtype)
    else:
        weights, own = (at_least_single(as_float(v)) for v in (weights, own))
        masses, test_weight = unit_scale(weights, own)
    most, more = (jnp.sum(jnp.where(v, masses, 0)) for v in (at_least, above))
    return share_of(more, most - more, jnp.sum(masses), u, test_weight)
