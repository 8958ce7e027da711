"""Train by the command itself, from scripts: one run, or many at a time; what is finished stays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rl_twoclocks.configure import assign

QUIET = ["logger.display=none", "diagnostics.pictures=false", "compile=true"]
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

    A finished run is left as it is, and one that was broken off goes on. Output is appended to
    `<place>.log`.
    """
    claim(command, place)
    if (place / "result.json").exists():
        return 0
    words = [sys.executable, *command[1:], assign("run_dir", place), *QUIET]
    with open(place.parent / f"{place.name}.log", "a") as log:
        code = subprocess.run(words, stdout=log, stderr=log, check=False).returncode
    print(f"{place.parent.name} {place.name}: exit {code}", flush=True)
    return code


def train_all(jobs: Sequence[tuple[Sequence[str], Path]], at_a_time: int) -> int:
    """Train (command, directory) pairs in order; return how many failed."""
    with ThreadPoolExecutor(at_a_time) as pool:
        return sum(code != 0 for code in pool.map(lambda job: train(*job), jobs))
