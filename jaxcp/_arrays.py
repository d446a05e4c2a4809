"""Arguments as jax arrays: numpy, pandas, torch, lists; no digits lost in silence.

And how many rows count, by numpy where it can read them: that compiles nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp._batching import on_device, on_host
from jaxcp._numbers import rounded_up
from jaxcp._tree import EXACT, check_process, is_ours
from jaxcp.typing import PyTree

_MANY = 2**13  # rows whose digits tell those of all
_CODING = "numpy.unique(text, return_inverse=True)[1] codes it as 0, 1, ..."
_CURES_OF_TEXT = {
    "y": "scores of labels take them by name, calibrate(..., classes=model.classes_) "
    "or Estimator(model, predict=..., classes=...), elsewhere, as in online.run, "
    "[*model.classes_].index(name) codes one as 0, 1, ...",
    "preds": "scores of labels take model.predict_proba(x), not predict(x)",
    **dict.fromkeys(("treated", "event", "mask"), 'flags are column == "its name"'),
    **dict.fromkeys(("time", "weights", "test_weights"), "astype(float) reads numbers"),
}
_BATCHES = (
    "; calibrate(score, batches=...) takes them, map(cp.at(alpha), batches) gives sets"
)
SHARE = 0.01  # of an error: how far rounding may move it


def as_arrays(**named: PyTree) -> Any:
    """Returns arguments with their numpy, pandas, torch and list leaves as jax arrays.

    A tuple of them, or the one. A list of numbers, or of lists of them, is an array;
    every other container is kept. Integers that jax has no type for become floats.
    """
    found = tuple(_as_tree(name, tree) for name, tree in named.items())
    return found[0] if len(found) == 1 else found


def as_array(name: str, value: Any) -> Array:
    """Returns one array, also of a tuple; raises ValueError for other values."""
    array = _as_tree(name, list(value) if isinstance(value, tuple) else value)
    if not isinstance(array, Array):
        raise ValueError(f"expected {name} as an array, got {type(value).__name__}")
    return array


def as_groups(name: str, value: Any) -> Array:
    """Returns groups or labels as an array; flags, and no rows at all, as integers."""
    array = as_array(name, value)
    return array.astype(int) if array.dtype == bool or array.size == 0 else array


def is_rounded(name: str, value: Any) -> bool:
    """Returns whether values lose digits in the default float type."""
    if isinstance(value, Array) or is_ours(type(value)):
        return False
    value, dtype = as_numpy(name, value), jax.dtypes.canonicalize_dtype(float)
    value = value[some_rows(len(value))] if value.ndim else value
    if value.dtype.kind not in "iuf" or np.can_cast(value.dtype, dtype):
        return False
    finite = value[np.isfinite(value)]
    with np.errstate(over="ignore"):
        return bool(np.any(finite.astype(dtype).astype(value.dtype) != finite))


def some_rows(n: int) -> slice:
    """Returns rows that stand for all n: each, or fewer than 2^14 at even steps."""
    return slice(None, None, max(n // _MANY, 1))


def check_digits(name, step, error, which=True):
    """Raises ValueError if numbers have no digits for errors of this size.

    `step` is how much the last digit of a number changes its error. The medians of both
    are compared for each component, of those rows of it that `which` names.
    """
    step, error = (np.where(which, v, np.nan) for v in (step, error))
    step, error = _median_sizes(step, 0.0), _median_sizes(error, np.inf)
    lost = step > SHARE * error
    if lost.any():
        step, error = step[lost][0], error[lost][0]
        raise ValueError(
            f"expected {name} with digits that single precision can hold, got steps of "
            f"{step:.2g} between numbers where errors are {error:.2g}; subtract an "
            "offset, switch double precision on (JAX_ENABLE_X64=1), or accept the "
            "rounding by y.astype('float32')"
        )


def check_digits_of_sets(
    name: str, rows: PyTree, sets: Any, again: Callable[[], Any]
) -> Any:
    """Returns sets, where single precision holds the digits of the rows they are of.

    Only sets with ends, or in a box, are looked at. `again` makes them in double
    precision, where the digits are not sure.
    """
    has_ends = hasattr(sets, "upper") or hasattr(sets, "bounds")
    if not (has_ends and _may_be_rounded(rows)):
        return sets
    if not all(map(_is_known, jax.tree.leaves(sets))):
        return sets
    step, half = _steps_of_sets(sets)
    if not (step > SHARE * half).any() or not _are_lost(step, half):
        return sets
    leaves = jax.tree.leaves(rows, is_array_like)
    if not any(is_rounded(name, leaf) for leaf in leaves):
        return sets
    with jax.enable_x64(True):
        finer, half = _steps_of_sets(again())
    # Sets that are points to the last digits of double precision have lost none.
    half = np.where(half > finer / SHARE, half, np.inf)
    if _are_lost(step, half):
        at = np.nanargmax(step / half)
        step, half = step.flat[at], half.flat[at]
        raise ValueError(
            f"expected {name} with digits that single precision can hold, got steps of "
            f"{step:.2g} between numbers where sets are {half:.2g} to a side; subtract "
            "an offset from predictions and targets, switch double precision on "
            f"(JAX_ENABLE_X64=1), or accept the rounding by {name}.astype('float32')"
        )
    return sets


def _may_be_rounded(rows: PyTree) -> bool:
    """Returns whether numbers come from the host in a type wider than that of jax."""
    if isinstance(rows, np.ndarray):
        return not np.can_cast(rows.dtype, jax.dtypes.canonicalize_dtype(float))
    if isinstance(rows, Array):
        return False
    if isinstance(rows, list) and rows and isinstance(rows[0], Real):
        return True
    if is_array_like(rows) or not (leaves := jax.tree.leaves(rows, is_array_like)):
        return True
    return any(leaf is rows or _may_be_rounded(leaf) for leaf in leaves)


def _steps_of_sets(sets: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns steps between numbers at the ends of some sets, and half their widths."""
    ends = (sets.lower, sets.upper) if hasattr(sets, "upper") else sets.bounds()
    lower, upper = (np.asarray(end) for end in ends)
    if upper.ndim:
        some = some_rows(len(upper))
        lower, upper = lower[some], upper[some]
    with np.errstate(invalid="ignore"):
        half = (upper - lower) / 2
    return jnp.finfo(half.dtype).eps * np.maximum(abs(lower), abs(upper)), half


def _are_lost(step: np.ndarray, half: np.ndarray) -> bool:
    """Returns whether a set moves by half of itself, or most by a share of them."""
    step, half = np.atleast_1d(step, half)
    finite = np.isfinite(step) & (half >= 0)  # neither without an end nor empty
    step, half = (np.where(finite, v, np.nan) for v in (step, half))
    most = _median_sizes(step, 0.0) > SHARE * _median_sizes(half, np.inf)
    return bool(np.any(step > half) or np.any(most))


def one_of_each(values: np.ndarray, close: np.ndarray | float = 0.0) -> np.ndarray:
    """Returns flags of one row for each value of a column; `close` ones are one."""
    order = np.argsort(values, axis=0)
    values, close = (
        np.take_along_axis(np.broadcast_to(v, order.shape), order, axis=0)
        for v in (values, close)
    )
    differ = np.ones(order.shape, bool)
    with np.errstate(invalid="ignore"):
        differ[1:] = ~(np.diff(values, axis=0) <= close[1:])
    found = np.empty_like(differ)
    np.put_along_axis(found, order, differ, axis=0)
    return found


def narrowed(x: np.ndarray) -> np.ndarray:
    """Returns integers in jax's integer type, or as floats if that is too narrow.

    These are not smaller: a threshold among them is not below a score.
    """
    default = jax.dtypes.canonicalize_dtype(int)
    if x.dtype.kind not in "iu" or np.can_cast(x.dtype, default):
        return x
    limits = np.iinfo(default)
    fits = x.size == 0 or (x.min() >= limits.min and x.max() <= limits.max)
    return x.astype(default) if fits else rounded_up(x)


def is_concrete(*trees: PyTree) -> bool:
    """Returns whether all values in `trees` are known here."""
    return all(map(_is_known, jax.tree.leaves(trees)))


def is_array_like(x: Any) -> bool:
    """Returns whether a value becomes one array, although jax may see no leaf in it."""
    if isinstance(x, list):
        return all(isinstance(v, list | Real | np.generic) for v in x) and all(
            isinstance(v, Real | np.generic) for v in jax.tree.leaves(x)
        )
    if isinstance(x, Iterator):  # which is refused
        return True
    found = hasattr(x, "to_numpy") or hasattr(x, "detach")  # pandas, torch
    return found and not (is_ours(type(x)) or isinstance(x, type))  # sets offer it too


def _is_known(x):
    if isinstance(x, jax.core.Tracer | jax.ShapeDtypeStruct):
        return False
    return not isinstance(x, Array) or x.is_fully_addressable


def _median_sizes(values, default):
    """Returns the median of the finite sizes in each column, or the default."""
    values = np.asarray(values, float)
    columns = np.abs(values).reshape(len(values), math.prod(values.shape[1:])).T
    finite = [column[np.isfinite(column)] for column in columns]
    return np.array([np.median(v) if v.size else default for v in finite])


def _as_tree(name, tree):
    check_process()
    return jax.tree.map(lambda x: _as_array(name, x), tree, is_leaf=is_array_like)


def _as_array(name, x):
    x = float(x) if isinstance(x, EXACT) else x
    if isinstance(x, bool | float | complex) and not isinstance(x, np.generic):
        return jax.device_put(x)  # without a type of its own, it takes its company's
    x = x if isinstance(x, Array) else as_numpy(name, x)
    check_countable(*x.shape)
    if isinstance(x, Array):
        return x
    try:
        return on_device(narrowed(x))
    except TypeError as error:
        found = _described(name, x)
        raise ValueError(f"expected {name} as numbers, got {found}") from error


def check_countable(n: Any = 0, *_: Any, most: int | None = None) -> None:
    """Raises ValueError for more rows than integers of jax count, and one more."""
    if not isinstance(n, int) or n <= (most or 2**31 - 2):  # an export leaves it open
        return
    most = most or np.iinfo(jax.dtypes.canonicalize_dtype(int)).max - 1
    if n > most:
        raise ValueError(
            f"expected at most {most} rows in single precision, got {n}; switch double "
            "precision on (JAX_ENABLE_X64=1), or count chunks: distributed.quantile"
        )


def as_numpy(name: str, x: Any) -> np.ndarray:
    """Returns an argument as a numpy array; objects that are numbers become numbers."""
    x = as_host_array(name, x)
    return np.asarray(x.tolist()) if x.dtype == object else x


def as_host_array(name: str, x: Any) -> np.ndarray:
    """Returns an argument as a numpy array, of objects if it has no type of its own."""
    if hasattr(x, "to_numpy"):
        x = x.to_numpy()
    elif hasattr(x, "detach"):
        x = x.detach().float() if "bfloat16" in str(x.dtype) else x.detach()
        x = x.numpy()
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise ValueError(
            f"expected {name} without masked values, got {np.ma.count_masked(x)} of "
            f"them; give x.filled(0), and mask=~x.mask where there is a mask, or leave "
            "these rows out"
        )
    return np.asarray(x)


def _described(name, x):
    if x.dtype.kind in "US":
        example = f" ({x.flat[0]!s:.20})" if x.size else ""
        return f"text{example}; {_CURES_OF_TEXT.get(name, _CODING)}"
    is_iterator = x.ndim == 0 and isinstance(x.item(), Iterator)
    kind = type(x.item()).__name__ if x.ndim == 0 else x.dtype
    if is_iterator:
        return f"{kind}{_BATCHES}"
    return f"{kind}{in_units(name, x.dtype)}"


def in_units(name: str, dtype: Any) -> str:
    """Returns how durations and dates become numbers; nothing for other types."""
    if (kind := getattr(dtype, "kind", None)) not in ("m", "M"):
        return ""
    numbers = name if kind == "m" else f"({name} - pandas.Timestamp(2026, 1, 1))"
    return f"; {numbers} / pandas.Timedelta(hours=1) gives hours"


def count_rows(x: Array, mask: Array | None = None) -> int | Array:
    """Returns how many rows of x count, shape (); traced where an export leaves it."""
    if mask is not None:
        return count_true(mask)
    return x.shape[0] if isinstance(x.shape[0], int) else jnp.asarray(x.shape[0])


def count_true(flags: Array) -> int | Array:
    """Returns how many flags are True, shape ()."""
    return int(np.sum(np.asarray(flags))) if on_host(flags) else jnp.sum(flags)


def count_groups(groups, num_groups, mask=None):
    """Returns how many rows of each group count, shape (num_groups,)."""
    if not on_host(groups, mask):
        counts = jnp.ones(groups.shape, int) if mask is None else mask.astype(int)
        return sums_of_groups(counts, groups, num_groups)
    codes = np.asarray(groups).astype(int)
    counts = (codes >= 0) & (codes < num_groups)
    counts = counts if mask is None else counts & np.asarray(mask, bool)
    return np.bincount(codes[counts], minlength=num_groups)


FEW_GROUPS = 8  # up to which a pass for each takes less time
_ROWS = 32  # that are added one after another: few roundings follow each other
_COPIES, _LITTLE = 8, 2**15  # as much memory as for these, or numbers, is a table
_GOLDEN = 2654435769  # 2^32 / ((1 + sqrt(5)) / 2): multiples of it spread evenly


@jax.jit(static_argnames="num_groups")
def sums_of_groups(numbers: Array, groups: Array, num_groups: int) -> Array:
    """Returns the sum of the numbers (n,) of each group, shape (num_groups,)."""
    codes, dtype = group_codes(groups, num_groups), numbers.dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        return jnp.zeros(num_groups, dtype).at[codes].add(numbers)
    if num_groups <= FEW_GROUPS:
        inside = codes[None] == jnp.arange(num_groups)[:, None]
        kept = jnp.where(inside, numbers[None], jnp.zeros((), dtype))
        return jnp.sum(kept, axis=1, dtype=dtype)
    n = groups.shape[0]
    num_blocks = -(-n // _ROWS)
    if isinstance(n, int) and num_blocks * num_groups > max(_COPIES * n, _LITTLE):
        return _sums_of_many_groups(num_groups, numbers, codes)
    # A table of blocks of rows and groups. Groups beyond are dropped.
    block = jnp.arange(n) // _ROWS
    sums = jnp.zeros((num_blocks, num_groups), dtype).at[block, codes].add(numbers)
    return jnp.sum(sums, axis=0, dtype=dtype)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sums_of_many_groups(num_groups: int, numbers: Array, codes: Array) -> Array:
    """Returns the sums of floats, in memory of rows and groups, in any order of rows.

    A group of c rows has ceil(c / 32) places, among which a hash shares its rows out;
    the sums of these are added in pairs. Groups beyond are dropped.
    """
    n = len(codes)
    counts = jnp.zeros(num_groups + 1, int).at[codes].add(1)
    widths = -(-counts // _ROWS)
    end = jnp.cumsum(widths)
    start = end - widths
    hashed = jnp.arange(n, dtype=jnp.uint32) * jnp.uint32(_GOLDEN) >> 8
    place = start[codes] + (hashed % widths[codes].astype(jnp.uint32)).astype(int)
    num_places = n // _ROWS + num_groups + 2
    sums = jnp.zeros(num_places, numbers.dtype).at[place].add(numbers)
    first = lax.cummax(jnp.zeros(num_places, int).at[start].set(start))

    def add_pairs(state: tuple[Array, Array]) -> tuple[Array, Array]:
        """Returns sums of twice as many places, up to each of them."""
        step, sums = state
        inside = jnp.arange(num_places) - step >= first
        return 2 * step, sums + jnp.where(inside, jnp.roll(sums, step), 0)

    def goes_on(state: tuple[Array, Array]) -> Array:
        return state[0] < jnp.max(widths)

    _, sums = lax.while_loop(goes_on, add_pairs, (jnp.ones((), int), sums))
    return jnp.where(counts > 0, sums[end - 1], 0)[:num_groups]


@_sums_of_many_groups.defjvp
def _sums_of_many_groups_jvp(num_groups, primals, tangents):
    numbers, codes = primals
    moved = jnp.zeros(num_groups, numbers.dtype).at[codes].add(tangents[0])
    return _sums_of_many_groups(num_groups, numbers, codes), moved


def group_codes(groups: Array, num_groups: int, mask: Array | None = None) -> Array:
    """Returns groups as integers, `num_groups` for rows that count in none of them."""
    codes = groups.astype(int)
    counts = (codes >= 0) & (codes < num_groups)
    return jnp.where(counts if mask is None else counts & mask, codes, num_groups)
