"""The page of one scenario: one self-contained HTML file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from rl_twoclocks.aggregate import pooled

if TYPE_CHECKING:
    from rl_twoclocks.config_commands import ScenarioConfig
    from rl_twoclocks.scenario import Run
    from rl_twoclocks.verdict import Conclusion

_STYLE = """
body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse}.t{overflow-x:auto}th{overflow-wrap:anywhere}td:nth-child(2){white-space:nowrap}
td,th{border:1px solid #bbb;padding:.25rem .6rem;text-align:right}th[scope=row]{font-weight:normal}
figure{margin:0}
td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto;background:#fff}
.c{font-size:1.15rem;border-left:.3rem solid #47698c;padding-left:.8rem}code{font-size:.85rem}
@media(prefers-color-scheme:dark){body{color:#eee;background:#161b20}td,th{border-color:#555}}
"""


def page(scenario: ScenarioConfig, conclusion: Conclusion, runs: Sequence[Run]) -> str:
    """Conclusion first, then curves, the table of arms, further claims, and how it was made."""
    rows = []
    for arm, score in conclusion.scores.items():
        mine = [r for r in runs if r.arm == arm]
        alarms = sorted({name for r in mine for name in r.alarms})
        falls = [r.fall for r in mine if r.fall is not None]
        when = f", at {median(falls):,.0f} frames (median)" if falls else ""
        cells = [arm, f"{score} of {scenario.baselines.get(arm, 'healthy')}"]
        cells.append(f"{conclusion.collapses[arm]} of {len(mine)}{when}")
        for name in scenario.shown:
            found = [r.shown[name] for r in mine if name in r.shown]
            cells.append(f"{median(found):.3g}" if found else "-")
        rows.append(_row([*cells, ", ".join(alarms)]))
    heads = ["arm", "score, 95 % interval", "collapsed", *scenario.shown, "alarms (warn or worse)"]
    claims = "".join(_row([c.claim, c.verdict, c.lower, c.higher]) for c in conclusion.claims)
    columns = ["claim", "verdict", "said to be lower", "than"]
    told = f"<h2>Further claims</h2>{_table('Further claims', columns, claims)}" if claims else ""
    arms = {**scenario.arms, **scenario.controls}
    made = "".join(
        f"<li><b>{escape(arm)}</b> <code>{escape(' '.join([*scenario.base, *words]))}</code></li>"
        for arm, words in arms.items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(conclusion.scenario)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(scenario.question)}</h1>
<p class="c">{escape(conclusion.text)}</p>
<p>The claim: {escape(scenario.claim)}.</p>
<figure role="img" aria-label="{escape(_alternative(scenario, runs))}">{_curves(scenario, runs)}
</figure><p>{escape(scenario.reading)}: interquartile mean over seeds
with its 95 % bootstrap interval, every seed as a thin line. A run that diverged goes on at a random
policy's reading, {scenario.random:g}.</p>
<h2>Arms</h2>
{_table("Arms", heads, "".join(rows))}
{told}
<h2>How it was made</h2>
<p>{conclusion.seeds} seeds, budget {conclusion.budget}; every run's command is in results.csv.</p>
<ul>{made}</ul>
<p>Rule, written down before the runs: {escape(scenario.rule)} The failure reproduces if the fault's
interquartile mean lies below 0.6 of healthy and the intervals do not touch; the cure cures from 0.9 on,
with an interval above the fault's and above 0.6. A collapse is a fall by more than half, for three
evaluations in a row, from at least 0.3 of what the healthy arm gains. A run that diverged scores 0. A
further claim holds if the interval of the difference between its two arms does not reach 0.</p>
</body></html>
"""


def _table(name: str, heads: Sequence[str], rows: str) -> str:
    first = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    region = f'<div class="t" role="region" aria-label="{escape(name)}" tabindex="0">'
    return f"{region}<table><tr>{first}</tr>{rows}</table></div>"


def _row(cells: Sequence[str]) -> str:
    first, *others = (escape(c) for c in cells)
    return f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{c}</td>" for c in others) + "</tr>"


def _alternative(scenario: ScenarioConfig, runs: Sequence[Run]) -> str:
    """The curves in words: where every arm begins, is best, and ends."""
    said = []
    for arm in _drawn(scenario):
        frames, found = _mean_curve(scenario, arm, runs)
        if len(found):
            top = int(found[:, 0].argmax())
            said.append(
                f"{arm}: first {found[0, 0]:.4g}, best {found[top, 0]:.4g} at {frames[top]:,.0f} "
                f"frames, last {found[-1, 0]:.4g} ({found[-1, 1]:.4g} to {found[-1, 2]:.4g})"
            )
    return f"{scenario.reading} over frames. " + "; ".join(said)


def _mean_curve(
    scenario: ScenarioConfig, arm: str, runs: Sequence[Run]
) -> tuple[np.ndarray, np.ndarray]:
    """Frames [n] and interquartile means with their intervals [n, 3], as far as all seeds came.

    A mean over fewer would jump. A run that diverged goes on at a random policy's reading, which is what
    it scores. Evaluation by evaluation, for frames that were dropped shift them.
    """
    mine = [r for r in runs if r.arm == arm]
    whole = [r for r in mine if not r.diverged]
    count = min((len(r.curve) for r in whole), default=max((len(r.curve) for r in mine), default=0))
    if not count:
        return np.zeros(0), np.zeros((0, 3))
    values = np.full((len(mine), count), scenario.random)
    for row, one in zip(values, mine, strict=True):
        found = [value for _, value in one.curve[:count]]
        row[: len(found)] = found
    longest = [r.curve[:count] for r in mine if len(r.curve) >= count]
    frames = np.array([[frame for frame, _ in curve] for curve in longest]).mean(0)
    return frames, np.array([pooled({arm: column.tolist()}, resamples=500) for column in values.T])


def _drawn(scenario: ScenarioConfig, most: int = 8) -> list[str]:
    """The arms whose curves are drawn: the three that count, and the controls if they are few."""
    return [*scenario.arms, *(scenario.controls if len(scenario.controls) <= most else ())]


def _curves(scenario: ScenarioConfig, runs: Sequence[Run]) -> str:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for arm in _drawn(scenario):
        mine = [r for r in runs if r.arm == arm]
        shared, found = _mean_curve(scenario, arm, runs)
        if not len(found):
            continue
        main = arm in scenario.arms
        (line,) = axes.plot(shared, found[:, 0], "-" if main else "--", label=arm, linewidth=2)
        if len(mine) > 1:
            axes.fill_between(shared, found[:, 1], found[:, 2], color=line.get_color(), alpha=0.15)
        for one in mine:
            if one.curve:
                frames, values = zip(*one.curve, strict=True)
                axes.plot(frames, values, color=line.get_color(), alpha=0.2, linewidth=0.7)
    axes.set(xlabel="frames (agent decisions)", ylabel=scenario.reading)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, ncols=2)
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    plt.close(figure)
    picture = stream.getvalue()
    return picture[picture.index("<svg") :]
