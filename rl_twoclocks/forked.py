"""A training run as a fork of a process that has already imported what all runs need.

Imports take more processor time than training CartPole for 50,000 frames. Runs that follow each other
fork from one server (Python's own, `multiprocessing`'s forkserver), which imports once.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

POLL = 0.05
"""Seconds between two looks at whether a run has ended."""


class ForkedRun:
    """`python -m rl_twoclocks.train <overrides>` with one thread, in a session of its own."""

    # Starting one process looks at all others, and a status can be read only once.
    _lock = threading.Lock()

    def __init__(self, overrides: Sequence[str], log: Path) -> None:
        """Begin; what the run prints is put at the end of `log`."""
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with self._lock:
            self._process = _context().Process(
                target=_train, args=(list(overrides), str(log), dict(environment))
            )
            self._process.start()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the run is under way."""
        with self._lock:
            return self._process.exitcode

    @property
    def returncode(self) -> int:
        """The exit code of a run that has ended."""
        code = self.poll()
        assert code is not None
        return code

    def terminate(self) -> None:
        """Ask the run to save its state and end."""
        self._process.terminate()

    def wait(self) -> None:
        """Return once the run has ended."""
        while self.poll() is None:
            time.sleep(POLL)


@functools.cache
def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rl_twoclocks.forked_imports"])
    return context


def _train(overrides: list[str], log: str, environment: dict[str, str]) -> None:
    """What a fork does: become the command."""
    # A session of its own: the terminal's Ctrl-C reaches the process that waits, which ends its runs.
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    import torch

    if torch.cuda._is_in_bad_fork():
        # Something that was imported has looked for GPUs: CUDA works only in a process of its own.
        os.execv(sys.executable, [sys.executable, "-m", "rl_twoclocks.train", *overrides])
    from rl_twoclocks.collect.patience import end_with_starter
    from rl_twoclocks.train import main

    # If that process is killed, the run saves its state and ends: nobody else would tell it to.
    end_with_starter(signal.SIGTERM)
    sys.argv = ["rl_twoclocks.train", *overrides]
    main()
