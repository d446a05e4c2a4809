"""Quantiles of a loss and means beyond them: vectors, exact laws, edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from helpers import cases
from jaxcp import risk

VECTORS = cases("risk/quantile_risk")


@pytest.mark.parametrize("case", VECTORS.values(), ids=VECTORS)
@pytest.mark.parametrize("method", ["simes", "dkw"])
def test_vectors(case, method):
    delta, losses = case["delta"].item(), case["losses"]
    bounds = risk.cdf_bounds(len(losses), delta, method)
    assert_allclose(bounds, case[f"b_{method}"], rtol=1e-12, atol=1e-15)
    with jax.enable_x64(True):
        mean = risk.conditional_value_at_risk(losses, 0, delta, method=method)
        assert_allclose(mean, case[f"mean_{method}"], rtol=1e-9)
        for i, beta in enumerate(case["betas"].tolist()):
            found = risk.value_at_risk(losses, beta, delta, method=method)
            assert found == case[f"var_{method}"][i]
            alone = risk.value_at_risk(losses, beta, delta, method="single")
            assert alone == case["var_single"][i]
            found = risk.conditional_value_at_risk(losses, beta, delta, method=method)
            assert_allclose(found, case[f"cvar_{method}"][i], rtol=1e-9)


def chance_of_all(bounds):
    """P(U_(i) >= b_i for all i): how many uniforms lie below each bound, by steps."""
    n, below, last = len(bounds), np.array([1.0]), 0.0
    for i, b in enumerate(bounds):
        # Of those that are not below the last bound, some are below this; at most i.
        step = [
            stats.binom.pmf(np.arange(i - k + 1), n - k, (b - last) / (1 - last)) * p
            for k, p in enumerate(below[: i + 1])
        ]
        below = np.zeros(i + 1)
        for k, p in enumerate(step):
            below[k:] += p
        last = b
    return below.sum()


@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_bounds_hold_together(n):
    """Exactly with probability 1 - delta by Simes, at least so by DKW."""
    for delta in (0.05, 0.5):
        simes, dkw = (risk.cdf_bounds(n, delta, v) for v in ("simes", "dkw"))
        assert_allclose(chance_of_all(simes), 1 - delta, rtol=1e-9)
        assert chance_of_all(dkw) >= 1 - delta
        for bounds in (simes, dkw):
            assert np.all(np.diff(bounds) >= 0) and 0 <= bounds[0] <= bounds[-1] < 1


def test_one_quantile_alone_has_the_exact_rank():
    """Also where P(Bin(n, beta) <= i - 1) is 1 - delta exactly: 1 - 2^-n."""
    losses = jnp.arange(1.0, 10.0)
    for beta, delta in [(0.5, 2.0**-9), (0.5, 0.1), (0.3, 0.05), (0.8, 0.2)]:
        found = risk.value_at_risk(losses, beta, delta, bound=99, method="single")
        tails = stats.binom.cdf(np.arange(9), 9, beta)
        assert found == next((i + 1 for i, p in enumerate(tails) if p >= 1 - delta), 99)


def test_means_beyond_quantiles_by_integration():
    rng = np.random.default_rng(0)
    losses, delta, bound = rng.integers(0, 5, 20) / 4.0, 0.1, 2.0
    bounds = risk.cdf_bounds(20, delta)
    for beta in (0.0, 0.35, 0.99):
        u = beta + (1 - beta) * (np.arange(200_000) + 0.5) / 200_000
        steps = np.append(np.sort(losses), bound)[np.searchsorted(bounds, u)]
        found = risk.conditional_value_at_risk(losses, beta, delta, bound=bound)
        assert_allclose(found, steps.mean(), rtol=1e-4)


def test_edges_of_quantile_risk():
    both = risk.value_at_risk, risk.conditional_value_at_risk
    for find in both:
        assert find(jnp.zeros(0), 0.5, 0.1, bound=3.0) == 3
        assert find(jnp.array([0.5]), 0.9, 0.1, bound=jnp.inf) == jnp.inf
        assert find(jnp.ones(9), 0.5, 0.1) == 1
        assert find(jnp.zeros(9, bool), 0.2, 0.5).dtype == jnp.float32
        coarse = find(jnp.zeros(9, jnp.bfloat16), 0.2, 0.5)
        assert coarse.dtype == jnp.bfloat16
        losses = jnp.linspace(0, 1, 40).reshape(2, 20)
        several = jax.jit(jax.vmap(lambda v, find=find: find(v, 0.5, 0.1)))(losses)
        assert_allclose(several, [find(v, 0.5, 0.1) for v in losses], rtol=1e-6)
        slope = jax.grad(lambda v, find=find: find(v, 0.5, 0.1))(losses[0])
        assert np.all(slope >= 0) and 0 < slope.sum() <= 1 + 1e-6
        unknown = jax.jit(lambda v, find=find: find(v, 0.5, 0.1))
        as_bound = unknown(losses[0].at[3].set(1.0))
        assert_array_equal(unknown(losses[0].at[3].set(jnp.nan)), as_bound)


def test_quantile_risk_holds_with_probability():
    """For an exponential loss cut off at 3: VaR and CVaR at once, and one alone."""

    def misses(key):
        losses = jnp.minimum(jax.random.exponential(key, (40,)), 3)
        own = {"beta": 0.7, "delta": 0.2, "bound": 3.0}
        alone = risk.value_at_risk(losses, **own, method="single") < -np.log(0.3)
        # E[min(X, 3) | X > q] = q + 1 - e^(q - 3)
        quantile = -np.log(0.3)
        mean = quantile + 1 - np.exp(quantile - 3)
        beyond = risk.conditional_value_at_risk(losses, **own) < mean
        return alone, beyond | (risk.value_at_risk(losses, **own) < quantile)

    keys = jax.random.split(jax.random.key(0), 4000)
    alone, together = (np.mean(v) for v in jax.jit(jax.vmap(misses))(keys))
    rank = next(i for i in range(40) if stats.binom.cdf(i, 40, 0.7) >= 0.8)
    exact = stats.binom.sf(rank, 40, 0.7)
    assert abs(alone - exact) < 4 * (exact * (1 - exact) / 4000) ** 0.5
    assert together <= 0.2
