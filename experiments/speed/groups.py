"""Thresholds of many groups: by counting, and one selection for each group.

`python -m experiments.speed.groups [--out DIR]`

Seconds are of the processor, of all its threads, in turns; memory is what a process of
its own takes beyond its input.
"""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.timing import in_turns
from jaxcp import kth_smallest
from jaxcp.quantiles.thresholds import group_thresholds

SHAPES = [(10**5, 5), (10**5, 10), (10**6, 5), (10**6, 10), (10**6, 100)]
LARGE = [(10**6, 1000), (10**7, 1000)]  # that the old way has no memory or time for
MAPPED = (10**3, 5), 10**3  # rows and groups, and replicates
REPEATS = 15


@jax.jit
def by_selections(x: jax.Array, k: jax.Array, groups: jax.Array) -> jax.Array:
    """Returns the same by one selection for each group, among all rows."""
    own = groups[None] == jnp.arange(len(k))[:, None]
    return jax.vmap(lambda k, own: kth_smallest(x, k, where=own))(k, own)


def data(n: int, g: int, *batch: int) -> tuple:
    """Returns scores, ranks and groups; ranks are about a tenth from the top."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((*batch, n), np.float32)
    groups = draw.integers(g, size=(*batch, n), dtype=np.int32)
    return jnp.asarray(x), jnp.full(g, 9 * n // (10 * g)), jnp.asarray(groups)


def measure(n: int, g: int, *batch: int, compare: bool = True) -> dict:
    """Returns the seconds of both ways, which agree to the last bit."""
    rows = data(n, g, *batch)
    ways = {"counting": group_thresholds}
    ways |= {"selections": by_selections} if compare else {}
    if batch:
        ways = {k: jax.jit(jax.vmap(f, (0, None, 0))) for k, f in ways.items()}
    calls = {k: lambda f=f: f(*rows) for k, f in ways.items()}
    found = [np.asarray(call()) for call in calls.values()]
    assert all(np.array_equal(found[0], other) for other in found)
    times = {k: v.cpu for k, v in in_turns(calls, REPEATS).items()}
    name = " x ".join(f"{v:,}" for v in (*batch, n)) + f", {g} groups"
    ours = times["counting"]
    ratio = times["selections"] / ours if compare and ours > 0 else None
    return {"rows": name, "CPU s": ours, "it / counting": ratio}


def extra_memory(n: int, g: int) -> float:
    """Returns the GiB that a fresh process takes beyond its input, at most."""
    code = f"from experiments.speed.groups import peak; print(peak({n}, {g}))"
    run = [sys.executable, "-c", code]
    lines = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    return float(lines.split()[-1])


def peak(n: int, g: int) -> float:
    """Returns the GiB by which this process grows as it finds thresholds (Linux)."""
    rows = jax.block_until_ready(data(n, g))
    before = _gib("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    jax.block_until_ready(group_thresholds(*rows))
    return _gib("VmHWM") - before


def _gib(name):
    with open("/proc/self/status") as file:
        return next(int(v.split()[1]) for v in file if v.startswith(name)) / 2**20


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__, times=True).parse_args()
    rows = [measure(*shape) for shape in SHAPES]
    rows.append(measure(*MAPPED[0], MAPPED[1]))
    rows += [
        measure(*shape, compare=False) | {"GiB more": extra_memory(*shape)}
        for shape in LARGE
    ]
    print_table("Thresholds of groups", rows)
    save_results(args.out, "groups", rows, {"repeats": REPEATS, "dtype": "float32"})


if __name__ == "__main__":
    main()
