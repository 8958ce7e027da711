"""Tables of a report: events, findings, configuration differences, runs side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rl_twoclocks.checks import Finding
from rl_twoclocks.diagnostics.alarm import SEVERITIES
from rl_twoclocks.findings import URGENCIES, Report
from rl_twoclocks.reporting.axes import number
from rl_twoclocks.reporting.charts import GLYPHS
from rl_twoclocks.reporting.figures import KINDS, kind
from rl_twoclocks.reporting.runs import Experiment, Run

EVENTS = 500
"""Rows that the table of events has at most; the worst are kept."""
BADGES = {"fine": "✓", "watch": GLYPHS["watch"], "warn": GLYPHS["warn"], "danger": GLYPHS["danger"]}


def table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], kinds: Sequence[str] = ()
) -> str:
    """A table of cells that are HTML already; on a narrow page each row becomes a card.

    Args:
        caption: what it holds, plain text.
        columns: headings, plain text.
        rows: cells; the first of each row names it.
        kinds: one per row, what the row can be filtered by.
    """
    # Roles are spelt out: a table that is shown as cards loses them in some browsers.
    head = "".join(f'<th role="columnheader" scope="col">{escape(c)}</th>' for c in columns)
    body = []
    for place, cells in enumerate(rows):
        data = f' data-kind="{kinds[place]}"' if kinds else ""
        body.append(f'<tr role="row"{data}>')
        for number_, (column, cell) in enumerate(zip(columns, cells, strict=True)):
            tag, more = ("th", ' scope="row"') if number_ == 0 else ("td", "")
            role = "rowheader" if number_ == 0 else "cell"
            body.append(f'<{tag} role="{role}"{more} data-column="{escape(column)}">')
            body.append(f"{cell}</{tag}>")
        body.append("</tr>")
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0">'
        f'<table role="table"><caption>{escape(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(body)}</tbody></table></div>'
    )


def badge(urgency: str) -> str:
    """An urgency as shape and word."""
    return f'<span class="badge u-{escape(urgency)}">{BADGES.get(urgency, "")} {escape(urgency)}</span>'


def events(runs: Sequence[Run]) -> str:
    """All events of the runs, worst first, with a filter that the script shows."""
    several = len(runs) > 1
    found = [(kind(event), event, run) for run in runs for event in run.events]
    if not found:
        return "<p>No event is on record: no alarm, and no order.</p>"
    found.sort(key=lambda item: (KINDS.index(item[0]), item[1]["frames"]))
    found, again = _folded(found)
    columns = ["event", *(["run"] if several else []), "frames", "round", "what happened"]
    rows, kinds = [], []
    for sort, event, run in found[:EVENTS]:
        name = f'<span class="k-{sort}">{GLYPHS[sort]}</span> {sort}: {escape(str(event["name"]))}'
        rows.append(
            [
                name,
                *([escape(run.label)] if several else []),
                number(float(event["frames"])),
                number(float(event.get("round") or 0)),
                _what(event) + _again(again[id(event)]),
            ]
        )
        kinds.append(sort)
    boxes = "".join(
        f'<label data-key="{k}"><input type="checkbox" checked value="{k}"> '
        f'<span class="k-{k}">{GLYPHS[k]}</span> '
        f"{k} ({sum(item[0] == k for item in found)})</label>"
        for k in KINDS
        if any(item[0] == k for item in found)
    )
    left = len(found) - len(rows)
    more = f"<p>{left:,} more, less urgent, are in events.jsonl.</p>" if left else ""
    return (
        f'<fieldset class="filter" hidden><legend>Show</legend>{boxes}'
        f"<output>{len(rows)} of {len(rows)} rows</output></fieldset>"
        + table("Events, worst first", columns, rows, kinds)
        + more
    )


Occurrence = tuple[str, dict[str, Any], Run]


def _folded(found: list[Occurrence]) -> tuple[list[Occurrence], dict[int, list[float]]]:
    """One row per order of a run that is given again and again, and the frames of the others."""
    first: dict[tuple[str, str, int], dict[str, Any]] = {}
    rows: list[Occurrence] = []
    again: dict[int, list[float]] = {}
    for sort, event, run in found:
        key = (sort, str(event["name"]), id(run))
        if event.get("kind") == "order" and key in first:
            again[id(first[key])].append(float(event["frames"]))
            continue
        first[key] = event
        again[id(event)] = []
        rows.append((sort, event, run))
    return rows, again


def _again(frames: Sequence[float]) -> str:
    if not frames:
        return ""
    times = "once" if len(frames) == 1 else f"{len(frames)} times"
    return f" <small>and {times} more, the last at {number(frames[-1])} frames</small>"


def _what(event: dict[str, Any]) -> str:
    cause = event.get("cause")
    if not cause:
        return escape(str(event.get("text", "")))
    values = ", ".join(f"{k} {_plain(v)}" for k, v in (event.get("values") or {}).items())
    text = f"{escape(str(cause))} <small>({escape(values)})</small>"
    cure = event.get("cure")
    return text + (f"<br>What helps: {escape(str(cure))}" if cure else "")


def _plain(value: Any) -> str:
    return number(float(value)) if isinstance(value, (int, float)) else str(value)


def findings(report: Report, label: str) -> str:
    """The doctor's table, worst first; what is fine is folded away."""
    ordered = sorted(report.findings, key=lambda f: -URGENCIES.index(f.urgency))
    bad = [f for f in ordered if f.urgency != "fine"]
    fine = [f for f in ordered if f.urgency == "fine"]
    parts = [
        _rows(f"Findings: {label}", bad) if bad else "<p>No sign is out of its healthy range.</p>"
    ]
    if fine:
        inner = _rows(f"Fine: {label}", fine)
        parts.append(f"<details><summary>{len(fine)} signs are fine</summary>{inner}</details>")
    return "".join(parts)


def _rows(caption: str, shown: Sequence[Finding]) -> str:
    rows = [
        [
            escape(f.symptom),
            badge(f.urgency),
            escape(f.part),
            escape(f.reading),
            escape(f.healthy),
            todo(f),
        ]
        for f in shown
    ]
    columns = ("symptom", "urgency", "out of step", "reading", "healthy", "change")
    return table(caption, columns, rows)


def todo(finding: Finding) -> str:
    """Overrides as something to copy, and advice."""
    typed = f'<code class="copy">{escape(finding.change)}</code>' if finding.change else ""
    return " ".join(part for part in (typed, escape(finding.advice)) if part) or "-"


def summary(runs: Sequence[Run]) -> str:
    """The runs side by side."""
    columns = ("run", "verdict", "state", "last return", "frames", "wall time",
               "alarms", "orders", "rescues")  # fmt: skip
    rows = []
    for run in runs:
        counts = {k: sum(kind(e) == k for e in run.events) for k in KINDS}
        rows.append(
            [
                escape(run.label),
                badge(worst(run)),
                escape(run.state),
                escape(last_returns(run)[0]),
                f"{run.frames:,}",
                duration(run.last("time/wall_seconds")),
                ", ".join(f"{counts[k]} {k}" for k in SEVERITIES[::-1] if counts[k]) or "none",
                str(counts["order"]),
                str(counts["rescue"]),
            ]
        )
    return table("Runs", columns, rows)


def worst(run: Run) -> str:
    """The worst urgency of a run's findings; unknown without findings."""
    if run.findings is None:
        return "unknown"
    ranks = [URGENCIES.index(f.urgency) for f in run.findings.findings]
    return URGENCIES[max(ranks, default=0)]


def last_returns(run: Run) -> list[str]:
    """Return of the last evaluation, and of training, as far as there are any."""
    named = (("eval/return_mean", "evaluation"), ("rollout/return_mean", "training"))
    found = [(run.last(name), label) for name, label in named]
    return [f"{number(value)} ({label})" for value, label in found if value is not None] or ["none"]


def duration(seconds: float | None) -> str:
    """A time for a person."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def differences(experiments: Sequence[Experiment]) -> str:
    """Configuration keys that differ, one column per experiment.

    Runs of one experiment differ in seed and in where they ran; those values are listed in one cell.
    """
    known = [e for e in experiments if any(run.values for run in e.runs)]
    keys = list(dict.fromkeys(k for e in known for run in e.runs for k in run.values))
    rows = []
    for key in keys:
        cells = [list(dict.fromkeys(_value(run, key) for run in e.runs)) for e in known]
        if key != "run_dir" and len({value for cell in cells for value in cell}) > 1:
            rows.append([f"<code>{escape(key)}</code>", *(escape(", ".join(c)) for c in cells)])
    if not rows:
        return "<p>No key of the configuration differs, apart from the directory.</p>"
    columns = ["key", *(e.label for e in known)]
    return table("Configuration keys that differ", columns, rows)


def _value(run: Run, key: str) -> str:
    value = run.values.get(key, "not there")
    return "null" if value is None else str(value)
