"""What README and the pages of the guide are held to: blocks, links, keys, length."""

import ast
import io
import re
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path

import jax

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
GUIDE = ROOT / "notebooks" / "guide"
PAGES = sorted(GUIDE.rglob("*.md"))


def blocks(text):
    """Returns the Python blocks of a page, in order."""
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def steps(text):
    """Returns the Python blocks of a page, each with the output below it, or None."""
    output = r"(?:\s*```text\n(?!\w*(?:Error|Untraceable):)(.*?)```)?"
    found = re.findall(rf"```python\n(.*?)```{output}", text, flags=re.DOTALL)
    return [(code, shown or None) for code, shown in found]


def run(name, code, names):
    """Returns what a block prints, run as users do, but keys may not be used twice."""
    printed, program = io.StringIO(), compile(code, name, "exec")
    ranks, reuse = jax.numpy_rank_promotion("allow"), jax.debug_key_reuse(True)
    with ranks, reuse, redirect_stdout(printed):
        exec(program, names)
    print(printed.getvalue(), end="")  # for those who capture it
    return printed.getvalue()


def agree(printed, shown):
    """Returns whether two outputs have the same words, and numbers that are close.

    As close as those of two machines are, of which one rounds another way. One may have
    more before the other begins; of times there is nothing to compare.
    """
    number = r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?"
    texts = [re.sub(rf"{number} m?s\b", "time", text) for text in (printed, shown)]
    words = [re.sub(r"\s", "", re.sub(number, "#", text)) for text in texts]
    ends = (map(float, reversed(re.findall(number, text))) for text in texts)
    near = (abs(a - b) <= 0.05 + 0.05 * abs(b) for a, b in zip(*ends, strict=False))
    same = words[0].endswith(words[1]) or words[1].endswith(words[0])
    return all(words) and same and all(near)


def prose(text):
    """Returns a page without its blocks of code."""
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def broken_links(path):
    """Returns the links to files and to headings that are not there."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text()))
    return [link for link in found if not _is_there(path, link)]


def _is_there(path, link):
    if re.match(r"https?:|mailto:", link):
        return True
    name, _, heading = link.partition("#")
    target = (path.parent / name).resolve() if name else path
    if not target.exists() or ROOT not in target.parents:
        return False
    return not heading or heading in headings(target.read_text())


def headings(text):
    """Returns the anchors that a page's headings have."""
    lines = re.findall(r"^#+ +(.+)$", prose(text), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", line.lower()) for line in lines]
    return {line.strip().replace(" ", "-") for line in plain}


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


def check_keys(code):
    """Raises where a key is used twice, or a seed comes twice, which no run tells."""
    seeds = re.findall(r"(?:random\.key|nnx\.Rngs)\((\d+)\)", code)
    assert len(seeds) == len(set(seeds)), sorted(seeds)
    Uses().visit(ast.parse(code))
