"""What lies around the code: workflows, forms, the citation, and one address."""

import re
import tomllib

import pytest

import jaxcp
import pages

PROJECT = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]
ADDRESS = PROJECT["urls"]["Homepage"]
HIDDEN = pages.ROOT / ".github"
CITATION = pages.ROOT / "jaxcp" / "CITATION.cff"
COPIES = {"CITATION.cff", "README.md", "config.yml", "landing.md", "pyproject.toml"}
KINDS = ".cff", ".css", ".md", ".py", ".toml", ".yaml", ".yml"
TEST = "python3 -m venv .venv && .venv/bin/pip install -e '.[all]'"
SITE = ".venv/bin/python -m notebooks.site --out "
needs_checkout = pytest.mark.skipif(not HIDDEN.exists(), reason="not in a checkout")


def files():
    """Returns the files of the repository that may have an address."""
    folders = "jaxcp", "tests", "experiments", "notebooks", ".github"
    found = [path for name in folders for path in (pages.ROOT / name).rglob("*.*")]
    found += [path for path in pages.ROOT.iterdir() if path.is_file()]
    return [path for path in found if path.suffix in KINDS]


def loaded(path):
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(path.read_text())


def commands(path):
    """Returns what a workflow runs, and which actions it uses."""
    steps = [step for job in loaded(path)["jobs"].values() for step in job["steps"]]
    return [step.get("run") or step["uses"] for step in steps]


def test_the_address_is_a_value_once_and_copies_are_equal():
    host = re.escape(ADDRESS.removeprefix("https://").partition("/")[0])
    for path in files():
        found = re.findall(rf"{host}/([\w.-]+/jaxcp)\b", path.read_text())
        assert not found or path.name in COPIES, path
        assert {*found} <= {ADDRESS.split("/", 3)[3]}, path
    assert list(PROJECT["urls"]) == ["Homepage"]
    assert "confirm" in (pages.ROOT / "pyproject.toml").read_text()


def test_the_description_has_the_words_that_people_search():
    said = PROJECT["description"].lower()
    for words in ("prediction intervals", "uncertainty", "coverage guarantee", "jax"):
        assert words in said and (words in map(str.lower, PROJECT["keywords"]))


def test_the_citation_is_of_this_version():
    about = loaded(CITATION)
    assert about["cff-version"] == "1.2.0" and about["message"]
    assert about["version"] == jaxcp.__version__
    assert about["license"] == PROJECT["license"]
    assert about["repository-code"] == ADDRESS
    assert about["authors"] == PROJECT["authors"]


@needs_checkout
def test_workflows_run_the_commands_of_the_readme():
    flows = HIDDEN / "workflows"
    readme = pages.README.read_text()
    (test,) = [v for v in commands(flows / "tests.yml") if "pytest" in v]
    assert test in readme and test.startswith(TEST)
    assert ".ci/run" in commands(flows / "tests.yml")
    assert any(v.startswith(SITE) for v in commands(flows / "site.yml"))
    assert SITE in readme
    pythons = loaded(flows / "tests.yml")["jobs"]["suite"]["strategy"]["matrix"]
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert pythons["python"] == [oldest, "3.13"]
    assert any(v.endswith(pythons["python"][1]) for v in PROJECT["classifiers"])
    build = loaded(pages.ROOT / ".readthedocs.yaml")["build"]["commands"]
    assert build[0] == TEST and build[1].startswith(SITE)


READS_THE_TYPE = re.compile(r"jax_enable_x64|canonicalize_dtype\(float\)")
SKIPS = re.compile(r"(skipif\(|if )jax\.config\.jax_enable_x64(,|:\s+pytest\.skip)")


def test_what_reads_the_float_type_has_the_mark_of_double_precision():
    """The gate runs what has it, and knows no file by its name."""
    for path in (pages.ROOT / "tests").rglob("test_*.py"):
        text = SKIPS.sub("", path.read_text())
        assert not READS_THE_TYPE.search(text) or "pytest.mark.double" in text, path
    gate = pages.ROOT / ".ci" / "run"
    if gate.exists():
        command = "JAX_ENABLE_X64=1 .venv/bin/python -m pytest -n 2 -m double"
        assert command in gate.read_text()


@needs_checkout
@pytest.mark.parametrize("name", ["tests.yml", "site.yml", "release.yml"])
def test_workflows_are_whole_and_say_that_they_have_not_run(name):
    path = HIDDEN / "workflows" / name
    assert path.read_text().startswith("# It has not run yet")
    flow = loaded(path)
    assert True in flow  # `on` is read as a boolean
    assert flow["permissions"] == {"contents": "read"}  # more where a job needs it
    jobs = flow["jobs"].values()
    assert all(job["runs-on"] == "ubuntu-latest" and job["steps"] for job in jobs)
    assert all(re.search(r"@(v\d+|release/v1)$", v) for v in commands(path) if "@" in v)


@needs_checkout
def test_a_release_is_of_the_version_that_its_tag_names():
    (check,) = [
        v for v in commands(HIDDEN / "workflows/release.yml") if "REF_NAME" in v
    ]
    assert "jaxcp-${GITHUB_REF_NAME#v}-py3-none-any.whl" in check


@needs_checkout
@pytest.mark.parametrize("name", ["bug.yml", "method.yml", "question.yml"])
def test_forms_of_issues_are_whole(name):
    form = loaded(HIDDEN / "ISSUE_TEMPLATE" / name)
    assert all(form[key] for key in ("name", "description", "labels", "body"))
    for part in form["body"]:
        assert part["type"] in ("checkboxes", "input", "textarea")
        assert part["id"] and part["attributes"]["label"]


@needs_checkout
def test_links_of_hidden_pages_lead_somewhere():
    for path in (*HIDDEN.glob("*.md"), *(HIDDEN / "ISSUE_TEMPLATE").glob("*.md")):
        links = re.findall(r"\]\((\.\.[^)#]+)", path.read_text())
        assert all((path.parent / v).exists() for v in links if "advisories" not in v)
    urls = loaded(HIDDEN / "ISSUE_TEMPLATE" / "config.yml")["contact_links"]
    blob = f"{ADDRESS}/blob/main/"
    paths = [v["url"].removeprefix(blob) for v in urls if v["url"].startswith(blob)]
    assert paths and all((pages.ROOT / path).exists() for path in paths)
