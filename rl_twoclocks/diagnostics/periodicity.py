"""Periodicity: does a series that should be noise beat time with something?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.limits import Limits


@dataclass(frozen=True)
class Period:
    """The strongest period of a series."""

    length: float
    """In entries of the series; 0 if there is none."""
    share: float
    """Of the detrended power at that period, in [0, 1]."""
    p_value: float
    """Chance of so strong a peak in the same values in random order; 1 if there is none."""


def strongest_period(series: Sequence[float] | np.ndarray, permutations: int = 200) -> Period:
    """Find the strongest period of a series, one value per round taken at a fixed phase.

    A linear trend is taken off first and a Hann window applied. The peak is tested against the same
    values in random order (a fixed stream), so that one large value or a few levels cannot pass for a
    period. Periods longer than a quarter of the series are trends, and left out. Series shorter than
    16 or constant have none.
    """
    x = np.asarray(series, dtype=np.float64)
    n = x.size
    if n < 16 or not np.isfinite(x).all():
        return Period(0.0, 0.0, 1.0)
    t = np.arange(n)
    # First differences too: learning curves wander, and wandering has its power at long periods.
    x = x - np.polyval(np.polyfit(t, x, 1), t)
    if np.ptp(x) <= 1e-12 * max(np.abs(x).max(), 1e-300):
        return Period(0.0, 0.0, 1.0)
    difference = np.diff(x)
    peak, share = _peak(difference[None])
    shuffled = np.random.default_rng(0).permuted(np.tile(x, (permutations, 1)), axis=1)
    chance = _peak(np.diff(shuffled, axis=1))[1]
    p_value = (1 + int((chance >= share[0]).sum())) / (1 + permutations)
    return Period(float((n - 1) / peak[0]), float(share[0]), p_value)


def _peak(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Frequency index and share of power of the largest peak in each row, periods <= a quarter."""
    power = np.abs(np.fft.rfft(x * np.hanning(x.shape[1]), axis=1)) ** 2
    total = power[:, 1:].sum(axis=1).clip(min=1e-300)
    first = 4
    peak = power[:, first:].argmax(axis=1) + first
    # A Hann window spreads a line over three neighbours.
    padded = np.pad(power, ((0, 0), (1, 1)))
    rows = np.arange(x.shape[0])
    near = padded[rows, peak] + padded[rows, peak + 1] + padded[rows, peak + 2]
    return peak, near / total


def periodic_alarm(history: History, limits: Limits) -> Alarm | None:
    """A critic loss, one value per round at a fixed phase, that beats time."""
    if "diag/critic_loss_first_pass" not in history or history.round % 8:
        return None
    series = history.series("diag/critic_loss_first_pass")[-128:]
    if series.size < 32 or not (series > 0).all():
        return None
    # The logarithm: swings count in proportion to a loss that shrinks over a run.
    found = strongest_period(np.log(series))
    if found.share < limits.periodicity or found.p_value > 0.01:
        return None
    return Alarm(
        "periodic_loss",
        "warn",
        {"period in rounds": found.length, "share": found.share, "p": found.p_value},
        "the critic's loss beats time: the learner is fed the same stale data in turn;",
        "compare the period with the intervals of collection and weight broadcasts, and shorten those.",
    )
