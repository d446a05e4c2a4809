"""Runs of misses, and the worst window of a stream."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxcp import metrics
from jaxcp.sets import Interval, LabelMask


def stream(hits):
    """Intervals and targets of which some are covered, leading axes kept."""
    y = jnp.where(jnp.asarray(hits), 0.5, 2.0)
    return Interval(0 * y, 0 * y + 1), y


def longest(hits):
    best = now = 0
    for hit in hits:
        now = 0 if hit else now + 1
        best = max(best, now)
    return best


def worst(hits, window):
    starts = range(len(hits) - window + 1)
    return min(np.sum(hits[i : i + window]) for i in starts) / window


@pytest.mark.parametrize("m", [1, 2, 9, 41])  # also rows that are filled up
def test_both_against_a_loop(m):
    rng = np.random.default_rng(m)
    for share in (0.0, 0.5, 0.9, 1.0):
        hits = rng.random(m) < share
        sets, y = stream(hits)
        found = metrics.longest_miss(sets, y)
        assert jnp.issubdtype(found.dtype, jnp.integer) and found.shape == ()
        assert found == longest(hits)
        for window in sorted({1, 2, m // 2, m - 1, m} & {*range(1, m + 1)}):
            found = metrics.worst_window_coverage(sets, y, window)
            assert found == np.float32(worst(hits, window))  # one division
        assert found == metrics.coverage(sets, y)  # of the window of all rows


def test_every_transform():
    """Windows are traced too; scans and maps over streams give what loops give."""
    hits = np.random.default_rng(0).random((5, 23)) < 0.8
    sets, y = stream(hits)
    windows = jnp.array([0, 1, 4, 23, 24, 2**31 - 1])
    by_window = jax.vmap(metrics.worst_window_coverage, (None, None, 0))
    found = jax.jit(jax.vmap(by_window, (0, 0, None)))(sets, y, windows)
    expected = [[worst(h, w) for w in (1, 4, 23)] for h in hits]
    assert_array_equal(found[:, 1:4], np.float32(expected))
    assert np.isnan(found[:, [0, 4, 5]]).all()  # no such window
    runs = jax.lax.scan(lambda c, v: (c, metrics.longest_miss(*v)), 0, (sets, y))[1]
    assert_array_equal(runs, [longest(h) for h in hits])


def test_no_rows_one_row_and_nan():
    sets, y = stream(np.zeros(0))
    assert metrics.longest_miss(sets, y) == 0
    assert np.isnan(metrics.worst_window_coverage(sets, y, 3))
    sets, y = stream([False, True, True, False])
    unknown = Interval(sets.lower.at[1].set(jnp.nan), sets.upper)
    assert metrics.longest_miss(unknown, y) == 2
    assert np.isnan(metrics.worst_window_coverage(unknown, y, 2))
    with pytest.raises(ValueError, match="y without NaN"):
        metrics.longest_miss(sets, y.at[0].set(jnp.nan))
    masks = LabelMask(jnp.array([[True, False], [False, True], [False, True]]))
    true = jnp.array([[1, 0], [1, 1], [1, 1]])
    assert metrics.longest_miss(masks, true) == 2  # of sets of any kind
    assert metrics.worst_window_coverage(masks, true, 2) == 0


def test_one_program_for_all_windows(programs):
    sets, y = jax.tree.map(np.asarray, stream(np.arange(37) % 5 > 0))
    metrics.worst_window_coverage(sets, y, 3)
    metrics.longest_miss(sets, y)
    programs.clear()
    assert metrics.worst_window_coverage(sets, y, 5) == np.float32(0.8)
    assert metrics.longest_miss(sets, y) == 1
    assert not programs


def law_of_worst_window(p, m, window):
    """E of the least number of hits, by the chain of the last rows and the least."""
    states = list(product([0, 1], repeat=window))
    weights = [p ** sum(s) * (1 - p) ** (window - sum(s)) for s in states]
    chain = dict(zip([(s, sum(s)) for s in states], weights, strict=True))
    for _ in range(m - window):
        after = {}
        for (s, least), mass in chain.items():
            for hit, share in ((1, p), (0, 1 - p)):
                now = (*s[1:], hit)
                key = now, min(least, sum(now))
                after[key] = after.get(key, 0) + mass * share
        chain = after
    return sum(least * mass for (_, least), mass in chain.items())


def law_of_longest_run(p, m):
    """E of the longest run of misses: the sum of P(above r), by chains of the run."""
    total = 0.0
    for r in range(m):
        runs = np.eye(r + 1)[0]  # the mass of runs of 0, ..., r that go on
        for _ in range(m):
            runs = np.append(p * runs.sum(), (1 - p) * runs[:-1])
        total += 1 - runs.sum()
        if runs.sum() > 1 - 1e-12:
            break
    return total


def test_what_chance_does_to_independent_rows():
    """The laws of the two, of few rows exactly; both are far from 1 - alpha and 1."""
    p, m, window, trials = 0.8, 40, 5, 20_000
    rows = stream(jax.random.bernoulli(jax.random.key(0), p, (trials, m)))
    least = jax.vmap(lambda *v: metrics.worst_window_coverage(*v, window))(*rows)
    most = np.asarray(jax.vmap(metrics.longest_miss)(*rows))
    for found, expected in (
        (window * np.asarray(least, float), law_of_worst_window(p, m, window)),
        (most, law_of_longest_run(p, m)),
    ):
        assert abs(found.mean() - expected) < 4 * found.std() / trials**0.5
    assert law_of_worst_window(p, m, window) / window < p - 0.3


def test_the_numbers_of_the_docstrings():
    rows = stream(jax.random.bernoulli(jax.random.key(1), 0.9, (1000, 1000)))
    each = jax.jit(jax.vmap(metrics.worst_window_coverage, (0, 0, None)))
    found = [np.mean(each(*rows, window)) for window in (100, 50)]
    assert_allclose(found, [0.83, 0.79], atol=0.005 + 4 * 0.03 / 1000**0.5)
    runs = np.mean(jax.vmap(metrics.longest_miss)(*rows))
    assert_allclose(runs, 2.7, atol=0.05 + 4 * 0.7 / 1000**0.5)
    assert_allclose(law_of_longest_run(0.9, 1000), 2.7, atol=0.05)
