"""Every figure of a report as a PNG, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_twoclocks.flowmap import FlowMap
from rl_twoclocks.reporting.axes import frames_axis
from rl_twoclocks.reporting.charts import scale
from rl_twoclocks.reporting.figures import Figure, figures
from rl_twoclocks.reporting.heatmap import shades
from rl_twoclocks.reporting.runs import Run, experiments

COLOURS = ("#0b62a4", "#c2500a", "#1b7f4b", "#7d3fa8", "#b0246f", "#75650a", "#00737d", "#5b6470")
"""As in report.css."""
DASHES = ("-", (0, (7, 3)), (0, (2, 3)), (0, (9, 3, 2, 3)))
EVENTS = {
    "danger": ("#b3261e", "^"),
    "rescue": ("black", "P"),
    "warn": ("#9a5200", "D"),
    "watch": ("#6a6200", "o"),
    "order": ("#1f5fa8", "s"),
}
SHOWN = 5
"""Entropy maps side by side."""
LABEL = 50
"""Characters of a label in a legend, at most."""


def export(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draw all figures into a folder; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    found = experiments(runs)
    drawn = [draw(figure, folder) for figure in figures(found) if figure.lines]
    for number, run in enumerate(runs, start=1):
        if run.maps:
            drawn.append(_draw_maps(run, folder / f"entropy-maps-{number}.png"))
    for experiment in found:
        flow = next((r.flow for r in experiment.runs if r.flow is not None), None)
        if flow is not None:
            drawn.append(_draw_flow(flow, folder / f"data-flow-{experiment.number + 1}.png"))
    return drawn


def draw(figure: Figure, folder: Path) -> Path:
    """Draw one figure into a folder, under its key; return the file."""
    plt = _pyplot()
    picture, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    # The scales of the page.
    x, y = frames_axis(max(line.series.frames[-1] for line in figure.lines)), scale(figure)
    if y.log:
        axes.set_yscale("log", nonpositive="mask")
    axes.set(xlim=(x.low, x.high), ylim=(y.low, y.high))
    for line in figure.lines:
        colour = COLOURS[line.colour % len(COLOURS)]
        axes.plot(
            line.series.frames,
            line.series.values,
            color=colour,
            linestyle=DASHES[line.dash],
            linewidth=0.7 if line.thin else 1.5,
            alpha=0.5 if line.thin else 1.0,
            marker="o" if line.dots else None,
            markersize=3,
            label=None if line.thin else _short(line.label),
        )
        if line.low is not None and line.high is not None:
            axes.fill_between(
                line.series.frames, line.low, line.high, color=colour, alpha=0.2, lw=0
            )
    if figure.reference is not None:
        axes.axhline(figure.reference, color="#b3261e", linestyle="--", linewidth=1)
    for kind, (colour, marker) in EVENTS.items():
        frames = [mark.frames for mark in figure.marks if mark.kind == kind]
        if frames:
            up = axes.get_xaxis_transform()
            axes.plot(frames, np.full(len(frames), 1.03), marker, color=colour, markersize=4,
                      transform=up, clip_on=False, label=kind)  # fmt: skip
    axes.set_title(figure.title, fontsize=10, pad=14)
    axes.set(xlabel="frames (agent decisions)", ylabel=figure.unit)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=7, frameon=False, ncols=2)
    return _save(picture, folder / f"{figure.key}.png")


def _draw_maps(run: Run, path: Path) -> Path:
    plt = _pyplot()
    places = np.unique(np.linspace(0, len(run.maps) - 1, SHOWN).round().astype(int))
    scaled = shades(run.maps)
    picture, axes = plt.subplots(
        1, len(places), figsize=(2 * len(places), 2.5), squeeze=False, layout="constrained"
    )
    for place, axes_ in zip(places, axes[0], strict=True):
        axes_.imshow(scaled[place], cmap="viridis", vmin=0, vmax=255)
        axes_.set_title(f"{run.maps[place][0]:,} frames", fontsize=8)
        axes_.set(xticks=[], yticks=[])
    picture.suptitle(f"Where the states are: {run.label}", fontsize=9)
    return _save(picture, path)


def _draw_flow(flow: FlowMap, path: Path) -> Path:
    plt = _pyplot()
    count = len(flow.stations)
    picture, axes = plt.subplots(figsize=(3.2 * count, 2.8), layout="constrained")
    axes.set(xlim=(0, count), ylim=(-0.45, 1))
    axes.axis("off")
    axes.set_title(flow.title, fontsize=10)
    box = {"boxstyle": "round,pad=0.5", "facecolor": "#eef3f8", "edgecolor": "#47698c"}
    arrow: dict[str, Any] = {"arrowstyle": "->", "color": "#47698c"}
    boxes = [
        axes.text(k + 0.5, 0.6, "\n".join((station.title.upper(), *station.lines)), fontsize=8,
                  ha="center", va="center", bbox=box).get_bbox_patch()
        for k, station in enumerate(flow.stations)
    ]  # fmt: skip
    for k in range(1, count):
        ends = {"patchA": boxes[k - 1], "patchB": boxes[k]}
        axes.annotate("", (k + 0.5, 0.6), (k - 0.5, 0.6), arrowprops=arrow | ends)
    axes.annotate("", (0.5, 0.05), (count - 0.5, 0.05), arrowprops=arrow)
    axes.text(count / 2, 0.08, f"back to the start: {flow.back}", fontsize=8, ha="center")
    for number, (name, lag) in enumerate(
        (("predicted", flow.predicted), ("measured", flow.measured))
    ):
        if lag is not None:
            newest, mean, oldest = lag.words()
            words = f"newest {newest}, mean {mean}, oldest {oldest}"
            axes.text(0.05, -0.2 - 0.15 * number, f"lag in versions, {name}: {words}", fontsize=8)
    return _save(picture, path)


def _short(label: str) -> str:
    """A label that leaves room for the picture: the end tells runs apart."""
    return label if len(label) <= LABEL else f"…{label[1 - LABEL :]}"


def _pyplot() -> Any:
    """matplotlib.pyplot, which needs no display."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(picture: Any, path: Path) -> Path:
    picture.savefig(path, dpi=120)
    _pyplot().close(picture)
    return path
