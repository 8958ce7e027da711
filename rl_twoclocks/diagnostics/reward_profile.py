"""Reward variance profile: does the return vary from rollout to rollout as it should?

Source: the two-clocks write-up. Its sign of desync is a staircase: variance that rises and stays high
while the policy replays easy episodes and avoids hard states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.cliff import smoothed
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.limits import Limits

WINDOW = 10
"""Rollouts in the rolling variance."""
STEEP = 4.0
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


def staircase_alarm(history: History, limits: Limits) -> Alarm | None:
    """Variance of the return that rose and stays high while the return does not grow."""
    if "rollout/return_round" not in history:
        return None
    returns = history.series("rollout/return_round")
    if returns.size < 4 * WINDOW:
        return None
    trend = smoothed(returns, WINDOW)
    # A learning curve varies because it rises, and more the higher it stands: only what varies around
    # its own trend counts, relative to what has been gained so far.
    gained = np.maximum.accumulate(np.abs(trend - history.start("rollout/return_round")[0]))
    floor = 0.1 * gained[-1]
    if floor <= 0:
        return None
    profile = variance_profile((returns - trend) / np.maximum(gained, floor), 1.0)
    if limits.staircase_relative:
        # The median, not the mean: one steep rise at the start would lift the line for ever.
        level = limits.staircase_rise * float(np.median(profile))
    else:
        level = max(alert_line(profile), limits.staircase_rise)
    length = staircase_length(profile, level)
    # Higher than noise would leave it: ten rounds ago the trend stood clearly lower.
    growing = trend[-1] > trend[-2 * WINDOW : -WINDOW].max() + 0.05 * gained[-1]
    if length <= limits.staircase or growing:
        return None
    steep = float(profile[-1]) > STEEP * level
    return Alarm(
        "reward_staircase",
        "warn" if steep else "watch",
        {"variance": float(profile[-1]), "alert line": level, "windows": float(length)},
        "the return's variance rose and stays high: easy episodes are replayed, hard states avoided;",
        "reseed the environments, and use each frame less often.",
    )
