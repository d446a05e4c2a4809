"""Thresholds of labels whose shares shift: one a label, of each test point its own.

`python -m experiments.speed.label_thresholds [--out DIR]`

Seconds are of the processor, of all its threads, in turns, beside sets at one threshold
for all; temporaries are those that the compiled program says it takes.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.timing import in_turns

N, M, K, ALPHA, REPEATS = 100_000, 50, 1_000, 0.1, 9


def main() -> None:
    """Prints CPU seconds of M K thresholds of N rows, and temporaries in MB."""
    args = arguments(__doc__, times=True).parse_args()
    draw = np.random.default_rng(0)
    y, ratio = draw.integers(0, K, N), draw.uniform(0.2, 3, K).astype("f")
    scores, new = draw.uniform(size=N).astype("f"), draw.uniform(size=(M, K))
    new = jnp.asarray((new / new.sum(axis=1, keepdims=True)).astype("f"))
    each = jnp.asarray(ratio * draw.uniform(0.9, 1, (M, 1)).astype("f"))
    lac = jaxcp.scores.LAC()
    plain = jaxcp.Calibration(lac, jnp.asarray(scores))
    cp = jaxcp.Calibration(lac, plain.scores, jnp.asarray(ratio[y]))
    programs = {
        "no weights": lambda p, w: plain(p, ALPHA).mask,
        "one weight a point": lambda p, w: cp(p, ALPHA, test_weights=w[:, 0]).mask,
        "one weight a label": lambda p, w: cp(p, ALPHA, test_weights=w).mask,
    }
    taken = {k: jax.jit(v) for k, v in programs.items()}
    calls = {
        k: lambda f=f: jax.block_until_ready(f(new, each)) for k, f in taken.items()
    }
    times, rows = in_turns(calls, REPEATS), []
    for name, program in taken.items():
        memory = program.lower(new, each).compile().memory_analysis()
        row = {"way": name, "CPU s": times[name].cpu}
        rows.append(row | {"temporaries MB": memory.temp_size_in_bytes / 1e6})
    print_table(f"{M} x {K:,} thresholds of {N:,} rows", rows)
    settings = {"n": N, "m": M, "k": K, "alpha": ALPHA}
    save_results(args.out, "label_thresholds", rows, settings)


if __name__ == "__main__":
    main()
