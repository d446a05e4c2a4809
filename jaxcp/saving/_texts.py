"""Settings that are text in a file."""

from __future__ import annotations

import math
import re
from datetime import date, datetime, time
from fractions import Fraction
from typing import Any

import numpy as np

from jaxcp._files import fraction

_PLAIN = type(None), bool, int, str
_DTYPE = re.compile(r"[<>=|]?\w+(\[\w+\])?", re.ASCII)  # without fields


def as_dtype(text: str) -> np.dtype:
    """Returns a type without fields by its name, which is not run."""
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"expected a type by its name, got {text!r:.40}")
    return np.dtype(text)


# What JSON has no word for: its name in files, to text and back.
_TEXTS: dict[type, tuple[str, Any, Any]] = {
    float: ("float", repr, float),  # those that are not finite
    complex: ("complex", str, complex),
    Fraction: ("fraction", str, fraction),
    bytes: ("bytes", bytes.hex, bytes.fromhex),
    date: ("date", date.isoformat, date.fromisoformat),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    np.dtype: ("dtype", str, as_dtype),
}
_READERS = {name: read for name, _, read in _TEXTS.values()}


def is_plain(value: Any) -> bool:
    """Returns whether JSON holds a value as it is."""
    finite = type(value) is float and math.isfinite(value)
    return finite or type(value) in _PLAIN


def to_text(value: Any) -> dict[str, str] | None:
    """Returns a setting as text with the name of its type, None for other values.

    Raises ValueError for one that could not be read again.
    """
    cls = np.dtype if isinstance(value, np.dtype) else type(value)
    if cls not in _TEXTS:
        return None
    name, write, _ = _TEXTS[cls]
    node = {"is": name, "text": write(value)}
    from_text(node)
    return node


def from_text(node: dict[str, str]) -> Any:
    """Returns the setting that a text stands for; ValueError for other texts."""
    kind, text = node["is"], node["text"]
    try:
        return _READERS[kind](text)
    except (ValueError, TypeError) as error:
        raise ValueError(f"expected a {kind} as text, got {text!r:.40}") from error


def is_text(name: str) -> bool:
    """Returns whether values of this name are settings as text."""
    return name in _READERS
