"""How large the library may be. Ceilings only go down.

Code lines are those that are neither blank, nor comments, nor docstrings. A change that
needs more first takes away as much, or brings what a second method already uses.
"""

import ast
import io
import tokenize
from pathlib import Path

import jaxcp

ROOT = Path(jaxcp.__file__).parent
CEILINGS = {
    "code lines": 23_179,
    "files": 176,
    "modules at the top": 12,  # _arrays.py to typing.py, besides __init__.py
    "share of imports": 0.108,
    "share of validation": 0.2135,  # of what is neither an import nor a signature
    "code lines of a file": 400,
}
SKIPPED = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def spans(nodes):
    return {i for n in nodes for i in range(n.lineno, n.end_lineno + 1)}


def is_docstring(node):
    value = getattr(node, "value", None)
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def is_check(call):
    """Whether something is asked of what came in: _checks.rows(...), check_alpha()."""
    function = call.func
    name = getattr(function, "attr", getattr(function, "id", ""))
    owner = getattr(getattr(function, "value", None), "id", "")
    return name.lstrip("_").startswith("check") or owner == "_checks"


def validates(node):
    """Whether a node is there to refuse: it raises, asserts, or asks a check."""
    if isinstance(node, FUNCTIONS):
        return node.name.lstrip("_").startswith("check")
    if isinstance(node, ast.Call):
        return is_check(node)
    if isinstance(node, ast.If | ast.ExceptHandler):
        return any(isinstance(child, ast.Raise) for child in node.body)
    return isinstance(node, ast.Raise | ast.Assert)


def count(source, name=""):
    """Returns the numbers of code lines, of imports, signatures and validation."""
    nodes = [*ast.walk(ast.parse(source))]
    bodies = [n for n in nodes if isinstance(n, FUNCTIONS | ast.ClassDef)]
    heads = {
        i
        for n in bodies
        for i in range(
            min([n.lineno, *(d.lineno for d in n.decorator_list)]), n.body[0].lineno
        )
    }
    first = [n.body[0] for n in [*bodies, nodes[0]] if n.body]
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in SKIPPED
        for line in range(token.start[0], token.end[0] + 1)
    } - spans(filter(is_docstring, first))
    imports = code & spans(
        n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)
    )
    checks = code if name == "_checks.py" else spans(filter(validates, nodes))
    checks = (checks & code) - imports
    return len(code), len(imports), len((heads & code) - imports - checks), len(checks)


def measure(root=ROOT):
    paths = [*root.rglob("*.py")]
    counts = [count(path.read_text(), path.name) for path in paths]
    code, imports, signatures, checks = map(sum, zip(*counts, strict=True))
    return {
        "code lines": code,
        "files": len(paths),
        "modules at the top": len([*root.glob("*.py")]) - 1,
        "share of imports": imports / code,
        "share of validation": checks / (code - imports - signatures),
        "code lines of a file": max(counts)[0],
    }


def test_the_house_is_no_larger_than_it_may_be():
    found = measure()
    above = {k: v for k, v in found.items() if v > CEILINGS[k]}
    assert not above, f"expected at most {CEILINGS}, got {above}"


def test_lines_are_counted_by_what_they_do():
    source = '''"""A module."""

from a import (
    b,
)


def check_alpha(alpha):
    """Docstring."""
    return alpha  # all of it is a check


@decorated
def twice(
    x,
):
    """Several
    lines."""
    # a comment
    if x < 0:
        raise ValueError("negative")
    text = """not a

    docstring"""
    return b(x), text
'''
    assert count(source) == (15, 3, 4, 4)
