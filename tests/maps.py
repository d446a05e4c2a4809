"""The map of what each test reaches: how it is stored, and what is made from it.

A set of lines and branches is a whole number, a bit for each: `reached & ~known` is
what a test adds. Lines are numbered as in the commit that the map names.

    python tests/maps.py                             # the list of slow cases anew
    python tests/maps.py .pytest_cache/d/reach ...   # both from a run that was killed
"""

import ast
import heapq
import json
import lzma
import re
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
MAP = HERE / "reach.json.xz"
SLOW_CASES = HERE / "slow_cases.txt"
CHEAP = 0.05  # CPU seconds: what takes less gains little by moving
# Laws over tables of everything: every law keeps every method.
LAWS = re.compile(
    r"tests/(laws/|\w+/test_(metrics|set|stream)_laws|certificates/test_promises"
    r"|inputs/test_(doors|ends|elsewhere))"
)
# Comparisons with published numbers keep each kind of option that has a name.
COMPARISON = re.compile(r"::.*(golden|vectors|reference|published|mapie|puncc|crepes)")
# Values without a name: numbers, types, and what pytest counts ("kernel0").
UNNAMED = re.compile(r"|[A-Za-z_<>]*[-\d.e+]*\d|True|False|None|<lambda>")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Test(NamedTuple):
    """What a test took and reached."""

    cpu: float
    programs: int
    reached: int
    values: tuple[str, ...] = ()  # of its parameters: words, and parts of its id


class Map(NamedTuple):
    """What each test reached, by the id of the test."""

    about: dict[str, str]  # commit, date, python
    places: list[tuple[str, str]]  # file and "line" or "line.column>line.column"
    tests: dict[str, Test]

    def bits(self, file: str, lines: set[int] | None = None) -> int:
        """Returns the places of these lines, by default of all lines of a file."""
        return sum(
            1 << bit
            for bit, (name, place) in enumerate(self.places)
            if name == file and (lines is None or line_of(place) in lines)
        )

    def reaching(self, bits: int) -> set[str]:
        return {name for name, test in self.tests.items() if test.reached & bits}


def line_of(place: str) -> int:
    return int(re.split(r"[.>]", place, maxsplit=1)[0])


def in_order(place: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", place)]


def function_of(test: str) -> str:
    return test.partition("[")[0]


def by_function(tests) -> dict[str, list[str]]:
    functions = defaultdict(list)
    for test in sorted(tests):
        functions[function_of(test)].append(test)
    return functions


# Stored: a line of JSON for each function. What all its cases reach stands once.


def runs(bits: int) -> str:
    """Returns "0+2 2" for the bits 0, 1, 2 and 5: gaps, and how many more follow."""
    words, end = [], 0
    for run in re.finditer("1+", f"{bits:b}"[::-1]):
        gap, more = run.start() - end, len(run.group()) - 1
        words.append(f"{gap}+{more}" if more else f"{gap}")
        end = run.end()
    return " ".join(words)


def bits_of(text: str) -> int:
    digits = []
    for run in text.split():
        gap, _, more = run.partition("+")
        digits += ["0" * int(gap), "1" * (int(more or 0) + 1)]
    return int("".join(digits)[::-1] or "0", 2)


def named(case: str) -> tuple[str, ...]:
    """Returns the values of a case that its id says: not stored."""
    return (case[1:-1],) if case else ()


def write(found: Map, path: Path = MAP) -> None:
    files = defaultdict(list)
    for file, place in found.places:
        files[file].append(place)
    rows = [json.dumps({"about": found.about, "places": files})]
    for function, tests in by_function(found.tests).items():
        shared = found.tests[tests[0]].reached
        for test in tests:
            shared &= found.tests[test].reached
        cases = {}
        for test in tests:
            cpu, programs, reached, values = found.tests[test]
            case = test.removeprefix(function)
            row = [float(f"{cpu:.2g}"), programs, runs(reached & ~shared)]
            cases[case] = row if values == named(case) else [*row, values]
        rows.append(json.dumps([function, runs(shared), cases]))
    text = "\n".join(rows) + "\n"
    path.write_bytes(lzma.compress(text.encode()))


def read(path: Path = MAP) -> Map:
    head, *rows = lzma.decompress(path.read_bytes()).decode().splitlines()
    head = json.loads(head)
    places = [
        (file, place) for file in head["places"] for place in head["places"][file]
    ]
    tests = {}
    for row in rows:
        function, shared, cases = json.loads(row)
        for case, (cpu, programs, more, *values) in cases.items():
            reached = bits_of(shared) | bits_of(more)
            words = tuple(values[0]) if values else named(case)
            tests[function + case] = Test(cpu, programs, reached, words)
    return Map(head["about"], places, tests)


def merged(parts: list[Path], about: dict[str, str]) -> Map:
    """Returns the map of what workers noted, a line for each test."""
    tests: dict[str, Test] = {}
    columns: dict[tuple[str, str], int] = defaultdict(int)  # tests that reach a place
    for part in sorted(parts):
        with part.open() as rows:
            for row in rows:
                try:
                    note = json.loads(row)
                except ValueError:  # the last line of a worker that was killed
                    continue
                if note["id"] in tests:  # another worker had it again
                    continue
                for file, reached in note["reached"].items():
                    for place in reached:
                        columns[file, place] |= 1 << len(tests)
                values = tuple(note["values"])
                tests[note["id"]] = Test(note["cpu"], note["programs"], 0, values)
    # What the same tests reach stands side by side, so that runs are few.
    first = {}
    for (file, place), column in columns.items():
        line = in_order(place)
        first[file, column] = min(first.get((file, column), line), line)
    places = sorted(
        columns,
        key=lambda key: (key[0], first[key[0], columns[key]], in_order(key[1])),
    )
    rows = [bytearray(len(places)) for _ in tests]
    for bit, place in enumerate(places):
        for run in re.finditer("1", f"{columns[place]:b}"[::-1]):
            rows[run.start()][-1 - bit] = 1
    digits = bytes.maketrans(b"\0\1", b"01")
    for name, row in zip(tests, rows, strict=True):
        reached = int(row.translate(digits) or b"0", 2)
        tests[name] = tests[name]._replace(reached=reached)
    return Map(about, places, tests)


# Covers.


def union(tests) -> int:
    reached = 0
    for test in tests:
        reached |= test.reached
    return reached


def cover(tests: dict[str, Test], share: float = 1.0) -> list[str]:
    """Returns tests that reach a share of what all reach, most for their CPU first."""
    everything = union(tests.values()).bit_count()
    known, chosen = 0, []

    def worth(name: str) -> float:
        test = tests[name]
        return (test.reached & ~known).bit_count() / max(test.cpu, 0.001)

    queue = [(-worth(name), name) for name in tests]
    heapq.heapify(queue)
    while known.bit_count() < share * everything:
        _, name = heapq.heappop(queue)
        now = -worth(name)
        if queue and now > queue[0][0]:  # it adds less by now than another may
            heapq.heappush(queue, (now, name))
            continue
        known |= tests[name].reached
        chosen.append(name)
    return chosen


def names_of(test: Test) -> set[str]:
    """Returns the values that are words: methods, options, kinds of data."""
    return {
        value
        for value in test.values
        if not any(UNNAMED.fullmatch(part) for part in [value, *value.split("-")])
    }


def slow_cases(found: Map) -> list[str]:
    """Returns cases that reach nothing new beside all tests that stay.

    Every function keeps the case that reaches most; laws over tables keep all, and
    comparisons with references a case of each name of an option. What is cheap stays,
    and what the map knows nothing of: other processes may do its work.
    """
    functions = by_function(found.tests)
    dear: dict[str, dict[str, Test]] = {}
    for function, cases in functions.items():
        if not LAWS.match(function):
            tests = {case: found.tests[case] for case in cases}
            is_dear = lambda test: test.cpu >= CHEAP and test.reached  # noqa: E731
            dear[function] = {k: v for k, v in tests.items() if is_dear(v)}
    may_move = {case for cases in dear.values() for case in cases}
    reached = union(test for name, test in found.tests.items() if name not in may_move)

    # Cases that follow are cheap since they use the programs of this one.
    for cases in dear.values():
        if cases:
            first = max(
                cases, key=lambda v: (cases[v].reached.bit_count(), -cases[v].cpu)
            )
            reached |= cases.pop(first).reached

    slow = []
    for function, cases in dear.items():
        is_compared = COMPARISON.search(function)
        names = {case: names_of(test) for case, test in cases.items() if is_compared}
        named = {
            v
            for case in functions[function]
            if case not in cases
            for v in names_of(found.tests[case])
        }
        while cases:
            added = {
                case: (test.reached & ~reached).bit_count()
                + len(names.get(case, set()) - named)
                for case, test in cases.items()
            }
            best = max(cases, key=lambda case: (added[case], -cases[case].cpu))
            if not added[best]:
                break
            reached |= cases.pop(best).reached
            named |= names.get(best, set())
        slow += cases
    return sorted(slow)


def write_slow_cases(found: Map, path: Path = SLOW_CASES) -> None:
    rows = []
    for function, cases in by_function(slow_cases(found)).items():
        rows += [function, *(f"    {case.removeprefix(function)}" for case in cases)]
    path.write_text("".join(f"{row}\n" for row in rows))


def read_slow_cases(path: Path = SLOW_CASES) -> set[str]:
    cases, function = set(), ""
    for row in path.read_text().splitlines() if path.exists() else []:
        if row.startswith("    "):
            cases.add(function + row[4:])
        else:
            function = row
    return cases


# What a change may have broken.


class Hunk(NamedTuple):
    """Lines of a file that a diff replaces, and those that stand there after it."""

    start: int
    count: int
    new_start: int
    new_count: int

    def lines(self) -> set[int]:
        """Returns the replaced lines, or the two between which lines are put."""
        if not self.count:
            return {self.start, self.start + 1}
        return set(range(self.start, self.start + self.count))

    def is_in(self, function: ast.FunctionDef) -> bool:
        """Says whether a function, with its decorators, has some of the new lines."""
        first = min([function.lineno, *(v.lineno for v in function.decorator_list)])
        last = self.new_start + max(self.new_count, 1) - 1
        return self.new_start <= function.end_lineno and first <= last


def hunks(diff: str) -> dict[str, list[Hunk]]:
    """Returns the hunks of each file of `git diff -U0`, by its path."""
    found: dict[str, list[Hunk]] = {}
    old = file = ""
    is_head = False  # later a row "--- " is a line that was taken away
    for row in diff.splitlines():
        if row.startswith("diff "):
            is_head = True
        elif is_head and row.startswith("--- "):
            old = row[4:].removeprefix("a/")
        elif is_head and row.startswith("+++ "):
            new = row[4:].removeprefix("b/")
            file = old if new == "/dev/null" else new
            found[file] = []
        elif row.startswith("@@ "):
            is_head = False
            _, before, after, *_ = row.split()
            numbers = [(*v[1:].split(","), "1")[:2] for v in (before, after)]
            found[file].append(Hunk(*(int(v) for pair in numbers for v in pair)))
    return found


def before(lines: set[int], changes: list[Hunk]) -> set[int]:
    """Returns where lines of a file stood before changes."""
    found = set()
    for line in lines:
        shift = 0
        for hunk in changes:
            first = hunk.new_start + (not hunk.new_count)
            if first <= line < first + hunk.new_count:
                found |= hunk.lines()
                break
            if line >= first + hunk.new_count:
                shift += hunk.count - hunk.new_count
        else:
            found.add(line + shift)
    return found


def git(*command: str) -> str:
    """Returns what git says, nothing where it cannot."""
    call = ["git", "-C", str(HERE.parent), *command]
    done = subprocess.run(call, text=True, capture_output=True)
    return done.stdout if done.returncode == 0 else ""


def diff(*commits: str, folders=("jaxcp",)) -> dict[str, list[Hunk]]:
    options = "-U0", "--no-color", "--no-ext-diff", "--no-renames"
    return hunks(git("diff", *options, *commits, "--", *(f"{v}/*.py" for v in folders)))


def is_same_code(old: str, new: str) -> bool:
    """Says whether sources differ in comments and docstrings alone."""
    trees = []
    for source in (old, new):
        try:
            trees.append(ast.parse(source))
        except SyntaxError:
            return False
    for node in [node for tree in trees for node in ast.walk(tree)]:
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(trees[0]) == ast.dump(trees[1])


def scopes(source: str, line: int) -> list[set[int]]:
    """Returns the lines of functions and classes around a line, the smallest first."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    spans = [
        range(node.lineno, node.end_lineno + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, kinds) and node.lineno <= line <= node.end_lineno
    ]
    return [set(span) for span in sorted(spans, key=len)]


class Reaching(NamedTuple):
    """Files of the library that changed, and the tests that reach what changed."""

    files: list[str]
    near: set[str]  # they reach a changed line, or else the function or class around it
    far: set[str]  # they reach another line of these files


def reaching(found: Map, ref: str) -> Reaching:
    """Returns what reaches the lines that have changed since a commit."""
    since_the_map = diff(found.about["commit"], ref)  # {} if it is unknown
    files, near, far = [], set(), set()
    for file, changed in diff(ref).items():
        old = git("show", f"{ref}:{file}")
        path = HERE.parent / file
        if old and path.exists() and is_same_code(old, path.read_text()):
            continue
        files.append(file)
        far |= found.reaching(found.bits(file))
        for hunk in changed:
            for lines in [hunk.lines(), *scopes(old, hunk.start)]:
                stood = before(lines, since_the_map.get(file, []))
                tests = found.reaching(found.bits(file, stood))
                near |= tests
                if tests:
                    break
    return Reaching(files, near, far - near)


def changed_tests(ref: str) -> dict[str, set[str]]:
    """Returns the files of tests that changed, and which of their functions."""
    changes = diff(ref, folders=["tests"])
    new = git("ls-files", "--others", "--exclude-standard", "tests").splitlines()
    changes |= {file: [Hunk(0, 0, 1, 10**6)] for file in new}
    changed = {}
    for file, replaced in changes.items():
        path = HERE.parent / file
        if path.exists() and path.match("test_*.py"):
            functions = [
                node
                for node in ast.parse(path.read_text()).body
                if isinstance(node, ast.FunctionDef)
            ]
            changed[file] = {
                node.name
                for node in functions
                if any(hunk.is_in(node) for hunk in replaced)
            }
    return changed


def users_of_tables(ref: str) -> dict[str, set[str]]:
    """Returns files of tests that import a changed one, which may have new rows."""
    tables = {Path(v).stem for v in diff(ref, folders=["tests"])}
    tables = {v for v in tables if not v.startswith("test_")}
    imports = re.compile(rf"^\s*(from|import) ({'|'.join(sorted(tables))})\b", re.M)
    return {
        path.relative_to(HERE.parent).as_posix(): set()
        for path in HERE.rglob("test_*.py")
        if tables and imports.search(path.read_text())
    }


class Choice(NamedTuple):
    """Tests to run: places of tests that the map knows, and what it does not know."""

    places: dict[str, int]
    changed: dict[str, set[str]]
    known: set[str]

    def files(self) -> list[str]:
        return sorted(
            {*self.changed, *(name.partition("::")[0] for name in self.places)}
        )

    def place(self, name: str) -> int | None:
        """Returns the place of a test, if it runs: what is new or changed is first."""
        file, _, function = function_of(name).partition("::")
        changed = self.changed.get(file, ())
        if function in changed or (file in self.changed and name not in self.known):
            return -1
        return self.places.get(name)


def in_turns(found: Map, tests: set[str]) -> list[str]:
    """Returns the cheapest case of each function, cheapest first; then the others."""

    def cpu(name: str) -> float:
        return found.tests[name].cpu

    turns = []
    for cases in by_function(tests).values():
        turns += [(turn, cpu(v), v) for turn, v in enumerate(sorted(cases, key=cpu))]
    return [name for *_, name in sorted(turns)]


def about_now() -> dict[str, str]:
    return {
        "commit": git("rev-parse", "HEAD").strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "python": ".".join(map(str, sys.version_info[:2])),
    }


if __name__ == "__main__":
    parts = [part for folder in sys.argv[1:] for part in Path(folder).glob("*.jsonl")]
    if parts:
        write(merged(parts, about_now()))
    write_slow_cases(read())
