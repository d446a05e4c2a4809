"""Rules of one's own, written outside of the package: they work where ours do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import metrics, plotting, scores

KEY = jax.random.key(0)

# A rule: the mean of the thresholds of two calibrations.


@jaxcp.pytree
class MeanOfTwo(jaxcp.Rule):
    """The mean of the thresholds of two calibrations of one score."""

    first: jaxcp.Calibration
    second: jaxcp.Calibration

    @property
    def score(self):
        return self.first.score

    def rank(self, alpha):
        return self.first.rank(alpha), self.second.rank(alpha)

    def threshold(self, rank):
        return (self.first.threshold(rank[0]) + self.second.threshold(rank[1])) / 2


@jaxcp.pytree
class Local(jaxcp.Rule):
    """Weights that fall with the distance from the test input: a threshold for each."""

    score: jaxcp.typing.Score
    scores: jax.Array
    x: jax.Array

    def threshold(self, rank, x):
        weights = jnp.exp(-((self.x - x) ** 2))
        return jaxcp.weighted_conformal_quantile(self.scores, weights, rank)


def halves(score, n=100, d=()):
    y = jax.random.normal(KEY, (2, n, *d))
    return [jaxcp.calibrate(score, jnp.zeros((n, *d)), v) for v in y]


def test_a_rule_gives_sets_and_p_values():
    rule = MeanOfTwo(*halves(scores.Absolute()))
    expected = (rule.first.quantile(0.1) + rule.second.quantile(0.1)) / 2
    preds, y = jnp.arange(5.0), jnp.arange(5.0) + jnp.linspace(0, 3, 5)
    sets = rule(preds, 0.1)
    assert rule.quantile(0.1) == expected
    assert_allclose(sets.upper, preds + expected, rtol=1e-6)
    assert_allclose(jax.jit(lambda r, p: r(p, 0.1))(rule, preds).upper, sets.upper)
    found = jax.vmap(lambda a: rule(preds, a).upper)(jnp.array([0.1, 0.3]))
    assert_allclose(found[0], sets.upper)
    assert metrics.coverage(sets, y) == metrics.summary(sets, y, 0.1)["coverage"] == 0.6
    assert plotting.plot_intervals(preds, sets, y) is not None
    grads = jax.grad(lambda r: r(preds, 0.1).upper.sum(), allow_int=True)(rule)
    assert_allclose(grads.first.scores.sum() + grads.second.scores.sum(), 5)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.25, 0.5, 0.9])
def test_p_values_of_a_rule_say_which_sets_hold_the_target(alpha):
    rule = MeanOfTwo(*halves(scores.Absolute(), 39))
    y = jnp.linspace(0, 4, 200)
    p = rule.p_values(jnp.zeros(200), y)
    inside = jax.vmap(lambda s, v: s.contains(v))(rule(jnp.zeros(200), alpha), y)
    assert_array_equal(inside, np.asarray(p) > np.float32(alpha) * (1 + 1e-6))
    assert 0 < inside.sum() < 200


def test_p_values_of_a_rule_are_those_of_its_calibration():
    """The first level whose set lacks the target is its conformal p-value."""
    first, _ = halves(scores.Absolute(), 99)
    y = jnp.linspace(0, 4, 50)
    p = MeanOfTwo(first, first).p_values(jnp.zeros(50), y)
    assert_allclose(p, first.p_values(jnp.zeros(50), y), rtol=1e-6)


def test_a_rule_with_context_has_a_threshold_for_each_point():
    x, new = jnp.linspace(-2, 2, 200), jnp.array([-2.0, 0.0, 2.0])
    y = (0.1 + abs(x)) * jax.random.normal(KEY, (200,))
    rule = Local(scores.Absolute(), abs(y), x)
    q = rule(jnp.zeros(3), 0.1, x=new).upper
    each = [rule.quantile(0.1, x=v) for v in new]
    assert_allclose(q, each, rtol=1e-6)
    assert q[1] < q[0]
    p = rule.p_values(jnp.zeros(3), q * jnp.array([1.0, 1.0, 1.0001]), x=new)
    assert_array_equal(p > 0.1, [True, True, False])
    with pytest.raises(ValueError, match="expected x with 3 rows like preds, got 2"):
        rule(jnp.zeros(3), 0.1, x=new[:2])


def test_a_rule_says_what_it_lacks():
    class Plain(MeanOfTwo):
        """A class that jax does not know."""

    first, second = halves(scores.Absolute(), 9)
    plain = object.__new__(Plain)
    object.__setattr__(plain, "first", first)
    object.__setattr__(plain, "second", second)
    for call in [
        lambda: plain(jnp.zeros(2), 0.1),
        lambda: plain.p_values(jnp.zeros(2), jnp.zeros(2)),
        lambda: plain.quantile(0.1),
    ]:
        with pytest.raises(ValueError, match="decorate its class with jaxcp"):
            call()
    with pytest.raises(ValueError, match=r"alpha of shape \(\), got \(2,\)"):
        MeanOfTwo(first, second)(jnp.zeros(2), [0.1, 0.2])

    @jaxcp.pytree
    class Empty(jaxcp.Rule):
        """A rule without a threshold."""

        score: jaxcp.typing.Score

    with pytest.raises(TypeError, match="threshold"):
        Empty(scores.Absolute())

    @jaxcp.pytree
    class NoScore(jaxcp.Rule):
        """A rule without a score."""

        def threshold(self, rank):
            return rank

    for call in [
        lambda: NoScore()(jnp.zeros(2), 0.1),
        lambda: NoScore().p_values(jnp.zeros(2), jnp.zeros(2)),
        lambda: NoScore().quantile(0.1),
    ]:
        with pytest.raises(ValueError, match="a rule with a score, got NoScore"):
            call()
    rule, u = MeanOfTwo(first, second), jnp.zeros(2)
    for call in [
        lambda: rule.p_values(jnp.zeros(2), jnp.ones(2), u=u),
        lambda: rule(jnp.zeros(2), 0.1, u=u),
        lambda: rule.quantile(0.1, u=u[0]),
    ]:
        with pytest.raises(ValueError, match="u=None for MeanOfTwo, got uniforms"):
            call()


@jaxcp.pytree
class Fixed(jaxcp.Rule):
    """The same threshold at every level."""

    score: jaxcp.typing.Score
    q: jax.Array

    def threshold(self, rank):
        return self.q


def test_a_rule_checks_its_score_and_its_threshold():
    zeros = jnp.zeros(2)
    for call in [
        lambda: Fixed(scores.Absolute, 1.0)(zeros, 0.1),
        lambda: Fixed(scores.Absolute, 1.0).p_values(zeros, zeros),
    ]:
        with pytest.raises(ValueError, match=r"write Absolute\(...\)"):
            call()
    with pytest.raises(ValueError, match="expected a score with an inverse"):
        Fixed(jnp.abs, 1.0)(zeros, 0.1)
    with pytest.raises(ValueError, match=r"of shape \(\) like the score, got \(3,\)"):
        Fixed(scores.Absolute(), jnp.ones(3)).p_values(zeros, zeros)
