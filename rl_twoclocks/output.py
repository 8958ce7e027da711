"""Printing outlives its reader: `| head` has seen enough, or Ctrl-C ended the `tee` first."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO, cast


def outlive_readers() -> None:
    """From here on a closed pipe behind stdout or stderr ends nothing: what is printed goes nowhere."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Outliving):
            setattr(sys, name, cast("TextIO", _Outliving(stream)))


class _Outliving:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._mute()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._mute()

    def _mute(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
