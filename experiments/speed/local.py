"""Local thresholds: RLCP and LCP, and the whole matrix of weights in NumPy.

`python -m experiments.speed.local [--out DIR]`

Seconds are of the processor, of all its threads, in turns; temporaries are those that
the compiled program says it takes.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.timing import in_turns
from jaxcp.conditional import Gaussian

N = M = 2000
WIDTH, ALPHA, REPEATS = 0.3, 0.1, 15


def in_numpy(scores, x, test, anchors):
    """Returns thresholds of RLCP from the whole matrix, scores sorted before."""

    def near(a, b):
        gaps = ((a[:, None] - b[None]) ** 2).sum(axis=-1)
        return np.exp(-gaps / (2 * WIDTH**2))

    sums = np.cumsum(near(anchors, x), axis=1)
    own = np.exp(-((test - anchors) ** 2).sum(axis=1) / (2 * WIDTH**2))
    reached = sums >= (1 - ALPHA) * (sums[:, -1] + own)[:, None]
    q = scores[np.argmax(reached, axis=1)]
    return np.where(reached.any(axis=1), q, np.inf)


def main() -> None:
    """Prints CPU seconds of both ways, their ratio, and temporaries in MB."""
    args = arguments(__doc__, times=True).parse_args()
    draw = np.random.default_rng(0)
    x, test = draw.normal(size=(2, N, 2)).astype("f")
    noise = abs(draw.normal(size=N).astype("f"))
    scores, kernel = abs(np.sin(x[:, 0])) * noise, Gaussian(WIDTH)
    anchors = np.asarray(kernel.draw(jax.random.key(0), test))
    zeros, order = np.zeros(M, "f"), np.argsort(scores)
    cp = jaxcp.calibrate_local(jaxcp.scores.Absolute(), zeros, scores, x, kernel)
    test_, anchors_ = jnp.asarray(test), jnp.asarray(anchors)

    def whole(x=test_, anchors=anchors_):
        return cp(zeros, ALPHA, x=x, anchors=anchors).upper

    calls = {
        "NumPy, whole matrix": lambda: in_numpy(scores[order], x[order], test, anchors),
        "RLCP": whole,
        "LCP": lambda: whole(anchors=None),
    }
    ways = [np.asarray(calls[k]()) for k in ("NumPy, whole matrix", "RLCP")]
    agree = float(np.mean(ways[0] == ways[1]))
    times = {k: v.cpu for k, v in in_turns(calls, REPEATS).items()}
    base, rows = times["NumPy, whole matrix"], []
    for name, given in {"RLCP": (test_, anchors_), "LCP": (test_,)}.items():
        taken = jax.jit(whole if len(given) > 1 else lambda x: whole(x, None))
        memory = taken.lower(*given).compile().memory_analysis()
        rows.append(
            {
                "way": name,
                "CPU s": times[name],
                "it / NumPy": times[name] / base,
                "temporaries MB": memory.temp_size_in_bytes / 1e6,
            }
        )
    rows.append({"way": "NumPy, whole matrix", "CPU s": base})
    print_table("Local thresholds", rows)
    print(f"RLCP equals NumPy at {agree:.2%} of test points")
    save_results(args.out, "local", rows, {"n": N, "m": M, "alpha": ALPHA})


if __name__ == "__main__":
    main()
