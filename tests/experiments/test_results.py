"""The report on all experiments: every figure beside its bar, and losses marked."""

import ast
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
from experiments import bars, reporting, results
from experiments.first_calls import Hoist
from experiments.report import LONG, SHOWN, is_loss, machines_of, report, table_of

EXPERIMENTS = {*results.TIMED, *results.MEASURED}


@pytest.mark.parametrize(
    "limit, value, error, holds",
    [
        ("<= 2", 2.0, None, True),
        ("<= 2", 2.1, None, False),
        (">= 8", 7.9, None, False),
        (">= inf", float("inf"), None, True),
        ("1.35 to 1.8", 1.5, None, True),
        ("1.35 to 1.8", 1.9, None, False),
        ("0.895 +- 0.01", 0.9049, None, True),
        ("0.895 +- 0.01", 0.906, None, False),
        ("270 +- 2 %", 275.0, None, True),
        ("270 +- 2 %", 276.0, None, False),
        ("0.99 +- 3 errors", 0.98, 0.004, True),
        ("0.99 +- 3 errors", 0.98, 0.003, False),
        ("0.99 +- 3 errors", 0.99, None, False),
        ("<= 2", float("nan"), None, False),
    ],
)
def test_limits_are_read_as_they_stand(limit, value, error, holds):
    assert bars._holds(limit, value, error) is holds


def test_the_error_of_a_figure_is_the_next_one():
    row = {"coverage": 0.9, "+-": 0.01, "volume": 2.0, "+- ": 0.1, "seconds": 3.0}
    assert bars._error(row, "coverage") == 0.01
    assert bars._error(row, "volume") == 0.1
    assert bars._error(row, "seconds") is None


def test_bars_are_of_experiments_and_experiments_are_all_run():
    for table in bars.BARS:
        assert table == "runs" or any(table.startswith(name) for name in EXPERIMENTS)
    files = Path(results.__file__).parent.glob("*.py")
    with_main = {f.stem for f in files if "def main()" in f.read_text()}
    others = {
        "decision_figure",
        "front_page",
        "results",
        "width_training",
    }  # the last by another
    assert with_main == EXPERIMENTS | others


def test_a_ratio_above_one_is_a_loss_or_a_gain():
    assert is_loss("jaxcp / numpy", 1.2) and not is_loss("jaxcp / numpy", 0.9)
    assert is_loss("times jaxcp", 0.9) and not is_loss("times jaxcp", 3.0)
    assert not is_loss("coverage", 1.2)


def save(folder, name, rows):
    """Saves a table as the experiment does, and how its run ended."""
    reporting.save_results(folder / name, name, rows, {"alpha": 0.1})
    ended = results.run(name, folder / name, [sys.executable, "-c", "print('done')"])
    assert ended["status"] == 0 and ended["seconds"] > 0
    assert (folder / name / "log.txt").read_text() == "done\n"


def test_the_report_has_every_table_and_says_what_is_missed(tmp_path):
    rows = [
        {"d": 100, "method": "jackknife", "coverage": 0.54},
        {"d": 100, "method": "jackknife+", "coverage": 0.8},
    ]
    save(tmp_path, "jackknife_barber", rows)
    times = [{"task": "HSIC | 2", "by": "numpy", "s": 0.25, "jaxcp / it": 1.5}]
    save(tmp_path, "metrics_speed", times)
    text = report(tmp_path)
    bars_of_others = sum(map(len, bars.BARS.values())) - 2
    assert f"## Bars: 1 met, 1 missed, {bars_of_others} not measured" in text
    missed, met = (row for row in text.splitlines() if "| 100, jackknife" in row)
    assert "| 100, jackknife+ | coverage | >= 0.88 | 0.8 | **missed** |" in missed
    assert "| 0.54 | met |" in met
    assert "| HSIC \\| 2 | numpy | 0.25 | **1.5** |" in text
    assert "## jackknife_barber\n\nalpha: 0.1\n" in text
    assert f"jax {json.dumps(reporting.machine()['jax']).strip(chr(34))}" in text


def test_a_table_is_read_from_the_report_as_it_was(tmp_path):
    rows = [
        {"task": "a | b", "s": 0.25, "jaxcp / it": 1.5, "n": 3, "bar": "<= 0.6"},
        {"task": "c", "s": 2.0, "jaxcp / it": 0.5, "n": 4, "bar": ""},
    ]
    save(tmp_path, "kernel_speed", rows)
    text = report(tmp_path)
    assert table_of(text, "kernel_speed") == rows
    about = {k: str(v) for k, v in reporting.machine().items()}
    assert machines_of(text)[0].items() <= about.items()
    with pytest.raises(ValueError, match="expected the table speed in the report"):
        table_of(text, "speed")


def test_long_tables_are_told_by_method(tmp_path):
    row = {"method": "split", "alpha": 0.1, "p-value": 0.5}
    rows = [row | {"coverage": 0.8 + i / 1000} for i in range(LONG + 1)]
    save(tmp_path, "coverage_grid", rows)
    assert f"| split | 0.1 | {LONG + 1} | 0.8 | 0.9 | 0.5 |" in report(tmp_path)
    save(tmp_path, "first_calls", [{"example": f"call {i}"} for i in range(LONG + 1)])
    assert f"The first {SHOWN} of {LONG + 1} rows:" in report(tmp_path)


def test_a_part_of_the_tables_does_not_replace_the_report(tmp_path, monkeypatch):
    save(tmp_path, "boxes", [{"method": "maximum", "coverage": 0.9}])
    committed = Path(results.__file__).parent / "RESULTS.md"
    before = committed.read_text()
    words = ["results", "--report", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    results.main()
    assert committed.read_text() == before
    assert "## boxes" in (tmp_path / "RESULTS.md").read_text()


def fake(folder, name, **ended):
    """Writes how a run ended, with a table of the same commit."""
    (folder / name).mkdir()
    ended = {"experiment": name, "seconds": 1.0, "peak GiB": 0.1, "status": 0} | ended
    (folder / name / "run.json").write_text(json.dumps(ended))
    table = {"commit": ended["commit"], "machine": {}, "rows": [{"a": 1}]}
    (folder / name / f"{name}.json").write_text(json.dumps(table))


@pytest.mark.parametrize(
    "other, why",
    [
        ("one", []),
        ("two", ["of several commits: one, two"]),
        (
            "one+",
            ["of several commits: one, one+", "of files that no commit has: one+"],
        ),
        (None, ["of several commits: one, unknown", "of an unknown commit"]),
    ],
)
def test_results_are_of_the_commit_that_they_name(tmp_path, monkeypatch, other, why):
    for name in EXPERIMENTS - {"boxes"}:
        fake(tmp_path, name, commit="one")
    assert results.shortcomings(tmp_path) == ["without boxes"]
    fake(tmp_path, "boxes", commit=other)
    assert results.shortcomings(tmp_path) == why
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(results, "__file__", str(home / "results.py"))
    monkeypatch.setattr(sys, "argv", ["results", "--report", "--out", str(tmp_path)])
    results.main()
    assert (home / "RESULTS.md").exists() == (not why)
    assert (tmp_path / "RESULTS.md").exists() == bool(why)


def test_a_table_left_over_is_of_its_own_commit(tmp_path):
    fake(tmp_path, "boxes", commit="one")
    left = {"commit": "two", "machine": {}, "rows": [{"a": 1}]}
    (tmp_path / "boxes" / "old.json").write_text(json.dumps(left))
    assert "of several commits: one, two" in results.shortcomings(tmp_path)
    assert "- commit: one, two; " in report(tmp_path)


def test_code_that_changes_under_a_run_has_no_commit(tmp_path, monkeypatch):
    now = iter(["one", "two"])
    monkeypatch.setattr(results, "commit", lambda: next(now))
    words = [sys.executable, "-c", "pass"]
    assert results.run("boxes", tmp_path / "boxes", words)["commit"] is None


def test_the_commit_is_that_of_the_package_that_runs(tmp_path, monkeypatch):
    if reporting.commit() is None:
        pytest.skip("not in a checkout")
    elsewhere = tmp_path / "jaxcp" / "__init__.py"
    monkeypatch.setattr(reporting.jaxcp, "__file__", str(elsewhere))
    assert reporting.commit() is None


def test_what_is_done_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "commit", lambda: "one")
    save(tmp_path, "which_rank", [{"method": "split"}])
    assert results.is_done(tmp_path / "which_rank")
    assert not results.is_done(tmp_path / "boxes")
    for now in ("another", "one+", None):
        monkeypatch.setattr(results, "commit", lambda now=now: now)
        assert not results.is_done(tmp_path / "which_rank")
    failed = results.run("boxes", tmp_path / "boxes", [sys.executable, "-c", "1 / 0"])
    assert failed["status"] == 1 and not results.is_done(tmp_path / "boxes")


def test_data_go_where_they_are_read():
    words = results.command("enbpi_solar", Path("out"), Path("data"), "python")
    assert words[-2:] == ["--data", "data"]
    assert "--data" not in results.command("boxes", Path("out"), Path("data"), None)
    words = results.command("kernel_speed", Path("out"), None, "python")
    assert words[-2:] == ["--puncc-python", "python"]


def test_first_calls_keep_the_classes_of_examples_whole():
    hoist = Hoist()
    tree = hoist.visit(
        ast.parse(
            "from enum import Enum\nclass A(Enum):\n    x = 7\n"
            "    def f(self):\n        return 7\nA.x.f()"
        )
    )
    functions, scope = ast.Module(hoist.functions, []), {}
    exec(compile(ast.fix_missing_locations(functions), "example", "exec"), scope)
    assert scope["A"].x.f() == 7
    assert [type(node) for node in tree.body] == [ast.Pass, ast.Pass, ast.Expr]
