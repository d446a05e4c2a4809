"""Soft sets, conformal training, and what is learned through it."""

import contextlib
import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
import references
from helpers import CASES, components, labels_of, scores_of, sets_of
from jaxcp import learners, metrics, scores, training

pytestmark = pytest.mark.slow

SIZED = [
    "absolute",
    "absolute-3d",
    "normalized",
    "cqr",
    "asymmetric-cqr",
    "gamma",
    "rectangle",
    "box-maximum",
    "mahalanobis",
    "lac",
    "log-lac",
    "aps",
    "raps-randomized",
]
KEY = jax.random.key(0)
BALLS = ["pcp", "c-pcp"]
TINY = {"temperature": 1e-3, "key": KEY}


def floats(tree):
    """Numpy's rows as the default floats, so that the double leg tests doubles."""
    cast = lambda v: jnp.asarray(v, float if v.dtype.kind == "f" else int)  # noqa: E731
    return jax.tree.map(cast, tree)


def data(name, n=20, start=0):
    return floats(CASES[name].batch(n, start))


def loss_of(score, cal, new, alpha, **options):
    options = {"temperature": 0.3} | options
    return training.conformal_training_loss(score, *cal, new[0], alpha, **options)


def central(fn, step=1e-3):
    return (fn(step) - fn(-step)) / (2 * step)


@pytest.mark.parametrize("name", SIZED)
def test_soft_sizes_tend_to_the_sizes(name):
    case = CASES[name]
    preds, _ = data(name)
    q = jnp.full((components(case),), 0.52) if components(case) > 1 else jnp.array(0.52)
    soft = training.soft_size(case.score, preds, q, temperature=1e-5)
    many = jnp.broadcast_to(q[None], (len(soft), *q.shape))
    hard = jax.jit(jax.vmap(lambda s: s.size()))(sets_of(case.score, preds, many))
    assert_allclose(soft, hard, rtol=1e-4, atol=1e-4)


def test_soft_sizes_by_hand():
    p = jnp.array([[0.7, 0.2, 0.1]])
    by_hand = references.soft_members(1 - np.asarray(p[0]), 0.75, 0.1).sum()
    soft = training.soft_size(scores.LAC(), p, 0.75, temperature=0.1)
    assert_allclose(soft, [by_hand], rtol=1e-5)
    each = jnp.array([0.3, 0.8, -jnp.inf])  # a threshold for every label
    by_hand = references.soft_members(1 - np.asarray(p[0]), each, 0.1).sum()
    soft = training.soft_size(scores.LAC(), p, each, temperature=0.1)
    assert_allclose(soft, [by_hand], rtol=1e-5)
    band = jnp.array([1.0]), jnp.array([0.0])  # crossed by 1 - 2 q
    soft = training.soft_size(scores.CQR(), band, 0.25, temperature=0.5)
    assert_allclose(soft, 0.5 * np.log(1 + np.exp([-0.5 / 0.5])), rtol=1e-5)


def test_soft_memberships_by_hand():
    y, q, t = jnp.array([0.3, 2.0]), 0.5, 0.2
    inside = training.soft_membership(
        scores.Absolute(), jnp.zeros(2), y, q, temperature=t
    )
    assert_allclose(inside, references.soft_members(np.asarray(y), q, t), rtol=1e-5)
    ends = jnp.array([0.1, 0.4])
    sides = training.soft_membership(
        scores.Signed(), jnp.zeros(2), y, ends, temperature=t
    )
    by_hand = [references.soft_members(np.array([-v, v]), ends, t).prod() for v in y]
    assert_allclose(sides, by_hand, rtol=1e-5)
    p, labels = jnp.array([[0.7, 0.3]] * 2), jnp.array([0, 1])
    each = training.soft_membership(
        scores.LAC(), p, labels, jnp.array([0.3, jnp.inf]), temperature=t
    )
    assert_allclose(each, [0.5, 1], rtol=1e-6)


def test_unions_of_balls():
    """On the line, with overlap: the width is 2 r + 1, and moves with the ends."""
    draws, points = jnp.array([[[0.0], [1.0]]]), 512

    def width(draws, r):
        return training.soft_size(
            scores.PCP(), draws, r, temperature=0.1, key=KEY, num_samples=points
        )[0]

    size, slopes = jax.jit(jax.value_and_grad(width, (0, 1)))(draws, 1.0)
    assert_allclose(size, 3.0, rtol=0.05)
    assert_allclose(slopes[0][0, :, 0], [-1, 1], atol=0.1)
    assert_allclose(slopes[1], 2.0, atol=0.1)
    assert width(draws, jnp.inf) == jnp.inf and width(draws, -1.0) == 0
    assert jax.grad(width, 1)(draws, jnp.inf) == 0


@pytest.mark.parametrize("name", ["log-lac", "normalized", "asymmetric-cqr"])
def test_gradients_are_finite_differences(name):
    """Of the smoothed objective, in a direction of all predictions and the scale."""
    case = CASES[name]
    rows = data(name, 40)
    cal, new = (jax.tree.map(lambda v, i=i: v[i::2], rows) for i in (0, 1))
    leaves, structure = jax.tree.flatten((cal[0], new[0]))
    keys = jax.random.split(KEY, len(leaves))
    way = [jax.random.normal(k, v.shape) for k, v in zip(keys, leaves, strict=True)]

    @jax.jit
    def loss(t):
        moved = [v + t * w for v, w in zip(leaves, way, strict=True)]
        preds_cal, preds = jax.tree.unflatten(structure, moved)
        weights = {"y": new[1], "classification_weights": 0.7}
        return training.conformal_training_loss(
            case.score,
            preds_cal,
            cal[1],
            preds,
            0.2,
            temperature=0.3,
            bandwidth=0.5,
            **weights,
        )

    assert_allclose(jax.jit(jax.grad(loss))(0.0), central(loss, 2e-3), rtol=1e-2)


@pytest.mark.parametrize("name", ["lac", "aps"])
def test_loss_is_that_of_the_paper(name):
    case = CASES[name]
    cal, (preds, y) = data(name, 30), data(name, 12, 30)
    k = preds.shape[1]
    w, matrix = jnp.arange(1.0, k + 1), jax.random.uniform(KEY, (k, k))
    labels = np.asarray(labels_of(case.score, preds))
    expected = partial(
        references.conformal_training_loss,
        np.asarray(scores_of(case.score, *cal)),
        labels,
        y,
        "0.2",
        0.1,
    )
    options = {"size_weights": w, "classification_weights": matrix, "target_size": 1}
    loss = partial(loss_of, case.score, cal, (preds, y), 0.2, temperature=0.1, y=y)
    assert_allclose(loss(**options), expected(1, w, matrix), rtol=1e-5)
    missed = expected(0, np.ones(k), 2 * np.eye(k))
    assert_allclose(loss(classification_weights=2.0), missed, rtol=1e-5)


def test_gradients_through_the_exact_threshold():
    """Exact forward; backward one score, the nearest ones, or a kernel of them."""
    s, way = jax.random.normal(KEY, (2, 99))
    exact = jaxcp.conformal_quantile(s, 0.2)
    order = np.argsort(np.abs(s - exact))

    def slope(fn):
        value, tangent = jax.jvp(fn, (s,), (way,))
        assert value == exact  # to the last bit
        return tangent

    for m in (1, 7):
        nearest = slope(lambda v, m=m: jaxcp.conformal_quantile(v, 0.2, nearest=m))
        assert_allclose(nearest, np.mean(way[order[:m]]), rtol=1e-5)
    kernel = slope(
        lambda v: jaxcp.soft_conformal_quantile(v, 0.2, bandwidth=0.1, hard=True)
    )
    weights = 1 / np.cosh((np.asarray(s) - exact) / 0.2) ** 2
    assert_allclose(kernel, np.sum(weights * way) / np.sum(weights), rtol=1e-4)


def test_nearest_does_not_touch_the_value():
    cal, new = data("log-lac", 40), data("log-lac", 12, 40)
    losses = [loss_of(scores.LogLAC(), cal, new, 0.2, nearest=m) for m in (1, 5, 40)]
    assert (
        losses[0] == losses[1] == losses[2] == loss_of(scores.LogLAC(), cal, new, 0.2)
    )


@pytest.mark.parametrize("name", [*SIZED, *BALLS])
def test_gradients_are_finite(name):
    """And zero where the threshold is infinite, also in the options."""
    cal, new = data(name), data(name, 5, 20)
    score, key = CASES[name].score, KEY if name in BALLS else None

    def loss(preds, temperature, alpha):
        options = {"temperature": temperature, "key": key}
        if name not in BALLS:
            options |= {"y": new[1], "classification_weights": 0.1}
        return training.conformal_training_loss(
            score, preds[0], cal[1], preds[1], alpha, **options
        )

    k = jax.tree.leaves(new[0])[0].shape[1] if hasattr(score, "labels") else np.inf
    both = jax.jit(jax.value_and_grad(loss, (0, 1)))  # a traced level: one program
    for alpha in (0.2, 0.001):
        value, slopes = both((cal[0], new[0]), jnp.asarray(0.3, float), alpha)
        leaves = jax.tree.leaves(slopes)
        assert all(np.all(np.isfinite(v)) for v in leaves)
        assert value.dtype == leaves[0].dtype == jnp.asarray(0.0).dtype
        assert (value == k) == (alpha == 0.001)
    assert all(np.all(v == 0) for v in leaves)


def test_what_is_not_known_stays_so():
    """NaN is no small set: a model that diverged is not the best of all."""
    x = jnp.arange(20.0)

    @jax.jit
    def loss(mu):
        return loss_of(scores.Absolute(), (mu, x), (mu, x), 0.1)

    assert np.isnan(loss(x * jnp.nan)) and np.isfinite(loss(x))
    p = jnp.full((3, 4), jnp.nan)
    size = jax.jit(partial(training.soft_size, scores.LogLAC(), temperature=1.0))
    assert np.all(np.isnan(size(p, 0.5)))


def test_soft_thresholds_are_infinite_where_exact_ones_are():
    s = jnp.array([0.0, 1, 2, 3, 4, 5, 6, 7, jnp.nan])
    soft = partial(jaxcp.soft_conformal_quantile, bandwidth=0.01)
    assert_allclose(soft(s, 0.3), jaxcp.conformal_quantile(s, 0.3), atol=1e-2)
    assert soft(s, 0.1) == soft(jnp.minimum(s, jnp.inf), 0.1) == jnp.inf
    slopes = jax.grad(soft)(s.at[8].set(jnp.inf), 0.3)
    assert np.all(np.isfinite(slopes)) and np.isclose(slopes.sum(), 1)


def test_lengths_do_not_overflow():
    q = jnp.float16(100)
    mu = jnp.zeros(2, jnp.float16)

    def size(temperature):
        soft = training.soft_size(scores.Absolute(), mu, q, temperature=temperature)
        return jnp.sum(soft)

    value, slope = jax.value_and_grad(size)(1e-3)
    assert value.dtype == jnp.float16 and value == 400 and slope == 0
    for narrow in (1e-8, 1e-3):  # the first rounds to 0
        y = jnp.array([99.0, 100, 101], jnp.float16)
        inside = training.soft_membership(
            scores.Absolute(), jnp.zeros_like(y), y, q, temperature=narrow
        )
        assert_array_equal(inside, [1, 0.5, 0])
        soft = jaxcp.soft_conformal_quantile(y, 0.5, bandwidth=narrow)
        assert_allclose(soft, 100, rtol=1e-3)


def test_scores_whose_inverse_reads_each_threshold():
    """Components, and boxes that are open on one side and crossed on the other."""
    sides = scores.Custom(
        lambda mu, y: jnp.stack([mu - y, y - mu]),
        lambda mu, q: jaxcp.sets.Interval(mu - q[0], mu + q[1]),
    )
    soft = partial(training.soft_size, sides, jnp.zeros(2), temperature=1e-3)
    assert_allclose(soft(jnp.array([1.0, 2.0])), [3, 3], rtol=1e-5)
    with pytest.raises(ValueError, match=r"expected q of shape"):
        training.soft_size(scores.PCP(), jnp.zeros((2, 3, 1)), jnp.ones(3), **TINY)
    ends = jnp.array([jnp.inf, -jnp.inf])
    empty = training.soft_size(scores.Absolute(), jnp.zeros((2, 2)), ends, **TINY)
    assert_array_equal(empty, [0, 0])


def test_unsigned_logits():
    z = jnp.asarray(np.random.RandomState(0).randint(0, 5, (60, 5)), jnp.uint8)
    y = jnp.arange(60) % 5
    loss = partial(
        loss_of, scores.LogLAC(), (z[:30], y[:30]), (z[30:], None), 0.2, y=y[30:]
    )
    every = loss(classification_weights=jnp.eye(5))
    assert_allclose(every, loss(classification_weights=1.0), rtol=1e-5)


def test_labels_of_narrow_types_and_out_of_range():
    p, y = jnp.full((9, 200), 1 / 200), jnp.arange(9, dtype=jnp.int8)
    weights = jnp.arange(200.0)
    cal, new = (p, y), (p, y)
    whole = 200 * np.mean(np.arange(9))  # every label at alpha = 0.01
    loss = partial(loss_of, scores.LAC(), cal, new, 0.01, size_weights=weights)
    assert_allclose(loss(y=y), whole, rtol=1e-5)
    outside = jnp.array([-1, 200, *range(7)])  # weigh nothing
    traced = jax.jit(lambda y: loss(y=y))(outside)
    assert_allclose(traced, 200 * sum(range(7)) / 9, rtol=1e-5)


def test_slopes_of_a_penalty():
    """Also at 0, where training starts: the labels beyond k_reg, once each."""
    p = jnp.array([0.4, 0.3, 0.2, 0.1])

    def labels(penalty):
        return scores.RAPS(penalty, 2).labels(p)

    assert_array_equal(jax.jit(jax.jacfwd(labels))(0.0), [0, 0, 1, 2])
    assert_array_equal(jax.jit(labels)(-1.0), scores.APS().labels(p))
    free = jax.grad(lambda v: scores.RAPS(v, jnp.inf).labels(p).sum())(0.1)
    assert free == 0


def test_batches_and_calls_that_trace_nothing():
    cal, new = data("cqr", 60), data("cqr", 30, 60)
    three = jax.tree.map(lambda v: v.reshape(3, -1), (cal, new))
    loss = lambda cal, new: loss_of(scores.CQR(), cal, new, 0.2)  # noqa: E731
    together = jax.vmap(loss)(*three)
    row = partial(jax.tree.map, lambda v: v[1])
    alone = loss(*row(three))
    assert_allclose(together[1], alone, rtol=1e-6)
    later = jax.tree.map(lambda v: v[2], three)
    with jax.no_tracing():
        loss_of(scores.CQR(), *later, 0.1, temperature=1)
    (p, labels), weights = data("lac", 10), jnp.ones(5)
    for values in (0.1, 0.2):
        with jax.no_tracing() if values == 0.2 else contextlib.nullcontext():
            training.soft_size(scores.LAC(), p, values * weights, temperature=values)
            loss_of(
                scores.LAC(),
                (p, labels),
                (p, labels),
                values,
                y=labels,
                size_weights=values * weights,
                classification_weights=values * jnp.eye(5),
            )


def test_a_network_is_trained_through_its_threshold():
    """A step of nnx on the width of intervals lowers it, for three seeds at once."""
    x = jax.random.normal(KEY, (64, 2))
    y = x[:, 0] * (1 + x[:, 1] ** 2)

    def width(model, x, y):
        mu, log_sigma = model(x).T
        preds = mu, jnp.exp(log_sigma)
        cal, new = (jax.tree.map(lambda v, i=i: v[i::2], preds) for i in (0, 1))
        return training.conformal_training_loss(
            scores.Normalized(), cal, y[::2], new, 0.1, temperature=0.1
        )

    @nnx.vmap(in_axes=(0, None, None))
    def trained(key, x, y):
        model = nnx.Linear(2, 2, rngs=nnx.Rngs(key))
        optimizer = nnx.Optimizer(model, optax.adam(0.05), wrt=nnx.Param)
        before, slopes = nnx.value_and_grad(width)(model, x, y)
        optimizer.update(model, slopes)
        return before, width(model, x, y)

    before, after = jax.jit(trained)(jax.random.split(KEY, 3), x, y)
    assert np.all(after < before) and before.shape == (3,)


def raps_data(n):
    """Classes whose tail is noise: a penalty pays."""
    key_p, key_y = jax.random.split(KEY)
    noise = jax.random.normal(key_p, (n, 10))
    y = jax.random.randint(key_y, (n,), 0, 10)
    logits = noise + 2 * (jnp.arange(10)[None] == y[:, None])
    return jax.nn.softmax(logits), y


def test_a_penalty_is_learned_and_chosen():
    p, y = raps_data(300)
    how = {"optimizer": optax.adam(0.05), "num_steps": 40, "temperature": 0.05}

    def hold(s):
        return dataclasses.replace(s, penalty=jnp.maximum(s.penalty, 0), k_reg=1)

    trained = training.train_score(
        KEY, scores.RAPS(0.0, 1), p[:200], y[:200], 0.1, project=hold, **how
    )
    assert trained.penalty > 0.05 and trained.k_reg == 1
    grid = scores.RAPS(jnp.array([0.0, 0.1, 0.3]), 1)
    chosen = training.select_score(KEY, grid, p[:200], y[:200], 0.1)

    def size(score):
        score = jax.tree.map(jnp.float32, score)
        return metrics.mean_size(jaxcp.calibrate(score, p[:200], y[:200])(p, 0.1))

    assert size(trained) < size(scores.RAPS(0.0, 1))
    assert size(chosen) < size(scores.RAPS(0.0, 1))


def test_the_choice_is_that_of_a_loop():
    """Over the random splits: exact thresholds, sizes by the sets themselves."""
    mu, y = data("absolute", 31)
    score = scores.Custom(
        partial(lambda power, mu, y: jnp.abs(y - mu) ** power, jnp.array([0.5, 1, 2])),
        lambda mu, q: jaxcp.sets.Interval(mu - q, mu + q),
    )
    chosen = training.select_score(KEY, score, mu, y, 0.1, num_splits=3)
    means = np.zeros(3)
    for key in jax.random.split(KEY, 3):
        old = jax.random.permutation(key, 31)[:16]
        for i, power in enumerate([0.5, 1, 2]):
            residuals = np.abs(np.asarray(y - mu))[old] ** power
            means[i] += 2 * references.conformal_quantile(residuals, "0.1")
    assert jax.tree.leaves(chosen)[0] == [0.5, 1, 2][int(np.argmin(means))]


def test_trained_scores_cover_after_calibration():
    """Within 4 standard errors of k / (n + 1), over 4000 trainings in one program."""
    alpha, n = 0.2, 19

    def trial(key):
        key_x, key_train = jax.random.split(key)
        x, noise = jax.random.normal(key_x, (2, 60))
        y = x + jnp.exp(x) * noise
        old, new = (x[:40], y[:40]), (x[40:], y[40:])
        scale = lambda a, x, y: jnp.abs(y - x) * jnp.exp(-a * x)  # noqa: E731
        ends = lambda a, x, q: jaxcp.sets.Interval(  # noqa: E731
            x - q * jnp.exp(a * x), x + q * jnp.exp(a * x)
        )
        a = jnp.zeros(())
        start = scores.Custom(partial(scale, a), partial(ends, a))
        tie = lambda s: jax.tree.map(lambda _: jax.tree.leaves(s)[0], s)  # noqa: E731
        score = training.train_score(
            key_train,
            start,
            *old,
            alpha,
            optimizer=optax.sgd(0.02),
            num_steps=3,
            temperature=0.1,
            project=tie,
        )
        preds, targets = new
        cp = jaxcp.calibrate(score, preds[:n], targets[:n])
        return cp(preds[n:], alpha).contains(targets[n:])[0], jax.tree.leaves(score)[0]

    covered, slopes = jax.jit(jax.vmap(trial))(jax.random.split(KEY, 4000))
    assert np.ptp(slopes) > 0
    assert abs(covered.mean() - 16 / 20) < 4 * (0.8 * 0.2 / 4000) ** 0.5


def test_penalty_and_bandwidth_of_many_fits_have_gradients():
    """The width of jackknife+ intervals, in the logs of what a kernel ridge takes."""
    x, y = jax.random.normal(KEY, (12, 2)), jnp.arange(12.0) % 5

    @jax.jit
    def width(logs):
        ridge = learners.KernelRidge(*jnp.exp(logs))
        cp = jaxcp.jackknife_plus(KEY, ridge, scores.Absolute(), x, y)
        return metrics.mean_size(cp(x[:4], alpha=0.2))

    logs = jnp.array([0.5, 0.3])
    for slope, way in zip(jax.grad(width)(logs), jnp.eye(2), strict=True):
        change = central(lambda t, w=way: width(logs + t * w), 3e-2)
        assert_allclose(slope, change, rtol=0.02)


def test_parameters_of_a_custom_score_are_leaves():
    power = scores.Custom(partial(lambda a, mu, y: jnp.abs(y - mu) ** a, 2.0))
    assert jax.tree.leaves(power) == [2.0]
    slope = jax.grad(lambda s: s(jnp.array(0.0), jnp.array(3.0)))(power)
    assert_allclose(jax.tree.leaves(slope)[0], 9 * np.log(3), rtol=1e-5)
    assert_array_equal(
        jax.vmap(lambda s: s(0.0, 3.0))(
            jax.tree.map(lambda _: jnp.array([1.0, 2.0]), power)
        ),
        [3, 9],
    )


def test_a_loss_is_an_object_with_its_options():
    """Called, in jit, differentiated, and taken whole by what trains a score."""
    p, y = raps_data(100)
    options = {"temperature": 0.05, "target_size": 0.5, "nearest": 3}
    start = scores.RAPS(0.1, 1.0)
    loss = training.SizeLoss(start, 0.1, **options)
    batch = p[:50], y[:50], p[50:], y[50:]
    expected = loss_of(start, batch[:2], batch[2:], 0.1, **options)
    assert_allclose(jax.jit(lambda loss: loss(*batch))(loss), expected, rtol=1e-6)
    slopes = jax.grad(lambda loss: loss(*batch))(loss)
    by_parts = jax.grad(lambda s: loss_of(s, batch[:2], batch[2:], 0.1, **options))
    assert_allclose(slopes.score.penalty, by_parts(start).penalty, rtol=1e-5)
    assert_allclose(slopes.target_size, -1, rtol=1e-5)
    how = {"optimizer": optax.sgd(0.01), "num_steps": 3}
    whole = training.train_score(KEY, loss, p, y, **how)
    parts = training.train_score(KEY, start, p, y, 0.1, **options, **how)
    assert whole.penalty == parts.penalty != 0.1
    with pytest.raises(ValueError, match=r"alone, got \['alpha', 'nearest'\] beside"):
        training.train_score(KEY, loss, p, y, 0.1, nearest=1, **how)
    with pytest.raises(ValueError, match="alpha as a number, got NoneType"):
        training.train_score(KEY, start, p, y, **options, **how)
