"""Sums of weights that do not depend on their order, nor on how they are sharded.

Weights become integers of two words, a leading and a following one, whose sums are
exact. Of up to 2048 weights the words are floats, for their sums are fast: in single
precision they hold 33 bits of the total. Of more they are integers, and hold 60 -
log2(n). Padding with zeros changes the words only where it passes a power of two.

Order statistics of rows: whatever is mapped over becomes rows, or ranks of one row.

Few numbers settle a bit of the answer with each count, as accelerators do with all;
many are counted in bytes. Of many ranks of one row, its integers are sorted.

Weighted order statistics of rows: whatever is mapped over becomes rows, or targets.

Few numbers settle a bit of the answer with each sum, as accelerators do with all; many
are summed in bytes. For many targets of one row it is sorted. The sums are of the
integers that `Masses` makes of weights, so that all ways give the same keys.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

from jaxcp._numbers import over_shards, varying_like
from jaxcp.quantiles import _keys
from jaxcp.quantiles._keys import bisect_keys, to_keys
from jaxcp.typing import AxisName

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

    def falls_short(self, counted: Array, target: Array, axis_name: AxisName) -> Array:
        """Returns whether the weights `counted`, bool (n,), are less than `target`."""
        words = self.leading, self.following
        leading, following = (_sum(jnp.where(counted, v, 0), axis_name) for v in words)
        return self.are_less(leading, following, target)

    def are_less(self, leading: Array, following: Array, target: Array) -> Array:
        """Returns whether sums of the words, floats or integers, are below `target`."""
        # sum w < target: leading + following / step < target 2^(word - exponent)
        target = jnp.ldexp(target, self.word - self.exponent)
        most = 1.5 * 2**self.word  # more than there is
        target = jnp.where(jnp.isnan(target), -1, jnp.clip(target, -1, most))
        whole = jnp.floor(target)
        part = jnp.ceil((target - whole) * self.step).astype(leading.dtype)
        carry = jnp.floor_divide(following - part, self.step)
        return leading - whole.astype(leading.dtype) + carry < 0


def masses_of(weights: Array, axis_name: AxisName = None) -> Masses:
    """Returns weights >= 0 of shape (n,), one shard of them, as integers.

    Infinite weights count as the largest float.
    """
    n = weights.size * lax.psum(1, axis_name or ())
    return in_words(weights, *scales_of(weights, axis_name), n)


def scales_of(weights: Array, axis_name: AxisName = None) -> tuple[Array, Array]:
    """Returns powers of two: of the largest weight, and of the sum on that scale."""
    largest = jnp.max(weights, initial=0)
    largest = jnp.minimum(largest, jnp.finfo(weights.dtype).max)
    unit = jnp.frexp(over_shards(lax.pmax, largest, axis_name))[1]
    # Rounded sums of other orders have the same exponent, but near a power of two,
    # which totals often are: move those away from where it changes.
    total = _sum(_on_scale(weights, unit), axis_name)
    return unit, jnp.frexp(2**0.5 * total)[1]


def _on_scale(weights, unit):
    """Returns weights of at most 1: their sum does not overflow."""
    return times_power(jnp.minimum(weights, jnp.finfo(weights.dtype).max), -unit)


def in_words(weights: Array, unit: Array, exponent: Array, n: int) -> Masses:
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
        return 2 ** (word - max((n - 1).bit_length(), _FEW))
    log_n = jnp.maximum(32 - lax.clz(jnp.asarray(n, jnp.int32) - 1), _FEW)
    return jnp.left_shift(jnp.ones((), dtype), (word - log_n).astype(dtype))


def total_mass(weights: Array, axis_name: AxisName = None) -> Array:
    """Returns the sum of weights >= 0 of shape (n,), of all shards."""
    masses = masses_of(weights, axis_name)
    words = masses.leading, masses.following
    leading, following = (_sum(v, axis_name).astype(weights.dtype) for v in words)
    return times_power(leading + following / masses.step, masses.exponent - masses.word)


def times_power(values: Array, exponent: Array) -> Array:
    """Returns values * 2^exponent, in two steps that stay within range."""
    half, one = exponent // 2, jnp.ones((), values.dtype)
    return values * jnp.ldexp(one, half) * jnp.ldexp(one, exponent - half)


def _sum(values, axis_name):
    return over_shards(lax.psum, jnp.sum(values), axis_name)


def unit_scale(
    weights: Array, test_weight: Array, axis_name: AxisName = None
) -> tuple[Array, Array]:
    """Returns weights scaled by a power of two, exactly: the largest is about 1.

    Their sums neither overflow nor vanish. Test weights do not change the scale, so
    that many of them share the weights; those beyond all bounds come to an eighth of
    the largest float.
    """
    most, exact = jnp.finfo(weights.dtype).max, jnp.finfo(test_weight.dtype).max
    largest = over_shards(lax.pmax, jnp.max(weights, initial=0), axis_name)
    exponent = jnp.frexp(jnp.minimum(largest, most))[1]
    test_weight = times_power(test_weight, -exponent)
    return times_power(weights, -exponent), jnp.minimum(test_weight, exact / 8)


def spare_mass(
    weights: Array, alpha: Array, test_weight: Array, axis_name: AxisName = None
) -> tuple[Array, Array]:
    """Returns weights on their unit scale, and the mass allowed above the threshold.

    alpha (w_1 + ... + w_{n+1}) - w_{n+1}: negative where nothing may, as where there is
    no weight at all.
    """
    dtype = jnp.result_type(weights.dtype, alpha.dtype, jnp.float32)
    weights = jnp.where(weights > 0, weights, 0).astype(dtype)
    test_weight = test_weight.astype(dtype)
    weights, test_weight = unit_scale(weights, test_weight, axis_name)
    total = total_mass(weights, axis_name) + test_weight
    exact = 1 + 3 * jnp.finfo(dtype).eps  # undoes the rounding of alpha
    spare = alpha.astype(dtype) * total * exact - test_weight
    return weights, jnp.where(total > 0, spare, -1)


def weighted_key(
    keys: Array, weights: Array, target: Array, axis_name: AxisName = None
) -> Array:
    """Returns the first of `keys` up to which `weights` reach `target`.

    The lowest of its type where nothing need be reached, the highest where all falls
    short.
    """
    masses = masses_of(weights, axis_name)

    def falls_short(key):
        return masses.falls_short(keys < key, target, axis_name)

    return bisect_keys(falls_short, keys.dtype)


# Up to this many numbers the few operations of a bisection by bits take less time.
_FEW_rows = 2**15
# From so many ranks of one array on, of few numbers and of many, one sort of its
# integers beats as many selections (`experiments.speed.kernel_speed` shows where).
_SORT_FEW, _SORT_MANY = 4, 32


@custom_vmap
def select_keys(x: Array, k: Array) -> Array:
    """Returns keys of order statistics of `x` (n,) at ranks `k` (a,), shape (a,).

    The lowest for k < 1 and the highest for k > n.
    """
    return _keys_of_row(x, k, x.size)


@select_keys.def_vmap
def _select_keys_of_rows(size, batched, x, k):
    if not batched[0]:  # more ranks of one array
        return select_keys(x, k.ravel()).reshape(k.shape), True
    if not _keys.is_local():
        return _mapped(_keys_of_row, batched, x, k), True
    return _select_rows(x, to_all(k, batched[1], size)), True


@custom_vmap
def _select_rows(x, k):
    """Returns `select_keys` of rows of x (b, n) at k (b, a), shape (b, a)."""
    return _keys_of_rows(x, k, x.size)


@_select_rows.def_vmap
def _select_rows_of_rows(size, batched, x, k):
    if not batched[0]:  # (size, b, a)
        ranks = k.swapaxes(0, 1)
        found = _select_rows(x, ranks.reshape(ranks.shape[0], size * k.shape[2]))
        return found.reshape(ranks.shape).swapaxes(0, 1), True
    k = to_all(k, batched[1], size)
    found = _select_rows(*(as_rows(v) for v in (x, k)))
    return found.reshape(k.shape), True


def _mapped(select, batched, x, k):
    """Returns `select` mapped as it is: a reshape might gather rows that are spread."""
    axes = [0 if b else None for b in batched]
    return jax.vmap(lambda x_row, k_row: select(x_row, k_row, x.size), axes)(x, k)


def as_rows(values: Array) -> Array:
    """Returns values (b, c, n) as rows (b c, n); of no numbers too."""
    b, c, n = values.shape
    return values.reshape(b * c, n)


def to_all(values: Array, batched: bool, size: int) -> Array:
    """Returns values that are mapped over, or those of all as often as there are."""
    return values if batched else jnp.broadcast_to(values, (size, *values.shape))


def _keys_of_row(x, k, numbers):
    return _keys_of_rows(x[None], k[None], numbers)[0]


def _keys_of_rows(x, k, numbers):
    """Returns keys of rows, which are all of so many `numbers` or some of them."""
    few = is_few(numbers)
    if is_many(k.shape[1], _SORT_FEW if few else _SORT_MANY) and x.shape[1] > 0:
        return jax.vmap(_pick)(lax.sort(to_keys(x)), k)
    if few:
        return _by_bits(x, k)
    return lax.platform_dependent(x, k, cpu=_by_bytes, default=_by_bits)


def is_few(numbers: int) -> bool:
    """Returns whether bits are settled; also of numbers that an export leaves open."""
    return not isinstance(numbers, int) or numbers <= _FEW_rows


def is_many(count: int, least: int) -> bool:
    """Returns whether there are so many; also of numbers that an export leaves open."""
    return not isinstance(count, int) or count >= least


def _pick(ordered, k):
    info = jnp.iinfo(ordered.dtype)
    value = ordered[jnp.clip(k - 1, 0, ordered.size - 1)]
    return jnp.where(k < 1, info.min, jnp.where(k > ordered.size, info.max, value))


def _by_bytes(x, k):
    if k.shape[1] == 1:
        return _keys.row_keys(x, k[:, 0])[:, None]
    return lax.map(lambda rank: _keys.row_keys(x, rank), k.T).T


def _by_bits(x, k):
    def find(keys, rank):
        falls_short = lambda key: _count_below(keys, key) < rank  # noqa: E731
        return bisect_keys(falls_short, keys.dtype)

    return jax.vmap(jax.vmap(find, (None, 0)))(to_keys(x), k)


def _count_below(keys, key):
    if is_many(keys.size, 2**24):
        return jnp.sum(keys < key)
    # As exact as a sum of integers, and faster: float32 counts to 2^24.
    return jnp.sum((keys < key).astype(jnp.float32)).astype(int)


_WIDTH, _DEEP = 32, 31  # numbers side by side in a sum, and on top of one another
# From so many targets of one row on, of few numbers and of many, one sort is faster.
_SORT_FEW_weighted, _SORT_MANY_weighted = 16, 64


@custom_vmap
def weighted_keys(x: Array, weights: Array, targets: Array) -> Array:
    """Returns `weighted_key` of x and weights (n,) at targets (a,), shape (a,)."""
    return _keys_of_row_weighted(x, weights, targets, x.size)


@weighted_keys.def_vmap
def _weighted_keys_of_rows(size, batched, x, weights, targets):
    if not any(batched[:2]):  # more targets of one array
        return weighted_keys(x, weights, targets.ravel()).reshape(targets.shape), True
    if not _keys.is_local():  # a reshape might gather rows that are spread
        numbers, axes = size * x.shape[-1], [0 if has else None for has in batched]
        each = lambda x, w, t: _keys_of_row_weighted(x, w, t, numbers)  # noqa: E731
        return jax.vmap(each, axes)(x, weights, targets), True
    pairs = zip((x, weights), batched[:2], strict=True)
    x, weights = (v if has else v[None] for v, has in pairs)
    return _select_rows_weighted(x, weights, to_all(targets, batched[2], size)), True


@custom_vmap
def _select_rows_weighted(x, weights, targets):
    """Returns keys (b, a) of x and weights (b, n) at targets (b, a).

    A single row of x, or of weights, is that of all.
    """
    return _keys_of_rows_weighted(x, weights, targets, targets.shape[0] * x.shape[1])


@_select_rows_weighted.def_vmap
def _select_rows_of_rows_weighted(size, batched, x, weights, targets):
    if not any(batched[:2]):  # (size, b, a)
        each = targets.swapaxes(0, 1)
        b, _, a = each.shape
        found = _select_rows_weighted(x, weights, each.reshape(b, size * a))
        return found.reshape(each.shape).swapaxes(0, 1), True
    targets = to_all(targets, batched[2], size)
    pairs = zip((x, weights), batched[:2], strict=True)
    x, weights = (_flat(v, has, size, targets.shape[1]) for v, has in pairs)
    found = _select_rows_weighted(x, weights, as_rows(targets))
    return found.reshape(targets.shape), True


def _flat(values, batched, size, rows):
    """Returns rows of all maps, or the one row of all."""
    if not batched and values.shape[0] == 1:
        return values
    n = values.shape[-1]
    values = to_all(values, batched, size)
    return as_rows(jnp.broadcast_to(values, (size, rows, n)))


def _keys_of_row_weighted(x, weights, targets, numbers):
    return _keys_of_rows_weighted(x[None], weights[None], targets[None], numbers)[0]


def _keys_of_rows_weighted(x, weights, targets, numbers):
    """Returns keys of rows, which are all of so many `numbers` or some of them."""
    arrays = x, weights, varying_like(targets, (x, weights))
    few = is_few(numbers)
    if is_many(targets.shape[1], _SORT_FEW_weighted if few else _SORT_MANY_weighted):
        return _by_sort(*arrays)
    if few:
        return _bits_weighted(*arrays)
    return lax.platform_dependent(*arrays, cpu=_bytes_weighted, default=_bits_weighted)


def _by_sort(x, weights, targets):
    return _map_rows(_search, to_keys(x), weights, targets)


def _search(keys, weights, targets):
    """Returns `weighted_key` at targets (a,), found among sums in the order of keys."""
    masses, info, n = masses_of(weights), jnp.iinfo(keys.dtype), keys.size
    ordered, *words = lax.sort((keys, masses.leading, masses.following), num_keys=1)
    sums = [
        jnp.append(jnp.zeros(1, v.dtype), jnp.cumsum(v, dtype=v.dtype)) for v in words
    ]

    def falls_short(place):  # what is before it, of as many as there are
        leading, following = (v[jnp.minimum(place, n + 1) - 1] for v in sums)
        return (place <= n + 1) & masses.are_less(leading, following, targets)

    bits = (n + 1).bit_length() if isinstance(n, int) else 31
    place = bisect_keys(falls_short, jnp.int32, bits=bits, shape=targets.shape)
    low, high = (jnp.full(1, v, keys.dtype) for v in (info.min, info.max))
    return jnp.concatenate([low, ordered, high])[place]


def _bits_weighted(x, weights, targets):
    find = jax.vmap(weighted_key, (None, None, 0))
    return _map_rows(find, to_keys(x), weights, targets)


def _bytes_weighted(x, weights, targets):
    n = x.shape[1]
    if not _keys.is_local():  # neither groups nor blocks: the devices keep their rows
        return _map_rows(_one_row, x, weights, targets)
    rows, lanes = (_short_rows, _WIDTH) if n < _keys.SHORT else (_long_rows, 1)
    return _keys.in_blocks(rows, lanes, x, weights, targets)


def _map_rows(function, x, weights, targets):
    """Returns the function of each row, where a single one is that of all."""
    b = targets.shape[0]
    axes = tuple(0 if v.shape[0] == b else None for v in (x, weights))
    x, weights = (v if v.shape[0] == b else v[0] for v in (x, weights))
    return jax.vmap(function, (*axes, 0))(x, weights, targets)


def _one_row(x, weights, targets):
    return _long_rows(x[None], weights[None], targets[None])[0]


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
    unit, exponent = map(each, jax.vmap(scales_of)(weights))
    weights = lax.optimization_barrier(rows(weights))
    masses = in_words(weights, unit, exponent, x.shape[1])
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

        return _keys.bisect_bytes(lambda: to_keys(x), falls_short, target).ravel()

    if targets.shape[1] == 1:
        return find(targets[:, 0])[:, None]
    return lax.map(find, targets.T).T
