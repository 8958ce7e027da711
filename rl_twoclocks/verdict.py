"""The rules by which scenarios of the lab are judged; the same for all, and older than any result.

A run's score is (reading of its last evaluation - random) / (interquartile mean of the healthy arm -
random); an arm of another task has a healthy arm of its own. A run that diverges scores 0. The failure
*reproduces* if the fault's interquartile mean lies below 0.6 and the intervals of fault and healthy do
not touch, and it does *not* if the fault's whole interval lies above 0.6; else nothing is shown. The
cure *cures* if its interquartile mean is at least 0.9 and its interval lies above the fault's. With
fewer than five seeds, or a healthy arm whose interval reaches down to random, nothing is decided.
Intervals are 95 % bootstrap intervals over seeds (of ten seeds they cover some 91 %, of five 88 %); of
shares of runs, Wilson's.

A collapse is three evaluations in a row below half of the best score (`diagnostics.cliff`), or a number
that is not finite; the lead is the number of rounds from a faulty run's first alarm of at least warn,
among those that no healthy run raised, to its collapse.

A further claim, that one arm lies lower than another, *holds* if their intervals lie apart that way
round, does *not hold* if they lie apart the other way round, and is *not shown* where they overlap. Of
arms with healthy arms of their own the interval of the difference counts, drawn with both of those. The
time of a fall is restricted to the shorter budget of the two arms: what stood until then counts as
fallen there.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rl_twoclocks.aggregate import Estimate, combined, pooled
from rl_twoclocks.config import ConfigError
from rl_twoclocks.config_commands import ClaimConfig, ScenarioConfig
from rl_twoclocks.scenario import Run, every_arm

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
    """reproduces and is cured | reproduces, not cured | reproduces, cure not shown |
    does not reproduce | not shown: why | undecided: why."""
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
    led = leads(by_arm["fault"], by_arm["healthy"])
    lead = statistics.median(led) if led else None
    text = _sentence(name, verdict, scores, by_arm, seeds)
    claims = [tell(scenario, claim, by_arm) for claim in scenario.claims]
    return Conclusion(name, budget, verdict, text, scores, lead, collapses, claims, seeds)


def leads(runs: Sequence[Run], healthy: Sequence[Run]) -> list[int]:
    """Rounds from the first alarm that no healthy run raised to the collapse, of the runs with both."""
    usual = {name for run in healthy for name in run.alarms}
    found = []
    for run in runs:
        alarm = min((n for name, n in run.alarms.items() if name not in usual), default=None)
        # An alarm that comes after the fall leads nothing.
        if alarm is not None and run.collapse is not None and alarm <= run.collapse:
            found.append(run.collapse - alarm)
    return found


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
    """Scores of an arm's runs, relative to its healthy arm; None where that one learnt nothing.

    Where the scenario's own healthy arm learnt nothing all are 0, and nothing is decided.
    """
    healthy = scenario.baselines.get(arm, "healthy")
    if healthy not in by_arm:
        return None
    found = pooled({healthy: [r.value for r in by_arm[healthy]]})
    if found.low <= scenario.random and healthy != "healthy":
        return None
    span = found.value - scenario.random
    return [(r.value - scenario.random) / span if span > 0 else 0.0 for r in by_arm[arm]]


def judge(scores: Mapping[str, Estimate]) -> str:
    """The verdict about fault and cure."""
    healthy, fault, cure = (scores[arm] for arm in ("healthy", "fault", "cure"))
    if healthy.low <= 0:
        return "undecided: the healthy arm learnt nothing"
    if fault.low >= FALLEN:
        return "does not reproduce"
    if not (fault.value < FALLEN and fault.high < healthy.low):
        return "not shown: the intervals are too wide"
    if cure.value < CURED:
        return "reproduces, not cured"
    return "reproduces and is cured" if cure.low > fault.high else "reproduces, cure not shown"


def tell(
    scenario: ScenarioConfig, claim: ClaimConfig, by_arm: Mapping[str, Sequence[Run]]
) -> Judged:
    """Judge a further claim."""
    arms = (claim.lower, claim.higher)
    horizon = min((r.frames for arm in arms for r in by_arm.get(arm, [])), default=0)
    sides = [_measure(scenario, claim.of, by_arm, arm, horizon) for arm in arms]
    said = [
        f"{arm} {found if found is not None else f'{count} runs'}"
        for arm, (found, count) in zip(arms, sides, strict=True)
    ]
    (lower, _), (higher, _) = sides
    if lower is None or higher is None:
        verdict = f"undecided: fewer than {ENOUGH} runs to go by"
        return Judged(claim.claim, said[0], said[1], verdict)
    gap = _gap(scenario, claim, by_arm)
    below, above = (
        (lower.high < higher.low, higher.high < lower.low)
        if gap is None
        else (gap.high < 0, gap.low > 0)
    )
    verdict = "not shown: the difference may be nothing"
    if below or above:
        verdict = "holds" if below else "does not hold: it is the other way round"
    return Judged(claim.claim, said[0], said[1], verdict)


def _gap(
    scenario: ScenarioConfig, claim: ClaimConfig, by_arm: Mapping[str, Sequence[Run]]
) -> Estimate | None:
    """Score of one arm minus that of the other, where each is relative to a healthy arm of its own."""
    arms = (claim.lower, claim.higher)
    baselines = [scenario.baselines.get(arm, "healthy") for arm in arms]
    if claim.of != "score" or len(set(baselines)) == 1:
        return None
    if any(name not in by_arm for name in (*arms, *baselines)):
        return None
    gains = [[r.value - scenario.random for r in by_arm[name]] for name in (*arms, *baselines)]
    return combined(gains, lambda low, high, of_low, of_high: low / of_low - high / of_high)


def _measure(
    scenario: ScenarioConfig,
    what: str,
    by_arm: Mapping[str, Sequence[Run]],
    arm: str,
    horizon: int,
) -> tuple[Estimate | None, int]:
    """What a claim compares, with the number of runs behind it; None where they are too few.

    Falls after the horizon, which all runs of both arms reach, count as falls there: a run that has not
    fallen is no run without a fall, and leaving it out would make the sturdier arm fall earlier.
    """
    runs = by_arm.get(arm, [])
    if what == "collapses":
        fallen, count = sum(r.collapse is not None for r in runs), len(runs)
        return (wilson(fallen, count) if count >= ENOUGH else None), count
    if what == "fall":
        falls = [r.frames if r.fall is None else r.fall for r in runs]
        values: list[float] | None = [float(min(fall, horizon)) for fall in falls]
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
    by_arm: Mapping[str, Sequence[Run]],
    seeds: int,
) -> str:
    fault, cure = scores["fault"], scores["cure"]
    subject = "" if verdict.startswith(("undecided", "not shown")) else "the failure "
    text = f"{name}: {subject}{verdict}."
    text += f" With the fault the score is {fault} of healthy, with the cure {cure}, {seeds} seeds."
    fallen = sum(r.collapse is not None for r in by_arm["fault"])
    if not fallen:
        return text
    text += f" {fallen} of the fault's runs collapsed"
    if led := leads(by_arm["fault"], by_arm["healthy"]):
        text += f", {len(led)} of them {statistics.median(led):.0f} rounds (median)"
        text += " after an alarm that no healthy run raised"
    return text + "."


def write(
    scenario: ScenarioConfig, conclusion: Conclusion, runs: Sequence[Run], place: Path
) -> None:
    """Write conclusion.json and the page."""
    from rl_twoclocks.lab_page import page

    shown = asdict(conclusion) | {"scores": {k: list(v) for k, v in conclusion.scores.items()}}
    (place / "conclusion.json").write_text(json.dumps(shown, indent=2) + "\n")
    (place / "index.html").write_text(page(scenario, conclusion, runs))
