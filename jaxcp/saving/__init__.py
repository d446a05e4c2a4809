"""Values in files: arrays and settings, no code."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.saving.files import load, save

__all__ = ["load", "save"]
