"""Is a stream exchangeable: bets along its p-values, when to alarm, permutations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._batching import map_evenly, rows_at_a_time
from jaxcp._numbers import (
    add_exactly,
    as_float,
    at_least_single,
    kept,
    mean,
    varying_like,
)
from jaxcp._tree import as_function, jit, pytree, static
from jaxcp.quantiles._keys import to_keys
from jaxcp.quantiles.levels import alpha_as_float, as_alpha
from jaxcp.typing import (
    ArrayLike,
    CheckedMartingale,
    Martingale,
    MemorylessMartingale,
    Number,
    PyTree,
)

_STRETCH = 2**14  # numbers of a stretch, of states with several numbers
_BLOCK = 32  # bets that one product sums up


def summed_bets(martingale, p_values, state):
    """Returns the state after a stream, and the log of the capital all along."""
    width = sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(state))
    most = len(p_values) if width <= 1 else max(_STRETCH // width, 1)

    @jax.vmap
    def bets_of(p_value):
        bets = as_carry(martingale.log_bet(p_value), p_values.dtype)
        return jax.tree.map(lambda v, s: jnp.broadcast_to(v, s.shape), bets, state)

    leaves, tree = jax.tree.flatten(state)

    def go(totals, stretch):
        p_values, count = stretch
        bets = jax.tree.map(partial(kept, count=count), bets_of(p_values))
        sums = [running_sums(jnp.zeros_like(v[0]), v) for v in jax.tree.leaves(bets)]
        states = [start[None] + v for (start, _), v in zip(totals, sums, strict=True)]
        log_capital = jax.vmap(martingale.log_capital)(jax.tree.unflatten(tree, states))
        pairs = zip(totals, sums, strict=True)
        return [_add_last(total, v) for total, v in pairs], log_capital

    totals = [(v, jnp.zeros_like(v)) for v in leaves]
    totals, rows = lax.scan(go, totals, _stretches(p_values, max(most, 1)))
    state = jax.tree.unflatten(tree, [total for total, _ in totals])
    return state, rows.reshape(-1, *rows.shape[2:])[: len(p_values)]


def running_sums(start: Array, terms: Array) -> Array:
    """Returns start + terms[0] + ... + terms[i] for each i, also of infinities.

    Terms are one block or several whole ones.
    """
    if terms.ndim > 1 or not jnp.issubdtype(terms.dtype, jnp.floating):
        return _one_by_one(start, terms)
    # A product with an infinite number is NaN where it should be another number.
    finite = jnp.all(jnp.abs(terms) < jnp.inf)
    return lax.cond(finite, _in_blocks, _one_by_one, start, terms)


def _one_by_one(start, terms):
    return lax.scan(lambda total, term: (total + term,) * 2, start, terms)[1]


def _add_last(total: tuple[Array, Array], sums: Array) -> tuple[Array, Array]:
    """Returns a sum and its excess after a stretch; infinite ones have no excess."""
    total, excess = add_exactly(total, sums[-1])
    return total, jnp.where(jnp.isfinite(total), excess, jnp.zeros_like(excess))


def _in_blocks(start, terms):
    """Returns running sums by products of blocks with a triangle of ones."""
    blocks = terms.reshape(-1, min(_BLOCK, len(terms)))
    ones = jnp.triu(jnp.ones((blocks.shape[1],) * 2, terms.dtype))
    sums = jnp.dot(blocks, ones, precision=lax.Precision.HIGHEST)

    def step(total: tuple[Array, Array], block: Array) -> tuple:
        return add_exactly(total, block), total[0]

    before: Array = lax.scan(step, (start, jnp.zeros_like(start)), sums[:, -1])[1]
    return (sums + before[:, None]).reshape(-1)


def as_carry(state: PyTree, dtype: DTypeLike) -> PyTree:
    """Returns a state whose floats have the type of the p-values: a carry keeps it."""

    def cast(v):
        v = jnp.asarray(v)
        return v.astype(dtype) if jnp.issubdtype(v.dtype, jnp.floating) else v

    return jax.tree.map(cast, state)


def _stretches(p_values, most):
    """Returns p-values as rows of at most that many, and how many of each count."""
    n = len(p_values)
    length = -(-n // max(-(-n // most), 1))
    step = min(_BLOCK, max(length, 1))
    length = max(-(-length // step), 1) * step  # whole blocks, or no more than one
    rows = jnp.pad(p_values, (0, -n % length), constant_values=1).reshape(-1, length)
    counts = np.clip(n - length * np.arange(len(rows)), 0, length)
    return rows, None if rows.size == n else counts


@pytree
class PowerMartingale:
    """Bets epsilon p^(epsilon - 1) on every p-value, and wins on small ones.

    Args:
      epsilon: In (0, 1), shape (); 1 bets nothing, small values bet on very small p.

    Guarantee:
      P(the capital ever reaches c) <= 1/c.

    Assumption:
      Independent uniform p-values, such as those of `sequential_p_values` on
      exchangeable streams.

    Cost:
      O(1) time for a p-value; a stream is summed at once.

    References:
      Vovk, Nouretdinov, Gammerman, Testing Exchangeability On-Line, ICML, 2003.

    See also:
      pvalues.watch, pvalues.MixtureMartingale, pvalues.SimpleJumper

    Example:
      >>> from jaxcp.pvalues import watch
      >>> _, log_capital = watch(PowerMartingale(0.5), jnp.array([0.01, 0.01]))
      >>> log_capital.round(2)
      Array([1.61, 3.22], dtype=float32)
    """

    epsilon: Number

    def init(self) -> Array:
        """Returns the log of the capital, shape ()."""
        return jnp.zeros(())

    def step(self, state: Array, p_value: Array) -> tuple[Array, Array]:
        """Returns the log of the capital after a bet, twice."""
        state = state + self.log_bet(p_value)
        return state, state

    def log_bet(self, p_value: Array) -> Array:
        """Returns by how much a p-value adds to the log of the capital, shape ()."""
        return _log_bet(self.epsilon, p_value)

    def log_capital(self, state: Array) -> Array:
        """Returns the state, which is the log of the capital."""
        return state

    def check(self) -> None:
        """Raises ValueError if a concrete epsilon is outside (0, 1]."""
        valid = lambda v: (v > 0) & (v <= 1)  # noqa: E731
        _checks.check_number("epsilon", self.epsilon, valid, "in (0, 1]")


@pytree
class MixtureMartingale:
    """Shares its capital among power martingales with epsilons all over (0, 1).

    The mean over a grid of midpoints: there is no epsilon to choose, at the price of a
    factor of at most `num_powers`.

    Args:
      num_powers: Number of power martingales.

    Guarantee:
      P(the capital ever reaches c) <= 1/c.

    Assumption:
      Independent uniform p-values, such as those of `sequential_p_values` on
      exchangeable streams.

    Cost:
      O(`num_powers`) time for a p-value; a stream is summed at once.

    References:
      Vovk, Nouretdinov, Gammerman, Testing Exchangeability On-Line, ICML, 2003.

    See also:
      pvalues.watch, pvalues.PowerMartingale, pvalues.SimpleJumper

    Example:
      >>> from jaxcp.pvalues import watch
      >>> _, log_capital = watch(MixtureMartingale(), jnp.full(3, 0.01))
      >>> log_capital.round(2)
      Array([1.49, 3.24, 5.1 ], dtype=float32)
    """

    num_powers: int = static(default=32)

    def init(self) -> Array:
        """Returns the log of the capital of each martingale, shape (num_powers,)."""
        return jnp.zeros(self.num_powers)

    def step(self, state: Array, p_value: Array) -> tuple[Array, Array]:
        """Returns the logs after a bet, and the log of their mean."""
        state = state + self.log_bet(p_value)
        return state, self.log_capital(state)

    def log_bet(self, p_value: Array) -> Array:
        """Returns by how much a p-value adds to each log, shape (num_powers,)."""
        epsilons = (jnp.arange(self.num_powers) + 0.5) / self.num_powers
        return _log_bet(epsilons, p_value)

    def log_capital(self, state: Array) -> Array:
        """Returns the log of the mean capital, shape ()."""
        return jax.nn.logsumexp(state) - math.log(self.num_powers)

    def check(self) -> None:
        """Raises ValueError unless `num_powers` is a positive int."""
        _checks.check_count("num_powers", self.num_powers, 1)


@pytree
class SimpleJumper:
    """Bets 1 + epsilon (p - 1/2) with epsilons -1, 0, 1, and jumps between them.

    Before every bet each epsilon gives the share `jump` of its capital to all three. It
    notices p-values that turn small, large, or small again.

    Args:
      jump: Share in [0, 1], shape ().

    Guarantee:
      P(the capital ever reaches c) <= 1/c.

    Assumption:
      Independent uniform p-values, such as those of `sequential_p_values` on
      exchangeable streams.

    Cost:
      O(1) time for a p-value, one after the other.

    References:
      Vovk et al., Retrain or Not Retrain: Conformal Test Martingales for Change-Point
      Detection, COPA, 2021.

    See also:
      pvalues.watch, pvalues.PowerMartingale, pvalues.alarm_level

    Example:
      >>> from jaxcp.pvalues import watch
      >>> _, log_capital = watch(SimpleJumper(), jnp.full(100, 0.05))
      >>> round(log_capital[-1].item(), 2)
      35.42
    """

    jump: Number = 0.01

    def init(self) -> tuple[Array, Array]:
        """Returns the log of the capital, and the share of each epsilon in it."""
        return jnp.zeros(()), jnp.full(3, 1 / 3)

    def step(
        self, state: tuple[Array, Array], p_value: Array
    ) -> tuple[tuple[Array, Array], Array]:
        """Returns the state after a bet, and the log of the capital."""
        log_capital, shares = state
        epsilons = jnp.array([-1.0, 0.0, 1.0])
        edge = jnp.clip(jnp.where(jnp.isnan(p_value), 0.5, p_value), 0, 1) - 0.5
        shares = (shares * (1 - self.jump) + self.jump / 3) * (1 + epsilons * edge)
        growth = jnp.sum(shares)
        log_capital = log_capital + jnp.log(growth)
        return (log_capital, shares / growth), log_capital

    def check(self) -> None:
        """Raises ValueError if a concrete jump is outside [0, 1]."""
        valid = lambda v: (v >= 0) & (v <= 1)  # noqa: E731
        _checks.check_number("jump", self.jump, valid, "in [0, 1]")


def _log_bet(epsilon, p_value):
    """Returns log(epsilon p^(epsilon - 1)), which for p = 0 would be infinite for good.

    The bet is a little below this one, which keeps the guarantee.
    """
    tiny, known = jnp.finfo(p_value.dtype).tiny, ~jnp.isnan(p_value)
    log_p = jnp.log(jnp.clip(jnp.where(known, p_value, 1), tiny, 1))
    return jnp.where(known, jnp.log(epsilon) + (epsilon - 1) * log_p, 0)


_SHORT = 2**12  # p-values up to which a scan takes less time than sums of blocks


def watch(
    martingale: Martingale, p_values: ArrayLike, state: PyTree | None = None
) -> tuple[PyTree, Array]:
    """Returns the log of the capital of a test martingale along a stream of p-values.

    One `lax.scan`, or sums where bets depend on nothing but their p-value; the state
    goes on with later p-values.

    Args:
      martingale: `PowerMartingale`, `MixtureMartingale`, `SimpleJumper`, or anything
        with their methods: `init` and `step`, and where bets do not depend on the state
        those of `jaxcp.typing.MemorylessMartingale`, which are faster.
      p_values: Smoothed p-values in order of time, shape (t,), independent and uniform
        as long as nothing changes: those of `sequential_p_values`. A NaN is no bet.
        Not those among one calibration set, of `Calibration.p_values` or
        `outlier_p_values`, which depend on each other.
      state: State to go on from. Defaults to `martingale.init()`.

    Returns:
      (state after the stream, log of the capital after each p-value, shape (t,)). It
      reaches `alarm_level(alpha)` with probability at most alpha if nothing changes.

    Raises:
      ValueError: if a concrete p-value is outside [0, 1] or a parameter of the
        martingale is not valid.

    Guarantee:
      P(the capital ever reaches c) <= 1/c, at any time (Ville).

    Assumption:
      An exchangeable stream, and smoothed p-values that are independent and uniform on
      it. Smoothed p-values among one calibration set are uniform, but not independent:
      for 500 rows against 100, `SimpleJumper` reaches `alarm_level(0.05)` in 24 % of
      the streams on which nothing changes.

    Cost:
      O(t) time: one `lax.scan`, or sums of blocks where bets depend on nothing but
      their p-value.

    References:
      Vovk, Testing Randomness Online, Statistical Science, 2021.

    See also:
      pvalues.sequential_p_values, pvalues.alarm_level, pvalues.SimpleJumper,
      online.ExchangeabilityMonitor, typing.Martingale

    Example:
      >>> from jaxcp.pvalues import SimpleJumper
      >>> scores = jnp.arange(40.0)  # ever stranger
      >>> u = jax.random.uniform(jax.random.key(0), (40,))
      >>> p_values = jaxcp.pvalues.sequential_p_values(scores, u)
      >>> _, log_capital = watch(SimpleJumper(), p_values)
      >>> (log_capital >= alarm_level(0.01)).any().item()
      True
    """
    p_values = at_least_single(as_float(as_array("p_values", p_values)))
    _checks.check_given(martingale=martingale)
    _checks.check_kind("a martingale with init and step", martingale, Martingale)
    _checks.check_vectors(p_values=p_values)
    _checks.check_values(_are_p_values, "p_values in [0, 1]", p_values)
    if isinstance(martingale, CheckedMartingale):
        martingale.check()
    state = martingale.init() if state is None else state
    return capital_along(martingale, p_values, state)


def alarm_level(alpha: ArrayLike) -> Array:
    """Returns the log of the capital at which to raise an alarm: log(1 / alpha).

    Args:
      alpha: Probability of a false alarm, ever, in (0, 1), any shape.

    Returns:
      log(1 / alpha), the shape of `alpha`.

    Raises:
      ValueError: if a number `alpha` is outside (0, 1).

    Guarantee:
      P(the log of the capital ever reaches it) <= alpha.

    Assumption:
      An exchangeable stream, and p-values as `watch` asks for.

    Cost:
      O(1) time for each level.

    References:
      Ville, Etude critique de la notion de collectif, Gauthier-Villars, 1939.

    See also:
      pvalues.watch, pvalues.sequential_p_values

    Example:
      >>> alarm_level(0.01).round(4)
      Array(4.6052, dtype=float32)
    """
    return -jnp.log(alpha_as_float(as_alpha(alpha)))


def _are_p_values(p):
    """Returns whether all numbers are in [0, 1] or NaN, or which of them."""
    if np.fmin.reduce(p, initial=0) == 0 and np.fmax.reduce(p, initial=1) == 1:
        return True  # no arrays as long as the stream
    return ~((p < 0) | (p > 1))


@jit
def capital_along(
    martingale: Martingale, p_values: Array, state: PyTree
) -> tuple[PyTree, Array]:
    """Returns what `watch` does, of checked values, which need not be p-values."""
    state = varying_like(as_carry(state, p_values.dtype), p_values)
    n = p_values.shape[0]  # which an export may leave open
    if isinstance(n, int) and n > _SHORT and _has_sums(type(martingale)):
        return summed_bets(martingale, p_values, state)

    def step(state, p_value):
        state, log_capital = martingale.step(state, p_value)
        return as_carry(state, p_values.dtype), log_capital

    return lax.scan(step, state, p_values)


def _has_sums(kind):
    """Returns whether bets can be summed: `step` of a subclass may do anything."""
    if not issubclass(kind, MemorylessMartingale):
        return False
    return "log_bet" in vars(next(k for k in kind.__mro__ if "step" in vars(k)))


def permutation_test(
    key: Array, scores: PyTree, statistic: Callable, *, num_permutations: int = 999
) -> Array:
    """Returns a p-value of the claim that rows are exchangeable, by any statistic.

    p = (1 + #{b : T_b >= T}) / (1 + `num_permutations`), T the statistic of the rows in
    their order, T_b of the same rows in random order. Ties count.

    Args:
      key: Random key.
      scores: Scores in order of time, shape (n,), or rows, a pytree with leading axis
        n. For a look at one time; `watch` is for looks at all times.
      statistic: Function of rows in some order that returns a number, large where it
        speaks against exchangeability, such as a difference of two halves. NaN makes p
        larger: 1, if the rows in their order have it.
      num_permutations: Number of random orders.

    Returns:
      p-value in [1 / (1 + num_permutations), 1], shape ().

    Raises:
      ValueError: if `key` is no random key, `scores` has no leading axis, the statistic
        is no function or returns no number, or `num_permutations` is no int >= 1.

    Guarantee:
      P(p <= t) <= t for each t in [0, 1].

    Assumption:
      The rows are exchangeable.

    Cost:
      `num_permutations` + 1 statistics, in blocks.

    References:
      Phipson, Smyth, Permutation P-values Should Never Be Zero, Statistical
      Applications in Genetics and Molecular Biology, 2010.

    See also:
      pvalues.watch, online.ExchangeabilityMonitor, pvalues.sequential_p_values

    Example:
      >>> rises = lambda scores: jnp.mean(scores[20:]) - jnp.mean(scores[:20])
      >>> p = permutation_test(jax.random.key(0), jnp.arange(40.0), rises)
      >>> round(p.item(), 6)
      0.001
    """
    _checks.check_key(key)
    _checks.check_count("num_permutations", num_permutations, 1)
    scores, statistic = _checks.rows(scores=scores), as_function("statistic", statistic)
    return _permutation_test(key, scores, statistic, num_permutations)


@partial(jit, static_argnames="num_permutations")
def _permutation_test(key, scores, statistic, num_permutations):
    n = jax.tree.leaves(scores)[0].shape[0]

    def value_of(i):  # the order of time is one of all, in the same program
        order = jax.random.permutation(jax.random.fold_in(key, i), n)
        order = jnp.where(i == 0, jnp.arange(n), order)
        value = statistic(jax.tree.map(lambda v: v[order], scores))
        _checks.check_scalars(**{"statistic(scores)": value})
        return jnp.asarray(value)

    orders = jnp.arange(num_permutations + 1)
    values = map_evenly(value_of, orders, at_a_time=rows_at_a_time(n))
    return mean(~(values < values[0]))


@_checks.by_labels
def sequential_p_values(scores: ArrayLike, u: ArrayLike) -> Array:
    """Returns the smoothed p-value of each score of a stream among those up to it.

    p_t = (#{i <= t : S_i > S_t} + u_t #{i <= t : S_i = S_t}) / t. All of them together
    take O(t log t). To start from past scores, such as those of a calibration
    (`cp.scores`), put these in front and drop their p-values.

    Args:
      scores: Anomaly scores in order of time, shape (t,); larger is stranger. NaN
        counts as +inf. The detector must be fitted on other rows.
      u: Uniforms in [0, 1], shape (t,).

    Returns:
      p-values in [0, 1], shape (t,).

    Raises:
      ValueError: if shapes differ or a concrete uniform is outside [0, 1].

    Guarantee:
      Independent and uniform on [0, 1], ties or not: what `watch` asks for, unlike
      p-values among one calibration set, which depend on each other.

    Assumption:
      The scores are exchangeable, and the uniforms independent of them.

    Cost:
      O(t log t) time for all p-values together.

    References:
      Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, Springer, 2005,
      ch. 8.

    See also:
      pvalues.watch, pvalues.SimpleJumper, outliers.outlier_p_values

    Example:
      >>> sequential_p_values(jnp.array([1.0, 3.0, 2.0, 3.0]), jnp.full(4, 0.5))
      Array([0.5 , 0.25, 0.5 , 0.25], dtype=float32)
    """
    _checks.check_given(u=u)
    scores, u = _checks.rows(scores=_checks.vector(scores), u=_checks.uniforms(u))
    return _sequential(as_float(scores), at_least_single(as_float(u)))


@jax.jit
def _sequential(scores, u):
    above, equal = counts_before(scores)
    count = jnp.arange(1, len(scores) + 1, dtype=u.dtype)
    return (above + u * (equal + 1)) / count


def counts_before(scores: Array) -> tuple[Array, Array]:
    """Returns how many earlier scores are above each one, and how many equal, (t,).

    The ranks are sorted bit by bit, from the highest, into runs that keep the order of
    time: an earlier score is above if it is in the same run and has a one where this
    one has a zero.
    """
    keys, n = to_keys(scores), len(scores)
    ordered = lax.sort(keys)
    rank = jnp.searchsorted(ordered, keys)  # equal scores have one rank
    ranks = jnp.searchsorted(ordered, ordered)
    num_below = jnp.searchsorted(ranks, jnp.arange(n + 1))
    num_bits = max(n - 1, 0).bit_length()

    def split(i, carry):
        return _split_runs(num_bits - 1 - i, num_below, *carry)

    start = rank, jnp.arange(n), jnp.zeros(n, rank.dtype)
    rank, time, above = lax.fori_loop(0, num_bits, split, start)
    equal = jnp.arange(n) - num_below[rank]
    above, equal = (jnp.zeros_like(v).at[time].set(v) for v in (above, equal))
    return above, equal


def _split_runs(bit, num_below, rank, time, above):
    """Returns ranks, times and counts after runs of equal higher bits are split."""
    start = num_below[(rank >> bit >> 1) << bit << 1]  # of the run so far
    one = (rank >> bit) & 1
    # Before each place of its run: ones, which are above a zero, and zeros.
    ones = jnp.cumsum(one) - one
    ones -= ones[start]
    zeros = jnp.arange(len(rank)) - start - ones
    above += jnp.where(one == 1, 0, ones)
    # Zeros come first: both halves keep the order of time.
    place = num_below[(rank >> bit) << bit] + jnp.where(one == 1, ones, zeros)
    return tuple(jnp.zeros_like(v).at[place].set(v) for v in (rank, time, above))
