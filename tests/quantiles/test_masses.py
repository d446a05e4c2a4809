from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from jaxcp._numbers import exponent_of, times_power
from jaxcp.quantiles._rows import total_mass


def weights_like(kind, n, rng):
    return {
        "uniform": rng.random(n),
        "heavy": rng.exponential(size=n) ** 6,
        "tenths": np.full(n, 0.1),
        "tiny": 1e-32 * rng.random(n),
        "zero": np.zeros(n),
    }[kind].astype(np.float32)


@pytest.mark.parametrize("kind", ["uniform", "heavy", "tenths", "tiny", "zero"])
def test_totals_do_not_depend_on_the_order(kind):
    """And are those of fractions to a digit: words are floats up to 2048, or ints."""
    rng, total = np.random.default_rng(0), jax.jit(total_mass)
    for n in (1, 100, 2000, 2**15):
        w = weights_like(kind, n, rng)
        exact = sum(map(Fraction, w.tolist()))
        assert abs(Fraction(float(total(w))) - exact) <= exact / 2**22
        assert total(w) == total(rng.permutation(w)) == total(w[::-1])


def test_a_mass_that_meets_the_level_counts():
    """495 of 1000 tenths are half of all, less the one of the test point."""
    x = jnp.arange(1000.0)
    w = jnp.full(1000, 0.1)
    exact = [Fraction(float(v)) for v in w]
    spare = (sum(exact) + 1) / 2 - 1
    above = int(spare // exact[0])
    q = jaxcp.weighted_conformal_quantile(x, w, 0.5, test_weight=1.0)
    assert above == 495 and q == 1000 - above - 1
    rng = np.random.default_rng(1)
    for _ in range(3):  # whatever the order of the rows
        order = rng.permutation(1000)
        assert q == jaxcp.weighted_conformal_quantile(x[order], w, 0.5)


def test_weights_that_are_not_finite_or_too_large():
    x = jnp.array([1.0, 2.0, 3.0])
    select = lambda w, t: jaxcp.weighted_select(x, jnp.array(w), t)  # noqa: E731
    assert select([1.0, jnp.inf, 1.0], 5.0) == 2
    assert select([2e37, 5e37, 3e37], 9e37) == 3
    assert select([3e38, 3e38, 3e38], 1e37) == 1
    assert select([jnp.nan, 1.0, 1.0], 1.5) == 3
    assert_array_equal(select([1.0, 1.0, 1.0], jnp.nan), -jnp.inf)
    assert select([1.0, 1.0, 1.0], 3.5) == jnp.inf
    assert select([1.0, 1.0, 1.0], 1e30) == jnp.inf
    assert select([1.0, 1.0, 1.0], -1e30) == -jnp.inf


@pytest.mark.double
def test_exponents_and_powers_of_two_are_those_of_frexp_and_ldexp():
    """Of all normal numbers, 0 and infinity, also where the power itself overflows."""
    rng, dtype = np.random.default_rng(0), jnp.zeros(()).dtype
    info = np.finfo(dtype)
    exponents = rng.integers(info.minexp, info.maxexp, 1000)
    x = np.ldexp(rng.uniform(1, 2, 1000), exponents).astype(dtype)
    x = np.concatenate([x, [0, np.inf, np.nan, info.tiny, info.max, 1]]).astype(dtype)
    known = np.isfinite(x)
    assert_array_equal(jax.jit(exponent_of)(x), np.where(known, np.frexp(x)[1], 0))
    # From where on products are normal, and so are both of its steps.
    least = np.maximum(info.minexp - exponents, 2 * info.minexp)
    for power in (least, np.maximum(least, 0), info.maxexp - 1 - exponents):
        found = jax.jit(times_power)(x[:1000], power)
        assert_array_equal(found, np.ldexp(x[:1000], power))
