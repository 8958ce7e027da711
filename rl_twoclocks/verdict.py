"""The rules by which scenarios of the lab are judged; the same for all, and older than any result.

A run's score is (reading of its last evaluation - random) / (interquartile mean of the healthy arm -
random); an arm of another task has a healthy arm of its own. The failure *reproduces* if the fault's
interquartile mean lies below 0.6 and the intervals of fault and healthy do not touch. The cure *cures*
if its interquartile mean is at least 0.9. With fewer than five seeds nothing is decided. Intervals are
95 % bootstrap intervals over seeds; of shares of runs, Wilson's.

A collapse is three evaluations in a row below half of the best score (`diagnostics.cliff`); the lead is
the number of rounds from a faulty run's first alarm of at least warn to its collapse.

A further claim, that one arm lies lower than another, *holds* if their intervals lie apart that way
round, does *not hold* if they lie apart the other way round, and is *not shown* where they overlap.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rl_twoclocks.aggregate import Estimate, pooled
from rl_twoclocks.config import ConfigError
from rl_twoclocks.config_commands import ClaimConfig, ScenarioConfig
from rl_twoclocks.scenario import Run, every_arm, write_results

FALLEN, CURED = 0.6, 0.9
ENOUGH = 5
"""Runs below which nothing is decided."""


@dataclass(frozen=True)
class Judged:
    """A further claim, with what both arms came to."""

    claim: str
    lower: str
    higher: str
    verdict: str


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
    claims: list[Judged]
    seeds: int
    """Of the arm that has the fewest among healthy, fault and cure."""


def conclude(scenario: ScenarioConfig, name: str, budget: str, runs: Sequence[Run]) -> Conclusion:
    """Judge finished runs by the rules.

    Raises:
        ConfigError: one of the three arms has no finished run.
    """
    by_arm = {
        arm: found for arm in every_arm(scenario) if (found := [r for r in runs if r.arm == arm])
    }
    if lacking := [arm for arm in scenario.arms if arm not in by_arm]:
        raise ConfigError(f"{name} has no finished run of {', '.join(lacking)}")
    scores = scores_of(scenario, by_arm)
    collapses = {arm: sum(r.collapse is not None for r in found) for arm, found in by_arm.items()}
    seeds = min(len(by_arm[arm]) for arm in scenario.arms)
    verdict = judge(scores) if seeds >= ENOUGH else f"undecided: {seeds} seeds prove nothing"
    led = leads(by_arm["fault"])
    lead = statistics.median(led) if led else None
    text = _sentence(name, verdict, scores, collapses, lead, seeds)
    claims = [tell(scenario, claim, by_arm) for claim in scenario.claims]
    return Conclusion(name, budget, verdict, text, scores, lead, collapses, claims, seeds)


def leads(runs: Sequence[Run]) -> list[int]:
    """Rounds from the first alarm to the collapse, of the runs that have both."""
    # An alarm that comes after the fall leads nothing.
    pairs = [(r.alarm, r.collapse) for r in runs if r.alarm is not None and r.collapse is not None]
    return [collapse - alarm for alarm, collapse in pairs if alarm <= collapse]


def scores_of(scenario: ScenarioConfig, by_arm: Mapping[str, Sequence[Run]]) -> dict[str, Estimate]:
    """Scores by arm; an arm whose healthy one has no run is left out."""
    return {
        arm: pooled({arm: found})
        for arm in by_arm
        if (found := relative(scenario, by_arm, arm)) is not None
    }


def relative(
    scenario: ScenarioConfig, by_arm: Mapping[str, Sequence[Run]], arm: str
) -> list[float] | None:
    """Scores of an arm's runs, relative to its healthy arm; 0 where that one learnt nothing."""
    healthy = scenario.baselines.get(arm, "healthy")
    if healthy not in by_arm:
        return None
    span = pooled({healthy: [r.value for r in by_arm[healthy]]}).value - scenario.random
    return [(r.value - scenario.random) / span if span > 0 else 0.0 for r in by_arm[arm]]


def judge(scores: Mapping[str, Estimate]) -> str:
    """The verdict about fault and cure."""
    healthy, fault, cure = (scores[arm] for arm in ("healthy", "fault", "cure"))
    if healthy.value <= 0:
        return "undecided: the healthy arm learnt nothing"
    if not (fault.value < FALLEN and fault.high < healthy.low):
        return "does not reproduce"
    return "reproduces and is cured" if cure.value >= CURED else "reproduces, not cured"


def tell(
    scenario: ScenarioConfig, claim: ClaimConfig, by_arm: Mapping[str, Sequence[Run]]
) -> Judged:
    """Judge a further claim."""
    sides = [_measure(scenario, claim.of, by_arm, arm) for arm in (claim.lower, claim.higher)]
    said = [
        f"{arm} {found if found is not None else f'{count} runs'}"
        for arm, (found, count) in zip((claim.lower, claim.higher), sides, strict=True)
    ]
    (lower, _), (higher, _) = sides
    if lower is None or higher is None:
        verdict = f"undecided: fewer than {ENOUGH} runs to go by"
    elif lower.high < higher.low:
        verdict = "holds"
    elif higher.high < lower.low:
        verdict = "does not hold: it is the other way round"
    else:
        verdict = "not shown: the intervals overlap"
    return Judged(claim.claim, said[0], said[1], verdict)


def _measure(
    scenario: ScenarioConfig, what: str, by_arm: Mapping[str, Sequence[Run]], arm: str
) -> tuple[Estimate | None, int]:
    """What a claim compares, with the number of runs behind it; None where they are too few."""
    runs = by_arm.get(arm, [])
    if what == "collapses":
        fallen, count = sum(r.collapse is not None for r in runs), len(runs)
        return (wilson(fallen, count) if count >= ENOUGH else None), count
    if what == "fall":
        values: list[float] | None = [float(r.fall) for r in runs if r.fall is not None]
    else:
        values = relative(scenario, by_arm, arm) if runs else None
    count = len(values or [])
    return (pooled({arm: values}), count) if values and count >= ENOUGH else (None, count)


def wilson(count: int, n: int) -> Estimate:
    """A share `count` of `n` with Wilson's 95 % interval (Wilson 1927)."""
    z = 1.959964
    share = count / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Estimate(share, max(centre - half, 0.0), min(centre + half, 1.0))


def _sentence(
    name: str,
    verdict: str,
    scores: Mapping[str, Estimate],
    collapses: Mapping[str, int],
    lead: float | None,
    seeds: int,
) -> str:
    fault, cure = scores["fault"], scores["cure"]
    subject = "" if verdict.startswith("undecided") else "the failure "
    text = f"{name}: {subject}{verdict}."
    text += f" With the fault the score is {fault} of healthy, with the cure {cure}, {seeds} seeds."
    if collapses["fault"]:
        text += f" {collapses['fault']} of the fault's runs collapsed"
        text += f", {lead:.0f} rounds after the first alarm (median)." if lead is not None else "."
    return text


def write(
    scenario: ScenarioConfig, conclusion: Conclusion, runs: Sequence[Run], place: Path
) -> None:
    """Write results.csv (a row per run), conclusion.json and the page."""
    from rl_twoclocks.lab_page import page

    write_results(scenario, conclusion.budget, runs, place / "results.csv")
    shown = asdict(conclusion) | {"scores": {k: list(v) for k, v in conclusion.scores.items()}}
    (place / "conclusion.json").write_text(json.dumps(shown, indent=2) + "\n")
    (place / "index.html").write_text(page(scenario, conclusion, runs))
