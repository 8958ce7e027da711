"""Many seeds in one curve, and long series in few points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl_twoclocks.aggregate import interquartile_mean
from rl_twoclocks.reporting.runs import Series

POINTS = 600
"""Points that a drawn line has at most."""
GRID = 300
"""Points at which seeds are pooled at most."""
RESAMPLES = 1000
"""Bootstrap resamples of the seeds."""
LEVEL = 0.95
"""Coverage of the interval."""


@dataclass(frozen=True)
class Pooled:
    """Several seeds of one experiment: centre and interval at common frames."""

    centre: Series
    low: np.ndarray
    high: np.ndarray


def bootstrap_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap interval of the interquartile mean over seeds, `values` [seeds, points].

    Seeds are drawn with replacement, whole curves at a time, from a stream that is always the same:
    the same runs give the same page.
    """
    n = values.shape[0]
    drawn = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
    centres = interquartile_mean(values.T[:, drawn])
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(centres, [tail, 100 - tail], axis=-1)
    return low, high


def pool(series: Sequence[Series]) -> Pooled | None:
    """Pool seeds where all of them have a value; None for fewer than two seeds, or no such frames.

    Seeds are joined by straight lines to common frames. Where one of them has a hole, so has the
    pooled curve; beyond the end of the shortest it stops, since the rest would be another population.
    """
    if len(series) < 2 or any(len(s) == 0 for s in series):
        return None
    first, last = max(s.frames[0] for s in series), min(s.frames[-1] for s in series)
    union = np.unique(np.concatenate([s.frames for s in series]))
    union = union[(union >= first) & (union <= last)]
    if union.size == 0:
        return None
    grid = union[np.unique(np.linspace(0, union.size - 1, GRID).round().astype(int))]
    values = np.stack([np.interp(grid, s.frames, s.values) for s in series])
    whole = np.isfinite(values).all(axis=0)
    centre, low, high = (np.full(grid.size, np.nan) for _ in range(3))
    if whole.any():
        centre[whole] = interquartile_mean(values[:, whole].T)
        low[whole], high[whole] = bootstrap_interval(values[:, whole])
    return Pooled(Series(grid, centre), low, high)


def downsample(series: Series, limit: int = POINTS) -> Series:
    """Thin a series to at most `limit` points, keeping minima, maxima, holes and both ends.

    The inner points fall into bins of equal count; of each bin its lowest point, its highest and,
    where it has any, one hole are kept.
    """
    n = len(series)
    if n <= limit:
        return series
    kept = {0, n - 1}
    share = 3 if np.isnan(series.values).any() else 2
    for bin_ in np.array_split(np.arange(1, n - 1), (limit - 2) // share):
        values = series.values[bin_]
        holes = np.isnan(values)
        if holes.any():
            kept.add(int(bin_[holes.argmax()]))
        if not holes.all():
            kept |= {int(bin_[np.nanargmin(values)]), int(bin_[np.nanargmax(values)])}
    places = np.array(sorted(kept))
    return Series(series.frames[places], series.values[places])
