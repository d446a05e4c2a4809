"""Certificates of risk: bounds of the mean loss, and the law of losses of 0 and 1."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import betainc

import jaxcp
from jaxcp import risk, scores

N, TRIALS = 19, 10_000
ROWS = jax.random.uniform(jax.random.key(0), (TRIALS, N))  # their own scores


def thresholds(loss, alpha, **options):
    """The thresholds of many calibration sets of uniform targets, and a certificate."""

    def calibrated(y):
        return risk.calibrate_risk(loss, scores.Residual(), 0 * y, y, **options)

    q = jax.vmap(lambda y: calibrated(y).quantile(alpha))(ROWS)
    return np.asarray(q, float), calibrated(ROWS[0]).certificate(alpha)


def assert_mean(values, expected):
    error = values.std() / np.sqrt(len(values))
    assert abs(values.mean() - expected) < 4 * error


@pytest.mark.parametrize("tail", [None, 0.25])
def test_the_law_of_a_loss_of_0_and_1(tail):
    """A miss, and a distance beyond a tail: with 19 rows at 0.2 the mean is 4/20."""
    loss = risk.miscoverage if tail is None else risk.shortfall(1.0)
    q, proof = thresholds(loss, 0.2, tail=tail)
    found = 1 - q - (tail or 0)  # P(y - q > tail) of a uniform y
    assert proof.law == (4, 16) and proof.upper == proof.lower == 0.2
    assert_mean(found, 0.2)
    spread = np.sqrt(4 * 16 / 20**2 / 21)  # of Beta(4, 16)
    error = spread * np.sqrt(2 / TRIALS)  # about; of the deviation of many draws
    assert abs(found.std() - spread) < 4 * error
    below = float(betainc(4, 16, 0.1))  # P(risk <= 0.1)
    assert abs(np.mean(found <= 0.1) - below) < 4 * np.sqrt(below / TRIALS)


def test_the_mean_of_a_loss_is_between_its_bounds():
    """Of the distance of a uniform y from its bound: E (y - q)+ = (1 - q)^2 / 2."""
    q, proof = thresholds(risk.shortfall(1.0), 0.2)
    assert proof.upper == 0.2 and proof.lower == pytest.approx(0.2 - 2 / (N + 1))
    assert ((q > 0) & (q < 1)).all()
    found = (1 - q) ** 2 / 2
    error = found.std() / np.sqrt(TRIALS)
    assert proof.lower - 4 * error < found.mean() < proof.upper + 4 * error


def test_with_delta_and_in_groups():
    y = jnp.arange(1.0, 100.0)
    flags = risk.calibrate_risk(risk.miscoverage, scores.Absolute(), 0 * y, y)
    proof, split = flags.certificate(0.1, 0.1), jaxcp.certificates.certificate
    assert proof.rank == split(99, 0.1, 0.1).rank
    assert proof.upper == pytest.approx(1 - split(99, 0.1, 0.1).coverage)
    assert flags.certificate(0.1).law == split(99, 0.1).law[::-1]
    assert str(flags.certificate(0.1)).startswith("risk 0.1 on average, Beta(10, 90) ")
    loss, group = risk.shortfall(1.0), np.arange(99) % 2
    each = risk.calibrate_risk(
        loss, scores.Absolute(), 0 * y, y, groups=group, num_groups=2
    )
    assert [(v.n, v.upper) for v in each.certificate(0.2)] == [(50, 0.2), (49, 0.2)]
    held = risk.calibrate_risk(loss, scores.Absolute(), 0 * y, y, mask=y < 50)
    proof = held.certificate(0.1, delta=0.05)
    assert proof.n == 49 and proof.lower == 0 and proof.delta == Fraction(1, 20)
    assert "with probability 0.95 over calibration sets" in str(proof)


def test_units_of_the_loss():
    y = jnp.arange(1.0, 100.0)

    def cost(one, y):
        return 5 * jnp.clip(y - one.upper, 0, 1)

    cp = risk.calibrate_risk(cost, scores.Absolute(), 0 * y, y, bound=5.0)
    proof = cp.certificate(0.5)
    assert (proof.upper, proof.lower) == (0.5, pytest.approx(0.5 - 10 / 100))
    with pytest.raises(
        ValueError, match="a loss of 0 or 1 with thresholds of all floats"
    ):
        _ = proof.law
    with pytest.raises(ValueError, match=r"alpha in \(0, 5\)"):
        cp.certificate(6.0)


def test_what_has_no_law_or_no_bound():
    y = jnp.arange(1.0, 10.0)
    args = scores.Absolute(), 0 * y, y
    loss = risk.miscoverage
    on_grid = risk.calibrate_risk(loss, *args, grid=jnp.arange(9.0)).certificate(0.3)
    assert on_grid.rank is None and (on_grid.upper, on_grid.lower) == (0.3, 0)
    with pytest.raises(ValueError, match="loss of 0 or 1"):
        _ = on_grid.law
    for cp in (
        risk.calibrate_risk(loss, *args, weights=jnp.ones(9)),
        risk.calibrate_risk((loss, loss), *args),
    ):
        with pytest.raises(ValueError, match="one loss without weights"):
            cp.certificate(0.1)
    cp = risk.calibrate_risk(loss, *args)
    with pytest.raises(ValueError, match="alpha as a number, got a jax array"):
        cp.certificate(jnp.array(0.1))
    traced = jax.jit(
        lambda m: risk.calibrate_risk(loss, *args, mask=m).certificate(0.1)
    )
    with pytest.raises(ValueError, match="a mask with values"):
        traced(y > 1)
