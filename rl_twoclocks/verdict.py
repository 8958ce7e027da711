"""The rules by which scenarios of the lab are judged; the same for all, and older than any result.

A run's score is (reading of its last evaluation - random) / (interquartile mean of the healthy arm -
random); an arm of another task has a healthy arm of its own. A run that diverges scores 0. The failure
*reproduces* if the fault's interquartile mean lies below 0.6 and the intervals of fault and healthy do
not touch, and it does *not* if the fault's whole interval lies above 0.6; else nothing is shown. The
cure *cures* if its interquartile mean is at least 0.9 and its interval lies above the fault's and above
0.6, and it does *not* if its whole interval lies below 0.9; else it is not shown. With fewer than five
seeds, or fewer than the budget has, or a healthy arm whose interval reaches down to random, nothing is
decided, of fault, cure and further claims. Intervals are 95 % bootstrap intervals over seeds (of ten
seeds they cover some 91 %, of five 88 %), of scores with the seeds of the healthy arm drawn too; of one
share of runs, Wilson's. Claims are judged one by one: where none were true, some 4 in 100 would be told
to hold or not to.

A collapse is three evaluations in a row below half of the best score that two in a row have held, from a
height of at least 0.3 of what the healthy arm gains (`diagnostics.cliff.fallen_from`), or a number that
is not finite. The lead is the number of rounds from a faulty run's first alarm of at least warn, among
those that no healthy run raised, to its collapse, of the collapsed runs that had one no later.

A further claim, that one arm lies lower than another, *holds* if the interval of the difference lies
below 0, does *not hold* if it lies above 0, and is *not shown* where it holds 0. Scores of arms with
healthy arms of their own are drawn with both of those; of shares of runs the interval is Newcombe's. The
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

import numpy as np

from rl_twoclocks.aggregate import Estimate, combined, interquartile_mean, pooled
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
    """Median rounds between the first alarm and the collapse, of the fault's runs with both."""
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
    verdict, asked = judge(scores), scenario.budgets[budget].seeds
    if seeds < ENOUGH:
        verdict = f"undecided: {seeds} seeds prove nothing"
    elif seeds < asked:
        verdict = f"undecided: {seeds} of {asked} seeds so far"
    led = leads(by_arm["fault"], by_arm["healthy"])
    lead = statistics.median(led) if led else None
    text = _sentence(name, verdict, scores, by_arm, seeds)
    claims = [tell(scenario, claim, by_arm, asked) for claim in scenario.claims]
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
    """Scores by arm; an arm whose healthy one has no run, or learnt nothing, is left out.

    The intervals of arms that are no healthy one hold what the healthy arm's seeds leave open.
    """
    scores = {}
    for arm in by_arm:
        found, healthy = relative(scenario, by_arm, arm), scenario.baselines.get(arm, "healthy")
        if found is None:
            continue
        if arm == healthy or not learnt(scenario, by_arm, healthy):
            scores[arm] = pooled({arm: found})
            continue
        gains = [[r.value - scenario.random for r in by_arm[name]] for name in (arm, healthy)]
        scores[arm] = combined(gains, lambda mine, theirs: mine / theirs)
    return scores


def learnt(scenario: ScenarioConfig, by_arm: Mapping[str, Sequence[Run]], healthy: str) -> bool:
    """Whether a healthy arm's interval lies above a random policy."""
    runs = by_arm.get(healthy, [])
    return bool(runs) and pooled({healthy: [r.value for r in runs]}).low > scenario.random


def relative(
    scenario: ScenarioConfig, by_arm: Mapping[str, Sequence[Run]], arm: str
) -> list[float] | None:
    """Scores of an arm's runs, relative to its healthy arm; None where that one learnt nothing.

    Where the scenario's own healthy arm learnt nothing all are 0, and nothing is decided.
    """
    healthy = scenario.baselines.get(arm, "healthy")
    if healthy not in by_arm:
        return None
    if healthy != "healthy" and not learnt(scenario, by_arm, healthy):
        return None
    middle = float(interquartile_mean(np.array([r.value for r in by_arm[healthy]])))
    span = middle - scenario.random
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
    if cure.high < CURED:
        return "reproduces, not cured"
    cured = cure.value >= CURED and cure.low > max(fault.high, FALLEN)
    return "reproduces and is cured" if cured else "reproduces, cure not shown"


def tell(
    scenario: ScenarioConfig,
    claim: ClaimConfig,
    by_arm: Mapping[str, Sequence[Run]],
    asked: int = ENOUGH,
) -> Judged:
    """Judge a further claim, once both arms have as many runs as are asked for."""
    arms = (claim.lower, claim.higher)
    horizon = min((r.frames for arm in arms for r in by_arm.get(arm, [])), default=0)
    sides = [_measure(scenario, claim.of, by_arm, arm, horizon) for arm in arms]
    said = [
        f"{arm} {found if found is not None else f'{count} runs'}"
        for arm, (found, count) in zip(arms, sides, strict=True)
    ]
    (lower, _), (higher, _) = sides
    fewest = min(len(by_arm.get(arm, [])) for arm in arms)
    baselines = {scenario.baselines.get(arm, "healthy") for arm in arms}
    why = None
    if fewest < ENOUGH:
        why = f"fewer than {ENOUGH} runs to go by"
    elif fewest < asked:
        why = f"{fewest} of {asked} seeds so far"
    elif not all(learnt(scenario, by_arm, healthy) for healthy in baselines):
        why = "a healthy arm learnt nothing"
    if why or lower is None or higher is None:
        return Judged(claim.claim, said[0], said[1], f"undecided: {why}")
    gap = _gap(scenario, claim, by_arm, horizon)
    verdict = "not shown: the difference may be nothing"
    if gap.high < 0 or gap.low > 0:
        verdict = "holds" if gap.high < 0 else "does not hold: it is the other way round"
    return Judged(claim.claim, said[0], said[1], verdict)


def _gap(
    scenario: ScenarioConfig, claim: ClaimConfig, by_arm: Mapping[str, Sequence[Run]], horizon: int
) -> Estimate:
    """What one arm came to minus what the other did; of scores with one healthy arm, the readings."""
    arms = (claim.lower, claim.higher)
    if claim.of == "collapses":
        fallen = [sum(r.collapse is not None for r in by_arm[arm]) for arm in arms]
        return newcombe(fallen[0], len(by_arm[arms[0]]), fallen[1], len(by_arm[arms[1]]))
    if claim.of == "fall":
        times = [_falls(by_arm[arm], horizon) for arm in arms]
        return combined(times, lambda low, high: low - high)
    baselines = [scenario.baselines.get(arm, "healthy") for arm in arms]
    one = len(set(baselines)) == 1
    gains = [
        [r.value - scenario.random for r in by_arm[name]]
        for name in (arms if one else (*arms, *baselines))
    ]
    if one:
        return combined(gains, lambda low, high: low - high)
    return combined(gains, lambda low, high, of_low, of_high: low / of_low - high / of_high)


def _falls(runs: Sequence[Run], horizon: int) -> list[float]:
    return [float(min(r.frames if r.fall is None else r.fall, horizon)) for r in runs]


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
        values: list[float] | None = _falls(runs, horizon)
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


def newcombe(count: int, n: int, other: int, of: int) -> Estimate:
    """Share `count` of `n` minus share `other` of `of`, with Newcombe's 95 % interval (1998)."""
    a, b = wilson(count, n), wilson(other, of)
    gap = a.value - b.value
    low = gap - math.hypot(a.value - a.low, b.high - b.value)
    return Estimate(gap, low, gap + math.hypot(a.high - a.value, b.value - b.low))


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
