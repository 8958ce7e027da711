"""What scripts share that train many runs: see `rl_twoclocks.batch`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rl_twoclocks import batch
from rl_twoclocks.cli import Stopped, explain
from rl_twoclocks.config import ConfigError


def train_all(jobs: Sequence[batch.Job], at_a_time: int) -> int:
    """Train (command, directory) pairs in order; name those that failed, and return how many.

    Raises:
        SystemExit: a directory is of another command, and nothing was started; or a signal came.
    """
    try:
        failed = batch.train_all(jobs, at_a_time)
    except (ConfigError, Stopped) as error:
        raise SystemExit(explain(error)) from None
    for place in failed:
        print(f"failed: {place}", flush=True)
    return len(failed)


def outcome(place: Path, random_return: float | None) -> float | None:
    """Return of a run that is over: what it finished with, or a random policy's if it diverged.

    Raises:
        SystemExit: it diverged, and nobody knows what a random policy gets there.
    """
    if not batch.is_over(place):
        return None
    if not batch.diverged_file(place).exists():
        return float(json.loads((place / "result.json").read_text())["return_mean"])
    if random_return is None:
        raise SystemExit(
            f"{place} diverged: its task has no return of a random policy in figures.py"
        )
    return random_return


def over(runs: Path, pattern: str) -> list[Path]:
    """Run directories below `runs` that match and are over, in order."""
    return [p for p in sorted(runs.glob(pattern)) if p.is_dir() and batch.is_over(p)]
