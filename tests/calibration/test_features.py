"""Features of groups and of numbers, groups of classes, and flags in metrics."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import conditional, metrics, scores
from jaxcp.conditional.classes import quantiles_of_classes

KNOWN = dict(np.load(Path(__file__).parents[1] / "reference/conditional_classes.npz"))
N = int(KNOWN["num_cal"])
P, Y, KEY = KNOWN["probabilities"], KNOWN["y"], jax.random.key(0)
GROUPS = {"site": ["north", "south"], "old": [True]}
ABSOLUTE = scores.Absolute()


def frame(m, seed=0):
    rng = np.random.default_rng(seed)
    site = np.array(["north", "south", "west"])[rng.integers(0, 3, m)]
    return pd.DataFrame({"site": site, "old": rng.random(m) < 0.4})


def test_flags_are_one_for_each_value():
    rows = frame(50)
    expected = [rows["site"] == "north", rows["site"] == "south", rows["old"]]
    found = conditional.indicators(rows, GROUPS)
    assert_array_equal(found, np.stack([np.ones(50, bool), *expected], axis=1))
    assert_array_equal(conditional.indicators(dict(rows), GROUPS), found)
    alone = conditional.indicators(rows, GROUPS, intercept=False)
    assert_array_equal(alone, found[:, 1:])
    missing = pd.DataFrame({"site": [None, "north"], "old": [np.nan, True]})
    assert_array_equal(conditional.indicators(missing, GROUPS).sum(axis=1), [1, 3])


def test_each_group_of_a_frame_is_covered():
    """On average over calibration sets, where one threshold covers some by 0.7."""
    n, m, rows = 100, 100, frame(200)
    flags = conditional.indicators(rows, GROUPS)
    scale = 1 + 3 * flags[:, 3] + flags[:, 2]

    @jax.vmap
    def of_groups(key):
        order, noise = jax.random.split(key)
        own = jax.random.permutation(order, n + m)
        y = jax.random.normal(noise, (n + m,)) * scale[own]
        phi, zeros = flags[own].astype(float), jnp.zeros(n)
        cp = jaxcp.calibrate_conditional(ABSOLUTE, zeros, y[:n], phi[:n])
        split = jaxcp.calibrate(ABSOLUTE, zeros, y[:n])
        found = cp(zeros, 0.1, features=phi[n:]), split(zeros, 0.1)
        hits = [sets.contains(y[n:]) - 0.9 for sets in found]
        return jnp.stack([jnp.mean(v[:, None] * phi[n:], 0) for v in hits])

    surplus = np.asarray(jax.jit(of_groups)(jax.random.split(KEY, 200)))
    mean, error = surplus.mean(axis=0), surplus.std(axis=0) / 200**0.5
    assert np.all(mean[0] > -4 * error[0])
    assert mean[1, 3] < -8 * error[1, 3]


def test_overlapping_groups_in_metrics():
    y = np.array([0.5, 2.0, 0.1, 0.2, 3.0])
    found = jaxcp.sets.Interval(jnp.zeros(5), jnp.ones(5))
    codes = np.array([0, 1, 1, 0, 2])
    flags = codes[:, None] == np.arange(4)
    apart = metrics.group_coverage(found, y, codes, num_groups=4)
    assert_array_equal(metrics.group_coverage(found, y, flags), apart)
    both = np.stack([np.ones(5), codes > 0], axis=1)
    of_both = metrics.group_coverage(found, y, both)
    assert_allclose(of_both, [0.6, 1 / 3], rtol=1e-6)
    told = metrics.summary(found, y, 0.2, both)
    each = [told[f"group_coverage[{i}]"] for i in range(2)]
    assert_allclose(each, of_both, rtol=1e-6)
    jitted = jax.jit(lambda f: metrics.group_coverage(found, y, f))(both)
    assert_array_equal(jitted, of_both)
    with pytest.raises(ValueError, match="flags of 3 groups, got 2"):
        metrics.group_coverage(found, y, both, num_groups=3)
    with pytest.raises(ValueError, match="flags or 0 and 1"):
        metrics.group_coverage(found, y, 2 * both)


def test_waves_have_the_kernel_for_a_mean():
    x = np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 2.0]], "f")
    phi = np.asarray(conditional.fourier(KEY, x, 4000, 0.8))[:, 1:]
    products = phi[:, None] * phi[None]
    square = np.sum((x[:, None] - x) ** 2, axis=2)
    error = products.mean(axis=2) - np.exp(-square / (2 * 0.8**2))
    assert np.all(abs(error) < 4 * products.std(axis=2) / 4000**0.5 + 1e-6)
    one = conditional.fourier(KEY, x[1:2], 4000, 0.8)
    assert_allclose(one[0, 1:], phi[1], atol=1e-5)


def test_products_of_columns():
    x = np.random.default_rng(0).normal(size=(5, 2)).astype("f")
    a, b = x.T
    expected = np.stack([1 + 0 * a, a, b, a * a, a * b, b * b], axis=1)
    assert_allclose(conditional.polynomial(x, 2), expected, rtol=1e-6)
    assert conditional.polynomial(a, 0).shape == (5, 1)


def test_golden_groups_of_labels():
    of_label, alphas = KNOWN["group_of_class"], KNOWN["alphas"]
    known = {"label_groups": of_label, "rare": "all"}
    cp = jaxcp.calibrate_groups(scores.LAC(), P[:N], Y[:N], **known)
    score = scores.Truncated(scores.LAC(), KNOWN["rank_limit"])
    cut = jaxcp.calibrate_groups(score, P[:N], Y[:N], Y[:N], num_groups=P.shape[1])
    for i, alpha in enumerate(alphas):
        for kind, found in (("clustered", cp), ("truncated", cut)):
            q = found.quantile(alpha)
            assert_allclose(q, KNOWN[f"{kind}_q"][i], rtol=1e-5)
            assert_array_equal(found(P[N:], alpha).mask, KNOWN[f"{kind}_sets"][i])
    s = 1 - np.take_along_axis(P, Y[:, None], 1)[:N, 0]
    points = quantiles_of_classes(s, Y[:N], P.shape[1])[1]
    assert_allclose(points, KNOWN["class_embedding"], rtol=1e-5)
    known["rare"] = "infinite"
    cp = jaxcp.calibrate_groups(scores.LAC(), P[:N], Y[:N], **known)
    assert_array_equal(np.isinf(cp.quantile(0.1)), of_label < 0)
    assert np.all(cp(P[N:], 0.1).mask[:, of_label < 0])


def test_batches_of_groups_of_labels_are_the_whole():
    known = {"label_groups": KNOWN["group_of_class"], "rare": "all"}
    whole = jaxcp.calibrate_groups(scores.LAC(), P[:N], Y[:N], **known)
    parts = [(P[:70], Y[:70]), (P[70:N], Y[70:N])]
    joined = jaxcp.calibrate_groups(scores.LAC(), batches=parts, **known)
    assert_array_equal(joined.quantile(0.1), whole.quantile(0.1))


def test_classes_with_like_scores_share_a_group():
    labels = np.repeat(np.arange(10), 20)
    s = np.random.default_rng(0).random(200) ** np.where(labels % 2, 8, 0.5)
    found = conditional.group_classes(KEY, s, labels, 2, num_classes=11)
    assert len(set(found[:10:2].tolist())) == len(set(found[1:10:2].tolist())) == 1
    assert found[0] != found[1] and found[10] == -1
    with pytest.raises(ValueError, match="num_groups of at most 0"):
        conditional.group_classes(KEY, s[::10], labels[::10], 2)  # two rows each
    with pytest.raises(ValueError, match="num_groups of at most 0"):
        conditional.group_classes(KEY, s[:0], labels[:0], 1)
    whole = conditional.group_classes(KEY, (100 * s).astype(int), labels, 2)
    assert_array_equal(whole[::2] == whole[0], np.ones(5, bool))


@pytest.mark.parametrize(
    "given, words",
    [
        ({"label_groups": [0, 1, -1, 0, 0, 0]}, "no group .* as one of"),
        ({"label_groups": [0.0] * 6}, "integers of at least -1"),
        ({"label_groups": [0] * 5}, "label_groups of shape \\(6,\\), .*, got \\(5,\\)"),
        ({"groups": Y[:N], "num_groups": 6, "rare": "all"}, "label_groups alone"),
        ({"num_groups": 6, "rare": "all"}, "label_groups with values, got None"),
        ({"label_groups": [0] * 6, "groups": Y[:N]}, "label_groups alone"),
    ],
)
def test_wrong_groups_of_labels(given, words):
    with pytest.raises(ValueError, match=words):
        jaxcp.calibrate_groups(scores.LAC(), P[:N], Y[:N], **given)


def test_rare_labels_have_one_threshold_in_all_batches():
    known = {"label_groups": KNOWN["group_of_class"]}
    one, other = (
        jaxcp.calibrate_groups(scores.LAC(), P[:N], Y[:N], rare=rare, **known)
        for rare in ("all", "infinite")
    )
    with pytest.raises(ValueError, match="rare all as before, got infinite"):
        jaxcp.join([one, other])


def test_columns_of_flags_are_groups():
    flags = {"young": [1, 0], "rural": [True, True]}
    expected = [[True, True, True], [True, False, True]]
    assert conditional.indicators(flags).tolist() == expected
    assert conditional.indicators(pd.DataFrame(flags)).tolist() == expected
    with pytest.raises(ValueError, match="age as flags or 0 and 1"):
        conditional.indicators({"age": [30, 40]})


@pytest.mark.parametrize("groups", [{}, ["a"], {"a": "xy"}, {"a": []}])
def test_wrong_values_of_columns(groups):
    with pytest.raises(ValueError, match="groups as lists of values by column"):
        conditional.indicators({"a": ["x", "y"]}, groups)
