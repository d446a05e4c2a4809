"""How much memory a program takes, by the sizes in it, before it is compiled.

What XLA computes number by number it fuses into the operation that reads it, and never
stores. So results are stored of those operations alone that need their inputs as a
whole, such as a sort, with what these read; a sum reads what is never stored. Memory is
the most that lives at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

_WHOLE = ("sort", "top_k", "cum", "scan", "while", "cond", "gather", "scatter")
_WHOLE += ("dot_general", "conv", "fft", "reduce_window", "random_", "threefry")
_WHOLE += ("eigh", "cholesky", "lu", "geqrf", "householder", "svd", "triangular")
_WHOLE += ("dynamic_update", "tridiagonal", "custom_linear", "pure_callback")
_SUMS = "reduce_", "argmax", "argmin"
_CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat")
_CALLS += ("custom_jvp_call", "custom_vjp_call", "custom_vmap_call")
_OF_BITS = 3  # times the bits drawn: counters, and both words of each


class Value(NamedTuple):
    """The stored numbers that a value is computed from; its bytes, if not stored."""

    sources: frozenset[int] = frozenset()
    num_bytes: int = 0


class _Memory:
    """A walk over a program that notes when stored numbers are made and last read."""

    def __init__(self) -> None:
        self.time = 0
        self.stored: list[list[int]] = []  # bytes, when made, when last read
        self.inside: dict[int, int] = {}  # bytes that an operation takes while it runs

    def most(self) -> int:
        """Returns the largest number of bytes that live at once."""
        change = [0] * (self.time + 2)
        for num_bytes, made, read in self.stored:
            change[made] += num_bytes
            change[read + 1] -= num_bytes
        living, most = 0, 0
        for time, more in enumerate(change):
            living += more
            most = max(most, living + self.inside.get(time, 0))
        return most

    def walk(self, program: Any, values: dict[Any, Value]) -> None:
        """Goes through the operations of a program, some of whose values are known."""
        for equation in program.eqns:
            self.time += 1
            name, parts = equation.primitive.name, [*programs_in(equation)]
            if name in _CALLS and parts:
                self._call(equation, parts[0], values)
                continue
            whole = name.startswith(_WHOLE)
            read = [self.read(v, values, whole) for v in equation.invars]
            sources = frozenset[int]().union(*read)
            sizes = [_num_bytes(v) for v in equation.outvars]
            if whole:
                inside = max(map(num_bytes_of, parts), default=0)
                drawn = _OF_BITS * sum(sizes) if name == "random_bits" else 0
                self.inside[self.time] = inside + drawn
            for variable, size in zip(equation.outvars, sizes, strict=True):
                stored = whole or name.startswith(_SUMS)
                values[variable] = self._store(size) if stored else Value(sources, size)

    def read(
        self, variable: Any, values: dict[Any, Value], whole: bool
    ) -> frozenset[int]:
        """Returns what a value is computed from; it is stored if read as a whole."""
        value = _known(variable, values)
        for place in value.sources:
            self.stored[place][2] = self.time
        if whole and value.num_bytes:
            value = values[variable] = self._store(value.num_bytes)
        return value.sources

    def _store(self, num_bytes: int) -> Value:
        self.stored.append([num_bytes, self.time, self.time])
        return Value(frozenset([len(self.stored) - 1]))

    def _call(self, equation: Any, part: Any, values: dict[Any, Value]) -> None:
        """Goes through a function that is called as if it stood there."""
        given = _last(equation.invars, len(part.invars))
        pairs = zip(part.invars, given, strict=True)
        inside = {variable: _known(v, values) for variable, v in pairs}
        self.walk(part, inside)
        for variable, v in zip(equation.outvars, part.outvars, strict=True):
            values[variable] = _known(v, inside)


def num_bytes_of(program: Any) -> int:
    """Returns the bytes that a program takes, but for its inputs."""
    memory, values = _Memory(), dict[Any, Value]()
    memory.walk(program, values)
    memory.time += 1
    for variable in program.outvars:
        memory.read(variable, values, whole=True)
    return memory.most()


def programs_in(equation: Any) -> Iterator[Any]:
    """Yields the programs that an operation runs."""
    is_program = lambda value: hasattr(value, "eqns")  # noqa: E731
    for part in jax.tree.leaves([*equation.params.values()], is_leaf=is_program):
        if is_program(part):
            yield getattr(part, "jaxpr", part)


def _known(variable: Any, values: dict[Any, Value]) -> Value:
    """Returns the value of a variable; constants take no memory of a replicate."""
    return Value() if hasattr(variable, "val") else values.get(variable, Value())


def _last(variables: Sequence[Any], count: int) -> Sequence[Any]:
    return variables[len(variables) - count :]


def _num_bytes(variable: Any) -> int:
    shape = getattr(variable.aval, "shape", None)
    return 0 if shape is None else math.prod(shape) * variable.aval.dtype.itemsize
