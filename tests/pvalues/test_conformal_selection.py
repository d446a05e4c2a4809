"""Selection of test rows: p-values, weights, e-values, against loops and vectors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers import cases
from jaxcp import outliers, pvalues
from jaxcp.pvalues import selecting

VECTORS = cases("risk/selection")
ROWS = "mu_cal", "y_cal", "c_cal", "mu_test"


def at_level(p, level):
    """The largest p_(k) <= level k / m, and all up to it; exact ties within 1e-12."""
    m, ordered = len(p), np.sort(p)
    fits = m * ordered <= level * np.arange(1, m + 1) * (1 + 1e-12)
    return p <= max(ordered[fits], default=-1)


def loop_sizes(v, test_v, weights, test_weights, level):
    """Jin and Candes' auxiliary p-values, one sort for each row."""
    sizes = []
    for j, own in enumerate(test_weights):
        below = np.sum(weights * (v < test_v[:, None]), axis=1)
        aux = (below + own * (test_v[j] < test_v)) / (weights.sum() + own)
        aux[j] = 0
        sizes.append(at_level(aux, level).sum())
    return np.array(sizes)


def loop_selection(v, test_v, weights, test_weights, level, xi):
    sizes = loop_sizes(v, test_v, weights, test_weights, level)
    at_most = np.sum(weights * (v <= test_v[:, None]), axis=1)
    p = (at_most + test_weights) / (weights.sum() + test_weights)
    first = len(p) * p <= level * sizes * (1 + 1e-12)
    pruned = xi * sizes
    fits = [r for r in range(len(p) + 1) if np.sum(first & (pruned <= r)) >= r]
    return sizes, first & (pruned <= max(fits))


@pytest.mark.parametrize("case", VECTORS.values(), ids=VECTORS)
def test_vectors_of_p_values(case):
    with jax.enable_x64(True):
        mu, y, c, test = (case[name] for name in ROWS)
        find = pvalues.selection_p_values
        found = {
            "clip": find(mu, y, c, test),
            "clip_u": find(mu, y, c, test, u=case["u"]),
            # y - mu, which needs the thresholds of test rows, is a score of outliers.
            "res": outliers.outlier_p_values(mu - y, test - case["c_test"]),
        }
        for name, p in found.items():
            assert_allclose(p, case[f"p_{name}"], rtol=1e-12)
            for level, selected in zip(case["qs"], case[f"sel_{name}"], strict=True):
                discoveries = pvalues.benjamini_hochberg(p, level)
                assert_array_equal(discoveries, selected)


@pytest.mark.parametrize("case", VECTORS.values(), ids=VECTORS)
def test_vectors_under_covariate_shift(case):
    with jax.enable_x64(True):
        rows = [jnp.asarray(case[name]) for name in ROWS]
        weights = [jnp.asarray(case[name]) for name in ("w_cal", "w_test")]
        keys = jax.jit(selecting.keys_of_nulls)(*rows)
        own = {"weights": weights[0], "test_weights": weights[1]}
        p = pvalues.selection_p_values(*rows, **own)
        assert_allclose(p, case["wp"], rtol=1e-12)
        sizes_of = jax.jit(selecting.sizes_of_candidates)
        kinds = {"hete": case["xi_hete"], "homo": case["xi_homo"], "dtm": None}
        for i, level in enumerate(jnp.asarray(case["qs"])):
            sizes = sizes_of(*keys, *weights, level)
            first, known = case["wfirst"][i], case["wsizes"][i]
            assert_array_equal(np.where(first, sizes, known), known)
            assert_array_equal(len(p) * p <= level * sizes * (1 + 1e-12), first)
            for kind, xi in kinds.items():
                found = selecting.select(*rows, *weights, level, xi)
                assert_array_equal(found, case[f"wsel_{kind}"][i])
        run = partial(pvalues.weighted_selection, None, *rows, *weights)
        found = run(float(level), pruning="deterministic")
        assert_array_equal(found, case["wsel_dtm"][-1])


@pytest.mark.parametrize("case", VECTORS.values(), ids=VECTORS)
def test_vectors_of_e_values(case):
    """One repetition at its own level finds what Benjamini-Hochberg finds."""
    with jax.enable_x64(True):
        for i, level in enumerate(case["qs"].tolist()):
            scores, test = case["cal"], case["test"]
            e = pvalues.e_values(scores, test, level * float(case["inner"]))
            assert_allclose(e, case["e"][i], rtol=1e-12)
            assert_allclose(e.mean(axis=0), case["e_mean"][i], rtol=1e-12)
            found = pvalues.e_benjamini_hochberg(e.mean(axis=0), level)
            assert_array_equal(found, case["ebh"][i])
            single = pvalues.e_values(scores, test, level)
            assert_allclose(single, case["e1"][i], rtol=1e-12)
            for r, row in enumerate(single):
                found = pvalues.e_benjamini_hochberg(row, level)
                p = outliers.outlier_p_values(scores[r], test[r])
                assert_array_equal(found, case["ebh_single"][i, r])
                assert_array_equal(found, pvalues.benjamini_hochberg(p, level))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sizes_against_a_loop_with_ties_zeros_and_infinities(dtype):
    """200 draws of 12 test rows, of which many are tied, and whole weights."""
    rng = np.random.default_rng(0)
    n, m, draws = 15, 12, 200
    mu, test = (rng.integers(-3, 5, (draws, k)).astype(dtype) for k in (n, m))
    mu[:, :2], test[:, 0], test[::3, 1] = np.inf, np.inf, -np.inf
    y = np.round(mu.clip(-9, 9) + rng.normal(size=(draws, n)))
    weights, own = (2.0 ** rng.integers(-2, 4, (draws, k)) for k in (n, m))
    weights[::4], own[::5, :3], weights[:, 0] = 1, 0, 0
    level, xi = rng.choice([0.125, 0.3, 0.5, 0.75], draws), rng.random((draws, m))
    xi = np.round(xi * 8) / 8
    with jax.enable_x64(dtype == "float64"):
        rows = [v.astype(dtype) for v in (mu, y, 0 * y + 1, test, weights, own)]
        found = jax.vmap(selecting.select)(*rows, level.astype(dtype), xi)
        kinds = []
        for i in range(draws):
            v = np.where(y[i] > 1, np.inf, -mu[i])
            # Calibration rows that exceed are above test rows at +inf, too.
            v, test_v = np.minimum(v, 99), np.minimum(-test[i], 98)
            v = np.where((y[i] <= 1) & np.isposinf(-mu[i]), 98, v)
            drawn = weights[i], own[i], level[i]
            _, expected = loop_selection(v, test_v, *drawn, xi[i])
            assert_array_equal(found[i], expected)
            kinds.append(expected.sum())
    assert len(set(kinds)) > 6  # none, some, many


def test_p_values_count_nulls_alone():
    """Also where a prediction is -inf; NaN is never selected, nor its row."""
    pred, y = np.array([-np.inf, 3.0, 1.0, 2.0]), np.array([0.0, 0.0, 9.0, 9.0])
    test = np.array([-np.inf, 1.5, 3.0, np.inf, np.nan])
    p = pvalues.selection_p_values(pred, y, 1, test)
    assert_allclose(p, [3 / 5, 2 / 5, 2 / 5, 1 / 5, 1], rtol=1e-6)
    none = pvalues.selection_p_values(pred, y + 10, 1, test)
    assert_allclose(none, [1 / 5] * 4 + [1], rtol=1e-6)
    first = pvalues.selection_p_values(pred, y, 1, test, mask=y < 1)
    assert_allclose(first, [1, 2 / 3, 2 / 3, 1 / 3, 1], rtol=1e-6)
    correct = pvalues.selection_p_values(pred, y > 1, 0.5, test)
    assert_array_equal(correct, p)
    empty = pvalues.selection_p_values(pred[:0], y[:0], 1, test)
    assert_array_equal(empty, np.ones(5))
    assert pvalues.selection_p_values(pred, y, 1, test[:0]).shape == (0,)

    def traced(pred, y, c):
        return pvalues.selection_p_values(pred, y, c, test)

    pred, nan = np.append(pred[:3], np.nan), np.full(4, np.nan)
    for unknown in (nan, 1.0), (y, np.nan):  # all may be null, and above all
        p = jax.jit(traced)(pred, *unknown)
        assert_allclose(p, [1, 3 / 5, 3 / 5, 2 / 5, 1], rtol=1e-6)


def test_edges_of_weighted_selection():
    run = partial(pvalues.weighted_selection, jax.random.key(0))
    pred, y, test = np.arange(20.0), np.arange(20.0), np.full(5, 30.0)
    ones, own = np.ones(20), np.ones(5)
    assert run(pred, y, 10, test, ones, own, 0.3).all()
    assert not run(pred, y, 10, np.full(5, np.nan), ones, own, 0.3).any()
    assert not run(pred, y, 10, test, 0 * ones, own, 0.3).any()
    assert not run(pred[:0], y[:0], 10, test, ones[:0], own, 0.3).any()
    assert run(pred, y, 10, test[:0], ones, own[:0], 0.3).shape == (0,)
    assert run(pred, y, 10, test[:1], ones, own[:1], 0.3).all()
    for scale in (1e-30, 1e30):  # of the weights together
        again = run(pred, y, 10, test, scale * ones, scale * own, 0.3)
        assert again.all()
    heavy = run(pred, y, 10, test, 1e-20 * ones, 1e20 * own, 0.3)
    assert not heavy.any()
    call = lambda level: run(pred, y, 10, test, ones, own, level)  # noqa: E731
    levels = jnp.array([0.01, 0.3, 0.0, -1.0, jnp.nan])
    found = jax.jit(jax.vmap(call))(levels)
    assert_array_equal(found.any(axis=1), [False, True, False, False, False])
    batch = lambda key: pvalues.weighted_selection(  # noqa: E731
        key, pred, y, 10, test, ones, own, 0.3, pruning="homogeneous"
    )
    assert jax.vmap(batch)(jax.random.split(jax.random.key(1), 3)).all()


def test_edges_of_e_values():
    e = pvalues.e_values(np.arange(9.0), [np.nan, np.inf, -np.inf], 0.3)
    assert_allclose(e, [5, 5, 0], rtol=1e-6)  # 3 (1 + 1) / (10 x 2) = level
    assert_array_equal(pvalues.e_values(np.arange(9.0), [3.0], 0.05), [0])
    assert_array_equal(pvalues.e_values(np.zeros(0), [3.0], 0.5), [0])
    assert pvalues.e_values(np.arange(9.0), np.zeros(0), 0.5).shape == (0,)
    found = pvalues.e_benjamini_hochberg([np.inf, np.nan, 0.0, 30.0], 0.1)
    assert_array_equal(found, [True, False, False, True])
    assert pvalues.e_benjamini_hochberg(np.zeros(0), 0.1).shape == (0,)
    # Met exactly: e_(2) = m / (level 2)
    exact = pvalues.e_benjamini_hochberg([50.0, 50.0] + [0.0] * 8, 0.1)
    assert exact.sum() == 2


def test_false_discovery_rate_of_fixed_nulls():
    """Exactly level m0 / m where level (n + 1) / m is whole (Marandon et al. 2024)."""
    n, m, nulls, level = 99, 10, 6, 0.2  # level (n + 1) / m = 2

    def share(key):
        key_old, key_new = jax.random.split(key)
        scores = jax.random.normal(key_old, (n,))
        test = jax.random.normal(key_new, (m,)) + 2.5 * (jnp.arange(m) >= nulls)
        p = pvalues.selection_p_values(scores, 0 * scores, 1, test)
        found = pvalues.benjamini_hochberg(p, level)
        return jnp.sum(found[:nulls]) / jnp.maximum(jnp.sum(found), 1)

    shares = jax.jit(jax.vmap(share))(jax.random.split(jax.random.key(0), 10_000))
    error = np.std(shares) / 100
    assert abs(np.mean(shares) - level * nulls / m) < 4 * error


def test_e_values_of_nominal_rows_sum_to_at_most_m():
    """And few of the discoveries by them are false."""
    n, m, nominal, level = 19, 8, 5, 0.4

    def trial(key):
        rows = jax.random.normal(key, (n + m,))
        strange = 4 * (jnp.arange(m) >= nominal)
        e = pvalues.e_values(rows[:n], rows[n:] + strange, level)
        found = pvalues.e_benjamini_hochberg(e, level)
        false = jnp.sum(found[:nominal]) / jnp.maximum(jnp.sum(found), 1)
        return jnp.sum(e[:nominal]), false, found[nominal:].any()

    keys = jax.random.split(jax.random.key(0), 10_000)
    total, false, some = map(np.asarray, jax.jit(jax.vmap(trial))(keys))
    assert total.mean() <= m + 4 * total.std() / 100
    assert false.mean() <= level + 4 * false.std() / 100
    assert some.mean() > 0.5


def test_inverse_p_values_are_no_e_values():
    """Of p-values in the worst dependence (Guo and Rao 2008), all nominal.

    One of k = 1, ..., m with odds level / k: k of them at level k / m. Each p-value is
    uniform, and Benjamini-Hochberg errs with probability level (1 + 1/2 + ... + 1/m).
    """
    m, level = 10, 0.1
    odds = level / np.arange(1, m + 1)

    def errs(key):
        key_k, key_rows, key_u = jax.random.split(key, 3)
        k = jnp.searchsorted(jnp.cumsum(odds), jax.random.uniform(key_k)) + 1
        chosen = jax.random.permutation(key_rows, m) < jnp.where(k > m, 0, k)
        u = jax.random.uniform(key_u, (m,))
        p = jnp.where(chosen, (k - 1 + u) * level / m, level + (1 - level) * u)
        test = partial(pvalues.e_benjamini_hochberg, level=level)
        # The integral of 1 / (2 sqrt(p)) over p in (0, 1) is 1.
        return test(1 / p).any(), test(0.5 / jnp.sqrt(p)).any()

    keys = jax.random.split(jax.random.key(0), 10_000)
    inverse, calibrated = (np.mean(v) for v in jax.jit(jax.vmap(errs))(keys))
    assert abs(inverse - odds.sum()) < 0.02  # 0.293
    assert calibrated <= level


@pytest.mark.slow
@pytest.mark.parametrize("pruning", ["heterogeneous", "homogeneous", "deterministic"])
def test_false_discovery_rate_under_covariate_shift(pruning):
    n, m, level = 60, 30, 0.2

    def share(key):
        key_x, key_new, key_y, key_xi = jax.random.split(key, 4)
        x = jnp.append(
            jax.random.normal(key_x, (n,)), 1 + jax.random.normal(key_new, (m,))
        )
        y = x + jax.random.normal(key_y, (n + m,))
        rows = x[:n], y[:n], 1.0, x[n:], jnp.exp(x[:n]), jnp.exp(x[n:])
        found = pvalues.weighted_selection(key_xi, *rows, level, pruning=pruning)
        false = jnp.sum(found & (y[n:] <= 1))
        return false / jnp.maximum(jnp.sum(found), 1), jnp.mean(found)

    keys = jax.random.split(jax.random.key(0), 20_000)
    shares, found = jax.jit(jax.vmap(share))(keys)
    assert np.mean(shares) < level + 4 * np.std(shares) / 20_000**0.5
    assert np.mean(found) > 0.005
