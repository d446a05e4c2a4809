"""Types of arguments: numbers, arrays and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax


class _HasArray(Protocol):
    """An array of numpy, pandas or torch."""

    def __array__(self) -> Any:
        """Returns it as a numpy array."""


Number = jax.typing.ArrayLike  # of Python or numpy, or an array of jax
ArrayLike = Number | _HasArray | Sequence[Any]  # all that verbs take for one
PyTree = Any  # any nest of arrays
Predict = Callable[[PyTree, PyTree], PyTree]  # (params, x) -> preds
AxisName = str | tuple[str, ...] | None  # of a mapped axis, as in `jax.lax.psum`
