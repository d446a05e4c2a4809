"""How long the first call of every public name takes, and what compiles again.

`python -m experiments.speed.first_calls [--out DIR] [--only NAME]`

The example in the docstring of each public function, class and method runs three times:
with empty caches, as in a fresh process (imports apart); with data from other keys; and
with other numbers everywhere, levels and hyperparameters too, but for those that shapes
come from. What it computes last must then be neither traced nor compiled again. No
program comes from a cache of another process.
"""

import ast
import doctest
import importlib
import pkgutil
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import matplotlib

import jaxcp
from experiments.tools.reporting import arguments, print_table, save_results

EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "traces",
    "/jax/core/compile/backend_compile_duration": "programs",
}
AT_MOST = 2.0  # seconds of a first call, on two cores
LEFT_OUT = {"jaxcp.distributed"}  # starts processes
SHAPES = {"array", "arange", "linspace", "logspace", "zeros", "ones", "full"}
COUNTS = dict.fromkeys(EVENTS.values(), 0)


class Other(ast.NodeTransformer):
    """Other keys and, if asked, other numbers, where no shape comes from them."""

    def __init__(self, numbers: bool) -> None:
        self.numbers = numbers

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Leaves arguments that make shapes; changes those that make keys."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in SHAPES:
            return node
        if name == "key":
            seed = ast.BinOp(node.args[0], ast.Add(), ast.Constant(100))
            return ast.Call(node.func, [seed], [])
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Makes a float a little smaller."""
        if self.numbers and isinstance(node.value, float):
            return ast.copy_location(ast.Constant(0.96 * node.value), node)
        return node


class Hoist(ast.NodeTransformer):
    """Functions and classes once and for all: new ones would be compiled anew."""

    def __init__(self) -> None:
        self.functions: list[ast.stmt] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Moves a definition."""
        self.functions.append(node)
        return ast.copy_location(ast.Pass(), node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Moves a class, with its methods."""
        self.functions.append(node)
        return ast.copy_location(ast.Pass(), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """Moves an import, which a class may be made of."""
        self.functions.append(node)
        return ast.copy_location(ast.Pass(), node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        """Moves a lambda, and leaves its name."""
        name = f"_lambda_{len(self.functions)}"
        target = ast.Name(name, ast.Store())
        self.functions.append(ast.Assign([target], node))
        return ast.copy_location(ast.Name(name, ast.Load()), node)


def examples() -> Iterator[tuple[str, str, dict]]:
    """Yields the name, the source and the names in scope of each public example."""
    matplotlib.use("Agg")
    finder = doctest.DocTestFinder(exclude_empty=True)
    for info in pkgutil.walk_packages(jaxcp.__path__, "jaxcp."):
        if info.ispkg or info.name in LEFT_OUT:
            continue
        module = importlib.import_module(info.name)
        scope = {**vars(module), "jax": jax, "jnp": jnp, "jaxcp": jaxcp}
        for test in finder.find(module, globs=scope):
            if test.examples:
                name = test.name.removeprefix("jaxcp.")
                right = (e.source for e in test.examples if e.exc_msg is None)
                yield name, "".join(right), scope


def measure(name: str, source: str, scope: dict) -> dict:
    """Returns the seconds of three runs of an example, and what the later ones cost."""
    hoist, tree = Hoist(), ast.parse(source)
    tree = hoist.visit(tree)
    functions = ast.Module(hoist.functions, [])
    _run(functions, scope)
    jax.clear_caches()
    row = {"example": name, "first s": _run(tree, scope)[0]}
    for what, numbers in (("other data", False), ("other numbers", True)):
        other = Other(numbers).visit(ast.parse(source))
        other = Hoist().visit(other)
        seconds, counts = _run(other, scope)
        row |= {f"{what} s": seconds, f"{what}, traces": counts["traces"]}
        row[f"{what}, programs"] = counts["programs"]
    return row


def _run(tree: ast.Module, scope: dict) -> tuple[float, dict[str, int]]:
    """Returns the seconds of a run, and what was traced and compiled."""
    code = compile(ast.fix_missing_locations(tree), "example", "exec")
    before, start = dict(COUNTS), time.perf_counter()
    exec(code, scope)
    seconds = time.perf_counter() - start
    return seconds, {name: COUNTS[name] - count for name, count in before.items()}


def _count(event: str, duration: float, **about) -> None:
    if event in EVENTS:
        COUNTS[EVENTS[event]] += 1


def main() -> None:
    """Prints and saves the table, the slowest first calls at the top."""
    parser = arguments(__doc__, compiles=True)
    parser.add_argument("--only", default="", help="a part of the names")
    args = parser.parse_args()
    jax.monitoring.register_event_duration_secs_listener(_count)
    rows = [measure(*e) for e in examples() if args.only in e[0]]
    rows.sort(key=lambda row: -row["first s"])
    print_table("the examples of all docstrings", rows)
    save_results(args.out, "first_calls", rows, {"examples": len(rows)})
    counts = [
        {"examples": f"first call above {AT_MOST:g} s", "count": 0},
        {"examples": "compiled again for other data", "count": 0},
        {"examples": "compiled again for other numbers", "count": 0},
    ]
    for row in rows:
        counts[0]["count"] += row["first s"] > AT_MOST
        counts[1]["count"] += row["other data, programs"] > 0
        counts[2]["count"] += row["other numbers, programs"] > 0
    print_table(f"of {len(rows)} examples", counts)
    save_results(args.out, "first_calls_counts", counts, {"examples": len(rows)})


if __name__ == "__main__":
    main()
