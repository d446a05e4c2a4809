"""How time and memory of conformal quantiles grow with the scores."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jaxcp
from experiments.tools.machines import peak_gib

ALPHA, LENGTH, SECONDS = 0.1, 100, 2.0
SHAPES = {
    "one vector": [(10**i,) for i in range(3, 9)],
    f"rows of {LENGTH}": [(10**i, LENGTH) for i in range(3, 7)],
}
AT_MOST = 1.25  # times the numbers, where time still counts as linear


def scaling() -> list[dict]:
    """Returns seconds and memory, each kind measured in a process of its own."""
    return [row for kind in SHAPES for row in with_growth(kind, measured(kind))]


def measured(kind: str) -> list[dict]:
    """Returns what a fresh process measures, whose memory is that of one size."""
    program = f"from experiments.speed.kernel_scaling import show; show({kind!r})"
    words = [sys.executable, "-c", program]
    run = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def show(kind: str) -> None:
    """Prints the seconds and the memory of all sizes of one kind."""
    print(json.dumps([measure(shape) for shape in SHAPES[kind]]))


def measure(shape: tuple[int, ...]) -> dict:
    """Returns the median seconds of a call after the first, and the peak memory."""
    draws = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    x = jnp.asarray(draws)
    size = x.size
    del draws  # the input on the device alone is left
    call = partial(_quantile if len(shape) == 1 else _ROWS, x)
    jax.block_until_ready(call())
    peak_gib(reset=True)
    return {"size": size, "s": _median_seconds(call), "peak GiB": peak_gib()}


def with_growth(kind: str, lines: list[dict]) -> list[dict]:
    """Returns rows of the table: what ten times the numbers cost."""
    rows = []
    for i, (line, shape) in enumerate(zip(lines, SHAPES[kind], strict=True)):
        grown = line["s"] / lines[i - 1]["s"] if i else None
        more = line["size"] / lines[i - 1]["size"]
        rows.append(
            {
                "conformal quantile of": kind,
                "number": f"10^{math.log10(shape[0]):.0f}",
                "s": line["s"],
                "ns a score": 1e9 * line["s"] / line["size"],
                "peak GiB": line["peak GiB"],
                "input GiB": 4 * line["size"] / 2**30,
                "times the row above": grown,
                "linear or below": ""
                if grown is None
                else _yes(grown <= AT_MOST * more),
            }
        )
    return rows


def _median_seconds(call: Callable) -> float:
    """Returns the median of calls, of which there are three or a few seconds' worth."""
    seconds: list[float] = []
    while len(seconds) < 3 or (len(seconds) < 15 and sum(seconds) < SECONDS):
        start = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def _quantile(x):
    return jaxcp.conformal_quantile(x, ALPHA)


def _yes(flag):
    return "yes" if flag else "no"


_ROWS = jax.jit(jax.vmap(_quantile))
