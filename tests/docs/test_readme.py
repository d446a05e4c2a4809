import re

import pytest

import pages

README = pages.README.read_text()
BLOCKS = pages.blocks(README)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_each_block_runs_alone(number, tmp_path, monkeypatch):
    """And prints the numbers that it says."""
    monkeypatch.chdir(tmp_path)
    printed = pages.run("README.md", BLOCKS[number], {})
    pages.check_said(printed, BLOCKS[number])
    assert pages.said(BLOCKS[number]) or number == 1


def test_the_front_page_is_short():
    assert 9_000 <= len(README.encode()) <= 10_000
    assert len(BLOCKS) == 6  # the start, and five that stand alone
    text = pages.prose(README).splitlines()
    assert max(len(line) for line in text if not line.startswith("|")) <= 120


@pytest.mark.parametrize("code", BLOCKS)
def test_no_key_is_used_twice(code):
    pages.check_keys(code)
    assert len(re.findall(r"random\.key\(", code)) <= 2  # data, and what is drawn


@pytest.mark.parametrize(
    "code",
    [
        "f(key); g(key)",
        "key_a = 1; f(key_a) + f(key_a)",
        "f(key); h = g(key)",
        "f(jax.random.key(1)); g(jax.random.key(1))",
    ],
)
def test_keys_that_are_used_twice_are_noticed(code):
    with pytest.raises(AssertionError):
        pages.check_keys(code)


def test_a_key_of_its_own_may_be_used():
    pages.check_keys("key = f(key); g(key)\ndef f(key): return h(key, key)")


def test_the_gate_runs_the_test_command():
    if not (pages.ROOT / ".ci").exists():
        pytest.skip("not in a checkout")
    command = re.search(r"python3 .* -m pytest -n 2$", README, re.MULTILINE).group()
    assert command in (pages.ROOT / ".ci" / "run").read_text()


def test_no_line_promises_a_file_that_is_not_there():
    for module in re.findall(r"python -m ((?:experiments|notebooks)\.[\w.]+)", README):
        assert (pages.ROOT / (module.replace(".", "/") + ".py")).exists()
    assert not pages.broken_links(pages.README)


def measured(table, row, column):
    """Returns a figure of the results of speed."""
    results = (pages.ROOT / "experiments" / "speed" / "RESULTS.md").read_text()
    part = re.search(rf"^## {table}\n(.*?)(?=^## )", results, re.MULTILINE | re.DOTALL)
    lines = [v.strip("|").split("|") for v in re.findall(r"^\|.*$", part[1], re.M)]
    names, *rows = [[cell.strip(" *") for cell in line] for line in lines]
    (found,) = [line for line in rows if line[0] == row]
    return float(found[names.index(column)])


def test_the_table_of_speed_is_that_of_the_results():
    labels, kernel = "kernel_speed_labels", "kernel_speed_kernel"
    expected = [
        measured("cross_speed_ridge", "MAPIE", "jaxcp / it"),
        1 / measured(labels, "MAPIE", "times jaxcp"),
        1 / measured(labels, "numpy", "times jaxcp"),
        measured("simulation_speed_replicates", "numpy", "jaxcp / it"),
        measured(kernel, "1000 x 1000", "jaxcp / numpy"),
    ]
    said = re.findall(r"\| (?:\*\*)?(\d+\.\d+)(?:\*\*)? \|$", README, re.MULTILINE)
    digits = [len(number.split(".")[1]) for number in said]
    assert said == [f"{v:.{d}f}" for v, d in zip(expected, digits, strict=True)]
    assert max(expected) > 1  # a loss among them


def test_every_notebook_is_named():
    for path in (pages.ROOT / "notebooks").glob("[0-9]*.ipynb"):
        assert (
            f"(../{path.name})" in (pages.ROOT / "notebooks/guide/index.md").read_text()
        )
