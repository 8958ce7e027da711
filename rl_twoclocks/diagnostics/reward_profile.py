"""Reward variance profile: does the return vary from rollout to rollout as it should?

Source: the two-clocks write-up. Its sign of desync is a staircase: variance that rises and stays high
while the policy replays easy episodes and avoids hard states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.cliff import smoothed
from rl_twoclocks.diagnostics.history import RETURN, History, median
from rl_twoclocks.diagnostics.limits import Limits
from rl_twoclocks.diagnostics.rollout_entropy import narrowed

WINDOW = 10
"""Rollouts in the rolling variance."""
STEEP = 8.0
"""Variance beyond this multiple of the alarm's level is no longer only to be watched."""
ALERT = 1.5
"""The alert line lies at this multiple of the profile's mean."""


def variance_profile(
    returns: Sequence[float] | np.ndarray, scale: float, window: int = WINDOW
) -> np.ndarray:
    """Rolling variance [k - window + 1] of mean episode returns by rollout [k], in units of `scale`^2.

    `scale` is the task's return scale (for instance the spread between a random policy's return and
    the best so far), so that one threshold serves all tasks. Fewer rollouts than a window: empty.
    """
    x = np.asarray(returns, dtype=np.float64) / max(abs(scale), 1e-12)
    if x.size < window:
        return np.zeros(0)
    return np.lib.stride_tricks.sliding_window_view(x, window).var(axis=-1)


def alert_line(profile: np.ndarray, factor: float = ALERT) -> float:
    """The level above which variance is high: `factor` x the profile's mean; 0 without a profile."""
    return factor * float(profile.mean()) if profile.size else 0.0


def staircase_length(profile: np.ndarray, level: float) -> int:
    """How many of the newest entries in a row lie above `level`."""
    below = np.flatnonzero(~(profile > level))
    return int(profile.size - 1 - below[-1]) if below.size else int(profile.size)


def profile_and_level(
    returns: np.ndarray, first: float, limits: Limits
) -> tuple[np.ndarray, float] | None:
    """The profile that the alarm looks at, and the level above which variance is high.

    A learning curve varies because it rises, and more the higher it stands: only what varies around
    its own trend counts, relative to what has been gained over `first` so far.

    Returns:
        Profile [k - WINDOW + 1] in units of the squared gain, and its level; None without a gain.
    """
    trend = smoothed(returns, WINDOW)
    gained = np.maximum.accumulate(np.abs(trend - first))
    floor = 0.1 * gained[-1]
    if floor <= 0 or returns.size < WINDOW:
        return None
    profile = variance_profile((returns - trend) / np.maximum(gained, floor), 1.0)
    if limits.staircase_relative:
        # The median, not the mean: one steep rise at the start would lift the line for ever.
        return profile, limits.staircase_rise * median(profile)
    return profile, max(alert_line(profile), limits.staircase_rise)


def staircase_alarm(history: History, limits: Limits) -> Alarm | None:
    """Variance of the return that rose and stays high while the return does not grow."""
    returns = history.series(RETURN)
    if RETURN not in history or returns.size < 4 * WINDOW:
        return None
    first = float(history.start(RETURN)[0])
    found = profile_and_level(returns, first, limits)
    if found is None:
        return None
    profile, level = found
    length = staircase_length(profile, level)
    trend = smoothed(returns, WINDOW)
    # Higher than noise would leave it: ten rounds ago the trend stood clearly lower.
    margin = 0.05 * float(np.abs(trend - first).max())
    growing = trend[-1] > trend[-2 * WINDOW : -WINDOW].max() + margin
    if length <= limits.staircase or growing:
        return None
    # Alone it is also what a policy that begins to walk looks like, which falls now and then. Only
    # with fewer different states do the words below hold.
    steep = float(profile[-1]) > STEEP * level and narrowed(history, limits)
    return Alarm(
        "reward_staircase",
        "warn" if steep else "watch",
        {"variance": float(profile[-1]), "alert line": level, "windows": float(length)},
        "the return's variance rose and stays high: easy episodes are replayed, hard states avoided;",
        "reseed the environments, and use each frame less often.",
    )
