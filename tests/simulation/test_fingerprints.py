import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
from jaxcp.scores import Absolute
from jaxcp.simulation._fingerprints import fingerprint

ROOT = Path(jaxcp.__file__).parents[1]
LEVELS = (0.1, 0.2)

# One of each kind of value that code may use, with orders that hashes randomize.
SCRIPT = """
import functools, sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
import jax, jax.numpy as jnp, numpy as np
from jaxcp.scores import Absolute
from jaxcp.simulation._fingerprints import fingerprint, module_of

CONSTANT = frozenset({"p", "q", "r"})

@dataclass(frozen=True)
class Setting:
    level: float = 0.1
    names: list = field(default_factory=list)
    def __post_init__(self):
        super().__init__()

@jax.jit
def even(n):
    return n == 0 or odd(n - 1)

@functools.lru_cache
def odd(n):
    return n != 0 and even(n - 1)

def make(*values):
    def cell(n, *, table={"a": 1, "b": {3}}):
        class Local(Setting):
            "Local."
            x: int = 3
        return values, n in {"x", "y", "z"}, even(n), CONSTANT, np.add, Local(n), table
    return cell

def of_all():
    values = {"u", "v", "w"}, Setting(0.2), Absolute(), jnp.sin, np.ones(3), np.add
    values += jax.random.key(3), functools.partial(odd, 2), jax.vmap(even), b"b", None
    return fingerprint(make(*values), ""), module_of(make)

if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        print(*of_all(), *pool.submit(of_all).result())
"""


@pytest.mark.slow
def test_fingerprints_are_the_same_in_every_process(tmp_path):
    """As a script, in its workers and as a module, wherever it is and lines are."""
    printed = []
    for seed, lines in ((1, ""), (2, "# a comment\n\n")):
        script = tmp_path / str(seed) / "script.py"
        script.parent.mkdir()
        script.write_text(lines + SCRIPT)
        environment = os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": ROOT}
        command = [sys.executable, str(script)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.split())
    first = printed[0][0]
    assert printed == [[first, "script", first, "script"]] * 2


def capturing(value):
    return lambda: value


def scaled(x, factor):
    return x * factor


@jax.custom_jvp
def smooth(x):
    return x


smooth.defjvp(lambda primals, tangents: (primals[0], tangents[0]))


@dataclass
class Node:
    content: object


def test_equal_values_have_equal_fingerprints():
    """Whoever made them, and whatever a cache has kept."""
    text = "".join(["a", "b"])
    cached = lru_cache(scaled)
    pairs = [
        (("ab", "ab"), (text, "ab")),
        ({"a": 1, "b": {"c", "d"}}, {"a": 1, "b": {"d", "c"}}),
        (Node(Path("a/b")), Node(Path("a") / "b")),
        (jnp.arange(3.0), jnp.arange(3.0) + 0),
        (partial(scaled, factor=2), partial(scaled, factor=2)),
        (lambda x: x + 1, lambda x: x + 1),
    ]
    for value, same in pairs:
        assert fingerprint(capturing(value), "") == fingerprint(capturing(same), "")
    before = fingerprint(capturing((cached, jax.jit(scaled))), "")
    cached(1, 2), jax.jit(scaled)(1, 2)
    assert fingerprint(capturing((cached, jax.jit(scaled))), "") == before


def test_different_values_have_different_fingerprints():
    values = [
        *(1, 1.0, True, "1", b"1", None, (1,), [1], {1}, frozenset({1}), {1: 1}),
        *(np.ones(1), np.ones((1, 1)), np.ones(1, int), np.float32(1), jnp.ones(1)),
        *(jax.random.key(0), jax.random.key(1), jax.random.key(0, impl="rbg")),
        *(0.0, -0.0, float("nan"), np.array([1, "a"], object), np.add, jnp.add),
        *(Node(1), Node(2), Node, Absolute(), Absolute, LEVELS, jnp, np, jax.nn.relu),
        *(scaled, jax.jit(scaled), partial(scaled, 2), partial(scaled, factor=2)),
        *(jax.vmap(scaled), jax.grad(scaled), jax.grad(scaled, 1), smooth),
        *(lambda x: x + 1, lambda x: x + 2, lambda y: y + 1, lambda x=1: x + 1),
        *(Node(1).__init__, Node(2).__init__, [].append, [1].append),
    ]
    found = [fingerprint(capturing(value), "") for value in values]
    assert len(set(found)) == len(values)


def test_cycles_end():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    node = Node(None)
    node.content = [node]
    assert fingerprint(even, "") == fingerprint(even, "") != fingerprint(odd, "")
    assert fingerprint(capturing(node), "") != fingerprint(capturing(Node([None])), "")


def test_code_far_below_counts():
    """Through more functions than one may call in another."""

    def first(constant, size=500):
        lines = [f"def f{i}(x): return f{i + 1}(x)" for i in range(size)]
        names = {"__name__": "chain"}
        exec("\n".join([*lines, f"def f{size}(x): return x + {constant}"]), names)
        return names["f0"]

    assert fingerprint(first(1), "") == fingerprint(first(1), "")
    assert fingerprint(first(1), "") != fingerprint(first(2), "")


def test_what_has_no_fingerprint_is_named():
    for value, kind in [
        (threading.Lock(), "lock"),
        ((n for n in [1]), "generator"),
        (Node([threading.Lock()]), "lock"),
    ]:
        message = rf"got {__name__}\.capturing\..* with a {kind}; give a revision"
        with pytest.raises(ValueError, match=message):
            fingerprint(capturing(value), "give a revision")
