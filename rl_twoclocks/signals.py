"""Signals that end a run cleanly: the round is finished, the state saved, the exit code says why."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""SIGUSR1 is what a batch scheduler sends ahead of its time limit."""


class StopSignal:
    """Remembers the first signal; a second one ends the process at once, as if unhandled.

    Use as a context manager; handlers are put back afterwards. Outside the main thread, where Python
    allows no handlers, it never fires.
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignal:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in WATCHED:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the previous handlers back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.received = signal.Signals(number)

    def __bool__(self) -> bool:
        """Whether a signal has come."""
        return self.received is not None
