"""Many runs, each by the training command in a directory of its own; what is over stays.

A run is over if it has finished, or if it diverged: a loss that is not finite is a result too, and the
same command would come to it again. `<place>.txt` holds the command of a run, `<place>.log` what it
printed, and `<place>.diverged` says that it diverged.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rl_twoclocks.cli import NOT_FINITE
from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.configure import assign, compose
from rl_twoclocks.rundir import changed
from rl_twoclocks.safety import settle

COMMAND = ("python", "-m", "rl_twoclocks.train")
QUIET = ("logger.display=none", "diagnostics.pictures=false")
"""What changes no number."""
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
            lines = [x for x in changed(place / "config.yaml", config) if not x.startswith("seed:")]
            if lines:
                raise ConfigError(
                    f"{place} was made when presets were others ({'; '.join(lines)}): "
                    "choose another folder"
                )
    for command, place in jobs:
        place.parent.mkdir(parents=True, exist_ok=True)
        _beside(place, "txt").write_text(" ".join(command) + "\n")


def train(job: Job) -> bool:
    """Train one run, or go on with it, unless it is over; return whether it is over now."""
    command, place = job
    if is_over(place):
        return True
    words = [sys.executable, *command[1:], assign("run_dir", place), *QUIET]
    with open(_beside(place, "log"), "a") as log:
        code = subprocess.run(words, stdout=log, stderr=log, check=False).returncode
    if code == NOT_FINITE:
        diverged_file(place).touch()
    said = {0: "done", NOT_FINITE: "diverged"}.get(code, f"exit code {code}")
    print(f"{place.parent.name} {place.name}: {said}", flush=True)
    return code in (0, NOT_FINITE)


def train_all(jobs: Sequence[Job], at_a_time: int) -> list[Path]:
    """Train runs in order, several at a time; return the places of those that failed.

    Raises:
        ConfigError: as of `claim`; nothing has been started.
    """
    claim(jobs)
    with ThreadPoolExecutor(at_a_time) as pool:
        done = list(pool.map(train, jobs))
    return [place for (_, place), over in zip(jobs, done, strict=True) if not over]


def _is_seed(word: str) -> bool:
    return word.startswith("seed=")


@functools.cache
def _settled(words: tuple[str, ...]) -> Config:
    """The configuration that these overrides mean today, without the seed, which all share."""
    return settle(compose(words))[0]


def _beside(place: Path, kind: str) -> Path:
    return place.parent / f"{place.name}.{kind}"
