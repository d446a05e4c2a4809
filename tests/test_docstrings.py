"""What `help()` says of public names: short signatures, and sections in one order."""

import inspect

import pytest
from test_package import NAMESPACES

import jaxcp


def public(kind=object):
    """Yields the public functions and classes, those of `typing` and plotting not."""
    for namespace in NAMESPACES:
        if namespace in (jaxcp.typing, jaxcp.plotting):
            continue
        for name in namespace.__all__:
            value = getattr(namespace, name)
            if callable(value) and isinstance(value, kind):
                yield pytest.param(value, id=f"{namespace.__name__}.{name}")


def callables(value):
    """Returns a public function, or a class with its public methods."""
    if not isinstance(value, type):
        return [value]
    own = [
        v
        for name, v in vars(value).items()
        if inspect.isfunction(v) and (name == "__call__" or name[0] != "_")
    ]
    return [value, *own]


@pytest.mark.parametrize("value", list(public()))
def test_signatures_are_short(value):
    """Types read as they are written: `ArrayLike`, not all that it stands for."""
    for function in callables(value):
        signature = str(inspect.signature(function))
        for long in ("Union[", "numpy.bool", "jax.jaxlib", "typing."):
            assert long not in signature, signature
