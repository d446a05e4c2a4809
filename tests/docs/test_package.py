import ast
import doctest
import graphlib
import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import pytest
from conftest import untracked

import jaxcp

ROOT = Path(jaxcp.__file__).parent
MODULES = [
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    for path in sorted(ROOT.rglob("*.py"))
    if path.name != "__init__.py"
]


NAMESPACES = [jaxcp] + [
    value
    for name in dir(jaxcp)
    if isinstance(value := getattr(jaxcp, name), types.ModuleType)
]
PROTOCOLS = [
    value
    for name, value in vars(jaxcp.typing).items()
    if isinstance(value, type)
    and value.__module__ == "jaxcp.typing"
    and not name.startswith("_")
]
# Methods of these are verbs of their own, and documented as such.
VERBS = ["quantile", "__call__", "minmax", "naive", "aggregate", "init", "fit"]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module):
    matplotlib.use("Agg")
    if jax.config.jax_enable_x64:
        pytest.skip("examples print single precision")
    module = importlib.import_module(module)
    names = {**vars(module), "jax": jax, "jnp": jnp, "jaxcp": jaxcp}
    flags = doctest.NORMALIZE_WHITESPACE
    finder = doctest.DocTestFinder()
    runner = doctest.DocTestRunner(optionflags=flags)
    for test in finder.find(module, extraglobs=names):
        report = []
        runner.run(test, out=report.append)
        assert not runner.failures, "".join(report)


def public():
    for namespace in NAMESPACES:
        for name in namespace.__all__:
            value = getattr(namespace, name)
            if callable(value) and namespace is not jaxcp.typing:
                yield pytest.param(value, id=f"{namespace.__name__}.{name}")


@pytest.mark.parametrize("value", list(public()))
def test_public_names_are_documented(value):
    """A docstring with what a user needs, and an example that runs."""
    methods = [
        vars(value)[v] for v in VERBS if isinstance(value, type) and v in vars(value)
    ]
    text = "\n".join([value.__doc__ or "", *(m.__doc__ or "" for m in methods)])
    assert len(text) > 100
    made_elsewhere = isinstance(value, type) and "Made by" in text
    assert ">>>" in text or made_elsewhere
    if not isinstance(value, type):
        assert "Args:" in text
        assert "Returns:" in text
        assert "Raises:" in text
    if value.__module__.startswith("jaxcp.scores"):
        assert "Guarantee:" in text


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.__name__)
def test_protocols_are_for_those_who_implement_them(protocol):
    """Each is public, says what it is, what its members return, and can be asked."""
    assert protocol.__name__ in jaxcp.typing.__all__
    assert len(protocol.__doc__) > 40
    members = [v for k, v in vars(protocol).items() if callable(v) and k[0] != "_"]
    members += [v for k, v in vars(protocol).items() if k == "__call__"]
    assert members
    for member in members:
        assert member.__doc__.startswith(("Returns", "Raises", "Whether", "True"))
        assert "return" in member.__annotations__
    assert not isinstance(object(), protocol)  # or isinstance raises


@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda n: n.__name__)
def test_completion_offers_public_names_alone(namespace):
    lazy = ["models"] if namespace is jaxcp else []
    assert dir(namespace) == sorted([*namespace.__all__, *lazy])
    assert all(hasattr(namespace, name) for name in dir(namespace))
    assert not any(name.startswith("_") for name in dir(namespace))


def test_moved_names_are_found_but_not_listed():
    assert jaxcp.certificates.test_coverage is jaxcp.certificates.coverage_test
    assert jaxcp.outliers.SimpleJumper is jaxcp.pvalues.SimpleJumper
    for namespace in (jaxcp, jaxcp.certificates, jaxcp.outliers):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = namespace.nothing


def test_every_public_name_is_exported_once():
    # Of learners and scores; a score and its set; of targets and of censored times.
    twice = "check", "Band", "coverage"
    names = [v for home in NAMESPACES for v in home.__all__ if v not in twice]
    assert len(names) == len(set(names))
    checks = {home for home in NAMESPACES if "check" in home.__all__}
    assert checks == {jaxcp.learners, jaxcp.scores}


def test_every_public_name_is_in_a_listed_namespace():
    """A package that `jaxcp` does not list, such as `full`, has none of its own."""
    listed = {name for home in NAMESPACES for name in home.__all__}
    for _, name, _ in pkgutil.iter_modules(jaxcp.__path__):
        if not name.startswith("_"):
            home = importlib.import_module(f"jaxcp.{name}")
            assert home in NAMESPACES or {*getattr(home, "__all__", [])} <= listed


def environment():
    """Returns the variables of a process of its own, without settings of jax."""
    return {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}


def told(code, *words):
    """Returns the lines that code prints in a process of its own."""
    words = [sys.executable, "-c", code, *words]
    done = subprocess.check_output(words, env=environment(), text=True)
    return done.splitlines()


HEAVY = ["flax", "optax", "matplotlib", "sklearn", "scipy.stats", "tqdm", "pandas"]
HEAVY += ["jax.scipy.stats", "jax.extend", "jax.experimental.pallas"]
IMPORTED = """
import sys, jaxcp
print(*sorted(m for m in sys.modules if m.partition(".")[0] == "jaxcp"))
assert "scores" not in vars(jaxcp)
cp = jaxcp.calibrate(jaxcp.scores.Absolute(), [0.0] * 9, [*range(1, 10)])
print(cp([0.0], alpha=0.2).upper)
assert "scores" in vars(jaxcp)  # no second call
print(*sorted({m.split(".")[1] for m in sys.modules if m.startswith("jaxcp.")}))
jaxcp.models.GaussianNetwork  # imported when it is asked for
import jax
print(jax.config.jax_compilation_cache_dir)
"""


def test_import_is_light():
    """It loads what other modules are decorated with, and notices forks."""
    light, upper, families, cache = told(IMPORTED)
    own = ["", "._loading", "._tree", ".checking", ".checking.captured"]
    assert light.split() == [f"jaxcp{name}" for name in own]
    assert upper == "[8.]"
    others = {"cross", "full", "learners", "online", "predictive", "risk", "simulation"}
    assert not others & {*families.split()}
    assert cache == "None"  # nothing is set globally


# Eight threads ask for each name at once, each in an order of its own.
ASKED = """
import random, sys, threading, types, jaxcp

start, found = threading.Barrier(8), []

def ask(seed):
    names, values = dir(jaxcp), {}
    names.remove("models")
    random.Random(seed).shuffle(names)
    start.wait()
    for name in names:
        values[name] = home = getattr(jaxcp, name)
        if isinstance(home, types.ModuleType):
            values |= {f"{name}.{k}": getattr(home, k) for k in dir(home)}
    found.append({name: id(value) for name, value in values.items()})

threads = [threading.Thread(target=ask, args=[i]) for i in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(found) == 8 and all(ids == found[0] for ids in found)
print(*sorted(found[0]))
print([m for m in sys.argv[1:] if m in sys.modules])
"""


def test_every_name_is_reached_from_the_import_alone():
    """From threads, too; and none loads what is heavy."""
    names, heavy = told(ASKED, *HEAVY)
    homes = {home.__name__.partition(".")[2]: home for home in NAMESPACES}
    homes.pop("models")
    listed = {f"{k}.{v}".lstrip(".") for k, home in homes.items() for v in dir(home)}
    assert {*names.split()} == listed - {"models"}
    assert heavy == "[]"


PACKAGES = sorted(path.parent for path in ROOT.rglob("__init__.py"))


def imports_of(path):
    """Yields modules, and names that a file imports of them, when it is loaded."""
    for node in ast.parse(path.read_text()).body:
        for inner in node.body if isinstance(node, ast.With) else [node]:
            if isinstance(inner, ast.ImportFrom):
                yield inner.module, [alias.name for alias in inner.names]


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda p: p.name)
def test_a_package_lists_what_it_imports(folder):
    """And a star takes that."""
    name = ".".join(folder.relative_to(ROOT.parent).parts)
    home = importlib.import_module(name)
    imports = [i for i in imports_of(folder / "__init__.py") if "jaxcp" in i[0]]
    imported = {name for _, names in imports for name in names} - {"lazily"}
    listed = [*getattr(home, "__all__", [])]
    moved = {"jaxcp": {"models"}, "jaxcp.outliers": {"pvalues"}}.get(name, set())
    assert imported - moved == {*listed}
    if listed:
        taken = {}
        exec(f"from {name} import *", taken)
        assert taken.keys() - {"__builtins__"} == {*listed}


def sources(module, names):
    """Yields the modules that are loaded for names of a module or a package."""
    home = importlib.import_module(module)
    for name in names if hasattr(home, "__path__") else []:
        value = getattr(home, name)
        is_module = isinstance(value, types.ModuleType)
        yield value.__name__ if is_module else value.__module__
    if not hasattr(home, "__path__"):
        yield module


def test_each_module_may_be_the_first():
    """No module needs one that needs it, by the names that packages load."""
    graph = {}
    for path in [path for path in ROOT.rglob("*.py") if path.name != "__init__.py"]:
        own = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        imports = [i for i in imports_of(path) if i[0].partition(".")[0] == "jaxcp"]
        graph[own] = {source for i in imports for source in sources(*i)}
    order = [*graphlib.TopologicalSorter(graph).static_order()]  # or CycleError
    assert {*graph} <= {*order}


@pytest.mark.parametrize(
    ("home", "name", "here"),
    [
        (jaxcp, "Absolute", "jaxcp.scores.Absolute"),
        (jaxcp, "CVPlus", "jaxcp.cv_plus"),
        (jaxcp.scores, "THR", "jaxcp.scores.LAC"),
        (jaxcp.metrics, "mean_width", "jaxcp.metrics.mean_size"),
    ],
)
def test_names_of_elsewhere_are_told(home, name, here):
    expected = f"module {home.__name__!r} has no attribute {name!r}; here it is {here}"
    with pytest.raises(AttributeError) as error:
        getattr(home, name)
    assert str(error.value) == expected


ORDER = [
    {"captured", "typing"},
    {"_tree"},
    {"_batching", "_numbers", "saving"},
    {"_arrays"},
    {"_checks"},
    {"_names"},
    {"draws", "resampling", "quantiles"},
    {"_geometry", "pvalues", "certificates", "simulation", "distributed"},
    {"conditional", "datasets", "models", "volumes"},
    {"sets"},
    {"scores"},
    {"held", "learners"},
    {"calibration"},
    {"checking", "selection"},
    {"causal", "frames", "predictive", "risk", "training"},
    {"online"},
    {"cross", "full", "outliers", "detection", "metrics"},
    {"survival"},
    {"plotting"},
]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: p.stem)
def test_imports_go_one_way(path):
    """By family; what functions capture lies below all, and `__init__` lists names."""
    level = {name: i for i, names in enumerate(ORDER) for name in names}
    *folder, own = path.relative_to(ROOT).with_suffix("").parts
    if own == "__init__":
        return
    own = own if own == "captured" or not folder else folder[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jaxcp"):
            parts = node.module.split(".")[1:]
            for name in [a.name for a in node.names]:
                family, *rest = [*parts, name]
                family = "captured" if "captured" in rest[:1] else family
                assert family == own or level[family] < level[own], (family, path)


def test_the_one_kernel_does_the_selecting():
    """No sort, quantile or top-k but where many levels of one array are asked for."""
    allowed = {
        "_rows.py": {"sort"},  # many targets of one row
        "labels.py": {"argsort"},
        "increasing.py": {"sort"},  # predicted quantiles that cross
        "probability.py": {"sort"},  # the order of all scores
        "probabilities.py": {"sort"},  # bins of as many rows
        "_votes.py": {"lexsort"},
        "methods.py": {"argsort"},  # rows by cluster
        "atoms.py": {"sort"},  # the CRPS
        "windows.py": {"sort"},
        "dependence.py": {"sort"},
        "scoring.py": {"sort"},
        "martingales.py": {"sort"},
        "multiple.py": {"sort"},
        "selecting.py": {"sort"},
        "quantiles.py": {"sort"},  # a mean of all order statistics
        "rates.py": {"lexsort"},  # rows by group and cluster
        "conditional.py": {"argsort"},
        "strata.py": {"argsort"},
        "conformal.py": {"sort"},
        "local.py": {"sort"},  # all levels of one test point
        "classes.py": {"lexsort"},  # five scores of each class
        "survival.py": {"sort"},  # all rows, in order of time
        "unions.py": {"argsort", "sort"},  # all breakpoints of a union, in order
        "testing.py": {"argsort"},  # the order of tests
    }
    banned = {
        "sort",
        "argsort",
        "lexsort",
        "quantile",
        "percentile",
        "median",
        "top_k",
        "partition",
    }
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            ):
                continue
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id in ("jnp", "lax"):
                used = {node.func.attr} & banned
                assert used <= allowed.get(path.name, set()), (path.name, node.lineno)


def test_files_that_tests_leave_are_noticed(tmp_path):
    """By `conftest` when a session ends; without git nothing is known."""
    (tmp_path / "left.npz").write_text("")
    assert untracked(tmp_path) == set()
    if shutil.which("git"):
        subprocess.check_call(["git", "init", "-q", tmp_path])
        assert untracked(tmp_path) == {"left.npz"}
