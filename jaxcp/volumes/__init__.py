"""Volumes of prediction sets: closed forms and unbiased estimates, in logs."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.volumes.estimate import volume

__all__ = ["volume"]
