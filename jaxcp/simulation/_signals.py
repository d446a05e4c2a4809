"""Interrupts that wait for the end of a chunk."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class PatientStop:
    """Context in which Ctrl-C and SIGTERM are noted; a second one acts at once.

    Handlers are a matter of the main thread: in others nothing is noted.

    Args:
      notes: Whether signals are noted at all.
    """

    def __init__(self, notes: bool = True) -> None:
        self.signal = 0
        self._notes = notes
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> PatientStop:
        main = threading.current_thread() is threading.main_thread()
        if self._notes and main:
            for number in _SIGNALS:
                self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()
        if self.signal:
            self.deliver(self.signal)

    def deliver(self, number: int) -> None:
        """Lets a noted signal, of this process or another, take effect, once."""
        self._restore()
        self.signal = 0
        signal.raise_signal(signal.Signals(number))

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            with contextlib.suppress(ValueError):
                # None: a handler that is not of Python, and cannot be put back.
                signal.signal(number, handler or signal.SIG_DFL)
        self._handlers = {}
