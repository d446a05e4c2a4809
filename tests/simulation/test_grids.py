import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
from jaxcp.simulation import collect, run_grid

CALLS = []


def square(x, seed=0):
    CALLS.append(x)
    if x == 13:
        raise ArithmeticError("unlucky")
    return {"square": x * x, "odd": x % 2 == 1}


@pytest.fixture(autouse=True)
def calls():
    CALLS.clear()


@pytest.mark.parametrize("workers", [None, 3])
def test_each_cell_runs_once(workers, tmp_path):
    executor = workers and ThreadPoolExecutor(workers)
    cells = [{"x": x, "seed": 7} for x in (3, 1, 2, 1)]
    records = run_grid(square, cells, tmp_path, executor)
    assert [r["results"]["square"] for r in records] == [9, 1, 4, 1]
    assert sorted(CALLS) == [1, 2, 3]
    again = run_grid(square, [*cells, {"x": 5}], tmp_path, executor)
    assert again[:4] == records and again[4]["results"] == {"square": 25, "odd": True}
    assert sorted(CALLS) == [1, 2, 3, 5]
    files = list(tmp_path.glob("*.json"))
    assert len(files) == 4
    assert all(file.read_text().count("\n") == 1 for file in files)


def test_records_say_where_they_come_from(tmp_path):
    (record,) = run_grid(square, [{"x": 2, "seed": 7}], tmp_path, revision="b")
    assert record["settings"] == {"x": 2, "seed": 7} and record["seed"] == 7
    assert record["function"] == "square" and record["revision"] == "b"
    assert record["versions"]["jax"] == jax.__version__
    assert record["device"] == jax.devices()[0].device_kind
    assert record["seconds"] >= 0 and record["finished"].endswith("+00:00")
    assert "commit" in record
    run_grid(square, [{"seed": 7, "x": 2}], tmp_path, revision="b")  # another order
    run_grid(square, [{"x": 2, "seed": 7}], tmp_path, revision="c")
    assert CALLS == [2, 2]


def test_failures_are_recorded_and_tried_again(tmp_path, capsys):
    cells = [{"x": 1}, {"x": 13}, {"x": 2}]
    records = run_grid(square, cells, tmp_path)
    assert [r["status"] for r in records] == ["done", "failed", "done"]
    assert "ArithmeticError: unlucky" in records[1]["error"]
    assert "Traceback" in records[1]["error"]
    assert "{'x': 13} failed: ArithmeticError" in capsys.readouterr().err
    assert len(list(tmp_path.glob("*.failed.json"))) == 1
    assert [row["x"] for row in collect(tmp_path)] == [1, 2]
    run_grid(square, cells, tmp_path)
    assert CALLS == [1, 13, 2, 13]

    def square_(x):
        return {"square": x * x}

    square_.__qualname__ = "square"  # mended
    before = records[0]["fingerprint"]
    mended = run_grid(square_, cells, tmp_path, revision=before)
    assert mended[1]["results"] == {"square": 169}
    assert [r["results"] for r in mended[::2]] == [r["results"] for r in records[::2]]
    run_grid(square_, cells[1:2], tmp_path)  # nobody has finished this one
    assert not list(tmp_path.glob("*.failed.json"))


def made(factor):
    def cell(n):
        return {"product": n * factor}

    return cell


def defined(code, module="one"):
    """Returns the function `cell` of a module of so much code."""
    names = {"__name__": module}
    exec(code, names)
    return names["cell"]


EDITED = """
FACTOR = 2
def helper(n):
    return n * FACTOR
class Model:
    def predict(self, n):
        return n
def cell(n, offset=1, *, tags=frozenset({"a", "b"})):
    return {"sum": helper(n) + Model().predict(n) + offset + 7}
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("+ 7", "+ 8"),
        ("offset=1", "offset=2"),
        ('{"a", "b"}', '{"a", "c"}'),
        ("n * FACTOR", "n - FACTOR"),
        ("FACTOR = 2", "FACTOR = 3"),
        ("        return n\n", "        return -n\n"),
    ],
)
def test_results_of_an_edited_function_are_not_returned(before, after, tmp_path):
    edited = EDITED.replace(before, after)
    assert edited != EDITED
    run_grid(defined(EDITED), [{"n": 3}], tmp_path)
    with pytest.raises(ValueError, match=r"expected one\.cell as it was when it made"):
        run_grid(defined(edited), [{"n": 3}], tmp_path)
    assert len(run_grid(defined(edited, "two"), [{"n": 3}], tmp_path)) == 1  # its own
    rows = collect(tmp_path)
    assert [row["module"] for row in rows] == ["one", "two"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def cell", "# a comment\n\ndef cell"),
        ("    return {", '    "A docstring."\n    return {'),
        ("    def predict", '    "A docstring."\n    def predict'),
    ],
)
def test_comments_and_docstrings_make_no_other_function(before, after, tmp_path):
    edited = EDITED.replace(before, after)
    assert edited != EDITED
    records = run_grid(defined(EDITED), [{"n": 3}], tmp_path)
    assert run_grid(defined(edited), [{"n": 3}], tmp_path) == records


def test_results_of_another_closure_are_not_returned(tmp_path):
    (record,) = run_grid(made(2), [{"n": 3}], tmp_path)
    assert run_grid(made(2), [{"n": 3}], tmp_path) == [record]
    for other in (3, 2.0, np.arange(2), jnp.arange(2.0), len, made):
        with pytest.raises(ValueError, match=r"captured values; choose another folder"):
            run_grid(made(other), [{"n": 3}], tmp_path)
    (again,) = run_grid(made(5), [{"n": 3}], tmp_path, revision="b")
    assert again["results"] == {"product": 15} and again["fingerprint"] is None
    assert run_grid(made(7), [{"n": 3}], tmp_path, revision="b") == [again]
    good = record["fingerprint"]
    assert run_grid(made(5), [{"n": 3}], tmp_path, revision=good) == [record]
    run_grid(made(5), [{"n": 4}], tmp_path)  # under other settings, told apart
    assert len({row["fingerprint"] for row in collect(tmp_path)}) == 3
    with pytest.raises(
        ValueError, match=r"made\..*\.cell with a generator; give a rev"
    ):
        run_grid(made(n for n in (1, 2)), [{"n": 3}], tmp_path)


@pytest.mark.parametrize("workers", [None, 2])
def test_a_cell_that_exits_is_a_failure(workers, tmp_path):
    """As what ends a thread, a worker or a cell does not end the others."""

    def exits(x):
        if x == 3:
            sys.exit("bad arguments")
        return {"x": x}

    executor = workers and ThreadPoolExecutor(workers)
    cells = [{"x": x} for x in range(6)]
    records = run_grid(exits, cells, tmp_path, executor)
    assert [r["status"] for r in records] == ["done"] * 3 + ["failed"] + ["done"] * 2
    assert "SystemExit: bad arguments" in records[3]["error"]
    assert [row["x"] for row in collect(tmp_path)] == [0, 1, 2, 4, 5]

    def stopped(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(stopped, cells, tmp_path)


def test_records_are_those_that_were_written(tmp_path):
    """A changed digit, another cell's record and one of no checksum are refused."""
    cells = [{"x": 3}, {"x": 4}]
    run_grid(square, cells, tmp_path)
    paths = list(tmp_path.glob("*.json"))
    one, other = (path.read_text() for path in paths)
    unsealed = json.loads(one)
    del unsealed["checksum"]
    for text, message in [
        (re.sub('"square": (9|16)', '"square": 8', one), "it has been changed"),
        (one.replace('"x": ', '"x": 1'), "it has been changed"),
        (json.dumps(unsealed), "is of another cell or version"),
        (other, "is of another cell"),
        ("[" * 10**5, "recursion"),
    ]:
        assert text != one
        paths[0].write_text(text)
        for reading in (
            lambda: collect(tmp_path),
            lambda: run_grid(square, cells, tmp_path),
        ):
            with pytest.raises(ValueError, match=rf"{message}.*without that file the"):
                reading()
    paths[0].unlink()
    assert len(run_grid(square, cells, tmp_path)) == len(collect(tmp_path)) == 2
    assert sorted(CALLS) in ([3, 3, 4], [3, 4, 4])


def test_different_settings_are_different_cells(tmp_path):
    def told(x):
        return {"text": repr(x)}

    settings = [math.nan, math.inf, -math.inf, None, "None", 1, 1.0, True, "1", [1]]
    settings += [{"1": 2}, {"a": math.nan}, [], {}, "", 0.0, -0.0]
    records = run_grid(told, [{"x": x} for x in settings], tmp_path)
    assert [r["results"]["text"] for r in records] == [repr(x) for x in settings]
    for same in ("NaN", "Infinity", ["-Infinity"], np.array(["NaN"])):
        with pytest.raises(ValueError, match="infinities as floats, got text"):
            run_grid(told, [{"x": same}], tmp_path)
    for same in ({1: 2}, [{"a": {None: 2}}]):
        with pytest.raises(ValueError, match=r"settings with text as keys, got {"):
            run_grid(told, [{"x": same}], tmp_path)


def test_no_program_of_a_repository_runs(tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    repository, ran = tmp_path / "repository", tmp_path / "ran"
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    repository.mkdir()
    (repository / "file").write_text("")
    for command in (
        ["init", "-q"],
        ["add", "file"],
        ["commit", "-q", "-m", "first"],
        ["config", "core.fsmonitor", f"touch {ran}; false"],
    ):
        subprocess.run([*git, *command], check=True)
    monkeypatch.chdir(repository)
    (record,) = run_grid(defined(EDITED), [{"n": 3}], tmp_path / "out")
    assert re.fullmatch("[0-9a-f]{40}", record["commit"])
    assert not ran.exists()


def test_results_come_back_as_they_were(tmp_path):
    def numbers(kind):
        return {
            "array": jnp.arange(3.0),
            "scalar": np.float32(0.5),
            "count": np.int64(2**40),
            "infinite": [math.inf, -math.inf, math.nan],
            "flag": np.bool_(True),
            "nothing": None,
        }

    for _ in range(2):  # fresh, and from the file
        (record,) = run_grid(numbers, [{"kind": "a"}], tmp_path)
        results = record["results"]
        assert results["array"] == [0.0, 1.0, 2.0] and results["scalar"] == 0.5
        assert results["count"] == 2**40 and results["flag"] is True
        assert results["infinite"][:2] == [math.inf, -math.inf]
        assert math.isnan(results["infinite"][2]) and results["nothing"] is None
    text = next(tmp_path.glob("*.json")).read_text()
    json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))


def test_tables(tmp_path):
    def levels(n):
        return [{"alpha": a, "rank": n - 10 * a} for a in (0.1, 0.2)]

    out = tmp_path / "cells"
    run_grid(levels, [{"n": 20}, {"n": 9}], out)
    rows = collect(out, tmp_path / "table.csv")
    assert [(r["n"], r["alpha"], r["rank"]) for r in rows] == [
        (9, 0.1, 8.0),
        (9, 0.2, 7.0),
        (20, 0.1, 19.0),
        (20, 0.2, 18.0),
    ]
    with (tmp_path / "table.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [row["n"] for row in read] == ["9", "9", "20", "20"]
    assert list(read[0]) == ["n", "alpha", "rank", "seconds"]
    with pytest.raises(ValueError, match=r"ends in \.csv or \.parquet"):
        collect(out, tmp_path / "table.xls")
    polars = pytest.importorskip("polars")
    collect(out, tmp_path / "table.parquet")
    assert polars.read_parquet(tmp_path / "table.parquet")["n"].to_list() == [
        9,
        9,
        20,
        20,
    ]


def test_a_broken_executor_keeps_what_is_done(tmp_path):
    class Breaking(ThreadPoolExecutor):
        def submit(self, fn, /, *args):
            future = super().submit(fn, *args)
            future.result()
            if args[1]["x"] in (3, 4, 5):
                future = type(future)()
                future.set_exception(BrokenProcessPool("a worker died"))
            if args[1]["x"] == 9:
                raise BrokenProcessPool("no more workers")
            return future

    cells = [{"x": x} for x in (3, 1, 4, 2, 5, 6, 9, 7)]
    with pytest.raises(RuntimeError, match=r"the executor broke.*finished cells are"):
        run_grid(square, cells, tmp_path, Breaking(1))
    assert [row["x"] for row in collect(tmp_path)] == [1, 2, 6]
    records = run_grid(square, cells, tmp_path)
    assert all(r["status"] == "done" for r in records)


def test_rows_of_several_revisions_are_told_apart(tmp_path):
    def greedy(x):
        x.append(3)  # what is recorded are the settings as they were given
        return {"length": len(x), "seconds": 0.5}

    for revision in ("a", "b"):
        (record,) = run_grid(greedy, [{"x": [1]}], tmp_path, revision=revision)
        assert record["settings"] == {"x": [1]}
    rows = collect(tmp_path)
    assert [row["revision"] for row in rows] == ["a", "b"]
    assert all(row["seconds"] == 0.5 for row in rows)


def test_a_number_is_one_of_new_processes(tmp_path):
    """Which know nothing of this one: `dict` returns its settings there."""
    (record,) = run_grid(dict, [{"x": 3}], tmp_path, 1, revision="a")
    assert record["status"] == "done" and record["results"] == {"x": 3}
    assert int(record["host"].rpartition(":")[2]) != os.getpid()


def test_errors(tmp_path):
    for executor in (0, 2.0, "two"):
        with pytest.raises(ValueError, match="executor as an int >= 1, got"):
            run_grid(square, [{"x": 1}], tmp_path, executor)
    with pytest.raises(TypeError, match="not iterable"):
        run_grid(square, [3], tmp_path)
    with pytest.raises(ValueError, match="what JSON can hold, got <function"):
        run_grid(square, [{"x": square}], tmp_path)
    with pytest.raises(ValueError, match=r"fn with a name, or a revision, got .*3"):
        run_grid(3, [], tmp_path)
    with pytest.raises(ValueError, match="the folder of a grid"):
        collect(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="with a name, or a revision, got"):
        run_grid(lambda: {}, [{}], tmp_path)
    with pytest.raises(ValueError, match="with a name, or a revision, got"):
        run_grid([].append, [{}], tmp_path)  # of one list or another
    (record,) = run_grid(lambda: 3, [{}], tmp_path, revision="a")
    assert "expected dicts of results, got int" in record["error"]
    (record,) = run_grid(lambda: [1.0, 2.0], [{}], tmp_path, revision="b")
    assert "expected dicts of results, got list" in record["error"]
    (record,) = run_grid(lambda: {"f": square}, [{}], tmp_path, revision="c")
    assert "what JSON can hold, got <function" in record["error"]
    for text in ('{"half":', "[]", '{"status": 3}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match=r"record of a cell in .*x\.json"):
            collect(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        run_grid(square, [{"x": 1}], tmp_path / "file" / "out")
    assert run_grid(square, [], tmp_path) == []


def test_cells_that_simulate(key, tmp_path):
    def coverage(n, seed):
        def trial(key):
            q = jaxcp.conformal_quantile(jax.random.uniform(key, (n,)), 0.1)
            return jnp.minimum(q, 1)

        moments = jaxcp.simulation.Moments()
        out = jaxcp.simulate(trial, jax.random.key(seed), 2000, reduce=moments)
        return {"mean": out.mean, "error": out.standard_error}

    for record in run_grid(coverage, [{"n": n, "seed": 0} for n in (9, 30)], tmp_path):
        results, n = record["results"], record["settings"]["n"]
        exact = jaxcp.certificates.certificate(n, 0.1).coverage
        assert abs(results["mean"] - exact) < 4 * results["error"]
