"""The page: verdict, charts, events, findings, data flow, differences, videos; in one file."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from rl_twoclocks.findings import URGENCIES
from rl_twoclocks.flowmap import FlowMap
from rl_twoclocks.reporting import tables
from rl_twoclocks.reporting.axes import number
from rl_twoclocks.reporting.charts import GLYPHS, chart
from rl_twoclocks.reporting.figures import KINDS, figures, kind
from rl_twoclocks.reporting.heatmap import heatmap
from rl_twoclocks.reporting.runs import CRASHED, GOING, Experiment, Run, experiments

VIDEO = 2_000_000
"""Bytes below which a video is put into the page ..."""
VIDEOS = 3_000_000
"""... as long as all of them together stay below this, so that the page stays small."""
Section = tuple[str, str, str]
"""Key, heading and HTML of a part of the page."""
LIVE = (
    '<p class="live"><span id="live-words" role="status"></span> <span id="live-time"></span>'
    '<button id="live-pause" type="button" aria-pressed="false">pause</button></p>'
)
"""What the page that renews itself has above everything else."""
WORDS = {
    "danger": "an alarm that calls for a stop",
    "rescue": "weights taken back to an earlier state",
    "warn": "an alarm",
    "watch": "a sign to keep an eye on",
    "order": "what the governor changed, or would change",
}


def page(runs: Sequence[Run], folder: Path) -> str:
    """The whole report as HTML.

    Args:
        runs: what to report on.
        folder: where the page will lie; large videos are linked from there.
    """
    return document(title(runs), sections(runs, folder))


def sections(runs: Sequence[Run], folder: Path, room: int = VIDEOS) -> list[Section]:
    """The parts of a report, in reading order.

    Args:
        runs: at least one.
        folder: where the page will lie; videos that are not in it are linked from there.
        room: bytes of video that may be put into the page.
    """
    found = experiments(runs)
    several = len(runs) > 1
    parts = [("verdict", "Verdict", _verdict(runs))]
    if several:
        parts.append(("runs", "Runs side by side", tables.summary(runs)))
    parts.append(("charts", "Curves", _charts(found)))
    heats = [heatmap(run, f"heat-{k}") for k, run in enumerate(runs) if run.maps]
    if heats:
        parts.append(("heat", "Where the states are", f'<div class="grid2">{"".join(heats)}</div>'))
    parts += [
        ("events", "Events", tables.events(runs)),
        ("findings", "Findings", _findings(runs)),
        ("flow", "Data flow", _flow(found)),
    ]
    if several:
        parts.append(("configuration", "Configuration", tables.differences(found)))
    videos = _videos(runs, folder, room)
    if videos:
        parts.append(("videos", "Videos", videos))
    return parts


def title(runs: Sequence[Run]) -> str:
    """What the page is about."""
    if len(runs) == 1:
        return f"{runs[0].task}: {runs[0].label}"
    tasks = ", ".join(dict.fromkeys(run.task for run in runs))
    return f"{len(runs)} runs: {tasks}"


def document(
    title: str, sections: Sequence[Section], version: str = "", kind: str = "report"
) -> str:
    """Put a page together; with a version it renews itself from the server that it came from."""
    package = files("rl_twoclocks.reporting")
    style = (package / "report.css").read_text(encoding="utf-8")
    script = (package / "report.js").read_text(encoding="utf-8")
    if version:
        script += (package / "live.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Nothing is fetched, and no script but this one runs, whatever a run's files say.
    policy = (
        "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'" + ("; connect-src 'self'" if version else "")
    )
    links = "".join(f'<li><a href="#{key}">{escape(name)}</a></li>' for key, name, _ in sections)
    body = "".join(
        f'<section id="{key}" aria-labelledby="{key}-h"><h2 id="{key}-h">{escape(name)}</h2>'
        f"{content}</section>\n"
        for key, name, content in sections
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en" data-version="{escape(version)}">'
        '<head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body>"
        '<a class="skip" href="#verdict">Skip to the verdict</a>'
        f"<header><p>rl_twoclocks {kind}</p><h1>{escape(title)}</h1>"
        f"{LIVE if version else ''}</header>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n<main>{body}</main>'
        f"<script>{script}</script></body></html>\n"
    )


def _verdict(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return _verdict_of_one(runs[0])
    order = ("danger", "unknown", "warn", "watch", "fine")
    ranked = sorted(runs, key=lambda run: order.index(tables.worst(run)))
    counts = {u: sum(tables.worst(run) == u for run in runs) for u in order}
    said = ", ".join(f"{counts[u]} {u}" for u in order if counts[u])
    parts = [f'<p class="verdict u-{tables.worst(ranked[0])}">{len(runs)} runs: {said}.</p><ul>']
    for run in ranked:
        verdict = run.findings.verdict if run.findings is not None else "no findings"
        notes = "".join(f"; {escape(note)}" for note in run.notes)
        state = "" if run.state == "finished" else f" ({escape(run.state)})"
        parts.append(
            f"<li>{tables.badge(tables.worst(run))} <strong>{escape(run.label)}</strong>{state}: "
            f"{escape(_without_urgency(verdict))}{notes}</li>"
        )
    return "".join([*parts, "</ul>", *map(_crash, runs)])


def _verdict_of_one(run: Run) -> str:
    urgency = tables.worst(run)
    verdict = run.findings.verdict if run.findings is not None else "no verdict: see the notes"
    words = _without_urgency(verdict)
    parts = [
        f'<p class="verdict u-{urgency}">{tables.badge(urgency)} '
        f"{escape(words[:1].upper() + words[1:])}.</p>",
        _suspected(run),
        f"<p>{_state(run)}",
        f"Last return: {escape(', '.join(tables.last_returns(run)))}. ",
        "The verdict judges the last tenth of the run; what happened before is below.</p>",
        _story(run),
        _crash(run),
    ]
    parts += [f'<p class="note">Note: {escape(note)}.</p>' for note in run.notes]
    facts = run.findings.facts if run.findings is not None else []
    parts.append(
        f"<ul>{''.join(f'<li>{escape(fact)}</li>' for fact in facts)}</ul>" if facts else ""
    )
    return "".join(parts)


def _state(run: Run) -> str:
    if run.state in (CRASHED, GOING):
        return "The run is going on. " if run.state == GOING else ""
    return f"The run has {escape(run.state)}. "


def _without_urgency(verdict: str) -> str:
    """The words of a verdict whose urgency is shown beside it."""
    word, colon, rest = verdict.partition(": ")
    return rest if colon and word in URGENCIES else verdict


def _suspected(run: Run) -> str:
    """What probably broke, where the signs tell."""
    cause = run.findings.suspect if run.findings is not None else None
    if cause is None:
        return ""
    lead, _, rest = str(cause).partition(". ")
    return f"<p><strong>{escape(lead)}.</strong> {escape(rest)}</p>"


def _story(run: Run, most: int = 6) -> str:
    """The alarms of the whole run in the order in which they came, each once, at its worst.

    Where there are more than `most` kinds, the mildest are left out.
    """
    first: dict[str, dict] = {}
    alarms = [e for e in run.events if e["kind"] in ("alarm", "nonfinite")]
    for event in sorted(alarms, key=lambda e: (KINDS.index(kind(e)), e["frames"])):
        first.setdefault(str(event["name"]), event)
    items = [
        f"<li>{tables.badge(kind(e))} <strong>{escape(name)}</strong> at "
        f"{number(float(e['frames']))} frames: {escape(str(e.get('cause') or e.get('text', '')))}</li>"
        for name, e in sorted(list(first.items())[:most], key=lambda item: item[1]["frames"])
    ]
    if not items:
        said = "No alarm was raised" if run.heard else "It is not known whether alarms were raised"
        return f"<p>{said} during the run.</p>"
    rescues = sum(kind(e) == "rescue" for e in run.events)
    more = f" The governor went back to an earlier state {rescues} times." if rescues > 1 else ""
    more = " The governor went back to an earlier state once." if rescues == 1 else more
    kinds = f"were {len(first)} kinds of alarm" if len(first) > 1 else "was one kind of alarm"
    which = ", in the order in which they came" if len(first) > 1 else ""
    which = f", the worst {most} of them{which}" if len(first) > most else which
    return f"<p>During the run there {kinds}{which}.{more}</p><ul>{''.join(items)}</ul>"


def _crash(run: Run) -> str:
    if not run.error:
        return ""
    said = escape(run.error.splitlines()[-1])
    return (
        f'<p class="note">{escape(run.label)} ended with an error: {said}</p>'
        f'<details data-key="{escape(run.label)}"><summary>Traceback of {escape(run.label)}</summary>'
        f'<pre tabindex="0">{escape(run.error)}</pre></details>'
    )


def _charts(found: Sequence[Experiment]) -> str:
    marks = "".join(
        f'<li><span class="k-{k}">{GLYPHS[k]}</span> {k}: {escape(WORDS[k])}</li>' for k in KINDS
    )
    several = sum(len(e.runs) for e in found) > 1
    pooled = (
        "<p>Bold lines are interquartile means over seeds (means, below four seeds), bands their "
        "95 % bootstrap intervals, thin lines single seeds. A bold line ends where the shortest of "
        "its runs does.</p>"
        if several and any(len(e.runs) > 1 for e in found)
        else ""
    )
    body = "".join(chart(figure) for figure in figures(found))
    return (
        "<p>Along every chart: frames, which are decisions of the agent. Shapes above a chart are "
        f'events.</p><ul class="legend">{marks}</ul>{pooled}<div class="grid2">{body}</div>'
    )


def _findings(runs: Sequence[Run]) -> str:
    parts = ["<p>What the doctor reads from the last tenth of a run, and what to type.</p>"]
    for run in runs:
        if run.findings is None:
            parts.append(f"<p>{escape(run.label)}: {escape('; '.join(run.notes))}.</p>")
        elif len(runs) == 1:
            parts.append(tables.findings(run.findings, run.label))
        else:
            open_ = " open" if tables.worst(run) == "danger" else ""
            parts.append(
                f'<details{open_} data-key="{escape(run.label)}"><summary>{escape(run.label)}: '
                f"{escape(run.findings.verdict)}</summary>"
                f"{tables.findings(run.findings, run.label)}</details>"
            )
    return "".join(parts)


def _flow(found: Sequence[Experiment]) -> str:
    parts = []
    for experiment in found:
        run = next((r for r in experiment.runs if r.flow is not None), None)
        if run is None or run.flow is None:
            parts.append(f"<p>{escape(experiment.label)}: no map can be drawn.</p>")
            continue
        # As an image: its style and its ids are its own, however many maps the page has.
        data = base64.b64encode(run.flow.svg().encode()).decode()
        parts.append(
            f'<figure class="flow"><figcaption><h3>{escape(run.label)}</h3><p>Who collects, '
            "through which buffers the data goes, who learns from it, and when the policy goes back."
            "</p></figcaption>"
            f'<div class="scroll" role="region" aria-label="{escape(run.flow.title)}" tabindex="0">'
            f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(_spoken(run.flow))}"></div>'
            f'<details><summary>The same as text</summary><pre tabindex="0">{escape(run.flow.text())}'
            "</pre></details></figure>"
        )
    return "".join(parts)


def _spoken(flow: FlowMap) -> str:
    stations = ", then ".join(f"{s.title} ({', '.join(s.lines)})" for s in flow.stations)
    return f"Data goes from {stations}; back to the start: {flow.back}."


def _videos(runs: Sequence[Run], folder: Path, room: int) -> str:
    parts = []
    for run in runs:
        for path in run.videos:
            size = path.stat().st_size
            name = escape(f"{run.label}: {path.name}")
            if size < VIDEO and size <= room:
                room -= size
                data = base64.b64encode(path.read_bytes()).decode()
                parts.append(
                    f'<figure><figcaption>{name}</figcaption><video controls preload="metadata" '
                    f'aria-label="{name}" src="data:video/mp4;base64,{data}"></video></figure>'
                )
            else:
                link = quote(os.path.relpath(path, folder))
                parts.append(
                    f'<p><a href="{link}">{name}</a> ({size / 1e6:.1f} MB, not in this page)</p>'
                )
    return "".join(parts)
