"""What may come in: masked rows, traced values, every kind of array."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from jaxcp import metrics, scores
from rows import P, X, Y


def test_masked_rows_are_not_checked():
    y = X.at[4].set(jnp.nan)
    mask = jnp.arange(9) != 4
    cp = jaxcp.calibrate(scores.Absolute(), jnp.zeros(9), y, mask=mask)
    assert cp.quantile(0.2) == 9
    weights = jnp.where(mask, 1.0, jnp.nan)
    jaxcp.calibrate(scores.Absolute(), jnp.zeros(9), y, mask=mask, weights=weights)
    sigma = jnp.where(mask, 1.0, -1.0)
    jaxcp.calibrate(scores.Normalized(), (X, sigma), X, mask=mask)


def test_traced_values_never_raise():
    bad = X.at[4].set(jnp.nan)
    sets = jax.jit(lambda p, y: jaxcp.calibrate(scores.Absolute(), p, y)(X, 0.1))(
        X, bad
    )
    assert np.all(np.isinf(sets.upper))  # the NaN score counts as infinite
    labels = jax.jit(lambda p, y: jaxcp.calibrate(scores.APS(), p, y)(P, 0.1))(P, Y + 1)
    assert np.all(labels.mask)


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        lambda v: np.asarray(v).tolist(),
        lambda v: pd.DataFrame(v) if np.ndim(v) > 1 else pd.Series(v),
        lambda v: np.asarray(v, np.float64 if np.asarray(v).dtype.kind == "f" else int),
    ],
    ids=["numpy", "lists", "pandas", "wide"],
)
def test_every_kind_of_array_is_accepted(convert):
    x, p, y = convert(np.asarray(X)), convert(np.asarray(P)), convert(np.asarray(Y))
    zeros = convert(np.zeros(9))
    cp = jaxcp.calibrate(scores.Absolute(), zeros, x, weights=convert(np.ones(9)))
    assert cp.quantile(0.1) == 9
    assert_array_equal(cp(zeros, 0.1).upper, np.full(9, 9))
    pair = jaxcp.calibrate(scores.CQR(), (zeros, x), x)
    assert_array_equal(pair.scores, np.zeros(9))
    labels = jaxcp.calibrate(scores.LAC(), p, y)
    assert metrics.coverage(labels(p, 0.2), y) == 1
    groups = jaxcp.calibrate_groups(scores.Absolute(), zeros, x, y, num_groups=3)
    assert_array_equal(groups(zeros, 0.5, groups=y).upper[:3], [4, 5, 6])
    assert jaxcp.conformal_quantile(x, 0.2) == 8
    assert jaxcp.kth_smallest(x, 3) == 3


def test_torch_tensors_are_accepted():
    torch = pytest.importorskip("torch")
    x = torch.arange(1.0, 10.0, requires_grad=True)
    cp = jaxcp.calibrate(scores.Absolute(), torch.zeros(9), x)
    assert cp.quantile(0.1) == 9
    assert_array_equal(cp(torch.zeros(2), 0.2).upper, [8, 8])


def test_integer_data():
    cp = jaxcp.calibrate(scores.Absolute(), np.zeros(9, int), np.arange(1, 10))
    assert cp.quantile(0.2) == 8
    assert jnp.issubdtype(cp.quantile(0.2).dtype, jnp.floating)
    assert_array_equal(cp(np.array([1, 2]), 0.2).upper, [9, 10])
    assert np.all(np.isinf(cp(np.array([1, 2]), 0.01).size()))
