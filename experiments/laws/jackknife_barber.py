"""The jackknife's collapse, and the jackknife+ without one: Barber et al., 2021.

`python -m experiments.laws.jackknife_barber --out DIR`

n = 100 rows, X ~ N(0, I_d), y = x'b + N(0, 1), b of length sqrt(10) in a random
direction, least squares of minimum norm, alpha = 0.1, for d from 5 to 200. The paper
shows curves; beside ours stand the coverages of an earlier run of our own in numpy.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array
from tqdm.auto import tqdm

import jaxcp
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import learners, metrics, scores

ALPHA, NUM_ROWS, NUM_TEST, NUM_TRIALS = 0.1, 100, 100, 200
DIMENSIONS = [5, 20, 40, 60, 80, 90, 95, 100, 105, 110, 120, 140, 160, 200]
EARLIER = {  # 50 trials in numpy
    5: {"jackknife": 0.91, "jackknife+": 0.91},
    100: {"jackknife": 0.57, "jackknife+": 0.92, "minmax": 0.98},
}
LEAST_SQUARES = learners.Ridge(0.0, intercept=False)


def sample(key: Array, num_features: int) -> tuple[Array, Array]:
    """Returns training and test rows of one replicate."""
    key_b, key_x, key_y = jax.random.split(key, 3)
    b = jax.random.normal(key_b, (num_features,))
    b = jnp.sqrt(10.0) * b / jnp.linalg.norm(b)
    x = jax.random.normal(key_x, (NUM_ROWS + NUM_TEST, num_features))
    return x, x @ b + jax.random.normal(key_y, (len(x),))


def trial(key: Array, num_features: int) -> dict:
    """Returns coverage and mean width of each kind of interval."""
    key_data, key_fit = jax.random.split(key)
    x, y = sample(key_data, num_features)
    old, new = slice(NUM_ROWS), slice(NUM_ROWS, None)
    cp = jaxcp.jackknife_plus(key_fit, LEAST_SQUARES, scores.Absolute(), x[old], y[old])
    fitted = LEAST_SQUARES.predict(cp.fits.full, x[old])
    in_sample = jaxcp.Calibration(scores.Absolute(), jnp.abs(y[old] - fitted))
    preds = LEAST_SQUARES.predict(cp.fits.full, x[new])
    sets = {
        "in-sample": in_sample(preds, ALPHA),
        "jackknife": cp.naive(x[new], ALPHA),
        "jackknife+": cp(x[new], ALPHA),
        "minmax": cp.minmax(x[new], ALPHA),
    }
    return {
        name: {"coverage": metrics.coverage(s, y[new]), "width": metrics.mean_size(s)}
        for name, s in sets.items()
    }


def rows_of(num_features: int, key: Array) -> list[dict]:
    """Returns the lines of one dimension."""
    results = jaxcp.simulate(lambda k: trial(k, num_features), key, NUM_TRIALS)
    return [
        {
            "d": num_features,
            "method": name,
            "coverage": float(np.mean(values["coverage"])),
            "+-": float(np.std(values["coverage"]) / NUM_TRIALS**0.5),
            "earlier run": EARLIER.get(num_features, {}).get(name),
            "width": float(np.mean(values["width"])),
        }
        for name, values in results.items()
    ]


def draw(table: list[dict]) -> plt.Figure:
    """Draws coverage and width against the dimension."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name in dict.fromkeys(row["method"] for row in table):
        rows = [row for row in table if row["method"] == name]
        d = [row["d"] for row in rows]
        for ax, what in zip(axes, ("coverage", "width"), strict=True):
            ax.plot(d, [row[what] for row in rows], "o-", ms=3, label=name)
    axes[0].axhline(1 - ALPHA, color="gray", linestyle="--", linewidth=0.8)
    earlier = [(d, v) for d, by_name in EARLIER.items() for v in by_name.values()]
    axes[0].plot(*zip(*earlier, strict=True), "kx", label="earlier run")
    axes[0].set(xlabel="number of features d", ylabel="coverage", ylim=(0, 1.02))
    axes[1].set(xlabel="number of features d", ylabel="mean width", yscale="log")
    axes[1].set_ylim(bottom=0.5)  # interpolation leaves no residuals in sample
    axes[0].legend(frameon=False)
    figure.suptitle(f"Least squares of minimum norm on n = {NUM_ROWS} rows")
    return figure


def main() -> None:
    """Prints and saves the table and the figure."""
    args = arguments(__doc__, draws=True).parse_args()
    # At d = n the Gram matrix is nearly singular.
    jax.config.update("jax_enable_x64", True)
    key, table = jax.random.key(0), []
    for d in tqdm(DIMENSIONS, unit="dimension"):
        table += rows_of(d, jax.random.fold_in(key, d))
    print_table(f"coverage at alpha = {ALPHA}, n = {NUM_ROWS}", table)
    settings = {"alpha": ALPHA, "n": NUM_ROWS, "trials": NUM_TRIALS, "seed": 0}
    save_results(args.out, "jackknife_barber", table, settings)
    save_figure(draw(table), args.out, "jackknife_barber")


if __name__ == "__main__":
    main()
