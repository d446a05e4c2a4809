"""Groups in full conformal prediction: all rows are fitted, those of one are compared.

And the coverage of the jackknife+ beside it; its other tests: `test_cross_groups`.
"""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import same
from jaxcp import certificates, learners, metrics, scores

KEY, ABSOLUTE, SIGNED = jax.random.key(0), scores.Absolute(), scores.Signed()
RIDGE, LAC = learners.Ridge(1.0), scores.LAC()
N, M = 24, 5
GROUPS = np.arange(N) % 3 * (np.arange(N) % 5 > 0)  # 11, 7 and 6 rows
NEW = np.array([0, 1, 2, 0, 1])


def data(seed=0):
    rng = np.random.default_rng(seed)
    x, x_new, noise = (rng.normal(size=s) for s in ((N, 2), (M, 2), N))
    return x, x[:, 0] + noise, x_new


def full(x, y, score=ABSOLUTE, learner=RIDGE, groups=GROUPS, **options):
    options |= {} if groups is None else {"groups": groups, "num_groups": 3}
    return jaxcp.full_conformal(KEY, learner, score, x, y, check=False, **options)


def compared(x, y, x_new, target, power, signs, counts):
    """Scores of all n + 1 rows under one fit, by numpy."""
    design = np.c_[np.ones(N + 1), np.vstack([x, x_new])] * counts[:, None]
    gram = design.T @ design + np.diag([0, 1, 1])
    hat = design @ np.linalg.solve(gram, design.T)
    y = np.append(y, target) * counts
    left = (y - hat @ y) / (1 - np.diag(hat)) ** power
    return left if signs else abs(left)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("residuals", ["studentized", "ordinary", "deleted"])
def test_refits_by_hand(residuals, masked):
    power = {"ordinary": 0, "studentized": 0.5, "deleted": 1}[residuals]
    mask = np.arange(N) % 7 != 3 if masked else np.ones(N, bool)
    with jax.enable_x64(True):
        x, y, x_new = data()
        cp = full(x, y, residuals=residuals, mask=mask)
        for j, group in enumerate(NEW):
            own = mask & (group == GROUPS)
            counts = np.append(mask, True)
            targets = x_new[j, 0] + np.linspace(-4, 4, 41)
            at = np.repeat(x_new[j : j + 1], 41, axis=0)
            p = cp.p_values(at, targets, groups=np.full(41, group))
            by_hand = []
            for target in targets:
                s = compared(x, y, x_new[j], target, power, 0, counts)
                by_hand.append((1 + np.sum(s[:-1][own] >= s[-1])) / (1 + own.sum()))
            assert_allclose(p, by_hand)
            sets = cp(x_new[j : j + 1], 0.3, groups=[group], union=True)
            hull = cp(x_new[j : j + 1], 0.3, groups=[group])
            inside = np.array([bool(sets.contains(np.array([t]))[0]) for t in targets])
            assert_array_equal(inside, np.array(by_hand) > 0.3)
            assert all(t in hull[0] for t in targets[inside])


def test_signs_outputs_weights_and_distributions_by_hand():
    with jax.enable_x64(True):
        x, y, x_new = data()
        cp, counts = full(x, y, SIGNED), np.ones(N + 1)
        weights = np.random.default_rng(1).integers(1, 4, N)
        of = full(x, y, calibration_weights=weights)
        given = {"groups": NEW, "test_weights": np.full(M, 2.0)}
        targets = x_new[:, 0] + np.linspace(-2, 2, M)
        p = cp.p_values(x_new, targets, groups=NEW)
        heavy = of.p_values(x_new, targets, **given)
        q = cp.predictive(x_new, groups=NEW).cdf(targets, u=0.5)
        for j, group in enumerate(NEW):
            own = group == GROUPS
            s = compared(x, y, x_new[j], targets[j], 0.5, 1, counts)
            n, above = own.sum(), np.sum(s[:-1][own] >= s[-1])
            sides = (1 + above) / (n + 1), (1 + n - above) / (n + 1)
            assert_allclose(p[j], min(1, 2 * min(sides)))
            assert_allclose(q[j], (n - above + 0.5) / (n + 1))
            s = compared(x, y, x_new[j], targets[j], 0.5, 0, counts)
            more = np.sum(np.where(own, weights, 0)[s[:-1] >= s[-1]])
            assert_allclose(heavy[j], (2 + more) / (2 + weights[own].sum()))
        assert_array_equal(of(x_new, 0.3, **given).contains(targets), heavy > 0.3)
        for score in (ABSOLUTE, SIGNED):  # each output has half of alpha
            boxes = full(x, np.stack([y, -y], axis=1), score)(x_new, 0.8, groups=NEW)
            one = full(x, y, score)(x_new, 0.4, groups=NEW)
            assert_allclose(boxes.lower, np.stack([one.lower, -one.upper], 1))
            assert_allclose(boxes.upper, np.stack([one.upper, -one.lower], 1))


def _fit(key, x, y, weights):
    own = (y[None] == jnp.arange(3)[:, None]) * weights[None]
    return (own @ x + 0.1) / (jnp.sum(own, axis=1, keepdims=True) + 0.1)


def _predict(centers, x):
    return jax.nn.softmax(-jnp.sum((x[:, None] - centers[None]) ** 2, axis=2))


CENTERS = learners.FunctionLearner(_fit, _predict)
CHANCE = learners.FunctionLearner(
    lambda *_: jnp.zeros(()), lambda _, x: jax.nn.softmax(jnp.pad(x, ((0, 0), (0, 1))))
)


def labels(seed=0):
    x, y, x_new = (v.astype("f") for v in data(seed))
    return x, np.digitize(y, [-0.5, 0.5]), x_new


def test_labels_are_refitted_by_hand():
    x, y, x_new = labels()
    weights = np.arange(N) % 3 + 1.0
    plain = full(x, y, LAC, CENTERS)
    heavy = full(x, y, LAC, CENTERS, calibration_weights=weights)
    by_class = full(x, y, LAC, CENTERS, groups=y)
    known = {"groups": NEW, "test_weights": np.ones(M)}
    for label in range(3):
        tried = np.full(M, label)
        found = [
            plain.p_values(x_new, tried, groups=NEW),
            heavy.p_values(x_new, tried, **known),
            by_class.p_values(x_new, tried),
        ]
        for j, group in enumerate(NEW):
            every = np.append(y, label)
            at = np.vstack([x, x_new[j]])
            probs = _predict(_fit(None, at, every, np.ones(N + 1)), at)
            s = 1 - np.asarray(probs)[np.arange(N + 1), every]
            near = s[:-1] >= s[-1] - 1e-6
            own = group == GROUPS
            assert_allclose(found[0][j], (1 + sum(near & own)) / (1 + sum(own)))
            share = (1 + sum(weights[near & own])) / (1 + sum(weights[own]))
            assert_allclose(found[1][j], share, rtol=1e-6)
            own = y == label
            assert_allclose(found[2][j], (1 + sum(near & own)) / (1 + sum(own)))
        member = plain(x_new, 0.3, groups=NEW).mask[:, label]
        assert_array_equal(member, found[0] > 0.3)
        assert_array_equal(by_class(x_new, 0.3).mask[:, label], found[2] > 0.3)


def test_classes_by_name_are_groups():
    x, y, x_new = labels()
    words = np.array(["low", "mid", "high"])
    by_name = jaxcp.full_conformal(
        KEY, CENTERS, LAC, x, words[y], groups=words[y], classes=words, check=False
    )
    assert by_name.group_names == tuple(words)
    expected = full(x, y, LAC, CENTERS, groups=y)(x_new, 0.3)
    assert_array_equal(by_name(x_new, 0.3).mask, expected.mask)
    p = by_name.p_values(x_new, words[NEW])
    expected = full(x, y, LAC, CENTERS, groups=y).p_values(x_new, NEW)
    assert_array_equal(p, expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_one_group_is_none_to_the_last_bit(weighted):
    x, y, x_new = (v.astype("f") for v in data())
    options, given = {}, {}
    if weighted:
        options = {"calibration_weights": (1 + np.arange(N) % 3).astype("f")}
        given = {"test_weights": np.full(M, 2, "f")}
    zeros = {"groups": np.zeros(M, int)}
    options["residuals"] = "ordinary"
    one, none = (full(x, y, groups=g, **options) for g in (0 * GROUPS, None))
    for union in (False, True):
        a = one(x_new, 0.3, union=union, **zeros, **given)
        same(a, none(x_new, 0.3, union=union, **given))
    a = one.p_values(x_new, x_new[:, 0], **zeros, **given)
    assert_array_equal(a, none.p_values(x_new, x_new[:, 0], **given))
    a, b = one.predictive(x_new, **zeros, **given), none.predictive(x_new, **given)
    assert_array_equal(a.values, b.values)
    del options["residuals"]
    x, y, x_new = labels()
    one, none = (full(x, y, LAC, CENTERS, g, **options) for g in (0 * GROUPS, None))
    a, b = one(x_new, 0.3, **zeros, **given), none(x_new, 0.3, **given)
    assert_array_equal(a.mask, b.mask)


def test_the_rows_of_a_group_alone_where_fits_are_the_same():
    """Ridge of an infinite penalty predicts 0, and some learners look at no target."""
    x, y, x_new = (v.astype("f") for v in data())
    flat = learners.Ridge(1e30, intercept=False)
    of, words = full(x, y, learner=flat), full(*labels()[:2], LAC, CHANCE)
    for group in range(3):
        own, same = group == GROUPS, {"groups": np.full(M, group)}
        alone = full(x[own], y[own], learner=flat, groups=None)
        a, b = of(x_new, 0.3, **same), alone(x_new, 0.3)
        assert_array_equal(a.to_numpy(), b.to_numpy())
        lx, ly, _ = labels()
        alone = full(lx[own], ly[own], LAC, CHANCE, None)
        a, b = words(x_new, 0.3, **same), alone(x_new, 0.3)
        assert_array_equal(a.mask, b.mask)


def test_permutations_flags_and_a_level_for_each():
    x, y, x_new = (v.astype("f") for v in data())
    first = full(x, y)
    expected = first(x_new, 0.3, groups=NEW).to_numpy()
    order = np.array([2, 0, 1])
    swapped = full(x, y, groups=order[GROUPS])
    assert_array_equal(swapped(x_new, 0.3, groups=order[NEW]).to_numpy(), expected)
    flags = jaxcp.full_conformal(KEY, RIDGE, ABSOLUTE, x, y, groups=GROUPS > 0)
    assert flags.group_names == (False, True)
    alphas = np.array([0.3, 0.5, 0.2])
    found = first(x_new, alphas, groups=NEW)
    for j, group in enumerate(NEW):
        one = first(x_new[j : j + 1], float(alphas[group]), groups=[group])
        assert_array_equal(found.lower[j], one.lower[0])


def test_few_rows_and_unknown_groups():
    x, y, x_new = (v.astype("f") for v in data())
    cp, names = full(x, y), np.array(["a", "b", "c"])
    few = cp(x_new, 0.125, groups=NEW)  # 1 / 0.125 - 1 = 7
    assert_array_equal(np.isinf(few.upper), NEW == 2)
    heavy, ones = full(x, y, calibration_weights=np.ones(N)), np.ones(M)
    unknown = jax.jit(lambda g: heavy(x_new, 0.9, groups=g, test_weights=ones).upper)
    assert np.all(np.isinf(unknown(np.array([-1, 3, 99, -1, 3]))))
    empty = full(x, y, groups=np.where(GROUPS == 2, 1, GROUPS))
    assert np.isinf(empty(x_new[:1], 0.9, groups=[2]).lower[0])
    assert empty.certificate(0.9)[2].coverage == 1
    assert empty.p_values(x_new[:1], y[:1], groups=[2])[0] == 1
    named = jaxcp.full_conformal(KEY, RIDGE, ABSOLUTE, x, y, groups=names[GROUPS])
    with pytest.raises(ValueError, match="group_names 'a', 'b', 'c', got 'd' at 1"):
        named(x_new[:2], 0.3, groups=["a", "d"])
    with pytest.raises(
        ValueError, match="groups of the new inputs, one each, got None"
    ):
        cp(x_new, 0.3)
    with pytest.raises(ValueError, match="groups only of a calibration with groups"):
        full(x, y, groups=None)(x_new, 0.3, groups=NEW)
    with pytest.raises(ValueError, match="expected num_groups with groups 0"):
        jaxcp.full_conformal(KEY, RIDGE, ABSOLUTE, x, y, groups=GROUPS)
    with pytest.raises(ValueError, match="expected groups with num_groups or group_na"):
        jaxcp.full_conformal(KEY, RIDGE, ABSOLUTE, x, y, num_groups=3)
    for groups in (GROUPS, GROUPS > 0):  # not the labels, if as many
        sites = jaxcp.full_conformal(
            KEY,
            CENTERS,
            LAC,
            *labels()[:2],
            groups=groups,
            group_names=np.unique(groups),
        )
        with pytest.raises(ValueError, match="groups of the new inputs"):
            sites(x_new, 0.3)
    traced = jax.jit(lambda g: full(*labels()[:2], LAC, CENTERS, g)(x_new, 0.3))
    with pytest.raises(ValueError, match="groups of the new inputs"):
        traced(GROUPS)
    x, y = labels()[:2]
    by_class = lambda y: full(x, y, LAC, CENTERS, y)(x_new, 0.3).mask  # noqa: E731
    assert_array_equal(jax.jit(by_class)(y), by_class(y))


def test_certificates_are_those_of_each_group():
    x, y, _ = data()
    mask = np.arange(N) % 4 > 0
    for cp, keep in ((full(x, y), mask | True), (full(x, y, mask=mask), mask)):
        for group, proof in enumerate(cp.certificate(0.3)):
            n = int(np.sum(keep & (group == GROUPS)))
            assert (proof.n, proof.exact) == (n, True)
            assert proof.coverage == (n + 1 - int(0.3 * (n + 1) + 1e-9)) / (n + 1)


SIZES = np.repeat([0, 1], [15, 9])  # three times the noise in the smaller group


def one_draw(key):
    """Whether sets of each way hold a target of either group, from 24 rows."""
    key_x, key_noise, key_fit = jax.random.split(key, 3)
    groups = np.append(SIZES, [0, 1])
    x = jax.random.normal(key_x, (N + 2, 2))
    y = x[:, 0] + (1 + 2 * groups) * jax.random.normal(key_noise, (N + 2,))
    args = key_fit, RIDGE, ABSOLUTE, x[:N], y[:N]
    named = {"groups": SIZES, "num_groups": 2}
    cp, apart = (
        jaxcp.full_conformal(*args, **named),
        jaxcp.jackknife_plus(*args, **named),
    )
    of = {"groups": groups[N:]}
    sets = {
        "full": cp(x[N:], 0.2, **of),
        "plus": apart(x[N:], 0.2, **of),
        "minmax": apart.minmax(x[N:], 0.2, **of),
        "ungrouped": jaxcp.full_conformal(*args)(x[N:], 0.2),
    }
    return {k: metrics.covered(v, y[N:]) for k, v in sets.items()}


def check_coverage(num_trials):
    found = jaxcp.simulate(one_draw, jax.random.key(1), num_trials)
    error = 4 * (0.25 / num_trials) ** 0.5
    mean = {k: np.mean(v, axis=0) for k, v in found.items()}
    assert_allclose(mean["full"], [13 / 16, 8 / 10], atol=error)
    assert mean["ungrouped"][1] < 0.8 - 0.1
    for minmax in (False, True):
        way = "minmax" if minmax else "plus"
        known = certificates.CrossCertificate
        least = [known(n, n, Fraction("0.2"), minmax).coverage for n in (15, 9)]
        assert np.all(mean[way] > np.array(least) - error)


def test_each_group_has_its_coverage():
    check_coverage(10**4)


@pytest.mark.slow
def test_each_group_has_its_coverage_in_many_draws():
    check_coverage(10**5)
