"""Models of three libraries in every cross-conformal method, on real data.

`python -m experiments.data.any_model --data DIR --out DIR`

Communities and crime as in Barber et al. 2021: 200 training rows, the rest to test,
alpha = 0.1, for a ridge and a forest of scikit-learn and a flax network. The paper
shows bars, no table: its pattern is that jackknife+ and CV+ cover about 0.9 whatever
the model, minmax more and wider, and that the naive jackknife of a stable model is as
good. Then EnbPI of a forest along a year of solar radiation. DIR holds communities.csv
and solar_atlanta.csv.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from tqdm.auto import tqdm

import jaxcp
from experiments.tools.networks import MLP
from experiments.tools.reporting import arguments, print_table, save_results
from experiments.tools.series import solar
from jaxcp import learners, metrics, online, scores

ALPHA, NUM_ROWS, NUM_SPLITS = 0.1, 200, 20
NUM_FOLDS, NUM_RESAMPLES, NUM_TREES = 10, 30, 20
NUM_HIDDEN, NUM_STEPS = 16, 200
ABSOLUTE = scores.Absolute()
EVERY, NUM_HOURS = 24, 2433  # of the stream: hours between updates, hours to train


def communities(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the columns without gaps of 1994 communities, (n, 99), and crime."""
    path = folder / "communities.csv"
    if not path.exists():
        raise FileNotFoundError(f"expected {path}, from the UCI repository")
    rows = np.genfromtxt(path, delimiter=",", missing_values="?")[:, 5:]
    known = ~np.isnan(rows).any(axis=0)
    x, y = rows[:, :-1][:, known[:-1]], rows[:, -1]
    return x.astype(np.float32), y.astype(np.float32)


def network() -> learners.GradientLearner:
    """Returns a small flax network, trained by Adam on all rows at once."""
    make = lambda key: MLP(99, NUM_HIDDEN, 1, rngs=nnx.Rngs(key))  # noqa: E731
    structure, _ = nnx.split(make(0))
    return learners.GradientLearner(
        init=lambda key: nnx.split(make(key))[1],
        predict=lambda params, x: nnx.merge(structure, params)(x)[:, 0],
        loss=optax.squared_error,
        optimizer=optax.adam(1e-2),
        num_steps=NUM_STEPS,
    )


def models() -> dict[str, learners.Estimator | learners.GradientLearner]:
    """Returns the three models."""
    forest = RandomForestRegressor(NUM_TREES, max_features="sqrt")
    return {
        "ridge, scikit-learn": learners.Estimator(Ridge(10.0)),
        "forest, scikit-learn": learners.Estimator(forest, num_workers=2),
        "network, flax": network(),
    }


def sets_of(key, learner, x, y, x_new) -> dict:
    """Returns the sets of each method at new inputs."""
    keys = jax.random.split(key, 3)
    rows = learner, ABSOLUTE, x, y
    jackknife = jaxcp.jackknife_plus(keys[0], *rows)
    folds = jaxcp.cv_plus(keys[1], *rows, num_folds=NUM_FOLDS)
    bags = jaxcp.jackknife_plus_after_bootstrap(
        keys[2], *rows, num_resamples=NUM_RESAMPLES
    )
    ways = {
        "jackknife+": jackknife,
        "minmax": jackknife.minmax,
        "jackknife (naive)": jackknife.naive,
        f"CV+, {NUM_FOLDS} folds": folds,
        f"after bootstrap, {NUM_RESAMPLES}": bags,
    }
    return {name: way(x_new, ALPHA) for name, way in ways.items()}


def crime_table(data: Path) -> list[dict]:
    """Returns coverage and width of each model and method, over random splits."""
    (x, y), found = communities(data), {}
    splits = jax.random.split(jax.random.key(0), NUM_SPLITS)
    for name, learner in models().items():
        for key in tqdm(splits, desc=name):
            order = np.asarray(jax.random.permutation(key, len(y)))
            old, new = order[:NUM_ROWS], order[NUM_ROWS:]
            for way, sets in sets_of(key, learner, x[old], y[old], x[new]).items():
                one = (
                    float(metrics.coverage(sets, y[new])),
                    float(metrics.mean_size(sets)),
                )
                found.setdefault((name, way), []).append(one)
    return [line(*names, np.array(values)) for names, values in found.items()]


def line(model: str, method: str, values: np.ndarray) -> dict:
    """Returns one line: means over the splits and their standard errors."""
    coverage, width = values.mean(axis=0).tolist()
    errors = (values.std(axis=0, ddof=1) / len(values) ** 0.5).tolist()
    return {
        "model": model,
        "method": method,
        "coverage": coverage,
        "+-": errors[0],
        "width": width,
        "+- width": errors[1],
    }


def stream_table(data: Path) -> list[dict]:
    """Returns coverage and width of EnbPI of a forest, updated once a day or never."""
    x, y = (np.asarray(v) for v in solar(data))
    forest = RandomForestRegressor(NUM_TREES, min_samples_leaf=5)
    learner = learners.Estimator(forest, num_workers=2)
    n, key = NUM_HOURS, jax.random.key(0)
    cp = jaxcp.enbpi(
        key, learner, ABSOLUTE, x[:n], y[:n], num_resamples=NUM_RESAMPLES, block_size=24
    )
    center, rows = cp.aggregate(x[n:]), []
    for every in (1, EVERY, len(y)):
        method, state = cp.stream(every=every)
        _, sets = online.run(method, state, center, y[n:], ALPHA)
        rows.append(
            {
                "EnbPI of a forest, hours between updates": every,
                "coverage": float(metrics.coverage(sets, y[n:])),
                "mean width": float(jnp.mean(metrics.sizes(sets))),
                "mean absolute error": float(jnp.mean(jnp.abs(y[n:] - center))),
            }
        )
    return rows


def main() -> None:
    """Prints and saves both tables."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    settings = {"alpha": ALPHA, "n": NUM_ROWS, "splits": NUM_SPLITS, "seed": 0}
    table = crime_table(args.data)
    print_table(f"communities and crime, {NUM_ROWS} rows, alpha = {ALPHA}", table)
    save_results(args.out, "any_model_crime", table, settings)
    table = stream_table(args.data)
    print_table(f"solar radiation, {NUM_HOURS} hours to train", table)
    save_results(args.out, "any_model_solar", table, settings)


if __name__ == "__main__":
    main()
