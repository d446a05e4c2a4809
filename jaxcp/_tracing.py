"""Objects of the user inside of programs: their classes, and what jax cannot trace."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from jaxcp._types import PyTree


def node_classes(tree: PyTree) -> tuple[type | None, ...]:
    """Returns the class of every node: two classes may have equal structures."""
    nodes: list[Any] = [jax.tree.structure(tree)]
    classes = []
    while nodes:
        node = nodes.pop()
        data = node.node_data()
        classes.append(None if data is None else data[0])
        nodes.extend(node.children())
    return tuple(classes)


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `jax.jit(function)` with a program for each class of what it is given."""
    by_class = jax.jit(lambda classes, *args: function(*args), static_argnums=0)

    @functools.wraps(function)
    def call(*args: PyTree) -> Any:
        return by_class(node_classes(args), *args)

    return call


@contextmanager
def explained(sentence: str) -> Iterator[None]:
    """Raises ValueError with `sentence` for what jax cannot trace, and why from jax."""
    try:
        yield
    except Exception as error:
        if not _is_of_tracing(error):
            raise
        raise ValueError(sentence) from error


def _is_of_tracing(error):
    """Returns whether an error is of jax, or of another library given a tracer."""
    if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
        return True
    return isinstance(error, TypeError) and (
        "Tracer" in str(error) or "valid JAX type" in str(error)
    )
