"""The page of one scenario: one self-contained HTML file, in the report's style."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from rl_twoclocks.aggregate import interquartile_mean
from rl_twoclocks.reporting.charts import chart
from rl_twoclocks.reporting.figures import Figure, Line
from rl_twoclocks.reporting.page import Section, document
from rl_twoclocks.reporting.runs import Series
from rl_twoclocks.reporting.statistics import bootstrap_interval
from rl_twoclocks.reporting.tables import table

if TYPE_CHECKING:
    from rl_twoclocks.config_commands import ScenarioConfig
    from rl_twoclocks.scenario import Run
    from rl_twoclocks.verdict import Conclusion

RULES = """The failure reproduces if the fault's interquartile mean lies below 0.6 of healthy and the
intervals do not touch; the cure cures from 0.9 on, with an interval above the fault's and above 0.6.
Judged by collapses, more runs of the fault than of the healthy arm, and fewer of the cure than of the
fault, have to collapse. A collapse is a fall by more than half, for three evaluations in a row, from at
least 0.3 of what the healthy arm gains. A run that diverged scores 0, and none scores less. A warning is
an alarm that no healthy run raised and that does not only read what the scenario set. A further claim
holds if the interval of the difference between its two arms does not reach 0."""


def page(scenario: ScenarioConfig, conclusion: Conclusion, runs: Sequence[Run]) -> str:
    """Conclusion first, then curves, the table of arms, further claims, and how it was made."""
    said = (
        f'<p class="verdict">{escape(conclusion.text)}</p>'
        f"<p>The claim: {escape(scenario.claim)}.</p>"
    )
    parts: list[Section] = [
        ("verdict", "Conclusion", said),
        ("charts", "Curves", "".join(map(chart, figures(scenario, runs)))),
        ("arms", "Arms", _table("Arms", arms(scenario, conclusion, runs))),
    ]
    if conclusion.claims:
        told = _table("Further claims", claims(conclusion))
        parts.append(("claims", "Further claims", told))
    parts.append(("made", "How it was made", _made(scenario, conclusion)))
    return document(scenario.question, parts, kind="lab")


def arms(scenario: ScenarioConfig, conclusion: Conclusion, runs: Sequence[Run]) -> list[list[str]]:
    """What every arm came to: a row of column names, then a row per arm."""
    rows = [["arm", "score, 95 % interval", "collapsed", *scenario.shown, "alarms (warn or worse)"]]
    for arm, score in conclusion.scores.items():
        mine = [r for r in runs if r.arm == arm]
        falls = [r.fall for r in mine if r.fall is not None]
        when = f", at {median(falls):,.0f} frames (median)" if falls else ""
        cells = [arm, f"{score} of {scenario.baselines.get(arm, 'healthy')}"]
        cells.append(f"{conclusion.collapses[arm]} of {len(mine)}{when}")
        for name in scenario.shown:
            found = [r.shown[name] for r in mine if name in r.shown]
            cells.append(f"{median(found):.3g}" if found else "-")
        cells.append(", ".join(sorted({name for r in mine for name in r.alarms})))
        rows.append(cells)
    return rows


def claims(conclusion: Conclusion) -> list[list[str]]:
    """The further claims: a row of column names, then a row per claim."""
    rows = [[c.claim, c.verdict, c.lower, c.higher, c.difference] for c in conclusion.claims]
    return [["claim", "verdict", "said to be lower", "than", "difference, 95 % interval"], *rows]


def _table(title: str, rows: list[list[str]]) -> str:
    heads, *body = rows
    return table(title, heads, [[escape(cell) for cell in row] for row in body])


def _made(scenario: ScenarioConfig, conclusion: Conclusion) -> str:
    items = "".join(
        f"<li><b>{escape(arm)}</b> <code>{escape(' '.join([*scenario.base, *words]))}</code></li>"
        for arm, words in {**scenario.arms, **scenario.controls}.items()
    )
    return f"""<p>{conclusion.seeds} seeds, budget {escape(conclusion.budget)}; every run's command is in
results.csv.</p><ul>{items}</ul>
<p>Rule, written down before the runs: {escape(scenario.rule)} {RULES}</p>"""


def figures(scenario: ScenarioConfig, runs: Sequence[Run]) -> list[Figure]:
    """The curves: of the arms that count with their seeds, then of the controls that were run."""
    how = (
        "Interquartile mean over seeds. A run that diverged goes on at a random policy's reading, "
        f"{scenario.random:g}."
    )
    lines = _lines(scenario, runs, list(scenario.arms), with_seeds=True)
    missing = "" if lines else "No run has been evaluated yet."
    title, unit = "Healthy, fault and cure", scenario.reading
    found = [Figure("curves", title, unit, how, lines, (), missing=missing)]
    if controls := [arm for arm in scenario.controls if any(run.arm == arm for run in runs)]:
        further = _lines(scenario, runs, ["healthy", *controls], with_seeds=False)
        found.append(Figure("further-arms", "Further arms", unit, how, further, ()))
    return found


def _lines(
    scenario: ScenarioConfig, runs: Sequence[Run], arms: Sequence[str], with_seeds: bool
) -> tuple[Line, ...]:
    lines = []
    for colour, arm in enumerate(arms):
        mine = [r for r in runs if r.arm == arm]
        shared, values = shared_curve(scenario, mine)
        if not shared.size:
            continue
        # Seeds and intervals of many arms would hide the lines.
        whole = with_seeds and len(mine) > 1
        low, high = bootstrap_interval(values) if whole else (None, None)
        centre = Series(shared, interquartile_mean(values.T))
        lines.append(Line(arm, centre, colour, low=low, high=high))
        for run in (r for r in mine if whole and r.curve):
            seed = Series(*np.array(run.curve, dtype=float).T)
            lines.append(Line(f"{arm}, seed {run.seed}", seed, colour, thin=True))
    return tuple(lines)


def shared_curve(scenario: ScenarioConfig, runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Frames [n] and every run's evaluations [runs, n], as far as all runs came.

    A mean over fewer would jump. A run that diverged goes on at a random policy's reading, which is what
    it scores. Evaluation by evaluation, for frames that were dropped shift them.
    """
    whole = [len(r.curve) for r in runs if not r.diverged]
    count = min(whole) if whole else max((len(r.curve) for r in runs), default=0)
    if not count:
        return np.zeros(0), np.zeros((len(runs), 0))
    values = np.full((len(runs), count), scenario.random)
    for row, run in zip(values, runs, strict=True):
        found = [value for _, value in run.curve[:count]]
        row[: len(found)] = found
    longest = [r.curve[:count] for r in runs if len(r.curve) >= count]
    return np.array([[frame for frame, _ in curve] for curve in longest]).mean(0), values
