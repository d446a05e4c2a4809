"""Scores of whole fields, and NumPy: the largest error, and that of a share.

`python -m experiments.speed.bands [--out DIR]`

Seconds are of the processor, of all its threads, in turns.
"""

import jax.numpy as jnp
import numpy as np

from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.timing import in_turns
from jaxcp._batching import evaluate
from jaxcp.scores import Band

N, SIDE, SHARE, REPEATS = 200, 256, 0.95, 15
COUNT = 62_260  # ceil(0.95 * 65,536)


def main() -> None:
    """Prints CPU seconds of both, and their ratio."""
    args = arguments(__doc__, times=True).parse_args()
    draw = np.random.default_rng(0)
    center, y = draw.normal(size=(2, N, SIDE, SIDE)).astype("f")
    scale = draw.uniform(0.5, 2, size=center.shape).astype("f")

    def errors():
        return (np.abs(y - center) / scale).reshape(N, -1)

    numpy = {
        "largest": lambda: errors().max(axis=1),
        "95 %": lambda: np.partition(errors(), COUNT - 1, axis=1)[:, COUNT - 1],
    }
    ours = {"largest": Band(), "95 %": Band(SHARE)}
    preds, target = (jnp.asarray(center), jnp.asarray(scale)), jnp.asarray(y)
    calls, rows = {}, []
    for name, by_numpy in numpy.items():
        calls[f"{name}, NumPy"] = by_numpy
        calls[name] = lambda score=ours[name]: evaluate(score, preds, target)
        assert np.allclose(calls[name](), by_numpy(), rtol=1e-6)
    times = {k: v.cpu for k, v in in_turns(calls, REPEATS).items()}
    for name in numpy:
        base, own = times[f"{name}, NumPy"], times[name]
        line = {"of points": name, "by": "NumPy", "CPU s": own, "NumPy s": base}
        rows.append(line | {"jaxcp / it": own / base})
    print_table(f"{N} fields of {SIDE} x {SIDE}", rows)
    save_results(args.out, "bands", rows, {"n": N, "side": SIDE, "share": SHARE})


if __name__ == "__main__":
    main()
