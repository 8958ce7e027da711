"""The doctor's findings: symptom, part out of step, reading, healthy value, urgency, what to change."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from rl_twoclocks.checks import (
    USUAL_RATE,
    Check,
    Finding,
    checks,
    lower_rate,
    rate_urgency,
    runnable,
    window_of,
)
from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.diagnostics import levels
from rl_twoclocks.diagnostics.alarm import SEVERITIES
from rl_twoclocks.diagnostics.policy_shift import spanned
from rl_twoclocks.record.records import Records, newest_tenth, stored_config, values
from rl_twoclocks.rundir import in_use
from rl_twoclocks.safety import unit
from rl_twoclocks.suspect import Suspect, suspect

URGENCIES = ("fine", *SEVERITIES)
SAID = 3
"""Signs that a verdict names."""
NARROW = 100
"""Columns below which the table becomes a list."""


@dataclass
class Report:
    """What the doctor says."""

    title: str
    facts: list[str]
    findings: list[Finding] = field(default_factory=list)
    alarms: list[dict[str, Any]] = field(default_factory=list)
    suspect: Suspect | None = None

    @property
    def verdict(self) -> str:
        """The worst urgency, in plain words: the first three signs of it."""
        worst = max((URGENCIES.index(f.urgency) for f in self.findings), default=0)
        bad = [f.symptom for f in self.findings if URGENCIES.index(f.urgency) == worst]
        if worst == 0:
            return "in step: nothing to do"
        more = f"; and {len(bad) - SAID} more" if len(bad) > SAID else ""
        return f"{URGENCIES[worst]}: {'; '.join(bad[:SAID])}{more}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        findings = [asdict(f) for f in self.findings]
        return {
            "title": self.title,
            "verdict": self.verdict,
            "facts": self.facts,
            "findings": findings,
            "alarms": self.alarms,
            "suspect": asdict(self.suspect) if self.suspect is not None else None,
        }

    def text(self) -> str:
        """The same for a person: worst first."""
        from rich.console import Console
        from rich.table import Table

        worst_first = sorted(self.findings, key=lambda f: -URGENCIES.index(f.urgency))
        # A pipe has no width of its own.
        console = Console(width=None if Console().is_terminal else 160)
        with console.capture() as captured:
            console.print(self.title, style="bold", highlight=False)
            for fact in self.facts:
                console.print(f"  {fact}", highlight=False, soft_wrap=True)
            if console.width < NARROW:
                # A table folded to so few columns cannot be read: what is not fine, line by line.
                bad = [f for f in worst_first if f.urgency != "fine"]
                for f in bad:
                    text = f"{f.urgency.upper()} {f.symptom} ({f.part}): {f.reading}"
                    console.print(f"{text}; healthy {f.healthy}. {f.todo}", highlight=False)
                console.print(f"{len(worst_first) - len(bad)} further signs are fine")
            else:
                table = Table(show_lines=False, header_style="bold")
                for column in ("symptom", "out of step", "reading", "healthy", "urgency", "change"):
                    table.add_column(column, overflow="fold")
                for f in worst_first:
                    table.add_row(f.symptom, f.part, f.reading, f.healthy, f.urgency, f.todo)
                console.print(table)
            for alarm in self.alarms:
                console.print(
                    f"  {alarm['frames']:>12,}  {alarm['text']}", highlight=False, soft_wrap=True
                )
            if self.suspect is not None:
                console.print(str(self.suspect), highlight=False, soft_wrap=True)
            console.print(f"verdict: {self.verdict}", style="bold", highlight=False)
        return captured.get().rstrip("\n")


def of_run(directory: Path) -> Report:
    """Findings about a run, from the last tenth of what it wrote.

    Raises:
        ConfigError: it has written nothing yet, or what cannot be read.
    """
    return of_records(Records.read(directory), stored_config(directory))


def of_records(records: Records, config: Config) -> Report:
    """Findings about a run that has been read.

    Raises:
        ConfigError: it has written nothing yet.
    """
    directory, rows, events = records.directory, records.rows, records.events
    if not rows:
        raise ConfigError(f"{directory} has no metrics yet")
    level = levels(config)
    recent = newest_tenth(rows)

    def now(name: str) -> float | None:
        found = values(recent, name)
        return statistics.median(found) if found else None

    def newest(name: str) -> float | None:
        return next(reversed(values(recent, name)), None)

    versions = spanned(now("clock/ratio_measured") or 1.0, now("clock/staleness_min") or 0.0)
    dims = now("diag/action_dims") or 1.0
    signs = checks(_in_force(config, newest), level, versions, dims)
    alarms = [e for e in events if e["kind"] == "alarm"]
    on = _on(alarms, rows)
    judged = [(c, c.finding(v)) for c in signs if (v := now(c.name)) is not None]
    judged = [(c, _at_least(c, f, on[c.alarm]) if c.alarm in on else f) for c, f in judged]
    found = [finding for _, finding in judged] + _not_finite(signs, rows)
    found += [f for f in _learning_rate(config) if f.urgency != "fine"]
    if config.diagnostics.name == "off":
        found.append(
            Finding("nothing was measured", "configuration", "diagnostics=off", "default",
                    "watch", "diagnostics=default")
        )  # fmt: skip
    if config.diagnostics.name == "minimal":
        found.append(
            Finding("policy, data and gradients were not measured", "configuration",
                    "diagnostics=minimal", "default", "watch", "diagnostics=default")
        )  # fmt: skip
    found = _crash(directory) + found + _losses(rows[-1], config)
    if config.interventions.governor == "guard":
        found += _held(rows, config)
    said = {c.alarm for c, finding in judged if finding.urgency != "fine"}
    parts = _EXPLAINED | {c.alarm: c.part for c in signs if c.alarm not in _EXPLAINED}
    found += _from_alarms(alarms, rows, parts, said, on)
    frames, total = rows[-1]["frames"], config.total_frames
    facts = [
        f"{frames:,} of {total:,} frames, {len(rows):,} rounds on record",
        f"B {config.clocks.batch_size:,} / U {config.clocks.update_frequency:,} as configured"
        + "".join(
            f", {label} {value:.3g}"
            for name, label in _CLOCKS.items()
            if (value := newest(name)) is not None
        ),
        f"{len(alarms)} alarm{'' if len(alarms) == 1 else 's'}, "
        f"{sum(a['severity'] == 'danger' for a in alarms)} of them danger",
    ]
    for place, (name, label) in enumerate(_RETURNS.items(), 1):
        if returns := values(rows, name):
            facts.insert(place, f"{label} {returns[-1]:.4g}, best {max(returns):.4g}")
    orders = [e for e in events if (e["kind"] == "order" and e["given"]) or e["kind"] == "rescue"]
    if orders:
        facts.append(f"{len(orders)} orders and rescues; the newest: {orders[-1]['text']}")
    if restarts := [e for e in events if e["kind"] == "restart"]:
        facts.append(restarts[-1]["text"])
    state = "finished" if _finished(directory, config) else "not finished"
    if state == "not finished":
        state += ", a process is training" if in_use(directory) else ", and no process is training"
    cause = suspect(config, rows, events)
    return Report(f"run {directory}, {state}", facts, found, alarms[-10:], cause)


_RETURNS = {
    "eval/return_mean": "return in evaluation",
    "rollout/return_mean": "return in training, newest 100 episodes,",
}


def _in_force(config: Config, now: Callable[[str], float | None]) -> Config:
    """The configuration with what the governor has changed, so that advice goes on from there.

    `now` gives a recent reading: the clock ratio in force, as B at the configured U, and the passes.
    """
    c, changes = config.clocks, {}
    whole = unit(config)
    if ratio := now("clock/ratio"):
        batch = round(ratio * c.update_frequency) // whole * whole
        if max(c.update_frequency, c.sample or 0, c.minibatch_size) <= batch < c.batch_size:
            changes["batch_size"] = batch
    measured, reuse = now("clock/ratio_measured"), now("clock/reuse")
    if measured and reuse and c.sample is None:
        changes["update_epochs"] = min(max(round(reuse / measured), 1), c.update_epochs)
    return config.model_copy(update={"clocks": c.model_copy(update=changes)})


def _not_finite(signs: list[Check], rows: list[dict[str, Any]]) -> list[Finding]:
    """Signs whose newest reading overflowed or is no number: such rows hold null."""
    newest: dict[str, Any] = {}
    for row in rows[-ON:]:
        newest |= row
    return [
        Finding(
            sign.symptom,
            sign.part,
            f"{sign.name} is not finite",
            sign.healthy,
            "danger",
            sign.change,
        )
        for sign in signs
        if newest.get(sign.name, 0.0) is None
    ]


def _losses(row: dict[str, Any], config: Config) -> list[Finding]:
    """Frames that were collected and never learnt from."""
    share = (row.get("clock/dropped_frames") or 0.0) / max(row["frames"], 1)
    if share < WASTE:
        return []
    collect, what = config.collect, "frames are dropped as too old or for want of room"
    change, besides = "collect.when_full=wait", "or collect with fewer workers"
    if collect.mode == "sync":
        what = "frames are dropped from the queue of clocks.lag, by alignments or orders"
        change, besides = "clocks.lag=0", "or a larger clocks.align_kl"
    elif collect.when_full == "wait":
        change = f"collect.max_staleness={2 * (collect.max_staleness or 1)}"
    return [
        Finding(
            what, "clocks", f"{share:.0%} of all", f"below {WASTE:.0%}", "warn", change, besides
        )
    ]


def _held(rows: list[dict[str, Any]], config: Config) -> list[Finding]:
    """Orders in force: what is fine may be so because of them."""
    keys = {key for row in rows[-ON:] for key in row if key.startswith("order/")}
    names = sorted(key.removeprefix("order/") for key in keys)
    if not names:
        return []
    # These hold back steps that are too large; what a new run needs to be free of them is known.
    change = lower_rate(config) if {"step", "passes", "clip", "rescue"} & set(names) else ""
    return [
        Finding("orders of the governor are in force", "configuration",
                ", ".join(names), "no order", "watch", change, "for a new run" if change else "")
    ]  # fmt: skip


WASTE = 0.1
"""Share of dropped frames from which the doctor speaks of them."""
_CLOCKS = {
    "clock/ratio": "clock ratio in force",
    "clock/ratio_measured": "measured",
    "clock/reuse": "reuse",
    "clock/steps_per_frame": "optimizer steps per fresh frame",
}


def _finished(directory: Path, config: Config) -> bool:
    """Whether the run has used up its budget, which may have grown since it first ended.

    A rollout may have become larger than configured: that much may be left.
    """
    try:
        result = json.loads((directory / "result.json").read_text())
        frames, rounds = int(result["frames"]), int(result["rounds"])
    except (OSError, ValueError, KeyError):
        return False
    rollout = max(config.clocks.update_frequency, frames // max(rounds, 1))
    return frames + rollout > config.total_frames


def _crash(directory: Path) -> list[Finding]:
    """The error that the last sitting ended with, if it did."""
    path = directory / "error.txt"
    if not path.is_file():
        return []
    said = path.read_text().strip().splitlines()
    return [
        Finding("the run ended with an error", "run", said[-1] if said else "unknown", "none",
                "danger", "", "see error.txt; the same command goes on from the checkpoint")
    ]  # fmt: skip


_EXPLAINED = {
    "diversity": "data",
    "reward_cliff": "policy",
    "collapse": "policy",
    "reward_staircase": "data",
    "periodic_loss": "clocks",
    "critic_jump": "critic",
    "state_blind": "policy",
    "feature_rank": "policy",
    "memory_creep": "machine",
    "deployment_gap": "policy",
    "worker_version": "clocks",
}
ON = 5
"""Newest rows in which an alarm has to be on to be on still."""


def _on(alarms: list[dict], rows: list[dict]) -> dict[str, dict]:
    """The newest event of each alarm that is on."""
    names = {
        key.removeprefix("alarm/") for row in rows[-ON:] for key in row if key.startswith("alarm/")
    }
    return {alarm["name"]: alarm for alarm in alarms if alarm["name"] in names}


def _at_least(sign: Check, finding: Finding, alarm: dict) -> Finding:
    """A sign whose alarm is on: no milder than the alarm, even where its median is."""
    if URGENCIES.index(finding.urgency) >= URGENCIES.index(alarm["severity"]):
        return finding
    return replace(
        finding,
        # The alarm knows the cause, where the sign only has a name.
        symptom=alarm["cause"],
        reading=f"{finding.reading}; {_values(alarm)}",
        urgency=alarm["severity"],
        change=sign.change,
        advice="" if sign.change else alarm["cure"],
    )


def _from_alarms(
    alarms: list[dict],
    rows: list[dict],
    parts: dict[str, str],
    said: set[str],
    on: dict[str, dict],
) -> list[Finding]:
    """Alarms that are on and that no other finding speaks of; those on history also from its last fifth.

    Args:
        alarms: events.
        rows: of the metrics.
        parts: the part of the run that each alarm watches.
        said: alarms whose sign is out of its healthy range already.
        on: alarms that are on, by name.
    """
    since = rows[-1]["frames"] * 0.8
    result: dict[str, Finding] = {}
    for alarm in alarms:
        name = alarm["name"]
        late = name in _EXPLAINED and alarm["frames"] >= since
        if (late or name in on) and name not in said:
            part, cause, cure = parts.get(name, "run"), alarm["cause"], alarm["cure"]
            result[name] = Finding(cause, part, _values(alarm), "-", alarm["severity"], "", cure)
    return list(result.values())


def _values(alarm: dict) -> str:
    """What raised an alarm, and when: its sign may have moved since."""
    values = ", ".join(f"{k} {_said(v)}" for k, v in alarm["values"].items())
    return f"{values} at {alarm['frames']:,} frames"


def _said(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def of_configuration(overrides: list[str]) -> Report:
    """Findings about a configuration, before anything runs."""
    from rl_twoclocks.build import decide_compile
    from rl_twoclocks.configure import compose
    from rl_twoclocks.flowmap import predict
    from rl_twoclocks.safety import MAX_REUSE, SAFE_TABLE, ratio_cap, settle

    config, derived = settle(compose(overrides))
    c = config.clocks
    cap = ratio_cap(config.task.family)
    row = SAFE_TABLE.get(config.task.family)
    most = min(int(cap * c.update_frequency), row.batch_size[1] if row else c.batch_size)
    command = runnable(config, window_of(config, most))
    ratio, reuse = derived.clock_ratio, derived.reuse
    # Passes over the window as it would be inside the cap.
    allowed = MAX_REUSE / (reuse / c.update_epochs * min(1.0, cap / ratio))
    lag = predict(config)
    older = command if c.lag + c.publish_interval == 1 else "clocks.lag=0 clocks.publish_interval=1"
    published = "every round" if c.publish_interval == 1 else f"every {c.publish_interval} rounds"
    found = [
        Finding("clock ratio", "clocks", f"{ratio:.3g}", f"<= {cap:.3g} ({config.task.family})",
                "danger" if derived.zone == "danger" else "warn" if ratio > cap
                else "watch" if derived.zone == "watch" else "fine",
                "" if ratio <= cap else command),
        Finding("reuse of a frame", "clocks", f"{reuse:.3g}", f"<= {MAX_REUSE:.3g}",
                "fine" if reuse <= MAX_REUSE else "warn",
                "" if reuse <= MAX_REUSE
                else f"clocks.update_epochs={max(1, int(allowed))}"),
        Finding("predicted staleness", "clocks",
                f"mean {lag.words()[1]}, max {lag.words()[2]} versions", "mean below 8",
                "fine" if lag.mean < 8 else "warn", "" if lag.mean < 8 else older),
        *_learning_rate(config),
        *[Finding("note", "configuration", note, "-", "watch", "") for note in derived.notes],
    ]  # fmt: skip
    steps = derived.minibatches * c.update_epochs / c.update_frequency
    # The machine that it is meant for may be another one.
    gpu = config.device.startswith("cuda") or (
        config.device == "auto" and torch.cuda.is_available()
    )
    facts = [
        *derived.lines(config)[:3],
        f"{steps:.3g} optimizer steps per fresh frame, the policy is published {published}",
        f"compiled step: {'yes' if decide_compile(config, derived, gpu) else 'no'}",
        f"governor: {config.interventions.governor}, diagnostics: {config.diagnostics.name}",
        _memory(config),
    ]
    return Report("configuration " + " ".join(overrides), facts, found)


def _learning_rate(config: Config) -> list[Finding]:
    """Whether steps are of a usual size."""
    if "adam" not in config.optim.name.lower():
        return []
    urgency = rate_urgency(config)
    return [
        Finding("learning rate" + ("" if urgency == "fine" else " far above usual ones"), "gradient",
                f"{config.optim.learning_rate:.3g}",
                f"<= {USUAL_RATE:.3g} (Adam)", urgency,
                "" if urgency == "fine" else lower_rate(config))
    ]  # fmt: skip


def _memory(config: Config) -> str:
    """Predicted memory of window, parameters and states to go back to, in MB."""
    from rl_twoclocks.build import build
    from rl_twoclocks.interventions import Snapshots
    from rl_twoclocks.safety import settle

    # One environment is enough to know the shapes.
    n = config.num_envs
    small = config.model_copy(update={"num_envs": 1})
    parts = build(*settle(small))
    try:
        spec = parts.env.observation_spec["observation"]
        observation = math.prod(spec.shape[1:]) * spec.dtype.itemsize
        frame = math.prod(parts.env.observation_shape[1:]) if parts.env.frames is not None else 0
        action = math.prod(parts.env.action_spec.shape[1:]) or 1
        size = parts.flat.vector.numel()
        observation += parts.model.memory.size if parts.model.memory is not None else 0
    finally:
        parts.close()
    # Observation and next observation (or their numbers, and one frame in bytes), action, two
    # parameters per action, seven scalars; float32.
    bytes_each = 2 * observation + frame + 4 * (3 * action + 7)
    window = config.clocks.batch_size * bytes_each / 2**20
    learner = size * 4 * 4 / 2**20
    rescue = config.interventions.rescue
    states = Snapshots(rescue.every, rescue.before).room if rescue.enabled else 0
    kept = size * 3 * 4 * states / 2**20 if config.interventions.governor == "guard" else 0.0
    return (
        f"memory: window {window:.1f} MB, {size:,} parameters with optimizer {learner:.1f} MB, "
        f"states to go back to {kept:.1f} MB ({n} environments not counted)"
    )


@torch.no_grad()
def of_window(path: Path) -> Report:
    """Findings about the window that a checkpoint holds, measured anew with its own policy."""
    from rl_twoclocks import state
    from rl_twoclocks.build import build
    from rl_twoclocks.diagnose import Diagnose
    from rl_twoclocks.record import checkpoint
    from rl_twoclocks.safety import settle

    saved = checkpoint.load(path)
    config = state.configuration(saved)
    here = config.collect.model_copy(update={"device": "cpu"})
    changes: dict[str, Any] = {"compile": False, "device": "cpu", "collect": here}
    config, derived = settle(config.model_copy(update=changes))
    parts = build(config, derived)
    try:
        state.restore(parts, saved)
        if parts.window.frames is None:
            raise ConfigError(f"{path} holds an empty window: it was saved while calibrating")
        window = parts.window.take()
        ready = parts.learner.prepare(window)
        diagnose = Diagnose(config, parts)
        diagnose.load_state_dict(saved["diagnose"])
        steering = saved["steering"]
        parts.update_frequency = steering["update_frequency"]
        parts.window.resize(steering["batch_size"])
        readings = diagnose.clocks(window, min(parts.update_frequency, window.numel()))
        # The checkpoint was made after its round: the round's own data is one version old by now.
        readings["clock/staleness_min"] = max(readings["clock/staleness_min"] - 1, 0.0)
        readings |= diagnose.measure(window, ready)
    finally:
        parts.close()
    level = levels(config)
    versions = spanned(readings["clock/ratio_measured"], readings["clock/staleness_min"])
    dims = readings.get("diag/action_dims", 1.0)
    found = [
        c.finding(readings[c.name])
        for c in checks(config, level, versions, dims)
        if c.name in readings
    ]
    facts = [
        f"{window.numel():,} frames of versions {int(window['policy_version'].min()):,} to "
        f"{int(window['policy_version'].max()):,}, learner at {parts.clocks.policy_version:,}",
    ]
    return Report(f"window of {path}", facts, found)
