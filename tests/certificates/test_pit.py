"""The test of PIT values that share calibration scores, and its law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from helpers import reference
from jaxcp.certificates import pit_test
from jaxcp.certificates.testing import _draw
from jaxcp.pvalues.conformal import p_values_among
from rows import refuses

KEY = jax.random.key(0)
VECTORS = reference("distributional/pit")
CASES = ["99_10_0", "57_8_0", "99_10_6"]


@pytest.mark.parametrize("case", CASES)
def test_statistics_are_those_of_the_vectors(case):
    n, num_bins, _ = map(int, case.split("_"))
    v = {k: VECTORS[f"pit_{case}__{k}"] for k in ("pit", "cells", "counts")}
    found = pit_test(v["pit"], n, num_bins=num_bins)
    assert_array_equal(found.counts, v["counts"])
    assert_allclose(found.expected, v["pit"].size * v["cells"] / (n + 1), rtol=1e-12)
    assert_allclose(found.statistic, VECTORS[f"pit_{case}__chi2"], rtol=1e-9)
    assert_allclose(found.p_value, VECTORS[f"pit_{case}__chi2_p"], rtol=1e-9)
    found = pit_test(v["pit"], n, num_bins=num_bins, kind="kolmogorov")
    scale = (n * v["pit"].size / (n + v["pit"].size)) ** 0.5
    assert_allclose(found.statistic / scale, VECTORS[f"pit_{case}__ks"], rtol=1e-9)
    assert_allclose(found.p_value, VECTORS[f"pit_{case}__ks_p"], rtol=1e-9)


def right_systems(n, m, count):
    """PIT values of m scores among n, for many calibration sets."""
    key_scores, key_u = jax.random.split(jax.random.key(n))
    scores = jax.random.normal(key_scores, (count, n + m))
    u = jax.random.uniform(key_u, (count, m))
    p = jax.jit(jax.vmap(p_values_among))(scores[:, :n], scores[:, n:], 1 - u)
    return np.asarray(1 - p)


def test_draws_have_the_law_of_counts():
    """Means, variances and covariances of a Dirichlet-multinomial law, by systems too.

    Var N_b = m c_b (n + 1 - c_b) / (n + 1)^2 (m + n + 1) / (n + 2).
    """
    n, m, runs, rng = 19, 40, 2000, np.random.default_rng(0)
    pit = right_systems(n, m, runs)
    found = [pit_test(row, n, num_bins=3) for row in pit]
    cells = np.rint(found[0].expected * (n + 1) / m)
    assert_array_equal(cells, [7, 6, 7])
    edges = np.append(0, np.cumsum(cells)) / (n + 1)
    drawn = [np.histogram(_draw(rng, n, m), edges)[0] for _ in range(runs)]
    drawn = np.array(drawn)
    share, spread = cells / (n + 1), m * (m + n + 1) / (n + 2)
    law = spread * (np.diag(share) - np.outer(share, share))
    for counts in (drawn, np.array([each.counts for each in found])):
        error = 4 * np.sqrt(np.diag(law) / runs)
        assert np.all(abs(counts.mean(axis=0) - m * share) < error)
        assert_allclose(np.cov(counts.T), law, atol=0.15 * spread * share.min())


@pytest.mark.parametrize("n, m", [(20, 100), (200, 200)])
def test_right_systems_are_rejected_as_rarely_as_the_level_says(n, m):
    """Within 4 errors, where the test against the uniform law rejects many."""
    runs, rejected = 600, dict.fromkeys(("drawn", "pearson", "ks", "uniform"), 0)
    keys = jax.random.split(KEY, runs)
    for key, pit in zip(keys, right_systems(n, m, runs), strict=True):
        drawn = pit_test(pit, n, num_bins=5, key=key, num_draws=19)
        ks = pit_test(pit, n, num_bins=5, kind="kolmogorov")
        p_values = {
            "drawn": drawn.p_value,
            "pearson": pit_test(pit, n, num_bins=5).p_value,
            "ks": ks.p_value,
            "uniform": stats.kstwobign.sf(ks.statistic * ((n + m) / n) ** 0.5),
        }
        rejected = {k: v + (p_values[k] <= 0.05) for k, v in rejected.items()}
    rates = {k: v / runs for k, v in rejected.items()}
    error = (0.05 * 0.95 / runs) ** 0.5
    assert rates["drawn"] < 0.05 + 4 * error
    assert 0.04 - 4 * error < rates["pearson"] < 0.065 + 4 * error
    assert rates["ks"] < 0.055 + 4 * error
    assert rates["uniform"] > 0.2


def test_draws_of_both_kinds_are_exact():
    """p-values in steps of 1 / 20 are uniform on them, for continuous statistics."""
    n, m, runs = 30, 25, 500
    keys = jax.random.split(jax.random.key(2), runs)
    options = {"num_bins": 2, "kind": "kolmogorov", "num_draws": 19}
    p = [
        pit_test(pit, n, key=key, **options).p_value
        for key, pit in zip(keys, right_systems(n, m, runs), strict=True)
    ]
    counts = np.bincount(np.rint(20 * np.array(p)).astype(int), minlength=21)[1:]
    assert stats.chisquare(counts).pvalue > 1e-4


def test_wrong_systems_are_seen():
    u = np.random.default_rng(0).random(500)
    for wrong in (u**1.5, 0.25 + u / 2, np.where(u < 0.5, u / 2, 1 - u / 4)):
        assert pit_test(wrong, 999).p_value < 1e-4
        drawn = pit_test(wrong, 999, key=KEY, num_draws=199)
        assert drawn.p_value == 1 / 200
    assert pit_test(u**1.5, 999, kind="kolmogorov").p_value < 1e-3


def test_ends_and_types():
    """0 and 1 are in the outer bins; one cell a bin; one value; a key's draws."""
    found = pit_test([0, 1, 0.5, 1], 1, num_bins=2)
    assert_array_equal(found.counts, [1, 3])
    assert_array_equal(found.expected, [2, 2])
    assert_allclose(found.statistic, 3 / 6 * 1)  # (n + 2) / (m + n + 1) X^2
    one = pit_test(jnp.array([0.25]), 9, num_bins=10, kind="kolmogorov")
    assert_allclose(one.statistic, (9 / 10) ** 0.5 * 0.75)
    options = {"key": KEY, "num_draws": 19}
    pit = np.linspace(0, 1, 50, dtype=np.float32) ** 2
    assert pit_test(pit, 20, **options)[0] == pit_test(pit, 20, **options)[0]


def test_distances_of_few_cells_need_no_bins():
    pit = np.linspace(0.0, 1.0, 50)
    few, named = (
        pit_test(pit, 5, kind="kolmogorov", **options)
        for options in ({}, {"num_bins": 6})
    )
    assert few.p_value == named.p_value
    assert_array_equal(few.counts, named.counts)


PIT = np.full(9, 0.5)
test_wrong_calls = refuses(
    {
        "beyond 1": (lambda: pit_test([0.5, 1.5], 9), r"pit in \[0, 1\], got 1.5"),
        "NaN": (lambda: pit_test([np.nan], 9), r"pit in \[0, 1\], got nan"),
        "none": (lambda: pit_test([], 9), "pit of shape"),
        "columns": (lambda: pit_test(PIT[:, None], 9), r"pit of shape \(9,\)"),
        "few cells": (lambda: pit_test(PIT, 8), "num_bins <= 9, one a cell, got 10"),
        "one bin": (lambda: pit_test(PIT, 9, num_bins=1), "num_bins as an int >= 2"),
        "no scores": (lambda: pit_test(PIT, 0), "num_calibration as an int >= 1"),
        "no kind": (lambda: pit_test(PIT, 9, kind="ks"), "kind as one of"),
        "a seed": (lambda: pit_test(PIT, 9, key=0, num_draws=9), "key"),
        "no draws": (lambda: pit_test(PIT, 9, key=KEY, num_draws=0), "num_draws as"),
    }
)


def test_bins_may_come_in_any_order():
    """One value has one statistic wherever it lies, and so one p-value."""
    found = {pit_test([v], 99, key=KEY).p_value for v in (0.05, 0.5, 0.95)}
    assert found == {1.0}
