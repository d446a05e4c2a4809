"""Calls timed in turns: by the clock on the wall, and by the processor's."""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache


class Times(NamedTuple):
    """Seconds of one call: the median, the least, and the median of all cores' time."""

    median: float
    least: float
    cpu: float


def in_turns(
    calls: dict[str, Callable], repeats: int = 15, seconds: float = np.inf
) -> dict[str, Times]:
    """Returns the seconds of each call, taken in turns after a warm-up.

    The calls alternate, so that a machine that slows down slows all of them down, in an
    order drawn for each round, since a call leaves threads awake and caches full to the
    next one. What NumPy does takes one core, what XLA does all: the cores' time tells.

    Args:
      calls: What to call, by name.
      repeats: How often, at most.
      seconds: No more than three rounds begin after so many seconds in all.
    """
    for call in calls.values():
        jax.block_until_ready(call())
    seen = {name: [] for name in calls}
    names, rng = list(calls), np.random.default_rng(0)
    begin = time.perf_counter()
    for i in range(repeats):
        for j in rng.permutation(len(names)):
            seen[names[j]].append(_timed(calls[names[j]]))
        if i >= 2 and time.perf_counter() - begin > seconds:
            break
    return {name: _summary(*zip(*pairs, strict=True)) for name, pairs in seen.items()}


def compiled(function: Callable, *args) -> tuple[Callable, float]:
    """Returns the program of a jitted function, and the seconds without any cache."""
    cached = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        start = time.perf_counter()
        program = function.lower(*args).compile()
        return program, time.perf_counter() - start
    finally:
        jax.config.update("jax_enable_compilation_cache", cached)
        compilation_cache.reset_cache()


def _timed(call):
    """Returns the seconds of one call, on the wall and of all cores."""
    cpu, start = time.process_time(), time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start, time.process_time() - cpu


def _summary(wall, cpu):
    return Times(float(np.median(wall)), float(np.min(wall)), float(np.median(cpu)))
