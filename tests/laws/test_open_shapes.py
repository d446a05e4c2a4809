"""Programs under `jax.export` that leave numbers of rows open: one for any number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxcp
from helpers import cut, same
from jaxcp import outliers
from rows import ABSOLUTE, POINTWISE

SIZES = 1, 40


def numbers(shape):
    return np.random.default_rng(0).normal(size=shape).astype("f")


def exported(call, shape):
    """Returns the program of a call for an open number of rows."""
    rows = jax.ShapeDtypeStruct(shape(*export.symbolic_shape("b")), jnp.float32)
    return export.export(jax.jit(call))(rows).call


def check(call, shape=lambda n: (n,)):
    """The program for an open number gives what the call gives for several."""
    program = exported(call, shape)
    for n in SIZES:
        given = numbers(shape(n))
        same(program(given), call(given), 1e-6, like=False)


@pytest.mark.parametrize("name", POINTWISE)
def test_any_number_of_test_points(name):
    make, call = POINTWISE[name]
    cp = make(30)
    program = exported(lambda t: call(cp, t), lambda n: (n,))
    given = numbers(40) + np.float32(0.01)  # no row of the calibration: ties round
    wanted = call(cp, given)  # of one point it is that point's
    same(program(given), wanted, 1e-6, like=False)
    same(program(given[:1]), cut(wanted, slice(1)), 1e-6, like=False)


def groups_of(x):
    return (jnp.abs(x) * 7).astype(int) % 3


def by_group(x, **options):
    own = {"num_groups": 3} | options
    return jaxcp.calibrate_groups(ABSOLUTE, 0 * x, x, groups_of(x), **own)


OF_SCORES = {
    "conformal": lambda x: jaxcp.conformal_quantile(x, 0.1),
    "masked": lambda x: jaxcp.conformal_quantile(x, 0.1, mask=x > 0),
    "many levels": lambda x: jaxcp.conformal_quantile(x, np.arange(1, 9) / 10),
    "level of jax": lambda x: jaxcp.conformal_quantile(x, jnp.float32(0.3)),
    "weighted": lambda x: jaxcp.weighted_conformal_quantile(
        x, jnp.abs(x), 0.1, test_weight=1.0
    ),
    "soft": lambda x: jaxcp.soft_conformal_quantile(x, 0.1, bandwidth=0.1),
    "grouped": lambda x: jaxcp.grouped_conformal_quantile(
        x, groups_of(x), 0.3, num_groups=3
    ),
    "empirical": lambda x: jaxcp.empirical_quantile(x, 0.3),
    "order": lambda x: jaxcp.kth_smallest(x, 3),
    "order of integers": lambda x: jaxcp.kth_smallest((9 * x).astype(int), 3),
    "select": lambda x: jaxcp.weighted_select(x, jnp.abs(x), 1.0),
    "p-value": lambda x: jaxcp.conformal_p_value(
        x, 0.3, weights=jnp.abs(x), test_weight=1.0
    ),
    "outliers": lambda x: outliers.outlier_p_values(x, x),
    "calibrate": lambda x: jaxcp.calibrate(ABSOLUTE, 0 * x, x)(jnp.zeros(3), 0.3),
    "p-values": lambda x: jaxcp.calibrate(ABSOLUTE, 0 * x, x).p_values(
        jnp.zeros(3), jnp.ones(3)
    ),
    "calibrate, weights": lambda x: jaxcp.calibrate(
        ABSOLUTE, 0 * x, x, weights=jnp.abs(x)
    )(jnp.zeros(30), 0.3, test_weights=jnp.ones(30)),
    "calibrate_groups": lambda x: by_group(x)(jnp.zeros(3), 0.3, groups=jnp.arange(3)),
    "small groups": lambda x: by_group(x, min_size=3)(
        jnp.zeros(3), 0.3, groups=jnp.arange(3)
    ),
    "many groups": lambda x: jaxcp.grouped_conformal_quantile(
        x, (9 * x).astype(int) % 9, 0.3, num_groups=9
    ),
}


@pytest.mark.parametrize("name", OF_SCORES)
def test_any_number_of_scores(name):
    check(OF_SCORES[name])


def test_any_number_of_rows_or_of_columns():
    check(lambda x: jaxcp.conformal_quantile(x, 0.1), lambda n: (n, 3))
    check(lambda x: jaxcp.conformal_quantile(x, 0.1), lambda n: (20, n))


def test_words_of_weights_are_as_long_for_open_numbers():
    """A tenth of many rows is met exactly, on both sides of the change of words."""
    (b,) = export.symbolic_shape("b")
    rows = [jax.ShapeDtypeStruct((b,), jnp.float32)] * 2
    call = lambda x, w: jaxcp.weighted_conformal_quantile(x, w, 0.5)  # noqa: E731
    exported = export.export(jax.jit(call))(*rows)
    for n in (1000, 2048, 2049, 5000):
        x, w = np.arange(n, dtype="f"), np.full(n, 0.1, "f")
        assert exported.call(x, w) == call(x, w)


def test_an_open_number_of_rows_is_refused_with_delta():
    def call(x):
        return jaxcp.calibrate(ABSOLUTE, 0 * x, x).quantile(0.1, delta=0.1)

    (b,) = export.symbolic_shape("b")
    with pytest.raises(ValueError, match="known numbers of rows where delta is given"):
        export.export(jax.jit(call))(jax.ShapeDtypeStruct((b,), jnp.float32))
