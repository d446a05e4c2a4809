"""The map of what tests reach, and what is made from it: slow cases, what to run."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import maps
import reach
from reach import SLOW_BY_MARK, Recorder

needs_git = pytest.mark.skipif(not shutil.which("git"), reason="git is not here")


def numbered(**tests):
    """Returns tests of one file: CPU seconds and places."""
    return {
        f"tests/test_a.py::test_{name}": maps.Test(cpu, 0, sum(1 << v for v in reached))
        for name, (cpu, reached) in tests.items()
    }


def mapped(tests, places=()):
    return maps.Map({"commit": "", "date": "", "python": ""}, list(places), tests)


def cases(function, **found):
    """Returns a map of the cases of one function."""
    named = {f"{function}[{k.replace('_', '-')}]": v for k, v in found.items()}
    return mapped(
        {
            k: maps.Test(cpu, 0, sum(1 << v for v in reached))
            for k, (cpu, reached) in named.items()
        }
    )


@pytest.mark.parametrize("bits", [0, 1, 0b100111, 1 << 200 | 1 << 199 | 1])
def test_sets_of_places_are_runs(bits):
    assert maps.bits_of(maps.runs(bits)) == bits
    assert maps.runs(0b100111) == "0+2 2"


def test_a_map_is_read_as_it_was_written(tmp_path):
    places = [("jaxcp/a.py", "1"), ("jaxcp/a.py", "1.4>3.0"), ("jaxcp/b.py", "2")]
    tests = {
        "tests/test_a.py::test_b[x[0]-1]": maps.Test(0.5, 2, 0b101, ("x[0]", "1")),
        "tests/test_a.py::test_b[y]": maps.Test(0.25, 0, 0b111, ("y",)),
        "tests/test_a.py::test_c": maps.Test(0.12, 1, 0),
    }
    found = mapped(tests, places)
    maps.write(found, tmp_path / "map")
    assert maps.read(tmp_path / "map") == found
    assert found.bits("jaxcp/a.py") == 0b011 and found.bits("jaxcp/b.py") == 0b100
    assert found.bits("jaxcp/a.py", {1}) == 0b011 and not found.bits("jaxcp/a.py", {3})


def test_the_notes_of_workers_are_merged_though_one_was_killed(tmp_path):
    both = {"programs": 0, "values": ["x"]}
    one = both | {"id": "a::b", "cpu": 1.0, "reached": {"jaxcp/a.py": ["9", "10"]}}
    two = both | {"id": "a::c", "cpu": 2.0, "reached": {"jaxcp/a.py": ["10"]}}
    (tmp_path / "1").write_text(json.dumps(one) + '\n{"id": "a::d", "cp')
    (tmp_path / "2").write_text(json.dumps(two) + "\n")
    found = maps.merged([tmp_path / "1", tmp_path / "2"], {})
    assert found.places == [("jaxcp/a.py", "9"), ("jaxcp/a.py", "10")]
    assert found.tests == {
        "a::b": maps.Test(1.0, 0, 0b11, ("x",)),
        "a::c": maps.Test(2.0, 0, 0b10, ("x",)),
    }


def test_a_cover_reaches_what_all_reach_for_the_least():
    tests = numbered(
        wide=(9.0, range(10)), low=(1.0, range(6)), high=(1.0, range(5, 10))
    )
    everything = maps.union(tests.values())
    chosen = maps.cover(tests)
    assert maps.union(tests[name] for name in chosen) == everything
    assert {name[-3:] for name in chosen} == {"low", "igh"}
    assert len(maps.cover(tests, 0.5)) == 1


def test_cases_that_add_nothing_are_slow():
    function = "tests/test_a.py::test_b"
    found = cases(function, low=(1.0, [1, 2]), all=(2.0, [1, 2, 3]), high=(3.0, [3]))
    assert maps.slow_cases(found) == [f"{function}[high]", f"{function}[low]"]
    equal = cases(function, dear=(2.0, [1]), cheaper=(1.0, [1]))
    assert maps.slow_cases(equal) == [f"{function}[dear]"]
    new = cases(function, low=(1.0, [1, 2]), high=(2.0, [3]))
    assert maps.slow_cases(new) == []


def test_what_is_cheap_unknown_or_a_law_stays():
    function = "tests/test_a.py::test_b"
    cheap = cases(function, low=(0.01, [1]), dear=(1.0, [1]), high=(2.0, [1]))
    assert maps.slow_cases(cheap) == [f"{function}[high]"]  # low may use what dear made
    elsewhere = cases(function, low=(9.0, []), high=(9.0, []))
    assert maps.slow_cases(elsewhere) == []
    law = cases("tests/laws/test_a.py::test_b", low=(9.0, [1]), high=(9.0, [1]))
    assert maps.slow_cases(law) == []


def test_comparisons_with_references_keep_a_case_of_each_option():
    names = ["row", "c-pcp", "kernel0", "kernel1", "0.1", "True"]
    options = {"0.1", "row", "c-pcp"}
    for function, kept in ("test_b", {"0.1"}), ("test_vectors", options):
        tests = {
            f"tests/test_a.py::{function}[{name}]": maps.Test(1.0, 0, 1, (name,))
            for name in names
        }
        slow = {*maps.slow_cases(mapped(tests))}
        assert {v.values[0] for k, v in tests.items() if k not in slow} == kept


def test_a_case_that_reaches_what_tests_of_others_reach_is_slow():
    function = "tests/test_a.py::test_b"
    found = cases(function, all=(2.0, [1, 2]), new=(1.0, [3]), old=(1.0, [4]))
    other = maps.Test(1.0, 0, 1 << 4)
    found = mapped({**found.tests, "tests/laws/test_c.py::test_d": other})
    assert maps.slow_cases(found) == [f"{function}[old]"]


def test_the_list_is_read_as_it_was_written(tmp_path):
    function = "tests/test_a.py::test_b"
    found = cases(function, **{"a b": (1.0, [1]), "c": (2.0, [1]), " d": (3.0, [1])})
    maps.write_slow_cases(found, tmp_path / "list")
    assert maps.read_slow_cases(tmp_path / "list") == {*maps.slow_cases(found)}
    assert maps.read_slow_cases(tmp_path / "none") == set()


def test_slow_cases_exist_and_every_function_keeps_a_case(request):
    """For files that are collected: all of them where all tests run."""
    if any("::" in arg for arg in request.config.args):
        pytest.skip("a part of a file is collected")
    slow_by_mark = request.config.stash[SLOW_BY_MARK]
    collected = maps.by_function(slow_by_mark)
    files = {function.partition("::")[0] for function in collected}
    for function, slow in maps.by_function(maps.read_slow_cases()).items():
        assert not maps.LAWS.match(function), function
        if function.partition("::")[0] in files:
            gone = {*slow} - {*collected[function]}
            assert not gone, f"expected cases that exist in {maps.SLOW_CASES}: {gone}"
            kept = [case for case in collected[function] if not slow_by_mark[case]]
            assert {*kept} - {*slow}, f"expected a case of {function} that is not slow"


def commit(folder, **files):
    """Puts a commit of these modules in a folder's repository."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/', 1)}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "a"]):
        subprocess.run(["git", "-C", folder, *command], check=True)
    head = subprocess.check_output(
        ["git", "-C", folder, "rev-parse", "HEAD"], text=True
    )
    return head.strip()


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(maps, "HERE", tmp_path / "tests")
    return tmp_path


OLD = """def f(x):
    y = x
    return (
        y
    )

LIMIT = 3

def g(x):
    return x
"""


@needs_git
@pytest.mark.parametrize(
    ("old", "new", "near", "far"),
    [
        ("    y = x\n", "    y = x + 1\n", {"f"}, {"g"}),
        ("    y = x\n", "", {"f"}, {"g"}),
        ("    return x\n", "    x = 2\n    return x\n", {"g"}, {"f"}),
        ("    )\n", "    + 1)\n", {"f"}, {"g"}),  # a line that no event names
        ("LIMIT = 3\n", "LIMIT = 4\n", set(), {"f", "g"}),
        ("LIMIT = 3\n", "LIMIT = 3  # of what?\n", set(), set()),
        ("def g(x):\n", 'def g(x):\n    """Returns x."""\n', set(), set()),
    ],
)
def test_tests_that_reach_a_change(project, old, new, near, far):
    first = commit(project, jaxcp__a=OLD)
    tests = numbered(f=(1.0, [0, 1]), g=(1.0, [2]), other=(1.0, [3]))
    places = [("jaxcp/a.py", line) for line in ("2", "3", "10")]
    found = mapped(tests, [*places, ("jaxcp/c.py", "2")])
    found.about["commit"] = first
    later = commit(project, jaxcp__a="import os\n\n" + OLD)  # lines have moved by two
    path = project / "jaxcp/a.py"
    path.write_text(path.read_text().replace(old, new))
    reaching = maps.reaching(found, later)
    assert {name.rpartition("_")[2] for name in reaching.near} == near
    assert {name.rpartition("_")[2] for name in reaching.far} == far
    assert reaching.files == (["jaxcp/a.py"] if far else [])


@needs_git
def test_changed_tests_are_known_by_function(project):
    commit(
        project, tests__test_a="def test_b():\n    pass\n\n\ndef test_c():\n    pass\n"
    )
    path = project / "tests/test_a.py"
    path.write_text(path.read_text().replace("pass", "assert True", 1))
    (project / "tests/test_d.py").write_text("def test_e():\n    pass\n")
    changed = maps.changed_tests("HEAD")
    assert changed == {"tests/test_a.py": {"test_b"}, "tests/test_d.py": {"test_e"}}
    names = "test_b", "test_c", "test_new"
    known = {f"tests/test_a.py::{name}" for name in names[:2]}
    choice = maps.Choice({}, changed, known)
    places = [choice.place(f"tests/test_a.py::{name}") for name in names]
    assert places == [-1, None, -1]


@needs_git
def test_files_that_import_a_changed_table_may_have_new_rows(project):
    first = commit(
        project,
        tests__rows="ROWS = 1\n",
        tests__test_a="import rows\n",
        tests__test_b="from rows import ROWS\n",
        tests__test_c="from others import rows\n",
        jaxcp__a="",
    )
    assert maps.users_of_tables(first) == {}
    (project / "tests/rows.py").write_text("ROWS = 2\n")
    (project / "jaxcp/CHANGES.md").write_text("* It's no Python.\n")
    files = "tests/test_a.py", "tests/test_b.py"
    assert maps.users_of_tables(first) == {file: set() for file in files}
    assert maps.diff(first) == {}


@needs_git
def test_lines_are_found_where_they_stood(tmp_path):
    old = [f"{v}\n" for v in range(30)]
    new = ["a\n", *old[:5], *old[8:12], "b\n", "c\n", *old[12:20], "d\n", *old[22:]]
    for name, lines in ("old", old), ("new", new):
        (tmp_path / name).write_text("".join(lines))
    call = ["git", "diff", "--no-index", "-U0", "old", "new"]
    text = subprocess.run(call, cwd=tmp_path, text=True, capture_output=True).stdout
    (changes,) = maps.hunks(text).values()
    for line, words in enumerate(new, start=1):
        stood = {old[place - 1] for place in maps.before({line}, changes) if place}
        assert (stood == {words}) if words in old else words not in stood
    assert maps.before({new.index("d\n") + 1}, changes) == {21, 22}


def test_the_cheapest_case_of_each_function_is_first():
    dear = {"a": (3.0, [1]), "b": (2.0, [1])}
    tests = numbered(**dear, **{"c[1]": (0.1, [1]), "c[2]": (0.2, [1])})
    order = maps.in_turns(mapped(tests), {*tests})
    assert [name.rpartition("_")[2] for name in order] == ["c[1]", "b", "a", "c[2]"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="it needs sys.monitoring")
def test_lines_and_branches_of_each_test_are_noted(tmp_path):
    source = (
        "def f(x):\n    if x:\n        return 1\n    return 2 if x is None else 3\n"
    )
    path = tmp_path / "a.py"
    f = {}
    exec(compile(source, path, "exec"), f)
    recorder = Recorder(tmp_path / "part", tmp_path)
    recorder.listen()
    try:
        seen = []
        for x in (True, False, True):
            sys.monitoring.restart_events()
            f["f"](x)
            seen += recorder.reached().values()
    finally:
        recorder.stop()
    lines = [{v for v in places if ">" not in v} for places in seen]
    assert lines == [{"2", "3"}, {"2", "4"}, {"2", "3"}]
    assert seen[0] == seen[2] and len({*seen[1]} - lines[1]) == 2


INI = """[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = [".", "tests"]
addopts = "-m 'not slow'"
markers = ["slow: slow", "smoke: smoke"]
"""
TESTS = """import pytest

from jaxcp.a import f, g


@pytest.mark.parametrize("x", [1, 2])
def test_f(x):
    assert f(x) == x


def test_g():
    assert g(1) == 1


def test_nothing():
    pass
"""


def run_tests(project, *options):
    """Returns the exit status of pytest in a project, and what it says."""
    call = [sys.executable, "-m", "pytest", "-v", *options]
    done = subprocess.run(call, cwd=project, text=True, capture_output=True)
    return done.returncode, done.stdout + done.stderr


@needs_git
@pytest.mark.slow
def test_a_project_runs_what_a_change_reaches(project):
    (project / "tests").mkdir()
    for name in ("maps.py", "reach.py"):
        shutil.copy(Path(reach.__file__).with_name(name), project / "tests" / name)
    (project / "pyproject.toml").write_text(INI)
    (project / ".gitignore").write_text("__pycache__\n.pytest_cache\n")
    first = commit(
        project,
        jaxcp____init__="",
        jaxcp__a=OLD,
        tests__conftest='pytest_plugins = ["reach"]\n',
        tests__test_a=TESTS,
    )
    if sys.version_info >= (3, 12):
        status, words = run_tests(project, "-n", "1", "--map")
        assert status == 0 and "a map of 4 tests" in words, words
    else:
        status, words = run_tests(project, "--map")
        assert status == 4 and "expected Python 3.12 or newer" in words, words
        tests = numbered(
            **{"f[1]": (1.0, [0, 1]), "f[2]": (1.0, [0, 1]), "g": (1.0, [2])}
        )
        places = [("jaxcp/a.py", line) for line in ("2", "4", "10")]
        about = {"commit": first, "date": "2026-01-01", "python": "3.13"}
        maps.write(maps.Map(about, places, tests), project / "tests" / maps.MAP.name)
    found = maps.read(project / "tests" / maps.MAP.name)
    assert found.about["commit"] == first
    status, words = run_tests(project, "--since", "HEAD")
    assert status == 0 and "nothing runs" in words, words
    status, words = run_tests(project, "-m", "smoke")
    assert status == 0 and "2 passed" in words, words

    path = project / "jaxcp/a.py"
    path.write_text(OLD.replace("y = x", "y = -x"))
    (project / "tests/slow_cases.txt").write_text("tests/test_a.py::test_f\n    [2]\n")
    status, words = run_tests(project, "--since", "HEAD")
    assert status == 1 and "test_f[1] FAILED" in words and "1 failed" in words, words
    path.write_text(OLD.replace("return x", "return 1"))
    (project / "tests/test_new.py").write_text("def test_new():\n    pass\n")
    status, words = run_tests(project, "--since", "HEAD", "-n", "1")
    ran = re.findall(r"PASSED (\S+)::(\S+)", words)
    assert status == 0, words
    assert [name for _, name in ran] == ["test_new", "test_g", "test_f[1]"]
