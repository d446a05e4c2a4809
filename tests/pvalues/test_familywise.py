"""Bonferroni, Holm, fixed sequences and graphs: exact, and rarely false."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcp import pvalues
from jaxcp.pvalues import bonferroni, fixed_sequence, graphical, holm

LTT = np.load(Path(__file__).parents[1] / "reference/risk/ltt.npz")


def chain(g):
    return np.full(g, 1 / g), np.eye(g, k=1)


def complete(g):
    return np.full(g, 1 / g), (1 - np.eye(g)) / max(g - 1, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", ["base", "one", "sorted", "ties"])
def test_exact_vectors(case, dtype):
    of = lambda name: LTT[f"{case}__{name}"]  # noqa: E731
    with jax.enable_x64(dtype is np.float64):
        p = jnp.asarray(of("p").astype(dtype))
        weights, onwards = (jnp.asarray(v, dtype) for v in chain(len(p)))
        graph = (jnp.asarray(of(v), dtype) for v in ("weights", "transitions"))
        graph = tuple(graph)
        for i, delta in enumerate(of("deltas").tolist()):
            got = {
                "bonferroni": bonferroni(p, delta),
                "holm": holm(p, delta),
                "fixed": fixed_sequence(p, delta),
                "multi": fixed_sequence(p, delta, starts=of("starts")),
                "fallback": graphical(p, delta, weights, onwards),
                "graph": graphical(p, delta, *graph),
            }
            for name, rejected in got.items():
                np.testing.assert_array_equal(rejected, of(name)[i], err_msg=name)


def test_nan_is_one_and_holm_finds_all_that_bonferroni_does():
    p = jnp.asarray(np.array([1e-9, 1e-8, 0.5, np.nan, 0.04], np.float32))
    one = jnp.where(jnp.isnan(p), 1, p)
    onwards = jnp.asarray(np.eye(5, k=1, dtype=np.float32))
    for test in (
        bonferroni,
        holm,
        fixed_sequence,
        lambda p, d: graphical(p, d, jnp.full(5, 0.2), onwards),
    ):
        np.testing.assert_array_equal(test(p, 0.1), test(one, 0.1))
    assert bonferroni(p, 0.1).tolist() == [True, True, False, False, False]
    assert np.all(holm(p, 0.1) >= bonferroni(p, 0.1))


def test_budgets_that_are_met_exactly_count():
    """p = delta / g, and the levels of Holm's steps, at decimals that round badly."""
    for g in (3, 49):
        for delta in (0.05, 0.3):
            levels = jnp.asarray(delta / np.arange(g, 0, -1), float)
            assert bonferroni(jnp.full(g, levels[0]), delta).all()
            assert holm(levels, delta).all()
            weights, passed = (jnp.asarray(v, float) for v in complete(g))
            assert graphical(levels, delta, weights, passed).all()
            starts = np.arange(g)
            assert fixed_sequence(jnp.full(g, levels[0]), delta, starts=starts).all()


def slow_fixed_sequence(p, delta, starts):
    rejected, alive = np.zeros(len(p), bool), False
    for i, v in enumerate(p):
        alive = (alive or i in starts) and v <= delta / len(starts)
        rejected[i] = alive
    return rejected


def test_special_cases_agree(key):
    """Holm and fixed sequences are graphs; jit is eager, vmap is a loop."""
    p = jax.random.uniform(key, (60, 9)) ** 4
    p = p.at[:, 3].set(0.0)
    first = jnp.zeros(9).at[0].set(1)
    weights, passed = (jnp.asarray(v, float) for v in complete(9))
    each = lambda test: jax.jit(jax.vmap(test))(p)  # noqa: E731
    by_graph = each(lambda p: graphical(p, 0.2, weights, passed))
    np.testing.assert_array_equal(by_graph, each(lambda p: holm(p, 0.2)))
    onwards = jnp.asarray(np.eye(9, k=1), float)
    by_graph = each(lambda p: graphical(p, 0.2, first, onwards))
    np.testing.assert_array_equal(by_graph, each(lambda p: fixed_sequence(p, 0.2)))
    for starts in ((0,), (4,), (1, 5, 6)):
        got = each(lambda p, s=starts: fixed_sequence(p, 0.2, starts=s))
        loop = [slow_fixed_sequence(np.asarray(row), 0.2, starts) for row in p]
        np.testing.assert_array_equal(got, loop)
        np.testing.assert_array_equal(fixed_sequence(p[0], 0.2, starts=starts), loop[0])


DELTA, HYPOTHESES = 0.1, 8


@jax.jit
@jax.vmap
def any_rejected(p):
    """Whether each test rejects a hypothesis or more."""
    weights, onwards = (jnp.asarray(v, float) for v in chain(HYPOTHESES))
    tests = {
        "bonferroni": bonferroni(p, DELTA),
        "holm": holm(p, DELTA),
        "fixed": fixed_sequence(p, DELTA),
        "multi": fixed_sequence(p, DELTA, starts=(0, 3, 6)),
        "graph": graphical(p, DELTA, weights, onwards),
    }
    return jax.tree.map(jnp.any, tests)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_false_rejections_are_as_rare_as_delta(correlation, key):
    """All hypotheses are true: independent, equally correlated, and the same."""
    runs, g, delta = 20_000, HYPOTHESES, DELTA
    key_common, key_own = jax.random.split(key)
    common = jax.random.normal(key_common, (runs, 1))
    own = jax.random.normal(key_own, (runs, g))
    z = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
    p = jax.scipy.stats.norm.cdf(z)
    error = 4 * np.sqrt(delta * (1 - delta) / runs)
    found = any_rejected(p)
    for name, wrong in found.items():
        assert wrong.mean() <= delta + error, name
    assert abs(found["fixed"].mean() - delta) <= error  # exactly one test at delta
    if correlation == 0:
        exact = 1 - (1 - delta / g) ** g
        for name in ("bonferroni", "holm"):
            assert abs(found[name].mean() - exact) <= error


def test_a_direction_from_the_data_is_not_a_fixed_sequence(key):
    """The end that looks better is begun at: wrong twice as often, as the test sees."""
    p = jax.random.uniform(key, (20_000, 2))
    better = jnp.sort(p, axis=1)
    wrong = jax.vmap(lambda p: fixed_sequence(p, 0.1).any())(better)
    assert abs(wrong.mean() - (1 - 0.9**2)) < 4 * np.sqrt(0.19 * 0.81 / 20_000)


def test_no_hypothesis_and_one():
    assert holm(jnp.zeros(0), 0.1).shape == bonferroni(jnp.zeros(0), 0.1).shape == (0,)
    assert graphical(jnp.array([0.05]), 0.1, jnp.ones(1), jnp.zeros((1, 1))).all()
    assert not graphical(jnp.zeros(1), 0.1, jnp.zeros(1), jnp.zeros((1, 1))).any()
    assert pvalues.holm([0.05], 0.05).all()
