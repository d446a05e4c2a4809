"""The methods of the showcase and the data that they run on."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from sklearn import datasets as real

import jaxcp
from experiments.data import multioutput_data
from experiments.tools import networks
from experiments.tools.multioutput_methods import Source
from experiments.tools.multioutput_methods import all_methods as multioutput_methods
from jaxcp import learners, metrics, models, scores

ALPHA = 0.1
NUM_METHODS, NUM_MISSING = 43, 2  # the latter of rows that lack inputs
DELTA = 0.1  # of a calibration set that covers less


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
    tilt: Callable[[Array], Array] | None = None  # weights that draw the test rows
    size: Callable[[object], Array] = metrics.mean_size
    num_splits: int = 400
    hits: Callable[[object, Array], Array] | None = None  # else whether y is in the set


def rows(tree, index):
    """Returns the rows `index` of every leaf."""
    return jax.tree.map(lambda v: v[index], tree)


def split(score, pred: str, delta: float | None = None):
    """Returns split conformal prediction with a score on the predictions `pred`."""

    def sets(pool, calibration, test):
        preds = pool.preds[pred]
        cp = jaxcp.calibrate(score, rows(preds, calibration), pool.y[calibration])
        return cp(rows(preds, test), ALPHA, delta=delta)

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
        return cp(rows(preds, test), ALPHA, groups=groups[test])

    return sets


def class_wise(score, pred: str):
    """Returns class-conditional split conformal prediction."""

    def sets(pool, calibration, test):
        preds, y = pool.preds[pred], pool.y[calibration]
        old = rows(preds, calibration)
        cp = jaxcp.calibrate_groups(score, old, y, y, num_groups=pool.num_groups)
        return cp(rows(preds, test), ALPHA)

    return sets


def of_inputs(verb, predict):
    """Returns a method that sees inputs, by a verb that takes a model."""

    def sets(pool, calibration, test):
        rows = pool.x[calibration], pool.y[calibration]
        return verb(predict, None, scores.Absolute(), *rows)(pool.x[test], ALPHA)

    return sets


def resampled(make, way: str = "__call__"):
    """Returns a method that fits on the calibration rows themselves.

    `make(key, x, y)` returns a `FullConformal`, or a `CrossConformal`, of which `way`
    names the kind of its sets. The rows come in random order, so that one key serves
    all splits.
    """

    def sets(pool, calibration, test):
        cp = make(jax.random.key(0), pool.x[calibration], pool.y[calibration])
        return getattr(cp, way)(pool.x[test], ALPHA)

    return sets


def jackknife(key, x, y):
    """Returns the jackknife+ of a ridge, in closed form."""
    return jaxcp.jackknife_plus(key, learners.Ridge(1.0), scores.Absolute(), x, y)


def full(key, x, y):
    """Returns full conformal prediction of a ridge, in closed form."""
    return jaxcp.full_conformal(key, learners.Ridge(1.0), scores.Absolute(), x, y)


def folds(key, x, y):
    """Returns CV+ of a ridge."""
    ridge = learners.Ridge(1.0)
    return jaxcp.cv_plus(key, ridge, scores.Absolute(), x, y, num_folds=10)


def quantile_folds(key, x, y):
    """Returns CV+ of linear quantiles with the score of CQR."""
    bands = learners.QuantileRidge((ALPHA / 2, 1 - ALPHA / 2), 1.0)
    return jaxcp.cv_plus(key, bands, scores.CQR(), x, y, num_folds=5)


def scaled_folds(key, x, y):
    """Returns CV+ of a mean and a scale with the normalized score."""
    both = learners.MeanScale(learners.Ridge(1.0), learners.Ridge(10.0))
    return jaxcp.cv_plus(key, both, scores.Normalized(), x, y, num_folds=10)


def bagged(key, x, y):
    """Returns the jackknife+ after 30 bootstrap fits of a ridge."""
    ridge = learners.Ridge(1.0)
    return jaxcp.jackknife_plus_after_bootstrap(
        key, ridge, scores.Absolute(), x, y, num_resamples=30
    )


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


def labeled(key: Array, name: str, load: Callable, num_train: int, n: int) -> Pool:
    """Trains a classifier on a labeled data set."""
    raw, y, key = _shuffled(key, *load(return_X_y=True))
    x = (raw - raw[:num_train].mean(0)) / (raw[:num_train].std(0) + 1e-3)
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
    uniforms = jax.random.uniform(key_u, (len(y),))
    preds = {"p": p, "p, u": (p, uniforms), "raw": raw}
    rest = slice(num_train, None)
    return Pool(name, x[rest], y[rest], y[rest], k, n, rows(preds, rest))


def buildings(key: Array, folder: Path | None) -> list[Method]:
    """Trains a flow on two loads of buildings; the methods run on other rows."""
    key_data, key_fit, key_draws = jax.random.split(key, 3)
    if folder is not None and (folder / "energy.csv").exists():
        name, (x, y) = "energy", multioutput_data.energy(folder)
    else:
        name, (x, y) = "generated loads", multioutput_data.like_energy(key_data, 768)
    x, y, key_fit = _shuffled(key_fit, x, y)
    y = (y - y[:369].mean(0)) / y[:369].std(0)
    groups = (x[:, 4] > jnp.median(x[:, 4])).astype(int)
    flow = models.CouplingFlow(num_couplings=2, num_hidden=16, num_steps=400)
    params = flow.fit(key_fit, x[:369], y[:369])
    rest = slice(369, None)
    source = Source(flow, params, key_draws, frozen=True)
    methods = multioutput_methods(ALPHA)
    preds = {method.name: method.preds(source, x[rest]) for method in methods}
    pool = Pool(name, x[rest], y[rest], groups[rest], 2, 199, preds)
    lines = [
        Method(
            m.name,
            pool,
            split(m.score(source), m.name),
            size=few_volumes,
            num_splits=20,
        )
        for m in methods
    ]
    return lines


def few_volumes(sets) -> Array:
    """Returns the mean volume of the first sets, from few points each."""
    some = jax.tree.map(lambda v: v[:16], sets)
    return metrics.mean_volume(jax.random.key(0), some, 64).mean


def all_methods(key: Array, folder: Path | None) -> Iterator[Method]:
    """Yields the lines of the table, training models when they are first needed."""
    key_diabetes, key_digits, key_cancer, key_loads = jax.random.split(key, 4)
    pool = diabetes(key_diabetes)
    absolute = scores.Absolute()
    yield Method("split", pool, split(absolute, "ridge"))
    yield Method(f"split, delta = {DELTA}", pool, split(absolute, "ridge", DELTA))
    yield Method("signed", pool, split(scores.Signed(), "ridge"))
    yield Method("gamma", pool, split(scores.Gamma(), "ridge"))
    yield Method("normalized", pool, split(scores.Normalized(), "normal"))
    yield Method("CQR", pool, split(scores.CQR(), "quantiles"))
    yield Method("CQR, two-sided", pool, split(scores.AsymmetricCQR(), "quantiles"))
    yield Method("Mondrian", pool, mondrian(absolute, "ridge"))
    yield Method("unweighted, shifted x", pool, split(absolute, "ridge"), pressure_tilt)
    yield Method(
        "weighted", pool, weighted(absolute, "ridge", pressure_tilt), pressure_tilt
    )
    yield Method("full conformal", pool, resampled(full))
    yield Method("jackknife+", pool, resampled(jackknife))
    yield Method("jackknife, no guarantee", pool, resampled(jackknife, "naive"))
    yield Method("jackknife-minmax", pool, resampled(jackknife, "minmax"))
    yield Method("CV+", pool, resampled(folds))
    yield Method("CV+, CQR", pool, resampled(quantile_folds), num_splits=200)
    yield Method("CV+, normalized", pool, resampled(scaled_folds))
    yield Method("jackknife+ after boot.", pool, resampled(bagged))
    for given in (
        (key_digits, "digits", real.load_digits, 600, 499),
        (key_cancer, "breast cancer", real.load_breast_cancer, 150, 199),
    ):
        pool = labeled(*given)
        yield Method("LAC", pool, split(scores.LAC(), "p"))
        yield Method("class-wise LAC", pool, class_wise(scores.LAC(), "p"))
        yield Method("APS", pool, split(scores.APS(), "p"))
        yield Method("APS, randomized", pool, split(scores.APS(True), "p, u"))
        yield Method("RAPS", pool, split(scores.RAPS(0.05, 1), "p"))
        yield Method(
            "RAPS, randomized", pool, split(scores.RAPS(0.05, 1, True), "p, u")
        )
        yield Method("top-k", pool, split(scores.TopK(), "p"))
    yield from buildings(key_loads, folder)


def missing_methods(key: Array, pools: dict[str, Pool]) -> Iterator[Method]:
    """Yields lines of the diabetes data where one in five of three inputs is hidden.

    Groups are rows that lack two or three of them, and others. The ridge takes hidden
    inputs for their means.
    """
    pool = pools["diabetes"]
    ones = jnp.ones((len(pool.x), 1))
    beta = jnp.linalg.lstsq(jnp.append(pool.x, ones, 1), pool.preds["ridge"])[0]
    are_hidden = jax.random.bernoulli(key, 0.2, (len(pool.x), 3))
    at = jnp.array([2, 3, 8])  # weight, blood pressure, a serum
    x = pool.x.at[:, at].set(jnp.where(are_hidden, jnp.nan, pool.x[:, at]))
    pool = dataclasses.replace(pool, x=x, groups=are_hidden.sum(1) // 2)

    def ridge(_, x):
        return jnp.nan_to_num(x) @ beta[:-1] + beta[-1]

    yield Method("filled in, then split", pool, of_inputs(jaxcp.split_conformal, ridge))
    yield Method("missing inputs", pool, of_inputs(jaxcp.calibrate_masked, ridge))


def _shuffled(key, x, y):
    """Returns the rows in random order, as jax arrays, and a new key."""
    key, key_order = jax.random.split(key)
    order = jax.random.permutation(key_order, len(y))
    y = jnp.asarray(y, int if np.issubdtype(y.dtype, np.integer) else float)
    return jnp.asarray(x, float)[order], y[order], key
