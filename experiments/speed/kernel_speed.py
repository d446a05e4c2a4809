"""The kernel against partitions, sorting and its own loop of bits, in one run.

`python -m experiments.speed.kernel_speed [--out DIR] [--puncc-python PATH]`

Times are medians in milliseconds after compilation, taken in turns. NumPy uses one
core, XLA all of them: the time of all cores together stands beside. What is compared
with NumPy is measured again with both kept to AVX2, where the processor has AVX-512.
Peers are timed if they are installed, PUNCC with an interpreter of its own.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import jaxcp
from experiments.peers.label_peers import label_times
from experiments.speed.kernel_scaling import scaling
from experiments.tools.reporting import arguments, median_seconds, run_tables
from experiments.tools.timing import Times, compiled, in_turns
from jaxcp.quantiles._keys import bisect_keys, from_keys, to_keys

ALPHA = 0.1
AT_MOST = {  # times np.partition
    (1000, 1000): 1.25,
    (100, 10_000): 1.25,
    (1, 1_000_000): 1.25,
    (10_000, 100): 1.25,
    (10_000, 1024): 1.0,
    (100_000, 100): 1.0,
    (1, 10_000_000): 1.0,
}
SMALL = [(1, 1000), (1, 10_000), (1, 30_000), (1, 100_000)]
SMALL += [(200, 100), (500, 100), (2000, 100), (64, 1000), (300, 300)]
WEIGHTED = [shape for shape in AT_MOST if shape[0] * shape[1] == 1_000_000]
LEVELS = [1, 2, 4, 8, 16, 32, 64]
FEW = 2**15  # numbers whose bits are settled side by side for several ranks


def by_bits(x: Array, k: Array) -> Array:
    """Returns the k-th smallest of less than 2^24 numbers, bit by bit of their keys.

    The loop that small inputs keep, and all had before bytes were counted.
    """
    keys = to_keys(x)

    def falls_short(key):
        # XLA sums float32 faster than int32, and as exactly up to 2^24.
        return jnp.sum((keys < key).astype(jnp.float32)).astype(int) < k

    return from_keys(bisect_keys(falls_short, keys.dtype), x.dtype)


def by_selections(x: Array, k: Array) -> Array:
    """Returns the k-th smallest for each of several k, each selected by itself."""
    if x.size <= FEW:
        return jax.vmap(by_bits, (None, 0))(x, k)
    return lax.map(partial(jaxcp.kth_smallest, x), k)


def by_one_sort(x: Array, k: Array) -> Array:
    """Returns the k-th smallest for each of several k, from one sort of the keys."""
    return from_keys(lax.sort(to_keys(x))[k - 1], x.dtype)


def by_sorting(x: Array, k: Array) -> Array:
    """Returns the k-th smallest of each row, as `jnp.sort` gives it."""
    return jnp.sort(x, axis=1)[:, k - 1]


def by_numpy(x: np.ndarray, k: int) -> np.ndarray:
    """Returns the k-th smallest of each row, as `np.partition` gives it."""
    return np.partition(x, k - 1, axis=1)[:, k - 1]


def kernel_times() -> list[dict]:
    """Times the k-th smallest of each row, k at the 0.9 quantile."""
    return [kernel_row(shape, most) for shape, most in AT_MOST.items()]


def kernel_row(shape: tuple[int, int], most: float) -> dict:
    """Times one shape, with sorting beside it where that takes less than a second."""
    x, k = normals(shape)
    on_device, sorts = jnp.asarray(x), x.size <= 1_000_000
    program, seconds = compiled(_KERNEL, on_device, k)
    calls = contenders(x, on_device, k)
    if sorts:
        calls["sort"] = partial(_SORT, on_device, k)
    times = in_turns(calls, repeats=11, seconds=6.0)
    copies = program.memory_analysis().temp_size_in_bytes / x.nbytes
    ours, theirs = times["jaxcp"], times["numpy"]
    return {
        **first_columns(shape, times),
        "at most": most,
        "jaxcp CPU ms": 1e3 * ours.cpu,
        "numpy CPU ms": 1e3 * theirs.cpu,
        "jaxcp / numpy, CPU": ours.cpu / theirs.cpu,
        "compile s": seconds,
        "temporary copies": copies,
        "jnp.sort ms": 1e3 * times["sort"].median if sorts else None,
        "sort / jaxcp": times["sort"].median / ours.median if sorts else None,
    }


def small_times() -> list[dict]:
    """Times shapes whose time is that of single operations."""
    rows = []
    for shape in SMALL:
        x, k = normals(shape)
        calls = contenders(x, jnp.asarray(x), k)
        rows.append(first_columns(shape, in_turns(calls, repeats=301, seconds=1.5)))
    return rows


def normals(shape: tuple[int, int]) -> tuple[np.ndarray, int]:
    """Returns rows of normal numbers, and the rank of the conformal quantile."""
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return x, int(jaxcp.conformal_rank(shape[1], ALPHA))


def contenders(x: np.ndarray, on_device: Array, k: int) -> dict:
    """Returns the calls that are compared, after a look at what they return."""
    calls = {
        "jaxcp": partial(_KERNEL, on_device, k),
        "bits": partial(_BITS, on_device, k),
        "numpy": partial(by_numpy, x, k),
    }
    for name in ("jaxcp", "bits"):
        np.testing.assert_array_equal(calls[name](), calls["numpy"]())
    return calls


def first_columns(shape: tuple[int, int], times: dict[str, Times]) -> dict:
    """Returns the columns that all tables of the kernel have."""
    ours, bits, theirs = (times[name] for name in ("jaxcp", "bits", "numpy"))
    return {
        "k-th smallest": f"{shape[0]} x {shape[1]}",
        "jaxcp ms": 1e3 * ours.median,
        "loop of bits ms": 1e3 * bits.median,
        "np.partition ms": 1e3 * theirs.median,
        "jaxcp / bits": ours.median / bits.median,
        "jaxcp / bits, least": ours.least / bits.least,
        "jaxcp / numpy": ours.median / theirs.median,
        "jaxcp / numpy, least": ours.least / theirs.least,
    }


def level_times() -> list[dict]:
    """Times several levels of one array: selections, one sort, and what is chosen."""
    rows = []
    for n in [1000, 100_000, 1_000_000]:
        x = jax.random.normal(jax.random.key(0), (n,))
        for count in LEVELS:
            k = jnp.linspace(1, n, count).astype(int)
            calls = {
                "select": partial(_SELECT, x, k),
                "sort": partial(_ONE_SORT, x, k),
                "jaxcp": partial(_CHOSEN, x, k),
            }
            times = {v: 1e3 * s for v, s in median_seconds(calls, repeats=5).items()}
            rows.append(
                {
                    "levels of one array": f"{count} of {n}",
                    "selections ms": times["select"],
                    "one sort ms": times["sort"],
                    "selections / sort": times["select"] / times["sort"],
                    "jaxcp ms": times["jaxcp"],
                    "jaxcp / the faster": times["jaxcp"]
                    / min(times["select"], times["sort"]),
                }
            )
    return rows


def weighted_times() -> list[dict]:
    """Times weighted conformal quantiles against those without, and against NumPy."""
    rows = []
    for shape in WEIGHTED:
        x, _ = normals(shape)
        w = np.random.default_rng(1).random(shape, dtype=np.float32)
        on_device = jnp.asarray(x), jnp.asarray(w)
        calls = {
            "plain": partial(_PLAIN, on_device[0]),
            "weighted": partial(_WEIGHTED, *on_device),
            "numpy": partial(weighted_by_numpy, x, w),
        }
        exact = weighted_by_numpy(x, w.astype(float))
        assert np.mean(np.asarray(calls["weighted"]()) != exact) < 1e-3
        times = in_turns(calls, repeats=11, seconds=4.0)
        rows.append(weighted_row(shape, times))
    return rows


def weighted_by_numpy(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Returns weighted quantiles of rows, up to rounding: sorted, summed and picked."""
    order = np.argsort(x, axis=1)
    mass = np.cumsum(np.take_along_axis(w, order, axis=1), axis=1)
    target = (1 - ALPHA) * (mass[:, -1:] + 1)  # the test point weighs 1
    first = np.argmax(mass >= target, axis=1)[:, None]
    return np.take_along_axis(x, np.take_along_axis(order, first, 1), 1)[:, 0]


def weighted_row(shape: tuple[int, int], times: dict[str, Times]) -> dict:
    """Returns one line of the table of weighted quantiles."""
    plain, ours, theirs = (times[name] for name in ("plain", "weighted", "numpy"))
    return {
        "conformal quantile": f"{shape[0]} x {shape[1]}",
        "plain ms": 1e3 * plain.median,
        "weighted ms": 1e3 * ours.median,
        "argsort, cumsum, pick ms": 1e3 * theirs.median,
        "weighted / plain": ours.median / plain.median,
        "jaxcp / numpy": ours.median / theirs.median,
        "jaxcp CPU ms": 1e3 * ours.cpu,
        "numpy CPU ms": 1e3 * theirs.cpu,
        "jaxcp / numpy, CPU": ours.cpu / theirs.cpu,
    }


_KERNEL = jax.jit(jax.vmap(jaxcp.kth_smallest, (0, None)))
_BITS = jax.jit(jax.vmap(by_bits, (0, None)))
_SORT = jax.jit(by_sorting)
_SELECT = jax.jit(by_selections)
_ONE_SORT = jax.jit(by_one_sort)
_CHOSEN = jax.jit(jaxcp.kth_smallest)
_PLAIN = jax.jit(jax.vmap(partial(jaxcp.conformal_quantile, alpha=ALPHA)))
_WEIGHTED = jax.jit(jax.vmap(partial(jaxcp.weighted_conformal_quantile, alpha=ALPHA)))


def main() -> None:
    """Prints and saves all tables."""
    parser = arguments(__doc__, compiles=True)
    parser.add_argument("--puncc-python", help="an interpreter with puncc installed")
    args = parser.parse_args()
    tables = {
        "kernel": kernel_times,
        "small": small_times,
        "weights": weighted_times,
        "levels": level_times,
        "scaling": scaling,
        "labels": partial(label_times, args.puncc_python),
    }
    settings = {"alpha": ALPHA, "dtype": "float32"}
    masked = ("kernel", "small", "weights")
    run_tables(args.out, "kernel_speed", tables, settings, masked)


if __name__ == "__main__":
    main()
