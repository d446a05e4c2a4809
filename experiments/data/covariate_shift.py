"""Weighted calibration under covariate shift: Tibshirani et al., 2019, section 2.

`python -m experiments.data.covariate_shift --data DIR --out DIR`

DIR holds airfoil.txt, 1503 wing sections, whose columns 1 and 5 enter as logarithms.
Half of the rows train: half of these fit least squares, the others calibrate. The other
half tests, as it is or tilted: a quarter as many rows, drawn with replacement in
proportion to w(x) = exp(-x1 + x5). 5000 such splits, alpha = 0.1. Published are the
mean coverage and the median, over splits, of a split's median length: without shift,
with it, and with it where w weights the calibration. Two more lines are in the figures
of the paper: weights from a logistic regression that tells the tilted from the training
rows, and no shift but as few calibration rows as the weighted ones are worth.

Differs from the paper's code: every method sees the same split, and exactly a quarter
is drawn, where the code accepts rows one by one until a quarter is exceeded.

Without `--data` the rows are those of scikit-learn's diabetes, with a tilt of their own
and nothing published.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from jax import Array

import jaxcp
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)
from jaxcp import learners, metrics, scores

ALPHA, NUM_TRIALS, NUM_STEPS = 0.1, 5000, 200
LEAST_SQUARES, ABSOLUTE = learners.Ridge(0.0), scores.Absolute()
NO_SHIFT, FEWER = "no shift", "no shift, fewer rows"
UNWEIGHTED, ORACLE, LOGISTIC = "shift, unweighted", "shift, oracle", "shift, logistic"
PUBLISHED = {  # mean coverage, median length
    NO_SHIFT: (0.9021, 16.09),
    UNWEIGHTED: (0.8220, 16.08),
    ORACLE: (0.9086, 20.94),
}
PANELS = ((NO_SHIFT, UNWEIGHTED), (ORACLE, FEWER), (ORACLE, LOGISTIC))
COLORS = {  # in the order of the table
    NO_SHIFT: "C5",
    UNWEIGHTED: "C0",
    ORACLE: "C1",
    LOGISTIC: "C3",
    FEWER: "C2",
}


@dataclass(frozen=True)
class Data:
    """Rows to split: standardized features, targets, and w(x) on any scale."""

    name: str
    x: Array
    y: Array
    weights: Array

    @property
    def num_tilted(self) -> int:
        """A quarter of the test half."""
        return round((len(self.x) - round(len(self.x) / 2)) / 4)


def airfoil(folder: Path) -> Data:
    """Returns 1503 wing sections, five features and the sound pressure in decibels."""
    path = folder / "airfoil.txt"
    if not path.exists():
        raise FileNotFoundError(f"expected {path}, airfoil self-noise from UCI")
    rows = np.loadtxt(path)
    x, y = rows[:, :5], rows[:, 5]
    x[:, [0, 4]] = np.log(x[:, [0, 4]])
    return tilted("airfoil", x, y, x[:, 4] - x[:, 0])


def diabetes() -> Data:
    """Returns 442 patients, tilted to large body mass index and triglycerides."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    exponent = (x[:, 2] + x[:, 8]) * len(x) ** 0.5 / 2  # columns have norm 1
    return tilted("diabetes", x, y, exponent)


def tilted(name: str, x: np.ndarray, y: np.ndarray, exponent: np.ndarray) -> Data:
    """Returns data with w = exp(exponent); no fit here depends on units of columns."""
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    weights = np.exp(exponent - exponent.mean())
    return Data(name, *(jnp.asarray(v, float) for v in (x, y, weights)))


def classifier(num_features: int) -> learners.GradientLearner:
    """Returns logistic regression, one layer in flax, that predicts log odds."""

    def layer(seed):
        return nnx.split(nnx.Linear(num_features, 1, rngs=nnx.Rngs(seed)))

    structure, _ = layer(0)
    return learners.GradientLearner(
        init=lambda key: layer(key)[1],
        predict=lambda params, x: nnx.merge(structure, params)(x)[:, 0],
        loss=optax.sigmoid_binary_cross_entropy,
        optimizer=optax.sgd(1.0, momentum=0.9, nesterov=True),
        num_steps=NUM_STEPS,
    )


def odds(key: Array, x: Array, before: Array, after: Array) -> Array:
    """Returns p / (1 - p) at every row, p = P(after | x), from two sets of rows."""
    rows = jnp.append(before, after)
    is_after = (jnp.arange(len(rows)) >= len(before)).astype(x.dtype)
    learner = classifier(x.shape[1])
    params = learner.fit(key, x[rows], is_after, jnp.ones(len(rows)))
    return jnp.exp(learner.predict(params, x))


def split(data: Data, key: Array) -> tuple[Array, Array, Array, Array]:
    """Returns rows: to fit, to calibrate, to test, and test rows drawn by weight."""
    key_order, key_tilt = jax.random.split(key)
    order = jax.random.permutation(key_order, len(data.x))
    train, test = jnp.split(order, [round(len(order) / 2)])
    fit, old = jnp.split(train, [len(train) // 2])
    p = data.weights[test]
    return fit, old, test, jax.random.choice(key_tilt, test, (data.num_tilted,), p=p)


def judge(
    preds: Array,
    y: Array,
    old: Array,
    new: Array,
    weights: Array | None = None,
    mask: Array | None = None,
) -> dict:
    """Returns how intervals of the new rows do that the old rows calibrate."""
    known, ahead = (None, None) if weights is None else (weights[old], weights[new])
    cp = jaxcp.calibrate(ABSOLUTE, preds[old], y[old], weights=known, mask=mask)
    sets = cp(preds[new], ALPHA, test_weights=ahead)
    lengths = sets.upper - sets.lower
    return {
        "coverage": metrics.coverage(sets, y[new]),
        "length": jnp.median(lengths),
        "infinite": jnp.mean(jnp.isinf(lengths)),
    }


def trial(data: Data, key: Array) -> dict:
    """Returns coverage, median length and share of infinite intervals by method."""
    key_rows, key_fit, key_odds = jax.random.split(key, 3)
    x, y, w = data.x, data.y, data.weights
    fit, old, test, tilt = split(data, key_rows)
    params = LEAST_SQUARES.fit(key_fit, x[fit], y[fit], jnp.ones(len(fit)))
    measure = partial(judge, LEAST_SQUARES.predict(params, x), y, old)
    estimated = odds(key_odds, x, jnp.append(fit, old), tilt)
    effective_size = jnp.sum(w[old]) ** 2 / jnp.sum(w[old] ** 2)
    few = jnp.arange(len(old)) < jnp.floor(effective_size)
    return {
        NO_SHIFT: measure(test),
        UNWEIGHTED: measure(tilt),
        ORACLE: measure(tilt, w),
        LOGISTIC: measure(tilt, estimated),
        FEWER: measure(test, mask=few),
    }


def line(name: str, results: dict, published: dict) -> dict:
    """Returns the line of one method, beside the published one if there is one."""
    coverages, lengths = results["coverage"], np.asarray(results["length"])
    coverage = float(np.mean(coverages, dtype=float))
    length = float(np.median(lengths))
    expected, expected_length = published.get(name, (None, None))
    share = expected and 100 * (length / expected_length - 1)
    return {
        "method": name,
        "coverage": coverage,
        "+-": float(np.std(coverages) / len(coverages) ** 0.5),
        "published": expected,
        "difference": expected and round(coverage - expected, 5),
        "length": length,
        "+- length": median_error(lengths),
        "published length": expected_length,
        "difference, %": share and round(share, 3),
        "infinite": float(np.mean(results["infinite"])),
    }


def median_error(values: np.ndarray) -> float:
    """Returns the standard error of a median, from order statistics around it."""
    step = 0.5 / len(values) ** 0.5  # one standard error of their ranks, as a share
    low, high = np.quantile(values, [0.5 - step, 0.5 + step])
    return float(high - low) / 2


def draw(data: Data, results: dict) -> plt.Figure:
    """Draws how coverage varies between splits, two methods at a time."""
    size = {"figsize": (7, 8), "layout": "constrained"}
    figure, axes = plt.subplots(len(PANELS), 1, sharex=True, sharey=True, **size)
    edges = (np.arange(data.num_tilted + 2) - 0.5) / data.num_tilted
    for ax, names in zip(axes, PANELS, strict=True):
        for name in names:
            values, color = np.asarray(results[name]["coverage"]), COLORS[name]
            label = f"{name}: mean {values.mean():.3f}"
            ax.hist(values, edges, color=color, alpha=0.5, label=label)
            ax.axvline(values.mean(), color=color, linewidth=2)
        ax.axvline(1 - ALPHA, color="gray", linestyle="--", linewidth=0.8)
        ax.legend(frameon=False, loc="upper left")
    lowest = min(np.min(v["coverage"]) for v in results.values())
    axes[-1].set(xlabel="coverage of one split", xlim=(lowest, 1.005))
    axes[1].set_ylabel("splits")
    axes[0].set_title(f"{data.name}: prediction intervals under covariate shift")
    return figure


def main() -> None:
    """Prints and saves the table and the figure."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument("--data", type=Path, help="folder with airfoil.txt")
    parser.add_argument("--trials", type=int, default=NUM_TRIALS)
    args = parser.parse_args()
    data, published = (airfoil(args.data), PUBLISHED) if args.data else (diabetes(), {})
    one, key = partial(trial, data), jax.random.key(0)
    results = jaxcp.simulate(one, key, args.trials, progress=True)
    table = [line(name, results[name], published) for name in COLORS]
    print_table(f"{data.name}, alpha = {ALPHA}, {args.trials} splits", table)
    settings = {"data": data.name, "alpha": ALPHA, "trials": args.trials, "seed": 0}
    save_results(args.out, "covariate_shift", table, settings)
    save_figure(draw(data, results), args.out, "covariate_shift")


if __name__ == "__main__":
    main()
