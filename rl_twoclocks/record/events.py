"""What happened in a run: alarms, orders and rescues, one JSON object a line in `events.jsonl`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_twoclocks.record.jsonl import keep_rows, plain, read_metrics

if TYPE_CHECKING:
    from rl_twoclocks.clocks import Clocks
    from rl_twoclocks.diagnostics import Alarm
    from rl_twoclocks.interventions import Change


class Events:
    """Appends events, and keeps those that nobody has been shown yet.

    Every row has `frames`, `round` (policy version), `kind` (alarm, order, rescue, nonfinite, restart),
    `name` and `text`. Alarms have `severity`, `values` (null where not finite), `cause` and `cure` too;
    orders have `why` and `given` (false where the governor only says what it would do).
    """

    def __init__(self, directory: Path, frames: int) -> None:
        """Open the file; keep the rows up to the checkpoint resumed from."""
        path = directory / "events.jsonl"
        keep_rows(path, frames)
        self._file = path.open("a", encoding="utf-8")
        self.unseen: list[str] = []

    def alarm(self, alarm: Alarm, clocks: Clocks) -> None:
        """Write an alarm that began or grew worse."""
        values = {name: plain(value) for name, value in alarm.values.items()}
        row: dict[str, Any] = {"severity": alarm.severity, "values": values}
        row |= {"cause": alarm.cause.rstrip(";"), "cure": alarm.cure}
        self._write("alarm", alarm.name, str(alarm), clocks, row)

    def order(self, change: Change, mode: str, clocks: Clocks) -> None:
        """Write what the governor orders, or would order."""
        given = mode == "guard"
        verb = "ORDER" if given else "WOULD ORDER"
        text = f"{verb} {change.cure}: {change.what} ({change.why})"
        self._write("order", change.cure, text, clocks, {"why": change.why, "given": given})

    def note(self, kind: str, text: str, clocks: Clocks) -> None:
        """Write anything else."""
        self._write(kind, kind, f"{kind.upper()} {text}", clocks, {})

    def _write(self, kind: str, name: str, text: str, clocks: Clocks, more: dict[str, Any]) -> None:
        row = {"frames": clocks.frames, "round": clocks.policy_version, "kind": kind, "name": name}
        self._file.write(json.dumps(row | {"text": text} | more, allow_nan=False) + "\n")
        self._file.flush()
        self.unseen.append(text)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the rows of an `events.jsonl`; a file that does not exist has none."""
    return read_metrics(path)
