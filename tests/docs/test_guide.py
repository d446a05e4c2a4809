"""Every page of the guide runs, is short, and leads only where something is."""

import html
import re

import pytest

import pages
from experiments.pictures import decision_figure
from notebooks import pictures

each = pytest.mark.parametrize(
    "path", pages.PAGES, ids=lambda path: str(path.relative_to(pages.GUIDE))
)

HOW_TO = [path for path in pages.PAGES if path.parent.name == "howto"]

# Words. Tables to look up, which grow with the library: nobody reads them in a row.
LIMITS = {"guarantees.md": 1900, "glossary.md": 2200}


@pytest.mark.slow
@each
def test_blocks_run_in_order(path, tmp_path, monkeypatch):
    """In a folder of their own, to the outputs below them, where packages are there."""
    steps = pages.steps(path.read_text())
    if not steps:
        pytest.skip("no code")
    for package in pages.packages("".join(code for code, _ in steps)):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for code, shown in steps:
        printed = pages.run(path.name, code, names)
        assert shown is None or pages.agree(printed, shown), printed
        pages.check_said(printed, code)


def test_packages_are_those_of_the_import_lines():
    code = "import a.b as c\nfrom d.e import f\nif c:\n    import g, a.h\n"
    assert pages.packages(code) == ["a", "d", "g"]


def test_outputs_are_compared():
    code = "```python\nprint(0.9)\n```\n\n"
    page = f"{code}```text\n0.9\n```\n{code}Text.\n{code}```text\nValueError: no\n```"
    assert [shown for _, shown in pages.steps(page)] == ["0.9\n", None, None]
    assert pages.agree("width 2.31 [1, 2]\n", "width 2.3\n[1, 2]")
    assert pages.agree("of before\nwidth 2.31\n0.9 s", "width 2.3\n0.1 s")
    assert pages.agree("[[0.9]]", "MAPIE [0.9]\njaxcp [[0.9]]\n")
    wrong = "width 2.5 [1, 2]", "size 2.3 [1, 2]", "width 2.3 [1]", "width 2.3 [1, 3]"
    for other in (*wrong, "width 2.34 [1, 2]", "more\nwidth 2.3 [1, 2]", ""):
        assert not pages.agree("width 2.3 [1, 2]", other), other


def test_outputs_in_comments_are_compared():
    code = "print(a)\nprint(b)  # 0.91: high\nprint(c)  # [ True]\nprint(d)  # a word\n"
    assert pages.said(code) == ["0.91", "[ True]"]
    pages.check_said("0.5\n0.914\n[ True]\n7\n", code)
    for printed in ("0.5\n0.95\n[ True]\n7", "0.91\n[False]\n", "[ True]\n0.91\n", ""):
        with pytest.raises(AssertionError):
            pages.check_said(printed, code)


@pytest.mark.parametrize("path", [pages.README, *pages.PAGES], ids=lambda p: p.stem)
def test_all_code_is_run_or_said_to_be_something_else(path):
    assert pages.unknown_code(path.read_text()) == []


def test_code_that_no_test_runs_is_noticed():
    for code in ("```py\n1\n```", "~~~\n1\n~~~", "```\n1\n```", "Text:\n\n    1 / 0"):
        assert pages.unknown_code(f"# Title\n\n{code}\n"), code
    assert not pages.unknown_code("```python\n1\n\n    2\n```\n\n* a\n\n  b\n")


def test_broken_links_of_all_kinds_are_noticed(monkeypatch, tmp_path):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    good = '# A `b` c\n\n[x](#a-b-c) [y](page.md#a-b-c "y")\n\n<img src="page.md">\n'
    page.write_text(good)
    assert pages.broken_links(page) == []
    bad = (
        "[x](no.md)",
        "[x](#no)",
        '[x](no.md "x")',
        '<img src="no.md">',
        "[x]: no.md",
    )
    for link in (*bad, "[x](../page.md)"):
        page.write_text(f"{good}\n{link}\n")
        assert len(pages.broken_links(page)) == 1, link


@pytest.mark.slow
def test_messages_are_those_of_the_package():
    patterns = pages.messages(pages.ROOT / "jaxcp")
    texts = [path.read_text() for path in pages.PAGES]
    shown = [message for text in texts for message in pages.quoted(text)]
    assert len(shown) > 20
    for message in shown:  # but for values, such as the name of a class
        assert len(pages.foreign(message, patterns)) <= 30, message
    other = (
        "expected a value that files can hold, of arrays, numbers and text, got Forest"
    )
    assert len(pages.foreign(other, patterns)) > 30


@each
def test_pages_are_short_and_titled(path):
    text = path.read_text()
    assert len(text.split()) <= LIMITS.get(path.name, 1500)
    assert re.match(r"# \S", text)
    longest = max(len(line) for line in text.splitlines() if not line.startswith("|"))
    assert longest <= 120


@pytest.mark.parametrize("path", HOW_TO, ids=lambda path: path.stem)
def test_each_how_to_shows_a_picture(path):
    """With words for those who do not see it; small, and the same if drawn again."""
    (words,) = re.findall(
        rf"!\[([^]]*)\]\(pictures/{path.stem}\.svg\)", path.read_text()
    )
    assert len(words.split()) >= 4
    drawn = (path.parent / "pictures" / f"{path.stem}.svg").read_text()
    assert len(drawn.encode()) <= pictures.most(path.stem)
    assert "<dc:date>" not in drawn


@pytest.mark.slow
def test_a_picture_is_drawn_by_the_code_of_its_page(tmp_path):
    (page,) = (path for path in HOW_TO if path.stem == "groups")
    drawn = pictures.draw(page, tmp_path).read_text()
    kept = (page.parent / "pictures" / "groups.svg").read_text()
    assert drawn.count("<use") == kept.count("<use") > 0
    assert re.findall("<!--.*-->", drawn) == re.findall("<!--.*-->", kept)
    with pytest.raises(ValueError, match=r"in index\.md, got none"):
        pictures.draw(pages.GUIDE / "index.md", tmp_path)


@each
def test_links_lead_somewhere(path):
    assert not pages.broken_links(path)


@each
def test_no_key_is_used_twice(path):
    pages.check_keys("".join(pages.blocks(path.read_text())))


@pytest.mark.parametrize("name", decision_figure.LAYOUTS)
def test_the_figure_of_five_questions_says_what_its_page_says(name):
    asked = decision_figure.questions(decision_figure.PAGE.read_text())
    assert [len(question.answers) > 2 for question in asked] == [True] * 5
    drawn = (pages.GUIDE / f"{name}.svg").read_text()
    words = map(html.unescape, re.findall("<text[^>]*>([^<]*)</text>", drawn))
    expected = []
    for number, question in enumerate(asked, start=1):
        pairs = [part for a, call in question.answers for part in (a, "\u2192", call)]
        expected += [str(number), question.words, *pairs]
    assert list(words) == expected, (
        "run `python -m experiments.pictures.decision_figure`"
    )


def test_calls_of_the_figure_are_those_of_the_table():
    rows = "| **two** | x | `jaxcp.f(a, b)`, `g` |\n| a | b | `scores.G()` |\n"
    rows += "| **three** | | any of these: all |\n| **c** | d | `scores.G(h)`; more |"
    page = (
        f"# P\n\n## 1. What?\n\n| y | m | call |\n| --- | --- | --- |\n{rows}\n\nText"
    )
    answers = (("two: x", "f"), ("three", "any of these"), ("c: d", "scores.G()"))
    assert decision_figure.questions(page) == [("What?", answers)]


def test_every_page_is_in_the_index():
    index = (pages.GUIDE / "index.md").read_text()
    for path in pages.PAGES:
        name = str(path.relative_to(pages.GUIDE))
        assert name == "index.md" or f"]({name})" in index, name
