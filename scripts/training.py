"""What scripts share that train many runs: see `rl_twoclocks.batch`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from rl_twoclocks import batch
from rl_twoclocks.cli import Stopped, explain
from rl_twoclocks.config import ConfigError
from rl_twoclocks.configure import compose, schema_keys
from rl_twoclocks.rundir import flatten, plain, protocol
from rl_twoclocks.safety import settle


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


def settings(place: Path) -> str:
    """Digest of what a run was made with and measured by, for a row of a CSV."""
    return _digest(yaml.safe_load((place / "config.yaml").read_text()))


def is_made(row: dict[str, str] | None, command: Sequence[str]) -> bool:
    """Whether a row of a CSV is of this command, and presets have not changed since.

    Rows from before digests were kept have none, and count.
    """
    if row is None or row["command"] != " ".join(command):
        return False
    if not row["settings"]:
        return True
    words = list(command[len(batch.COMMAND) :])
    return row["settings"] == _digest(plain(settle(compose(words))[0]))


def _digest(config: dict) -> str:
    # Without what has its default value: a key that is new since changes no digest.
    fields = dict(schema_keys())
    values = flatten(protocol(config))
    told = {k: v for k, v in values.items() if k not in fields or v != fields[k].default}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]
