"""What a notebook prints with small sizes, kept to notice results that have changed.

A notebook is stale when its script changes, and also when the library's results do.
`notebooks.build` keeps the prints of every cell in the metadata of the notebook, and a
slow test compares them with what the script prints now. A cell whose prints depend on
the machine (times, paths, packages that are optional) says so in its first line:
`# %% tags=["not-compared"]`.
"""

import contextlib
import io
import json
import math
import re
from pathlib import Path

NOT_COMPARED = "not-compared"
RTOL = 0.01  # that numbers may move on another processor; counts below 100 may not
FACTOR = 2.0  # that p-values of less than a thousandth may, and powers of ten with it

_NUMBER = re.compile(
    r"(?<![\w.])[-+]?"  # a sign, which does not follow a word: 2-3 is two counts
    r"(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)"  # 1,000,000 or 1000000
    r"(?:\.\d*)?(?:e[-+]?\d+)?"
)


def run(path: Path) -> list[str]:
    """Runs the code cells of a percent script and returns what each of them prints."""
    names, prints = {"__name__": "__main__"}, []
    for first, code in cells(path.read_text()):
        caught = io.StringIO()
        with contextlib.redirect_stdout(caught):
            exec(compile("\n" * first + code, path.name, "exec"), names)
        prints.append("" if _is_left_out(code) else caught.getvalue())
    return prints


def cells(text: str) -> list[tuple[int, str]]:
    """Returns the code cells of a script, each with the number of lines before it."""
    parts = re.split(r"^(?=# %%)", text, flags=re.MULTILINE)
    lines = [0]
    for part in parts:
        lines.append(lines[-1] + part.count("\n"))
    pairs = zip(lines, parts, strict=False)
    is_code = re.compile(r"# %%(?! \[markdown\])")
    return [(first, part) for first, part in pairs if is_code.match(part)]


def kept(path: Path) -> list[str] | None:
    """Returns the prints that a notebook keeps, None if it keeps none."""
    metadata = json.loads(path.read_text())["metadata"]
    return metadata.get("jaxcp", {}).get("fast_prints")


def differences(before: list[str], now: list[str]) -> list[str]:
    """Returns a line for each cell whose words have changed, or numbers by too much."""
    if len(before) != len(now):
        return [f"{len(before)} cells of code were kept, and now there are {len(now)}"]
    pairs = enumerate(zip(before, now, strict=True))
    return [
        f"cell {i} printed\n{old}and now prints\n{new}"
        for i, (old, new) in pairs
        if not same(old, new)
    ]


def same(before: str, now: str) -> bool:
    """Returns whether two prints have the same words, and numbers that are close."""
    if _words(before) != _words(now):
        return False
    pairs = zip(_NUMBER.findall(before), _NUMBER.findall(now), strict=True)
    return all(_close(old, new) for old, new in pairs)


def _words(text):
    """Returns a print without its numbers, and without spaces: columns may move."""
    return re.sub(r"\s+", "", _NUMBER.sub("#", text))


def _close(before, now):
    old, new = (float(number.replace(",", "")) for number in (before, now))
    if "e" in before and 0 < old < 1e-3 and new > 0:  # a p-value far out in a tail
        logs = math.log(old), math.log(new)
        return math.isclose(*logs, rel_tol=RTOL, abs_tol=math.log(FACTOR))
    return math.isclose(old, new, rel_tol=RTOL, abs_tol=1.001 * last_digit(before))


def last_digit(number: str) -> float:
    """Returns what one more in the last digit is worth: none in a whole number, 1."""
    decimals = re.search(r"\.(\d+)", number)
    power = int((re.search(r"e(.*)", number) or [0, 0])[1])
    return 10.0 ** (power - len(decimals[1])) if decimals else 0.0


def _is_left_out(code):
    return NOT_COMPARED in code.partition("\n")[0]
