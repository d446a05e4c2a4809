"""What quantiles of scores in chunks cost: here, in a pool and on a Dask cluster.

`python -m experiments.speed.chunks [--numbers 100000000] [--out DIR]`

Chunks are arrays in this process, files for a pool of two processes, and futures of two
Dask workers, which hold them. All give the same number as NumPy's partition, and as
`conformal_quantile`, of the scores joined. Seconds are the least of some calls in
turns, by the clock on the wall, for workers share the work.
"""

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.timing import in_turns
from jaxcp import distributed
from jaxcp.quantiles import _chunks

ALPHA, NUMBERS, CHUNKS, REPEATS, WORKERS = 0.1, 10**7, (10, 50), 3, 2


def draw(i: int, size: int) -> np.ndarray:
    """Returns the scores of chunk i, in single precision."""
    return np.abs(np.random.default_rng(i).standard_normal(size, np.float32))


def settle(bits: int) -> None:
    """Sets how many bits a histogram of this process settles: 16, but to compare."""
    _chunks._DIGIT = bits


@contextmanager
def settling(bits: int, client: object = None) -> Iterator[None]:
    """Lets histograms, also of Dask workers, settle so many bits for a while."""
    everywhere = settle if client is None else partial(client.run, settle)
    before = _chunks._DIGIT
    settle(bits), everywhere(bits)
    try:
        yield
    finally:
        settle(before), everywhere(before)


def quantile(chunks: list, client: object = None, bits: int = 16) -> float:
    """Returns the quantile of scores in chunks, by histograms that settle some bits."""
    with settling(bits, client) if bits != 16 else ExitStack():
        return float(distributed.quantile(chunks, ALPHA, client=client))


def partition(scores: np.ndarray) -> float:
    """Returns the quantile by NumPy."""
    k = len(scores) + 1 - (len(scores) + 1) // 10
    return float(np.partition(scores, k - 1)[k - 1])


def calls_of(
    chunks: list[np.ndarray], pool: object, client: object, folder: Path
) -> dict[tuple, Callable]:
    """Returns what is timed, by who does it and with how many bins."""
    joined = np.concatenate(chunks)
    calls = {
        ("np.partition, joined", None): partial(partition, joined),
        ("conformal_quantile, joined", None): lambda: float(
            jaxcp.conformal_quantile(joined, ALPHA)
        ),
        ("one process", 2**16): partial(quantile, chunks),
        ("one process", 2**8): partial(quantile, chunks, bits=8),
    }
    if pool is not None:
        paths = [folder / f"{len(chunks)} {i}.npy" for i in range(len(chunks))]
        for path, chunk in zip(paths, chunks, strict=True):
            np.save(path, chunk)
        files = [partial(np.load, path, mmap_mode="r") for path in paths]
        calls[f"pool of {WORKERS}", 2**16] = partial(quantile, files, pool)
    if client is not None:
        sizes = [len(chunk) for chunk in chunks]
        futures = client.map(draw, range(len(chunks)), sizes)
        for bits in (16, 8):
            call = partial(quantile, futures, client, bits)
            calls[f"Dask, {WORKERS} workers", 2**bits] = call
    return calls


def measure(
    numbers: int,
    num_chunks: int,
    pool: object = None,
    client: object = None,
    folder: Path = Path(),
) -> list[dict]:
    """Returns the seconds of all ways, of as many numbers in so many chunks."""
    chunks = [draw(i, numbers // num_chunks) for i in range(num_chunks)]
    calls = calls_of(chunks, pool, client, folder)
    times = {name: value.least for name, value in in_turns(calls, REPEATS).items()}
    wanted = calls["np.partition, joined", None]()
    return [
        {
            "quantile by": by,
            "numbers": f"{numbers:.0e}",
            "chunks": num_chunks if bins else None,
            "bins": bins,
            "s": seconds,
            "it / np.partition": seconds / times["np.partition, joined", None],
            "equal": "yes" if calls[by, bins]() == wanted else "no",
        }
        for (by, bins), seconds in times.items()
    ]


def main() -> None:
    """Prints and saves the table."""
    from dask.distributed import Client, LocalCluster

    parser = arguments(__doc__, times=True)
    parser.add_argument("--numbers", type=int, default=NUMBERS)
    args = parser.parse_args()
    one = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": None}
    with ExitStack() as stack:
        enter = stack.enter_context
        folder = Path(enter(tempfile.TemporaryDirectory()))
        spawn = get_context("spawn")
        pool = enter(ProcessPoolExecutor(WORKERS, mp_context=spawn))
        client = enter(Client(enter(LocalCluster(**one))))
        rows = [
            row
            for num_chunks in CHUNKS
            for row in measure(args.numbers, num_chunks, pool, client, folder)
        ]
    print_table("quantiles of chunks, least seconds", rows)
    save_results(args.out, "chunks", rows, {"alpha": ALPHA, "workers": WORKERS})


if __name__ == "__main__":
    main()
