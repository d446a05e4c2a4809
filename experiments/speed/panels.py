"""Streams of a whole panel, of the size of M5: CPU seconds, coverage and width.

`python -m experiments.speed.panels [--series N] [--out DIR]`

30,490 series of 1,713 steps, generated: a weekly season, autoregressive noise whose
scale doubles half way, and the value of a week before as the forecast. 100 more steps
come first, and give the past scores. One `vmap` runs a block of series; coverage and
width are reduced in the same program, so that no set is kept. A step of tracking is a
share of the largest past score of its series. Widths are in units of the mean past
score. Seconds are of the processor, of all its threads, after a first block that
compiles, without those that generate, and of whole blocks: of 110 more series. ACI has
a window of 100 scores.

Of 20 step sizes each, ACI runs on 1,000 series. Methods that take a selection or a fit
a step, and those beside tracking, run on 100 series, with one setting each.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.speed.monitors import cpu_seconds
from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import metrics, online, scores

SERIES, STEPS, PAST, WEEK, ALPHA = 30_490, 1713, 100, 7, 0.1
BLOCK = 200  # series of a program: what they need fits the cache
AT_MOST = {"tracking": 5, "ACI": 40}  # CPU s
SAMPLE, FEW, DECAY = 1000, 100, 0.6  # series of ACI's table, and of the other methods
NUM_SIZES, FACTOR = 20, 32  # step sizes, from 1 / FACTOR to FACTOR times the first
ABSOLUTE = scores.Absolute()
EXPERTS = 0.001 * 2.0 ** np.arange(8)
Build = Callable[[Array, Array], online.Stream]  # of a step size, the largest score
ONE = {  # for all series: the step size, and the method
    "tracking": (0.05, lambda step, high: online.PID(ABSOLUTE, step * high)),
    "decay": (1.0, lambda step, high: online.PID(ABSOLUTE, step * high, decay=DECAY)),
    "ACI": (0.01, lambda step, high: online.ACI(ABSOLUTE, step)),
}
OTHERS = {  # for 100 series
    "sliding window": (None, lambda step, high: online.SlidingWindow(ABSOLUTE)),
    "NexCP": (0.99, lambda step, high: online.NexCP(ABSOLUTE, step)),
    "DtACI, 8 experts": (None, lambda step, high: online.DtACI(ABSOLUTE, EXPERTS)),
    "PID, integrator": (
        0.05,
        lambda step, high: online.PID(ABSOLUTE, step * high, high),
    ),
    "SF-OGD": (1.0, lambda step, high: online.SFOGD(ABSOLUTE, step * high)),
    "Similar": (0.1, lambda step, high: online.Similar(ABSOLUTE, step * high, 1, PAST)),
    "SPCI": (None, lambda step, high: online.SPCI(lags=1, window=PAST, every=WEEK)),
}


@partial(jax.jit, static_argnames="size")
def generated(key: Array, size: int) -> tuple[Array, Array]:
    """Returns forecasts and values of a block, shape (size, PAST + STEPS)."""
    key_level, key_phase, key_noise = jax.random.split(key, 3)
    level = jnp.exp(jax.random.normal(key_level, (size,)))
    phase = jax.random.uniform(key_phase, (size,), maxval=2 * jnp.pi)
    days = jnp.arange(WEEK + PAST + STEPS)
    noise = jax.random.normal(key_noise, (len(days), size))
    noise *= jnp.where(days < len(days) / 2, 0.25, 0.5)[:, None]

    def step(last, now):
        day, noise = now
        last = 0.5 * last + noise
        season = 0.5 * jnp.sin(2 * jnp.pi * day / WEEK + phase)
        return last, level * (3 + season + last)

    y = jax.lax.scan(step, jnp.zeros(size), (days, noise))[1].T
    return y[:, :-WEEK], y[:, WEEK:]


def program(build: Build) -> Callable:
    """Returns the program (step, preds, y) -> coverage, width and share of infinite.

    Each has shape (s,), one a series.
    """

    def one(step, preds, y):
        past = (y - preds)[:PAST]
        high, mean = jnp.max(jnp.abs(past)), jnp.mean(jnp.abs(past))
        method = build(step, high)
        signed = isinstance(method, online.SPCI)
        state = method.init(past if signed else jnp.abs(past), ALPHA)
        preds, y = preds[PAST:], y[PAST:]
        sets = online.run(method, state, preds, y, ALPHA)[1]
        width, infinite = sets.size(), jnp.isinf(sets.size())
        width = jnp.sum(jnp.where(infinite, 0, width)) / jnp.sum(~infinite)
        return metrics.coverage(sets, y), width / mean, jnp.mean(infinite)

    return jax.jit(jax.vmap(one, (None, 0, 0)))


def measured(build: Build, sizes: list[float], series: int) -> list[dict]:
    """Returns figures of each step size over some series, and CPU seconds."""
    run, block, key = program(build), min(BLOCK, series), jax.random.key(0)
    found = {size: [] for size in sizes}
    for start in range(0, series, block):
        rows = jax.block_until_ready(generated(jax.random.fold_in(key, start), block))
        call = lambda size: run(size, *rows)  # noqa: E731, B023
        if start == 0:
            jax.block_until_ready(call(sizes[0]))
        for size, results in found.items():
            results.append(cpu_seconds(lambda: call(size)))  # noqa: B023
    return [line(size, results, series) for size, results in found.items()]


def line(size: float | None, results: list, series: int) -> dict:
    """Returns the figures of one step size, over its first series."""
    rows = np.concatenate([values for _, values in results], axis=1)
    coverage, width, infinite = rows[:, :series].astype(float)
    seconds = sum(seconds for seconds, _ in results)
    return {
        "step size": size,
        "series": series,
        "coverage": float(coverage.mean()),
        "least of a series": float(coverage.min()),
        "width": float(width.mean()),
        "infinite": float(infinite.mean()),
        "CPU s": seconds,
        "million steps / CPU s": rows.shape[1] * STEPS / seconds / 1e6,
    }


def one_each(series: int) -> list[dict]:
    """Returns lines of one step size: three methods on all, others on 100 series."""
    found = {name: (*values, series) for name, values in ONE.items()}
    found |= {name: (*values, FEW) for name, values in OTHERS.items()}
    return [
        {"method": name} | measured(build, [size], count)[0]
        for name, (size, build, count) in found.items()
    ]


def many_sizes(series: int) -> list[dict]:
    """Returns lines of all step sizes of the methods of O(1) a step, and of ACI."""
    counts, factors = {"ACI": SAMPLE}, np.geomspace(1 / FACTOR, FACTOR, NUM_SIZES)
    return [
        {"method": name} | found
        for name, (first, build) in ONE.items()
        for found in measured(
            build, (first * factors).tolist(), min(series, counts.get(name, series))
        )
    ]


def main() -> None:
    """Prints and saves both tables."""
    parser = arguments(__doc__, compiles=True)
    parser.add_argument("--series", type=int, default=SERIES)
    args = parser.parse_args()
    series = args.series
    bars = ", ".join(f"{name} at most {most} CPU s" for name, most in AT_MOST.items())
    one, many = one_each(series), many_sizes(series)
    print_table(f"{series} series, {STEPS} steps, {bars}", one)
    print_table(f"{NUM_SIZES} step sizes", many)
    settings = {"steps": STEPS, "past": PAST, "alpha": ALPHA, "decay": DECAY, "seed": 0}
    save_results(args.out, "panels", one, settings)
    save_results(args.out, "panels_sizes", many, settings)


if __name__ == "__main__":
    main()
