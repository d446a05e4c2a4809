"""How large the library may be, in tokens of code.

Lines are not what costs a reader, so packing code buys nothing here: a call of ten
lines, one keyword each, has the tokens of the same call on one line. Docstrings,
comments and blank lines are free. Text files that hold Python count, too.
"""

import ast
import io
import tokenize
from pathlib import Path

import jaxcp

ROOT = Path(jaxcp.__file__).parent
TOKENS = 278_800  # of this tree; what an issue names is added by what it uses
ROOM = 0.02  # so that a score or a rule fits without a change here
LINES_OF_A_FILE = 500  # lines of code: a file is one task
MODULES_AT_THE_TOP = 12  # _arrays.py to typing.py, besides __init__.py
LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstring_lines(tree):
    documented = [
        node
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, False) is not None
    ]
    return {
        line
        for node in documented
        for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)
    }


def count(source):
    """Returns the numbers of tokens and of lines of code of a source."""
    tokens, code_lines = 0, set()
    free = docstring_lines(ast.parse(source))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        lines = set(range(token.start[0], token.end[0] + 1))
        if token.type not in LAYOUT | {tokenize.COMMENT} and not lines & free:
            tokens += 1
            code_lines |= lines
    return tokens, len(code_lines)


def is_python(path):
    if path.suffix == ".py":
        return True
    if path.suffix != ".txt":
        return False
    source = path.read_text()
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return "def " in source


def measure(root=ROOT):
    """Returns the tokens and the lines of code of each file that holds Python."""
    return {
        str(path.relative_to(root)): count(path.read_text())
        for path in root.rglob("*")
        if path.is_file() and is_python(path)
    }


def test_the_house_is_no_larger_than_it_may_be():
    tokens = sum(tokens for tokens, _ in measure().values())
    most = round(TOKENS * (1 + ROOM))
    assert tokens <= most, (
        f"expected at most {most} tokens of code in jaxcp, {TOKENS} and {ROOM:.0%} of "
        f"room, got {tokens}. Take away as much as is too many, or, where an issue "
        "names tokens for what you add, raise TOKENS by what it uses. Lines do not "
        "count: pack nothing."
    )


def test_a_file_is_one_task():
    long = {name: lines for name, (_, lines) in measure().items()}
    long = {name: lines for name, lines in long.items() if lines > LINES_OF_A_FILE}
    assert not long, f"expected at most {LINES_OF_A_FILE} lines of code, got {long}"


def test_modules_at_the_top():
    modules = {path.name for path in ROOT.glob("*.py")} - {"__init__.py"}
    assert len(modules) <= MODULES_AT_THE_TOP, (
        f"expected at most {MODULES_AT_THE_TOP} modules beside __init__.py, "
        f"got {sorted(modules)}; a module of one family goes into its folder"
    )


def test_tokens_are_counted_without_words():
    source = '''"""A module."""

from a import (
    b,
)


def twice(x):
    """Several
    lines."""
    # a comment
    text = """not a

    docstring"""
    return b(x, text)
'''
    from_a = 7  # from a import ( b , )
    signature = 6  # def twice ( x ) :
    text, result = 3, 7  # text = """...""", return b ( x , text )
    assert count(source) == (from_a + signature + text + result, 3 + 1 + 3 + 1)
    packed = "def twice(x):\n    return b(x, text)\n"
    spread = "def twice(\n    x\n):\n    return b(\n        x,\n        text\n    )\n"
    assert count(packed)[0] == count(spread)[0]


def test_text_that_holds_python_counts(tmp_path):
    (tmp_path / "served.txt").write_text("def f(x):\n    return x\n")
    (tmp_path / "names.txt").write_text("one, two, three\n")
    assert measure(tmp_path) == {"served.txt": (8, 2)}
