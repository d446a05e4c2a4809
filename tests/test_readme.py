import re
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_examples_run_in_order(capsys):
    names = {}
    with jax.numpy_rank_promotion("allow"):  # as users have it
        for block in BLOCKS:
            exec(compile(block, "README.md", "exec"), names)
    covered = names["covered"]
    assert covered.shape == (100_000,)
    assert abs(float(covered.mean()) - 0.9) < 4 * 0.3 / 100_000**0.5
    assert len(BLOCKS) == 17


def test_the_gate_runs_the_test_command():
    if not (ROOT / ".ci").exists():
        pytest.skip("not in a checkout")
    command = re.search(r"^python3 .* -m pytest -n 2$", README, re.MULTILINE).group()
    assert command in (ROOT / ".ci" / "run").read_text()


def test_no_line_promises_a_file_that_is_not_there():
    for module in re.findall(r"python -m ((?:experiments|notebooks)\.\w+)", README):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists()
    links = re.findall(r"\]\((?!#)([^)]+)\)", README)
    assert len(links) > 20
    for link in links:
        assert (ROOT / link).exists(), link


def test_every_notebook_is_in_the_table():
    for path in (ROOT / "notebooks").glob("0*.ipynb"):
        assert f"| [{path.name[:2]}](notebooks/{path.name}) |" in README
