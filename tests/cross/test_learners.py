"""Learners against numpy, scikit-learn, and themselves without the shortcuts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from numpy.testing import assert_allclose
from sklearn import linear_model, neighbors

import jaxcp
import references
from helpers import same
from jaxcp import learners, resampling
from jaxcp.learners import _algebra, general

CLOSED_FORM = {
    "ridge": learners.Ridge(0.3),
    "ridge without intercept": learners.Ridge(0.3, intercept=False),
    "least squares": learners.Ridge(0.0),
    "kernel ridge": learners.KernelRidge(0.1, 2.0),
    "neighbors": learners.NearestNeighbors(3),
    "more neighbors than rows": learners.NearestNeighbors(50),
}
ALL = CLOSED_FORM | {
    "quantiles": learners.QuantileRidge((0.2, 0.8), 0.1),
    "vertices": learners.QuantileRegression((0.2, 0.8)),
    "mean and scale": learners.MeanScale(learners.Ridge(0.3), learners.Ridge(0.3)),
    "two functions": learners.FunctionLearner(
        learners.Ridge(0.3).fit, learners.Ridge(0.3).predict
    ),
    "gradient": learners.GradientLearner(
        init=lambda key: jnp.zeros(5),
        predict=lambda coef, x: x @ coef,
        loss=optax.squared_error,
        optimizer=optax.sgd(0.01),
        num_steps=20,
    ),
}


def data(n=20, p=5, d=()):
    rng = np.random.default_rng(0)
    x = 3 + rng.normal(size=(n, p))
    y = rng.normal(size=(n, *d)) + x[:, :1].reshape(n, *(1,) * len(d))
    return x, y


@jax.jit
def fit_and_predict(learner, x, y, weights, x_new):
    params = learner.fit(jax.random.key(0), x, y, weights)
    return learner.predict(params, x_new)


@jax.jit
def refits_and_shortcut(learner, x, y):
    refit = jax.vmap(fit_and_predict, (None, None, None, 0, None))
    params = learner.leave_one_out(x, y)
    predict = jax.vmap(learner.predict, (general.axes(params), None))
    weights = resampling.leave_one_out(len(y))
    return refit(learner, x, y, weights, x + 0.1), predict(params, x + 0.1)


@pytest.mark.parametrize(
    "name, shape",
    [
        *[(name, (20, 5, ())) for name in CLOSED_FORM],
        ("ridge", (12, 11, (2,))),
        ("least squares", (12, 30, (2,))),
        ("ridge without intercept", (12, 12, ())),
    ],
)
def test_closed_form_equals_all_refits(name, shape):
    with jax.enable_x64(True):
        x, y = (jnp.asarray(v) for v in data(*shape))
        refits, shortcut = refits_and_shortcut(CLOSED_FORM[name], x, y)
        assert_allclose(shortcut, refits, rtol=1e-8, atol=1e-8)


def test_the_table_has_every_learner():
    names = {type(learner).__name__ for learner in ALL.values()}
    others = {"Affine", "Augmented", "Difficulty", "Estimator", "FitError"}
    others |= {"KaplanMeier", "Shared", "check", "density_ratio", "label_ratio"}
    assert names == set(learners.__all__) - others


@pytest.mark.parametrize("name", ALL)
def test_weights_are_repeated_rows(name):
    """A row of weight 2 counts as two rows, one of weight 0 as none."""
    learner, (x, y) = ALL[name], data()
    weights = np.arange(20) % 3
    repeated = np.repeat(np.arange(20), weights)
    with jax.enable_x64(True):
        ours = fit_and_predict(learner, x, y, jnp.asarray(weights, float), x)
        if name.startswith("kernel"):  # two rows at one place: half the noise
            penalty = np.diag(np.where(weights, 0.1 / np.maximum(weights, 1), 1e12))
            gram = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / 8)
            expected = gram @ np.linalg.solve(gram + penalty, y)
        else:
            ones = jnp.ones(len(repeated))
            expected = fit_and_predict(learner, x[repeated], y[repeated], ones, x)
        same(ours, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_every_learner_leaves_out_rows_of_weight_zero(name):
    """No prediction of a row left out moves with its own target."""
    x, y = data()
    learners.check(ALL[name], x, y)
    if name not in ("quantiles", "vertices", "gradient"):  # which take one target a row
        learners.check(ALL[name], x, np.stack([y, -3 * y], axis=1))


@pytest.mark.parametrize("offset, scale", [(0, 1), (1e6, 1), (0, 1e-6), (3, 0)])
@pytest.mark.parametrize("name", ["ridge", "kernel ridge", "quantiles", "vertices"])
def test_rows_are_left_out_whatever_the_units_of_the_targets(name, offset, scale):
    x, y = data()
    learners.check(ALL[name], x, offset + scale * y)


def test_ridge_is_the_ridge_of_the_books():
    x, y = data()
    ours = fit_and_predict(learners.Ridge(0.7), x, y, jnp.ones(20), x)
    design = np.column_stack([x, np.ones(20)])
    assert_allclose(ours, design @ references.ridge(x, y, 0.7), rtol=1e-4)


@pytest.mark.parametrize("intercept", [True, False])
def test_no_penalty_gives_the_minimum_norm(intercept):
    with jax.enable_x64(True):
        x, y = data(10, 30)
        params = learners.Ridge(0.0, intercept=intercept).fit(
            jax.random.key(0), x, y, jnp.ones(10)
        )
        center, level = (x.mean(axis=0), y.mean()) if intercept else (0 * x[0], 0.0)
        expected = np.linalg.pinv(x - center) @ (y - level)
        assert_allclose(params.coef, expected, rtol=1e-8)


def test_neighbors_of_scikit_learn():
    x, y = data(50, 3)
    ours = fit_and_predict(learners.NearestNeighbors(4), x, y, jnp.ones(50), x + 0.1)
    theirs = neighbors.KNeighborsRegressor(4).fit(x, y).predict(x + 0.1)
    assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("p", [2, 6, 12])
def test_ties_between_neighbors_are_shared(p):
    """Binary features: many rows at one distance, whatever their number."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2, (60, p)).astype(float), rng.normal(size=60)
    ours = fit_and_predict(learners.NearestNeighbors(5), x, y, jnp.ones(60), x)
    for i in range(60):
        d = np.sum((x - x[i]) ** 2, axis=1)
        radius = np.sort(d)[4]
        inner, edge = y[d < radius], y[d == radius]
        mean = (inner.sum() + (5 - len(inner)) * edge.mean()) / 5
        assert_allclose(ours[i], mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_quantiles_of_constant_targets(value):
    x, _ = data()
    learner = learners.QuantileRidge((0.1, 0.9), 0.1)
    ours = fit_and_predict(learner, x, jnp.full(20, value), jnp.ones(20), x)
    assert_allclose(ours, np.full((2, 20), value), atol=0.01)


@pytest.mark.parametrize(
    "name, p", [("quantiles", 2), ("vertices", 2), ("ridge", 12), ("kernel ridge", 2)]
)
def test_fits_of_inputs_on_several_devices(name, p):
    """Inside shard_map, with its default checks, where the inputs alone vary."""
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=auto)
    spec = jax.sharding.PartitionSpec("rows")
    (x, _), (_, y) = data(20, p), data(10)

    def fit(x):
        return ALL[name].fit(jax.random.key(0), x, y, jnp.ones(10)).coef

    sharded = jax.shard_map(fit, mesh=mesh, in_specs=spec, out_specs=spec)
    expected = jnp.concatenate([fit(x[:10]), fit(x[10:])])
    assert_allclose(jax.jit(sharded)(x), expected, rtol=1e-4, atol=1e-5)


def test_gradient_of_quantiles_is_that_of_the_solution():
    with jax.enable_x64(True):
        x, y = (jnp.asarray(v) for v in data(400, 5))

        @jax.jit
        def total(penalty):
            learner = learners.QuantileRidge((0.1, 0.9), penalty)
            low, high = fit_and_predict(learner, x, y, jnp.ones(400), x)
            return jnp.sum(high) - jnp.sum(low)

        slope = jax.grad(total)(5.0)
        assert_allclose(slope, (total(5.25) - total(4.75)) / 0.5, rtol=0.3)


def test_half_precision_of_many_rows():
    x = jnp.ones((70_000, 1), jnp.float16) * (jnp.arange(70_000) % 7)[:, None]
    x = x.astype(jnp.float16)
    ours = fit_and_predict(learners.Ridge(1.0), x, x[:, 0] + 1, jnp.ones(70_000), x[:7])
    assert ours.dtype == jnp.float16
    assert_allclose(ours, np.arange(7) + 1, atol=0.01)


@pytest.mark.parametrize("level", [0.05, 0.5, 0.9])
def test_quantiles_of_scikit_learn(level):
    x, y = data(100, 3)
    ours = fit_and_predict(
        learners.QuantileRidge((level,), 1e-6), x, y, jnp.ones(100), x
    )
    theirs = linear_model.QuantileRegressor(quantile=level, alpha=0).fit(x, y)

    def loss(pred):
        return np.maximum(level * (y - pred), (level - 1) * (y - pred)).sum()

    assert loss(np.asarray(ours[0])) < 1.001 * loss(theirs.predict(x))
    assert_allclose(ours[0], theirs.predict(x), atol=0.1)
    vertex = learners.QuantileRegression((level,))
    ours = fit_and_predict(vertex, x, y, jnp.ones(100), x)[0]
    assert loss(np.asarray(ours)) < loss(theirs.predict(x)) + 1e-3
    weights, order = 1.0 + (np.arange(100) % 3), np.arange(100)[::-1]
    ours = fit_and_predict(vertex, x, y, weights, x)[0]
    rows = np.repeat(order, 1 + order % 3)
    repeated = fit_and_predict(vertex, x[rows], y[rows], np.ones(len(rows)), x)
    assert_allclose(ours, repeated[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_gradient_learner_never_sees_rows_left_out(batch_size):
    """A flax network, through the whole batch and through drawn mini-batches."""
    x, y = data(16, 2)
    structure, _ = nnx.split(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
    learner = learners.GradientLearner(
        init=lambda key: nnx.split(nnx.Linear(2, 1, rngs=nnx.Rngs(key)))[1],
        predict=lambda params, x: nnx.merge(structure, params)(x)[:, 0],
        loss=optax.squared_error,
        optimizer=optax.adam(0.1),
        num_steps=300,
        batch_size=batch_size,
    )
    weights = jnp.asarray(np.arange(16) % 3, float)
    spoilt = jnp.where(weights == 0, jnp.nan if batch_size else 1e6, jnp.asarray(y))
    fit = jax.jit(learner.fit)
    params, other = (
        fit(jax.random.key(0), jnp.asarray(x), t, weights)
        for t in (jnp.asarray(y), spoilt)
    )
    same(other, params, rtol=1e-7)
    ols = fit_and_predict(learners.Ridge(0.0), x, y, weights, x)
    error = np.asarray(learner.predict(params, jnp.asarray(x)) - ols)
    assert np.abs(error).mean() < (1.0 if batch_size else 0.2)


def test_scales_stay_above_the_floor():
    x, y = data()
    far = x.mean(axis=0) + 100 * (x - x.mean(axis=0))
    learner = learners.MeanScale(learners.Ridge(0.3), learners.Ridge(0.3), floor=0.5)
    mu, sigma = fit_and_predict(learner, x, y, jnp.ones(20), far)
    mean, _ = fit_and_predict(learner, x, y, jnp.ones(20), x)
    assert mu.shape == sigma.shape == (20,)
    assert_allclose(np.min(sigma), 0.5 * np.mean(np.abs(y - mean)), rtol=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: learners.Ridge(t),
        lambda t: learners.KernelRidge(t, 2.0),
        lambda t: learners.KernelRidge(0.5, t),
    ],
)
def test_gradients_in_hyperparameters(make):
    with jax.enable_x64(True):
        x, y = (jnp.asarray(v) for v in data(12, 3))

        def total(t):
            params = make(t).leave_one_out(x, y)
            predict = jax.vmap(make(t).predict, (general.axes(params), None))
            return jnp.sum(predict(params, x) ** 2)

        total = jax.jit(total)
        slope = jax.jit(jax.grad(total))(1.3)
        change = (total(1.3 + 1e-5) - total(1.3 - 1e-5)) / 2e-5
        assert_allclose(slope, change, rtol=1e-5)


def test_inputs_of_another_shape():
    for learner in (learners.Ridge(1.0), learners.KernelRidge(1.0)):
        with pytest.raises(
            ValueError, match=r"expected x of shape \(n, p\), got \(3,\)"
        ):
            learner.fit(jax.random.key(0), jnp.ones(3), jnp.ones(3), jnp.ones(3))


def _systems(seed, *batch):
    """Symmetric systems of four equations, far from singular."""
    root = np.random.default_rng(seed).normal(size=(*batch, 4, 4))
    return root @ np.swapaxes(root, -1, -2) + np.eye(4)


@pytest.mark.parametrize("outputs", [(), (3,)], ids=["vector", "columns"])
@pytest.mark.parametrize("of_outer", [True, False], ids=["own system", "one system"])
@pytest.mark.parametrize("of_inner", [True, False], ids=["each", "shared"])
def test_solves_of_nested_batches(of_outer, of_inner, outputs):
    """Whatever has a batch axis: systems, targets or both; also their derivatives."""
    with jax.enable_x64(True):
        batch = (2,) * of_outer + (5,) * of_inner
        systems = _systems(0, *batch)
        targets = np.random.default_rng(2).normal(size=(2, 5, 4, *outputs))
        inner = jax.vmap(_algebra.solve, (0 if of_inner else None, 0))
        solve = jax.jit(jax.vmap(inner, (0 if of_outer else None, 0)))

        def in_numpy(systems, targets):
            shape = 2 if of_outer else 1, 5 if of_inner else 1, 4, 4
            columns = np.asarray(targets).reshape(2, 5, 4, -1)
            systems = np.asarray(systems).reshape(shape)
            return np.linalg.solve(systems, columns).reshape(targets.shape)

        assert_allclose(solve(systems, targets), in_numpy(systems, targets), rtol=1e-9)
        step = _systems(1, *batch), targets[::-1]
        solution, change = jax.jvp(solve, (systems, targets), step)
        eps = 1e-6
        ends = [
            in_numpy(systems + s * step[0], targets + s * step[1]) for s in (eps, -eps)
        ]
        assert_allclose(change, (ends[0] - ends[1]) / (2 * eps), rtol=1e-5, atol=1e-6)
        pulled = jax.vjp(solve, systems, targets)[1](solution)
        along = sum(jnp.vdot(a, b) for a, b in zip(pulled, step, strict=True))
        assert_allclose(along, jnp.vdot(solution, change), rtol=1e-9)


def test_many_targets_of_one_system_are_its_columns():
    """One call of LAPACK, not one for each."""
    systems, targets = _systems(0), jnp.ones((1000, 4))
    many = jax.jit(jax.vmap(_algebra.solve, (None, 0)))
    program = many.lower(systems, targets).as_text()
    assert "tensor<4x1000xf" in program
    for shape in [(0, 4), (0, 4, 2)]:
        assert many(systems, jnp.ones(shape)).shape == shape
    assert many(jnp.ones((0, 0)), jnp.ones((3, 0, 1))).shape == (3, 0, 1)


def test_many_solves_at_a_time_do_not_wait_for_each_other(key):
    """Several batches of factorizations in one program, which can hang jaxlib 0.10."""
    ridge = learners.Ridge(0.1)

    def trial(key):
        x = jax.random.normal(key, (40, 4))
        parts = [x[10 * i : 10 * (i + 1)] for i in range(4)]
        fits = [ridge.fit(key, part, part[:, 0], jnp.ones(10)) for part in parts]
        return sum(jnp.sum(fit.coef) for fit in fits)

    assert np.all(np.isfinite(jaxcp.simulate(trial, key, 1000)))


@pytest.mark.parametrize("shape", [(30, 3), (9, 20)], ids=["primal", "dual"])
def test_hyperparameters_of_a_wider_type_leave_the_type_of_the_data(shape):
    with jax.enable_x64(True):
        x = (
            jnp.ones(shape, jnp.float32)
            * jnp.arange(shape[0], dtype=jnp.float32)[:, None]
        )
        y, key = x[:, 0], jax.random.key(0)

        def scores_of(penalty):
            ridge = learners.Ridge(penalty)
            absolute = jaxcp.scores.Absolute()
            return jaxcp.jackknife_plus(key, ridge, absolute, x, y).scores

        found = jax.vmap(scores_of)(jnp.logspace(-1, 1, 3))
        assert found.dtype == jnp.float32 and np.all(np.isfinite(found))


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("lengthscale", [0.05, 0.2, 2.0])
def test_kernel_thresholds_are_those_of_double_precision_or_not_known(p, lengthscale):
    """Leave-one-out errors and full conformal sets, down to a penalty of 1e-7."""
    n, rng = 40, np.random.default_rng(p)
    x = rng.uniform(0, 1, (n, p)).astype(np.float32)
    y = (np.sin(6 * x[:, 0]) + 0.1 * rng.normal(size=n)).astype(np.float32)
    square = np.sum((np.float64(x)[:, None] - x[None]) ** 2, axis=2)
    gram = np.exp(-0.5 * square / lengthscale**2)
    penalties = 10.0 ** -np.arange(2, 8)
    rank = references.rank(n, "0.1")

    def threshold(errors):
        return np.sort(np.abs(errors))[rank - 1]

    known = []
    for penalty in penalties:
        inverse = np.linalg.inv(gram + penalty * np.eye(n))
        expected = threshold(inverse @ y / np.diag(inverse))
        found = threshold(_kernel_errors(penalty, lengthscale, x, y))
        known.append(not np.isnan(found))
        assert not known[-1] or found == pytest.approx(expected, rel=0.01)
    digits = np.linalg.eigvalsh(gram)[0] + penalties
    assert np.all(np.array(known)[digits > 4e-4])


@jax.jit
def _kernel_errors(penalty, lengthscale, x, y):
    learner = learners.KernelRidge(penalty, lengthscale)
    fits = learner.leave_one_out(x, y)

    def error(coef, x, y):
        fit = learners.neighbors.KernelFit(fits.x, coef)
        return y - learner.predict(fit, x[None])[0]

    return jax.vmap(error)(fits.coef, x, y)


def test_penalties_below_the_digits_of_the_data():
    x, y = (v.astype(np.float32) for v in data(40, 1))
    absolute = jaxcp.scores.Absolute()

    def sets(penalty, x=x, y=y):
        learner = learners.KernelRidge(penalty, 2.0)
        return jaxcp.jackknife_plus(jax.random.key(0), learner, absolute, x, y)(x, 0.1)

    with pytest.raises(ValueError, match=r"without NaN, .* take a larger one"):
        sets(1e-7)
    assert np.all(np.isposinf(jax.jit(sets)(1e-7).upper))
    assert np.all(np.isfinite(sets(1e-2).upper))
    with jax.enable_x64(True):
        assert np.all(np.isfinite(sets(1e-7, np.float64(x), np.float64(y)).upper))


@pytest.mark.parametrize("name", ALL)
def test_predictions_are_made_in_blocks(name):
    """By the account of the compiler: no array of all pairs of rows and inputs."""
    n, m = 2000, 50_000
    of = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((n, 5), (n,), (n,), (m, 5))]
    fit = lambda *rows: ALL[name].fit(jax.random.key(0), *rows)  # noqa: E731
    predict = jax.jit(ALL[name].predict).lower(jax.eval_shape(fit, *of[:3]), of[3])
    pairs = n * m * of[0].dtype.itemsize
    assert predict.compile().memory_analysis().temp_size_in_bytes < pairs / 10
