"""Experiments on calibrated probabilities: small parts of them."""

import numpy as np
import pytest

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
from experiments.data import probabilities
from experiments.speed import probability_speed


def test_every_way_gives_probabilities_that_are_judged():
    draw = np.random.default_rng(0)
    p = draw.uniform(size=300)
    y = (draw.uniform(size=300) < p).astype(int)
    two = np.stack([1 - p, p], axis=1)
    ways = probabilities.of_event(two[:200], y[:200], two[200:])
    assert {*ways} == {"raw", "isotonic", "Venn-Abers"}
    scores = {way: probabilities.judge(v, y[200:]) for way, v in ways.items()}
    assert np.isfinite(scores["Venn-Abers"]["log loss"])
    of_classes = probabilities.of_classes(two[:200], y[:200], two[200:])
    for way, v in of_classes.items():
        np.testing.assert_allclose(v.sum(axis=1), 1, rtol=1e-5, err_msg=way)
    rows = probabilities.table("data", {"raw": [scores["raw"], scores["raw"]]})
    assert rows[0]["Brier"] == scores["raw"]["Brier"] and rows[0]["+- Brier"] == 0


def test_timed_ways_are_alike():
    scores, labels, test = probability_speed.data(30, 5)
    assert scores.shape == labels.shape == (30,) and test.shape == (5,)
    rows = probability_speed.regressions(200)
    assert rows[0]["by"] == "jaxcp"
    assert rows[1]["difference"] < 1e-6
