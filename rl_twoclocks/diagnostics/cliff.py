"""Reward cliff and collapse: a return that falls and does not come back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.limits import Limits


def normalised_score(value: float, random: float, healthy: float) -> float:
    """(value - random) / (healthy - random): 0 at a random policy's return, 1 at a healthy one's.

    Ratios of raw returns mean nothing where returns are negative. 0 if healthy is not above random.
    """
    span = healthy - random
    return (value - random) / span if span > 0 else 0.0


def rounds_below(
    returns: Sequence[float] | np.ndarray, random: float, fraction: float = 0.5
) -> int:
    """How many of the newest returns in a row have a score below `fraction` of the running maximum.

    The running maximum is of the returns before them. 0 while nothing was gained over `random`.
    """
    x = np.asarray(returns, dtype=np.float64)
    if x.size < 2:
        return 0
    best = np.maximum.accumulate(x)
    fallen = (best > random) & (x - random < fraction * (best - random))
    still = np.flatnonzero(~fallen)
    return int(x.size - 1 - still[-1]) if still.size else int(x.size)


def collapsed(evaluations: Sequence[float] | np.ndarray, random: float) -> bool:
    """The one definition of collapse: score below half of its running maximum, three times in a row."""
    return rounds_below(evaluations, random) >= 3


def smoothed(returns: Sequence[float] | np.ndarray, window: int = 5) -> np.ndarray:
    """Running median over the last `window` values, [k]: one unlucky rollout is no fall."""
    x = np.asarray(returns, dtype=np.float64)
    if x.size == 0:
        return x
    padded = np.concatenate([np.full(window - 1, x[0]), x])
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, window), axis=-1)


def score_now(history: History) -> float:
    """Newest smoothed return between the run's first (0) and its best (1); nan without a gain."""
    x = smoothed(history.series("rollout/return_round"))
    if x.size < 3 or x.max() <= x[0]:
        return float("nan")
    return normalised_score(float(x[-1]), float(x[0]), float(x.max()))


def cliff_alarm(history: History, limits: Limits) -> Alarm | None:
    """The return fell off its height and did not come back."""
    if "rollout/return_round" not in history:
        return None
    returns = history.series("rollout/return_round")
    if returns.size < 8:
        return None
    x = smoothed(returns)
    spread = float(np.median(np.abs(np.diff(returns))))
    # A fall within the usual noise of the returns is none.
    if x.max() - x[-1] < 3 * spread:
        return None
    below = rounds_below(x.tolist(), float(x[0]))
    if below < limits.cliff_rounds:
        return None
    return Alarm(
        "reward_cliff",
        "danger",
        {"return": float(x[-1]), "best": float(x.max()), "rollouts below half": float(below)},
        "the return fell below half of its best and did not come back;",
        "go back to a checkpoint before the fall, with fewer frames per round and smaller steps.",
    )


def collapse_alarm(history: History, limits: Limits) -> Alarm | None:
    """The one definition of collapse, on evaluations."""
    if "eval/return_mean" not in history:
        return None
    evaluations = history.series("eval/return_mean").tolist()
    random = history.series("rollout/return_round")
    if not random.size or not collapsed(evaluations, float(random[0])):
        return None
    return Alarm(
        "collapse",
        "danger",
        {"return": evaluations[-1], "best": max(evaluations)},
        "three evaluations in a row lie below half of the best one;",
        "go back to the best checkpoint and lower the step size and the clock ratio.",
    )
