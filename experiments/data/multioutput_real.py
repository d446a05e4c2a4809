"""Multi-output methods with trained models on energy and house data.

`python -m experiments.data.multioutput_real --data DIR [--out DIR]`
Rows are split at random into training, calibration and test rows, several times. The
volumes are in units of the training targets' standard deviations, to the power of two.
DIR holds energy.csv and house.csv.
"""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax import Array
from tqdm.auto import tqdm

from experiments.data import multioutput_data
from experiments.tools.multioutput_methods import (
    ALPHA,
    METHODS,
    Source,
    calibrated,
    offered,
)
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import metrics, models, plotting
from jaxcp.sets import Box

NUM_SEEDS, NUM_SAMPLES, NUM_SETS, NUM_CELLS = 3, 300, 200, 10
SIZES = {"energy": (408, 180, 180), "house": (6000, 2000, 2000)}
STEPS = {"energy": 500, "house": 1500}  # the more rows, the longer
MODELS = {
    "coupling flow": models.CouplingFlow,
    "mixture network": models.MixtureNetwork,
    "flow matching": models.FlowMatching,
    "Gaussian network": models.GaussianNetwork,
}


def split(key: Array, name: str, x, y) -> list[tuple[Array, Array]]:
    """Returns (x, y) of training, calibration and test rows; targets on one scale."""
    order = np.asarray(jax.random.permutation(key, len(x)))
    ends = np.cumsum(SIZES[name])
    parts = np.split(order[: ends[-1]], ends[:-1])
    center, scale = y[parts[0]].mean(axis=0), y[parts[0]].std(axis=0)
    return [
        (jnp.asarray(x[rows]), jnp.asarray((y[rows] - center) / scale))
        for rows in parts
    ]


def measure(key: Array, method, model, params, old, new) -> dict:
    """Returns the numbers of one method on one split."""
    start = time.perf_counter()
    key_old, key_new, key_cells, key_volumes, key_slabs = jax.random.split(key, 5)
    (x, y), (x_test, y_test) = old, new
    cp = calibrated(method, Source(model, params, key_old), x, y)
    sets = cp(method.preds(Source(model, params, key_new), x_test), ALPHA)
    error, floor = metrics.conditional_coverage_error(
        key_cells, sets, y_test, x_test, ALPHA, num_cells=NUM_CELLS
    )
    slab = metrics.worst_slab_coverage(key_slabs, sets, y_test, x_test, share=0.2)
    some = jax.tree.map(lambda v: v[:NUM_SETS], sets)
    found = metrics.mean_volume(key_volumes, some, NUM_SAMPLES)
    return {
        "coverage": float(metrics.coverage(sets, y_test)),
        "CEC-X x100": 100 * float(error),
        "floor x100": 100 * float(floor),
        "worst slab": float(slab),
        "volume": float(found.mean),
        "geometric": float(found.geometric_mean),
        "seconds": time.perf_counter() - start,
    }


def table_of(key: Array, name: str, model_name: str, parts: list) -> list[dict]:
    """Returns the means of every method over the splits, with the same keys for all."""
    model = MODELS[model_name](num_steps=STEPS[name])
    runs = {}
    for seed, (training, old, new) in enumerate(
        tqdm(parts, desc=f"{name}, {model_name}")
    ):
        key_fit, key_draws = jax.random.split(jax.random.fold_in(key, seed))
        params = model.fit(key_fit, *training)
        for method in offered(Source(model, params, key_draws)):
            row = measure(key_draws, method, model, params, old, new)
            runs.setdefault(method.name, []).append(row)
    return [
        {"method": method}
        | {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
        | {"data": name, "model": model_name}
        for method, rows in runs.items()
    ]


def draw(name: str, parts: list):
    """Draws regions of a coupling flow for three test rows."""
    training, (x, y), (x_test, y_test) = parts[0]
    model = models.CouplingFlow(num_steps=STEPS[name])
    params = model.fit(jax.random.key(3), *training)
    shown = [
        m for m in METHODS if m.name in ("M-CP", "DR-CP", "C-HDR", "C-PCP", "L-CP")
    ]
    figure, axes = plt.subplots(
        3, len(shown), figsize=(2.8 * len(shown), 8), layout="constrained"
    )
    bounds = Box(jnp.full(2, -3.0), jnp.full(2, 3.0))
    for column, method in enumerate(shown):
        cp = calibrated(method, Source(model, params, jax.random.key(4)), x, y)
        source = Source(model, params, jax.random.key(5))
        sets = cp(method.preds(source, x_test[:3]), ALPHA)
        for i, ax in enumerate(axes[:, column]):
            region = jax.tree.map(lambda v, i=i: v[i], sets)
            target = y_test[i : i + 1]
            plotting.plot_region(region, bounds, target, num_points=200, ax=ax)
            ax.get_legend().remove()
            ax.set(title=f"{method.name}, test row {i}", xlabel="", ylabel="")
    figure.suptitle(f"{name}: regions of a coupling flow at alpha = {ALPHA}")
    return figure


def main() -> None:
    """Prints and saves a table for every data set and model, and draws regions."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with the files"
    )
    args = parser.parse_args()
    settings = {"alpha": ALPHA, "splits": NUM_SEEDS, "sizes": SIZES, "steps": STEPS}
    table = []
    for name in multioutput_data.NAMES:
        x, y = getattr(multioutput_data, name)(args.data)
        keys = jax.random.split(jax.random.key(0), NUM_SEEDS)
        parts = [split(key, name, x, y) for key in keys]
        for model_name in MODELS:
            rows = table_of(jax.random.key(1), name, model_name, parts)
            hidden = ("data", "model")
            shown = [{k: v for k, v in r.items() if k not in hidden} for r in rows]
            print_table(f"{name}, {model_name}", shown)
            table += rows
            save_results(args.out, "multioutput_real", table, settings)
        figure = draw(name, parts)
        save_figure(figure, args.out, f"multioutput_{name}")
        plt.close(figure)


if __name__ == "__main__":
    main()
