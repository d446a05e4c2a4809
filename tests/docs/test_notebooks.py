"""Every notebook runs, asserts its claim, and was built from its source as it is."""

from pathlib import Path

import jax
import matplotlib
import matplotlib.pyplot as plt
import pytest

from notebooks import prints

FOLDER = Path(__file__).parents[2] / "notebooks"
SOURCES = sorted(path for path in FOLDER.glob("*.py") if path.name[0].isdigit())
each = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)


def test_there_are_twenty_one_stories():
    assert [path.name[:2] for path in SOURCES] == [f"{i:02}" for i in range(1, 22)]


@pytest.mark.slow
@each
def test_notebook(path, monkeypatch):
    """The source, with small sizes: its last cell asserts, it prints what is kept."""
    if jax.config.jax_enable_x64:
        pytest.skip("stories are told in single precision")
    matplotlib.use("Agg")
    monkeypatch.setenv("JAXCP_FAST", "1")
    text = path.read_text()
    claim = text.split("# %%")[-1]
    assert "assert " in claim
    with jax.numpy_rank_promotion("allow"), plt.rc_context():
        now = prints.run(path)
    assert plt.get_fignums()
    plt.close("all")
    before = prints.kept(path.with_suffix(".ipynb"))
    assert before is not None, f"run `python -m notebooks.build {path.name[:2]}`"
    changed = "\n".join(prints.differences(before, now))
    assert not changed, f"run `python -m notebooks.build {path.name[:2]}`:\n{changed}"


@each
def test_notebook_is_built(path):
    """The file beside the source: its cells, all executed, with figures, and small."""
    build = pytest.importorskip("notebooks.build", reason="needs jupytext, nbclient")
    built = path.with_suffix(".ipynb")
    assert build.is_current(path), f"run `python -m notebooks.build {path.name[:2]}`"
    text = built.read_text()
    assert len(text) <= build.BYTES
    assert '"image/png"' in text
    assert '"output_type": "error"' not in text


def test_stale_and_unexecuted_notebooks_are_noticed(tmp_path):
    build = pytest.importorskip("notebooks.build", reason="needs jupytext, nbclient")
    source = tmp_path / SOURCES[0].name
    source.write_text(SOURCES[0].read_text())
    assert not build.is_current(source)  # there is none
    built = SOURCES[0].with_suffix(".ipynb").read_text()
    source.with_suffix(".ipynb").write_text(built)
    assert build.is_current(source)
    source.with_suffix(".ipynb").write_text(
        built.replace('"execution_count": 2', '"execution_count": null', 1)
    )
    assert not build.is_current(source)
    source.with_suffix(".ipynb").write_text(built)
    source.write_text(source.read_text() + "\nprint(1)\n")
    assert not build.is_current(source)


@pytest.mark.slow
def test_a_notebook_is_built_in_a_kernel(tmp_path, monkeypatch):
    build = pytest.importorskip("notebooks.build", reason="needs jupytext, nbclient")
    monkeypatch.setenv("JAXCP_FAST", "1")
    written = build.build(SOURCES[0], tmp_path)
    assert '"image/png"' in written.read_text()
    kept = prints.kept(written)
    assert len(kept) == len(prints.cells(SOURCES[0].read_text()))
    assert "in theory 0.9" in "".join(kept)


def test_tags_are_of_the_source(tmp_path):
    build = pytest.importorskip("notebooks.build", reason="needs jupytext, nbclient")
    script = tmp_path / "00_story.py"
    script.write_text('# %% [markdown]\n# A\n\n# %% tags=["thumbnail"]\nprint(1)\n')
    text, code = build.read_source(script).cells
    assert (text.metadata, code.metadata) == ({}, {"tags": ["thumbnail"]})


def test_a_changed_print_is_noticed():
    kept = "n = 99: rank 90\ncoverage 0.9002 +- 0.0003, p-value 7.0e-25, [1. 0.]\n"
    for old, new in [
        ("rank 90", "rank 91"),
        ("0.9002", "0.9105"),
        ("0.9002", "-0.9002"),
        ("0.9002", "inf"),
        ("0.0003", "0.0005"),
        ("7.0e-25", "7.0e-21"),
        ("7.0e-25", "0.7"),
        ("coverage", "width"),
        ("n = 99: ", ""),
        ("[1. 0.]", "[0. 0.]"),
    ]:
        assert old in kept
        assert not prints.same(kept, kept.replace(old, new)), (old, new)
        assert prints.differences(["", kept], ["", kept.replace(old, new)])


def test_prints_of_another_processor_are_the_same():
    kept = (
        "of 1,000,000 rows  [ 0.5 -1. ]: 0.9002 +- 0.0003, p-value 7.0e-25, 12.345678"
    )
    for old, new in [
        ("1,000,000", "1,000,002"),
        ("[ 0.5", "[0.5"),
        ("0.9002", "0.9008"),
        ("0.0003", "0.0004"),
        ("7.0e-25", "9.2e-25"),
        ("12.345678", "12.345"),
    ]:
        assert old in kept
        assert prints.same(kept, kept.replace(old, new)), (old, new)
    assert prints.differences([kept], [kept]) == []
    assert prints.differences([kept], [kept, ""])


def test_prints_of_a_script_come_cell_by_cell(tmp_path, capsys):
    script = tmp_path / "00_story.py"
    script.write_text(
        "# %% [markdown]\n# # Title\n\n# %%\nx = 1\n\n# %%\nprint(x)\n"
        '\n# %% tags=["not-compared"]\nprint("0.3 s")\n\n# %%\nprint(x + 1)\n'
    )
    assert prints.run(script) == ["", "1\n", "", "2\n"]
    assert capsys.readouterr().out == ""
    script.write_text(script.read_text() + "1 / 0\n")
    with pytest.raises(ZeroDivisionError) as raised:
        prints.run(script)
    assert raised.traceback[-1].lineno + 1 == len(script.read_text().splitlines())
