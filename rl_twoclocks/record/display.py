"""Show a run as it trains: the two clocks first, then gradient norm and KL, then the return."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

# Label: each number as caption: metric. `frames`, `total` and `left` are the display's own.
_ROWS: dict[str, dict[str, str]] = {
    "policy clock": {"version": "clock/policy_version", "updates": "clock/update_steps"},
    "env clock": {"frames": "frames", "in all": "total"},
    "clock ratio": {"set": "clock/ratio", "measured": "clock/ratio_measured"},
    "staleness": {"mean": "clock/staleness_mean", "max": "clock/staleness_max"},
    "first ratio": {"error": "clock/first_ratio_error"},
    "gradient": {"norm": "grad_norm/total"},
    "KL": {"behaviour": "diag/kl_behaviour", "train": "train/kl"},
    "return": {"rollout": "rollout/return_mean", "eval": "eval/return_mean"},
    "speed": {"frames/s": "time/frames_per_second", "left": "left"},
}
# Not measured in every round: without fresh frames of the newest policy there is no first ratio.
_FLEETING = ("clock/first_ratio_error",)
_REFRESH = 0.25  # seconds between two panels: nobody reads a faster one
_RATE_MEMORY = 30.0  # seconds over which the speed behind `left` is smoothed


@dataclass
class Display:
    """Show the newest metrics in a live panel or as plain lines.

    A metric that an update does not bring keeps its last value, but for the first ratio; one never
    seen shows as "-".
    """

    mode: Literal["auto", "rich", "plain", "none"]  # auto: rich in a terminal, else plain
    total_frames: int  # the budget of the run
    title: str  # the name of the run
    plain_interval: float = 5.0  # least time between two plain lines, in seconds
    console: Console = field(default_factory=Console)  # stdout
    clock: Callable[[], float] = time.monotonic  # in seconds

    def __post_init__(self) -> None:
        """Settle the mode."""
        if self.mode == "auto":
            self.mode = "rich" if self.console.is_terminal else "plain"
        self._values: dict[str, float | str] = {"total": self.total_frames}
        self._messages: deque[str] = deque(maxlen=5)
        self._live: Live | None = None
        self._due = -math.inf  # time from which the next picture may be shown
        self._pending = False  # something has not been shown
        self._rate = 0.0  # frames per second, smoothed; 0 is not known
        self._seen = (math.inf, 0)  # time and frames of the last update

    def __enter__(self) -> Display:
        """Start the display."""
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Show the last update and stop."""
        self.close()

    def start(self) -> None:
        """Open the panel, or print the title and what the numbers of a plain line mean."""
        if self.mode == "rich" and self._live is None:
            # Refreshed by update(), not by a thread: that would take its time from training.
            self._live = Live(get_renderable=self.render, console=self.console, auto_refresh=False)
            self._live.start()
        elif self.mode == "plain":
            self._print(self.title)
            self._print(" | ".join(f"{label} {' / '.join(row)}" for label, row in _ROWS.items()))

    def update(self, metrics: Mapping[str, float], frames: int) -> None:
        """Take the newest metrics, `frames` frames into the run; show them when it is time."""
        self._values |= dict.fromkeys(_FLEETING, "-")
        self._values |= {**metrics, "frames": frames, "left": self._time_left(frames)}
        self._show()

    def message(self, text: str) -> None:
        """Show a piece of news: a warning, an intervention, a saved checkpoint."""
        if self._live is not None:
            self._messages.append(text)
            self._show()
        elif self.mode != "none":
            self._print(text)

    def close(self) -> None:
        """Show what has not been shown and stop; a second call does nothing."""
        if self._live is not None:
            self._live.stop()  # draws a last time
            self._live = None
        elif self._pending:
            self._due = -math.inf
            self._show()

    def render(self) -> Panel:
        """Return the panel as a Rich renderable."""
        table = Table.grid(padding=(0, 2))
        for label, row in _ROWS.items():
            numbers = "   ".join(f"{self._text(metric)} {name}" for name, metric in row.items())
            table.add_row(Text(label, style="dim"), Text(numbers))
        news = [Text(text) for text in self._messages]
        body = Group(table, Rule(style="dim"), *news) if news else table
        return Panel(body, title=Text(self.title), title_align="left")

    def _show(self) -> None:
        """Draw the panel or print a line, unless the last one is too young."""
        now = self.clock()
        self._pending = now < self._due
        if self._pending:
            return
        self._due = now + (self.plain_interval if self.mode == "plain" else _REFRESH)
        if self._live is not None:
            self._live.refresh()
        elif self.mode == "plain":
            cells = [f"{k} {'/'.join(map(self._text, row.values()))}" for k, row in _ROWS.items()]
            self._print(" | ".join(cells))

    def _print(self, text: str) -> None:
        """Print without markup or wrapping: a log has one line for each update."""
        self.console.print(Text(text), soft_wrap=True)

    def _time_left(self, frames: int) -> str:
        """Return the time to the end of the budget as h:mm:ss, at the smoothed speed."""
        now, (then, before) = self.clock(), self._seen
        if now > then:
            rate = (frames - before) / (now - then)
            memory = math.exp((then - now) / _RATE_MEMORY)
            self._rate = memory * (self._rate or rate) + (1.0 - memory) * rate
        self._seen = (now, frames)
        left = max(self.total_frames - frames, 0) / self._rate if self._rate > 0 else math.inf
        # A long stall lets the speed decay until timedelta would overflow.
        return str(timedelta(seconds=round(left))) if left < 1e9 else "-"

    def _text(self, metric: str) -> str:
        """Return a metric in a few characters: 38,400   0.0123   1.2e-07   -."""
        value = self._values.get(metric, "-")
        if isinstance(value, str):
            return value
        # Past 1e15 the digits of a diverged value would fill the line.
        whole = float(value).is_integer() or abs(value) >= 1e3
        return f"{value:,.0f}" if whole and abs(value) < 1e15 else f"{value:.3g}"
