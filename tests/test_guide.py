"""Every page of the guide runs, is short, and leads only where something is."""

import re

import pytest

import pages

each = pytest.mark.parametrize(
    "path", pages.PAGES, ids=lambda path: str(path.relative_to(pages.GUIDE))
)


@pytest.mark.slow
@each
def test_blocks_run_in_order(path, tmp_path, monkeypatch):
    """In a folder of their own, to the outputs below them; torch may be missing."""
    steps = pages.steps(path.read_text())
    if not steps:
        pytest.skip("no code")
    if any(re.search(r"^import torch\b", code, re.MULTILINE) for code, _ in steps):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for code, shown in steps:
        printed = pages.run(path.name, code, names)
        assert shown is None or pages.agree(printed, shown), printed


def test_outputs_are_compared():
    code = "```python\nprint(0.9)\n```\n\n"
    page = f"{code}```text\n0.9\n```\n{code}Text.\n{code}```text\nValueError: no\n```"
    assert [shown for _, shown in pages.steps(page)] == ["0.9\n", None, None]
    assert pages.agree("width 2.31 [1, 2]\n", "width 2.3\n[1, 2]")
    assert pages.agree("of before\nwidth 2.31\n0.9 s", "width 2.3\n0.1 s")
    for other in ("width 2.6 [1, 2]", "size 2.3 [1, 2]", "width 2.3 [1]", ""):
        assert not pages.agree("width 2.3 [1, 2]", other)


@each
def test_pages_are_short_and_titled(path):
    text = path.read_text()
    assert len(text.split()) <= 1500
    assert re.match(r"# \S", text)
    longest = max(len(line) for line in text.splitlines() if not line.startswith("|"))
    assert longest <= 120


@each
def test_links_lead_somewhere(path):
    assert not pages.broken_links(path)


@each
def test_no_key_is_used_twice(path):
    pages.check_keys("".join(pages.blocks(path.read_text())))


def test_every_page_is_in_the_index():
    index = (pages.GUIDE / "index.md").read_text()
    for path in pages.PAGES:
        name = str(path.relative_to(pages.GUIDE))
        assert name == "index.md" or f"]({name})" in index, name
