"""Generated data with known laws."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.datasets.generated import (
        Bimodal,
        DelBarrio,
        OneMoon,
        Unimodal,
        class_posterior,
        classes,
        heteroscedastic,
        linear,
    )
    from jaxcp.datasets.objects import Scenes, scenes

# fmt: off
__all__ = [
    "Bimodal", "DelBarrio", "OneMoon", "Scenes", "Unimodal", "class_posterior",
    "classes", "heteroscedastic", "linear", "scenes",
]
# fmt: on
