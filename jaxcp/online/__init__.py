"""Methods that keep sets calibrated on a stream by one scan, and monitors of it."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.online.adaptive import ACI, DtACI
    from jaxcp.online.delayed import Delayed
    from jaxcp.online.groups import ByGroup
    from jaxcp.online.lags import SPCI, Similar
    from jaxcp.online.monitors import (
        ChangeMonitor,
        ExchangeabilityMonitor,
        RiskMonitor,
        confidence_sequence,
    )
    from jaxcp.online.queue import Queue
    from jaxcp.online.stream import Stream, run
    from jaxcp.online.tracking import PID, SFOGD
    from jaxcp.online.windows import NexCP, SlidingWindow, nexcp_weights

# fmt: off
__all__ = [
    "ACI", "PID", "SFOGD", "SPCI", "ByGroup", "ChangeMonitor", "Delayed", "DtACI",
    "ExchangeabilityMonitor", "NexCP", "Queue", "RiskMonitor", "Similar",
    "SlidingWindow", "Stream", "confidence_sequence", "nexcp_weights", "run",
]
# fmt: on
