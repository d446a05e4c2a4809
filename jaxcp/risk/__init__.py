"""Risk: any loss of a set kept at alpha, on average or with high probability."""

from __future__ import annotations

__all__: list[str] = []
__dir__ = __all__.copy
