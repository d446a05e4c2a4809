"""The report on all experiments: every figure beside its bar, and losses marked."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
import experiments
from experiments.speed.first_calls import Hoist
from experiments.tools import bars, reporting, results
from experiments.tools.bars import limit_of
from experiments.tools.claims import CLAIMS, LOSSES
from experiments.tools.report import (
    BARS_PAGE,
    LONG,
    PAGE,
    SHOWN,
    is_loss,
    machines_of,
    report,
    table_of,
)

EXPERIMENTS = {*results.TIMED, *results.MEASURED}
HOME = Path(experiments.__file__).parent
TABLES = {  # that have been measured, by folder
    "data": """
        anomaly boxes claims conformal_training counterfactuals covariate_shift
        enbpi_solar fields forecasts_bands forecasts_peers forecasts_streams label_shift
        multioutput_real predictive probabilities risk_control_answers
        risk_control_crc risk_control_ltt risk_control_mapie risk_control_masks
        risk_control_precision risk_control_rcps risk_control_shift survival
        width_training
    """,
    "laws": """
        band_laws conditional_classes conditional_communities conditional_concrete
        conditional_groups conditional_law conformal_bayes coverage_grid full_conformal
        jackknife_barber multioutput_toys pit rectified_law risk_laws_betting
        risk_laws_crc risk_laws_familywise risk_laws_pac rows selection_laws
        selection_repetitions selection_shift selection_speed streams_falling
        streams_first streams_lags threshold_gradients
    """,
    "peers": """
        ranks_audit ranks_taken ranks_verbs
    """,
    "pictures": """
        showcase
    """,
    "speed": """
        bands batches checks chunks clusters conditional_speed cross_speed_estimator
        cross_speed_large
        cross_speed_networks cross_speed_recorded cross_speed_replicates
        cross_speed_ridge
        cross_speed_streams data_scale delays first_calls first_calls_counts
        full_speed_large
        full_speed_refits full_speed_ridge function_cost groups kernel_speed_kernel
        kernel_speed_kernel_avx2 kernel_speed_labels kernel_speed_levels
        kernel_speed_scaling kernel_speed_small kernel_speed_small_avx2
        kernel_speed_weights kernel_speed_weights_avx2 label_thresholds local
        metrics_speed_matching
        metrics_speed_memory metrics_speed_metrics metrics_speed_metrics_avx2
        metrics_speed_outliers metrics_speed_outliers_avx2
        monitors monitors_beside multioutput_speed_membership multioutput_speed_scores
        multioutput_speed_training panels panels_sizes
        predictive_speed predictive_speed_first
        probability_speed proper_speed_draws proper_speed_many readme_start
        risk_speed_betting risk_speed_counts risk_speed_crc risk_speed_many
        risk_speed_sequence row_counts selected serving simulation_speed_devices
        simulation_speed_overheads simulation_speed_quantiles
        simulation_speed_replicates simulation_speed_replicates_avx2
        simulation_speed_spans
    """,
}


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
    with_main = {f.stem for f in HOME.glob("*/*.py") if "def main()" in f.read_text()}
    others = {
        "accelerator",  # measured where one is lent
        "calls",  # prints what a page says
        "cold_calls",  # measured beside another checkout
        "decision_figure",
        "front_page",
        "results",
        "social_card",
        "width_training",
    }  # the last by another
    assert with_main == EXPERIMENTS | others


def test_what_is_timed_compiles_as_users_do():
    for name in EXPERIMENTS - {"coverage_grid"}:  # its options are its own
        text = (HOME / experiments.folder_of(name) / f"{name}.py").read_text()
        as_users = "compiles=True" in text or "times=True" in text
        assert as_users == (name in results.TIMED), name


def test_experiments_are_found_by_name():
    assert experiments.folder_of("showcase") == "pictures"
    with pytest.raises(ValueError, match="the name of an experiment, got 'reporting'"):
        experiments.folder_of("reporting")


def test_every_table_is_in_the_page_of_its_folder():
    for folder, names in TABLES.items():
        text = (HOME / folder / PAGE).read_text()
        assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == names.split()
        for name in names.split():
            assert len(table_of(text, name)) > 0
    bars_page = (HOME / BARS_PAGE).read_text()
    assert len(table_of(bars_page, "runs")) > 20
    every = " ".join(TABLES.values()).split()
    assert {*bars.BARS} <= {*every, "runs"}
    lacking = {v for v in EXPERIMENTS if not any(t.startswith(v) for t in every)}
    assert lacking == {"any_model"}  # whose figures are in the guide


def test_the_page_says_what_the_tables_say():
    page = (HOME / PAGE).read_text()
    texts = [(HOME / folder / PAGE).read_text() for folder in TABLES]
    tables = {}
    for text in [*texts, (HOME / BARS_PAGE).read_text()]:
        for name in re.findall(r"^## (\w+)$", text, re.MULTILINE):
            tables[name] = table_of(text, name)
    assert len(CLAIMS) == 10
    for claim in (*CLAIMS, *LOSSES):
        found = bars.figure(tables, *claim[1:], limit_of(*claim[1:]))
        (line,) = (v for v in page.splitlines() if v.startswith(f"| {claim.said} |"))
        told = line.replace("**", "").split(" | ")
        shown = found.value if isinstance(found.value, str) else f"{found.value:.4g}"
        verdict = {True: "met", False: "missed", None: ""}[found.met]
        assert told[1:4] == [shown, found.limit, verdict] and told[4].strip(" |")
    assert "**missed**" in page


def test_each_missed_bar_has_its_reason():
    tables = {}
    for page in [*(f"{folder}/{PAGE}" for folder in TABLES), BARS_PAGE]:
        text = (HOME / page).read_text()
        for name in re.findall(r"^## (\w+)$", text, re.MULTILINE):
            tables[name] = table_of(text, name)
    missed = [f for f in bars.judge(tables) if f.met is False]
    assert missed and not [f for f in missed if not f.why]
    page = (HOME / PAGE).read_text()
    assert all(f"{f.row}, {f.column}: " in page and f.why[1:] in page for f in missed)


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
    text = "\n".join(report(tmp_path).values())
    bars_of_others = sum(map(len, bars.BARS.values())) - 2
    assert f"## Bars: 1 met, 1 missed, {bars_of_others} not measured" in text
    missed, met = (row for row in text.splitlines() if "| 100, jackknife" in row)
    assert f"1 of {bars_of_others + 2} bars are missed" in text
    assert "the jackknife+ covers | 0.8 | >= 0.88 | **missed** |" in text
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
    text = report(tmp_path)["speed/RESULTS.md"]
    assert table_of(text, "kernel_speed") == rows
    about = {k: str(v) for k, v in reporting.machine().items()}
    assert machines_of(text)[0].items() <= about.items()
    with pytest.raises(ValueError, match="expected the table speed in the report"):
        table_of(text, "speed")


def test_long_tables_are_told_by_method(tmp_path):
    row = {"method": "split", "alpha": 0.1, "p-value": 0.5}
    rows = [row | {"coverage": 0.8 + i / 1000} for i in range(LONG + 1)]
    save(tmp_path, "coverage_grid", rows)
    assert (
        f"| split | 0.1 | {LONG + 1} | 0.8 | 0.9 | 0.5 |"
        in report(tmp_path)[f"laws/{PAGE}"]
    )
    save(tmp_path, "first_calls", [{"example": f"call {i}"} for i in range(LONG + 1)])
    assert f"The first {SHOWN} of {LONG + 1} rows:" in report(tmp_path)[f"speed/{PAGE}"]


def test_a_part_of_the_tables_does_not_replace_the_report(tmp_path, monkeypatch):
    save(tmp_path, "boxes", [{"method": "maximum", "coverage": 0.9}])
    before = {path: path.read_text() for path in HOME.rglob("*.md")}
    words = ["results", "--report", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    results.main()
    assert {path: path.read_text() for path in HOME.rglob("*.md")} == before
    assert "## boxes" in (tmp_path / "data" / PAGE).read_text()
    assert "1 table" in (tmp_path / PAGE).read_text()


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
    monkeypatch.setattr(results, "__file__", str(home / "tools" / "results.py"))
    monkeypatch.setattr(sys, "argv", ["results", "--report", "--out", str(tmp_path)])
    results.main()
    assert (home / PAGE).exists() == (home / BARS_PAGE).exists() == (not why)
    assert (tmp_path / PAGE).exists() == bool(why)


def test_a_table_left_over_is_of_its_own_commit(tmp_path):
    fake(tmp_path, "boxes", commit="one")
    left = {"commit": "two", "machine": {}, "rows": [{"a": 1}]}
    (tmp_path / "boxes" / "old.json").write_text(json.dumps(left))
    assert "of several commits: one, two" in results.shortcomings(tmp_path)
    assert "- commit: one, two; " in report(tmp_path)[BARS_PAGE]


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
    save(tmp_path, "ranks", [{"method": "split"}])
    assert results.is_done(tmp_path / "ranks")
    assert not results.is_done(tmp_path / "boxes")
    for now in ("another", "one+", None):
        monkeypatch.setattr(results, "commit", lambda now=now: now)
        assert not results.is_done(tmp_path / "ranks")
    failed = results.run("boxes", tmp_path / "boxes", [sys.executable, "-c", "1 / 0"])
    assert failed["status"] == 1 and not results.is_done(tmp_path / "boxes")


def test_data_go_where_they_are_read():
    words = results.command("enbpi_solar", Path("out"), Path("data"), "python")
    assert words[-2:] == ["--data", "data"]
    assert "--data" not in results.command("boxes", Path("out"), Path("data"), None)
    assert words[2] == "experiments.data.enbpi_solar"
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
