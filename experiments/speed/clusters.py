"""Rows that are not alike: clusters, beside the weighted quantile.

`python -m experiments.speed.clusters [--out DIR]`

A call calibrates and finds one threshold. Seconds are of the processor, of all its
threads, in turns of one run, after a first call that compiles.
"""

import jax.numpy as jnp
import numpy as np

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.timing import in_turns
from jaxcp import scores

ROWS, CLUSTERS, ALPHA = 10**6, 10**5, 0.1
AT_MOST = 1.2  # times the seconds with weights
REPEATS = 25


def of_clusters(rows: int = ROWS, num_clusters: int = CLUSTERS) -> list[dict]:
    """Returns lines of one calibration with weights, and with clusters by id."""
    draw = np.random.default_rng(0)
    y = jnp.asarray(draw.standard_normal(rows, np.float32))
    ids = draw.integers(num_clusters, size=rows, dtype=np.int32)
    shares = (1 / np.bincount(ids)[ids]).astype(np.float32)
    kinds = {
        "weights": {"weights": jnp.asarray(shares)},
        "clusters, numbers of jax": {"clusters": jnp.asarray(ids)},
        "clusters, numbers of NumPy": {"clusters": ids.astype(np.int64)},
        "clusters, other integers": {"clusters": ids.astype(np.int64) + 10**9},
        "clusters, text": {"clusters": np.array([f"p{v}" for v in ids], object)},
    }

    def call(known):
        return jaxcp.calibrate(scores.Absolute(), 0 * y, y, **known).quantile(ALPHA)

    calls = {name: lambda known=known: call(known) for name, known in kinds.items()}
    values = [float(call()) for call in calls.values()]
    assert len({*values}) == 1
    cp = jaxcp.calibrate(scores.Absolute(), 0 * y, y, clusters=jnp.asarray(ids))
    calls["all rows of a new cluster"] = lambda: cp.all_rows(y[:1], ALPHA)
    return beside("weights", calls)


def beside(first: str, calls: dict, repeats: int = REPEATS) -> list[dict]:
    """Returns a line for each call, with its seconds and their ratio to one of them."""
    times = {name: found.cpu for name, found in in_turns(calls, repeats).items()}
    return [
        {"rows": name, "CPU s": seconds, f"it / {first}": seconds / times[first]}
        for name, seconds in times.items()
    ]


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__, times=True).parse_args()
    found = of_clusters()
    title = f"{ROWS} rows in {CLUSTERS} clusters, numbers at most {AT_MOST} times"
    print_table(f"{title} the weighted calibration", found)
    settings = {"rows": ROWS, "clusters": CLUSTERS, "alpha": ALPHA, "repeats": REPEATS}
    save_results(args.out, "clusters", found, settings)


if __name__ == "__main__":
    main()
