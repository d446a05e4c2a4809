"""What README and the pages of the guide are held to: blocks, links, keys, length."""

import ast
import io
import re
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path

import jax

from notebooks import prints

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
GUIDE = ROOT / "notebooks" / "guide"
PAGES = sorted(GUIDE.rglob("*.md"))
FENCES = {
    "```python",
    "```bash",
    "```text",
    "```math",
    "```bibtex",
}  # run, or say something
NUMBER = r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?"
PEERS = r"^(?:(?:MAPIE|crepes|TorchCP|PUNCC) .*\n|jaxcp +(?=\[))"


def blocks(text):
    """Returns the Python blocks of a page, in order."""
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def steps(text):
    """Returns the Python blocks of a page, each with the output below it, or None."""
    output = r"(?:\s*```text\n(?!\w*(?:Error|Untraceable):)(.*?)```)?"
    found = re.findall(rf"```python\n(.*?)```{output}", text, flags=re.DOTALL)
    return [(code, shown or None) for code, shown in found]


def packages(code):
    """Returns the packages that code imports, by name."""
    nodes = [*ast.walk(ast.parse(code))]
    names = [n.module for n in nodes if isinstance(n, ast.ImportFrom)]
    names += [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    return sorted({name.split(".")[0] for name in names})


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

    As close as those of two machines are, of which one rounds another way: 1 %, or one
    in the last digit that is shown, and whole numbers below 100 are the same. More may
    be printed before; of times, and of lines of other libraries, there is nothing to
    compare.
    """
    shown = re.sub(PEERS, "", shown, flags=re.MULTILINE)
    texts = [re.sub(rf"{NUMBER} m?s\b", "time", text) for text in (printed, shown)]
    words = [re.sub(r"\s", "", re.sub(NUMBER, "#", text)) for text in texts]
    ends = (reversed(re.findall(NUMBER, text)) for text in texts)
    near = (_near(one, other) for one, other in zip(*ends, strict=False))
    return all(words) and words[0].endswith(words[1]) and all(near)


def _near(printed, shown):
    one, other = float(printed), float(shown)
    last = 1.001 * prints.last_digit(shown)
    return abs(one - other) <= max(last, prints.RTOL * abs(other))


def said(code):
    """Returns what comments say that the lines of a block print, `print(x)  # 1.5`."""
    value = r"^print\(.*\)  # ((?:True|False|[-\[\d])[^:=%\n]*)(?::|$)"
    return re.findall(value, code, flags=re.MULTILINE)


def check_said(printed, code):
    """Raises unless lines that are printed agree with the comments, in their order."""
    lines = iter(printed.splitlines())
    for comment in said(code):
        assert any(agree(line, comment) for line in lines), (comment, printed)


def unknown_code(text):
    """Returns what no test runs and is no output either: fences of other kinds."""
    fences = re.findall(r"^ *((?:```|~~~).*)$", text, flags=re.MULTILINE)
    opened = [fence for fence in fences[::2] if fence not in FENCES]
    closed = [fence for fence in fences[1::2] if fence != "```"]
    indented = re.findall(r"\n\n((?: {4}|\t)[^\s*-].*)", prose(text))
    return opened + closed + indented


def quoted(text):
    """Returns the messages of errors of the library that a page shows, each a line."""
    shown = "\n".join(re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL))
    parts = re.split(r"^(\w+): (?=expected)", shown, flags=re.MULTILINE)
    return [" ".join(message.split()) for message in parts[2::2]]


def messages(folder):
    """Returns patterns of the texts in a package, where values may be anything."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [getattr(part, "value", None) for part in node.values]
            elif isinstance(node, ast.Constant):
                parts = [node.value]
            else:
                continue
            parts = [part for part in parts if isinstance(part, str)]
            # A sentence may be a template of str.format.
            texts = [text for part in parts for text in re.split(r"\{\w+\}", part)]
            if len("".join(texts)) >= 8 and "\n" not in "".join(texts):
                found.add("(.*)".join(map(re.escape, texts)))
    return [re.compile(pattern) for pattern in found]


def foreign(message, patterns):
    """Returns the longest part of a message that is in no text of the package."""
    left = list(message)
    for match in filter(None, (pattern.search(message) for pattern in patterns)):
        values = [
            i for j in range(len(match.groups())) for i in range(*match.span(j + 1))
        ]
        for i in {*range(*match.span())} - {*values}:
            left[i] = "\n"
    return max("".join(left).split("\n"), key=len)


def prose(text):
    """Returns a page without its blocks of code."""
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def broken_links(path):
    """Returns the links to files and to headings that are not there."""
    text = prose(path.read_text())
    found = re.findall(r"\]\(([^)\s]+)(?: +\"[^\"]*\")?\)", text)
    found += re.findall(r"\b(?:src|srcset|href)=\"([^\"\s]+)", text)
    found += re.findall(r"^ *\[[^\]]+\]: *(\S+)", text, flags=re.MULTILINE)
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
