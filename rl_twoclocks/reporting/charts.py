"""A figure as HTML: an SVG that stretches with the page, axes as text that does not.

Lines keep their width and text its size on a phone and on a wide screen: the SVG is stretched
(`preserveAspectRatio="none"`, strokes do not scale), and all words are HTML beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from html import escape

import numpy as np

from rl_twoclocks.reporting.axes import Axis, axis, frames_axis, number, tick
from rl_twoclocks.reporting.figures import COLOURS, KINDS, Figure, Line, Mark
from rl_twoclocks.reporting.runs import Series

GLYPHS = {"danger": "▲", "rescue": "✚", "warn": "◆", "watch": "●", "order": "■"}
"""Shape beside colour, for those who do not see the difference in colour."""
SIZE = 1000
"""Width and height of the drawing in its own units."""
PLACES = 250
"""Places along a time axis at which marks of one kind are told apart."""
SPOKEN = 4
"""Lines that the sentence about a chart describes one by one."""


def chart(figure: Figure) -> str:
    """One figure with heading, legend, marks, axes and a sentence that says what is to be seen."""
    key = escape(figure.key)
    head = (
        f'<figure class="chart" id="{key}"><figcaption><h3 id="{key}-title">{escape(figure.title)}'
        f"</h3><p>{escape(figure.how)}</p></figcaption>"
    )
    sentence = f'<p class="alt" id="{key}-alt">{escape(describe(figure))}</p></figure>'
    if figure.missing:
        return head + sentence
    x = frames_axis(max(line.series.frames[-1] for line in figure.lines))
    y = scale(figure)
    unit = escape(figure.unit) + (", log scale" if y.log else "") + ", by frames"
    parts = [
        head,
        _legend(figure),
        f'<p class="unit">{unit}</p>',
        f'<div class="strip" aria-hidden="true">{_glyphs(figure.marks, x)}</div>',
        '<div class="frame"><div class="ys" aria-hidden="true">',
        *(f'<span style="bottom:{100 * _at(y, t):.2f}%">{tick(t)}</span>' for t in y.ticks),
        f'</div><div class="plot">{_svg(figure, x, y)}</div>',
        '<div class="xs" aria-hidden="true">',
        *(f'<span style="left:{100 * _at(x, t):.2f}%">{tick(t)}</span>' for t in x.ticks),
        "</div></div>",
        '<output class="readout"></output>',
        sentence,
    ]
    return "".join(parts)


def describe(figure: Figure) -> str:
    """The figure in words, for those who do not see it and for a quick reading."""
    if figure.missing:
        return figure.missing
    shown = [line for line in figure.lines if not line.thin]
    said = [_describe_line(line) for line in shown[:SPOKEN]]
    if len(shown) > SPOKEN:
        values = np.concatenate([line.series.finite.values for line in shown])
        said.append(
            f"{len(shown) - SPOKEN} more lines; all lie between {number(values.min())} and "
            f"{number(values.max())}"
        )
    counts = {k: sum(mark.kind == k for mark in figure.marks) for k in KINDS}
    events = ", ".join(counted(count, k) for k, count in counts.items() if count)
    return "; ".join([*said, f"events: {events or 'none'}"]) + "."


def counted(count: int, kind: str) -> str:
    """A number of events in words: severities have no plural."""
    return f"{count} {kind}{'s' if kind in ('order', 'rescue') and count > 1 else ''}"


def _describe_line(line: Line) -> str:
    series = line.series.finite
    first, last = number(series.values[0]), number(series.values[-1])
    low, high = int(series.values.argmin()), int(series.values.argmax())
    holes = len(line.series) - len(series)
    text = f"{line.label}: {first} all the time"
    if series.values[low] < series.values[high]:
        text = (
            f"{line.label}: first {first}, last {last}, "
            f"lowest {number(series.values[low])} at {number(series.frames[low])} frames, "
            f"highest {number(series.values[high])} at {number(series.frames[high])} frames"
        )
        if line.low is not None and line.high is not None and not np.isnan(line.low[-1]):
            text += f", last interval {number(line.low[-1])} to {number(line.high[-1])}"
    return text + (f", {holes} not finite (gaps in the line)" if holes else "")


def scale(figure: Figure) -> Axis:
    """The axis of the values: holds lines, bands and the reference."""
    return axis(_extent(figure), figure.log)


def _extent(figure: Figure) -> Iterator[np.ndarray]:
    for line in figure.lines:
        yield line.series.values
        if line.low is not None and line.high is not None:
            yield line.low
            yield line.high
    if figure.reference is not None:
        yield np.array([figure.reference])


def _at(scale: Axis, value: float) -> float:
    return float(scale.place(np.array([value]))[0])


def _svg(figure: Figure, x: Axis, y: Axis) -> str:
    key = escape(figure.key)
    parts = [
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{key}-title" aria-describedby="{key}-alt" data-frames="{x.high:.0f}" '
        f'data-low="{y.low:.8g}" data-high="{y.high:.8g}" data-log="{int(y.log)}">',
        f'<path class="grid" d="{"".join(_level(y, t) for t in y.ticks)}"/>',
    ]
    for kind in KINDS:
        # Of many runs, orders and watches on every line would hide the lines.
        if figure.several and kind not in ("danger", "rescue"):
            continue
        places = _places(figure.marks, kind, x)
        if places:
            d = "".join(f"M{p:g},0V{SIZE}" for p in places)
            parts.append(f'<path class="mark k-{kind}" d="{d}"/>')
    if figure.reference is not None:
        parts.append(f'<path class="reference" d="{_level(y, figure.reference)}"/>')
    for line in figure.lines:
        if line.low is not None and line.high is not None:
            band = "".join(_bands(line.series.frames, line.low, line.high, x, y))
            parts.append(f'<path class="band f{line.colour % COLOURS}" d="{band}"/>')
    for line in sorted(figure.lines, key=lambda line: not line.thin):
        style = f"line {style_of(line)}" + (" thin" if line.thin else "")
        points = _points(line.series, x, y)
        data = f' data-label="{escape(line.label)}"'
        parts.append(f'<path class="{style}" d="{_path(points)}"{data}/>')
        if line.dots:
            d = "".join(f"M{a:g},{b:g}h0" for a, b in points if b == b)
            parts.append(f'<path class="dots {style_of(line)}" d="{d}"/>')
    return "".join([*parts, "</svg>"])


def style_of(line: Line) -> str:
    """Classes of colour and dash."""
    return f"c{line.colour % COLOURS} d{line.dash}"


def _level(y: Axis, value: float) -> str:
    return f"M0,{SIZE * (1 - _at(y, value)):.1f}H{SIZE}"


def _points(series: Series, x: Axis, y: Axis) -> list[tuple[float, float]]:
    # Four decimals along time: the script reads frames back from them, exactly up to 10M frames.
    across = np.round(SIZE * x.place(series.frames), 4)
    up = np.round(SIZE * (1 - y.place(series.values)), 1)
    return list(zip(across.tolist(), up.tolist(), strict=True))


def _path(points: list[tuple[float, float]]) -> str:
    """Move to the first point of each stretch without holes, and draw through the others."""
    parts = []
    for hole, stretch in itertools.groupby(points, key=lambda p: p[1] != p[1]):
        if not hole:
            places = [f"{a:.7g},{b:g}" for a, b in stretch]
            # A lone point is a line of no length, which round caps make visible.
            parts.append("M" + " ".join(places) + ("h0" if len(places) == 1 else ""))
    return "".join(parts)


def _bands(
    frames: np.ndarray, low: np.ndarray, high: np.ndarray, x: Axis, y: Axis
) -> Iterator[str]:
    lower = _points(Series(frames, low), x, y)
    upper = _points(Series(frames, high), x, y)
    pairs = zip(lower, upper, strict=True)
    for hole, stretch in itertools.groupby(pairs, key=lambda p: p[0][1] != p[0][1]):
        if not hole:
            below, above = zip(*stretch, strict=True)
            yield _path([*below, *reversed(above)]) + "Z"


def _legend(figure: Figure) -> str:
    items = [
        f'<li><svg class="key" viewBox="0 0 30 10" aria-hidden="true"><path class="line '
        f'{style_of(line)}" d="M1,5H29"/></svg>{escape(line.label)}</li>'
        for line in figure.lines
        if not line.thin
    ]
    thin = sum(line.thin for line in figure.lines)
    if thin:
        items.append(f"<li>{thin} thin lines: single seeds; band: 95 % interval</li>")
    if figure.reference is not None:
        items.append(
            '<li><svg class="key" viewBox="0 0 30 10" aria-hidden="true"><path class="reference" '
            f'd="M1,5H29"/></svg>level {number(figure.reference)}</li>'
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _places(marks: tuple[Mark, ...], kind: str, x: Axis) -> list[float]:
    places = {round(PLACES * _at(x, m.frames)) for m in marks if m.kind == kind}
    return [SIZE * p / PLACES for p in sorted(places) if p <= PLACES]


def _glyphs(marks: tuple[Mark, ...], x: Axis) -> str:
    """Shapes above the chart; marks of one kind at one place are one shape."""
    together: dict[tuple[str, int], list[Mark]] = {}
    for mark in marks:
        place = round(PLACES * _at(x, mark.frames))
        if place <= PLACES:
            together.setdefault((mark.kind, place), []).append(mark)
    # The worst come last, on top of what else happened there; rescues and orders have rows of their own.
    ordered = sorted(together.items(), key=lambda item: -KINDS.index(item[0][0]))
    return "".join(
        f'<span class="k-{kind}" style="left:{100 * place / PLACES:g}%" '
        f'title="{escape(_tip(found))}">{GLYPHS[kind]}</span>'
        for (kind, place), found in ordered
    )


def _tip(marks: list[Mark]) -> str:
    first = marks[0]
    text = first.text if len(first.text) <= 120 else first.text[:119] + "…"
    more = f" (and {len(marks) - 1} more)" if len(marks) > 1 else ""
    return f"{first.frames:,} frames: {text}{more}"
