"""Conditional calibration: golden vectors, its two special cases, ties, and ends."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linprog, lsq_linear

import jaxcp
from jaxcp import scores
from jaxcp.quantiles import _regression

pytestmark = pytest.mark.double

GOLDEN = np.load(Path(__file__).parents[1] / "reference" / "conditional_gcc.npz")
BASES = "intercept", "overlap", "poly", "fourier", "cells", "hole"
FLOAT = jax.dtypes.canonicalize_dtype(float)
RTOL = 1e-9 if np.float64 == FLOAT else 1e-4
ABSOLUTE = scores.Absolute()


def calibrated(values, features, score=ABSOLUTE):
    values = np.asarray(values, FLOAT)
    return jaxcp.calibrate_conditional(score, 0 * values, values, features)


def upper(cp, features, alpha, **given):
    preds = np.zeros(len(features), FLOAT)
    return np.asarray(cp(preds, alpha, features=features, **given).upper)


@pytest.mark.parametrize("basis", BASES)
def test_golden_vectors(basis):
    """As they are for one feature, and with features of zeros, which change nothing."""
    values, new = (GOLDEN[k].astype(FLOAT) for k in ("scores", "s_test"))
    phi = GOLDEN[f"{basis}_phi"].astype(FLOAT)
    phi = phi if basis == "intercept" else np.pad(phi, ((0, 0), (0, 5 - phi.shape[1])))
    phi, phi_new = np.split(phi, [len(values)])
    cp, zeros = calibrated(values, phi), np.zeros(len(new), FLOAT)
    for i, alpha in enumerate(GOLDEN["alphas"]):
        expected = lambda name: GOLDEN[f"{basis}_{name}"][i]  # noqa: E731, B023
        q = upper(cp, phi_new, alpha)
        assert_allclose(q, expected("threshold"), rtol=RTOL)
        if basis != "hole":
            q_of_u = upper(cp, phi_new, alpha, u=GOLDEN["u"].astype(FLOAT))
            assert_allclose(q_of_u, expected("threshold_rand"), rtol=RTOL)
            dual = cp.dual(zeros, new, alpha, features=phi_new)
            assert_allclose(dual, expected("dual"), atol=1e-4)
            assert_array_equal(new <= q, expected("in"))
            assert_array_equal(new <= q_of_u, expected("in_rand"))


def test_golden_vectors_of_two_sides():
    values = GOLDEN["signed_scores"].astype(FLOAT)
    phi = np.pad(GOLDEN["poly_phi"].astype(FLOAT), ((0, 0), (0, 2)))
    phi, phi_new = np.split(phi, [len(values)])
    cp = calibrated(values, phi, scores.Signed())
    for i, alpha in enumerate(GOLDEN["alphas"]):
        found = cp(np.zeros(len(phi_new), FLOAT), alpha, features=phi_new)
        assert_allclose(found.upper, GOLDEN["signed_upper"][i], rtol=RTOL)
        assert_allclose(found.lower, GOLDEN["signed_lower"][i], rtol=RTOL)


@pytest.mark.parametrize("n", [1, 9, 20, 999])
def test_an_intercept_is_split_and_cells_are_groups_to_the_last_bit(n):
    rng = np.random.default_rng(n)
    y, groups = rng.normal(size=n).astype("f"), rng.integers(0, 3, n)
    split = jaxcp.calibrate(ABSOLUTE, 0 * y, y)
    mondrian = jaxcp.calibrate_groups(ABSOLUTE, 0 * y, y, groups, num_groups=4)
    flat, cells = calibrated(y, np.ones((n, 1))), calibrated(y, np.eye(4)[groups])
    for alpha in (0.001, 0.05, 0.1, 0.2, 0.5, 0.9):
        assert flat.quantile(alpha, features=np.ones(1)) == split.quantile(alpha)
        found = upper(cells, np.eye(4), alpha)
        expected = mondrian(np.zeros(4, "f"), alpha, groups=np.arange(4))
        assert_array_equal(found, expected.upper)


def by_highs(values, features, phi, alpha, u):
    """Returns phi'g by a linear program, +inf where it is unbounded."""
    n, p = features.shape
    costs = np.concatenate([-u * phi, np.full(n, 1 - alpha), np.full(n, alpha)])
    rows = np.hstack([features, np.eye(n), -np.eye(n)])
    bounds = [(None, None)] * p + [(0, None)] * (2 * n)
    found = linprog(costs, A_eq=rows, b_eq=values, bounds=bounds, method="highs")
    return found.x[:p] @ phi if found.status == 0 else np.inf


@pytest.mark.parametrize("kind", ["flags", "integers", "dependent"])
def test_ties_are_those_of_a_linear_program(kind):
    rng, (n, m, p) = np.random.default_rng(0), (30, 6, 4)
    features = {
        "flags": lambda: rng.random((n + m, p)) < 0.4,
        "integers": lambda: rng.integers(-2, 3, (n + m, p)),
        "dependent": lambda: (
            rng.integers(0, 4, (n + m, 2)) @ [[1, 0, 1, 2], [0, 1, 1, 3]]
        ),
    }[kind]
    for _ in range(4):
        values, phi = rng.integers(0, 5, n), np.array(features(), float)
        cp = calibrated(values, phi[:n])
        for alpha in (0.1, 0.25, 0.5):
            found = upper(cp, phi[n:], alpha)
            for q, row in zip(found, phi[n:], strict=True):
                below = (
                    by_highs(values, phi[:n], row, alpha, 1 - alpha - e) for e in STEPS
                )
                low, high = below  # another vertex in between: no left limit from here
                if low == high or abs(high - low) < 1e-6:
                    expected = high if row.any() else np.inf
                    assert q == expected or abs(q - expected) < 1e-4


STEPS = 2e-3, 1e-3


def test_sets_are_those_of_duals():
    rng = np.random.default_rng(0)
    phi = np.stack([np.ones(60), rng.random(60)], axis=1)
    cp, y = calibrated(rng.normal(size=40), phi[:40]), rng.normal(size=20)
    u, preds = rng.random(20), np.zeros(20, FLOAT)
    dual = cp.dual(preds, y, 0.2, features=phi[40:])
    inside = cp(preds, 0.2, features=phi[40:]).contains(y)
    assert_array_equal(inside, dual < 0.8 - 1e-4)
    inside = cp(preds, 0.2, features=phi[40:], u=u).contains(y)
    assert_array_equal(inside, dual < u - 0.2)


def test_where_rows_know_nothing_sets_are_infinite():
    rows = np.eye(3)[np.arange(20) % 2]
    cp, given = calibrated(np.arange(20.0), rows), np.eye(3)[[0, 2, 2]]
    assert_array_equal(np.isinf(upper(cp, given, 0.2)), [False, True, True])
    assert np.all(np.isinf(upper(cp, 0 * given, 0.2)))
    # Randomized they are nothing with probability alpha: the promise is an equation.
    ends = upper(cp, given, 0.2, u=np.array([0.5, 0.1, 0.3], FLOAT))
    assert_array_equal(np.isneginf(ends), [False, True, False])
    # Numbers depend on each other but for rounding, and only within the rows.
    x = np.random.default_rng(0).random(30)
    line = np.stack([np.ones(30), x, 3 * x - 1], axis=1)
    cp, given = calibrated(x, line), np.array([[1, 0.5, 0.5], [1, 0.5, 0.6]])
    assert_array_equal(np.isinf(upper(cp, given, 0.2)), [False, True])
    for n in (0, 1):
        assert np.all(np.isinf(upper(calibrated(x[:n], line[:n]), given, 0.2)))


def test_infinite_scores_lie_above_every_fit():
    y, flags = np.arange(20.0), np.eye(2)[np.arange(20) % 2]
    preds = np.where(np.arange(20) % 2, np.inf, 0.0)
    cp = jaxcp.calibrate_conditional(ABSOLUTE, preds, y, flags)
    assert_array_equal(upper(cp, np.eye(2), 0.3), [14, np.inf])


def test_the_slope_is_linear_in_the_scores_of_the_basis():
    rng = np.random.default_rng(0)
    values, x = rng.random(40), rng.random(40)
    phi = np.stack([np.ones(40), x], axis=1)

    def total(values, phi, new):
        cp = jaxcp.calibrate_conditional(ABSOLUTE, 0 * values, values, phi)
        return cp.quantile(0.2, features=new)

    given = tuple(jnp.asarray(v, FLOAT) for v in (values, phi, phi[3]))
    slopes = jax.grad(total, (0, 1, 2))(*given)
    assert_allclose(jnp.sum(slopes[0]), 1, rtol=1e-4)  # with an intercept
    assert_allclose(slopes[0] @ given[0], total(*given), rtol=1e-4)
    # A scale of the features moves nothing, at rows and test point alike.
    moved = jnp.sum(slopes[1] * given[1], 0) + slopes[2] * given[2]
    assert_allclose(moved, [0, 0], atol=1e-4)


def test_wrong_calls():
    ones = np.ones((9, 1))
    with pytest.raises(ValueError, match=r"features of shape \(n, p\), got \(9,\)"):
        calibrated(np.arange(9.0), np.ones(9))
    cp, preds = calibrated(np.arange(9.0), ones), np.zeros(9, FLOAT)
    with pytest.raises(ValueError, match="features with rows of shape"):
        cp(preds, 0.1, features=np.ones((9, 2)))
    with pytest.raises(ValueError, match="nested = False"):
        cp.p_values(preds, preds, features=ones)
    with pytest.raises(ValueError, match="delta=None"):
        cp.quantile(0.1, delta=0.1, features=ones[0])


@pytest.mark.skipif(np.float64 == FLOAT, reason="digits are lost in single precision")
def test_features_that_rounding_makes_dependent_are_refused():
    years, powers = 2000 + np.arange(40.0)[:, None], np.arange(4)
    with pytest.raises(ValueError, match="independent in single precision"):
        calibrated(years[:, 0], years**powers)
    calibrated(years[:, 0], (years - 2020) ** powers)


def test_a_search_that_does_not_end_says_nothing(monkeypatch):
    values, phi, one = jnp.arange(9.0), jnp.ones((9, 1)), jnp.ones(1)

    def found():
        fitted = _regression.fit(values, phi, jnp.asarray(0.3))
        rows = values, phi, fitted, one
        return _regression.threshold(*rows), _regression.dual(*rows, 20.0)

    q, dual = jax.jit(lambda: found())()
    assert q == 6
    assert_allclose(dual, 0.7, rtol=1e-6)
    monkeypatch.setattr(_regression, "_ROUNDS", -1)  # and one for the feature
    assert jax.jit(lambda: found())() == (np.inf, 0)


def test_rules_are_no_scores_for_risks():
    cp = calibrated(np.arange(9.0), np.ones((9, 1)))
    with pytest.raises(ValueError, match="a score with an inverse, got Conditional"):
        jaxcp.risk.calibrate_risk(jaxcp.risk.miscoverage, cp, np.zeros(9), np.ones(9))


def test_where_the_fit_has_no_end_it_follows_u():
    """Integers whose pivots pass several edges without an end (HiGHS: unbounded)."""
    phi = [[1, 1, 2, 1], [1, -1, 1, -1], [-2, 1, 0, -2], [-2, -2, 0, -2]]
    phi += [[-1, 2, 0, -2], [0, -1, 2, -2], [-1, -1, 1, 1], [1, -2, -1, 2]]
    cp, new = calibrated([1, 1, 0, 6, 1, 4, 8, 7], phi), np.array([[1, -2, -1, -2]])
    assert upper(cp, new, 0.05) == np.inf
    assert upper(cp, new, 0.95, u=np.zeros(1)) == -np.inf


def test_infinite_scores_are_large_beyond_all_others():
    """What sets are as a score grows: an LP with a large one in their place."""
    y, x = np.r_[1.0:9.0, 9.0, 9.0], np.linspace(-1, 1, 10)
    y, preds = y.astype(FLOAT), np.where(y < 9, 0, np.inf).astype(FLOAT)
    phi, new = np.stack([x**0, x], 1), np.array([[1, 1.0], [1, -1], [1, 0.1]])
    cp = jaxcp.calibrate_conditional(ABSOLUTE, preds, y, phi)
    for alpha, u in [(0.1, None), (0.3, None), (0.6, None), (0.3, 0.4), (0.6, 0.7)]:
        given = {} if u is None else {"u": np.full(3, u, FLOAT)}
        found, level = upper(cp, new, alpha, **given), (1 if u is None else u) - alpha
        for q, phi_new in zip(found, new, strict=True):
            low, high = (
                by_highs(np.where(preds > 0, m, y), phi, phi_new, alpha, level - 1e-3)
                for m in (1e4, 1e6)
            )
            expected = high if abs(high - low) < 1e-3 else np.sign(high - low) * np.inf
            assert_allclose(q, high if np.isinf(high) else expected, rtol=1e-5)


@pytest.mark.parametrize("num_values", [2, 5])
def test_many_ties(num_values):
    rng = np.random.default_rng(num_values)
    y, x = rng.integers(0, num_values, 2000).astype(FLOAT), rng.random(2000) < 0.5
    split = jaxcp.calibrate(ABSOLUTE, 0 * y, y)
    groups = jaxcp.calibrate_groups(ABSOLUTE, 0 * y, y, x.astype(int), num_groups=2)
    flat = calibrated(y, np.stack([x**0, 0 * x], 1))
    cells = calibrated(y, np.stack([x == 0, x], 1))
    for alpha in (0.05, 0.1, 0.6, 0.95):
        assert flat.quantile(alpha, features=np.array([1, 0])) == split.quantile(alpha)
        expected = groups(np.zeros(2, FLOAT), alpha, groups=np.arange(2)).upper
        assert_array_equal(upper(cells, np.eye(2), alpha), expected)


def least_norm(values, features, alpha):
    """Returns the optimal duals of least norm: a linear program, then a projection."""
    n, p = features.shape
    costs = np.concatenate([np.zeros(p), np.full(n, 1 - alpha), np.full(n, alpha)])
    rows = np.hstack([features, np.eye(n), -np.eye(n)])
    bounds = [(None, None)] * p + [(0, None)] * (2 * n)
    found = linprog(costs, A_eq=rows, b_eq=values, bounds=bounds, method="highs")
    r = values - features @ found.x[:p]
    tied, eta = abs(r) < 1e-7, np.where(r > 0, 1 - alpha, -alpha)
    # Their sum has a price so high that it is met to eight digits.
    phi, price = features[tied], 1e4
    design = np.vstack([np.eye(len(phi)), price * phi.T])
    target = np.append(np.zeros(len(phi)), -price * (eta[~tied] @ features[~tied]))
    box = (-alpha, 1 - alpha)
    eta[tied] = lsq_linear(design, target, box, method="bvls", tol=1e-14).x
    return eta


@pytest.mark.parametrize("kind", ["flags", "integers", "plane"])
def test_duals_of_rows_that_tie_have_least_norm(kind):
    rng, (n, m, alpha) = np.random.default_rng(0), (14, 32, 0.25)
    if kind == "flags":
        phi = rng.random((n + m, 3)) < [1, 0.4, 0.5]
        values = rng.integers(0, 4, n + m)
    elif kind == "integers":
        x = rng.integers(0, 4, n + m)
        phi, values = np.stack([x**0, x, x**2], 1), x + rng.integers(0, 3, n + m)
    else:  # most rows lie on a line but for rounding
        x = rng.random((n + m, 2)).astype(FLOAT)
        phi = np.column_stack([np.ones(n + m), x])
        noise = (rng.random(n + m) < 0.3) * rng.normal(size=n + m)
        values = 0.1 + x @ np.array([0.3, 0.7], FLOAT) + noise
    phi, values, zeros = phi.astype(FLOAT), values.astype(FLOAT), np.zeros(m, FLOAT)
    cp, u = calibrated(values[:n], phi[:n], scores.Residual()), rng.random(m)
    duals = cp.dual(zeros, values[n:], alpha, features=phi[n:])
    covered = cp(zeros, alpha, features=phi[n:], u=u.astype(FLOAT)).contains(values[n:])
    expected = np.array(
        [
            least_norm(np.append(values[:n], v), np.vstack([phi[:n], row]), alpha)[-1]
            for v, row in zip(values[n:], phi[n:], strict=True)
        ]
    )
    assert_allclose(duals, expected, atol=2e-4)
    assert_array_equal(covered, expected < u - alpha)


@partial(jax.jit, static_argnames="alpha")
def traced_upper(cp, alpha, u):
    zeros, ones = jnp.zeros(len(u), FLOAT), jnp.ones((len(u), 1))
    return cp(zeros, alpha, features=ones, u=u).upper


@pytest.mark.parametrize("num_values", [1, 3, 1000])
def test_smoothed_sets_of_an_intercept_are_those_of_split(num_values):
    rng = np.random.default_rng(10 + num_values)
    values = rng.integers(0, num_values, 20).astype(FLOAT)
    u, zeros, ones = rng.random(64).astype(FLOAT), np.zeros(64, FLOAT), np.ones((64, 1))
    split = jaxcp.calibrate(ABSOLUTE, 0 * values, values)
    flat = calibrated(values, ones[:20])
    for alpha in (0.03, 0.2, 0.55):
        expected = split(zeros, alpha, u=u).upper
        assert_array_equal(upper(flat, ones, alpha, u=u), expected)
        assert_array_equal(traced_upper(flat, alpha, u), expected)


def test_scores_on_a_plane_are_covered():
    """They are linear in the features but for rounding: exact arithmetic covers all."""
    rng, zeros = np.random.default_rng(0), np.zeros(20, FLOAT)
    for _ in range(20):
        flags = (rng.random((59, 4)) < [1, 0.4, 0.4, 0.4]).astype(FLOAT)
        values = np.array(0.1, FLOAT) + flags[:, 1:] @ np.array([0.3, 0.7, -0.2], FLOAT)
        cp = calibrated(values[:39], flags[:39], scores.Residual())
        sets = cp(zeros, 0.1, features=flags[39:])
        assert np.all(sets.contains(values[39:]))


def test_traced_targets_without_a_value_have_infinite_scores():
    rng = np.random.default_rng(0)
    y, x = rng.random(12).astype(FLOAT), rng.random(12)
    y[[3, 8]] = np.nan
    phi, zeros = np.stack([x**0, x], 1).astype(FLOAT), np.zeros(12, FLOAT)

    @jax.jit
    def bounds(preds, y):
        cp = jaxcp.calibrate_conditional(ABSOLUTE, preds, y, phi)
        return cp(zeros, 0.4, features=phi).upper

    infinite = np.where(np.isnan(y), np.inf, 0).astype(FLOAT)
    expected = upper(
        jaxcp.calibrate_conditional(ABSOLUTE, infinite, np.nan_to_num(y), phi), phi, 0.4
    )
    assert_allclose(bounds(zeros, y), expected, rtol=1e-5)


def test_features_of_zeros_have_a_dual_of_zero():
    cp = calibrated(np.arange(9.0), np.ones((9, 1)))
    dual = cp.dual(np.zeros(1, FLOAT), np.full(1, 20.0), 0.2, features=np.zeros((1, 1)))
    assert_array_equal(dual, [0])


def test_infinite_scores_do_not_move_fits_among_the_others():
    """They are as a score of 10^6 is, wherever that gives a bound that is not large."""
    x = np.linspace(-1, 1, 12)
    y = np.r_[np.arange(1.0, 11.0), 0, 0].astype(FLOAT)
    phi = np.stack([x**0, x], 1).astype(FLOAT)
    far = {v: np.r_[np.zeros(10), v, v].astype(FLOAT) for v in (np.inf, 1e6)}
    infinite, large = (
        upper(jaxcp.calibrate_conditional(ABSOLUTE, v, y, phi), phi, 0.3)
        for v in far.values()
    )
    expected = np.where(abs(large) < 1e3, large, np.sign(large) * np.inf)
    assert np.isfinite(expected).any() and np.isinf(expected).any()
    assert_allclose(infinite, expected, rtol=1e-5)
