"""Approximate full conformal prediction by influence functions."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxcp import full_conformal, influence_conformal, learners, scores
from rows import refuses

KEY = jax.random.key(0)
GOLDEN = Path(__file__).parents[1] / "reference" / "full_influence.npz"


def _logistic(start, num_steps=0, **options):
    return learners.GradientLearner(
        init=lambda key: jnp.asarray(start),
        predict=lambda params, x: x @ params,
        loss=lambda pred, y: jnp.logaddexp(0, jnp.where(y == 1, -pred, pred)),
        optimizer=optax.adam(0.1),
        num_steps=num_steps,
        **options,
    )


LOGISTIC = _logistic(np.zeros(2, np.float32), 100)


LINE = learners.GradientLearner(
    init=lambda key: {"slope": jnp.zeros(1)},
    predict=lambda params, x: x @ params["slope"],
    loss=optax.squared_error,
    optimizer=optax.sgd(0.3),
    num_steps=150,
)


@pytest.mark.parametrize("deleted", [True, False])
def test_golden_of_a_logistic_regression(deleted):
    with jax.enable_x64(True), np.load(GOLDEN) as golden:
        case = {name.split("__")[1]: golden[name] for name in golden}
        cp = influence_conformal(
            KEY,
            _logistic(case["params"]),
            case["x"],
            case["y"].astype(int),
            num_labels=2,
            deleted=deleted,
            damping=case["damping"],
        )
        expected = case["p_deleted" if deleted else "p_ordinary"]
        x_new = case["x_new"]
        for label in (0, 1):
            p = cp.p_values(x_new, np.full(5, label))
            assert_allclose(p, expected[:, label], rtol=1e-9)
        for alpha in (0.05, 0.1, 0.3):
            kept = expected > alpha * (1 + 1e-9)
            assert_array_equal(cp(x_new, alpha).mask, kept)


def _reference(x, y, x_new, y_new, damping, deleted):
    """Returns the p-value of a target by the formulas, of a line by squared errors."""
    n = len(y)
    slope = np.linalg.lstsq(x, y, rcond=None)[0]
    rows, targets = np.vstack([x, x_new]), np.append(y, y_new)
    errors = rows @ slope - targets
    gradients = 2 * errors[:, None] * rows
    hessian = 2 * x.T @ x / n + damping * np.eye(x.shape[1])
    own, g = errors[-1] ** 2, gradients[-1]
    others = errors[:-1] ** 2
    for i in range(n):
        moved = g - gradients[i] if deleted else g
        others[i] -= gradients[i] @ np.linalg.solve(hessian, moved) / n
    own -= 0 if deleted else g @ np.linalg.solve(hessian, g) / n
    return (1 + np.sum(others >= own * (1 - 1e-9))) / (n + 1)


def _rows(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 1))
    return x, 2 * x[:, 0] + rng.normal(size=n)


@pytest.mark.parametrize("deleted", [True, False])
def test_numbers_agree_with_the_formulas(deleted):
    x, y = _rows(20)
    mask, grid = np.arange(20) % 4 > 0, np.linspace(-6, 6, 25)
    x_new = np.array([[-1.0], [0.3], [2.0]])
    of = 0.01, deleted
    with jax.enable_x64(True):
        options = {"grid": grid, "mask": mask, "damping": 0.01, "deleted": deleted}
        cp = influence_conformal(KEY, LINE, x, y, **options)
        p = np.stack([cp.p_values(x_new, np.full(3, v)) for v in grid], axis=1)
        sets = cp(x_new, 0.3)
        kept = np.stack([sets.contains(v) for v in grid], axis=1)
    exact = [[_reference(x[mask], y[mask], z, v, *of) for v in grid] for z in x_new]
    assert_allclose(p, exact, rtol=1e-9)
    assert_array_equal(kept, p > 0.3)


def test_cells_meet_half_way_and_outer_ones_are_infinite():
    x, y = _rows(19, 1)
    wide, short = np.linspace(-20.0, 20.0, 21), np.linspace(-0.5, 0.5, 3)
    near, far = np.zeros((1, 1)), np.full((1, 1), 5.0)
    sets = influence_conformal(KEY, LINE, x, y, grid=wide)(near, 0.2)
    assert np.isfinite(sets.lower[0, 0]) and sets.num_pieces()[0] == 1
    assert sets.lower[0, 0] % 2 == 1 == sets.upper[0, 0] % 2  # points are even
    cp = influence_conformal(KEY, LINE, x, y, grid=short)
    whole = cp(near, 0.05).to_numpy()[0, 0]
    assert_array_equal(whole, [-np.inf, np.inf])
    assert cp(far, 0.2).is_empty()[0]  # no point of the grid is near the line
    few = influence_conformal(KEY, LINE, x[:3], y[:3], grid=wide)
    assert_array_equal(few(far, 0.2).to_numpy()[0, 0], [-np.inf, np.inf])


def test_approximates_the_refits(key):
    learner = learners.GradientLearner(
        init=lambda key: jnp.zeros((2, 2)),
        predict=lambda params, x: x @ params,
        loss=optax.softmax_cross_entropy_with_integer_labels,
        optimizer=optax.adam(0.2),
        num_steps=200,
    )
    x = jax.random.normal(key, (60, 2))
    y = (x[:, 0] + jax.random.normal(jax.random.key(1), (60,)) > 0).astype(int)
    new = jax.random.normal(jax.random.key(2), (20, 2))
    exact = full_conformal(KEY, learner, scores.LogLAC(), x, y)
    near = influence_conformal(KEY, learner, x, y, num_labels=2, deleted=False)
    p, q = (cp.p_values(new, np.arange(20) % 2) for cp in (exact, near))
    assert np.mean(np.abs(p - q)) < 0.01 and np.max(np.abs(p - q)) < 0.1
    both = (np.asarray(cp(new, 0.1).mask) for cp in (exact, near))
    assert np.mean(np.equal(*both)) > 0.9


@pytest.mark.slow
def test_covers_about_as_many_as_it_says(key):
    def trial(key):
        key_x, key_y = jax.random.split(key)
        x = jax.random.normal(key_x, (40, 2))
        y = jax.random.bernoulli(key_y, jax.nn.sigmoid(2 * x[:, 0])).astype(int)
        cp = influence_conformal(KEY, LOGISTIC, x[:39], y[:39], num_labels=2)
        return cp(x[39:], 0.1).mask[0, y[39]]

    covered = np.mean(jax.jit(jax.vmap(trial))(jax.random.split(key, 2000)))
    assert abs(covered - 0.9) < 0.01 + 4 * np.sqrt(0.09 / 2000)


def test_edges_are_defined(key):
    x, y = jax.random.normal(key, (12, 2)), jnp.arange(12) % 2
    new = jnp.array([[1.0, 1.0], [jnp.nan, 0.0]])
    assert np.all(
        influence_conformal(KEY, LOGISTIC, x, y, num_labels=2)(new, 0.3).mask[1]
    )
    fits = {
        "one class": (x, 0 * y),
        "no rows": (x[:0], y[:0]),
        "one row": (x[:1], y[:1]),
        "flat": (0 * x, y),  # a Hessian of zeros
    }
    for rows in fits.values():
        for options in ({}, {"deleted": False, "damping": 0.0}):
            cp = influence_conformal(KEY, LOGISTIC, *rows, num_labels=2, **options)
            p = cp.p_values(new, jnp.array([0, 1]))
            assert np.all((p > 0) & (p <= 1))
            if len(rows[1]) < 2:
                assert np.all(cp(new, 0.1).mask)
    ignored = influence_conformal(KEY, LOGISTIC, x, y, mask=np.zeros(12, bool))
    assert np.all(ignored.p_values(new, jnp.array([0, 1])) == 1)


def test_copies_of_a_row_tie(key):
    x, y = jax.random.normal(key, (10, 2)), jnp.arange(10) % 2
    x, y = jnp.repeat(x, 3, axis=0), jnp.repeat(y, 3)
    for deleted in (True, False):
        cp = influence_conformal(KEY, LOGISTIC, x, y, num_labels=2, deleted=deleted)
        assert np.all(cp.p_values(x, y) * 31 > 3.9)  # the row and its copies


def test_curvature_down_counts_as_flat():
    saddle = learners.GradientLearner(
        init=lambda key: jnp.zeros(2),
        predict=lambda params, x: jnp.tile(params, (len(x), 1)),
        loss=lambda pred, y: pred[0] ** 2 - pred[1] ** 2 + y * jnp.sum(pred),
        optimizer=optax.sgd(0.1),
        num_steps=0,
    )
    x, y = jnp.zeros((4, 1)), jnp.array([1.0, 2.0, 3.0, 4.0])
    cp = influence_conformal(KEY, saddle, x, y, damping=0.5)
    # g_i = (y_i, y_i), H = diag(2, -2): l_i + g_i' diag(1/2.5, 1/0.5) g_i / 4
    assert_allclose(cp.fit.losses, y**2 * (1 / 2.5 + 1 / 0.5) / 4, rtol=1e-5)
    cp = influence_conformal(KEY, saddle, x, y, damping=0.0)
    assert_allclose(cp.fit.losses, y**2 / 2 / 4, rtol=1e-5)


def test_programs_agree(key):
    x, y = jax.random.normal(key, (15, 2)), jnp.arange(15) % 2
    new, labels = jax.random.normal(jax.random.key(1), (7, 2)), jnp.arange(7) % 2

    def p_values(x, new, damping):
        options = {"num_labels": 2, "damping": damping}
        return influence_conformal(KEY, LOGISTIC, x, y, **options).p_values(new, labels)

    eager = p_values(x, new, 0.1)
    assert_allclose(jax.jit(p_values)(x, new, 0.1), eager, rtol=1e-6)
    dampings = jnp.array([0.1, 1.0])
    both = jax.vmap(p_values, (None, None, 0))(x, new, dampings)
    assert_allclose(both, [eager, p_values(x, new, 1.0)], rtol=1e-6)
    slopes = jax.grad(lambda *v: jnp.sum(p_values(*v)), (0, 1, 2))(x, new, 0.1)
    assert all(np.all(np.asarray(v) == 0) for v in slopes)  # a step function
    sets = [
        influence_conformal(KEY, LOGISTIC, x, y, num_labels=2, batch_size=size)(
            new, 0.3
        )
        for size in (None, 3)
    ]
    for other in sets[1:]:
        assert_array_equal(other.mask, sets[0].mask)
    batches = _logistic(np.zeros(2, np.float32), 100, batch_size=5)
    p = influence_conformal(KEY, batches, x, y).p_values(new, labels)
    assert np.all((p > 0) & (p <= 1))


def _refused(learner=LOGISTIC, **changes):
    rows = {"x": np.ones((6, 2)), "y": np.arange(6) % 2, **changes}
    return lambda: influence_conformal(KEY, learner, **rows)


def _call(**changes):
    return _refused(**changes)()


test_refuses = refuses(
    {
        "no loss": (
            _refused(learners.Ridge(1.0)),
            "GradientLearner, whose loss is the",
        ),
        "both": (
            _refused(num_labels=2, grid=[0.0, 1.0]),
            "num_labels or grid, got both",
        ),
        "neither": (
            lambda: _call()(np.ones((1, 2)), 0.1),
            "num_labels as a value, got",
        ),
        "one label": (_refused(num_labels=1), "num_labels as an int >= 2"),
        "label out of range": (_refused(num_labels=2, y=np.arange(6)), "in 0, ..., 1"),
        "grid falls": (
            _refused(grid=[1.0, 0.0]),
            "grid in increasing order, got 0.0 at 1; numpy",
        ),
        "grid of NaN": (_refused(grid=[0.0, np.nan]), "grid of finite values, got nan"),
        "inputs that are NaN": (_refused(x=np.full((6, 2), np.nan)), "x without NaN"),
        "damping": (_refused(damping=-1.0), "damping >= 0"),
        "lengths": (_refused(x=np.ones((5, 2))), "6 rows like y, got 5"),
        "alphas": (
            lambda: _call(num_labels=2)(np.ones((1, 2)), [0.1, 0.2]),
            r"alpha of shape \(\), got \(2,\)",
        ),
        "columns": (
            lambda: _call(num_labels=2)(np.ones((1, 3)), 0.1),
            r"x with rows of shape \(2,\) like x, got \(3,\)",
        ),
    }
)
