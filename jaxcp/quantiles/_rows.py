"""Order statistics of rows at ranks, or at sums of weights that depend on no order.

Weights become integers of two words, a leading and a following one, whose sums are
exact. Of up to 2048 weights the words are floats, for their sums are fast: in single
precision they hold 33 bits of the total. Of more they are integers, and hold 60 -
log2(n). Padding with zeros changes the words only where it passes a power of two.

Whatever is mapped over becomes rows, or targets of one row. Few numbers settle a bit of
the answer with each count or sum, as accelerators do with nearly all; many are counted
in bytes. A few hundred numbers are sorted, as is a row with many targets. All ways give
the same keys.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

from jaxcp._arrays import check_countable
from jaxcp._numbers import (
    as_float,
    exponent_of,
    over_shards,
    times_power,
    varying_like,
)
from jaxcp.quantiles import _keys
from jaxcp.quantiles._keys import bisect_keys, to_keys

_FEW = 11  # log2 of the number of weights up to which floats hold enough bits


class Masses(NamedTuple):
    """Weights w_i = 2^exponent (leading_i + following_i / step) / 2^word.

    The leading words sum to at most 2^word, and the following ones to 2^(word - 1): n
    <= 2^word / step of them, each at most step / 2. The step is a power of two, known
    unless an export leaves n open.
    """

    leading: Array
    following: Array
    exponent: Array
    word: int
    step: int | Array

    def falls_short(self, counted, target, axis_name):
        """Returns whether the weights `counted`, bool (n,), are less than `target`."""
        words = self.leading, self.following
        leading, following = (_sum(jnp.where(counted, v, 0), axis_name) for v in words)
        return self.are_less(leading, following, target)

    def are_less(self, leading, following, target):
        """Returns whether sums of the words, floats or integers, are below `target`."""
        # sum w < target: leading + following / step < target 2^(word - exponent)
        target = times_power(target, self.word - self.exponent)
        most = 1.5 * 2**self.word  # more than there is
        target = jnp.where(jnp.isnan(target), -1, jnp.clip(target, -1, most))
        whole = jnp.floor(target)
        part = jnp.ceil((target - whole) * self.step).astype(leading.dtype)
        # The step is a power of two: floats are divided exactly, integers by a shift.
        missing = whole.astype(leading.dtype) - leading
        if jnp.issubdtype(leading.dtype, jnp.floating):
            return missing > (following - part) / self.step
        places = lax.population_count(jnp.asarray(self.step, leading.dtype) - 1)
        return missing > (following - part) >> places


def masses_of(weights, axis_name=None):
    """Returns weights >= 0 of shape (n,), one shard of them, as integers.

    Infinite weights count as the largest float.
    """
    n = weights.size * lax.psum(1, axis_name or ())
    unit, exponent = _scales_of(weights, axis_name)
    return _in_words(weights, unit, exponent, n)


def _scales_of(weights, axis_name=None):
    """Returns powers of two: of the largest weight, and of the sum on that scale."""
    largest = jnp.max(weights, initial=0)
    largest = jnp.minimum(largest, jnp.finfo(weights.dtype).max)
    unit = exponent_of(over_shards(lax.pmax, largest, axis_name))
    # Rounded sums of other orders have the same exponent, but near a power of two,
    # which totals often are: move those away from where it changes.
    total = _sum(_on_scale(weights, unit), axis_name)
    return unit, exponent_of(2**0.5 * total)


def _on_scale(weights, unit):
    """Returns weights of at most 1: their sum does not overflow."""
    return times_power(jnp.minimum(weights, jnp.finfo(weights.dtype).max), -unit)


def _in_words(weights, unit, exponent, n):
    """Returns `masses_of` weights, of n a sum, that have these scales."""
    info = jnp.finfo(weights.dtype)
    few = isinstance(n, int) and n <= 2**_FEW
    word = info.nmant - 1 if few else info.bits - 2
    dtype = info.dtype if few else f"int{info.bits}"
    step = _step(n, word, dtype)
    scaled = times_power(_on_scale(weights, unit), word - exponent)
    leading = jnp.round(scaled)
    following = jnp.round((scaled - leading) * step)
    words = leading.astype(dtype), following.astype(dtype)
    return Masses(*words, exponent + unit, word, step)


def _step(n, word, dtype):
    """Returns 2^word / n, of n as the next power of two that is not below 2^11."""
    if isinstance(n, int):
        check_countable(n, most=2 ** (word - 2))  # each word in three bits or more
        return 2 ** (word - max((n - 1).bit_length(), _FEW))
    log_n = jnp.maximum(32 - lax.clz(jnp.asarray(n, jnp.int32) - 1), _FEW)
    return jnp.left_shift(jnp.ones((), dtype), (word - log_n).astype(dtype))


def total_mass(weights, axis_name=None):
    """Returns the sum of weights >= 0 of shape (n,), of all shards."""
    masses = masses_of(weights, axis_name)
    words = masses.leading, masses.following
    leading, following = (_sum(v, axis_name).astype(weights.dtype) for v in words)
    return times_power(leading + following / masses.step, masses.exponent - masses.word)


def _sum(values, axis_name):
    return over_shards(lax.psum, jnp.sum(values), axis_name)


def bounds_of(weights):
    """Returns the bounds (low, high) of weights; the same twice if they are known."""
    return weights if isinstance(weights, tuple) else (weights, weights)


def unit_scale(weights, test_weight, axis_name=None):
    """Returns weights scaled by a power of two, exactly: the largest is about 1.

    Their sums neither overflow nor vanish. Test weights do not change the scale, so
    that many of them share the weights; those beyond all bounds come to an eighth of
    the largest float.
    """
    high = bounds_of(weights)[1]
    most, exact = jnp.finfo(high.dtype).max, jnp.finfo(test_weight.dtype).max
    largest = over_shards(lax.pmax, jnp.max(high, initial=0), axis_name)
    exponent = exponent_of(jnp.minimum(largest, most))
    test_weight = times_power(test_weight, -exponent)
    weights = jax.tree.map(lambda w: times_power(w, -exponent), weights)
    return weights, jnp.minimum(test_weight, exact / 8)


def spare_mass(weights, alpha, test_weight, axis_name=None, u=1.0):
    """Returns weights on their unit scale, and the mass allowed above the threshold.

    alpha (w_1 + ... + w_{n+1}) - u w_{n+1}: negative where nothing may, as where there
    is no weight at all. The test weight w_{n+1} defaults to 1.

    Of bounds (low, high) of weights those of the worst: high above the threshold v, low
    up to it. Then U(v) + w <= alpha (L(v) + U(v) + w) iff the weights (1 - alpha) high
    + alpha low above v are at most alpha (sum of low + w) - w.
    """
    weights = jax.tree.map(as_float, weights)
    types = [w.dtype for w in jax.tree.leaves(weights)]
    dtype = jnp.result_type(*types, alpha.dtype, u, jnp.float32)
    weights = jax.tree.map(lambda w: jnp.where(w > 0, w, 0).astype(dtype), weights)
    test_weight = jnp.asarray(1.0 if test_weight is None else test_weight, dtype)
    weights, test_weight = unit_scale(weights, test_weight, axis_name)
    low, high = bounds_of(weights)
    total = total_mass(low, axis_name) + test_weight
    exact = 1 + 3 * jnp.finfo(dtype).eps  # undoes the rounding of alpha
    spare = alpha.astype(dtype) * total * exact - u * test_weight
    if low is not high:  # of equal bounds to the last bit
        weights = high - alpha.astype(dtype) * (high - low)
        weights = jnp.where(weights > 0, weights, 0)  # of infinite ones inf - inf
    return weights, jnp.where(total > 0, spare, -1)


def least_beyond(spare):
    """Returns the least mass beyond a spare one, 0 beyond a negative one."""
    above = jnp.maximum(jnp.nextafter(spare, jnp.inf), jnp.finfo(spare.dtype).tiny)
    return jnp.where(spare < 0, 0, above)


# Up to this many numbers the few operations of a bisection by bits take less time.
_FEW_NUMBERS = 2**15
# So few numbers are sorted on a CPU: it compiles in half of the time, and is no slower.
_BRIEF = 2**9
# Keys of a row that the cache of a GPU may hold. Of more, 32 passes over bytes and four
# over keys move 13/32 of what 32 over keys do (an estimate, of no GPU so far).
_NEAR = 10**7
# From so many targets of one array on, of many numbers and of few, one sort beats as
# many selections (`python -m experiments.speed.kernel_speed` shows where).
_SORT_RANKS, _SORT_WEIGHTED = (32, 4), (64, 16)
_SPAN = 64  # numbers whose sum is known before those of their parts
_WIDTH, _DEEP = 32, 31  # numbers side by side in a sum, and on top of one another


@custom_vmap
def select_keys(x: Array, weights: Array | None, targets: Array) -> Array:
    """Returns the first key of x (n,) up to which weights reach each target (a,).

    Without weights each number counts 1: targets are ranks. The lowest key where
    nothing need be reached, the highest where all falls short.
    """
    return _keys_of_row(x, weights, targets, x.size)


@select_keys.def_vmap
def _select_keys_of_rows(size, batched, x, weights, targets):
    if not any(batched[:2]):  # more targets of one array
        found = select_keys(x, weights, targets.ravel())
        return found.reshape(targets.shape), True
    if not _keys.is_local():  # a reshape might gather rows that are spread
        each = partial(_keys_of_row, numbers=size * x.shape[-1])
        axes = [0 if has else None for has in batched]
        return jax.vmap(each, axes)(x, weights, targets), True
    rows = lambda v, has: v if has else v[None]  # noqa: E731
    x, weights = jax.tree.map(rows, (x, weights), tuple(batched[:2]))
    return _select_rows(x, weights, _to_all(targets, batched[2], size)), True


@custom_vmap
def _select_rows(x, weights, targets):
    """Returns keys (b, a) of x and weights (b, n) at targets (b, a).

    A single row of x, or of weights, is that of all.
    """
    return _keys_of_rows(x, weights, targets, targets.shape[0] * x.shape[1])


@_select_rows.def_vmap
def _select_rows_of_rows(size, batched, x, weights, targets):
    b, a = targets.shape[-2:]
    if not any(batched[:2]):  # (size, b, a)
        each = targets.swapaxes(0, 1)
        found = _select_rows(x, weights, each.reshape(b, size * a))
        return found.reshape(each.shape).swapaxes(0, 1), True

    def flat(values, has):  # rows of all maps, or the one row of all
        if not has and values.shape[0] == 1:
            return values
        n = values.shape[-1]
        values = jnp.broadcast_to(_to_all(values, has, size), (size, b, n))
        return values.reshape(size * b, n)

    x, weights = jax.tree.map(flat, (x, weights), tuple(batched[:2]))
    targets = _to_all(targets, batched[2], size)
    found = _select_rows(x, weights, targets.reshape(size * b, a))
    return found.reshape(targets.shape), True


def _to_all(values, batched, size):
    """Returns values that are mapped over, or those of all as often as there are."""
    return values if batched else jnp.broadcast_to(values, (size, *values.shape))


def _keys_of_row(x, weights, targets, numbers):
    weights = None if weights is None else weights[None]
    return _keys_of_rows(x[None], weights, targets[None], numbers)[0]


def _keys_of_rows(x, weights, targets, numbers):
    """Returns keys of rows, which are all of so many `numbers` or some of them."""
    few = not isinstance(numbers, int) or numbers <= _FEW_NUMBERS
    least = (_SORT_RANKS if weights is None else _SORT_WEIGHTED)[few]
    if weights is not None:
        targets = varying_like(targets, (x, weights))
        if x.shape[0] == 1 and x.shape[1] and _is_many(weights.shape[0], least):
            return _in_one_order(x, weights, targets)
    rows = x, weights, targets
    if _is_many(targets.shape[1], least) and x.shape[1] > 0:
        return _by_sort(*rows)
    brief = weights is None and isinstance(numbers, int) and 0 < numbers <= _BRIEF
    if brief and not any(jax.typeof(x).sharding.spec):  # a sort needs a whole row
        return lax.platform_dependent(*rows, cpu=_by_sort, default=_by_bits)
    if few:
        return _by_bits(*rows)
    far = weights is None and x.shape[1] > _NEAR
    bytewise = dict.fromkeys(("cpu", "cuda") if far else ("cpu",), _by_bytes)
    return lax.platform_dependent(*rows, **bytewise, default=_by_bits)


def _is_many(count, least):
    """Returns whether there are so many; also of numbers that an export leaves open."""
    return not isinstance(count, int) or count >= least


def _map_rows(function, x, weights, targets):
    """Returns the function of each row, where a single one is that of all."""
    b, rows = targets.shape[0], (x, weights)
    if b == 1:  # the words of its weights are those of their total
        return function(*jax.tree.map(lambda v: v[0], rows), targets[0])[None]
    axes = jax.tree.map(lambda v: 0 if v.shape[0] == b else None, rows)
    rows = jax.tree.map(lambda v: v if v.shape[0] == b else v[0], rows)
    return jax.vmap(function, (*axes, 0))(*rows, targets)


def _by_bits(x, weights, targets):
    return _map_rows(jax.vmap(first_key, (None, None, 0)), to_keys(x), weights, targets)


def first_key(keys, weights, target, axis_name=None):
    """Returns the key that `select_keys` finds for one target, of shards too."""
    if weights is None:
        falls_short = lambda key: _count_below(keys, key) < target  # noqa: E731
    else:
        masses = masses_of(weights, axis_name)
        falls_short = lambda k: masses.falls_short(keys < k, target, axis_name)  # noqa: E731
    return bisect_keys(falls_short, keys.dtype)


def _count_below(keys, key):
    if _is_many(keys.size, 2**24):
        return jnp.sum(keys < key)
    # As exact as a sum of integers, and faster: float32 counts to 2^24.
    return jnp.sum((keys < key).astype(jnp.float32)).astype(int)


def _by_sort(x, weights, targets):
    if weights is None:
        return jax.vmap(_pick)(lax.sort(to_keys(x)), targets)
    return _map_rows(_search, to_keys(x), weights, targets)


def _pick(ordered, k):
    info = jnp.iinfo(ordered.dtype)
    value = ordered[jnp.clip(k - 1, 0, ordered.size - 1)]
    return jnp.where(k < 1, info.min, jnp.where(k > ordered.size, info.max, value))


def _search(keys, weights, targets):
    """Returns keys at targets (a,), found among sums in the order of keys."""
    masses, n = masses_of(weights), keys.size
    ordered, *words = lax.sort((keys, masses.leading, masses.following), num_keys=1)
    sums = jnp.cumsum(jnp.stack(words), axis=1, dtype=words[0].dtype)
    sums = jnp.pad(sums, ((0, 0), (1, 0)))

    def falls_short(place):  # what is before it, of as many as there are
        leading, following = sums[:, jnp.minimum(place, n + 1) - 1]
        return (place <= n + 1) & masses.are_less(leading, following, targets)

    bits = (n + 1).bit_length() if isinstance(n, int) else 31
    place = bisect_keys(falls_short, int, bits=bits, shape=targets.shape)
    return _with_ends(ordered)[place]


def _with_ends(keys):
    info = jnp.iinfo(keys.dtype)
    low, high = (jnp.full(1, v, keys.dtype) for v in (info.min, info.max))
    return jnp.concatenate([low, keys, high])


def _in_one_order(x, weights, targets):
    """Returns keys of one x (1, n) for rows of weights (b, n): one sort serves all."""
    keys, order = lax.sort((to_keys(x[0]), jnp.arange(x.shape[1])), num_keys=1)
    places = jax.vmap(_places_among)(weights[:, order], targets)
    return _with_ends(keys)[jnp.minimum(places, x.shape[1] + 1)]


def _places_among(weights, targets):
    """Returns how many sums of the first 0, 1, ..., n weights are below targets (a,).

    Of whole spans first, then of the span where a target is reached; with n fixed.
    """
    masses, n = masses_of(weights), weights.size
    size, missing = (_SPAN, -n % _SPAN) if isinstance(n, int) else (n, 0)
    spans = lambda v: jnp.pad(v, (0, missing)).reshape(-1, size)  # noqa: E731
    words = spans(masses.leading), spans(masses.following)
    summed = lambda v: jnp.cumsum(v, 1, dtype=v.dtype)  # noqa: E731
    whole = [jnp.sum(v, 1, dtype=v.dtype)[None] for v in words]
    starts = [summed(v) - v for v in whole]
    count = jnp.sum(masses.are_less(*starts, targets[:, None]), 1)
    span = jnp.maximum(count - 1, 0)
    inside = [
        s[0, span, None] + summed(v[span]) for s, v in zip(starts, words, strict=True)
    ]
    place = 1 + size * span + jnp.sum(masses.are_less(*inside, targets[:, None]), 1)
    return jnp.where(count > 0, place, 0)


def _by_bytes(x, weights, targets):
    if weights is None:
        return _each_target(partial(_keys.row_keys, x), targets)
    if not _keys.is_local():  # neither groups nor blocks: the devices keep their rows
        one_row = lambda *row: _long_rows(*(v[None] for v in row))[0]  # noqa: E731
        return _map_rows(one_row, x, weights, targets)
    is_short = x.shape[1] < _keys.SHORT
    rows, lanes = (_short_rows, _WIDTH) if is_short else (_long_rows, 1)
    return _keys.in_blocks(rows, lanes, x, weights, targets)


def _each_target(find, targets):
    """Returns what `find` does for targets (b, a), one of each row after the other."""
    if targets.shape[1] == 1:
        return find(targets[:, 0])[:, None]
    return lax.map(find, targets.T).T


def _long_rows(x, weights, targets):
    """Returns keys of rows that each lie in parts of at most 31 x 32 numbers."""
    n = x.shape[1]
    parts = -(-n // (_DEEP * _WIDTH))
    deep = -(-n // (parts * _WIDTH))
    pad = (0, 0), (0, parts * deep * _WIDTH - n)

    def rows(values):
        return jnp.pad(values, pad).reshape(-1, parts, deep, _WIDTH)

    def each(values):
        return values.reshape(-1, 1, 1, 1)

    def total(sums):
        return jnp.sum(sums, axis=(1, 3), dtype=sums.dtype, keepdims=True)

    return _settle(x, weights, targets, rows, each, total)


def _short_rows(x, weights, targets):
    """Returns keys of rows of fewer than `SHORT` numbers, which lie side by side."""
    b, n = len(targets), x.shape[1]
    lanes = min(_WIDTH, b)
    missing = -b % lanes  # some rows are in two groups
    parts = n // _DEEP + 1
    deep = n // parts + 1
    # Padded at least by one, or XLA transposes anew in each round.
    pad = (0, 0), (0, parts * deep - n), (0, 0)

    def side_by_side(values):
        if len(values) < b:
            return values[:, :, None]
        values = jnp.concatenate([values, values[:missing]]) if missing else values
        return values.reshape(-1, lanes, values.shape[1]).swapaxes(1, 2)

    def rows(values):
        values = jnp.pad(side_by_side(values), pad)
        return values.reshape(len(values), parts, deep, -1)

    def each(values):
        return side_by_side(values[:, None])[:, None]

    def total(sums):
        return sum(sums[:, i : i + 1] for i in range(parts))

    return _settle(x, weights, targets, rows, each, total)[:b]


def _settle(x, weights, targets, rows, each, total):
    """Returns keys (b, a) of arrays that `rows` and `each` spread over four axes."""
    unit, exponent = map(each, jax.vmap(_scales_of)(weights))
    weights = lax.optimization_barrier(rows(weights))
    masses = _in_words(weights, unit, exponent, x.shape[1])
    integer = jnp.dtype(f"int{8 * weights.dtype.itemsize}")
    # As many following words as are summed at once, each at most 2^(bits - 1).
    narrow = jnp.int16 if _DEEP * masses.step < 2**16 else integer
    words = masses.leading.astype(integer), masses.following.astype(narrow)
    x, *words = lax.optimization_barrier((rows(x), *words))

    def add_up(values):
        sums = jnp.sum(values, axis=2, dtype=values.dtype, keepdims=True)
        # Or XLA makes one sum of it all, which does not fuse with what is before it.
        return total(lax.optimization_barrier(sums).astype(integer))

    def find(target):
        target = each(target)

        def falls_short(codes, byte):
            counted = codes < byte
            leading, following = (add_up(jnp.where(counted, v, 0)) for v in words)
            return masses.are_less(leading, following, target)

        return _keys.bisect_bytes(
            lambda: to_keys(x), falls_short, target, x.size
        ).ravel()

    return _each_target(find, targets)
