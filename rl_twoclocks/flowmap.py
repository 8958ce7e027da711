"""The data-flow map: who produces data, through which buffers, who takes it, and when it goes back.

Drawn from a configuration with the lag that is to be expected, and from a run with the lag that was
measured. As text and as SVG.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from rl_twoclocks.config import Config
from rl_twoclocks.record.records import Records, newest_tenth, stored_config, values
from rl_twoclocks.safety import Derived, oldest_policy, settle


@dataclass(frozen=True)
class Station:
    """One box of the map."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Lag:
    """Age of the data when it is learnt from, in versions."""

    newest: float
    """Of the newest frames."""
    mean: float
    """Of all frames of the window."""
    oldest: float | None
    """None: nothing bounds it."""

    def words(self) -> tuple[str, str, str]:
        """Newest, mean and oldest, for a reader."""
        oldest = "any" if self.oldest is None else f"{self.oldest:.3g}"
        return f"{self.newest:.3g}", f"{self.mean:.3g}", oldest


@dataclass(frozen=True)
class FlowMap:
    """The stations in the order in which data passes them, and the way back."""

    title: str
    stations: tuple[Station, ...]
    back: str
    """How the policy returns to those who collect."""
    predicted: Lag
    measured: Lag | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def text(self) -> str:
        """For a terminal."""
        width = max(len(line) for s in self.stations for line in (s.title, *s.lines)) + 2
        out = [self.title, ""]
        for i, station in enumerate(self.stations):
            out.append("+" + "-" * width + "+")
            out.append("| " + station.title.upper().ljust(width - 1) + "|")
            out += ["| " + line.ljust(width - 1) + "|" for line in station.lines]
            out.append("+" + "-" * width + "+")
            if i + 1 < len(self.stations):
                out.append("    |")
                out.append("    v")
        out.append(f"    ^ back to the start: {self.back}")
        out.append("")
        out += [f"lag in versions   {'newest':>8} {'mean':>8} {'oldest':>8}"]
        for name, lag in (("predicted", self.predicted), ("measured", self.measured)):
            if lag is not None:
                out.append(f"{name:<17}" + "".join(f" {word:>8}" for word in lag.words()))
        return "\n".join(out)

    def svg(self) -> str:
        """A picture that needs nothing else; follows the reader's light or dark colours."""
        box, gap, line = 310, 46, 17
        tall = 34 + line * max(len(s.lines) for s in self.stations)
        wide = len(self.stations) * (box + gap) + gap
        top, bottom = 52, 52 + tall
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {bottom + 118}" '
            f'role="img" aria-label="{escape(self.title)}">',
            "<style>text{font:13px sans-serif;fill:#222}.h{font-weight:bold}.b{fill:#eef3f8;"
            "stroke:#47698c}.a{stroke:#47698c;fill:none;stroke-width:2}@media (prefers-color-scheme:"
            "dark){text{fill:#eee}.b{fill:#1d2a36;stroke:#7ba3cc}.a{stroke:#7ba3cc}}</style>",
            '<defs><marker id="m" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">'
            '<path d="M0,0 L7,3 L0,6" class="a"/></marker></defs>',
            f'<text x="{gap}" y="26" class="h">{escape(self.title)}</text>',
        ]
        for i, station in enumerate(self.stations):
            x = gap + i * (box + gap)
            parts.append(
                f'<rect class="b" x="{x}" y="{top}" width="{box}" height="{tall}" rx="6"/>'
            )
            parts.append(
                f'<text class="h" x="{x + 10}" y="{top + 21}">{escape(station.title)}</text>'
            )
            for k, text in enumerate(station.lines):
                y = top + 41 + k * line
                parts.append(f'<text x="{x + 10}" y="{y}">{escape(text)}</text>')
            if i + 1 < len(self.stations):
                y = top + tall // 2
                parts.append(
                    f'<path class="a" d="M{x + box},{y} h{gap - 4}" marker-end="url(#m)"/>'
                )
        first, last = gap + box // 2, gap + (len(self.stations) - 1) * (box + gap) + box // 2
        parts.append(
            f'<path class="a" d="M{last},{bottom} v26 H{first} v-22" marker-end="url(#m)"/>'
        )
        parts.append(f'<text x="{first + 14}" y="{bottom + 20}">{escape(self.back)}</text>')
        for k, (name, lag) in enumerate(
            (("predicted", self.predicted), ("measured", self.measured))
        ):
            if lag is not None:
                newest, mean, oldest = lag.words()
                text = f"lag in versions, {name}: newest {newest}, mean {mean}, oldest {oldest}"
                parts.append(f'<text x="{gap}" y="{bottom + 62 + k * 22}">{text}</text>')
        return "\n".join([*parts, "</svg>"]) + "\n"


def of_configuration(config: Config, derived: Derived) -> FlowMap:
    """The map of a run before it starts."""
    c, collect = config.clocks, config.collect
    n = config.num_envs
    who = {
        "sync": "this process",
        "async": f"worker processes: {collect.workers}",
        "redis": f"behind Redis, slices a rollout: {collect.workers}",
        "ray": f"Ray actors: {collect.workers}",
    }[collect.mode]
    each = f"{n} environments"
    if collect.mode != "sync":
        each = f"{n // collect.workers} environments each"
    slices = f"{derived.steps_per_env} decisions a slice, {c.update_frequency:,} frames a rollout"
    producers = Station("generators", (who, each, slices))
    stations = [producers]
    if collect.mode != "sync":
        limit = (
            "any age" if collect.max_staleness is None else f"at most {collect.max_staleness} old"
        )
        stations.append(
            Station(
                "pool",
                (
                    f"{collect.slots} slots, {collect.order} first",
                    limit,
                    f"full: {'generators wait' if collect.when_full == 'wait' else 'oldest dropped'}",
                ),
            )
        )
    if c.lag and c.lag_mode == "queue":
        stations.append(Station("delay", (f"every rollout waits {c.lag} rounds",)))
    stations.append(
        Station("window", (f"B {c.batch_size:,} frames", f"clock ratio {derived.clock_ratio:.3g}"))
    )
    learner = [
        f"{config.algo.name}, {c.update_epochs} passes a round",
        f"{derived.minibatches * c.update_epochs:,} optimizer steps a round",
        f"device {config.device}",
    ]
    if c.gradient_lag:
        learner.append(f"gradients of {c.gradient_lag} steps ago")
    stations.append(Station("learner", tuple(learner)))
    rounds = "every round" if c.publish_interval == 1 else f"every {c.publish_interval} rounds"
    if c.lag and c.lag_mode == "ring":
        rounds += f"; of the last {c.lag + 1} one acts, drawn anew"
    title = f"{config.task.name}: data flow as configured"
    return FlowMap(title, tuple(stations), f"policy {rounds}", predict(config))


def predict(config: Config) -> Lag:
    """What the configuration lets one expect.

    A window of B frames holds ceil(B / U) rollouts, each one version older than the next; of the oldest
    it holds what the others leave. Rollouts are as old as what delays them: the lag on purpose, half the
    interval between publications, and where others collect one version, since they begin a rollout
    before the one under way is learnt. The pool's slots, taken as full, make most data older only where
    it is taken in order of arrival or at random. With the newest first, a slice that is left over waits
    until it is nearly too old; at random it may wait for ever.
    """
    c, collect = config.clocks, config.collect
    held = math.ceil(c.batch_size / c.update_frequency)
    acts = oldest_policy(c)
    newest = acts / 2
    worst: float | None = acts
    if collect.mode != "sync":
        queued = math.ceil(collect.slots / collect.workers)
        newest += (
            1 if collect.order == "near" else queued if collect.order == "fifo" else queued / 2
        )
        worst = acts + queued + 1 if collect.order == "fifo" else None
        if collect.max_staleness is not None:
            limit = collect.max_staleness - (held - 1)
            newest = min(newest, limit)
            worst = limit if worst is None else min(worst, limit)
    # The delay comes after the pool and its limit.
    delay = c.lag if c.lag_mode == "queue" else 0
    newest += delay
    frames = (min(c.batch_size - k * c.update_frequency, c.update_frequency) for k in range(held))
    stay = sum(age * count for age, count in enumerate(frames)) / c.batch_size
    return Lag(newest, newest + stay, None if worst is None else worst + delay + held - 1)


def of_run(directory: Path) -> FlowMap:
    """The map of a run, with the lag of its last tenth.

    Raises:
        ConfigError: what the run wrote cannot be read.
    """
    return of_records(Records.read(directory), stored_config(directory))


def of_records(records: Records, config: Config) -> FlowMap:
    """The map of a run that has been read; as configured where it has not measured its clocks."""
    config, derived = settle(config)
    rows = [row for row in records.rows if "clock/staleness_mean" in row]
    flow = of_configuration(config, derived)
    if not rows:
        return replace(flow, title=f"{flow.title}; this run has not measured its clocks")
    recent = newest_tenth(rows)

    def now(name: str) -> float | None:
        found = values(recent, name)
        return statistics.fmean(found) if found else None

    oldest = max(row.get("clock/staleness_max") or 0.0 for row in recent)
    measured = Lag(now("clock/staleness_min") or 0.0, now("clock/staleness_mean") or 0.0, oldest)
    stations = []
    for station in flow.stations:
        more: list[str] = []
        if station.title == "generators" and (seconds := now("time/collect_seconds")) is not None:
            verb = "collecting" if config.collect.mode == "sync" else "waiting for them"
            more.append(f"{seconds:.3g} s a round {verb}")
        if station.title == "learner" and (seconds := now("time/update_seconds")) is not None:
            more.append(f"{seconds:.3g} s a round learning")
        if station.title == "pool":
            dropped = rows[-1].get("clock/dropped_frames", 0.0)
            more.append(f"{dropped:,.0f} frames dropped")
        stations.append(Station(station.title, (*station.lines, *more)))
    title = f"{config.task.name}: data flow as measured"
    return FlowMap(title, tuple(stations), flow.back, flow.predicted, measured)
