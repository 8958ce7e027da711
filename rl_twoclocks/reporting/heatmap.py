"""Entropy maps over a run as one small picture, of which the page shows one map at a time."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from rl_twoclocks.reporting.axes import number
from rl_twoclocks.reporting.runs import Run

FLOOR = 1e-3
"""Share of frames from which a cell stands out; below it shades are nearly linear."""


def shades(maps: Sequence[tuple[int, np.ndarray]]) -> np.ndarray:
    """Shade 0 to 255 of every cell of every map [maps, rows, columns], one scale for all of them.

    Logarithm of the share of the map's frames; the second axis points up.
    """
    stack = np.stack([counts / max(int(counts.sum()), 1) for _, counts in maps])
    logs = np.log1p(stack / FLOOR)
    scaled = np.round(255 * logs / max(float(logs.max()), 1e-12)).astype(np.uint8)
    # Counts are [first axis, second axis]; a picture's rows run down.
    return scaled.transpose(0, 2, 1)[:, ::-1]


def describe(frames: int, counts: np.ndarray) -> str:
    """One map in words."""
    total = max(int(counts.sum()), 1)
    visited = int((counts > 0).sum())
    return (
        f"{frames:,} frames: {visited:,} of {counts.size:,} cells visited, "
        f"the fullest holds {number(100 * int(counts.max()) / total)} % of the states"
    )


def happened(events: Sequence[dict[str, Any]], after: int, until: int, most: int = 3) -> str:
    """What the run said between two maps: dangers, rescues and restarts by name; else nothing."""
    told = dict.fromkeys(
        e["name"] if e["kind"] == "alarm" else e["kind"]
        for e in events
        if after < e["frames"] <= until
        and (e["kind"] in ("rescue", "restart") or e.get("severity") == "danger")
    )
    names = list(told)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"; since the map before: {', '.join(names[:most])}{more}" if names else ""


def png(maps: Sequence[tuple[int, np.ndarray]]) -> bytes:
    """All maps below each other in one picture, in matplotlib's viridis."""
    from matplotlib import colormaps
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(np.concatenate(shades(maps))))
    table = (colormaps["viridis"](np.arange(256))[:, :3] * 255).round().astype(np.uint8)
    picture.putpalette(table.tobytes())
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return file.getvalue()


def heatmap(run: Run, key: str) -> str:
    """The figure with its slider; without the script it shows the newest map."""
    times = [-1, *(frames for frames, _ in run.maps)]
    words = [
        describe(frames, counts) + happened(run.events, before, frames)
        for before, (frames, counts) in zip(times, run.maps, strict=False)
    ]
    last = len(words) - 1
    data = base64.b64encode(png(run.maps)).decode()
    texts = "|".join(words)
    first = words[0]
    return (
        f'<figure class="heat" id="{key}"><figcaption><h3>Where the states are: {escape(run.label)}'
        "</h3><p>States on their first two principal axes. A healthy run covers a wide or a moving "
        "area; one that shrinks to a few bright cells has stopped exploring.</p></figcaption>"
        f'<div class="map"><img src="data:image/png;base64,{data}" '
        f'alt="Heat map of visited states. {escape(words[last])}" '
        f'style="height:{100 * (last + 1)}%;top:-{100 * last}%"></div>'
        '<p class="scale" aria-hidden="true">no state <span></span> many (logarithmic)</p>'
        f'<p class="slide" hidden><label for="{key}-time">Time</label> '
        f'<input type="range" id="{key}-time" min="0" max="{last}" value="{last}" '
        f'data-words="{escape(texts)}"></p>'
        f'<output class="readout">{escape(words[last])}</output>'
        f'<p class="alt">{last + 1} maps; the first at {escape(first)}; '
        f"the last at {escape(words[last])}.</p></figure>"
    )
