"""Scenarios of the lab: what they ask, the runs of their arms, and what these came to.

The rules by which they are judged are in `rl_twoclocks.verdict`.
"""

from __future__ import annotations

import csv
import functools
import json
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rl_twoclocks.aggregate import interquartile_mean
from rl_twoclocks.batch import COMMAND, Job, claim, diverged_file, is_over, told, train_all
from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.config_commands import ScenarioConfig
from rl_twoclocks.configure import compose, config_dir, validate
from rl_twoclocks.diagnostics.cliff import fallen_from
from rl_twoclocks.nearest import there_are
from rl_twoclocks.record import read_metrics
from rl_twoclocks.record.events import read_events

EVALUATIONS = {"smoke": 4, "short": 20, "full": 20}
"""Evaluations of a healthy run, from which collapses are told; other arms have them as often."""
HEIGHT = 0.3
"""Share of what the healthy arm gains that a run has to have gained before it can fall."""
FIRST_SEED = 501
"""Nothing was tuned on this seed or the ones after it."""
COLUMNS = (
    "arm", "seed", "frames", "value", "fall_frames", "stood_round", "collapse_round", "diverged",
    "alarms",
)  # fmt: skip
"""Of results.csv; then the readings that the scenario shows, the budget, and the run's command."""
TYPED = " ".join(COMMAND)


@dataclass(frozen=True)
class Run:
    """What one run came to."""

    arm: str
    seed: int
    value: float
    """The scored reading of the last evaluation."""
    fall: int | None = None
    """Frames at the collapse, if there was one ..."""
    collapse: int | None = None
    """... and its round."""
    alarms: dict[str, int] = field(default_factory=dict)
    """Round of the first alarm of at least warn, by its name; in order."""
    shown: dict[str, float] = field(default_factory=dict)
    """Medians over the run of the readings that the scenario shows."""
    curve: tuple[tuple[int, float], ...] = ()
    """(frames, reading) of all evaluations."""
    command: str = ""
    """The overrides that it was made with."""
    frames: int = 0
    """Its budget, agent decisions."""
    diverged: bool = False
    """Whether it ended because a number was not finite: counts as a random policy, and as fallen."""
    stood: int | None = None
    """Round of the last evaluation before the collapse: the fall lies between the two."""


def names() -> list[str]:
    """All scenarios."""
    return sorted(path.stem for path in (config_dir() / "lab").glob("*.yaml"))


def load(name: str) -> ScenarioConfig:
    """Read a scenario.

    Raises:
        ConfigError: there is none of that name; names the nearest.
    """
    if name not in names():
        raise ConfigError(f"scenario={name}: {there_are(name, names(), cutoff=0.3)}")
    text = (config_dir() / "lab" / f"{name}.yaml").read_text()
    return validate(yaml.safe_load(text), ScenarioConfig)


def every_arm(scenario: ScenarioConfig) -> dict[str, list[str]]:
    """Overrides by arm: the three that count, and the controls."""
    return {**scenario.arms, **scenario.controls}


def words_of(scenario: ScenarioConfig, budget: str, arm: str, seed: int) -> list[str]:
    """The overrides of one run."""
    words, config = _words(scenario, budget, arm), composed(scenario, budget, arm)
    frames = config.total_frames
    if config.clocks.lag:
        # What fills the queue comes on top, so that all arms learn for as many rounds.
        frames += config.clocks.lag * config.clocks.update_frequency
        words.append(f"total_frames={frames}")
    # The same for all arms: three evaluations in a row are a collapse.
    every = max(composed(scenario, budget, "healthy").total_frames // EVALUATIONS[budget], 1)
    return [*words, f"seed={seed}", f"eval.every_frames={every}", "logger=jsonl"]


def composed(scenario: ScenarioConfig, budget: str, arm: str) -> Config:
    """The configuration of an arm, whatever its seed.

    Raises:
        ConfigError: it is none.
    """
    return _compose_once(tuple(_words(scenario, budget, arm)))


def _words(scenario: ScenarioConfig, budget: str, arm: str) -> list[str]:
    limits = scenario.budgets[budget]
    words = [*scenario.base, *every_arm(scenario)[arm]]
    return [*words, *limits.overrides, *limits.arms.get(arm, [])]


@functools.cache
def _compose_once(words: tuple[str, ...]) -> Config:
    return compose(words)


def run(
    scenario: ScenarioConfig,
    budget: str,
    place: Path,
    jobs: int,
    arms: Sequence[str] | None = None,
) -> list[str]:
    """Train all runs that are not finished, or those of some arms; return the names of the failed.

    Arms that need what this machine lacks are left out with a word. A run that ends because a number is
    not finite has not failed: that is what it came to.

    Raises:
        ConfigError: there is no such arm, one is no valid configuration, or the place holds runs of
            other commands; nothing was started.
    """
    every = every_arm(scenario)
    for arm in arms or ():
        if arm not in every:
            raise ConfigError(f"arms={arm}: {there_are(arm, every, cutoff=0.3)}")
    seeds = range(FIRST_SEED, FIRST_SEED + scenario.budgets[budget].seeds)
    todo = [(arm, seed) for seed in seeds for arm in every if arms is None or arm in arms]
    for arm in dict.fromkeys(arm for arm, _ in todo):
        lack = lacking(composed(scenario, budget, arm))
        if lack:
            print(f"{arm}: left out, {lack}", flush=True)
            todo = [job for job in todo if job[0] != arm]

    made = [
        (arm, int(path.name.removeprefix("seed")))
        for arm in every
        for path in _directories(place / arm)
    ]
    # What is there already, of other arms and seeds too, has to be of these commands.
    claim([_job(scenario, budget, place, *job) for job in made if job not in todo])
    # Generators are processes too: beside each other they would make data older than it is.
    busy = max((_processes(composed(scenario, budget, arm)) for arm, _ in todo), default=1)
    commands = [_job(scenario, budget, place, *job) for job in todo]
    failed = train_all(commands, jobs or max((os.cpu_count() or 1) // busy, 1))
    return [f"{each.parent.name}/{each.name}" for each in failed]


def _processes(config: Config) -> int:
    return 1 + (config.collect.workers if config.collect.mode != "sync" else 0)


def _job(scenario: ScenarioConfig, budget: str, place: Path, arm: str, seed: int) -> Job:
    return [*COMMAND, *words_of(scenario, budget, arm, seed)], place / arm / f"seed{seed}"


def lacking(config: Config) -> str:
    """What a run needs and this machine has not, in words; nothing if it can be run."""
    if config.collect.mode != "redis":
        return ""
    try:
        import redis
    except ImportError:
        return "the package redis is not installed"
    from rl_twoclocks.collect.redis_queue import address

    url = address(config.collect.redis.url)
    try:
        redis.Redis.from_url(url, socket_connect_timeout=2).ping()
    except redis.RedisError:
        return "no Redis server answers"
    return ""


def read(scenario: ScenarioConfig, place: Path) -> list[Run]:
    """Read all finished runs below a folder.

    Raises:
        ConfigError: what one of them wrote down is broken, or not whole.
    """
    places = {
        arm: [p for p in _directories(place / arm) if is_over(p)] for arm in every_arm(scenario)
    }
    rows = {each: _rows(scenario, each) for found in places.values() for each in found}
    healthy = ["healthy", *scenario.baselines.values()]
    least = {
        arm: _least(scenario, [_value(scenario, each, rows[each]) for each in places[arm]])
        for arm in dict.fromkeys(healthy)
    }
    return [
        _read(scenario, arm, each, rows[each], least[scenario.baselines.get(arm, "healthy")])
        for arm, found in places.items()
        for each in found
    ]


def _directories(arm: Path) -> list[Path]:
    found = sorted(path.with_suffix("") for path in arm.glob("seed*.txt"))
    return [path for path in found if path.name.removeprefix("seed").isdecimal()]


def _least(scenario: ScenarioConfig, healthy: Sequence[float]) -> float:
    """The height from which a run can fall; infinite where no healthy one has learnt anything."""
    if not healthy:
        return math.inf
    gain = float(interquartile_mean(np.array(healthy))) - scenario.random
    return scenario.random + HEIGHT * gain if gain > 0 else math.inf


def _rows(scenario: ScenarioConfig, directory: Path) -> list[dict[str, Any]]:
    """What an ended run wrote down, round by round.

    Raises:
        ConfigError: it is broken, or ends before the run did.
    """
    path = directory / "metrics.jsonl"
    try:
        rows = read_metrics(path)
        if diverged_file(directory).exists():
            return rows
        frames = json.loads((directory / "result.json").read_text())["frames"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{directory} cannot be read: {error}") from error
    if not rows or rows[-1]["frames"] != frames or scenario.reading not in rows[-1]:
        raise ConfigError(
            f"{path} is not whole: its last row is not the evaluation of the run's end, at {frames:,} "
            f"frames. Remove {directory} to train it again"
        )
    return rows


def _value(scenario: ScenarioConfig, directory: Path, rows: Sequence[dict[str, Any]]) -> float:
    """The reading of a finished run's last evaluation; a random policy's if it diverged."""
    if diverged_file(directory).exists():
        return scenario.random
    return float([row[scenario.reading] for row in rows if scenario.reading in row][-1])


def _read(
    scenario: ScenarioConfig,
    arm: str,
    directory: Path,
    rows: Sequence[dict[str, Any]],
    least: float,
) -> Run:
    diverged = diverged_file(directory).exists()
    words = told(directory).split()[len(COMMAND) :]
    evaluated = [row for row in rows if scenario.reading in row]
    values = [float(row[scenario.reading]) for row in evaluated]
    fall = fallen_from(values, scenario.random, least)
    nothing: dict[str, Any] = {"frames": 0, "clock/policy_version": 0}
    fallen, before = None, nothing
    if fall is not None:
        fallen, before = evaluated[fall], evaluated[fall - 1]
    elif diverged:
        # To the round: what went before was learnt from.
        fallen = before = rows[-1] if rows else nothing
    alarms: dict[str, int] = {}
    for event in read_events(directory / "events.jsonl"):
        if event["kind"] == "alarm" and event["severity"] in ("warn", "danger"):
            alarms.setdefault(event["name"], int(event["round"]))
    shown = {}
    for name in scenario.shown:
        found = [float(row[name]) for row in rows if row.get(name) is not None]
        if found:
            shown[name] = statistics.median(found)
    return Run(
        arm=arm,
        seed=int(directory.name.removeprefix("seed")),
        value=_value(scenario, directory, rows),
        fall=None if fallen is None else int(fallen["frames"]),
        collapse=None if fallen is None else int(fallen["clock/policy_version"]),
        stood=None if fallen is None else int(before["clock/policy_version"]),
        diverged=diverged,
        alarms=alarms,
        shown=shown,
        command=" ".join(words),
        frames=compose(words).total_frames,
        curve=tuple((int(r["frames"]), v) for r, v in zip(evaluated, values, strict=True)),
    )


def write_results(scenario: ScenarioConfig, budget: str, runs: Sequence[Run], path: Path) -> None:
    """Write a row per run, with its command."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS, *scenario.shown, "budget", "command"])
        for one in runs:
            alarms = " ".join(f"{name}@{number}" for name, number in one.alarms.items())
            row: list[Any] = [one.arm, one.seed, one.frames]
            row += [f"{one.value:.6g}", one.fall, one.stood, one.collapse]
            row += [int(one.diverged), alarms]
            row += [f"{one.shown[n]:.4g}" if n in one.shown else "" for n in scenario.shown]
            writer.writerow([*row, budget, f"{TYPED} {one.command}".strip()])


def read_results(scenario: ScenarioConfig, path: Path) -> list[Run]:
    """Read what `write_results` wrote; curves are not in it."""
    with open(path, newline="") as file:
        return [_of_row(scenario, row) for row in csv.DictReader(file)]


def _of_row(scenario: ScenarioConfig, row: dict[str, str]) -> Run:
    pairs = (word.rpartition("@") for word in row["alarms"].split())
    return Run(
        arm=row["arm"],
        seed=int(row["seed"]),
        frames=int(row["frames"]),
        value=float(row["value"]),
        fall=int(row["fall_frames"]) if row["fall_frames"] else None,
        collapse=int(row["collapse_round"]) if row["collapse_round"] else None,
        stood=int(row["stood_round"]) if row["stood_round"] else None,
        diverged=row["diverged"] == "1",
        alarms={name: int(number) for name, _, number in pairs},
        command=row["command"].removeprefix(TYPED).strip(),
        shown={name: float(row[name]) for name in scenario.shown if row.get(name)},
    )
