"""Axes and numbers: where ticks go, where values go, how both are written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

DECADES = 8
"""Powers of ten that a logarithmic axis spans at most; smaller values lie on its lower edge."""
WIDE = 20.0
"""Largest over smallest value from which an axis that may be logarithmic is."""


@dataclass(frozen=True)
class Axis:
    """One axis, from `low` to `high`."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]

    def place(self, values: np.ndarray) -> np.ndarray:
        """Values as shares of the axis, 0 at its low end, NaN where they are NaN."""
        if not self.log:
            return (values - self.low) / (self.high - self.low)
        bounded = np.where(np.isnan(values), np.nan, np.maximum(values, self.low))
        return np.log(bounded / self.low) / math.log(self.high / self.low)


def axis(arrays: Iterable[np.ndarray], log: bool = False) -> Axis:
    """An axis that holds all finite values."""
    values = np.concatenate([np.asarray(a, dtype=float).ravel() for a in arrays] or [np.zeros(0)])
    values = values[np.isfinite(values)]
    if not values.size:
        return Axis(0.0, 1.0, False, (0.0, 1.0))
    low, high = float(values.min()), float(values.max())
    positive = values[values > 0]
    if log and positive.size and high / float(positive.min()) > WIDE:
        return _log_axis(max(float(positive.min()), high / 10**DECADES), high)
    margin = 0.05 * (high - low) or max(abs(high) * 0.1, 0.5)
    # What is never negative is not drawn below zero.
    low, high = (max(low - margin, 0.0) if low >= 0 else low - margin), high + margin
    return Axis(low, high, False, tuple(nice_ticks(low, high)))


def frames_axis(last: float) -> Axis:
    """The time axis, from 0 to the last frame."""
    high = max(float(last), 1.0)
    ticks = nice_ticks(0.0, high)
    # A run of 999,936 frames ends at 1M for the eye.
    following = ticks[-1] + ticks[1]
    if following <= 1.02 * high:
        ticks, high = [*ticks, following], following
    return Axis(0.0, high, False, tuple(ticks))


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) between two values, at most `most` + 1."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def _log_axis(low: float, high: float) -> Axis:
    low, high = low / 1.2, high * 1.2
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    every = max(1, math.ceil((last - first + 1) / 6))
    ticks = [10.0**k for k in range(first, last + 1, every)]
    if len(ticks) < 3:
        ticks = [m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5)]
    return Axis(low, high, True, tuple(t for t in ticks if low <= t <= high))


def number(value: float) -> str:
    """A value for a sentence or a table."""
    if not math.isfinite(value):
        return "not finite"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def tick(value: float) -> str:
    """A value for an axis: short."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"
