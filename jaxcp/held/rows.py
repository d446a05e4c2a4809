"""The rows that a calibration holds: what each is worth, and how it counts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _arrays, _checks, _numbers
from jaxcp._batching import map_evenly, on_device, repeated, rows_at_a_time
from jaxcp._numbers import as_float, at_least_single, over_shards
from jaxcp._tree import jit, known_at_once, pytree, static
from jaxcp.certificates import certificate
from jaxcp.pvalues.conformal import (
    conformal_p_value,
    mass_of,
    p_values_among,
    p_values_in_groups,
)
from jaxcp.quantiles import thresholds
from jaxcp.quantiles._rows import bounds_of
from jaxcp.quantiles.levels import alpha_as_float, as_delta, ranks, split_alpha
from jaxcp.scores import inputs
from jaxcp.typing import ArrayLike, AxisName, Number, PyTree, Score

_FEW = 2**14  # rows that numpy counts sooner than a program is compiled for them


class Context(NamedTuple):
    """What is read of test points, one or with leading axis m.

    Args:
      group: Group in 0, ..., num_groups - 1, shape () or (m,), or None.
      weight: Weight, shape () or (m,), or None.
    """

    group: Array | None = None
    weight: Array | None = None


@pytree
class Held:
    """Rows that a model was not fitted on: their scores, and how each one counts.

    Every calibration is a score with such rows. A `Rule` of your own that has them in a
    field `held` and weighs them (`weights_at`) has sets, p-values and smoothed sets.

    Args:
      values: What each row is worth: scores, shape (n,) or (n, c), or any pytree with
        leading axis n of which losses are computed.
      weights: Weights >= 0, shape (n,), or None. A tuple (low, high) of two arrays has
        bounds of weights that are not known: thresholds and p-values are then those of
        the worst ones.
      mask: True where a row counts, shape (n,), or None.
      groups: Group of each row in 0, ..., num_groups - 1, shape (n,), or None.
      num_groups: Number of groups g, or None.
      clusters: Cluster of each row in 0, ..., n - 1, shape (n,), or None. Weights are
        then `of_clusters`.

    Guarantee:
      None of its own: that of the calibration.

    Assumption:
      The rows and the test points are exchangeable, or as the weights say.

    Cost:
      Thresholds take O(n) each, without a sort; p-values of m points one sort.

    See also:
      Rule, Calibration, GroupCalibration, calibrate

    Example:
      >>> rows = Held(jnp.arange(1.0, 10.0), mask=jnp.arange(9) < 4)
      >>> int(rows.counts()), float(rows.threshold(rows.rank(0.2)))
      (4, 4.0)
    """

    values: PyTree
    weights: Array | tuple[Array, Array] | None = None
    mask: Array | None = None
    groups: Array | None = None
    num_groups: int | None = static(default=None)
    clusters: Array | None = None

    @property
    def components(self) -> tuple[int, ...]:
        """Shape of one score: () or (c,)."""
        return self.values.shape[1:]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what rows have together: (), or (g,) with one for each group."""
        return () if self.num_groups is None else (self.num_groups,)

    @property
    def mass(self) -> Any:
        """What each row counts: its weight, 0 off the mask, a flag, or None for 1."""
        return mass_of(self.weights, self.mask)

    def counts(self, axis_name: AxisName = None) -> Any:
        """Returns how many rows count, of all shards, shape () or (g,)."""
        if self.groups is not None and self.num_groups is not None:
            count: Any = _arrays.count_groups(self.groups, self.num_groups, self.mask)
        else:
            count = _arrays.count_rows(jax.tree.leaves(self.values)[0], self.mask)
        return over_shards(lax.psum, count, axis_name)

    def sums(self, numbers: Array, axis_name: AxisName = None) -> Array:
        """Returns sums of numbers of rows that count, () or (g,); flags are counted."""
        if self.weights is not None:
            mass = cast(Array, self.mass)
            numbers = jnp.where(mass > 0, mass * numbers, 0)
        elif self.mask is not None:
            numbers = jnp.where(self.mask, numbers, jnp.zeros((), numbers.dtype))
        dtype = int if numbers.dtype == bool else at_least_single(numbers).dtype
        if self.groups is not None and self.num_groups is not None:
            numbers = numbers.astype(dtype)
            sums = _arrays.sums_of_groups(numbers, self.groups, self.num_groups)
        else:
            sums = jnp.sum(numbers, dtype=dtype)
        return over_shards(lax.psum, sums, axis_name)

    def effective_size(self) -> Array:
        """Returns Kish's (sum w)^2 / sum w^2, as many rows of one weight, () or (g,).

        Kish, Survey Sampling, Wiley, 1965. 0 where no row counts; of bounds that of the
        upper ends. K clusters, which weigh 1 each, are as many as K rows.
        """
        if self.weights is None:
            return jnp.asarray(self.counts(), float)
        if self.clusters is not None:
            return self.sums(jnp.ones(self.clusters.shape))
        *_, weights = jax.tree.leaves(self.weights)
        largest = jnp.max(weights, initial=0)  # squares do not overflow
        share = as_float(weights) / jnp.where(largest > 0, largest, 1)
        held = dataclasses.replace(self, weights=share)
        squares = held.sums(share)
        return held.sums(jnp.ones_like(share)) ** 2 / jnp.where(squares > 0, squares, 1)

    def of_clusters(self) -> Held:
        """Returns the rows with weights 1 / N_k, if they have clusters.

        N_k is how many rows of a cluster count, with groups in that group.
        """
        if self.clusters is None:
            return self
        few = self.groups is None and np.size(self.clusters) <= _FEW
        weights = (_shares if few else _shares_at_once)(self)
        return dataclasses.replace(self, weights=weights)

    def check_without_clusters(self, name: str, *values: Any) -> None:
        """Raises ValueError for what is known of rows without clusters alone."""
        if self.clusters is not None and any(v is not None for v in values):
            raise ValueError(
                f"expected {name} only for rows without clusters, whose coverage has a "
                "known law, got clusters; keep one row of each, drawn at random: i = "
                "rng.permutation(n), rows = i[numpy.unique(ids[i], return_index=True)"
                "[1]], then mask=numpy.isin(numpy.arange(n), rows) without clusters"
            )

    def rank(self, alpha: ArrayLike, delta: Number | None = None) -> Array:
        """Returns the ranks k = n + 1 - floor(alpha (n + 1)) of the thresholds.

        One for each group and component, shape (), (c,), (g,) or (g, c); alpha as a
        float where there are weights. With `delta` ranks for which all components cover
        1 - alpha with that probability: c components at delta / c each.
        """
        alpha = split_alpha(alpha, self.components)
        shape = *self.shape, *self.components
        if self.num_groups is None and alpha.ndim > 1:
            raise ValueError(f"expected alpha of shape () or (a,), got {alpha.shape}")
        if self.shape and not self.components and alpha.shape not in ((), shape):
            expected = f"() or ({self.num_groups},), one a group"
            raise ValueError(f"expected alpha of shape {expected}, got {alpha.shape}")
        if delta is not None:
            return self._sure_rank(alpha, delta)
        if self.weights is None:
            return ranks(self._counts(), alpha)
        alpha = alpha_as_float(alpha)
        return jnp.broadcast_to(alpha, shape) if self.shape else alpha

    def _sure_rank(self, alpha, delta):
        self.check_without_clusters("delta", delta)
        if self.weights is not None:
            raise ValueError(
                f"expected delta=None for a calibration with weights, got {delta}; its "
                "coverage has no exact law: leave out delta, or keep each row with "
                "probability weight / bound and calibrate on those without weights"
            )
        is_open = not isinstance(len_of(self.values), int)  # in an export: not known
        with nullcontext() if is_open else known_at_once():
            count = self._counts()
        # A union bound: each of c components misses its share of delta at most.
        return ranks(count, alpha, as_delta(delta) / math.prod(self.components))

    def _counts(self):
        """Returns how many rows count, shape (), (g,), or (g, 1) with components."""
        if not self.shape:
            return self.counts()
        return self.counts().reshape(-1, *(1,) * len(self.components))

    def threshold(
        self, rank: Any, test_weight: Array | None = None, u: Array | None = None
    ) -> Array:
        """Returns the score of this rank, +inf beyond the last, shape () or (c,).

        With groups of each of them, leading axis g. With test weights of labels, (k,),
        one for each of these. With a uniform `u` the bound of a
        smoothed set, for a rank and alpha.
        """
        self.check_without_clusters("u or test weights", u, test_weight)
        _checks.check_test_weights("test_weight", test_weight, self.weights)
        self._check_uniforms(u)
        if self.num_groups is not None:
            if self.weights is None and u is None:
                own = self.groups, self.mask
                return thresholds.group_thresholds(self.values, rank, *own)
            if u is not None:
                rank = rank[0], jnp.broadcast_to(rank[1], rank[0].shape)
            of = lambda g, k: self.of_group(g).threshold(k, test_weight, u)  # noqa: E731
            groups, n = jnp.arange(self.num_groups), len_of(self.values)
            most = rows_at_a_time(n) if isinstance(n, int) else 1
            most = max(most, _arrays.FEW_GROUPS)
            return map_evenly(of, groups, rank, at_a_time=most)
        weights = None if self.weights is None else self.mass
        known = self.mask, weights, test_weight
        if test_weight is not None and np.ndim(test_weight):  # one a label
            of = lambda w: self.threshold(rank, w, u)  # noqa: E731
            most = len(test_weight) if u is None else 1  # which share no pass
            return map_evenly(of, test_weight, at_a_time=most)
        if u is None:
            return thresholds.threshold_at(self.values, rank, *known)
        k, alpha = rank
        return thresholds.smoothed_threshold(self.values, k, alpha, u, *known)

    def of_group(self, group: Array) -> Held:
        """Returns the rows of one group."""
        inside = jnp.asarray(self.groups == group)
        inside = inside if self.mask is None else inside & self.mask
        weights = jax.tree.map(lambda w: jnp.where(inside, w, 0), self.weights)
        return Held(self.values, weights, inside, clusters=self.clusters)

    def twice(self, again: Array) -> Held:
        """Returns the rows, and those with a flag once more, as a further group."""
        g, groups = cast(int, self.num_groups), cast(Array, self.groups)
        mask = jnp.ones_like(again) if self.mask is None else self.mask
        rows = self.values, self.weights, mask, groups
        more = self.values, self.weights, again, jnp.full_like(groups, g)
        both = jax.tree.map(lambda *v: jnp.concatenate(v), rows, more)
        own: Any = *both, g + 1
        return Held(*own)

    def at(self, context: Context, rank: Any = None) -> tuple:
        """Returns what decides at one test point: rank, mask, weights and its weight.

        Of the rows of its group alone; where that is unknown none, and a rank that is
        beyond all rows.
        """
        if context.group is None:
            return rank, self.mask, self.weights, context.weight
        own = self.of_group(context.group)
        if rank is not None:  # alpha where there are weights
            beyond = 0 if self.weights is not None else jnp.iinfo(rank.dtype).max
            at = _arrays.group_codes(context.group, len(rank))
            rank = rank.at[at].get(mode="fill", fill_value=beyond)
        return rank, own.mask, own.weights, context.weight

    def mass_at(self, groups: Array | None) -> Array | None:
        """Returns `mass`; with groups that of their rows alone, shape (m, n)."""
        if groups is None:
            return self.mass
        return jax.vmap(lambda group: self.of_group(group).mass)(groups)

    def p_values(
        self,
        scores: Array,
        u: Array | None = None,
        test_weights: Array | None = None,
        groups: Array | None = None,
        *,
        rounds: bool = False,
    ) -> Array:
        """Returns the share of rows at least as strange as each score, shape (m,).

        Among the rows of its group where there are groups, 1 for unknown ones. `rounds`
        says that sets hold scores that exceed a threshold by rounding alone.
        """
        self.check_without_clusters("u or test weights", u, test_weights)
        _checks.check_test_weights("test_weights", test_weights, self.weights)
        self._check_uniforms(u)
        values = _numbers.with_rounding(self.values) if rounds else self.values
        if groups is None:
            return p_values_among(values, scores, u, self.mass, test_weights)
        if self.weights is None:
            own = groups, self.num_groups, u, self.mask
            return p_values_in_groups(values, self.groups, scores, *own)
        held = dataclasses.replace(self, values=values)

        of = lambda held: held.p_values(scores, u, test_weights)  # noqa: E731
        return held.in_groups(of, groups, 1, (scores, u, test_weights))

    def p_value(self, score: Array, u: Any, test_weight: Array, *, rounds: bool) -> Any:
        """Returns the p-value of one score, () or (c,), by a count of the rows."""
        self._check_uniforms(u)
        values = _numbers.with_rounding(self.values) if rounds else self.values
        low, high = bounds_of(self.mass)

        def of(values, score):  # the worst of the weights: low below the score
            below = values < jnp.where(jnp.isnan(score), jnp.inf, score)
            weights = high if low is high else jnp.where(below, low, high)
            known = {"weights": weights, "test_weight": test_weight}
            return conformal_p_value(values, score, u=1.0 if u is None else u, **known)

        if values.ndim == 1:
            return of(values, score)
        p = jax.vmap(of, (1, 0))(values, score)
        return jnp.minimum(1, len(p) * jnp.min(p))  # Bonferroni

    def _check_uniforms(self, u):
        """Raises ValueError for uniforms where weights are known by bounds."""
        if u is not None and isinstance(self.weights, tuple):
            raise ValueError(
                "expected u=None, for weights that are known by bounds, got uniforms"
            )

    def in_groups(
        self, of: Callable, groups: Array, otherwise: Number, given: PyTree
    ) -> Array:
        """Returns `of(rows)`, row by row, of the rows in the group of each test point.

        Else a number, of groups out of range. `given` is what the function reads.
        """

        def fill(found, g):
            own = (groups == g).reshape(-1, *(1,) * (found.ndim - 1))
            return jnp.where(own, of(self.of_group(g)), found), None

        like = jax.eval_shape(lambda g: of(self.of_group(g)), jnp.zeros((), int))
        start = jnp.full(like.shape, otherwise, like.dtype)
        start = _numbers.varying_like(start, (self, groups, given))
        return lax.scan(fill, start, jnp.arange(self.num_groups))[0]

    def certificate(self, score: Score, alpha: Any, delta: Number | None = None) -> Any:
        """Returns the law of the coverage of a score's sets, of each group its own.

        Of sets that may hold more than {score <= q} a bound.
        """
        self.check_without_clusters("a certificate", alpha)
        check_lawful(self.components, self.weights, (self.mask, self.groups))
        exact = inputs.is_exact(score)
        found = tuple(
            dataclasses.replace(certificate(int(n), alpha, delta), exact=exact)
            for n in np.ravel(self.counts())
        )
        return found if self.shape else found[0]

    def filled(self, size: int) -> Held:
        """Returns the same rows with others that do not count, `size` together."""
        counts = np.arange(size) < len_of(self.values)
        rows = self.values, self.weights, self.mask, self.groups, self.clusters
        values, weights, mask, groups, clusters = repeated(rows, size)
        if weights is not None:
            weights = jax.tree.map(lambda w: np.where(counts, w, 0), weights)
        mask = counts if mask is None else counts & mask
        columns: Any = {"values": values, "weights": weights, "mask": mask}
        return dataclasses.replace(self, **columns, groups=groups, clusters=clusters)


def _shares(held):
    """Returns 1 / N_k of each row; by numpy, which compiles nothing, where it can."""
    codes, groups = held.clusters, held.groups
    of = lambda v: _arrays.count_groups(codes, codes.shape[0], v.mask)[codes]  # noqa: E731
    sizes = of(held) if groups is None else held.in_groups(of, groups, 0, None)
    own: Any = jnp if isinstance(sizes, Array) else np
    counts = True if held.mask is None else own.asarray(held.mask)
    shares = own.where(counts, 1 / own.maximum(sizes, 1), 0)
    return shares if own is jnp else on_device(shares)


_shares_at_once = jit(_shares)


def at_groups(q: Array, groups: Array, otherwise: Any = jnp.inf) -> Array:
    """Returns the threshold, of (g, ...), of each group; +inf of unknown ones."""
    codes = _arrays.group_codes(groups, len(q))
    return q.at[codes].get(mode="fill", fill_value=otherwise)


def len_of(rows: PyTree) -> Any:
    """Returns how many rows there are: an int, but in an export that leaves it open."""
    return jax.tree.leaves(rows)[0].shape[0]


def check_lawful(components: tuple, weights: Any, mask: PyTree) -> None:
    """Raises ValueError where coverage has no exact law, or is not known here."""
    if weights is not None or math.prod(components) > 1:
        raise ValueError(
            "expected a calibration without weights or several components, whose "
            f"coverage has no exact law, got {math.prod(components)} components"
            + ("" if weights is None else " and weights")
        )
    if not _arrays.is_concrete(mask):
        raise ValueError("expected a mask with values, got a traced one")
