"""Weights of labels, whose shares shift: one threshold a label."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import scores

FILE = Path(__file__).parents[1] / "reference/rows/labels.npz"
RNG = np.random.default_rng(0)
N, M, K, ALPHA = 40, 6, 4, 0.2
P, NEW = (RNG.dirichlet(np.ones(K), n).astype("f") for n in (N, M))
Y, W = RNG.integers(0, K - 1, N), np.float32([0.3, 2.0, 1.1, np.inf])  # none of label 3
EACH = W * RNG.uniform(0.5, 1, (M, 1)).astype("f")
LAC, U = scores.LAC(), RNG.uniform(size=M)
PLAIN = jaxcp.calibrate(LAC, P, Y)
SHIFTED = jaxcp.calibrate(LAC, P, Y, weights=W[Y])


@jax.jit
def quantile(cp, alpha, weights):
    return cp.quantile(alpha, test_weight=weights)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", range(3))
def test_vectors(case, dtype):
    """Thresholds and sets of exact arithmetic; unit weights, a weight 0 and ties."""
    with jax.enable_x64(dtype == "float64"), np.load(FILE) as found:
        of = {k[2:]: found[k] for k in found.files if k[0] == str(case)}
        weights = jnp.asarray(of["weights"], dtype)
        rows = jnp.asarray(of["scores"], dtype), weights[of["y"]]
        cp = jaxcp.Calibration(LAC, *rows)
        for i, alpha in enumerate(of["alphas"].tolist()):
            assert np.all(of["margin"][i] > 1e-6)
            q = quantile(cp, jnp.asarray(alpha), weights)
            assert_array_equal(q, of["threshold"][i].astype(dtype))
            inside = of["test_scores"].astype(dtype) <= np.asarray(q)
            assert_array_equal(inside, of["mask"][i])


def test_each_label_has_the_threshold_of_its_weight():
    """Those of numbers one by one, in sets, smoothed sets and both p-values."""
    finite = np.where(np.isinf(EACH), 1e30, EACH)
    for u in (None, U):
        sets = SHIFTED(NEW, ALPHA, test_weights=EACH, u=u)
        p = SHIFTED.p_values(NEW, test_weights=EACH, u=u)
        for c in range(K):
            known = {"test_weights": finite[:, c], "u": u}
            one = SHIFTED(NEW, ALPHA, **known)
            assert_array_equal(sets.mask[:, c], one.mask[:, c])
            own = SHIFTED.p_values(NEW, np.full(M, c), **known)
            assert_allclose(p[:, c], own, rtol=1e-6)
        assert_array_equal(sets.mask, p > jnp.asarray(ALPHA))
    targets = RNG.integers(0, K, M)
    own = SHIFTED.p_values(NEW, targets, test_weights=EACH)
    expected = SHIFTED.p_values(NEW, test_weights=EACH)[np.arange(M), targets]
    assert_array_equal(own, expected)


def test_a_label_without_rows_is_always_in():
    sets = SHIFTED(NEW, ALPHA, test_weights=EACH)
    assert np.all(sets.mask[:, K - 1])
    assert np.all(SHIFTED.p_values(NEW, test_weights=EACH)[:, K - 1] == 1)
    assert SHIFTED.quantile(ALPHA, test_weight=W)[K - 1] == np.inf
    never = SHIFTED.quantile(ALPHA, test_weight=np.zeros(K, "f"))
    assert np.all(np.isfinite(never))


def test_unit_weights_are_none():
    ones = jaxcp.calibrate(LAC, P, Y, weights=np.ones(N))
    for alpha in (0.1, 0.2, 0.5):
        sets = ones(NEW, alpha, test_weights=np.ones((M, K)))
        assert_array_equal(sets.mask, PLAIN(NEW, alpha).mask)
        q = ones.quantile(alpha, test_weight=np.ones(K))
        assert_array_equal(q, np.full(K, PLAIN.quantile(alpha)))
    p = ones.p_values(NEW, test_weights=np.ones((M, K)))
    assert_array_equal(p, PLAIN.p_values(NEW))


def test_scale_names_jit_and_groups():
    """Weights count up to one factor; jit, names and groups change nothing."""
    names = ["ant", "bee", "cat", "dog"]
    named = jaxcp.calibrate(LAC, P, np.array(names)[Y], weights=8 * W[Y], classes=names)
    sets = SHIFTED(NEW, ALPHA, test_weights=EACH)
    found = named(NEW, ALPHA, test_weights=8 * EACH)
    assert_array_equal(found.mask, sets.mask)
    assert found.labels()[0] == [names[c] for c in np.flatnonzero(sets.mask[0])]
    one = jax.jit(lambda cp, p, w: cp(p, ALPHA, test_weights=w))
    assert_array_equal(one(SHIFTED, NEW, EACH).mask, sets.mask)
    site = np.arange(N) % 2
    grouped = jaxcp.calibrate_groups(LAC, P, Y, site, num_groups=2, weights=W[Y])
    found = grouped(NEW, ALPHA, groups=np.arange(M) % 2, test_weights=EACH)
    p = grouped.p_values(NEW, groups=np.arange(M) % 2, test_weights=EACH)
    assert_array_equal(found.mask, p > jnp.asarray(ALPHA))
    for g in range(2):
        rows = site == g
        alone = jaxcp.calibrate(LAC, P[rows], Y[rows], weights=W[Y[rows]])
        own = alone(NEW[g::2], ALPHA, test_weights=EACH[g::2])
        assert_array_equal(found.mask[g::2], own.mask)


def test_refusals():
    refused = partial(pytest.raises, ValueError)
    call = partial(SHIFTED, NEW, ALPHA)
    with refused(match=r"test_weights of shape \(6, 4\), got \(6, 5\)"):
        call(test_weights=np.ones((M, K + 1)))
    with refused(match="test_weights with 6 rows like preds, got 5"):
        call(test_weights=np.ones((M - 1, K)))
    with refused(match=r"test_weights of labels >= 0, got -1.0 at \(0, 0\)"):
        call(test_weights=-np.ones((M, K)))
    with refused(match=r"test_weights of labels >= 0, got nan at \(0, 0\)"):
        call(test_weights=np.nan * EACH)
    with refused(match="finite test_weights >= 0, got inf"):
        call(test_weights=EACH[:, -1])
    with refused(match="test_weights as an array, got tuple"):
        call(test_weights=(EACH, EACH))
    with refused(match="only with calibration weights"):
        PLAIN(NEW, ALPHA, test_weights=EACH)
    box = jaxcp.calibrate(LAC, P, Y, weights=(W[Y], 2 * W[Y]))
    with refused(match=r"test_weights of shape \(n,\), got \(6, 4\)"):
        box(NEW, ALPHA, test_weights=EACH)
    number = jaxcp.calibrate(scores.Absolute(), P[:, 0], P[:, 1], weights=W[Y])
    with refused(match=r"test_weights of shape \(n,\), got \(6, 4\)"):
        number(NEW[:, 0], ALPHA, test_weights=EACH)
    by_class = jaxcp.calibrate_groups(LAC, P, Y, Y, num_groups=K, weights=W[Y])
    with refused(match=r"test_weights of shape \(n,\), got \(6, 4\)"):
        by_class(NEW, ALPHA, test_weights=EACH)
    with refused(match=r"test_weight of shape \(\), got \(4,\)"):
        by_class.quantile(ALPHA, test_weight=W)


def test_coverage():
    """Shares of 0.7, 0.2, 0.1 become 0.1, 0.2, 0.7: 1 - alpha with the true ratio, and
    less without."""
    n, trials = 40, 10_000
    old, new = jnp.array([0.7, 0.2, 0.1]), jnp.array([0.1, 0.2, 0.7])
    ratio = new / old

    def trial(key):
        key_y, key_new, key_x = jax.random.split(key, 3)
        y = jax.random.choice(key_y, 3, (n,), p=old)
        y = jnp.append(y, jax.random.choice(key_new, 3, (), p=new))
        x = jax.random.normal(key_x, (n + 1,)) + 1.5 * y
        logits = (
            jnp.log(old)[None] - (x[:, None] - 1.5 * jnp.arange(3.0)[None]) ** 2 / 2
        )
        p = jax.nn.softmax(logits)
        plain = jaxcp.calibrate(LAC, p[:n], y[:n])
        shifted = jaxcp.calibrate(LAC, p[:n], y[:n], weights=ratio[y[:n]])
        sets = (
            plain(p[n:], ALPHA),
            shifted(p[n:], ALPHA, test_weights=ratio[None]),
        )
        return jnp.stack([s.mask[0, y[n]] for s in sets])

    keys = jax.random.split(jax.random.key(0), trials)
    naive, right = np.mean(jax.jit(jax.vmap(trial))(keys), axis=0)
    error = (ALPHA * (1 - ALPHA) / trials) ** 0.5
    assert naive < 1 - ALPHA - 4 * error
    assert right > 1 - ALPHA - 4 * error
