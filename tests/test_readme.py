import ast
import re
from collections import Counter
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_examples_run_in_order(capsys):
    names = {}
    # As users have it, but that a key which is used twice is an error.
    with jax.numpy_rank_promotion("allow"), jax.debug_key_reuse(True):
        for block in BLOCKS:
            exec(compile(block, "README.md", "exec"), names)
    covered = names["covered"]
    assert covered.shape == (100_000,)
    assert abs(float(covered.mean()) - 0.9) < 4 * 0.3 / 100_000**0.5
    assert len(BLOCKS) == 21


class Uses(ast.NodeVisitor):
    """How often each name of a key is read between two times that it is given one."""

    def __init__(self):
        self.counts, self.own = Counter(), []

    def visit_Assign(self, node):
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_Name(self, node):
        if not node.id.startswith("key") or any(node.id in names for names in self.own):
            return
        is_read = isinstance(node.ctx, ast.Load)
        self.counts[node.id] = self.counts[node.id] + 1 if is_read else 0
        assert self.counts[node.id] <= 1, f"{node.id}, line {node.lineno}"

    def visit_scope(self, node):
        self.own.append({a.arg for a in node.args.args})
        self.generic_visit(node)
        self.own.pop()

    visit_FunctionDef = visit_Lambda = visit_scope


def test_no_key_is_used_twice():
    """Nor split and folded in, which no run tells; and no seed comes twice."""
    text = "".join(BLOCKS)
    seeds = re.findall(r"(?:random\.key|nnx\.Rngs)\((\d+)\)", text)
    assert len(seeds) == len(set(seeds)) > 15
    Uses().visit(ast.parse(text))
    for twice in (
        "f(key); g(key)",
        "key_a = 1; f(key_a) + f(key_a)",
        "f(key); h = g(key)",
    ):
        with pytest.raises(AssertionError):
            Uses().visit(ast.parse(twice))
    Uses().visit(ast.parse("key = f(key); g(key)\ndef f(key): return h(key, key)"))


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
