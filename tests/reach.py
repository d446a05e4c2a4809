"""A plugin: which lines and branches of the library each test reaches, and their use.

    python -m pytest -n 2 --map          # Python 3.12 or newer: makes the map anew
    python -m pytest --since main        # tests that reach what has changed
    python -m pytest -m smoke            # tests that reach 99 % of all

A line that is traced counts for the test that traces it first in its process: jax keeps
what it has traced. Files start afresh, so a test may miss what an earlier test of its
file has traced, and never what only another file has. What a fixture of a module or a
cache of the tests does counts for the first test that asks for it. What other
processes do is not seen.
"""

import json
import os
import pkgutil
import sys
import time
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import jax
import pytest

import jaxcp
import maps

LIBRARY = Path(jaxcp.__file__).parent
SHARE = 0.99  # of lines and branches, in tests that are marked `smoke`
COMPILED = "/jax/core/compile/backend_compile_duration"
ABOUT = pytest.StashKey[dict[str, str]]()
CHOICE = pytest.StashKey[maps.Choice]()
SLOW_BY_MARK = pytest.StashKey[dict[str, bool]]()  # of each case


def pytest_addoption(parser):
    group = parser.getgroup("reach", "what each test reaches")
    add = group.addoption
    add("--map", action="store_true", help="note what each test reaches")
    add(
        "--map-to", metavar="FILE", help="the file of that map, for a part of the tests"
    )
    add("--since", metavar="REF", help="run tests that reach what changed since REF")
    add("--seconds", type=float, default=10, help="CPU seconds of --since (10)")


def import_all():
    """Imports the library: what importing reaches counts for no test."""
    for module in pkgutil.walk_packages(jaxcp.__path__, "jaxcp."):
        try:
            import_module(module.name)
        except ImportError:  # it needs what is not installed
            continue


class Recorder:
    """Notes lines and branches of the library, test by test, in a file."""

    def __init__(self, part: Path, folder: Path = LIBRARY):
        self.part = part
        self.folder = folder
        self.prefix = f"{folder}{os.sep}"
        self.lines, self.branches = set(), defaultdict(set)
        self.positions = {}  # of the instructions of a code object
        self.file, self.programs = None, 0
        self.tool = sys.monitoring.COVERAGE_ID

    def listen(self):
        monitoring, events = sys.monitoring, sys.monitoring.events
        monitoring.use_tool_id(self.tool, "reach")
        monitoring.register_callback(self.tool, events.PY_START, self.started)
        monitoring.register_callback(self.tool, events.LINE, self.line)
        monitoring.register_callback(self.tool, events.BRANCH, self.branch)
        monitoring.set_events(self.tool, events.PY_START)

    def compiled(self, event, duration, **about):
        self.programs += event == COMPILED

    def stop(self):
        monitoring, events = sys.monitoring, sys.monitoring.events
        monitoring.set_events(self.tool, 0)
        for event in (events.PY_START, events.LINE, events.BRANCH):
            monitoring.register_callback(self.tool, event, None)
        monitoring.free_tool_id(self.tool)

    def pytest_unconfigure(self):
        self.stop()

    def started(self, code, offset):
        if code.co_filename.startswith(self.prefix):
            events = sys.monitoring.events.LINE | sys.monitoring.events.BRANCH
            sys.monitoring.set_local_events(self.tool, code, events)
        return sys.monitoring.DISABLE

    def line(self, code, line):
        self.lines.add((code, line))
        return sys.monitoring.DISABLE  # until the next test

    def branch(self, code, offset, destination):
        ways = self.branches[code, offset]
        ways.add(destination)
        return sys.monitoring.DISABLE if len(ways) == 2 else None

    def position(self, code, offset):
        if code not in self.positions:
            self.positions[code] = [(a, c) for a, _, c, _ in code.co_positions()]
        line, column = self.positions[code][offset // 2]
        return f"{line or 0}.{column or 0}"

    def reached(self):
        """Returns the places of each file since this was last asked."""
        places = defaultdict(set)
        for code, line in self.lines:
            places[code.co_filename].add(str(line))
        for (code, offset), ways in self.branches.items():
            start = self.position(code, offset)
            ends = (self.position(code, way) for way in ways)
            places[code.co_filename] |= {f"{start}>{end}" for end in ends}
        self.lines.clear()
        self.branches.clear()
        root = self.folder.parent
        return {
            Path(file).relative_to(root).as_posix(): sorted(found)
            for file, found in places.items()
        }

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        if item.path != self.file:
            self.file = item.path
            jax.clear_caches()
        self.reached()
        sys.monitoring.restart_events()
        self.programs, begin = 0, time.process_time()
        try:
            return (yield)
        finally:
            cpu = time.process_time() - begin
            note = {
                "id": item.nodeid,
                "cpu": cpu,
                "programs": self.programs,
                "reached": self.reached(),
                "values": values(item),
            }
            with self.part.open("a") as part:
                part.write(json.dumps(note) + "\n")


def values(item):
    """Returns the words among a case's parameters, and what its id names them."""
    if not hasattr(item, "callspec"):
        return []
    words = {word for word in item.callspec.params.values() if isinstance(word, str)}
    return sorted(words.union(getattr(item.callspec, "_idlist", [])))


def pytest_configure(config):
    config.stash[SLOW_BY_MARK] = {}
    if not config.option.map:
        return
    if sys.version_info < (3, 12):
        version = sys.version.split()[0]
        raise pytest.UsageError(f"--map: expected Python 3.12 or newer, got {version}")
    folder = Path(config.cache.mkdir("reach"))
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        config.stash[ABOUT] = maps.about_now()
        for part in folder.iterdir():
            part.unlink()
    if is_worker or not getattr(config.option, "numprocesses", None):
        import_all()
        recorder = Recorder(folder / f"{os.getpid()}.jsonl")
        recorder.listen()
        jax.monitoring.register_event_duration_secs_listener(recorder.compiled)
        config.pluginmanager.register(recorder)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Chooses the tests of `--since`, so that no other file is collected."""
    option = config.option
    is_part = option.keyword or config.args != config.getini("testpaths")
    is_worker = hasattr(config, "workerinput")
    if option.map and not option.map_to and is_part and not is_worker:
        raise pytest.UsageError("--map: expected all tests; --map-to FILE for a part")
    if option.map and not option.map_to and maps.diff("HEAD") and not is_worker:
        raise pytest.UsageError("--map: expected jaxcp/ as in a commit, got changes")
    if not option.since:
        return None
    choice, words = since(option.since, option.seconds)
    if not is_worker:
        print(words, flush=True)
    config.stash[CHOICE] = choice
    config.args = choice.files()
    option.maxfail = option.maxfail or 1
    return None if config.args else pytest.ExitCode.OK


def since(ref, seconds):
    """Returns which tests to run, and words that say so."""
    start = maps.git("merge-base", ref, "HEAD").strip()
    if not start:
        raise pytest.UsageError(f"--since: expected a commit, got {ref}")
    if not maps.MAP.exists():
        raise pytest.UsageError("--since: expected a map, made by `pytest --map`")
    found, slow = maps.read(), maps.read_slow_cases()
    changed = maps.changed_tests(start)
    files, near, far = maps.reaching(found, start)
    in_changed = {name for name in found.tests if name.partition("::")[0] in changed}
    functions = {f"{file}::{v}" for file, names in changed.items() for v in names}
    own = {name for name in in_changed if maps.function_of(name) in functions}
    near = (near | own) - slow
    far = (far | in_changed) - near - slow
    order = maps.in_turns(found, near) + maps.in_turns(found, far)
    chosen, spent = {}, 0.0
    for name in order:
        spent += found.tests[name].cpu
        if spent > seconds and chosen:
            break
        chosen[name] = len(chosen)
    commit, date = found.about["commit"], found.about["date"]
    age = len(maps.diff(commit)) if maps.git("cat-file", "-t", commit) else "all"
    words = (
        f"since {ref} ({start[:8]}): code of {len(files)} files of jaxcp/ has changed, "
        f"and {len(changed)} files of tests\n"
        f"{len(chosen)} tests for {seconds:g} CPU seconds (--seconds), of {len(near)} "
        f"that reach it and {len(order) - len(near)} near it; and tests that are new\n"
        f"the map is of {date} ({commit[:8]}): {age} files of jaxcp/ have changed since"
    )
    if not chosen and not changed:
        words += "\nno test reaches what has changed: nothing runs"
    changed = maps.users_of_tables(start) | changed
    return maps.Choice(chosen, changed, {*found.tests}), words


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    option = config.option
    slow = set() if option.map else maps.read_slow_cases()
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None
        config.stash[SLOW_BY_MARK][item.nodeid] = is_slow
        if item.nodeid in slow:
            item.add_marker("slow")
    if "smoke" in option.markexpr and maps.MAP.exists():
        tests = {k: v for k, v in maps.read().tests.items() if k not in slow}
        smoke = {*maps.cover(tests, SHARE)}
        for item in items:
            if item.nodeid in smoke:
                item.add_marker("smoke")
    if choice := config.stash.get(CHOICE, None):
        places = {item: choice.place(item.nodeid) for item in items}
        config.hook.pytest_deselected(items=[v for v in items if places[v] is None])
        items[:] = sorted((v for v in items if places[v] is not None), key=places.get)


def pytest_sessionfinish(session, exitstatus):
    """Makes the map of what was noted: tests that fail and workers that die, too."""
    config = session.config
    is_worker = hasattr(config, "workerinput")
    ended = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED
    if not config.option.map or is_worker or exitstatus not in ended:
        return
    parts = sorted(Path(config.cache.mkdir("reach")).iterdir())
    found = maps.merged(parts, config.stash[ABOUT])
    maps.write(found, Path(config.option.map_to or maps.MAP))
    if not config.option.map_to:
        maps.write_slow_cases(found)
    count = len(found.places)
    print(f"\na map of {len(found.tests)} tests, {count} lines and branches")
