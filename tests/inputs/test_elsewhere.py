"""Habits of other libraries: their names, their levels, keywords that are not here."""

import functools
import inspect
import pickle

import pytest

import jaxcp
from jaxcp import metrics, predictive, risk, scores, selection, survival
from jaxcp.checking import elsewhere


@pytest.mark.parametrize("name", elsewhere._CALLED)
def test_what_they_are_called_here_is_public(name):
    called = elsewhere._CALLED[name].split()[0].split("(")[0]
    place = functools.reduce(getattr, called.split(".")[1:], jaxcp)
    assert callable(place)
    for module in (jaxcp, scores, metrics):
        assert not hasattr(module, name)
        assert name not in dir(module)
        with pytest.raises(AttributeError, match=f"'{name}'; here it is {called}"):
            getattr(module, name)


def test_names_in_another_package_are_told_where_they_are():
    for module, name, place in (
        (jaxcp, "venn_abers", predictive),
        (jaxcp, "CQR", scores),
        (scores, "coverage", metrics),
    ):
        with pytest.raises(
            AttributeError, match=rf"here it is {place.__name__}\.{name}"
        ):
            getattr(module, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = jaxcp.nothing
    with pytest.raises(ImportError):
        exec("from jaxcp.scores import THR")
    assert pickle.loads(pickle.dumps(scores.LAC)) is scores.LAC


def functions_of(*modules):
    for module in modules:
        for name in module.__all__:
            if inspect.isfunction(function := getattr(module, name)):
                yield function


def returns_sets_at_alpha(verb):
    """Whether a verb returns what is called with alpha, and takes none itself."""
    signature = inspect.signature(verb)
    names = inspect.unwrap(verb).__globals__
    returned = names.get(signature.return_annotation)
    call = getattr(returned, "__call__", None)  # noqa: B004
    return (
        inspect.isfunction(call)
        and "alpha" in inspect.signature(call).parameters
        and "alpha" not in signature.parameters
    )


_MODULES = jaxcp, jaxcp.causal, predictive, risk, selection, survival
VERBS = [*filter(returns_sets_at_alpha, functions_of(*_MODULES))]


def test_the_table_has_the_verbs():
    assert len(VERBS) > 15
    assert {jaxcp.calibrate, jaxcp.cv_plus, risk.calibrate_risk} <= {*VERBS}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_verbs_say_where_alpha_goes(verb):
    with pytest.raises(
        TypeError, match=r"without alpha, got 0\.1; it goes into the call"
    ):
        verb(alpha=0.1)


@pytest.mark.parametrize(
    "metric", [*functions_of(metrics)], ids=lambda metric: metric.__name__
)
def test_calls_that_do_not_fit_name_the_metric(metric):
    for options in ({"sample_weight": 1}, {}):
        with pytest.raises(TypeError, match=rf"^{metric.__name__}\(\) "):
            metric(**options)
