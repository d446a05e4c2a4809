"""The quick part of the showcase: which methods it has, and that it runs."""

import os
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
import pages
from experiments.pictures import showcase, showcase_quick

MODULE = "experiments.pictures.showcase"


def named(*names):
    return lambda: iter([SimpleNamespace(name=name) for name in names])


def test_methods_keep_their_numbers_in_the_part(monkeypatch):
    """By which their keys are drawn, so that the lines are those of the whole."""
    made = {"methods": named("a", "b", "a", "c"), "risk": named("d", "e")}
    monkeypatch.setattr(showcase, "COUNTS", {"methods": 4, "risk": 2})
    monkeypatch.setattr(showcase_quick, "METHODS", {"methods": ("b", "a")})
    whole = [(i, m.name) for i, m in showcase.numbered(made, False)]
    assert whole == list(enumerate("abacde"))
    part = [(i, m.name) for i, m in showcase.numbered(made, True)]
    assert part == [(0, "a"), (1, "b")]


def test_no_model_is_trained_that_the_part_does_not_need():
    def found():
        yield 0, SimpleNamespace(name="risk control")
        raise AssertionError("asked for more")

    assert len([*showcase_quick.chosen(found(), "risk")]) == 1
    assert [*showcase_quick.chosen(found(), "detection")] == []


def test_what_is_left_out_is_said():
    everything = showcase_quick.table_of(showcase_quick.RESULTS.read_text(), "showcase")
    names = {row["method"] for row in everything}
    quick = {*sum(showcase_quick.METHODS.values(), ()), *showcase_quick.STREAMS}
    assert quick < names
    assert len(quick) == showcase_quick.NUM_METHODS + len(showcase_quick.STREAMS)
    told = showcase_quick.left_out([{"method": name} for name in quick])
    assert f"left out, {len(names) - len(quick)} methods:" in told
    assert "SPCI" in told and "all of them" in told and "predictive system" not in told


def test_the_numbers_of_methods_are_those_of_the_results():
    everything = showcase_quick.table_of(showcase_quick.RESULTS.read_text(), "showcase")
    count = sum(showcase.COUNTS.values()) + len(showcase.showcase_streams.METHODS)
    assert count == len(everything)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(SystemExit, match=r"the package tqdm, .*'\.\[experiments\]'"):
        runpy.run_path(showcase.__file__)


@pytest.mark.slow
def test_the_quick_part_runs(tmp_path):
    """Its picture is the last thing that is printed."""
    words = [sys.executable, "-m", MODULE, "--quick", "--out", tmp_path]
    path = {"PYTHONPATH": str(pages.ROOT)}
    done = subprocess.run(
        words, cwd=pages.ROOT, env=os.environ | path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    picture = tmp_path / "showcase_quick.png"
    assert done.stdout.splitlines()[-1] == f"figure: {picture}"
    assert picture.stat().st_size > 50_000
    lines = (tmp_path / "showcase_quick.csv").read_text().splitlines()
    assert len(lines) == 1 + showcase_quick.NUM_METHODS + len(showcase_quick.STREAMS)
