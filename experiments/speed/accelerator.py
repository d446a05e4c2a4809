"""Verbs and their alternatives on one device, as shares of its peak bandwidth.

`python -m experiments.speed.accelerator [--full] [--only PART] [--out DIR]`

Small by default, for any CPU; `--full` has the sizes of a large accelerator. No
accelerator has been measured yet: where one is lent, this table decides the defaults.
These are the blocks of `_batching`, bytes or bits in `quantiles._rows`, and the batches
of `simulation.replicates`; today they are estimates.

Ideal bytes are inputs and results, each moved once. Alternatives give the same values
as the first line of their kind, or the run ends.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.timing import in_turns
from jaxcp import _batching, learners, outliers, scores, simulation
from jaxcp.quantiles._keys import from_keys, row_keys, to_keys
from jaxcp.quantiles._rows import first_key

KEY, ALPHA = jax.random.key(0), 0.1
# Bytes a second, by the makers. Of other devices a copy is measured.
PEAKS = {
    "NVIDIA H200": 4.8e12,
    "NVIDIA H100 80GB HBM3": 3.35e12,
    "NVIDIA A100-SXM4-80GB": 2.0e12,
}


class Sizes(NamedTuple):
    """How much is measured."""

    kernel: tuple[int, ...] = (10**5, 10**6)
    rows: tuple[tuple[int, int], ...] = ((10**4, 100), (500, 1000))
    many: int = 10**5  # rows of weights, groups, p-values
    groups: int = 100
    labels: tuple[int, int] = (1000, 1000)
    blocks: tuple[int, ...] = (2**17, 2**19, 2**28)
    replicates: int = 20_000
    batches: tuple[int, ...] = (2**12, 2**14)
    draws: tuple[int, int, int] = (1000, 50, 2)
    full: int = 500
    copied: int = 2**24
    repeats: int = 5


FULL = Sizes(
    kernel=(10**6, 10**7, 10**8, 10**9),
    rows=((10**6, 100), (10**5, 1000), (10**4, 10**5)),
    many=10**8,
    groups=1000,
    labels=(50_000, 1000),
    blocks=(2**19, 2**22, 2**24, 2**26, 2**28),
    replicates=10**8,
    batches=(2**15, 2**17, 2**20),
    draws=(50_000, 100, 2),
    full=10**4,
    copied=2**30,
    repeats=20,
)
Kind = tuple[str, float, dict[str, Callable]]  # its name, ideal bytes, and calls


def kernel(sizes: Sizes) -> Iterator[Kind]:
    """Gives selections of one vector, at the rank of the conformal quantile."""
    for n in sizes.kernel:
        x = jnp.abs(jax.random.normal(KEY, (n,)))
        k = int(jaxcp.conformal_rank(n, ALPHA))
        ways = {"bits": by_bits, "bytes": by_bytes, "two bits a pass": by_pivots}
        ways |= {"sort": lambda x, k: jnp.sort(x)[k - 1]}
        calls = {name: partial(jax.jit(way), x, k) for name, way in ways.items()}
        ours = {"conformal_quantile": partial(jaxcp.conformal_quantile, x, ALPHA)}
        yield f"vector of {n}", x.nbytes, ours | calls


def by_bits(x: Array, k: Array) -> Array:
    """Returns the k-th smallest, with one pass over its keys for each bit."""
    return from_keys(first_key(to_keys(x), None, k), x.dtype)


def by_bytes(x: Array, k: Array) -> Array:
    """Returns it in four rounds over bytes, eight passes each."""
    return from_keys(row_keys(x[None], jnp.asarray([k]))[0], x.dtype)


def by_pivots(x: Array, k: Array) -> Array:
    """Returns it in 16 passes over the keys with three counts each."""
    keys, digits = to_keys(x), jnp.arange(1, 4, dtype=jnp.int32)

    def settle(i, found):
        shift = 30 - 2 * i
        candidates = found + (digits << shift)  # wraps around from the lowest key
        counts = jnp.stack([jnp.sum(keys < c) for c in candidates])
        return found + (jnp.sum(counts < k).astype(jnp.int32) << shift)

    found = lax.fori_loop(0, 16, settle, jnp.int32(-(2**31)))
    return from_keys(found, x.dtype)


def rows(sizes: Sizes) -> Iterator[Kind]:
    """Gives selections of rows."""
    for b, n in sizes.rows:
        x, k = jax.random.normal(KEY, (b, n)), int(jaxcp.conformal_rank(n, ALPHA))
        quantiles = jax.jit(jax.vmap(lambda v: jaxcp.conformal_quantile(v, ALPHA)))
        ways = {
            "conformal_quantile": quantiles,
            "bits": jax.jit(jax.vmap(lambda v, k=k: by_bits(v, k))),
            "sort": jax.jit(lambda x, k=k: jnp.sort(x)[:, k - 1]),
        }
        calls = {name: partial(way, x) for name, way in ways.items()}
        yield f"rows {b} x {n}", x.nbytes, calls


def others(sizes: Sizes) -> Iterator[Kind]:
    """Gives weights, groups and p-values."""
    n = sizes.many
    x, weights = jax.random.normal(KEY, (n,)), jax.random.uniform(KEY, (n,))
    weighted = partial(jaxcp.weighted_conformal_quantile, x, weights, ALPHA)
    yield f"{n} weights", 8 * n, {"weighted_conformal_quantile": weighted}
    m = n // 10
    groups = jax.random.randint(KEY, (m,), 0, sizes.groups)
    grouped = partial(
        jaxcp.grouped_conformal_quantile,
        x[:m],
        groups,
        ALPHA,
        num_groups=sizes.groups,
    )
    kind = f"{m} rows, {sizes.groups} groups"
    yield kind, 8 * m, {"grouped_conformal_quantile": grouped}
    p_values = partial(outliers.outlier_p_values, x[:m], x[m : 2 * m])
    yield f"{m} p-values", 12 * m, {"outlier_p_values": p_values}


def labels(sizes: Sizes) -> Iterator[Kind]:
    """Gives calibrations and sets of labels, with checks and within jit without."""
    preds, y = probabilities(sizes.labels)
    for score in (scores.LAC(), scores.APS(), scores.RAPS(0.01, 5)):
        name = f"{type(score).__name__} {preds.shape[0]} x {preds.shape[1]}"

        def held(preds, y, score=score):
            return jaxcp.calibrate(score, preds, y).scores

        yield f"{name}, calibrate", preds.nbytes, both(held, preds, y)
        cp = jaxcp.calibrate(score, preds[:500], y[:500])
        both_sets = both(lambda preds, cp=cp: cp(preds, alpha=ALPHA), preds)
        yield f"{name}, sets", 1.25 * preds.nbytes, both_sets


def both(call: Callable, *args: Array) -> dict[str, Callable]:
    """Returns a call that checks its values, and one that cannot."""
    return {"checks": partial(call, *args), "no checks": partial(jax.jit(call), *args)}


def probabilities(shape: tuple[int, int]) -> tuple[Array, Array]:
    """Returns predictions of labels, and labels."""
    preds = jax.nn.softmax(2 * jax.random.normal(KEY, shape))
    return preds, jax.random.randint(KEY, shape[:1], 0, shape[1])


def blocks(sizes: Sizes) -> Iterator[Kind]:
    """Gives sets of APS in blocks of so many numbers."""
    preds, y = probabilities(sizes.labels)
    cp = jaxcp.calibrate(scores.APS(), preds[:500], y[:500])
    q, calls = cp.quantile(ALPHA), {}
    for numbers in sizes.blocks:
        at_a_time = max(numbers // preds.shape[1], 1)
        invert = lambda preds: cp.score.invert(preds, q)  # noqa: E731
        run = partial(_batching.map_evenly, invert, at_a_time=at_a_time)
        calls[f"2^{numbers.bit_length() - 1} numbers"] = partial(jax.jit(run), preds)
    yield "APS sets in blocks", 1.25 * preds.nbytes, calls


def replicates(sizes: Sizes) -> Iterator[Kind]:
    """Gives simulations in batches: draws count as moved once."""
    calls = {}
    for width in sizes.batches:
        run = partial(jaxcp.simulate, trial, KEY, sizes.replicates, batch_size=width)
        run = partial(run, reduce=simulation.Moments())
        calls[f"batches of {width}"] = lambda run=run: run().mean
    yield f"{sizes.replicates} replicates", 400 * sizes.replicates, calls


def trial(key: Array) -> Array:
    """Returns the rank of a threshold of 100 normal scores among all scores."""
    draws = jnp.abs(jax.random.normal(key, (100,)))
    return jax.scipy.special.erf(jaxcp.conformal_quantile(draws, ALPHA) / 2**0.5)


def models(sizes: Sizes) -> Iterator[Kind]:
    """Gives sampled predictions, and full conformal prediction."""
    draws = jax.random.normal(KEY, sizes.draws)
    target = jax.random.normal(KEY, (len(draws), draws.shape[-1]))
    calibrated = lambda: jaxcp.calibrate(scores.PCP(), draws, target).scores  # noqa: E731
    yield f"PCP {draws.shape}", draws.nbytes, {"calibrate": calibrated}
    n = sizes.full
    x = jax.random.normal(KEY, (n, 20))
    fit = learners.Ridge(1.0), scores.Absolute()
    cp = jaxcp.full_conformal(KEY, *fit, x, x[:, 0] + x[:, 1] ** 2)
    yield f"full, n = m = {n}", 4 * n * n, {"sets": lambda: cp(x, alpha=ALPHA)}


PARTS = {f.__name__: f for f in (kernel, rows, others, labels, blocks, replicates)}
PARTS |= {"models": models}


def measure(sizes: Sizes, only: str = "") -> list[dict]:
    """Returns the lines of all parts whose names contain `only`."""
    peak = peak_of(jax.devices()[0], sizes)
    kinds = (part(sizes) for name, part in PARTS.items() if only in name)
    return [line for part in kinds for kind in part for line in lines_of(*kind, peak)]


def lines_of(kind: str, ideal: float, calls: dict, peak: float) -> list[dict]:
    """Returns the times of calls in turns, once they have given the same values."""
    first, found = {}, []
    for name, call in calls.items():
        start = time.perf_counter()
        found.append(jax.tree.leaves(jax.block_until_ready(call())))
        first[name] = time.perf_counter() - start
    for other in found[1:]:
        jax.tree.map(partial(assert_equal, kind), found[0], other)
    times = in_turns(calls, repeats=20, seconds=1.0)
    return [
        {
            "kind": kind,
            "call": name,
            "first s": first[name],
            "ms": 1e3 * times[name].median,
            "CPU ms": 1e3 * times[name].cpu,
            "ideal MB": ideal / 1e6,
            "share of peak": ideal / times[name].median / peak,
        }
        for name in calls
    ]


def assert_equal(kind: str, one: Array, other: Array) -> None:
    """Scores within a program of another shape may be rounded in another way."""
    exact = dict(rtol=0, atol=0)
    close = exact if "vector" in kind or "rows" in kind else dict(rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one, other, **close, err_msg=kind)


def peak_of(device: jax.Device, sizes: Sizes) -> float:
    """Returns bytes a second: by the maker, or as a copy moves them."""
    if device.device_kind in PEAKS:
        return PEAKS[device.device_kind]
    x = jnp.zeros(sizes.copied, jnp.uint8)
    copy = partial(jax.jit(lambda v: v + 1), x)
    return 2 * x.nbytes / in_turns({"copy": copy}, sizes.repeats)["copy"].median


def main() -> None:
    """Prints the table, and saves it with the device and its peak."""
    parser = arguments(__doc__, times=True)
    parser.add_argument("--full", action="store_true", help="sizes of an accelerator")
    parser.add_argument("--only", default="", help=f"a part of: {', '.join(PARTS)}")
    args = parser.parse_args()
    sizes, device = FULL if args.full else Sizes(), jax.devices()[0]
    lines = measure(sizes, args.only)
    print_table(f"{device.device_kind} (medians after compilation)", lines)
    settings = sizes._asdict() | {"device": device.device_kind, "only": args.only}
    save_results(args.out, "accelerator", lines, settings)


if __name__ == "__main__":
    main()
