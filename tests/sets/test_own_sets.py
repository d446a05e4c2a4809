"""Classes of users, written outside of the package: they work wherever they can."""

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from kinds import Around, Between
from numpy.testing import assert_allclose, assert_array_equal
from own import OnRing, Ring

import jaxcp
from jaxcp import learners, metrics, plotting, scores, training

KEY = jax.random.key(0)


def rings(n=200):
    """Targets at about distance 2 from predictions in the plane."""
    keys = jax.random.split(KEY, 3)
    preds = jax.random.normal(keys[0], (n, 2))
    angle = jax.random.uniform(keys[1], (n,), maxval=2 * jnp.pi)
    radius = 2 + 0.2 * jax.random.normal(keys[2], (n,))
    return preds, preds + radius[:, None] * jnp.stack(
        [jnp.cos(angle), jnp.sin(angle)], axis=1
    )


@pytest.fixture(scope="module")
def ring_sets():
    preds, y = rings()
    cp = jaxcp.calibrate(OnRing(2.0), preds[:100], y[:100])
    return cp, cp(preds[100:], 0.2), y[100:]


def test_own_sets_have_metrics(ring_sets):
    cp, sets, y = ring_sets
    area = 8 * np.pi * cp.quantile(0.2)
    assert_allclose(metrics.mean_size(sets), area, rtol=1e-5)
    assert metrics.empty_rate(sets) == 0
    assert metrics.empty_rate(Ring(jnp.zeros((2, 2)), jnp.ones(2), jnp.zeros(2))) == 1
    found = metrics.summary(sets, y, 0.2, jnp.arange(100) % 2, num_bins=2)
    assert found["coverage"] == metrics.coverage(sets, y)
    assert {"median_size", "hsic", "group_coverage[1]"} <= set(found)
    assert "winkler_score" not in found and "singleton_rate" not in found
    strata = metrics.size_stratified_coverage(sets, y, num_bins=2)
    assert_allclose(jnp.mean(strata), found["coverage"], rtol=1e-5)
    volumes = metrics.mean_volume(KEY, sets)
    assert_allclose(volumes.mean, area, rtol=1e-5)
    one = jax.tree.map(lambda v: v[0], sets)
    assert_allclose(jaxcp.volume(KEY, one), [np.log(area), 0], rtol=1e-5)
    with pytest.raises(ValueError, match="expected one Ring, got several"):
        jaxcp.volume(KEY, sets)


def test_own_sets_vote_and_are_drawn(ring_sets):
    _, sets, _ = ring_sets
    preds, y = rings(40)
    cp = jaxcp.jackknife_plus(KEY, learners.Ridge(1.0), OnRing(2.0), preds, y)
    votes = cp(preds[:5], 0.2)
    assert votes.contains(y[:5]).shape == (5,)
    assert cp.minmax(preds[:5], 0.2).contains(y[:5]).shape == (5,)
    matplotlib.use("Agg")
    one = jax.tree.map(lambda v: v[0], sets)
    plane = jaxcp.sets.Box(one.center - 3, one.center + 3)
    plotting.plot_region(one, plane, num_points=20)
    with pytest.raises(AttributeError, match="bounds"):
        plotting.plot_region(one)


@jaxcp.pytree
class TwoIntervals:
    """y within q of mu or of -mu: two intervals, or one where they meet."""

    mu: jax.Array
    q: jax.Array

    def contains(self, y):
        return jnp.abs(jnp.abs(y) - self.mu) <= self.q

    def soft_size(self, temperature):
        return 4 * temperature * jax.nn.softplus(self.q / temperature)

    def estimate_log_size(self, key, num_samples, *, sobol):
        y = (self.mu + self.q) * jax.random.uniform(key, (num_samples,), minval=-1)
        share = jnp.mean(jax.vmap(self.contains)(y))
        error = jnp.sqrt((1 - share) / share / num_samples)
        return jnp.log(2 * (self.mu + self.q) * share), error


@jaxcp.pytree
class EitherSign:
    def __call__(self, pred, y):
        return jnp.abs(jnp.abs(y) - pred)

    def invert(self, pred, q):
        return TwoIntervals(pred, q)


def test_own_sets_that_know_little_say_what_is_missing():
    mu = jnp.full(20, 3.0)
    cp = jaxcp.calibrate(EitherSign(), mu, jnp.linspace(-4.0, 4.0, 20))
    sets, y = cp(mu, 0.5), jnp.full((20, 1), -3.0)
    assert metrics.coverage(sets, y[:, 0]) == 1
    assert list(metrics.summary(sets, y[:, 0], 0.5)) == ["coverage"]
    for metric in (metrics.mean_size, metrics.empty_rate):
        with pytest.raises(ValueError, match=r"sets with size\(\), got TwoIntervals"):
            metric(sets)
    with pytest.raises(ValueError, match=r"log_size\(\) or estimate_log_size"):
        jaxcp.volume(KEY, jaxcp.sets.LabelSet(jnp.ones(2, bool)))
    with pytest.raises(ValueError, match="kind Interval, got TwoIntervals"):
        metrics.winkler_score(sets, y[:, 0], 0.5)
    with pytest.raises(ValueError, match="kind LabelSet, got TwoIntervals"):
        metrics.singleton_rate(sets)


def test_own_estimates_and_soft_sizes():
    one = TwoIntervals(jnp.array(3.0), jnp.array(0.5))
    log_volume, error = jaxcp.volume(KEY, one, 4000)
    assert error > 0 and abs(log_volume - np.log(2.0)) < 4 * error
    size = lambda q: training.soft_size(  # noqa: E731
        EitherSign(), jnp.full(2, 3.0), q, temperature=0.01
    )
    assert_allclose(size(0.5), [2.0, 2.0], rtol=1e-5)
    assert_allclose(jax.grad(lambda q: size(q).sum())(0.5), 8.0, rtol=1e-5)


def test_own_intervals_are_intervals():
    """Ends and the shape of a target are enough, whatever the fields are called."""

    around = scores.Custom(lambda p, y: jnp.abs(y - p), Around)
    x = jax.random.normal(KEY, (120, 2))
    y = x[:, 0] + jax.random.normal(jax.random.key(1), (120,))
    for folds in (120, 2):  # votes row by row, and by the sorted scores of folds
        ours, theirs = (
            jaxcp.cv_plus(KEY, learners.Ridge(1.0), score, x, y, num_folds=folds)(
                x[:5], 0.2
            )
            for score in (scores.Absolute(), around)
        )
        assert_allclose(ours.ends(), theirs.ends(), atol=1e-5)
    sets = Around(jnp.zeros(4), jnp.ones(4))
    interval = jaxcp.sets.Interval(-jnp.ones(4), jnp.ones(4))
    for metric in (metrics.winkler_score, metrics.interval_score):
        assert_allclose(metric(sets, y[:4], 0.2), metric(interval, y[:4], 0.2))


def test_own_sets_are_data():
    """As arrays and frames; otherwise a row of `kinds.batches`."""
    radii = jnp.array([[0.0, 1.0], [1.0, 2.0], [0.5, 3.0]])
    sets = Between(jnp.arange(6.0).reshape(3, 2), radii)
    numbers = [[0, 1, 0, 1], [2, 3, 1, 2], [4, 5, 0.5, 3]]
    assert_array_equal(sets.to_numpy(), numbers)
    assert_array_equal(np.asarray(sets[1]), numbers[1])
    frame = sets.to_pandas(index=list("abc"))
    assert list(frame) == ["center_0", "center_1", "radii_0", "radii_1"]
    assert_array_equal(frame, numbers)
    assert list(sets.to_pandas(columns=list("xyab"))) == list("xyab")
    twice = jax.tree.map(lambda v: jnp.stack([v, v]), sets)
    with pytest.raises(ValueError, match=r"Between of shape \(2,\), got \(2, 3\)"):
        twice.to_pandas()
    with pytest.raises(TypeError, match="got sets of kind Between"):
        np.exp(sets)


def test_own_sets_of_a_predictor_are_data():
    @jaxcp.pytree
    class Known(jaxcp.sets.Batch):
        mu: jax.Array
        q: jax.Array

        def contains(self, y):
            return jnp.abs(y - self.mu) <= self.q

    cp = jaxcp.calibrate(
        scores.Custom(lambda p, y: jnp.abs(y - p), Known), jnp.zeros(9), jnp.arange(9.0)
    )
    sets = cp(jnp.arange(3.0), 0.2)
    assert len(sets) == 3 and list(sets.to_pandas()) == ["mu", "q"]
    assert metrics.coverage(sets[1:], jnp.array([1.0, 99.0])) == 0.5
    assert_array_equal(jax.vmap(lambda s: s.q)(sets), [one.q for one in sets])


def test_a_set_of_a_plain_class_is_told_to_be_a_pytree():
    class Plain:
        def contains(self, y):
            return y > 0

    with pytest.raises(ValueError, match="decorate its class with jaxcp"):
        metrics.coverage(Plain(), jnp.zeros(2))
