"""What distinguishes one simulation from another, in any process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxcp.simulation._fingerprints import fingerprint, module_of
from jaxcp.simulation._programs import checked, parts_of
from jaxcp.typing import PyTree

_FORMAT = 2  # of chunks and settings
# They change bits of results, and what a trial is as a program does not show all.
_FLAGS = ("enable_x64", "threefry_partitionable", "default_matmul_precision")
_CURE = "leave it out of the trial, or simulate without a checkpoint"


def settings_of(
    digest: str, key: Array, leaves: dict, statistics: list
) -> dict[str, Any]:
    """Returns what distinguishes one simulation from another, as JSON."""
    key_data, kind = parts_of(key)
    return {
        "format": _FORMAT,
        "key": key_data.tolist(),
        "kind of key": "legacy" if kind is None else str(kind),
        "results": {k: f"{v.dtype}{list(v.shape)}" for k, v in leaves.items()},
        "statistics": [_name_of(s) for s in statistics],
        "flags": {name: getattr(jax.config, f"jax_{name}", None) for name in _FLAGS},
        "trial": digest,
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }


def _name_of(statistic):
    """Returns the name of a statistic's class, and what distinguishes it further."""
    module = module_of(statistic)
    if module.partition(".")[0] == "jaxcp":
        return repr(statistic)
    about = fingerprint(statistic, "make it of plain values")
    return f"{module}.{type(statistic).__qualname__} {about}"


def digest_of(trial: Callable[[Array], PyTree], key: Array) -> str:
    """Returns a fingerprint of the program that a trial is, and of its constants."""
    # Of a function made here: jax remembers how those that it knows were before.
    program = jax.make_jaxpr(lambda key: checked(trial(key)))(key)
    # Addresses of functions differ from one process to the next.
    text = re.sub(r"0x[0-9a-f]+", "", str(program))
    digest = hashlib.sha256(text.encode())
    for constant in _constants(program):
        value = np.asarray(constant)
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    for callback in _callbacks(program):
        digest.update(fingerprint(callback, _CURE).encode())
    return digest.hexdigest()


def _programs_in(program: Any) -> Iterator[Any]:
    """Yields a program and those inside of it."""
    yield program
    if isinstance(program, _core().ClosedJaxpr):
        program = program.jaxpr
    for equation in program.eqns:
        values = list(equation.params.values())
        for value in jax.tree.leaves(values, is_leaf=_is_program):
            if _is_program(value):
                yield from _programs_in(value)


def _constants(program):
    """Yields the arrays that a program and those inside of it have closed over."""
    for part in _programs_in(program):
        constants = getattr(part, "consts", ())
        yield from (parts_of(constant)[0] for constant in constants)
        for equation in part.eqns:
            literals = (v for v in equation.invars if isinstance(v, _core().Literal))
            yield from (v.val for v in literals)


def _callbacks(program):
    """Yields the functions of Python that a program calls on the host."""
    for part in _programs_in(program):
        found = (equation.params.get("callback") for equation in part.eqns)
        yield from (getattr(c, "callback_func", c) for c in found if c is not None)


def _is_program(value):
    return isinstance(value, _core().ClosedJaxpr | _core().Jaxpr)


def _core():
    """Returns jax's module of programs, which takes long to import."""
    from jax.extend import core

    return core
