"""Multi-output scores, membership and training: times, ratios and memory, in one run.

`python -m experiments.speed.multioutput_speed [--out DIR]`
The comparison is what one writes first: all differences of a chunk of rows, in jax and
in numpy. Times are medians after compilation, taken in turns; training is timed once,
with its compilation.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxcp
from experiments.tools.reporting import arguments, median_seconds, run_tables
from jaxcp import datasets, models, scores
from jaxcp.sets import Balls

NUM_ROWS, NUM_DRAWS, CHUNK = 10_000, 100, 64
NUM_POINTS, NUM_BALLS = 1_000_000, 100
NUM_TRAINING = 6000
SCORE = scores.CDF(scores.PCP())
SECONDS_AT_MOST = {2: 0.15, 16: 0.4}


def by_differences(references, draws, y):
    """Returns C-PCP counts of one row from an array (K, L, d) of differences."""

    def nearest(points):
        differences = points[:, None] - references[None]
        return jnp.sqrt(jnp.min(jnp.sum(differences**2, axis=-1), axis=1))

    return jnp.sum(nearest(draws) <= nearest(y[None])[0])


def by_numpy(references, draws, y):
    """Returns the counts, in chunks of rows."""
    counts = []
    for start in range(0, len(y), CHUNK):
        r, k, t = (v[start : start + CHUNK] for v in (references, draws, y[:, None]))
        points = np.concatenate([k, t], axis=1)
        differences = points[:, :, None] - r[:, None]
        squares = np.einsum("nkld,nkld->nkl", differences, differences)
        nearest = np.sqrt(squares.min(axis=2))
        counts.append(np.sum(nearest[:, :-1] <= nearest[:, -1:], axis=1))
    return np.concatenate(counts)


def score_times() -> list[dict]:
    """Times the C-PCP scores of 10^4 rows with K = L = 100."""
    rows = []
    ours = jax.jit(lambda r, k, y: jaxcp.calibrate(SCORE, (r, k), y).scores)
    chunks = jax.jit(
        lambda r, k, y: lax.map(
            lambda row: by_differences(*row), (r, k, y), batch_size=CHUNK
        )
    )
    for d, bar in SECONDS_AT_MOST.items():
        rng = np.random.default_rng(0)
        shape = (NUM_ROWS, NUM_DRAWS, d)
        r, k = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
        y = rng.normal(size=(NUM_ROWS, d)).astype(np.float32)
        data = tuple(jnp.asarray(v) for v in (r, k, y))
        expected = by_numpy(r, k, y)
        differing = np.mean(np.asarray(ours(*data)) != expected)
        assert differing < 1e-3, differing  # sums in another order
        times = median_seconds(
            {
                "ours": lambda v=data: ours(*v),
                "chunks": lambda v=data: chunks(*v),
                "numpy": lambda v=(r, k, y): by_numpy(*v),
            },
            repeats=5,
        )
        memory = ours.lower(*data).compile().memory_analysis().temp_size_in_bytes
        rows.append(
            {
                "C-PCP scores, d": d,
                "jaxcp s": times["ours"],
                "at most": bar,
                "differences, jax s": times["chunks"],
                "differences, numpy s": times["numpy"],
                "jaxcp / jax": times["ours"] / times["chunks"],
                "jaxcp / numpy": times["ours"] / times["numpy"],
                "temporaries MB": memory / 1e6,
                "at most MB": 200,
            }
        )
    return rows


def membership_times() -> list[dict]:
    """Times which of 10^6 points are in a union of 100 balls."""
    rng = np.random.default_rng(0)
    points = rng.uniform(-3, 3, (NUM_POINTS, 2)).astype(np.float32)
    centers = rng.normal(size=(NUM_BALLS, 2)).astype(np.float32)
    balls, on_device = Balls(jnp.asarray(centers), jnp.array(0.2)), jnp.asarray(points)

    @jax.jit
    def chunks(points):
        def inside(y):
            return jnp.min(jnp.sum((y[None] - balls.centers) ** 2, axis=1)) <= 0.04

        return lax.map(inside, points, batch_size=1000)

    def in_numpy():
        parts = []
        for part in np.split(points, NUM_POINTS // 1000):
            differences = part[:, None] - centers[None]
            squares = np.einsum("nld,nld->nl", differences, differences)
            parts.append(squares.min(axis=1) <= 0.04)
        return np.concatenate(parts)

    times = median_seconds(
        {
            "ours": lambda: jaxcp.sets.membership(balls, on_device),
            "chunks": lambda: chunks(on_device),
            "numpy": in_numpy,
        },
        repeats=5,
    )
    return [
        {
            "points in 100 balls": NUM_POINTS,
            "jaxcp s": times["ours"],
            "at most": 0.5,
            "differences, jax s": times["chunks"],
            "differences, numpy s": times["numpy"],
            "jaxcp / jax": times["ours"] / times["chunks"],
            "jaxcp / numpy": times["ours"] / times["numpy"],
        }
    ]


def training_times() -> list[dict]:
    """Times the training of each model on 6000 points, from nothing."""
    law = datasets.OneMoon()
    x, y = law.draw(jax.random.key(0), NUM_TRAINING)
    rows = []
    for name in models.__all__:
        model = getattr(models, name)()
        start = time.perf_counter()
        jax.block_until_ready(model.fit(jax.random.key(1), x, y))
        first = time.perf_counter() - start
        start = time.perf_counter()
        jax.block_until_ready(model.fit(jax.random.key(2), x, y))
        rows.append(
            {
                "training, 6000 points": name,
                "s with compilation": first,
                "at most": 20.0,
                "s": time.perf_counter() - start,
                "steps": model.num_steps,
            }
        )
    return rows


def main() -> None:
    """Prints and saves all tables."""
    args = arguments(__doc__, compiles=True).parse_args()
    tables = {
        "scores": score_times,
        "membership": membership_times,
        "training": training_times,
    }
    settings = {"rows": NUM_ROWS, "draws": NUM_DRAWS, "dtype": "float32"}
    run_tables(args.out, "multioutput_speed", tables, settings)


if __name__ == "__main__":
    main()
