"""What is installed is the library alone, with its license, and runs the start."""

import os
import subprocess
import sys
import tarfile
import zipfile

import pytest

import jaxcp
import pages

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "-w", folder]
    subprocess.run([*PIP, "wheel", *options, pages.ROOT], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_the_library_alone(wheel):
    assert wheel.name.startswith(f"jaxcp-{jaxcp.__version__}-py3")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (about,) = [name for name in names if name.endswith("/METADATA")]
        metadata = archive.read(about).decode()
    info = about.removesuffix("METADATA")
    outside = [v for v in names if not v.startswith(("jaxcp/", info))]
    assert outside == []
    for name in ("LICENSE", "CHANGES.md", "CITATION.cff", "py.typed"):
        assert f"jaxcp/{name}" in names
    assert f"{info}licenses/jaxcp/LICENSE" in names
    for line in ("License-Expression: Apache-2.0", "Project-URL: Homepage, https://"):
        assert f"\n{line}" in metadata


@pytest.mark.slow
def test_the_source_has_what_the_tests_and_the_site_need(tmp_path):
    pytest.importorskip("hatchling")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path]
    subprocess.run(words, check=True, cwd=pages.ROOT, capture_output=True)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert built.name == f"jaxcp-{jaxcp.__version__}.tar.gz"
    for name in (
        "pyproject.toml", "README.md", "jaxcp/CITATION.cff", "jaxcp/LICENSE",
        "tests/conftest.py", "experiments/RESULTS.md", "notebooks/site.css",
        "experiments/pictures/front_page.svg", "notebooks/guide/references.bib",
        "notebooks/01_split_regression.ipynb",
    ):  # fmt: skip
        assert name in names
    tops = (
        "PKG-INFO .gitignore README.md experiments jaxcp notebooks pyproject.toml tests"
    )
    assert {name.partition("/")[0] for name in names} <= {*tops.split()}


@pytest.mark.slow
def test_the_wheel_installs_and_runs_the_start(wheel, tmp_path):
    where = tmp_path / "installed"
    install = [*PIP, "install", "--no-deps", "--no-index", "--target", where, wheel]
    subprocess.run(install, check=True)
    start = pages.blocks(pages.README.read_text())[0]
    code = f"{start}\nprint(jaxcp.__file__)"
    out = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(where), "PYTHONSAFEPATH": "1"},
    ).stdout
    assert out.startswith("0.912")
    assert str(where) in out


def test_the_changes_say_what_this_version_brings():
    changes = (pages.ROOT / "jaxcp" / "CHANGES.md").read_text()
    assert changes.index(f"## {jaxcp.__version__}\n") < changes.index("## 0.1.0\n")
