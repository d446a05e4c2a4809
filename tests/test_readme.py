import re

import pytest

import pages

README = pages.README.read_text()
BLOCKS = pages.blocks(README)


def test_the_examples_run_in_order(capsys):
    names = {}
    for block in BLOCKS:
        pages.run("README.md", block, names)
    covered = names["covered"]
    assert covered.shape == (100_000,)
    assert abs(float(covered.mean()) - 0.9) < 4 * 0.3 / 100_000**0.5
    assert len(BLOCKS) == 21


def test_no_key_is_used_twice():
    pages.check_keys("".join(BLOCKS))


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
    command = re.search(r"^python3 .* -m pytest -n 2$", README, re.MULTILINE).group()
    assert command in (pages.ROOT / ".ci" / "run").read_text()


def test_no_line_promises_a_file_that_is_not_there():
    for module in re.findall(r"python -m ((?:experiments|notebooks)\.\w+)", README):
        assert (pages.ROOT / (module.replace(".", "/") + ".py")).exists()
    assert not pages.broken_links(pages.README)


def test_every_notebook_is_in_the_table():
    for path in (pages.ROOT / "notebooks").glob("0*.ipynb"):
        assert f"| [{path.name[:2]}](notebooks/{path.name}) |" in README
