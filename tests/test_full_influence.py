"""Approximate full conformal prediction by influence functions."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxcp import influence_conformal, learners

KEY = jax.random.key(0)
GOLDEN = Path(__file__).parent / "reference" / "full_influence.npz"


def _logistic(start, num_steps=0, **options):
    return learners.GradientLearner(
        init=lambda key: jnp.asarray(start),
        predict=lambda params, x: x @ params,
        loss=lambda pred, y: jnp.logaddexp(0, jnp.where(y == 1, -pred, pred)),
        optimizer=optax.adam(0.1),
        num_steps=num_steps,
        **options,
    )


LOGISTIC = _logistic(np.zeros(2, np.float32), 100)


def _line(penalty=0.0):
    """A line through the origin by squared errors, fitted exactly enough."""
    return learners.GradientLearner(
        init=lambda key: {"slope": jnp.zeros(1)},
        predict=lambda params, x: x @ params["slope"],
        loss=optax.squared_error,
        optimizer=optax.adam(0.1),
        num_steps=300,
    )


LINE = _line()


@pytest.mark.parametrize("deleted", [True, False])
def test_golden_of_a_logistic_regression(deleted):
    with jax.enable_x64(True), np.load(GOLDEN) as golden:
        case = {name.split("__")[1]: golden[name] for name in golden}
        cp = influence_conformal(
            KEY,
            _logistic(case["params"]),
            case["x"],
            case["y"].astype(int),
            num_labels=2,
            deleted=deleted,
            damping=case["damping"],
        )
        expected = case["p_deleted" if deleted else "p_ordinary"]
        x_new = case["x_new"]
        for label in (0, 1):
            p = cp.p_values(x_new, np.full(5, label))
            assert_allclose(p, expected[:, label], rtol=1e-9)
        for alpha in (0.05, 0.1, 0.3):
            kept = expected > alpha * (1 + 1e-9)
            assert_array_equal(cp(x_new, alpha).mask, kept)
