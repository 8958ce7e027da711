"""Periodicity: does a series that should be noise beat time with something?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.history import EPISODE, History
from rl_twoclocks.diagnostics.limits import Limits


@dataclass(frozen=True)
class Period:
    """The strongest period of a series."""

    length: int
    """In entries of the series; 0 if there is none."""
    share: float
    """Of the detrended variance that the period explains, corrected for its phases; at most 1."""
    p_value: float
    """Chance of so strong a period in the same values in random order; 1 if there is none."""


def strongest_period(
    series: Sequence[float] | np.ndarray, permutations: int = 1000, shared: int = 1
) -> Period:
    """Find the strongest period of a series, one value per round taken at a fixed phase.

    Epoch folding: for every period P the variance between the means of the P phases, over the total
    (adjusted R^2). Unlike a single spectral line it sees spikes, whose power spreads over harmonics,
    as well as waves. Trends slower than the longest period (a quarter of the series) are taken off
    first. The best period is tested against the same values in random order (a fixed stream); where
    `shared` neighbours in a row are measured on common frames, in blocks of random length, twice that on
    average: what neighbours have in common is no beat. Series shorter than 16, constant or not finite
    have none.
    """
    x = np.asarray(series, dtype=np.float64)
    n = x.size
    if n < 16 or not np.isfinite(x).all():
        return Period(0, 0.0, 1.0)
    longest = n // 4
    x = x - _running_mean(x, 2 * longest + 1)
    if np.ptp(x) <= 1e-12 * max(np.abs(series).max(), 1e-300):
        return Period(0, 0.0, 1.0)
    shares = _folded(x[None], longest)[0]
    # Multiples of a period explain as much as it does: the shortest that comes close is meant.
    best = int(np.flatnonzero(shares >= shares.max() - 0.05)[0])
    shuffled = _shuffled(x, permutations, 2 * shared if shared > 1 else 1)
    chance = _folded(shuffled, longest).max(axis=1)
    p_value = (1 + int((chance >= shares[best]).sum())) / (1 + permutations)
    if shares[best] <= 0:
        return Period(0, 0.0, 1.0)
    return Period(best + 2, float(shares[best]), p_value)


def strength_at(
    series: Sequence[float] | np.ndarray, period: int, permutations: int = 1000
) -> tuple[float, float]:
    """How strong one given period is: its share of the detrended variance, and its p-value.

    For a period that is known beforehand, so that nothing was searched for. Against the same series
    with every cycle turned round by a random number of places: what neighbours have in common stays,
    only the beat goes.

    Raises:
        ValueError: the series has fewer than three whole periods.
    """
    x = np.asarray(series, dtype=np.float64)
    if x.size < 3 * period:
        raise ValueError(f"{x.size} values are fewer than three periods of {period}")
    x = (x - _running_mean(x, 2 * period + 1))[: x.size // period * period]
    share = float(_folded(x[None], period, period)[0, 0])
    cycles = x.reshape(-1, period)
    turns = np.random.default_rng(0).integers(0, period, size=(permutations, len(cycles), 1))
    places = (np.arange(period) + turns) % period
    turned = np.take_along_axis(np.tile(cycles, (permutations, 1, 1)), places, axis=2)
    chance = _folded(turned.reshape(permutations, -1), period, period)[:, 0]
    return share, (1 + int((chance >= share).sum())) / (1 + permutations)


def _shuffled(x: np.ndarray, times: int, block: int) -> np.ndarray:
    """The values of x [n] in random order, [times, n], in blocks of random length, mean `block`."""
    places, cuts = np.random.default_rng(0).random((times, 2, x.size)).swapaxes(0, 1)
    ranks = cuts[:, 1:].argsort(axis=1).argsort(axis=1)
    blocks = np.zeros((times, x.size), dtype=np.intp)
    (ranks < -(-x.size // block) - 1).cumsum(1, out=blocks[:, 1:])
    return x[np.take_along_axis(places, blocks, axis=1).argsort(axis=1, kind="stable")]


def _folded(x: np.ndarray, longest: int, shortest: int = 2) -> np.ndarray:
    """Adjusted R^2 of the phase means, [rows, periods], for the periods shortest .. longest."""
    rows, n = x.shape
    total = ((x - x.mean(1, keepdims=True)) ** 2).sum(1)
    result = np.empty((rows, longest - shortest + 1))
    for period in range(shortest, longest + 1):
        phase = np.arange(n) % period
        # Rows of a one-hot matrix: phase sums by one product.
        member = (phase[None] == np.arange(period)[:, None]).astype(np.float64)
        counts = member.sum(1)
        means = x @ member.T / counts
        between = (counts * (means - x.mean(1, keepdims=True)) ** 2).sum(1)
        result[:, period - shortest] = 1 - (1 - between / total) * (n - 1) / (n - period)
    return result


def _running_mean(x: np.ndarray, width: int) -> np.ndarray:
    """Centred mean over `width` values, fewer at the ends."""
    kernel = np.ones(width)
    # "full" and a cut: "same" would give `width` values where the series is shorter than that.
    start = width // 2
    sums = np.convolve(x, kernel)[start : start + x.size]
    return sums / np.convolve(np.ones_like(x), kernel)[start : start + x.size]


def periodic_alarm(history: History, limits: Limits) -> Alarm | None:
    """A critic loss, one value per round at a fixed phase, that beats time."""
    if "diag/critic_loss_first_pass" not in history or history.round % 8:
        return None
    series = history.series("diag/critic_loss_first_pass")[-64:]
    if series.size < 32 or not (series > 0).all():
        return None
    # The logarithm: swings count in proportion to a loss that shrinks over a run.
    shared = history.rounds_of(1)
    found = strongest_period(np.log(series), shared=shared)
    if found.share < limits.periodicity or found.p_value > 0.002:
        return None
    # Looked at every 8 rounds, chance would pass now and then: the same period must be there twice.
    before = strongest_period(np.log(series[:-8]), shared=shared)
    if before.length != found.length or before.p_value > 0.02:
        return None
    episode = history.newest(EPISODE, 0.0)
    # Episodes that begin together and end by their time limit give the loss their own beat.
    if any(abs(found.length - k * episode) <= max(0.5, 0.1 * k * episode) for k in (1, 2)):
        return None
    fresh = history.newest("clock/staleness_max", 1.0) == 0
    cause = (
        "something returns in turn" if fresh else "the learner is fed the same stale data in turn"
    )
    return Alarm(
        "periodic_loss",
        "warn",
        {"period in rounds": float(found.length), "share": found.share, "p": found.p_value},
        f"the critic's loss beats time: {cause};",
        "compare the period with the intervals of collection and weight broadcasts, and shorten those.",
    )
