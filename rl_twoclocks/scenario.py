"""Scenarios of the lab: run them, judge them by one rule, write them down.

The rule, for every scenario: a run's score is (return of its last evaluation - random) / (interquartile
mean of the healthy arm - random). The failure *reproduces* if the fault's interquartile mean lies below
0.6 and the intervals of fault and healthy do not touch. The cure *cures* if its interquartile mean is at
least 0.9. With fewer than five seeds nothing is decided. Intervals are 95 % bootstrap intervals over
seeds. A collapse is three evaluations in a row
below half of the best score (`diagnostics.cliff`); the lead is the number of rounds from a faulty run's
first alarm of at least warn to its collapse.
"""

from __future__ import annotations

import csv
import difflib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from rl_twoclocks.aggregate import Estimate, pooled
from rl_twoclocks.config import ConfigError
from rl_twoclocks.config_commands import ScenarioConfig
from rl_twoclocks.configure import compose, config_dir, validate
from rl_twoclocks.diagnostics.cliff import collapsed
from rl_twoclocks.record import read_metrics
from rl_twoclocks.record.events import read_events

FALLEN, CURED = 0.6, 0.9
ENOUGH = 5
"""Seeds below which nothing is decided."""
EVALUATIONS = 20
"""Evaluations per run, from which collapses are told."""


@dataclass(frozen=True)
class Run:
    """What one run came to."""

    arm: str
    seed: int
    value: float
    """Return of the last evaluation."""
    collapse: int | None
    """Round of the collapse, if there was one."""
    alarm: int | None
    """Round of the first alarm of at least warn."""
    alarms: tuple[str, ...]
    curve: tuple[tuple[int, float], ...]
    """(frames, return) of all evaluations."""


@dataclass(frozen=True)
class Conclusion:
    """What a scenario says."""

    scenario: str
    budget: str
    verdict: str
    """reproduces and is cured | reproduces, not cured | does not reproduce | undecided: why."""
    text: str
    scores: dict[str, Estimate]
    """By arm, relative to healthy."""
    lead: float | None
    """Median rounds between the first alarm and the collapse in the fault's runs."""
    collapses: dict[str, int]
    seeds: int


def load(name: str) -> ScenarioConfig:
    """Read a scenario.

    Raises:
        ConfigError: there is none of that name; names the nearest.
    """
    known = {path.stem: path for path in (config_dir() / "lab").glob("*.yaml")}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"scenario={name}: {hint}there are {', '.join(sorted(known))}")
    return validate(yaml.safe_load(known[name].read_text()), ScenarioConfig)


def every_arm(scenario: ScenarioConfig) -> dict[str, list[str]]:
    """Overrides by arm: the three that count, and the controls."""
    return {**scenario.arms, **scenario.controls}


def words_of(scenario: ScenarioConfig, budget: str, arm: str, seed: int) -> list[str]:
    """The overrides of one run."""
    limits = scenario.budgets[budget]
    words = [*scenario.base, *every_arm(scenario)[arm], *limits.overrides, f"seed={seed}"]
    frames = compose(words).total_frames
    return [*words, f"eval.every_frames={max(frames // EVALUATIONS, 1)}", "logger=jsonl"]


def run(scenario: ScenarioConfig, budget: str, place: Path, jobs: int) -> list[str]:
    """Train all runs that are not finished; return the names of those that failed.

    Raises:
        ConfigError: an arm is no valid configuration; nothing was started.
    """
    seeds = scenario.budgets[budget].seeds
    todo = [(arm, seed) for seed in range(1, seeds + 1) for arm in every_arm(scenario)]
    commands = {job: words_of(scenario, budget, *job) for job in todo}

    def one(job: tuple[str, int]) -> str | None:
        arm, seed = job
        directory = place / arm / f"seed{seed}"
        command_file = directory.parent / f"seed{seed}.txt"
        words = " ".join(commands[job])
        if command_file.exists() and command_file.read_text().strip() != words:
            raise ConfigError(
                f"{directory} is of another command ({command_file}): choose another place with out="
            )
        if (directory / "result.json").exists():
            return None
        directory.parent.mkdir(parents=True, exist_ok=True)
        command_file.write_text(words + "\n")
        command = [sys.executable, "-m", "rl_twoclocks.train", *commands[job]]
        command += [f"run_dir={directory}", "logger.display=none"]
        with open(directory.parent / f"seed{seed}.log", "a") as log:
            code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
        print(f"{arm} seed {seed}: {'done' if code == 0 else f'exit code {code}'}", flush=True)
        return f"{arm}/seed{seed}" if code else None

    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        return [name for name in pool.map(one, todo) if name is not None]


def read(scenario: ScenarioConfig, place: Path) -> list[Run]:
    """Read all finished runs."""
    runs = []
    for arm in every_arm(scenario):
        for path in sorted(place.glob(f"{arm}/seed*/result.json")):
            rows = read_metrics(path.parent / "metrics.jsonl")
            evaluated = [row for row in rows if "eval/return_mean" in row]
            returns = [row["eval/return_mean"] for row in evaluated]
            ends = (
                k for k in range(3, len(returns) + 1) if collapsed(returns[:k], scenario.random)
            )
            fall = next(ends, None)
            events = read_events(path.parent / "events.jsonl")
            alarms = [
                e for e in events if e["kind"] == "alarm" and e["severity"] in ("warn", "danger")
            ]
            runs.append(
                Run(
                    arm=arm,
                    seed=int(path.parent.name.removeprefix("seed")),
                    value=float(json.loads(path.read_text())["return_mean"]),
                    # The collapse begins with the first of the three evaluations.
                    collapse=None
                    if fall is None
                    else int(evaluated[fall - 3]["clock/policy_version"]),
                    alarm=int(alarms[0]["round"]) if alarms else None,
                    alarms=tuple(dict.fromkeys(e["name"] for e in alarms)),
                    curve=tuple(
                        (int(row["frames"]), float(r))
                        for row, r in zip(evaluated, returns, strict=True)
                    ),
                )
            )
    return runs


def conclude(scenario: ScenarioConfig, budget: str, place: Path) -> Conclusion:
    """Judge the finished runs by the rule.

    Raises:
        ConfigError: one of the three arms has no finished run.
    """
    runs = read(scenario, place)
    returns: dict[str, list[float]] = {}
    for one in runs:
        returns.setdefault(one.arm, []).append(one.value)
    if lacking := [arm for arm in ("healthy", "fault", "cure") if arm not in returns]:
        raise ConfigError(f"{place} has no finished run of {', '.join(lacking)}")
    scores = normalised(returns, scenario.random)
    leads = [
        one.collapse - one.alarm
        for one in runs
        # An alarm that comes after the fall leads nothing.
        if one.arm == "fault" and one.collapse is not None
        and one.alarm is not None and one.alarm <= one.collapse
    ]  # fmt: skip
    collapses = {arm: sum(r.collapse is not None for r in runs if r.arm == arm) for arm in returns}
    seeds = min(len(values) for values in returns.values())
    verdict = judge(scores) if seeds >= ENOUGH else f"undecided: {seeds} seeds prove nothing"
    lead = statistics.median(leads) if leads else None
    text = _sentence(place.name, verdict, scores, collapses, lead, seeds)
    return Conclusion(place.name, budget, verdict, text, scores, lead, collapses, seeds)


def normalised(returns: Mapping[str, list[float]], random: float) -> dict[str, Estimate]:
    """Scores by arm, relative to the healthy arm's interquartile mean."""
    healthy = pooled({"healthy": returns["healthy"]}).value
    span = healthy - random
    if span <= 0:
        return {arm: Estimate(0.0, 0.0, 0.0) for arm in returns}
    return {
        arm: pooled({arm: [(value - random) / span for value in values]})
        for arm, values in returns.items()
    }


def judge(scores: Mapping[str, Estimate]) -> str:
    """The verdict, by the rule at the top of this file."""
    healthy, fault, cure = (scores[arm] for arm in ("healthy", "fault", "cure"))
    if healthy.value <= 0:
        return "undecided: the healthy arm learnt nothing"
    if not (fault.value < FALLEN and fault.high < healthy.low):
        return "does not reproduce"
    return "reproduces and is cured" if cure.value >= CURED else "reproduces, not cured"


def _sentence(
    name: str,
    verdict: str,
    scores: Mapping[str, Estimate],
    collapses: Mapping[str, int],
    lead: float | None,
    seeds: int,
) -> str:
    fault, cure = scores["fault"], scores["cure"]
    text = (
        f"{name}: the failure {verdict}."
        if not verdict.startswith("und")
        else f"{name}: {verdict}."
    )
    text += f" With the fault the score is {fault} of healthy, with the cure {cure}, {seeds} seeds."
    if collapses["fault"]:
        text += f" {collapses['fault']} of the fault's runs collapsed"
        text += f", {lead:.0f} rounds after the first alarm (median)." if lead is not None else "."
    return text


def write(scenario: ScenarioConfig, conclusion: Conclusion, place: Path) -> None:
    """Write results.csv (a row per run), conclusion.json and the page."""
    from rl_twoclocks.lab_page import page

    runs = read(scenario, place)
    with open(place / "results.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["arm", "seed", "return", "collapse_round", "alarm_round", "alarms", "command"]
        )
        for one in runs:
            words = words_of(scenario, conclusion.budget, one.arm, one.seed)
            command = " ".join(["python -m rl_twoclocks.train", *words])
            row = [one.arm, one.seed, round(one.value, 2), one.collapse, one.alarm]
            writer.writerow([*row, " ".join(one.alarms), command])
    shown = asdict(conclusion) | {"scores": {k: list(v) for k, v in conclusion.scores.items()}}
    (place / "conclusion.json").write_text(json.dumps(shown, indent=2) + "\n")
    (place / "index.html").write_text(page(scenario, conclusion, runs))
