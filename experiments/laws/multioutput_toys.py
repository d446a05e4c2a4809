"""Multi-output methods on laws that are known, with the true law and trained models.

`python -m experiments.laws.multioutput_toys [--out DIR]`
Coverage and conditional error are over fresh targets at a grid of inputs; the
conditional error is the mean of (coverage given x and the draws - 0.8)^2, times 100,
without its noise, which stands beside it. Exact values are integrals over fine grids,
for infinitely many calibration rows and draws. Errors are over calibration sets.
"""

import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from tqdm.auto import tqdm

from experiments.tools.multioutput_methods import (
    ALPHA,
    METHODS,
    Source,
    calibrated,
    conditional_coverage,
    offered,
)
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import datasets, metrics, models, plotting
from jaxcp.sets import Box

NUM_CALIBRATION, NUM_INPUTS, NUM_TARGETS = 4000, 300, 300
NUM_TRAINING, NUM_SAMPLES = 6000, 300
NUM_SEEDS = {"true law": 5, "half the noise": 2}
LAWS = {
    "unimodal": (datasets.Unimodal(), 10.0),
    "bimodal": (datasets.Bimodal(), 14.0),
    "one moon": (datasets.OneMoon(), 2.6),
    "del Barrio": (datasets.DelBarrio(), 14.0),
}
TRAINED = {
    "coupling flow": models.CouplingFlow(),
    "mixture network": models.MixtureNetwork(),
    "flow matching": models.FlowMatching(),
    "Gaussian network": models.GaussianNetwork(),
}
# Mean volumes of an earlier run of our own, over 10 seeds, with the true law as model.
EARLIER = {
    ("unimodal", "C-PCP"): 24.7,
    ("bimodal", "DR-CP"): 23.1,
    ("bimodal", "C-HDR"): 24.6,
    ("bimodal", "PCP"): 33.0,
    ("bimodal", "C-PCP"): 34.4,
    ("bimodal", "L-CP"): 50.7,
}
DRAWN = [
    (law, model)
    for law in ("one moon", "bimodal")
    for model in ("true law", "coupling flow")
]


def inputs(law, m: int = NUM_INPUTS) -> jax.Array:
    """Returns midpoints of m equal parts of the law's support, shape (m, 1)."""
    low, high = law.support
    return (low + (high - low) * (jnp.arange(m) + 0.5) / m)[:, None]


def exact_values(law, half_width: float) -> dict[str, tuple[float, float]]:
    """Returns (conditional error x 100, mean volume) of DR-CP, C-HDR and L-CP."""
    side = jnp.linspace(-half_width, half_width, 281)
    cell = float(side[1] - side[0]) ** 2
    grid = jnp.stack(jnp.meshgrid(side, side), axis=-1).reshape(-1, 2)
    at = inputs(law, 40)
    densities = jax.jit(jax.vmap(law.log_prob, (None, None, 0)))
    logs = np.stack([np.asarray(densities(None, x, grid), float) for x in at])
    mass = np.exp(logs) * cell
    mass /= mass.sum(axis=1, keepdims=True)
    one_level = mass >= _smallest_kept(mass.ravel() / len(mass)) * len(mass)
    own_level = mass >= np.array([_smallest_kept(row) for row in mass])[:, None]
    rates = np.sum(mass * one_level, axis=1)
    codes = jax.jit(jax.vmap(law.to_latent, (None, None, 0)))
    radius = float(np.sqrt(-2 * np.log(ALPHA)))
    images = [
        float(jnp.sum(jnp.linalg.norm(codes(None, x, grid), axis=1) <= radius))
        for x in inputs(law, 12)
    ]
    return {
        "DR-CP": (
            100 * float(np.mean((rates - 1 + ALPHA) ** 2)),
            cell * float(one_level.sum(axis=1).mean()),
        ),
        "C-HDR": (0.0, cell * float(own_level.sum(axis=1).mean())),
        "C-HDR, extended": (0.0, cell * float(own_level.sum(axis=1).mean())),
        "L-CP": (0.0, cell * float(np.mean(images))),
    }


def _smallest_kept(mass):
    """Returns the mass of the last cell of the densest ones that hold 1 - alpha."""
    ordered = np.sort(mass)[::-1]
    return ordered[np.searchsorted(np.cumsum(ordered), 1 - ALPHA)]


def measure(law, method, model, params, seed: int) -> dict[str, float]:
    """Returns the numbers of one method with one calibration set."""
    key = jax.random.fold_in(jax.random.key(1), seed)
    key_data, key_draws, key_targets, key_volumes = jax.random.split(key, 4)
    key_old, key_new = jax.random.split(key_draws)
    x, y = law.draw(key_data, NUM_CALIBRATION)
    at = inputs(law)
    targets = jax.vmap(lambda k, v: law.sample(None, k, v, NUM_TARGETS))(
        jax.random.split(key_targets, len(at)), at
    )
    cp = calibrated(method, Source(model, params, key_old), x, y)
    sets = cp(method.preds(Source(model, params, key_new), at), ALPHA)
    coverage, error, noise = conditional_coverage(sets, targets, ALPHA)
    found = metrics.mean_volume(key_volumes, sets, NUM_SAMPLES)
    return {
        "coverage": float(coverage),
        "cond. x100": 100 * float(error),
        "noise x100": 100 * float(noise),
        "volume": float(found.mean),
        "geometric": float(found.geometric_mean),
    }


def line(law_name: str, method, model_name: str, model, params, exact: dict) -> dict:
    """Returns the means over calibration sets, with their errors."""
    start = time.perf_counter()
    law, _ = LAWS[law_name]
    runs = [
        measure(law, method, model, params, seed)
        for seed in range(NUM_SEEDS.get(model_name, 2))
    ]
    mean = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    error = {
        name: float(np.std([run[name] for run in runs], ddof=1) / len(runs) ** 0.5)
        if np.isfinite(mean[name])
        else 0.0
        for name in ("coverage", "volume")
    }
    true = model_name == "true law"
    exact_error, exact_volume = exact.get(method.name, (None, None))
    return {
        "method": method.name,
        "coverage": mean["coverage"],
        "+-": error["coverage"],
        "cond. x100": mean["cond. x100"],
        "noise x100": mean["noise x100"],
        "exact cond.": exact_error if true else None,
        "volume": mean["volume"],
        "+- ": error["volume"],
        "exact volume": exact_volume if true else None,
        "earlier run": EARLIER.get((law_name, method.name)) if true else None,
        "geometric": mean["geometric"],
        "seconds": time.perf_counter() - start,
        "law": law_name,
        "model": model_name,
    }


def sources(law_name: str) -> Iterator[tuple[str, object, object]]:
    """Yields the models of a law with parameters, trained when they are needed."""
    law, _ = LAWS[law_name]
    yield "true law", law, None
    if law_name == "unimodal":
        yield "half the noise", datasets.Unimodal(noise=0.5), None
    x, y = law.draw(jax.random.key(0), NUM_TRAINING)
    for name, model in TRAINED.items():
        if name == "coupling flow" or law_name in ("one moon", "bimodal"):
            yield name, model, model.fit(jax.random.key(2), x, y)


def draw_regions(law_name: str, model_name: str, model, params):
    """Draws the regions of six methods at three inputs, over targets of the law."""
    law, half_width = LAWS[law_name]
    names = ["M-CP", "DR-CP", "C-HDR", "PCP", "C-PCP", "L-CP"]
    shown = [method for method in METHODS if method.name in names]
    at = inputs(law, 3)
    width = 0.8 * half_width
    bounds = Box(jnp.full(2, -width), jnp.full(2, width))
    x, y = law.draw(jax.random.key(3), NUM_CALIBRATION)
    figure, axes = plt.subplots(
        3, len(shown), figsize=(2.6 * len(shown), 8), layout="constrained"
    )
    for column, method in enumerate(shown):
        cp = calibrated(method, Source(model, params, jax.random.key(4)), x, y)
        sets = cp(method.preds(Source(model, params, jax.random.key(5)), at), ALPHA)
        for i, ax in enumerate(axes[:, column]):
            region = jax.tree.map(lambda v, i=i: v[i], sets)
            targets = law.sample(None, jax.random.key(6), at[i], 200)
            plotting.plot_region(region, bounds, targets, num_points=200, ax=ax)
            ax.get_legend().remove()
            ax.set(title=f"{method.name}, x = {at[i, 0]:.2f}", xlabel="", ylabel="")
            ax.set(aspect="equal")
    figure.suptitle(f"{law_name}, {model_name}: regions at alpha = {ALPHA}")
    return figure


def main() -> None:
    """Prints and saves a table for every law and model, and draws regions."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument("--laws", nargs="*", default=list(LAWS), choices=list(LAWS))
    args = parser.parse_args()
    settings = {"alpha": ALPHA, "n": NUM_CALIBRATION, "draws": 100}
    table = []
    for law_name in args.laws:
        exact = exact_values(*LAWS[law_name])
        for model_name, model, params in sources(law_name):
            methods = offered(Source(model, params, jax.random.key(0)))
            rows = [
                line(law_name, method, model_name, model, params, exact)
                for method in tqdm(methods, desc=f"{law_name}, {model_name}")
            ]
            print_table(f"{law_name}, {model_name}", [_without_names(r) for r in rows])
            table += rows
            save_results(args.out, "multioutput_toys", table, settings)
            if (law_name, model_name) in DRAWN:
                figure = draw_regions(law_name, model_name, model, params)
                name = f"multioutput_{law_name}_{model_name}".replace(" ", "_")
                save_figure(figure, args.out, name)
                plt.close(figure)


def _without_names(row):
    return {name: v for name, v in row.items() if name not in ("law", "model")}


if __name__ == "__main__":
    main()
