"""Pictures of a run: clocks with gradient norm and KL on top, rollout entropy, reward variance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_twoclocks.diagnostics.limits import CALIBRATED, Limits
from rl_twoclocks.diagnostics.reward_profile import WINDOW, profile_and_level
from rl_twoclocks.record.events import read_events
from rl_twoclocks.record.jsonl import read_metrics

if TYPE_CHECKING:
    from torch import Tensor

_LINES = 6
"""Lines of names above a panel."""
_LETTER = 0.0085
"""Width of a letter of a name, as a share of a panel's."""
_COLOURS = "Lines: alarms (olive watch, orange warn, red danger), orders (blue), rescues (black)"
SEVERITY_COLOURS = {"watch": "tab:olive", "warn": "tab:orange", "danger": "tab:red"}


def draw(
    directory: Path, maps: Sequence[tuple[int, Tensor]], limits: Limits = CALIBRATED
) -> list[Path]:
    """Draw `pictures/*.png` of a run from its records; return the files.

    Args:
        directory: the run directory, with `metrics.jsonl` and `events.jsonl`.
        maps: entropy histograms over the run, (frames, counts [bins, bins]).
        limits: the levels of the run's alarms.
    """
    import matplotlib

    matplotlib.use("Agg")
    rows = read_metrics(directory / "metrics.jsonl")
    events = read_events(directory / "events.jsonl")
    out = directory / "pictures"
    out.mkdir(exist_ok=True)
    drawn = [_clocks(rows, events, out / "clocks.png")]
    if maps:
        drawn.append(_entropy(rows, events, maps, out / "rollout_entropy.png"))
    returns = _series(rows, "rollout/return_round")
    if len(returns[0]) > WINDOW:
        drawn.append(_variance(returns, events, limits, out / "reward_variance.png"))
    return drawn


def _clocks(rows: list[dict], events: list[dict], path: Path) -> Path:
    # The reading order: gradient norm and KL first, then the clocks, then the return.
    panels = (
        ("gradient norm", {"grad_norm/total": "all layers", "diag/grad_norm_max": "largest layer"}),
        ("KL, nats", {"diag/kl_behaviour": "behaviour || current", "train/kl": "to proximal"}),
        ("clock ratio", {"clock/ratio": "in force", "clock/ratio_measured": "measured"}),
        ("staleness, versions", {"clock/staleness_mean": "mean", "clock/staleness_max": "max"}),
        ("return", {"rollout/return_mean": "training", "eval/return_mean": "evaluation"}),
    )
    figure, axes = _figure(len(panels))
    for number, (axis, (label, names)) in enumerate(zip(axes, panels, strict=True)):
        for name, caption in names.items():
            x, y = _series(rows, name)
            if not x.size:
                continue
            marker = "o" if name.startswith("eval/") else None
            axis.plot(x, y, label=caption, linewidth=1.2, marker=marker, markersize=3)
        axis.set_ylabel(label)
        if label.startswith("KL"):
            # From a healthy 0.01 to a collapse it spans many powers of ten.
            axis.set_yscale("log", nonpositive="mask")
            axis.set_ylim(1e-4, max(1.0, min(axis.get_ylim()[1], 1e3)))
        if axis.lines:
            axis.legend(loc="upper right", fontsize=7, frameon=False)
        lines = _mark(axis, events, names=number == 0)
        if number == 0:
            _title(axis, _COLOURS, lines)
    return _save(figure, axes, path)


def _entropy(
    rows: list[dict], events: list[dict], maps: Sequence[tuple[int, Tensor]], path: Path
) -> Path:
    import matplotlib.pyplot as plt

    shown = [maps[i] for i in np.unique(np.linspace(0, len(maps) - 1, 5).round().astype(int))]
    figure = plt.figure(figsize=(9, 5), layout="constrained")
    grid = figure.add_gridspec(2, len(shown), height_ratios=(1.2, 1))
    axis = figure.add_subplot(grid[0, :])
    for name, caption in (
        ("diag/rollout_entropy", "cells fixed at the start"),
        ("diag/rollout_entropy_own_range", "range of each rollout"),
    ):
        axis.plot(*_series(rows, name), label=caption, linewidth=1.2)
    axis.set(xlabel="frames", ylabel="rollout entropy, bits")
    axis.set_title(
        "Over how many places are the states spread? Below: where, at five moments", fontsize=9
    )
    axis.legend(fontsize=7, frameon=False)
    _mark(axis, events)
    for column, (frames, counts) in enumerate(shown):
        place = figure.add_subplot(grid[1, column])
        place.imshow(np.log1p(counts.numpy()).T, origin="lower", cmap="viridis")
        place.set_title(f"{frames:,} frames", fontsize=8)
        place.set(xticks=[], yticks=[])
        if column == 0:
            place.set_ylabel("second axis", fontsize=7)
        place.set_xlabel("first principal axis", fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _variance(
    returns: tuple[np.ndarray, np.ndarray], events: list[dict], limits: Limits, path: Path
) -> Path:
    frames, values = returns
    figure, axes = _figure(2)
    axes[0].plot(frames, values, linewidth=1)
    axes[0].set_ylabel("return by rollout")
    found = profile_and_level(values, float(values[0]), limits)
    if found is not None:
        profile, level = found
        axes[1].plot(frames[WINDOW - 1 :], profile, linewidth=1.2, label="rolling variance of 10")
        label = f"alert line: an alarm if it stays above for {limits.staircase:.0f} rollouts"
        axes[1].axhline(level, color="tab:red", linestyle="--", label=label)
        axes[1].set_yscale("log")
        axes[1].legend(fontsize=7, frameon=False)
    axes[1].set_ylabel("variance / squared gain")
    lines = [_mark(axis, events, names=number == 0) for number, axis in enumerate(axes)]
    _title(axes[0], "Does the return vary from rollout to rollout as it should?", lines[0])
    return _save(figure, axes, path)


def _figure(panels: int) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    return plt.subplots(panels, 1, figsize=(9, 1.8 * panels), sharex=True, layout="constrained")


def _save(figure: Any, axes: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    axes[-1].set_xlabel("frames (agent decisions)")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _title(axis: Any, text: str, lines: int) -> None:
    """A title above so many lines of names."""
    axis.set_title(text, fontsize=8, pad=8 + 12 * lines)


def _mark(axis: Any, events: list[dict], names: bool = False) -> int:
    """Vertical lines: alarms by severity, given orders in blue, rescues in black.

    With `names` the first line of each order and rescue, and of each alarm from warn on by severity,
    says what it is, above. Returns how many lines the names take.
    """
    axis.grid(alpha=0.25)
    named: dict[tuple[str, str], float] = {}
    for event in events:
        colour = SEVERITY_COLOURS.get(event.get("severity", ""), "tab:blue")
        if event["kind"] == "order" and not event["given"]:
            continue
        if event["kind"] == "rescue":
            colour = "black"
        axis.axvline(event["frames"], color=colour, alpha=0.5, linewidth=0.8)
        # Not of what is only to be watched: the text must stay readable.
        if names and event.get("severity", "danger") != "watch":
            named.setdefault((event["name"], colour), event["frames"])
    low, high = axis.get_xlim()
    letter = _LETTER * (high - low)
    lines = place_names([(start, letter * (len(n) + 1)) for (n, _), start in named.items()])
    for line, ((name, colour), start) in zip(lines, named.items(), strict=True):
        place = (start, 1.02 + 0.12 * line)
        axis.annotate(name, place, xycoords=("data", "axes fraction"), fontsize=6, color=colour)
    return max(lines, default=-1) + 1


def place_names(names: Sequence[tuple[float, float]]) -> list[int]:
    """On which line each name goes, so that none covers another while there is room.

    Args:
        names: (start, width) of each, by start.
    """
    ends = [float("-inf")] * _LINES
    chosen = []
    for start, width in names:
        free = next((i for i, end in enumerate(ends) if end <= start), None)
        line = ends.index(min(ends)) if free is None else free
        ends[line] = start + width
        chosen.append(line)
    return chosen


def _series(rows: list[dict], name: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(row["frames"], row[name]) for row in rows if row.get(name) is not None]
    return np.array([f for f, _ in pairs]), np.array([v for _, v in pairs], dtype=np.float64)
