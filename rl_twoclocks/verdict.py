"""The rules by which scenarios of the lab are judged; the same for all, and older than any result.

A run's score is (reading of its last evaluation - random) / (interquartile mean of the healthy arm -
random), and not less than 0: to be stuck is no worse than to diverge. An arm of another task has a
healthy arm of its own. A run that diverges scores 0. The failure *reproduces* if the fault's
interquartile mean lies below 0.6 and the intervals of fault and healthy do not touch, and it does *not*
if the fault's whole interval lies above 0.6; else nothing is shown. The cure *cures* if its
interquartile mean is at least 0.9 and its interval lies above the fault's and above 0.6, and it does
*not* if its whole interval lies below 0.9; else it is not shown. Where a scenario is judged by
collapses, for a failure of some runs only, which an interquartile mean leaves out: the failure
reproduces if more runs of the fault collapse than of the healthy arm, and the cure cures if fewer of its
runs do than of the fault's, each as of a further claim. With fewer than five seeds, or fewer than the
budget has, or a healthy arm whose interval reaches down to a random policy or to one that stands still
(`idle`), nothing is decided, of fault, cure and further claims. Intervals are 95 % bootstrap intervals
over seeds (of ten seeds they cover some 91 %, of five 88 %), of scores with the seeds of the healthy arm
drawn too; of one share of runs, Wilson's. Claims are judged one by one: where none were true, some 4 in
100 would be told to hold.

A collapse is three evaluations in a row below half of the best score that two in a row have held, from a
height of at least 0.3 of what the healthy arm gains (`diagnostics.cliff.fallen_from`), or a number that
is not finite. The lead is the number of rounds from a faulty run's first warning to the last evaluation
before its collapse, of the collapsed runs that had one no later. A warning is an alarm of at least warn
that no healthy run raised, and that neither reads off the clocks what the scenario set (`SETTINGS`) nor
tells the fall itself (`FALLS`).

A further claim, that one arm lies lower than another, *holds* if the interval of the difference lies
below 0. It does *not hold* if the interval lies above 0, or if it leaves no difference that matters:
none of 0.1 in score, of a tenth of the time, or of three runs in ten. Else it is *not shown*. Scores of
arms with healthy arms of their own are drawn with both of those; of shares of runs the interval is
Newcombe's. The time of a fall is restricted to the shorter budget of the two arms: what stood until
then counts as fallen there.
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
SETTINGS = ("policy_lag", "publish_lag", "worker_version", "clock_ratio")
"""Alarms that read the clocks: under a planted lag or ratio they say what was planted."""
FALLS = ("reward_cliff", "collapse")
"""Alarms that tell a fall once it is there."""
MARGINS = {"score": 0.1, "fall": 0.1, "collapses": 0.3}
"""Differences that matter, by what is compared: of scores, of the time, of shares of runs."""


@dataclass(frozen=True)
class Judged:
    """A further claim, with what both arms came to."""

    claim: str
    lower: str
    higher: str
    difference: str
    """Lower minus higher, with its interval; nothing where nothing is decided."""
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
    collapses = {arm: _collapses(found) for arm, found in by_arm.items()}
    seeds = min(len(by_arm[arm]) for arm in scenario.arms)
    asked = scenario.budgets[budget].seeds
    if seeds < ENOUGH:
        verdict = f"undecided: {seeds} seeds prove nothing"
    elif seeds < asked:
        verdict = f"undecided: {seeds} of {asked} seeds so far"
    elif not learnt(scenario, by_arm, "healthy"):
        verdict = "undecided: the healthy arm learnt nothing"
    elif scenario.judged_by == "collapses":
        verdict = judge_collapses(by_arm)
    else:
        verdict = judge(scores)
    led = leads(by_arm["fault"], by_arm["healthy"])
    lead = statistics.median(led) if led else None
    text = _sentence(name, verdict, scores, by_arm, seeds, led)
    if missing := [arm for arm in scenario.controls if arm not in by_arm]:
        text += f" Not run yet: {', '.join(missing)}."
    claims = [tell(scenario, claim, by_arm, asked) for claim in scenario.claims]
    return Conclusion(name, budget, verdict, text, scores, lead, collapses, claims, seeds)


def warned(run: Run, healthy: Sequence[Run]) -> int | None:
    """Round of a run's first warning, if it has any."""
    usual = {name for other in healthy for name in other.alarms} | {*SETTINGS, *FALLS}
    return min((n for name, n in run.alarms.items() if name not in usual), default=None)


def leads(runs: Sequence[Run], healthy: Sequence[Run]) -> list[int]:
    """Rounds from the first warning to the last evaluation before the fall, of the runs with both."""
    pairs = [(warned(run, healthy), run.stood) for run in runs]
    # A warning that comes when the fall may have begun leads nothing.
    return [
        stood - first
        for first, stood in pairs
        if first is not None and stood is not None and first <= stood
    ]


def scores_of(scenario: ScenarioConfig, by_arm: Mapping[str, Sequence[Run]]) -> dict[str, Estimate]:
    """Scores by arm; an arm whose healthy one has no run, or learnt nothing, is left out.

    The intervals of arms that are no healthy one hold what the healthy arm's seeds leave open.
    """
    scores = {arm: score_of(scenario, by_arm, arm) for arm in by_arm}
    return {arm: score for arm, score in scores.items() if score is not None}


def score_of(
    scenario: ScenarioConfig, by_arm: Mapping[str, Sequence[Run]], arm: str
) -> Estimate | None:
    """The score of one arm; None where its healthy one has no run, or learnt nothing."""
    found, healthy = relative(scenario, by_arm, arm), scenario.baselines.get(arm, "healthy")
    if found is None:
        return None
    if arm == healthy or not learnt(scenario, by_arm, healthy):
        return pooled({arm: found})
    gains = [_gains(scenario, by_arm[name]) for name in (arm, healthy)]
    return combined(gains, lambda mine, theirs: mine / theirs)


def learnt(scenario: ScenarioConfig, by_arm: Mapping[str, Sequence[Run]], healthy: str) -> bool:
    """Whether a healthy arm's interval lies above a random policy, and one that stands still."""
    runs, nothing = by_arm.get(healthy, []), scenario.random
    if scenario.idle is not None:
        nothing = max(nothing, scenario.idle)
    return bool(runs) and pooled({healthy: [r.value for r in runs]}).low > nothing


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
    span = _span(scenario, by_arm[healthy])
    return [gain / span if span > 0 else 0.0 for gain in _gains(scenario, by_arm[arm])]


def _gains(scenario: ScenarioConfig, runs: Sequence[Run]) -> list[float]:
    """What runs gained over a random policy; a run that lost has gained nothing."""
    return [max(run.value - scenario.random, 0.0) for run in runs]


def _span(scenario: ScenarioConfig, healthy: Sequence[Run]) -> float:
    """What score 1 stands for."""
    return float(interquartile_mean(np.array(_gains(scenario, healthy))))


def judge(scores: Mapping[str, Estimate]) -> str:
    """The verdict about fault and cure."""
    healthy, fault, cure = (scores[arm] for arm in ("healthy", "fault", "cure"))
    if fault.low >= FALLEN:
        return "does not reproduce"
    if not (fault.value < FALLEN and fault.high < healthy.low):
        return "not shown: the intervals are too wide"
    if cure.high < CURED:
        return "reproduces, not cured"
    cured = cure.value >= CURED and cure.low > max(fault.high, FALLEN)
    return "reproduces and is cured" if cured else "reproduces, cure not shown"


def judge_collapses(by_arm: Mapping[str, Sequence[Run]]) -> str:
    """The verdict about fault and cure, by the shares of their runs that collapsed."""
    fallen = {arm: (_collapses(runs), len(runs)) for arm, runs in by_arm.items()}
    more = newcombe(*fallen["healthy"], *fallen["fault"])
    if more.high >= 0:
        nothing = more.low > -MARGINS["collapses"]
        return "does not reproduce" if nothing else "not shown: the intervals are too wide"
    fewer = newcombe(*fallen["cure"], *fallen["fault"])
    if fewer.high < 0:
        return "reproduces and is cured"
    return "reproduces, not cured" if fewer.low > 0 else "reproduces, cure not shown"


def _collapses(runs: Sequence[Run]) -> int:
    return sum(run.collapse is not None for run in runs)


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
    baselines = {scenario.baselines.get(arm, "healthy") for arm in arms}
    fewest = min(len(by_arm.get(arm, [])) for arm in {*arms, *baselines})
    why = None
    if fewest < ENOUGH:
        why = f"fewer than {ENOUGH} runs to go by"
    elif fewest < asked:
        why = f"{fewest} of {asked} seeds so far"
    elif not all(learnt(scenario, by_arm, healthy) for healthy in baselines):
        why = "a healthy arm learnt nothing"
    if why or lower is None or higher is None:
        return Judged(claim.claim, said[0], said[1], "", f"undecided: {why}")
    gap = _gap(scenario, claim, by_arm, horizon)
    verdict = "not shown: the difference may be nothing"
    if gap.high < 0 or gap.low > 0:
        verdict = "holds" if gap.high < 0 else "does not hold: it is the other way round"
    elif gap.low > -MARGINS[claim.of]:
        verdict = "does not hold: there is no difference that matters"
    return Judged(claim.claim, said[0], said[1], str(gap), verdict)


def _gap(
    scenario: ScenarioConfig, claim: ClaimConfig, by_arm: Mapping[str, Sequence[Run]], horizon: int
) -> Estimate:
    """What one arm came to minus what the other did, in the units of `MARGINS`."""
    arms = (claim.lower, claim.higher)
    if claim.of == "collapses":
        low, high = ((_collapses(by_arm[arm]), len(by_arm[arm])) for arm in arms)
        return newcombe(*low, *high)
    if claim.of == "fall":
        times = [[fall / horizon for fall in _falls(by_arm[arm], horizon)] for arm in arms]
        return combined(times, lambda low, high: low - high)
    baselines = [scenario.baselines.get(arm, "healthy") for arm in arms]
    if len(set(baselines)) == 1:
        # In one task the sign of the difference does not hang on what the healthy arm came to.
        span = _span(scenario, by_arm[baselines[0]])
        gains = [_gains(scenario, by_arm[arm]) for arm in arms]
        return combined(gains, lambda low, high: (low - high) / span)
    gains = [_gains(scenario, by_arm[name]) for name in (*arms, *baselines)]
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
        fallen, count = _collapses(runs), len(runs)
        return (wilson(fallen, count) if count >= ENOUGH else None), count
    if what == "fall":
        found = pooled({arm: _falls(runs, horizon)}) if runs else None
    else:
        found = score_of(scenario, by_arm, arm) if runs else None
    return (found if len(runs) >= ENOUGH else None), len(runs)


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
    led: Sequence[int],
) -> str:
    fault, cure = scores["fault"], scores["cure"]
    subject = "" if verdict.startswith(("undecided", "not shown")) else "the failure "
    text = f"{name}: {subject}{verdict}."
    text += f" With the fault the score is {fault} of healthy, with the cure {cure}, "
    text += f"{seeds} seed{'' if seeds == 1 else 's'}."
    shares = [
        f"{arm} {_collapses(by_arm[arm])} of {len(by_arm[arm])}"
        for arm in ("fault", "cure", "healthy")
    ]
    text += f" Runs that collapsed: {', '.join(shares)}."
    if verdict.startswith("reproduces") and not _collapses(by_arm["fault"]):
        text += " The fault learns less, it does not fall."
    if led:
        text += f" {len(led)} of the faulty ones had a warning before, a median of"
        text += f" {statistics.median(led):.0f} rounds before the last good evaluation."
    stood = [r for r in by_arm["fault"] if r.collapse is None]
    false = sum(warned(r, by_arm["healthy"]) is not None for r in stood)
    if led and stood:
        text += f" So had {false} of the {len(stood)} that stood."
    return text


def write(
    scenario: ScenarioConfig, conclusion: Conclusion, runs: Sequence[Run], place: Path
) -> None:
    """Write conclusion.json, the page, and its curves as pictures."""
    from rl_twoclocks.lab_page import figures, page
    from rl_twoclocks.reporting.png import draw

    shown = asdict(conclusion) | {"scores": {k: list(v) for k, v in conclusion.scores.items()}}
    (place / "conclusion.json").write_text(json.dumps(shown, indent=2) + "\n")
    (place / "index.html").write_text(page(scenario, conclusion, runs))
    for figure in figures(scenario, runs):
        if figure.lines:
            draw(figure, place)
