"""Rules of one's own, written outside of the package: they work where ours do."""

import html

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
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
    plt.close(plotting.plot_intervals(preds, sets, y).figure)
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

    with pytest.raises(ValueError, match=r"Empty with threshold.*got neither"):
        Empty(scores.Absolute())(jnp.zeros(2), 0.1)

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


# A rule that weighs rows says how, and has all the rest.


@jaxcp.pytree
class Near(jaxcp.Rule):
    """Weights that fall with the distance from the test input, known to a factor."""

    score: jaxcp.typing.Score
    held: jaxcp.Held
    x: jax.Array
    factor: float = jaxcp.static(default=1.0)

    @property
    def context(self):
        return {"x": jax.ShapeDtypeStruct(self.x.shape[1:], self.x.dtype)}

    def weights_at(self, x, scale=None):
        scale = 1.0 if scale is None else scale
        weights = jnp.exp(-jnp.sum((self.x - x[None]) ** 2, axis=-1) / scale)
        if self.factor == 1.0:
            return weights, jnp.ones(())
        return (weights / self.factor, weights * self.factor), jnp.ones(())


def near(n=60, factor=1.0, mask=None):
    rng = np.random.default_rng(n)
    x, s = rng.normal(size=(n, 2)).astype("f"), rng.integers(0, 9, n).astype("f")
    held = jaxcp.Held(jnp.asarray(s), mask=mask)
    return Near(scores.Absolute(), held, jnp.asarray(x), factor)


@pytest.mark.parametrize("alpha", [0.07, 0.3])
def test_weights_of_rows_are_all_that_a_rule_has_to_say(alpha):
    """Thresholds, p-values, smoothed sets: those of the functions for weights."""
    mask = np.arange(60) % 5 > 0
    rule, x = near(mask=jnp.asarray(mask)), np.float32([[0, 0], [1, 1], [9, 9]])
    weights = [np.exp(-np.sum((np.asarray(rule.x) - v) ** 2, axis=1)) for v in x]
    kept, s = [w[mask] for w in weights], np.asarray(rule.held.values)[mask]
    q = rule(jnp.zeros(3), alpha, x=x).upper
    expected = [
        jaxcp.weighted_conformal_quantile(s, w, alpha, test_weight=1.0) for w in kept
    ]
    assert_array_equal(q, expected)
    assert_array_equal([rule.quantile(alpha, x=v) for v in x], expected)
    y = np.float32([8, 3, 0])
    p = rule.p_values(jnp.zeros(3), y, x=x)
    counts = [
        (np.sum(w[s >= v]) + 1) / (np.sum(w) + 1) for w, v in zip(kept, y, strict=True)
    ]
    assert_allclose(p, counts, rtol=1e-6)
    u = np.float32([0.2, 0.5, 0.9])
    smooth = rule.p_values(jnp.zeros(3), y, u=u, x=x)
    inside = rule(jnp.zeros(3), alpha, u=u, x=x).contains(y)
    assert_array_equal(inside, smooth > np.float32(alpha))
    sizes = [np.sum(w) ** 2 / max(np.sum(w**2), 1e-30) for w in kept]
    assert_allclose([rule.effective_size(x=v) for v in x], sizes, rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.1, 0.4])
def test_bounds_of_weights_give_the_worst_of_their_sets(alpha):
    """The largest threshold and p-value over all corners of the box."""
    n, x = 7, jnp.zeros((1, 2))
    rule = near(n, factor=2.0)
    low, high = (np.asarray(w) for w in rule.weights_at(x[0])[0])
    corners = [np.where(k >> np.arange(n) & 1, high, low) for k in range(2**n)]
    s = rule.held.values
    q = [
        jaxcp.weighted_conformal_quantile(s, w, alpha, test_weight=1.0) for w in corners
    ]
    assert rule(jnp.zeros(1), alpha, x=x).upper[0] == np.max(q)
    for y in [0.0, 4.0, 8.0]:
        p = [jaxcp.conformal_p_value(s, y, weights=w, test_weight=1.0) for w in corners]
        found = rule.p_values(jnp.zeros(1), jnp.array([y]), x=x)
        assert_allclose(found, [np.max(p)], rtol=1e-6)
    with pytest.raises(
        ValueError, match="u=None, for weights that are known by bounds"
    ):
        rule(jnp.zeros(1), alpha, x=x, u=jnp.zeros(1))


def test_weights_of_labels_and_values_of_points():
    """A weight of the test point for each label, and scores that depend on it."""

    @jaxcp.pytree
    class Shifted(jaxcp.Rule):
        """Weights of labels, on scores that the test point moves."""

        score: jaxcp.typing.Score
        held: jaxcp.Held
        labels: jax.Array
        ratios: jax.Array

        def weights_at(self, move):
            return self.ratios[self.labels], self.ratios

        def values_at(self, move):
            return self.held.values + move

    rng = np.random.default_rng(0)
    s, labels = rng.random(40).astype("f"), rng.integers(0, 3, 40)
    ratios, move = np.float32([0.5, 1.0, 2.0]), np.float32([0.0, -0.2])
    held = jaxcp.Held(jnp.asarray(s))
    rule = Shifted(scores.LAC(), held, jnp.asarray(labels), jnp.asarray(ratios))
    p = jnp.asarray(rng.dirichlet(np.ones(3), 2).astype("f"))
    sets = rule(p, 0.2, move=move)
    for i in range(2):
        own = s + move[i], ratios[labels], 0.2
        q = [jaxcp.weighted_conformal_quantile(*own, test_weight=r) for r in ratios]
        q = np.array(q)
        assert_array_equal(sets.mask[i], 1 - np.asarray(p[i]) <= q)
        assert_array_equal(rule.quantile(0.2, move=move[i]), q)
    held = rule.p_values(p, jnp.array([2, 1]), move=move)
    inside = np.asarray(sets.mask)[[0, 1], [2, 1]]
    assert_array_equal(np.asarray(held) > 0.2, inside)


def test_context_is_declared_and_refused_in_words():
    rule, preds, x = near(), jnp.zeros(3), np.zeros((3, 2), "f")
    few = "expected x with 3 rows like preds, got 2"
    wrong = {
        "width": ({"x": np.zeros((3, 5), "f")}, r"x with rows of shape \(2,\)"),
        "NaN": ({"x": x * np.nan}, "x without NaN, got nan"),
        "missing": ({}, "x of each test point, which Near reads"),
        "none": ({"x": None}, "x of each test point, which Near reads"),
        "unknown": ({"x": x, "groups": x[:, 0]}, "Near with x, scale of test points"),
        "rows": ({"x": x[:2]}, few),
    }
    for context, message in wrong.values():
        with pytest.raises(ValueError, match=message):
            rule(preds, 0.1, **context)
        with pytest.raises(ValueError, match=message):
            rule.p_values(preds, preds, **context)
    with pytest.raises(ValueError, match=r"x with rows of shape \(2,\).*got \(3, 2\)"):
        rule.quantile(0.1, x=x)
    scaled = rule(preds, 0.1, x=x, scale=np.ones(3, "f"))
    assert_array_equal(scaled.upper, rule(preds, 0.1, x=x).upper)


def test_rules_say_how_many_points_go_at_a_time_and_that_sets_are_not_nested():
    @jaxcp.pytree
    class Few(Near):
        """Two test points at a time, and no p-values."""

        at_a_time = 2
        nested = False

        def weights_at(self, x, scale=None):
            return super().weights_at(x, scale)

    few = Few(**vars(near()))
    x = np.random.default_rng(1).normal(size=(5, 2)).astype("f")
    whole = near()(jnp.zeros(5), 0.1, x=x).upper
    assert_array_equal(few(jnp.zeros(5), 0.1, x=x).upper, whole)
    jaxpr = str(jax.make_jaxpr(lambda x: few(jnp.zeros(5), 0.1, x=x).upper)(x))
    assert "length=3" in jaxpr
    with pytest.raises(
        ValueError, match="nested = False: it has sets, and no p-values"
    ):
        few.p_values(jnp.zeros(5), jnp.zeros(5), x=x)


def test_a_rule_that_weighs_rows_goes_through_transforms():
    rule, x = near(), jnp.asarray(np.random.default_rng(1).normal(size=(4, 2)), "f")
    sets = rule(jnp.zeros(4), 0.2, x=x).upper
    assert_array_equal(
        jax.jit(lambda r, x: r(jnp.zeros(4), 0.2, x=x).upper)(rule, x), sets
    )
    levels = jax.vmap(lambda a: rule(jnp.zeros(4), a, x=x).upper)(jnp.array([0.2, 0.4]))
    assert_array_equal(levels[0], sets)
    grads = jax.grad(lambda r: r(jnp.zeros(4), 0.2, x=x).upper.sum())(rule)
    assert_allclose(grads.held.values.sum(), 4)


def test_one_level_is_of_rules_with_one_threshold():
    preds, rule = jnp.arange(5.0), MeanOfTwo(*halves(scores.Absolute()))
    predictor = rule.at(0.1)
    assert_array_equal(predictor(preds).upper, rule(preds, 0.1).upper)
    for wrong, said in [
        (lambda: near().at(0.1), "one threshold for all test points, got Near, which"),
        (lambda: rule.first.at([0.1, 0.2]), "alpha of shape \\(\\), got \\(2,\\)"),
        (lambda: rule.first.at(1.5), "alpha in \\(0, 1\\)"),
        (lambda: predictor(preds, groups=preds), "only of a calibration with groups"),
        (lambda: rule.first.at(0.1)(jnp.zeros((5, 2))), "rows of shape"),
        (lambda: predictor(preds * jnp.nan), "preds without NaN"),
    ]:
        with pytest.raises(ValueError, match=said):
            wrong()


def test_a_promise_is_said_with_delta_weights_and_groups():
    data = scores.Absolute(), np.zeros(60), np.arange(60.0)
    cp = jaxcp.calibrate(*data, weights=np.linspace(0.1, 1, 60))
    assert cp.at(0.1).q == cp.quantile(0.1)
    assert "less the weighted distance" in cp.at(0.1).promise
    groups = jaxcp.calibrate_groups(*data, np.arange(60) % 2, num_groups=2)
    expected = "P(Y in set) >= 1 - 0.1, with probability 1 - 0.2 over calibration sets"
    assert groups.at(0.1, delta=0.2).promise == f"{expected}, in each of 2 groups"
    held = jaxcp.risk.calibrate_risk(jaxcp.risk.miscoverage, *data)
    expected = "E loss <= 0.1, on average over calibration sets"
    assert held.at(0.1).promise == expected


def test_a_rule_without_words_is_not_reported_or_exported(tmp_path):
    """With words it is, and so is the name of a place that is no level."""
    data = halves(scores.Absolute())
    rule, preds = MeanOfTwo(*data), np.zeros(5)
    assert rule.at(0.1).promise.startswith("none")
    assert not repr(rule).endswith("neither')")
    for refused in (
        lambda: rule.at(0.1).export(tmp_path),
        lambda: jaxcp.report(rule, preds, preds, 0.1),
    ):
        with pytest.raises(ValueError, match='write them in its class, as promise = "'):
            refused()

    @jaxcp.pytree
    class Said(MeanOfTwo):
        promise = "P(Y in {set}) >= 1 - {alpha:>9999999999}, 1 - {alpha}"
        assumption = "both halves are exchangeable with new rows"

        weights = clusters = "fields of its own, which are not weights of rows"

    said = Said(*data)
    expected = (
        "P(Y in {set}) >= 1 - {alpha:>9999999999}, 1 - 0.1, on average over calib"
    )
    predictor = said.at(0.1)
    assert predictor.promise == f"{expected}ration sets"
    assert predictor.assumption == Said.assumption and Said.assumption in repr(said)
    page = html.unescape(jaxcp.report(said, preds, preds, 0.1))
    assert predictor.promise in page and Said.assumption in page


def test_rows_off_the_mask_have_no_weight():
    """Whatever weights they come with: held rows are those that count alone."""
    s, w, mask = np.arange(9.0), np.arange(1.0, 10) / 9, np.arange(9) % 3 > 0
    held = jaxcp.Held(*(jnp.asarray(v) for v in (s, w, mask)))
    alone = jaxcp.Held(jnp.asarray(s[mask]), jnp.asarray(w[mask]))
    assert held.threshold(held.rank(0.4)) == alone.threshold(alone.rank(0.4))
    new = jnp.array([2.5, 5.0])
    assert_allclose(held.p_values(new), alone.p_values(new), rtol=1e-6)
    assert_allclose(held.effective_size(), alone.effective_size(), rtol=1e-6)
    assert held.counts() == alone.counts() == 6
