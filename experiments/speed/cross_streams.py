"""Steps per second of the online methods."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tools.reporting import median_seconds
from jaxcp import online, scores

ALPHA, ABSOLUTE = 0.1, scores.Absolute()
STREAMS = {
    "window of 2000, every = 1": (online.SlidingWindow(ABSOLUTE), 2000, 1e4),
    "window of 2000, every = 24": (online.SlidingWindow(ABSOLUTE, 24), 2000, None),
    "ACI, window of 500": (online.ACI(ABSOLUTE, 0.01), 500, 1e5),
    "DtACI, 8 experts, window of 500": (
        online.DtACI(ABSOLUTE, 0.001 * 2.0 ** np.arange(8)),
        500,
        None,
    ),
    "NexCP, window of 500": (online.NexCP(ABSOLUTE, 0.99), 500, None),
    "quantile tracking": (online.PID(ABSOLUTE, 0.05), 500, 1e7),
    "PID": (online.PID(ABSOLUTE, 0.05, 0.1), 500, None),
    "SF-OGD": (online.SFOGD(ABSOLUTE, 3.0), 500, None),
}


def stream_times() -> list[dict]:
    """Returns steps per second of one series, and of 100 series under vmap."""
    return [stream_time(name, *settings) for name, settings in STREAMS.items()]


def stream_time(name: str, method, size: int, at_least: float | None) -> dict:
    """Times one online method."""
    past = jnp.abs(jax.random.normal(jax.random.key(1), (size,)))
    length = 1_000_000 if isinstance(method, online.PID | online.SFOGD) else 50_000
    y = jax.random.normal(jax.random.key(0), (length,))
    many, state = y.reshape(100, -1), method.init(past, ALPHA)

    def run(y):
        return online.run(method, state, jnp.zeros_like(y), y, ALPHA)[1]

    together = jax.jit(jax.vmap(run))
    times = median_seconds(
        {"one": lambda: run(y), "many": lambda: together(many)}, repeats=3
    )
    return {
        "steps of one series": name,
        "million steps / s": length / times["one"] / 1e6,
        "at least": None if at_least is None else at_least / 1e6,
        "100 series under vmap": length / times["many"] / 1e6,
    }
