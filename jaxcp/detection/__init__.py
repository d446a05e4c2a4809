"""Objects in images: matching predicted to true boxes, and calibrating on the pairs."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.detection.matching import (
        BoxPairs,
        calibrate_boxes,
        match_boxes,
        match_images,
    )

__all__ = ["BoxPairs", "calibrate_boxes", "match_boxes", "match_images"]
