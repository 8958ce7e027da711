"""What a run's readings were so far: the memory that alarms compare with."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
import torch

KEEP = 512
"""Newest values kept of every reading."""
START = 5
"""First values of the run kept of every reading, however long it gets."""
RETURN, SMOOTHED, LEVEL, HEIGHT = (
    f"rollout/return_{name}" for name in ("round", "smoothed", "level", "height")
)
EVALUATION, HELD = "eval/return_mean", "eval/return_held"
"""The return in evaluation, and what the newest two evaluations both reached."""
EPISODE = "diag/episode_rounds"
"""Longest of the newest episodes, in rounds."""
LARGEST = 1e30
"""What an infinite reading counts as: a divergence that has overflown raises alarms too."""
SMOOTH, SUSTAIN = 5, 11
"""Values in the running median of the return; and in its level and height at least so many, and those of
as many rounds as an episode takes (twice as many). One unlucky rollout is no fall; where episodes run in
phase, rounds in which only failures end follow rounds in which only successes do; and the largest of
many short means is luck, so that a height is what was held for longer."""


def middle(values: np.ndarray) -> float:
    """Mean of the middle half of values [k]: the median of three, the interquartile mean of many."""
    cut = (values.size + 1) // 4
    return float(np.sort(values)[cut : values.size - cut].mean())


class History:
    """The newest values of every reading, by name, each with the round that it was taken in."""

    def __init__(self) -> None:
        """Start empty."""
        self.round = 0
        self._values: dict[str, deque[tuple[int, float]]] = {}
        self._best: dict[str, float] = {}
        self._first: dict[str, list[float]] = {}

    def add(self, readings: Mapping[str, float]) -> None:
        """Take the readings of the present round; a name that is missing was not measured.

        A round holds one value of a name: given again, before and after the steps, the last one counts.
        What is infinite counts as very large; nan was not measured.
        """
        for name, number in readings.items():
            value = min(max(float(number), -LARGEST), LARGEST)
            if value == value:
                self._add(name, float(value))
                if name == RETURN:
                    series, ago = self.series(name), self.round - self.rounds(name)
                    episode = self.newest(EPISODE, 0.0)
                    lately, longer = (int((ago < k * episode).sum()) for k in (1, 2))
                    self._add(SMOOTHED, float(np.median(series[-SMOOTH:])))
                    self._add(LEVEL, middle(series[-max(SMOOTH, lately) :]))
                    self._add(HEIGHT, middle(series[-max(SUSTAIN, longer) :]))
                if name == EVALUATION and self.series(name).size > 1:
                    self._add(HELD, float(self.series(name)[-2:].min()))

    def _add(self, name: str, value: float) -> None:
        self._best[name] = max(self._best.get(name, value), value)
        values = self._values.setdefault(name, deque(maxlen=KEEP))
        if name in self:
            values[-1] = (self.round, value)
            return
        values.append((self.round, value))
        first = self._first.setdefault(name, [])
        if len(first) < START:
            first.append(value)

    def next_round(self) -> None:
        """Begin the next round."""
        self.round += 1

    def __contains__(self, name: str) -> bool:
        """Whether the reading was measured in the present round."""
        values = self._values.get(name)
        return bool(values) and values[-1][0] == self.round  # type: ignore[index]

    def series(self, name: str) -> np.ndarray:
        """All kept values, oldest first, [k]."""
        return np.array([value for _, value in self._values.get(name, ())])

    def rounds(self, name: str) -> np.ndarray:
        """The rounds of the kept values, oldest first, [k]."""
        return np.array([number for number, _ in self._values.get(name, ())])

    def newest(self, name: str, default: float = float("nan")) -> float:
        """The newest value."""
        values = self._values.get(name)
        return values[-1][1] if values else default

    def highest(self, name: str) -> float:
        """The largest value of the whole run; nan if there is none."""
        return self._best.get(name, float("nan"))

    def start(self, name: str) -> np.ndarray:
        """The first values of the whole run, at most `START`."""
        return np.array(self._first.get(name, ()))

    def all_beyond(self, name: str, level: float, rounds: int, below: bool = False) -> bool:
        """Whether the newest `rounds` values lie above (or below) a level, and one is of this round."""
        values = self._values.get(name, ())
        if len(values) < rounds or name not in self:
            return False
        newest = (values[-1 - i][1] for i in range(rounds))
        return all(x < level for x in newest) if below else all(x > level for x in newest)

    def usual(self, name: str, leave_out: int = 0) -> float:
        """Median of the kept values without the newest `leave_out`; nan if none are left."""
        x = self.series(name)
        x = x[: max(0, len(x) - leave_out)]
        return float(np.median(x)) if x.size else float("nan")

    def forget(self, best: Mapping[str, float] | None = None) -> None:
        """Start anew after a rescue: what was usual before says nothing about slower clocks.

        Of the names in `best` the run's first values stay, to measure gains by, and the given value
        counts as the largest so far: what the state that was gone back to could do.
        """
        best = best or {}
        self._values.clear()
        self._best = {name: value for name, value in best.items() if np.isfinite(value)}
        self._first = {name: self._first[name] for name in best if name in self._first}

    def state_dict(self) -> dict:
        """All values, plain."""
        return {
            "round": self.round,
            "values": {
                k: torch.tensor(list(v), dtype=torch.float64) for k, v in self._values.items()
            },
            "best": dict(self._best),
            "first": {name: list(values) for name, values in self._first.items()},
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore."""
        self.round = state["round"]
        self._best = dict(state["best"])
        self._first = {name: list(values) for name, values in state["first"].items()}
        self._values = {
            name: deque(((int(r), v) for r, v in pairs.tolist()), maxlen=KEEP)
            for name, pairs in state["values"].items()
        }
