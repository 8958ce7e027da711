"""Write metrics to `metrics.jsonl`: one JSON object a line, `{"frames": 2048, "train/kl": 0.01}`.

The file is strictly valid JSON: a metric that is NaN or infinite is written as null.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from rl_twoclocks.rundir import write_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import nn

    from rl_twoclocks.record import RunInfo


class JsonlLogger:
    """Append rows to `<run>/metrics.jsonl`, each flushed as it is written."""

    address: str | None = None

    def __init__(self, run: RunInfo) -> None:
        """Open the file; keep the rows up to the checkpoint resumed from, and none for a new run."""
        path = run.directory / "metrics.jsonl"
        keep_rows(path, run.frames)
        self._file = path.open("a", encoding="utf-8")

    def log(self, metrics: Mapping[str, float], frames: int) -> None:
        """Append one row, `frames` environment frames into the run."""
        row = {"frames": frames, **{name: plain(value) for name, value in metrics.items()}}
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()

    def watch(self, module: nn.Module) -> None:
        """Do nothing: a module is not a row."""

    def pictures(self, paths: Sequence[Path], frames: int) -> None:
        """Do nothing: a picture is not a row."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the file is its own state."""
        return {}

    def close(self, exit_code: int = 0) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def keep_rows(path: Path, frames: int) -> None:
    """Keep the rows of a file up to `frames`; none for a new run (0).

    A killed run leaves rows that its checkpoint does not know: they are trained again. Lines that cannot
    be read are dropped: no run is lost for a row.
    """
    kept = [line for line, row in _lines(path, strict=False) if frames and row["frames"] <= frames]
    write_text(path, "".join(f"{line}\n" for line in kept))


def read_metrics(path: Path, strict: bool = True) -> list[dict[str, Any]]:
    """Read the rows of a `metrics.jsonl`, leaving out a last line that was torn by a kill.

    Args:
        path: The file; one that does not exist has no rows.
        strict: Without it every line that is no row is left out.

    Raises:
        ValueError: If a line other than the last is no row.
    """
    return [row for _, row in _lines(path, strict)]


def _lines(path: Path, strict: bool = True) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the text of each line with the row that it holds."""
    if not path.exists():
        return
    # Split at "\n" alone: splitlines() also splits at characters that JSON allows in a string.
    lines = path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("frames"), int):
                raise ValueError("no object with frames")
        except ValueError as error:
            if strict and number < len(lines):
                raise ValueError(f"{path}, line {number}: not JSON: {error}") from error
            continue
        yield line, row


def plain(value: float) -> float | None:
    """Return a number that JSON can hold: integers stay exact, NaN and infinity become None."""
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None
