"""Speed of cross-conformal fits of networks and of scikit-learn's estimators."""

import time
import warnings

import jax
import numpy as np
import optax
from flax import nnx
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.neural_network import MLPRegressor

import jaxcp
from experiments.tools.networks import MLP
from experiments.tools.reporting import median_seconds
from jaxcp import datasets, learners, scores

NUM_FOREST_ROWS, NUM_FOLDS = 1000, 10
NUM_NETWORKS, NUM_HIDDEN, NUM_STEPS = 200, 32, 300
ABSOLUTE = scores.Absolute()


def network_learner() -> learners.GradientLearner:
    """Returns a flax network with full-batch Adam."""
    make = lambda rngs: MLP(10, NUM_HIDDEN, 1, rngs=rngs)  # noqa: E731
    structure, _ = nnx.split(make(nnx.Rngs(0)))
    return learners.GradientLearner(
        init=lambda key: nnx.split(make(nnx.Rngs(key)))[1],
        predict=lambda params, x: nnx.merge(structure, params)(x)[:, 0],
        loss=optax.squared_error,
        optimizer=optax.adam(1e-2),
        num_steps=NUM_STEPS,
    )


def network_times() -> list[dict]:
    """Times 200 leave-one-out networks against a loop over scikit-learn's."""
    x, y = datasets.linear(jax.random.key(0), NUM_NETWORKS, num_features=10)
    learner, key = network_learner(), jax.random.key(1)

    def ours():
        return jaxcp.jackknife_plus(key, learner, ABSOLUTE, x, y)

    start = time.perf_counter()
    jax.block_until_ready(ours())
    compilation = time.perf_counter() - start
    seconds = median_seconds({"jaxcp": ours}, repeats=5)["jaxcp"]
    rows, targets = np.asarray(x), np.asarray(y)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of training that has not converged
        for i in range(NUM_NETWORKS):
            keep = np.arange(NUM_NETWORKS) != i
            network = MLPRegressor(
                hidden_layer_sizes=(NUM_HIDDEN,),
                activation="tanh",
                alpha=0.0,
                batch_size=NUM_NETWORKS - 1,
                learning_rate_init=1e-2,
                max_iter=NUM_STEPS,
                tol=0.0,
                n_iter_no_change=NUM_STEPS + 1,
            )
            network.fit(rows[keep], targets[keep]).predict(rows[i : i + 1])
    loop = time.perf_counter() - start
    assert network.n_iter_ == NUM_STEPS
    label = f"{NUM_NETWORKS} networks, {NUM_STEPS} Adam steps"
    return [
        {label: "jaxcp, flax", "s": seconds, "first call": compilation, "bar": 2.5},
        {
            label: "loop, scikit-learn",
            "s": loop,
            "it / jaxcp": loop / seconds,
            "bar": "at least 8",
        },
    ]


def estimator_times(x: np.ndarray, y: np.ndarray) -> list[dict]:
    """Times CV+ of a forest of scikit-learn against a plain loop over its fits."""
    x, y = x[:NUM_FOREST_ROWS], y[:NUM_FOREST_ROWS]
    fold = np.arange(NUM_FOREST_ROWS) % NUM_FOLDS
    forest = RandomForestRegressor(50, random_state=0)
    learner, key = learners.Estimator(forest), jax.random.key(0)

    def loop():
        errors = np.zeros(len(y))
        for k in range(NUM_FOLDS):
            held = fold == k
            model = clone(forest).fit(x[~held], y[~held])
            errors[held] = np.abs(y[held] - model.predict(x[held]))
        return errors

    def ours():
        return jaxcp.cv_plus(key, learner, ABSOLUTE, x, y, folds=fold).scores

    np.testing.assert_allclose(ours(), loop(), atol=1e-4)
    times = median_seconds({"jaxcp": ours, "loop": loop}, repeats=7)
    label = f"CV+ of a forest, n = {NUM_FOREST_ROWS}, K = {NUM_FOLDS}"
    return [
        {
            label: "cv_plus(Estimator)",
            "s": times["jaxcp"],
            "jaxcp / loop": times["jaxcp"] / times["loop"],
            "bar": "at most 1.05",
        },
        {label: "loop, scikit-learn", "s": times["loop"]},
    ]
