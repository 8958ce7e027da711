"""What a run's readings were so far: the memory that alarms compare with."""

from __future__ import annotations

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
SPAN = 5.0
"""Most rounds by which overlap of windows is allowed for: the largest healthy ratio."""
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


def median(values: np.ndarray) -> float:
    """Median of values [k]; of a few numbers in a tenth of the time that numpy's general one takes."""
    ordered, half = np.sort(values), values.size // 2
    return float(ordered[half] if values.size % 2 else (ordered[half - 1] + ordered[half]) / 2)


class Kept:
    """The newest `KEEP` values of one reading with their rounds, as arrays that rules read in place."""

    def __init__(self, pairs: np.ndarray | None = None) -> None:
        """Start with pairs (round, value) [k, 2], or empty."""
        self.size = 0 if pairs is None else len(pairs)
        self._room = np.empty((2 * KEEP, 2))
        if pairs is not None:
            self._room[: self.size] = pairs

    @property
    def pairs(self) -> np.ndarray:
        """(round, value) [k, 2], oldest first."""
        return self._room[max(0, self.size - KEEP) : self.size]

    def append(self, number: int, value: float) -> None:
        """Add a value; the oldest beyond `KEEP` are forgotten."""
        if self.size == len(self._room):
            self._room[:KEEP] = self._room[KEEP:]
            self.size = KEEP
        self._room[self.size] = number, value
        self.size += 1


class History:
    """The newest values of every reading, by name, each with the round that it was taken in."""

    def __init__(self) -> None:
        """Start empty."""
        self.round = 0
        self._values: dict[str, Kept] = {}
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
                    self._add(SMOOTHED, median(series[-SMOOTH:]))
                    self._add(LEVEL, middle(series[-max(SMOOTH, lately) :]))
                    self._add(HEIGHT, middle(series[-max(SUSTAIN, longer) :]))
                if name == EVALUATION and self.series(name).size > 1:
                    self._add(HELD, float(self.series(name)[-2:].min()))

    def _add(self, name: str, value: float) -> None:
        self._best[name] = max(self._best.get(name, value), value)
        if name in self:
            self._values[name].pairs[-1, 1] = value
            return
        self._values.setdefault(name, Kept()).append(self.round, value)
        first = self._first.setdefault(name, [])
        if len(first) < START:
            first.append(value)

    def next_round(self) -> None:
        """Begin the next round."""
        self.round += 1

    def __contains__(self, name: str) -> bool:
        """Whether the reading was measured in the present round."""
        kept = self._values.get(name)
        return kept is not None and kept.pairs[-1, 0] == self.round

    def series(self, name: str) -> np.ndarray:
        """All kept values, oldest first, [k]."""
        return self._pairs(name)[:, 1].copy()

    def rounds(self, name: str) -> np.ndarray:
        """The rounds of the kept values, oldest first, [k]."""
        return self._pairs(name)[:, 0].copy()

    def _pairs(self, name: str) -> np.ndarray:
        kept = self._values.get(name)
        return kept.pairs if kept is not None else np.empty((0, 2))

    def newest(self, name: str, default: float = float("nan")) -> float:
        """The newest value."""
        kept = self._values.get(name)
        return float(kept.pairs[-1, 1]) if kept is not None else default

    def highest(self, name: str) -> float:
        """The largest value of the whole run; nan if there is none."""
        return self._best.get(name, float("nan"))

    def start(self, name: str) -> np.ndarray:
        """The first values of the whole run, at most `START`."""
        return np.array(self._first.get(name, ()))

    def all_beyond(self, name: str, level: float, rounds: int, below: bool = False) -> bool:
        """Whether the newest `rounds` values lie above (or below) a level, and one is of this round."""
        newest = self._pairs(name)[-rounds:, 1]
        if newest.size < rounds or name not in self:
            return False
        return bool((newest < level).all() if below else (newest > level).all())

    def rounds_of(self, windows: int) -> int:
        """Rounds in which so many windows go by that share no frame."""
        ratio = self.newest("clock/ratio_measured", 1.0)
        return round(windows * min(max(ratio, 1.0), SPAN))

    def usual(self, name: str, leave_out: int = 0) -> float:
        """Median of the kept values without the newest `leave_out`; nan if none are left."""
        x = self.series(name)
        x = x[: max(0, len(x) - leave_out)]
        return median(x) if x.size else float("nan")

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
            "values": {k: torch.from_numpy(kept.pairs.copy()) for k, kept in self._values.items()},
            "best": dict(self._best),
            "first": {name: list(values) for name, values in self._first.items()},
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore."""
        self.round = state["round"]
        self._best = dict(state["best"])
        self._first = {name: list(values) for name, values in state["first"].items()}
        self._values = {
            name: Kept(pairs[-KEEP:].numpy()) for name, pairs in state["values"].items()
        }
