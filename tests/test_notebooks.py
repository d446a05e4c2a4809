"""Every notebook runs, asserts its claim, and was built from its source as it is."""

from pathlib import Path

import jax
import matplotlib
import matplotlib.pyplot as plt
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
SOURCES = sorted(path for path in FOLDER.glob("*.py") if path.name[0].isdigit())
each = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)


def test_there_are_ten_stories():
    assert [path.name[:2] for path in SOURCES] == [f"{i:02}" for i in range(1, 11)]


@pytest.mark.slow
@each
def test_notebook(path, monkeypatch):
    """The source, with small sizes; its last cell asserts the claim."""
    if jax.config.jax_enable_x64:
        pytest.skip("stories are told in single precision")
    matplotlib.use("Agg")
    monkeypatch.setenv("JAXCP_FAST", "1")
    text = path.read_text()
    claim = text.split("# %%")[-1]
    assert "assert " in claim
    with jax.numpy_rank_promotion("allow"):
        exec(compile(text, path.name, "exec"), {"__name__": "__main__"})
    assert plt.get_fignums()
    plt.close("all")


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
