"""The experiments still fit the library: traced, not run."""

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
from experiments import (
    cross_speed,
    enbpi_solar,
    jackknife_barber,
    lei_table,
    series,
    showcase_streams,
)
from jaxcp import online

KEY = jax.random.key(0)


def test_published_tables_are_traced():
    lines = jax.eval_shape(lei_table.trial, KEY)
    assert set(lei_table.PUBLISHED) <= set(lines)
    for d in (5, 100):
        lines = jax.eval_shape(lambda k, d=d: jackknife_barber.trial(k, d), KEY)
        assert set(jackknife_barber.PUBLISHED[d]) <= set(lines)


@pytest.mark.parametrize("name", showcase_streams.METHODS)
def test_streams_of_the_showcase(name):
    series_ = showcase_streams.Series(
        "generated", jnp.ones(9), jnp.zeros(9), jnp.linspace(0, 1, 600), None
    )
    sets = jax.eval_shape(lambda: showcase_streams.sets_of(name, series_, 0.1))
    assert sets.upper.shape == (9,)


def test_timed_streams_and_generated_series():
    for method, size, _ in cross_speed.STREAMS.values():
        state = method.init(jnp.ones(size), 0.1)
        run = lambda y, m=method, s=state: online.run(m, s, y, y, 0.1)[1]  # noqa: E731
        assert jax.eval_shape(run, jnp.ones(3)).upper.shape == (3,)
    x, y = series.autoregression(KEY, 50)
    assert x.shape == (50, 2) and y.shape == (50,)


def test_solar_data_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"solar_atlanta\.csv, hourly rows"):
        series.solar(tmp_path)
    assert list(enbpi_solar.PUBLISHED) == [876, 1654, 2433]
