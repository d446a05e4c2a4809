"""The site has every page and every public name, and nothing on it is broken."""

import inspect
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import jaxcp
import pages

pytest.importorskip("sphinx", reason="needs the extra docs")
pytest.importorskip("latex2mathml", reason="needs the extra docs")
nbformat = pytest.importorskip("nbformat", reason="needs the extra docs")
plt = pytest.importorskip("matplotlib.pyplot", reason="needs the extra docs")

from notebooks import (  # noqa: E402
    _built,
    _docstrings,
    _gallery,
    _heads,
    _links,
    _mathml,
    _names,
    _reference,
    _tasks,
    site,
)

STORIES = sorted((site.ROOT / "notebooks").glob("[0-9]*.ipynb"))
LANDING = site.ROOT / _heads.LANDING
FORMULA = r"(?<!\\)\$(?=[^\s$`])([^$`\n]*[^\s$`])\$(?!\d)"

URL = "https://example.org/small"  # of a repository
TOLD = [
    nbformat.v4.new_markdown_cell("# Story\n\nOne. Two."),
    nbformat.v4.new_markdown_cell("[page](guide/page.md#part-one)"),
]


def nowhere(words):
    return None


# The reference.


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The pages of the reference, in a repository with an address and two pages."""
    folder = tmp_path_factory.mktemp("reference") / "api"
    text = "# Page\n`scores.CQR()`"
    texts = {"notebooks/guide/page": text, "notebooks/guide/howto/page": text}
    _reference.write(folder, texts, URL)
    return {path.stem: path.read_text() for path in folder.iterdir()}


def test_every_public_name_has_a_page_and_a_row_in_a_table(reference):
    """Pages come from `__all__`, so that no name can be forgotten."""
    for family, module in _names.families().items():
        assert f"`{family}`" in reference["index"]
        for name in getattr(module, "__all__", []):
            if inspect.ismodule(getattr(module, name)):
                continue
            assert f"{name} <{family}.{name}>`" in reference[family]
            files = [stem for stem in reference if stem.startswith(f"{family}.{name}")]
            entry = re.compile(rf"^\.\. py:\w+:: {family}\.{name}(\(|$)", re.M)
            assert any(entry.search(reference[file]) for file in files)
    assert len({stem.lower() for stem in reference}) == len(reference)


def test_every_public_name_is_in_one_task():
    names = _names.public()
    used = {_tasks.place(name) for name in names}
    assert used == set(_tasks.entries())  # which raises if one stands in two
    assert {_tasks.of(name) for name in names} == set(_tasks.TASKS)
    tasks = {name.full: _tasks.of(name) for name in names}
    assert tasks["jaxcp.split_conformal_fit"] == "Calibrate predictions"
    assert tasks["jaxcp.calibrate_groups"] == "Groups and conditional coverage"
    assert tasks["jaxcp.typing.Score"] == "Protocols and kinds of predictions"


def test_the_index_has_every_name_once_under_its_task(reference):
    index = reference["index"]
    for name in _names.public():
        row = f"* - :py:obj:`{name.full.removeprefix('jaxcp.')} <{name.full}>`\n"
        assert index.count(row) == 1, name.full
        part = index.partition(f"\n{_tasks.of(name)}\n---")[2]
        assert row in part.partition("\n---")[0]
    assert "Too few rows to set some aside" in reference["jaxcp"]


def test_every_public_name_has_a_line_in_the_repository():
    for name in _names.public():
        path, line = _names.source(name)
        text = (site.ROOT / path).read_text().splitlines()[line - 1]
        assert re.match(rf"@|(def|class) \w|{name.name} = ", text), name.full


def test_the_page_of_a_name_links_its_source_and_folds_the_rest(reference):
    page = reference["jaxcp.scores.CQR"]
    assert f"<{URL}/blob/main/jaxcp/scores/regression.py#L" in page
    fold = ":doc:`Page </notebooks/guide/howto/page>` · :doc:`Page </notebooks/guide/pa"
    assert f".. dropdown:: Used in 2 pages\n\n   {fold}" in page


def test_modules_that_the_package_lists_are_families():
    listed = [n for n in dir(jaxcp) if inspect.ismodule(getattr(jaxcp, n))]
    assert {f"jaxcp.{name}" for name in listed} <= set(_names.families())


def test_methods_and_fields_are_those_of_users():
    interval = dict(_names.members(jaxcp.sets.Interval))
    assert {"contains", "size", "to_pandas"} <= set(interval)
    assert not any(n.startswith("_") for n in interval if n not in _names.MEMBERS)
    signature = _names.signature(jaxcp.scores.RAPS)
    assert signature.startswith("(penalty: Number, k_reg: Number, randomized: bool")
    assert "y: ArrayLike" in _names.signature(jaxcp.calibrate)
    assert _names.signature(interval["contains"], True).startswith("(y")
    assert _names.signature(jaxcp.pytree).startswith("(cls")


def test_words_in_backticks_are_links_to_what_they_name():
    links = _reference.Links(_names.public())
    home = "jaxcp.calibrate"
    assert links.find("scores.CQR", home, set()) == "jaxcp.scores.CQR"
    assert links.find("Calibration", home, set()) == "jaxcp.Calibration"
    assert links.find("jaxcp.scores", home, set()) == "jaxcp.scores"
    size = links.find("size", "jaxcp.sets.Interval", set())
    assert size == "jaxcp.sets.Interval.size"
    assert links.find("classes", home, {"classes"}) is None
    assert links.find("scores", home, set()) is None  # a word, not the module
    assert links.find("check", home, set()) is None  # there are two


def test_pages_that_use_a_name_are_found():
    texts = {"a": "# Page\n`scores.CQR()`", "b": "# Other\nmyscores.CQR, scores.CQRs"}
    found = _reference.users(_names.public(), texts)
    assert found["jaxcp.scores.CQR"] == [("a", "Page")]


# Docstrings.


def test_docstrings_become_fields_and_nothing_in_them_is_markup():
    doc = inspect.cleandoc(
        """Returns |x| * 2 of x_, see `CQR`s.

        * `a`: one
          more
        * b

        Args:
          x: Numbers, shape (n,),
            in metres.
          **kwargs: Others.

        Raises:
          ValueError: if x is bad.

        Guarantee:
          None.

        References:
          A. One, First, 2001.
          Two, Second,
          2002.

        Example:
          >>> 1 + 1
          2
        """
    )
    text = _docstrings.to_rst(doc, lambda w: "scores.CQR" if w == "CQR" else None)
    assert r"Returns \|x\| \* 2 of x\_, see :py:obj:`CQR <scores.CQR>`\ s." in text
    assert "* ``a``: one more\n\n* b" in text
    assert ":param x:\n   Numbers, shape (n,), in metres.\n" in text
    assert r":param \*\*kwargs:" in text
    assert ":raises ValueError:\n   if x is bad." in text
    assert ":Guarantee:\n   None." in text
    assert "   * \\A. One, First, 2001.\n\n   * Two, Second, 2002." in text
    assert ".. code-block:: pycon\n\n   >>> 1 + 1\n   2" in text


def test_a_line_that_lost_its_indent_is_noticed():
    with pytest.raises(ValueError, match="expected an indent"):
        _docstrings.to_rst("Sum.\n\nArgs:\n  x: One.\nor two.\n", nowhere)


# Links.


@pytest.fixture
def small(tmp_path):
    """A repository of one page and one notebook, and what it needs besides."""
    guide = tmp_path / "notebooks" / "guide"
    guide.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "small"\n')
    (tmp_path / "README.md").write_text("# Small\n")
    landing = tmp_path / "notebooks" / "landing.md"
    landing.write_text("# Small\n\n[Guide](guide/index.md)\n")
    (guide / "index.md").write_text("# Guide\n\n## Start\n\n[a page](page.md)\n")
    (guide / "page.md").write_text("# A page\n\n## Part one\n\nText.\n")
    (tmp_path / "script.py").write_text("")
    path = tmp_path / "notebooks" / "01_story.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=TOLD), path)
    _gallery.picture(path).parent.mkdir()
    shutil.copy(_gallery.picture(STORIES[0]), _gallery.picture(path))
    return tmp_path


def rewrite(text, root, url="", page="notebooks/guide/page.md"):
    found = site.pages(root) | {"README.md": site.HOME}
    return _links.rewrite(text, Path(page), found, root, url)


def test_links_lead_to_where_the_site_has_a_page(small):
    front = "[front](../../README.md#small)"
    assert rewrite(front, small) == "[front](../../index.md#small)"
    same = "[`code`](index.md) and `a[0](x)`\n\n```python\nf[0](x)\n```\n"
    assert rewrite(same, small) == same
    assert rewrite("[s](../../script.py)", small) == "s"
    url = "https://example.org/small"
    found = rewrite("[s](../../script.py)", small, url)
    assert found == f"[s]({url}/blob/main/script.py)"
    assert rewrite("[s](..)", small, url) == f"[s]({url}/tree/main/notebooks)"
    assert _links.address(url, "a.py", 7) == f"{url}/blob/main/a.py#L7"
    assert _links.address("", "a.py", 7) == ""


def test_formulas_are_no_links(small):
    text = "$a[0](x)$ and [a page](page.md), $5 and [b](page.md) for $6\n"
    assert rewrite(text, small, page="notebooks/guide/index.md") == text


def test_names_in_backticks_lead_to_their_pages():
    known = {"jaxcp.scores.CQR", "jaxcp.save", "jaxcp.cv_plus"}
    text = "# `scores.CQR`\n\n`scores.CQR()`, `jaxcp.save(p, v)`, `cv_plus`, {}\n"
    kept = "`save`, [`scores.CQR`](x.md), `a|b`\n\n```python\n`scores.CQR`\n```"
    found = _links.add_names(text.format(kept), known)
    calls = "{py:obj}`scores.CQR() <jaxcp.scores.CQR>`, "
    calls += (
        "{py:obj}`jaxcp.save(p, v) <jaxcp.save>`, {py:obj}`cv_plus <jaxcp.cv_plus>`"
    )
    assert found == f"# `scores.CQR`\n\n{calls}, {kept}\n"


def test_a_broken_link_is_named_with_its_page(small):
    page = small / "notebooks" / "guide" / "page.md"
    page.write_text("# A page\n\n[gone](gone.md), ![also](gone.png)\n")
    with pytest.raises(_links.BrokenLinkError) as error:
        site.assemble(small / "sources", small)
    where = "notebooks/guide/page.md: no file for the link"
    assert str(error.value) == f"{where} gone.md\n{where} gone.png"


def test_faults_of_built_pages_are_found(tmp_path):
    (tmp_path / "a.css").write_text("a { b: url('//x.org/c') url(d.png) url(data:e) }")
    head = '<link rel="stylesheet" href="https://example.org/x.css">'
    body = '<a href="b.html#no">b</a><a href="b.html#yes">b</a><a href="c.html">c</a>'
    (tmp_path / "a.html").write_text(f"{head}{body}<script src='//x.org/y'></script>")
    (tmp_path / "b.html").write_text('<h2 id="yes">b</h2><a href="https://x.org">x</a>')
    assert _built.problems(tmp_path) == [
        "a.css: loads //x.org/c",
        "a.html: loads https://example.org/x.css",
        "a.html: loads //x.org/y",
        "a.html: leads to b.html#no",
        "a.html: leads to c.html",
    ]


def test_links_out_of_the_site_lead_nowhere(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "site" / "a.html").write_text('<a href="../notes.txt">notes</a>')
    found = _built.problems(tmp_path / "site")
    assert found == ["a.html: leads to ../notes.txt"]


# The folder of the site.


def test_a_folder_with_other_files_is_left_alone(small, monkeypatch):
    monkeypatch.chdir(small)
    before = {path for path in small.rglob("*")}
    for out in (small, Path("."), small / "notebooks", small / "README.md"):
        with pytest.raises(site.SiteError, match="with other files; name"):
            site.build(out, small)
    assert {path for path in small.rglob("*")} == before


def test_only_the_files_of_the_last_build_are_replaced(tmp_path):
    made, out = tmp_path / "made", tmp_path / "deep" / "out"
    for names in (["a.html", "api/b.html"], ["a.html", "c.html"]):
        for name in names:
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_text(name)
        site._check_folder(out)
        site._replace(made, out)
        shutil.rmtree(made)
        (out / "CNAME").write_text("example.org")  # of the user, as is .git
    files = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    assert files == {"a.html", "c.html", "CNAME", site.LIST}


# The front page, formulas, and what a page says of itself.


def test_the_front_page_runs_and_says_what_the_guide_says():
    text = LANDING.read_text()
    (code,) = pages.blocks(text)
    pages.check_said(pages.run("landing.md", code, {}), code)
    assert pages.unknown_code(text) == [] and pages.broken_links(LANDING) == []
    start = (pages.GUIDE / "quick_start.md").read_text()
    interval = re.search(r"says (\d+) to (\d+)", text).groups()
    shown = re.findall(r"^\d+ +(\d+)\.0 +(\d+)\.0$", start, re.MULTILINE)
    assert interval in [tuple(str(round(int(v), -1)) for v in row) for row in shown]
    cloned = re.findall(r"git clone (\S+)", text)
    assert cloned == [_links.repository(site.ROOT)]


def formulas(text):
    """Returns the formulas of a page: those on lines of their own, and in the text."""
    parts = _links._BLOCK.split(text)
    fences = [part.strip() for part in parts[1::2]]
    blocks = [part[7:-3] for part in fences if part.startswith("```math")]
    prose = "\n".join(re.sub(r"`[^`\n]+`", "", part) for part in parts[::2])
    return blocks, re.findall(FORMULA, prose)


@pytest.mark.parametrize("path", pages.PAGES, ids=lambda path: path.stem)
def test_formulas_are_understood(path):
    """By the site, and by GitHub, which takes \\{ between dollars for a plain {."""
    blocks, inline = formulas(path.read_text())
    for formula in (*blocks, *inline):
        assert "\\" not in _mathml.mathml(formula), formula
    assert not [v for v in inline if re.search(r"\\[^a-zA-Z]", v)]


def test_fences_have_the_space_of_fences():
    """Braces are no identifiers, and the second bar closes what the first opened."""
    text = _mathml.mathml(r"\lbrace y : |y - \hat y| \le q \rbrace")
    forms = re.findall(r'form="(\w+)"[^>]*>&#x(\w+);', text)
    assert [form for form, _ in forms] == ["prefix", "prefix", "postfix", "postfix"]
    assert [code for _, code in forms] == ["0007B", "0007C", "0007C", "0007D"]
    assert "<mo>:</mo>" in text and "&#x002C6;" in text


def test_a_sign_is_close_to_its_number():
    text = _mathml.mathml(r"(-\infty, n - 1]")
    assert '<mo form="prefix">&#x02212;</mo><mi>&#x0221E;</mi>' in text
    assert "<mi>n</mi><mo>&#x02212;</mo><mn>1</mn>" in text


SEARCHES = {
    "save": "howto/saving",
    "one-sided": "howto/adaptive",
    "groups": "howto/groups",
    "scikit-learn": "howto/scikit_learn",
    "which method": "which_method",
}


def ranked(folder, words):
    """Returns the pages that a built site finds, best first, as its own scripts rank.

    They run in node, without a page: what they ask of one is not there.
    """
    scripts = [
        "const window = globalThis, SPHINX_HIGHLIGHT_ENABLED = false;",
        "const document = {getElementById: () => null};",
        "const _ = (text) => text;",
        (folder / "_static" / "language_data.js").read_text(),
        (folder / "_static" / "searchtools.js").read_text().rpartition("_ready(")[0],
        f"Search._index = {(folder / 'searchindex.js').read_text()[16:-1]};",
        f"const found = {json.dumps(words)}.map((words) => {{",
        "globalThis.location = {search: `?q=${words}`};",
        "const all = Search._performSearch(...Search._parseQuery(words));",
        "return all.reverse().map((result) => result[0]); });",
        "console.log(JSON.stringify(found));",
    ]
    program = folder / "search.js"
    program.write_text("\n".join(scripts))
    run = subprocess.run(["node", program], capture_output=True, text=True)
    assert not run.returncode, run.stderr
    return dict(zip(words, json.loads(run.stdout), strict=True))


# The gallery and the sidebar.


@pytest.fixture
def thumbnails():
    """The module that draws pictures in small, from the scripts of notebooks."""
    pytest.importorskip("jupytext", reason="needs the extra notebooks")
    from notebooks import thumbnails

    return thumbnails


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_every_notebook_has_a_card(path, thumbnails):
    """And its picture was drawn from the cell that it has now."""
    assert _gallery.story(path.stem).task in _gallery.TASKS
    title, sentence = _gallery.heading(nbformat.read(path, as_version=4))
    assert title and title[0] != "#"
    assert 20 < len(sentence) < 250 and sentence.endswith((".", "?", "!"))
    redraw = f"python -m notebooks.thumbnails {path.stem}"
    script = path.with_suffix(".py")
    assert thumbnails.said(_gallery.picture(path)) == thumbnails.source(script), redraw


def test_every_story_has_a_notebook():
    assert set(_gallery.STORIES) == {path.name[:2] for path in STORIES}


def test_a_notebook_without_a_picture_is_named(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=TOLD)
    assert _gallery.heading(notebook) == ("Story", "One.")
    with pytest.raises(ValueError, match=r"11_story\.ipynb: expected a picture"):
        _gallery.write(tmp_path, {tmp_path / "11_story.ipynb": notebook})
    with pytest.raises(ValueError, match="expected a story for 99_story"):
        _gallery.story("99_story")


def test_a_picture_in_small_has_one_of_the_axes(thumbnails):
    figure, (left, _) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    left.set(title="Left", xlabel="x")
    alone = thumbnails.alone(figure, left)
    assert alone.axes == [left] and left.get_title() == ""
    assert tuple(alone.get_size_inches()) == thumbnails.SIZE
    assert left.xaxis.label.get_fontsize() == thumbnails.POINTS
    plt.close(figure)


def test_the_sidebar_has_the_headings_of_the_index():
    first, story = "# Guide\n[a](a.md), [c](c.md)\n", "[n](../n.ipynb)"
    index = f"{first}## How to\n* [b](how/b.md#x), [a](a.md)\n{story}"
    assert site.sections(index) == {"How to": ["how/b", "a"], "More": ["c"]}


# The whole.


@pytest.mark.slow
def test_a_broken_heading_fails_the_build(small, monkeypatch):
    def write(folder, texts, url):
        folder.mkdir()
        (folder / "index.md").write_text("# Reference\n")

    monkeypatch.setattr(site._reference, "write", write)
    site.build(small / "site", small)
    built = (small / "site" / "notebooks" / "guide" / "page.html").read_text()
    assert 'id="part-one"' in built
    page = small / "notebooks" / "guide" / "page.md"
    page.write_text("# A page\n\n[to](index.md#nothing)\n")
    with pytest.raises(site.SiteError, match=r"notebooks/guide/page\.md.*nothing"):
        site.build(small / "again", small)


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path):
    """All of it, from what the repository has: nothing is executed or downloaded."""
    site.build(tmp_path / "site")
    built = {str(p.relative_to(tmp_path / "site")) for p in tmp_path.rglob("*.html")}
    assert {"index.html", "search.html", "notebooks/gallery.html"} <= built
    assert {f"api/{name.file}.html" for name in _names.public()} <= built
    assert {f"notebooks/{path.stem}.html" for path in STORIES} <= built
    front = (tmp_path / "site" / "index.html").read_text()
    assert f"jaxcp {jaxcp.__version__}" in front
    assert '<meta name="description" content="jaxcp brings conformal' in front
    entry = (tmp_path / "site" / "api" / "jaxcp.calibrate.html").read_text()
    assert '<meta name="description" content="Returns the calibration' in entry
    story = (tmp_path / "site" / "notebooks" / f"{STORIES[0].stem}.html").read_text()
    assert f'<a href="{STORIES[0].name}" download>' in story
    assert (tmp_path / "site" / "notebooks" / STORIES[0].name).exists()
    concept = tmp_path / "site" / "notebooks" / "guide" / "concepts" / "alpha.html"
    assert "<mfrac>" in concept.read_text() and "copybutton" in concept.read_text()
    if shutil.which("node"):
        for words, found in ranked(tmp_path / "site", [*SEARCHES]).items():
            assert found[0] == f"notebooks/guide/{SEARCHES[words]}", (words, found[:5])
