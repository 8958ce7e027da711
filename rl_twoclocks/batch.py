"""Many runs, each by the training command in a directory of its own; what is over stays.

A run is over if it has finished, or if it diverged: a loss that is not finite is a result too, and the
same command would come to it again. `<place>.txt` holds the command of a run, `<place>.log` what it
printed, and `<place>.diverged` says that it diverged.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from rl_twoclocks.cli import NOT_FINITE, Stopped, stoppable
from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.configure import assign, compose
from rl_twoclocks.forked import ForkedRun
from rl_twoclocks.rundir import changed, protocol
from rl_twoclocks.safety import settle

COMMAND = ("python", "-m", "rl_twoclocks.train")
QUIET = ("logger.display=none", "diagnostics.pictures=false")
"""What changes no number."""
POLL = 0.2
"""Seconds between two looks at whether a run has ended."""
Item = TypeVar("Item")
Done = TypeVar("Done")
Job = tuple[Sequence[str], Path]
"""`[*COMMAND, *overrides]`, and the run directory."""


def diverged_file(place: Path) -> Path:
    """The file that says of a run that it diverged."""
    return _beside(place, "diverged")


def is_over(place: Path) -> bool:
    """Whether a run has finished, or diverged."""
    return (place / "result.json").exists() or diverged_file(place).exists()


def told(place: Path) -> str:
    """The command that a run was made with, as it was written down then."""
    return _beside(place, "txt").read_text().strip()


def claim(jobs: Sequence[Job]) -> None:
    """Write the command of every run beside its directory.

    Raises:
        ConfigError: one directory is of another command, or of this one when its presets were others;
            nothing has been written.
    """
    for command, place in jobs:
        words = " ".join(command)
        if _beside(place, "txt").exists() and told(place) != words:
            raise ConfigError(f"{place} is of another command: choose another folder")
        if (place / "config.yaml").is_file():
            config = _settled(tuple(w for w in command[len(COMMAND) :] if not _is_seed(w)))
            differs = changed(place / "config.yaml", config, protocol)
            lines = [line for line in differs if not line.startswith("seed:")]
            if lines:
                raise ConfigError(
                    f"{place} was made when presets were others ({'; '.join(lines)}): "
                    "choose another folder"
                )
    for command, place in jobs:
        place.parent.mkdir(parents=True, exist_ok=True)
        _beside(place, "txt").write_text(" ".join(command) + "\n")


@contextlib.contextmanager
def running(overrides: Sequence[str], log: Path) -> Iterator[ForkedRun]:
    """A run in a process of its own with one thread; when this is left, it saves its state and ends.

    What it prints is put at the end of `log`.
    """
    log.touch()
    run = ForkedRun(overrides, log)
    try:
        yield run
    finally:
        if run.poll() is None:
            run.terminate()
            run.wait()


def run_to_end(overrides: Sequence[str], log: Path, stop: threading.Event) -> int:
    """Train one run, until it ends or `stop` is set; return its exit code, negative for a signal."""
    with running(overrides, log) as run:
        while run.poll() is None and not stop.wait(POLL):
            pass
    return run.returncode


def several(
    do: Callable[[Item, threading.Event], Done], items: Sequence[Item], at_a_time: int
) -> list[Done]:
    """Call `do(item, stop)` for items in order, several at a time; return what came of each.

    Raises:
        Stopped: a signal came; `stop` was set, and whatever was under way has ended.
    """
    with stoppable() as stop:
        try:
            with ThreadPoolExecutor(at_a_time) as pool:
                return list(pool.map(lambda item: do(item, stop), items))
        except KeyboardInterrupt as error:
            raise Stopped(signal.Signals(error.args[0]).name) from None


def train(job: Job, stop: threading.Event | None = None) -> bool:
    """Train one run, or go on with it, unless it is over; return whether it is over now.

    Once `stop` is set no run begins, and the one under way is told to save its state and end.
    """
    command, place = job
    stop = stop or threading.Event()
    if is_over(place):
        return True
    if stop.is_set():
        return False
    overrides = [*command[len(COMMAND) :], assign("run_dir", place), *QUIET]
    code = run_to_end(overrides, _beside(place, "log"), stop)
    if code == NOT_FINITE:
        diverged_file(place).touch()
    said = {0: "done", NOT_FINITE: "diverged"}.get(code, f"exit code {code}")
    print(f"{place.parent.name} {place.name}: {said}", flush=True)
    return code in (0, NOT_FINITE)


def train_all(jobs: Sequence[Job], at_a_time: int) -> list[Path]:
    """Train runs in order, several at a time; return the places of those that failed.

    Raises:
        ConfigError: as of `claim`; nothing has been started.
        Stopped: a signal came; runs that were under way have saved their state.
    """
    claim(jobs)
    done = several(train, jobs, at_a_time)
    return [place for (_, place), over in zip(jobs, done, strict=True) if not over]


def _is_seed(word: str) -> bool:
    return word.startswith("seed=")


@functools.cache
def _settled(words: tuple[str, ...]) -> Config:
    """The configuration that these overrides mean today, without the seed, which all share."""
    return settle(compose(words))[0]


def _beside(place: Path, kind: str) -> Path:
    return place.parent / f"{place.name}.{kind}"
