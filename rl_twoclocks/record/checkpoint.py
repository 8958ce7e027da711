"""Checkpoints: atomic, complete, loadable without executing code, never silently skipped."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from rl_twoclocks.config_base import ConfigError
from rl_twoclocks.rundir import nearest_runs, whole_file

_NAME = re.compile(r"checkpoint-(\d{12})\.pt")


class CheckpointError(RuntimeError):
    """A checkpoint is missing, damaged, or does not fit."""


class NoCheckpointError(CheckpointError, ConfigError):
    """The path that was given leads to none."""


def save(directory: Path, state: dict[str, Any], frames: int, keep_last: int) -> Path:
    """Write `checkpoint-<frames>.pt` atomically and drop all but the newest `keep_last`."""
    path = directory / f"checkpoint-{frames:012d}.pt"
    write(path, state)
    # Newer ones were passed over as damaged when the run went on from an older one.
    kept = [p for p in listed(directory) if p.name <= path.name][-keep_last:]
    for other in set(listed(directory)) - set(kept):
        other.unlink(missing_ok=True)
    return path


def write(path: Path, state: dict[str, Any]) -> None:
    """Write one file under a name that no loader looks for, sync it, and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # By a handle: given a path, torch writes that into the file.
    with whole_file(path) as temporary, open(temporary, "wb") as file:
        torch.save(state, file)


def listed(directory: Path) -> list[Path]:
    """All numbered checkpoints, oldest first."""
    found = [p for p in directory.glob("checkpoint-*.pt") if _NAME.fullmatch(p.name)]
    return sorted(found, key=lambda p: p.name)


def load(path: Path) -> dict[str, Any]:
    """Read one checkpoint to the CPU.

    Raises:
        NoCheckpointError: there is no such file; names what is there instead.
        CheckpointError: it is damaged.
        RuntimeError: it cannot be read at present, which says nothing about the file.
    """
    if not path.is_file():
        near = path if path.is_dir() else path.parent
        there = sorted(p.name for p in near.glob("*.pt")) or sorted(
            str(p.relative_to(near)) for p in near.glob("*/*.pt")
        )
        hint = f"; in {near} there are: {', '.join(there[:8])}" if there else nearest_runs(path)
        raise NoCheckpointError(f"no checkpoint at {path}{hint}")
    damaged = f"{path} cannot be read: damaged, or no checkpoint"
    try:
        # Of some files that were cut off torch reports an operating system's error.
        whole = _ends_as_archive(path)
        state = torch.load(path, map_location="cpu", weights_only=True) if whole else None
    except (OSError, MemoryError) as error:
        raise RuntimeError(f"{path} could not be read: {error!r}; try again") from error
    except Exception as error:
        # torch's own text would advise to load it unsafely.
        raise CheckpointError(damaged) from error
    if not isinstance(state, dict):
        raise CheckpointError(damaged)
    return state


def _ends_as_archive(path: Path) -> bool:
    """Whether the end record of a zip archive, which torch writes last, is there."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 22, 0))
        return file.read(4) == b"PK\x05\x06"


def load_newest(directory: Path) -> dict[str, Any] | None:
    """Read the newest good checkpoint; None only where there is none at all.

    Raises:
        CheckpointError: there are checkpoints and none can be read.
    """
    paths = listed(directory)
    for path in reversed(paths):
        try:
            return load(path)
        except CheckpointError as error:
            warnings.warn(f"{error}; trying the one before", stacklevel=2)
    if paths:
        raise CheckpointError(
            f"none of the {len(paths)} checkpoints in {directory} can be read; "
            "on_existing=overwrite starts over"
        )
    return None
