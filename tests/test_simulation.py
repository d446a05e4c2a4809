import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import stats

import jaxcp


def trial(key):
    x = jax.random.normal(key, (5,))
    return {"mean": jnp.mean(x), "all": x, "count": jnp.sum(x > 0)}


def test_results_do_not_depend_on_the_batch_size(key):
    one = jaxcp.simulate(trial, key, 23)
    for batch_size in [1, 4, 23, 100]:
        other = jaxcp.simulate(trial, key, 23, batch_size=batch_size)
        jax.tree.map(assert_array_equal, one, other)
    assert one["all"].shape == (23, 5)
    longer = jaxcp.simulate(trial, key, 30)
    assert_array_equal(longer["all"][:23], one["all"])
    assert len(np.unique(longer["mean"])) == 30


def test_no_trials_keep_their_shapes(key):
    empty = jaxcp.simulate(trial, key, 0)
    assert empty["all"].shape == (0, 5)
    assert empty["count"].dtype == jaxcp.simulate(trial, key, 1)["count"].dtype


def test_second_call_traces_nothing(key):
    traces = []

    def counted(key):
        traces.append(1)
        return jax.random.normal(key)

    jaxcp.simulate(counted, key, 10, batch_size=5)
    jaxcp.simulate(counted, jax.random.key(1), 20, batch_size=5)
    assert len(traces) == 1


def test_progress_is_shown(key, capfd):
    jaxcp.simulate(trial, key, 10, batch_size=3, progress=True)
    assert "10.0/10.0" in capfd.readouterr().err


def test_errors(key):
    with pytest.raises(ValueError, match="num_trials as an int >= 0, got -1"):
        jaxcp.simulate(trial, key, -1)
    with pytest.raises(ValueError, match="batch_size as an int >= 1, got 0"):
        jaxcp.simulate(trial, key, 3, batch_size=0)


def test_coverage_law():
    assert jaxcp.coverage_law(99, 0.1) == (90, 10)
    assert jaxcp.coverage_law(8, 0.1) == (9, 0)
    with pytest.raises(ValueError, match=r"alpha in \(0, 1\), got 1.5"):
        jaxcp.coverage_law(9, 1.5)


@pytest.mark.parametrize(
    "eps, n", [(0.05, 102), (0.01, 2491), (0.005, 9812), (0.001, 244390)]
)
def test_published_calibration_sizes(eps, n):
    """From n rows on, abs(coverage - 0.9) <= eps with probability 0.9."""

    def probability(n):
        law = stats.beta(*jaxcp.coverage_law(n, 0.1))
        return law.cdf(0.9 + eps) - law.cdf(0.9 - eps)

    assert probability(n) >= 0.9 > probability(int(0.8 * n))
