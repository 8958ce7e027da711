"""Read run directories into plain data; what is missing or broken becomes a note in plain words."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.rundir import nearest_runs

if TYPE_CHECKING:
    from rl_twoclocks.findings import Report
    from rl_twoclocks.flowmap import FlowMap
    from rl_twoclocks.record.records import Records

FINISHED, UNFINISHED, CRASHED = "finished", "not finished", "ended with an error"
GOING = "going on"
"""Said by the live page alone: only it is about the present."""


@dataclass(frozen=True)
class Series:
    """One metric over a run; a value that was not finite is a hole (NaN)."""

    frames: np.ndarray
    """Agent decisions [n], rising."""
    values: np.ndarray
    """Readings [n]."""

    def __len__(self) -> int:
        return int(self.frames.size)

    @property
    def finite(self) -> Series:
        """The same without holes."""
        kept = np.isfinite(self.values)
        return Series(self.frames[kept], self.values[kept])


EMPTY = Series(np.zeros(0), np.zeros(0))


@dataclass
class Run:
    """All that a report says about one run."""

    directory: Path
    label: str
    """Shortest end of the path that no other run of the report has."""
    state: str
    """finished, not finished, ended with an error, or going on."""
    frames: int
    """Of the last row."""
    rounds: int
    """Rows on record."""
    series: dict[str, Series]
    events: list[dict[str, Any]]
    heard: bool = True
    """Whether there is a record of events."""
    config: Config | None = None
    """None where config.yaml cannot be read."""
    values: dict[str, Any] = field(default_factory=dict)
    """The configuration as dotted keys."""
    findings: Report | None = None
    flow: FlowMap | None = None
    maps: list[tuple[int, np.ndarray]] = field(default_factory=list)
    """Entropy maps: frames and counts [bins, bins]."""
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    """Traceback of the last sitting, if it failed."""
    videos: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be read, in plain words."""

    def get(self, name: str) -> Series:
        """One metric; empty where it was not measured."""
        return self.series.get(name, EMPTY)

    def last(self, name: str) -> float | None:
        """The newest finite value of a metric."""
        values = self.get(name).finite.values
        return float(values[-1]) if values.size else None

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.config.task.name if self.config is not None else "unknown task"

    @property
    def experiment(self) -> str:
        """The same for runs that differ in their seed alone."""
        if self.config is None:
            return str(self.directory)
        from rl_twoclocks.rundir import plain, protocol

        core = protocol(plain(self.config)) | {"total_frames": self.config.total_frames}
        core.pop("seed")
        return json.dumps(core, sort_keys=True)


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in their seed alone."""

    label: str
    runs: tuple[Run, ...]
    number: int
    """Its place in the report, from 0."""

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.runs[0].task


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Read several run directories, each once; a folder of runs (`seed1`, `seed2`) stands for them.

    Raises:
        ConfigError: a path is no run directory; names the nearest that are.
    """
    if not paths:
        raise ConfigError("name at least one run directory")
    wanted = [run for path in paths for run in _runs_of(Path(path).expanduser())]
    directories = list(dict.fromkeys(_checked(path).resolve() for path in wanted))
    return [read_run(d, label) for d, label in zip(directories, labels(directories), strict=True)]


def _runs_of(path: Path) -> list[Path]:
    """The path itself, or the runs that lie in it if it is none."""
    if (path / "metrics.jsonl").exists():
        return [path]
    inside = [p.parent for p in path.glob("*/metrics.jsonl")]
    return sorted(inside, key=lambda p: (len(p.name), p.name)) or [path]


def experiments(runs: Sequence[Run]) -> list[Experiment]:
    """Put runs together that differ in their seed alone, in order of appearance.

    A seed that comes again, from another folder, is no further seed: it begins another experiment.
    """
    grouped: dict[tuple[str, int], list[Run]] = {}
    times: Counter[tuple[str, Any]] = Counter()
    for run in runs:
        same = (run.experiment, run.values.get("seed"))
        grouped.setdefault((run.experiment, times[same]), []).append(run)
        times[same] += 1
    parents = [{r.directory.parent for r in group} for group in grouped.values()]
    result = []
    for number, group in enumerate(grouped.values()):
        label = group[0].label
        # The folder above the seeds names the experiment, where it is this experiment's alone.
        mine = parents[number]
        others = set().union(*(p for k, p in enumerate(parents) if k != number))
        if len(group) > 1:
            alone = len(mine) == 1 and not mine & others
            label = label.rpartition("/")[0] if alone else f"{label} and {len(group) - 1} more"
        result.append(Experiment(label, tuple(group), number))
    return result


def _checked(path: Path) -> Path:
    if (path / "metrics.jsonl").is_file():
        return path
    raise ConfigError(f"{path} is no run directory (it has no metrics.jsonl){nearest_runs(path)}")


def labels(directories: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    for parts in range(2, max((len(d.parts) for d in directories), default=2) + 1):
        ends = ["/".join(d.parts[-parts:]) for d in directories]
        if len(set(ends)) == len(ends):
            return ends
    return [str(d) for d in directories]


def read_run(directory: Path, label: str) -> Run:
    """Read one run directory; what is broken or missing is left out, and said in the run's notes."""
    from rl_twoclocks.record.records import Records

    notes = []
    try:
        records = Records.read(directory)
    except ConfigError as error:
        records = Records.read(directory, strict=False)
        notes.append(f"{error}; what cannot be read is left out")
    rows = records.rows
    error_text = _text(directory / "error.txt")
    run = Run(
        directory,
        label,
        CRASHED if error_text else FINISHED,
        int(rows[-1]["frames"]) if rows else 0,
        len(rows),
        columns(rows),
        records.events,
        heard=(directory / "events.jsonl").is_file(),
        error=error_text,
        videos=sorted(path for path in directory.glob("*.mp4") if path.is_file()),
        notes=notes,
    )
    if not run.heard:
        run.notes.append("events.jsonl is missing: alarms and orders are not known")
    try:
        run.result = json.loads(_text(directory / "result.json") or "{}")
    except ValueError:
        run.notes.append("result.json cannot be read")
    if (ended := run.result.get("frames", run.frames)) != run.frames:
        run.notes.append(
            f"rows are missing: they end at {run.frames:,} frames, the run at {ended:,}"
        )
    if run.state == FINISHED and not (directory / "result.json").is_file():
        run.state = UNFINISHED
    if not rows:
        run.notes.append("no round has been recorded yet")
    _explain(run, records)
    _load_maps(run)
    return run


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, Series]:
    """Turn rows into one series per metric; null and what is not finite become holes."""
    pairs: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name == "frames" or not (value is None or isinstance(value, (int, float))):
                continue
            frames, values = pairs.setdefault(name, ([], []))
            frames.append(row["frames"])
            values.append(float(value) if value is not None and math.isfinite(value) else math.nan)
    return {name: Series(np.array(f, float), np.array(v)) for name, (f, v) in pairs.items()}


def _explain(run: Run, records: Records) -> None:
    """Add what other parts of the package make of the run, where they can."""
    from rl_twoclocks import findings, flowmap
    from rl_twoclocks.record.records import stored_config
    from rl_twoclocks.rundir import flatten, plain

    try:
        run.config = stored_config(run.directory)
    except ConfigError as error:
        run.notes.append(f"no findings, no data-flow map: {error}")
        return
    run.values = flatten(plain(run.config))
    if run.config.diagnostics.name in ("off", "minimal"):
        run.notes.append(
            f"diagnostics={run.config.diagnostics.name}: most signs were not measured, "
            "so that quiet charts prove nothing"
        )
    try:
        run.findings = findings.of_records(records, run.config)
    except (ConfigError, TypeError) as error:
        # TypeError: a return that was not finite, which it compares with others.
        run.notes.append(f"no findings: {error}")
    try:
        run.flow = flowmap.of_records(records, run.config)
    except ConfigError as error:
        run.notes.append(f"no data-flow map: {error}")


def _load_maps(run: Run) -> None:
    from rl_twoclocks.record.checkpoint import CheckpointError, load_newest

    try:
        state = load_newest(run.directory)
    except CheckpointError as error:
        run.notes.append(f"no entropy maps: {error}")
        return
    saved = ((state or {}).get("diagnose") or {}).get("maps", [])
    run.maps = [(int(frames), counts.numpy()) for frames, counts in saved]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else ""
