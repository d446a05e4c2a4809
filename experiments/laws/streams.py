"""Streams whose scores depend on the last ones, and steps that fall.

`python -m experiments.laws.streams [--out DIR]`

Residuals of an autoregression with unit variance, r_t = phi r_(t-1) + noise: the set of
the law is 2 z sqrt(1 - phi^2) = 3.290 sqrt(1 - phi^2) wide. A window of their sizes,
weights of similar scores, and regressions on the last residual (`online.SPCI`).
Quantile tracking with and without a decay: scores are uniform, first of one law, then
of one that jumps every 2000 steps between sizes 1 and 2. "Distance" is the mean of
abs(threshold - quantile of the law), "rolling" the standard deviation of coverage in
windows of 200 steps. The time is that of 1000 steps with 4 lags, fits every 20.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.tools.reporting import arguments, run_tables
from jaxcp import metrics, online, scores

ALPHA, PHIS = 0.1, (0.0, 0.5, 0.9)
NUM_PAST, NUM_STEPS, NUM_STREAMS, JUMP = 2000, 4000, 10, 2000
ABSOLUTE = scores.Absolute()
METHODS = {
    "window": online.SlidingWindow(ABSOLUTE),
    "similar, h = 0.3": online.Similar(ABSOLUTE, 0.3),
    "SPCI, window 300": online.SPCI(1, window=300),
    "SPCI, window 600": online.SPCI(1, window=600),
    "SPCI, window 1000": online.SPCI(1, window=1000),
}
STEPS = {"fixed, 0.05": (0.05, 0.0), "t^-0.6": (0.5, 0.6)}


def autoregression(key: Array, phi: float, n: int) -> Array:
    """Returns n residuals of variance 1."""
    key_first, key_noise = jax.random.split(key)
    noise = (1 - phi**2) ** 0.5 * jax.random.normal(key_noise, (n,))
    step = lambda r, e: (phi * r + e,) * 2  # noqa: E731
    return jax.lax.scan(step, jax.random.normal(key_first), noise)[1]


def lagged(num_streams: int = NUM_STREAMS, num_steps: int = NUM_STEPS) -> list[dict]:
    """Returns coverage and mean width of finite sets, with the error of coverage."""
    lines = []
    for phi, (name, method) in ((p, m) for p in PHIS for m in METHODS.items()):
        found = []
        for key in jax.random.split(jax.random.key(0), num_streams):
            r = autoregression(key, phi, NUM_PAST + num_steps)
            past, y = r[:NUM_PAST], r[NUM_PAST:]
            past = past if name.startswith("SPCI") else jnp.abs(past)
            past = past[-300:] if name == "window" else past
            state = method.init(past, ALPHA)
            sets = online.run(method, state, jnp.zeros_like(y), y, ALPHA)[1]
            finite = np.isfinite(sizes := np.asarray(sets.size()))
            widths = sizes[finite].mean(), 1 - finite.mean()
            found.append((float(metrics.coverage(sets, y)), *widths))
        coverage, width, infinite = np.mean(found, axis=0)
        line = {"phi": phi, "method": name, "coverage": coverage}
        line["+-"] = np.std([f[0] for f in found]) / num_streams**0.5
        law = 3.2897 * (1 - phi**2) ** 0.5
        lines.append(line | {"width": width, "of the law": law, "infinite": infinite})
    return lines


def falling(num_steps: int = 10 * JUMP) -> list[dict]:
    """Returns how tracking with each step does where a law stays, and jumps."""
    y = jax.random.uniform(jax.random.key(1), (num_steps,))
    sizes = {"stays": 1.0, "jumps": 1.0 + jnp.arange(num_steps) // JUMP % 2}
    lines = []
    for law, (name, (step, decay)) in ((v, s) for v in sizes for s in STEPS.items()):
        method, size = online.PID(ABSOLUTE, step, decay=decay), sizes[law]
        state = method.init(jnp.linspace(0, 1, 20), ALPHA)
        sets = online.run(method, state, 0 * y, size * y, ALPHA)[1]
        covered = np.asarray(size * y <= sets.upper)
        far = np.abs(np.asarray(sets.upper) - 0.9 * np.asarray(size))
        line = {"law": law, "step": name, "coverage": covered.mean()}
        rolling = covered.reshape(-1, 200).mean(axis=1).std()
        lines.append(line | {"distance": float(far.mean()), "rolling": rolling})
    return lines


def first() -> list[dict]:
    """Returns CPU seconds of the first `init` and run, and of a later run.

    Measured before the others, while nothing is compiled.
    """
    method, r = online.SPCI(4), autoregression(jax.random.key(2), 0.9, 1604)
    past, y = jax.block_until_ready((r[:604], r[604:]))
    start = time.process_time()
    state = jax.block_until_ready(method.init(past, ALPHA))
    middle = time.process_time()
    run = lambda: online.run(method, state, jnp.zeros_like(y), y, ALPHA)[1].upper  # noqa: E731
    jax.block_until_ready(run())
    end = time.process_time()
    for _ in range(5):
        jax.block_until_ready(run())
    cpu = (time.process_time() - end) / 5
    line = {"stream": "SPCI, 1000 steps, 4 lags", "first init, CPU s": middle - start}
    return [line | {"first run, CPU s": end - middle, "CPU s": cpu}]


def main() -> None:
    """Prints and saves the tables."""
    args = arguments(__doc__, compiles=True).parse_args()
    settings = {"alpha": ALPHA, "past": NUM_PAST, "steps": NUM_STEPS}
    settings |= {"streams": NUM_STREAMS, "seeds": [0, 1, 2]}
    tables = {"first": first, "lags": lagged, "falling": falling}
    run_tables(args.out, "streams", tables, settings)


if __name__ == "__main__":
    main()
