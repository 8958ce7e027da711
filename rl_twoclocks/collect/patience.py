"""What waiting processes share: a clock that does not count sleep, and an end with their starter."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import select
import signal
import sys
import time

LONGEST = 20.0
"""Seconds that can have been waited between two looks at the clock, at most."""
PR_SET_PDEATHSIG = 1


class WakingClock:
    """Seconds that were waited through: a job that was suspended for an hour has not waited for one."""

    def __init__(self) -> None:
        """Begin at 0."""
        self._seen, self._total = time.monotonic(), 0.0

    def now(self) -> float:
        """Seconds so far."""
        seen = time.monotonic()
        self._total += min(seen - self._seen, LONGEST)
        self._seen = seen
        return self._total


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, also where a simulator hangs.

    Linux only; elsewhere a process ends between two slices.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_starter(by: signal.Signals = signal.SIGKILL) -> None:
    """The same for a process of `multiprocessing`, whose parent may be a server that lives on.

    It ends with whoever called `start`: the kernel sends it `by` when the other end of the pipe between
    the two is closed, whatever this process is doing then.
    """
    starter = multiprocessing.parent_process()
    if sys.platform != "linux" or starter is None:
        return
    pipe = starter.sentinel
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, by)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    # Closed before the kernel was asked to tell.
    watch = select.poll()
    watch.register(pipe, 0)
    if watch.poll(0):
        os.kill(os.getpid(), by)
