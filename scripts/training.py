"""Train by the command itself, from scripts: one run, or many at a time; what is over stays.

A run is over if it has finished, or if it diverged: a loss that is not finite is a result too, and the
same command would come to it again. `<place>.txt` holds the command of a run, `<place>.diverged` says
that it diverged.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rl_twoclocks.cli import NOT_FINITE
from rl_twoclocks.configure import assign
from rl_twoclocks.scenario import diverged_file, is_over

QUIET = ["logger.display=none", "diagnostics.pictures=false"]
"""What changes no number."""


def claim(command: Sequence[str], place: Path) -> None:
    """Write a run's command beside its directory, as `<place>.txt`.

    Raises:
        SystemExit: the directory is of another command.
    """
    path, words = place.parent / f"{place.name}.txt", " ".join(command)
    if path.exists() and path.read_text().strip() != words:
        raise SystemExit(f"{place} is of another command ({path}): choose another folder")
    place.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(words + "\n")


def train(command: Sequence[str], place: Path) -> int:
    """Run a `python -m rl_twoclocks.train ...` command into a directory; return its exit code.

    A run that is over is left as it is, and one that was broken off goes on. Output is appended to
    `<place>.log`.
    """
    claim(command, place)
    if is_over(place):
        return 0
    words = [sys.executable, *command[1:], assign("run_dir", place), *QUIET]
    with open(place.parent / f"{place.name}.log", "a") as log:
        code = subprocess.run(words, stdout=log, stderr=log, check=False).returncode
    print(f"{place.parent.name} {place.name}: exit {code}", flush=True)
    if code == NOT_FINITE:
        diverged_file(place).touch()
        return 0
    return code


def outcome(place: Path, random_return: float) -> float | None:
    """Return of a run that is over: what it finished with, or a random policy's if it diverged."""
    if not is_over(place):
        return None
    if diverged_file(place).exists():
        return random_return
    return float(json.loads((place / "result.json").read_text())["return_mean"])


def over(runs: Path, pattern: str) -> list[Path]:
    """Run directories below `runs` that match and are over, in order."""
    return [p for p in sorted(runs.glob(pattern)) if p.is_dir() and is_over(p)]


def told(place: Path) -> str:
    """The command that a run was made with, as it was written down then."""
    return (place.parent / f"{place.name}.txt").read_text().strip()


def train_all(jobs: Sequence[tuple[Sequence[str], Path]], at_a_time: int) -> int:
    """Train (command, directory) pairs in order; return how many failed."""
    with ThreadPoolExecutor(at_a_time) as pool:
        return sum(code != 0 for code in pool.map(lambda job: train(*job), jobs))
