"""Intervals of a network whose width is what is trained.

`python -m experiments.data.width_training --out DIR` (scikit-learn's diabetes), or with
`--data DIR` (airfoil.txt and concrete.csv).

A network with one hidden layer predicts a mean and a scale. It is trained by the
likelihood of a normal law, all the way or for one half of the steps; in the other half
by the mean width of the intervals that one half of the rows calibrates for the other,
in every step anew: scores abs(y - mu) / sigma, exact thresholds, gradients of the
nearest scores. Conformalised quantile regression has the same network, with two
quantiles. All are calibrated exactly afterwards, on rows that no training saw.

20 random splits, alpha = 0.1. Every method has the number of steps and the step size,
out of the same four pairs, that make it narrowest (in hindsight, and for all alike);
splits share rows, so that errors are a little larger than they are said to be. Beside
width and coverage stands how low coverage is in the worst of five groups of equal size
by width: what the mean width does not ask for, it need not keep.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from flax import nnx
from jax import Array

import jaxcp
from experiments.data import covariate_shift
from experiments.tools.networks import MLP, gaussian_loss, minimize, pinball_loss
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import metrics, scores, training

ALPHA, NUM_SEEDS, NUM_BINS = 0.1, 20, 5
NUM_HIDDEN, DECAY, LATE = 32, 0.1, 0.3  # and the late share of the step size
BUDGETS = ((300, 1e-2), (600, 1e-2), (1200, 1e-2), (1200, 3e-2))


def scaled(out: Array) -> tuple[Array, Array]:
    """Returns mean and scale of a network's two outputs."""
    return out[:, 0], jnp.exp(out[:, 1])


def ends(out: Array) -> tuple[Array, Array]:
    """Returns the two quantiles of a network's outputs."""
    return out[:, 0], out[:, 1]


def normal(out: Array, y: Array, key: Array) -> Array:
    """Returns the negative log likelihood, averaged."""
    return jnp.mean(gaussian_loss(out, y))


def quantiles(out: Array, y: Array, key: Array) -> Array:
    """Returns the pinball loss, averaged."""
    return jnp.mean(pinball_loss((ALPHA / 2, 1 - ALPHA / 2))(out, y))


def width(out: Array, y: Array, key: Array) -> Array:
    """Returns the log of the mean width, of two halves dealt anew in every step."""
    order = jax.random.permutation(key, len(y))
    cal, new = jnp.split(order, [len(y) // 2])
    mean_width = training.conformal_training_loss(
        scores.Normalized(),
        scaled(out[cal]),
        y[cal],
        scaled(out[new]),
        ALPHA,
        temperature=0.01,
    )
    return jnp.log(mean_width)


METHODS = {  # score, what it reads of the outputs, and losses one after the other
    "normalized, likelihood": (scores.Normalized(), scaled, [normal]),
    "CQR, pinball": (scores.CQR(), ends, [quantiles]),
    "normalized, then width": (scores.Normalized(), scaled, [normal, width]),
}


def concrete(folder: Path):
    """Returns 1030 mixtures of concrete, eight features and the strength in MPa."""
    path = folder / "concrete.csv"
    if not path.exists():
        raise FileNotFoundError(f"expected {path}, concrete strength from UCI")
    rows = np.loadtxt(path, delimiter=",", skiprows=1)
    return rows[:, :8], rows[:, 8]


def data_sets(folder: Path | None) -> dict[str, tuple[Array, Array]]:
    """Returns features and targets by name, both standardized."""
    if folder is None:
        data = covariate_shift.diabetes()
        found = {"diabetes": (data.x, data.y)}
    else:
        wing = covariate_shift.airfoil(folder)
        found = {"airfoil": (wing.x, wing.y), "concrete": concrete(folder)}
    scale = lambda v: (v - np.mean(v, axis=0)) / np.std(v, axis=0)  # noqa: E731
    return {k: tuple(jnp.asarray(scale(v), float) for v in d) for k, d in found.items()}


def trial(
    x: Array, y: Array, method: str, budget: tuple[int, float], key: Array
) -> dict:
    """Returns width and coverage after exact calibration, on one split in 2:1:1."""
    (score, read, losses), (num_steps, step_size) = METHODS[method], budget
    key_order, key_init, key_steps = jax.random.split(key, 3)
    order = jax.random.permutation(key_order, len(x))
    train, old, new = jnp.split(order, [len(x) // 2, len(x) * 3 // 4])
    network = MLP(x.shape[1], NUM_HIDDEN, 2, rngs=nnx.Rngs(key_init))
    structure, params = nnx.split(network)

    keys = jnp.split(jax.random.split(key_steps, num_steps), len(losses))
    for i, loss in enumerate(losses):

        def train_loss(params, key, loss=loss):
            return loss(nnx.merge(structure, params)(x[train]), y[train], key)

        params = minimize(train_loss, params, keys[i], step_size * LATE**i, DECAY)
    out = nnx.merge(structure, params)(x)
    cp = jaxcp.calibrate(score, read(out[old]), y[old])
    sets = cp(read(out[new]), ALPHA)
    worst = partial(metrics.min_size_stratified_coverage, num_bins=NUM_BINS)
    return {
        "width": metrics.mean_size(sets),
        "coverage": metrics.coverage(sets, y[new]),
        "worst fifth": worst(sets, y[new]),
    }


def best(x: Array, y: Array, method: str, keys: Array) -> dict:
    """Returns the results of all splits with the budget that makes sets narrowest."""
    found = []
    for budget in BUDGETS:
        run = jax.jit(jax.vmap(partial(trial, x, y, method, budget)))
        found.append({"budget": budget, **jax.tree.map(np.asarray, run(keys))})
    return min(found, key=lambda of: of["width"].mean())


def table(data: str, results: dict[str, dict]) -> list[dict]:
    """Returns a line for each method: means over splits and standard errors."""
    base, lines = results["normalized, likelihood"]["width"], []
    for name, of in results.items():
        root = len(base) ** 0.5
        change = 100 * (of["width"] / base - 1)
        num_steps, step_size = of["budget"]
        line = {"data": data, "method": name, "steps": num_steps, "size": step_size}
        columns = {what: v for what, v in of.items() if what != "budget"}
        for what, values in (columns | {"change, %": change}).items():
            line[what] = float(values.mean())
            line[f"{what} +-"] = float(values.std(ddof=1) / root)
        lines.append(line)
    return lines


def draw(results: dict[str, dict[str, dict]]):
    """Draws width against the coverage of the worst fifth, a point for each split."""
    figure, axes = plt.subplots(
        1, len(results), figsize=(5 * len(results), 4), layout="constrained"
    )
    for ax, (data, by_method) in zip(np.atleast_1d(axes), results.items(), strict=True):
        for name, of in by_method.items():
            ax.plot(of["width"], of["worst fifth"], "o", ms=4, label=name)
        ax.axhline(1 - ALPHA, color="gray", linewidth=0.8)
        ax.set(title=data, xlabel="mean width, in deviations of the target")
    np.atleast_1d(axes)[0].set_ylabel("coverage in the worst fifth")
    np.atleast_1d(axes)[-1].legend(frameon=False, fontsize="small")
    return figure


def run(folder: Path | None, out: Path, num_seeds: int = NUM_SEEDS) -> None:
    """Prints the table, saves it and the figure."""
    keys, results, lines = jax.random.split(jax.random.key(0), num_seeds), {}, []
    for data, (x, y) in data_sets(folder).items():
        results[data] = {}
        for name in METHODS:
            results[data][name] = best(x, y, name, keys)
            print(f"{data}, {name}: done", flush=True)
        lines += table(data, results[data])
    print_table(f"widths, alpha = {ALPHA}, {num_seeds} splits", lines)
    settings = {"alpha": ALPHA, "seeds": num_seeds, "budgets": BUDGETS}
    save_results(out, "width_training", lines, settings)
    save_figure(draw(results), out, "width_training")


def main() -> None:
    """Runs the experiment."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument("--data", type=Path, help="folder with airfoil and concrete")
    args = parser.parse_args()
    run(args.data, args.out)


if __name__ == "__main__":
    main()
