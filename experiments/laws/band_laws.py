"""Bands of whole paths, with scales from other rows, and Bonferroni beside them.

`python -m experiments.laws.band_laws [--out DIR]`

Paths of 40 points around a center of 0. Walk: (z_1 + ... + z_t) / sqrt(T) times a
growing factor from 0.5 to 1.5; noise: z_t times the factor. 200 paths give the scale,
200 others calibrate. Clamped Bonferroni takes the largest score of each point where the
rank at alpha / T exceeds n, as some libraries do.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results
from jaxcp import scores

ALPHA, NUM_POINTS = 0.1, 40
NUM_FIT = NUM_CAL = 200
NUM_TRIALS, NUM_TEST = 500, 200
FACTOR = 0.5 + (np.arange(NUM_POINTS) + 0.5) / NUM_POINTS
LAWS = "walk", "noise"
METHODS = "constant", "root mean square", "envelope", "95 % of the points"
METHODS += "Bonferroni", "Bonferroni, clamped"


def draw(key: Array, law: str) -> tuple[Array, Array, Array]:
    """Returns paths that fit, calibrate and test."""
    sizes = NUM_FIT, NUM_FIT + NUM_CAL
    z = jax.random.normal(key, (sizes[1] + NUM_TEST, NUM_POINTS))
    path = jnp.cumsum(z, axis=1) / NUM_POINTS**0.5 if law == "walk" else z
    return tuple(jnp.split(path * FACTOR[None], sizes))


def trial(key: Array) -> dict[str, dict]:
    """Returns coverage and mean width of each method under each law."""
    found = {}
    for law, own in zip(LAWS, jax.random.split(key), strict=True):
        fit, old, new = draw(own, law)
        rms = scores.root_mean_square(fit)
        ways = {
            "constant": (scores.Band(), jnp.ones_like(rms)),
            "root mean square": (scores.Band(), rms),
            "envelope": (scores.Band(), scores.envelope(fit, ALPHA)),
            "95 % of the points": (scores.Band(0.95), rms),
        }
        for name, way in ways.items():
            found[f"{law}, {name}"] = by_band(*way, old, new)
        q = jaxcp.conformal_quantile(jnp.abs(old), ALPHA / NUM_POINTS)
        found[f"{law}, Bonferroni"] = by_point(q, new)
        most = jnp.minimum(q, jnp.max(jnp.abs(old), axis=0))
        found[f"{law}, Bonferroni, clamped"] = by_point(most, new)
    return found


def by_band(score, scale: Array, old: Array, new: Array) -> dict[str, Array]:
    """Returns what a band covers, and its mean width, the same for all paths."""
    pred = lambda y: (jnp.zeros_like(y), jnp.broadcast_to(scale, y.shape))  # noqa: E731
    cp = jaxcp.calibrate(score, pred(old), old)
    sets = cp(pred(new), ALPHA)
    return {"coverage": jnp.mean(sets.contains(new)), "width": jnp.mean(sets.size())}


def by_point(q: Array, new: Array) -> dict[str, Array]:
    """Returns what a threshold for each point covers."""
    inside = jnp.all(jnp.abs(new) <= q[None], axis=1)
    return {"coverage": jnp.mean(inside), "width": jnp.mean(2 * q)}


def table(num_trials: int = NUM_TRIALS) -> list[dict]:
    """Returns means over trials, and the error of the coverage."""
    found = jaxcp.simulate(trial, jax.random.key(0), num_trials, batch_size=20)
    lines = []
    for law in LAWS:
        for name in METHODS:
            values = found[f"{law}, {name}"]
            line = {"law": law, "method": name}
            line |= {"coverage": float(np.mean(values["coverage"]))}
            line |= {"+-": float(np.std(values["coverage"]) / num_trials**0.5)}
            lines.append(line | {"width": float(np.mean(values["width"]))})
    return lines


def main() -> None:
    """Prints and saves the table."""
    args = arguments(__doc__).parse_args()
    lines = table()
    print_table(f"Bands of {NUM_POINTS} points, alpha = {ALPHA}", lines)
    settings = {"alpha": ALPHA, "points": NUM_POINTS, "rows": [NUM_FIT, NUM_CAL]}
    settings |= {"trials": NUM_TRIALS, "seed": 0}
    save_results(args.out, "band_laws", lines, settings)


if __name__ == "__main__":
    main()
