"""Reliability diagrams: dots where they belong, and wrong calls."""

import matplotlib as mpl
import numpy as np
import pytest
from numpy.testing import assert_allclose

from jaxcp import plotting

mpl.use("Agg")


def test_dots_are_rates_of_bins_with_rows():
    probs = np.repeat([0.05, 0.5, 0.95], [100, 50, 100])
    y = np.arange(250) % 2  # half of the rows of each bin
    ax = plotting.plot_reliability(probs, y, num_bins=4)
    calm, apart = ax.containers[:2]
    assert_allclose(calm.lines[0].get_xydata(), [[0.5, 0.5]], atol=1e-6)
    assert_allclose(apart.lines[0].get_xydata(), [[0.05, 0.5], [0.95, 0.5]], atol=1e-6)
    assert_allclose([bar.get_height() for bar in ax.containers[2]], [0.4, 0.2, 0.4])
    ax = plotting.plot_reliability(probs, y, num_bins=5, bins="mass", ax=ax)
    assert plotting.plot_reliability(np.zeros(0), np.zeros(0)) is not None


def test_wrong_calls():
    with pytest.raises(ValueError, match=r"probs in \[0, 1\], got 2.0"):
        plotting.plot_reliability([2.0], [1])
    with pytest.raises(ValueError, match="y with 2 rows like probs, got 1"):
        plotting.plot_reliability([0.1, 0.2], [1])
    with pytest.raises(ValueError, match="bins as one of"):
        plotting.plot_reliability([0.1], [1], bins="depth")
