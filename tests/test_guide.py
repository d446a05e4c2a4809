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
    """In a folder of their own; packages that are no extra may be missing."""
    code = pages.blocks(path.read_text())
    if not code:
        pytest.skip("no code")
    for package in ("torch",):
        if re.search(rf"^import {package}\b", "".join(code), re.MULTILINE):
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for block in code:
        pages.run(path.name, block, names)


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
