"""What `help()` says of public names: short signatures, sections in order, papers."""

import inspect
import re
from pathlib import Path

import pytest
from test_package import NAMESPACES, PROTOCOLS

import jaxcp

FOLDER = Path(jaxcp.__file__).parent
BIBLIOGRAPHY = FOLDER.parent / "notebooks/guide/references.bib"
SECTIONS = [
    "Args",
    "Returns",
    "Raises",
    "Guarantee",
    "Assumption",
    "Cost",
    "References",
    "See also",
    "Example",
]
# What covers, tests, or goes into what does; the rest describes, draws or runs.
METHODS = {
    "calibration",
    "certificates",
    "cross",
    "full",
    "learners",
    "models",
    "online",
    "outliers",
    "pvalues",
    "risk",
    "scores",
    "survival",
    "selection",
    "training",
}
METHODS_BY_NAME = {
    "calibrate_boxes",
    "conformal_quantile",
    "grouped_conformal_quantile",
    "sharded_conformal_quantile",
    "soft_conformal_quantile",
    "weighted_conformal_quantile",
}


def public():
    """Yields public functions and classes; those of `typing` are not."""
    for namespace in NAMESPACES:
        if namespace is jaxcp.typing:
            continue
        for name in namespace.__all__:
            value = getattr(namespace, name)
            if callable(value):
                yield pytest.param(value, id=f"{namespace.__name__}.{name}")


def own_methods(value):
    """Returns the public functions in the body of a class of the library."""
    if not (isinstance(value, type) and value.__module__.startswith("jaxcp")):
        return []
    kept = [
        v for name, v in vars(value).items() if name[0] != "_" or name == "__call__"
    ]
    return [v for v in kept if inspect.isfunction(v) and v.__module__[:5] == "jaxcp"]


def sections(value):
    """Returns the sections of a docstring in the order that they come in."""
    text = inspect.cleandoc(value.__doc__ or "")
    parts = re.split(r"^([A-Z][a-z ]+):\n", text, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def needed(value):
    """Returns the sections that a public name has to have."""
    made = isinstance(value, type) and "Made by" in value.__doc__
    family = value.__module__.split(".")[1]
    plain = isinstance(value, type) and family in {"sets", "simulation", "datasets"}
    if made or plain or value in VALUES or family == "plotting":
        return {"See also"}
    if family in METHODS or value.__name__ in METHODS_BY_NAME:
        return {"Guarantee", "Assumption", "Cost", "See also"}
    return {"Cost", "See also"}


# Their verb says what is guaranteed, or they are parts of others.
VALUES = {
    jaxcp.Calibration,
    jaxcp.CrossCalibration,
    jaxcp.CrossConformal,
    jaxcp.GroupCalibration,
    jaxcp.SplitConformal,
    jaxcp.learners.Augmented,
    jaxcp.learners.Shared,
}


def found(name):
    """Returns what a name of "See also" stands for."""
    value = jaxcp
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("value", list(public()))
def test_signatures_are_short(value):
    """Types read as they are written: `ArrayLike`, not all that it stands for."""
    for function in [value, *own_methods(value)]:
        if function is jaxcp.metrics.Summary:  # a dict, whose signature is not ours
            continue
        signature = str(inspect.signature(function))
        for long in ("Union[", "numpy.bool", "jax.jaxlib", "typing."):
            assert long not in signature, signature


@pytest.mark.parametrize("value", list(public()))
def test_docstrings_say_guarantee_assumption_cost_and_what_is_near(value):
    own = sections(value)
    assert needed(value) <= set(own), needed(value) - set(own)
    for function in [value, *own_methods(value)]:
        order = list(sections(function))
        assert order == [name for name in SECTIONS if name in order], order


@pytest.mark.parametrize("value", [*public(), *PROTOCOLS])
def test_names_under_see_also_exist(value):
    names = " ".join(sections(value)["See also"].split()).split(", ")
    assert len(names) == len(set(names))
    for name in names:
        assert re.fullmatch(r"\w+(\.\w+)*", name), name
        assert callable(found(name)), name
        assert found(name) is not value, name


def references():
    """Returns the text of each References section, by where it is."""
    texts = {}
    for path in sorted(FOLDER.rglob("*.py")):
        found = re.findall(r"^ *References:\n(.*?)\n\n", path.read_text(), re.M | re.S)
        for i, text in enumerate(found):
            texts[path.relative_to(FOLDER), i] = " ".join(text.split())
    return texts


def papers():
    """Returns titles and years of the entries of the bibliography, by their key."""
    entries = re.split(r"^@", BIBLIOGRAPHY.read_text(), flags=re.M)[1:]
    field = r"^  %s = \{(.*)\},$"
    return {
        entry[entry.index("{") + 1 : entry.index(",")]: tuple(
            re.sub(r"\{\\.(\w)\}", r"\1", re.search(field % name, entry, re.M)[1])
            for name in ("title", "year")
        )
        for entry in entries
    }


def test_references_of_docstrings_are_in_the_bibliography():
    """Each ends with the year that the bibliography has, and perhaps a place in it."""
    known = papers()
    assert known.pop("jaxcp")[0].endswith(jaxcp.__doc__.strip("."))
    for where, text in references().items():
        inside = [(t, y) for t, y in known.values() if f", {t}, " in text]
        years = re.findall(r", ((?:18|19|20)\d\d)(?=[.,( ])", text)
        assert len(inside) == len(years), (where, text)
        assert sorted(years) == sorted(year for _, year in inside), (where, text)


def test_papers_of_the_bibliography_are_in_docstrings():
    text = " ".join(references().values())
    unnamed = [
        key for key, (title, _) in papers().items() if f", {title}, " not in text
    ]
    assert unnamed == ["jaxcp"]
