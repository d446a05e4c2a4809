"""Every method of the library on real data, over random splits.

`python -m experiments.showcase --out DIR`

Models are trained once on a part of each data set that is then set aside; the rest is
split at random into calibration and test rows, `NUM_SPLITS` times in one program for
each method. Over such splits the mean coverage of an exact method is k / (n + 1).
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from sklearn import datasets as real
from tqdm.auto import tqdm

import jaxcp
from experiments import networks, showcase_figures
from experiments.reporting import format_row, save_results
from jaxcp import metrics, scores

ALPHA = 0.1
NUM_SPLITS = 400
WIDTHS = {
    "method": 24,
    "coverage": 8,
    "+-": 6,
    "target": 6,
    "mean size": 9,
    "worst group": 11,
    "seconds": 7,
    "data": 14,
}


@dataclass(frozen=True)
class Pool:
    """Rows that no model has seen, with everything that the methods read of them."""

    data: str
    x: Array
    y: Array
    groups: Array
    num_groups: int
    num_calibration: int
    preds: dict[str, object]


@dataclass(frozen=True)
class Method:
    """A line of the table: `sets(pool, calibration rows, test rows)`."""

    name: str
    pool: Pool
    sets: Callable[[Pool, Array, Array], object]
    tilt: Callable[[Array], Array] | None = (
        None  # test rows are drawn with these weights
    )


def rows(tree, index):
    """Returns the rows `index` of every leaf."""
    return jax.tree.map(lambda v: v[index], tree)


def split(score, pred: str):
    """Returns split conformal prediction with a score on the predictions `pred`."""

    def sets(pool, calibration, test):
        preds = pool.preds[pred]
        cp = jaxcp.calibrate(score, rows(preds, calibration), pool.y[calibration])
        return cp(rows(preds, test), ALPHA)

    return sets


def weighted(score, pred: str, tilt):
    """Returns split conformal prediction with likelihood ratios as weights."""

    def sets(pool, calibration, test):
        preds, weights = pool.preds[pred], tilt(pool.x)
        old, y = rows(preds, calibration), pool.y[calibration]
        cp = jaxcp.calibrate(score, old, y, weights=weights[calibration])
        return cp(rows(preds, test), ALPHA, test_weights=weights[test])

    return sets


def mondrian(score, pred: str):
    """Returns group-wise split conformal prediction."""

    def sets(pool, calibration, test):
        preds, groups = pool.preds[pred], pool.groups
        cp = jaxcp.calibrate_groups(
            score,
            rows(preds, calibration),
            pool.y[calibration],
            groups[calibration],
            num_groups=pool.num_groups,
        )
        return cp(rows(preds, test), ALPHA, groups[test])

    return sets


def class_wise(score, pred: str):
    """Returns class-conditional split conformal prediction."""

    def sets(pool, calibration, test):
        preds, y = pool.preds[pred], pool.y[calibration]
        old = rows(preds, calibration)
        cp = jaxcp.calibrate_groups(score, old, y, y, num_groups=pool.num_groups)
        return cp(rows(preds, test), ALPHA)

    return sets


def pressure_tilt(x: Array) -> Array:
    """Returns weights that make patients with high blood pressure more frequent."""
    return jnp.exp(0.7 * x[:, 3])


def diabetes(key: Array) -> Pool:
    """Trains a ridge, a mean-and-scale network and a quantile network on diabetes."""
    x, y = real.load_diabetes(return_X_y=True)
    x, y, key = _shuffled(key, x, y)
    groups = (x[:, 1] > 0).astype(int)
    x = (x - x[:150].mean(0)) / x[:150].std(0)
    center, scale = y[:150].mean(), y[:150].std()
    z = (y[:150] - center) / scale
    design = jnp.append(x, jnp.ones((len(x), 1)), axis=1)
    gram = design[:150].T @ design[:150] + jnp.eye(design.shape[1])
    ridge = design @ jnp.linalg.solve(gram, design[:150].T @ z)
    key_scale, key_quantile = jax.random.split(key)
    fit = {"num_hidden": 16, "num_steps": 100, "decay": 1.0}
    normal = networks.train(
        key_scale, networks.gaussian_loss, x[:150], z, num_out=2, **fit
    )(x)
    pinball = networks.pinball_loss((ALPHA / 2, 1 - ALPHA / 2))
    quantiles = networks.train(key_quantile, pinball, x[:150], z, num_out=2, **fit)(x)
    preds = {
        "ridge": center + scale * ridge,
        "normal": (center + scale * normal[:, 0], scale * jnp.exp(normal[:, 1])),
        "quantiles": (
            center + scale * quantiles[:, 0],
            center + scale * quantiles[:, 1],
        ),
    }
    rest = slice(150, None)
    return Pool("diabetes", x[rest], y[rest], groups[rest], 2, 149, rows(preds, rest))


def labelled(key: Array, name: str, load: Callable, num_train: int, n: int) -> Pool:
    """Trains a classifier on a labelled data set."""
    x, y, key = _shuffled(key, *load(return_X_y=True))
    x = (x - x[:num_train].mean(0)) / (x[:num_train].std(0) + 1e-3)
    k = int(y.max()) + 1
    key_net, key_u = jax.random.split(key)
    logits = networks.train(
        key_net,
        networks.label_loss,
        x[:num_train],
        y[:num_train],
        num_out=k,
        num_steps=150,
    )(x)
    p = jax.nn.softmax(logits)
    preds = {"p": p, "p, u": (p, jax.random.uniform(key_u, (len(y),)))}
    rest = slice(num_train, None)
    return Pool(name, x[rest], y[rest], y[rest], k, n, rows(preds, rest))


def all_methods(key: Array) -> Iterator[Method]:
    """Yields the lines of the table, training models when they are first needed."""
    key_diabetes, key_digits, key_cancer = jax.random.split(key, 3)
    pool = diabetes(key_diabetes)
    absolute = scores.Absolute()
    yield Method("split", pool, split(absolute, "ridge"))
    yield Method("signed", pool, split(scores.Signed(), "ridge"))
    yield Method("gamma", pool, split(scores.Gamma(), "ridge"))
    yield Method("normalised", pool, split(scores.Normalized(), "normal"))
    yield Method("CQR", pool, split(scores.CQR(), "quantiles"))
    yield Method("CQR, two-sided", pool, split(scores.AsymmetricCQR(), "quantiles"))
    yield Method("Mondrian", pool, mondrian(absolute, "ridge"))
    yield Method("unweighted, shifted x", pool, split(absolute, "ridge"), pressure_tilt)
    yield Method(
        "weighted", pool, weighted(absolute, "ridge", pressure_tilt), pressure_tilt
    )
    for pool in (
        labelled(key_digits, "digits", real.load_digits, 600, 499),
        labelled(key_cancer, "breast cancer", real.load_breast_cancer, 150, 199),
    ):
        yield Method("LAC", pool, split(scores.LAC(), "p"))
        yield Method("class-wise LAC", pool, class_wise(scores.LAC(), "p"))
        yield Method("APS", pool, split(scores.APS(), "p"))
        yield Method("APS, randomised", pool, split(scores.APS(True), "p, u"))
        yield Method("RAPS", pool, split(scores.RAPS(0.05, 1), "p"))
        yield Method(
            "RAPS, randomised", pool, split(scores.RAPS(0.05, 1, True), "p, u")
        )
        yield Method("top-k", pool, split(scores.TopK(), "p"))


def evaluate(method: Method, key: Array) -> dict:
    """Returns the line of a method, from all splits in one vmapped program."""
    pool = method.pool

    def trial(key):
        key_split, key_tilt = jax.random.split(key)
        order = jax.random.permutation(key_split, len(pool.y))
        calibration, test = jnp.split(order, [pool.num_calibration])
        if method.tilt is not None:
            p = method.tilt(pool.x)[test]
            test = jax.random.choice(key_tilt, test, test.shape, p=p / jnp.sum(p))
        sets, y = method.sets(pool, calibration, test), pool.y[test]
        return {
            "coverage": metrics.coverage(sets, y),
            "size": metrics.mean_size(sets),
            "by group": metrics.group_coverage(
                sets, y, pool.groups[test], num_groups=pool.num_groups
            ),
        }

    start = time.perf_counter()
    results = jaxcp.simulate(trial, key, NUM_SPLITS, batch_size=NUM_SPLITS)
    results = jax.tree.map(np.asarray, results)
    return {
        "method": method.name,
        "coverage": float(results["coverage"].mean()),
        "+-": float(results["coverage"].std() / NUM_SPLITS**0.5),
        "target": 1 - ALPHA,
        "mean size": float(results["size"].mean()),
        "worst group": float(np.nanmean(results["by group"], axis=0).min()),
        "seconds": time.perf_counter() - start,
        "data": pool.data,
    }


def main() -> None:
    """Prints the table line by line and saves it with its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    key_models, key_splits = jax.random.split(jax.random.key(0))
    print(format_row({name: name for name in WIDTHS}, WIDTHS))
    table, pools = [], {}
    with tqdm(desc="methods", total=NUM_METHODS, unit="method") as bar:
        for i, method in enumerate(all_methods(key_models)):
            table.append(evaluate(method, jax.random.fold_in(key_splits, i)))
            pools[method.pool.data] = method.pool
            bar.write(format_line(table[-1]))
            bar.update()
    settings = {"alpha": ALPHA, "splits": NUM_SPLITS, "seed": 0}
    save_results(args.out, "showcase", table, settings)
    for path in showcase_figures.draw(args.out, table, pools, ALPHA):
        print(f"figure: {path}")


NUM_METHODS = 23


def format_line(line: dict) -> str:
    """Returns a line of the table: the name first, then the coverage as 0.xxx."""
    digits = {"mean size": 2, "seconds": 1, "+-": 4}
    shown = {
        name: f"{v:.{digits.get(name, 3)}f}" if isinstance(v, float) else v
        for name, v in line.items()
    }
    return format_row(shown, WIDTHS)


def _shuffled(key, x, y):
    """Returns the rows in random order, as jax arrays, and a new key."""
    key, key_order = jax.random.split(key)
    order = jax.random.permutation(key_order, len(y))
    y = jnp.asarray(y, int if np.issubdtype(y.dtype, np.integer) else float)
    return jnp.asarray(x, float)[order], y[order], key


if __name__ == "__main__":
    main()
