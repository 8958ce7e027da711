"""Reward cliff and collapse: a return that falls and does not come back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.history import (
    EPISODE,
    EVALUATION,
    HEIGHT,
    HELD,
    LEVEL,
    RETURN,
    SMOOTH,
    SMOOTHED,
    History,
    median,
)
from rl_twoclocks.diagnostics.limits import Limits

REWARD, TERMINATIONS = "diag/reward_mean", "diag/terminations"
EPISODES = "rollout/episodes"
"""How many episodes have ended so far."""
ENOUGH = 25
"""Episodes that tell a fall from bad luck."""
SINCE = "since round"
"""Value of `reward_cliff` and `collapse`: the round in which the fall began, or the last good one."""
RECENT = 32
"""Newest returns by which their noise is judged."""
LUCK = 9.0
"""Usual differences between episodes by which the best of a run's rounds may lie above the others."""


def pace_readings(reward: Tensor, terminated: Tensor) -> dict[str, float]:
    """Mean reward per frame and number of terminations in a rollout, raw rewards and ends [N, T].

    Where episodes end by their time limit alone, the pace is the return over the limit, and is known
    in every round, not only when an episode ends.
    """
    return {REWARD: float(reward.mean()), TERMINATIONS: float(terminated.sum())}


def normalised_score(value: float, random: float, healthy: float) -> float:
    """(value - random) / (healthy - random): 0 at a random policy's return, 1 at a healthy one's.

    Ratios of raw returns mean nothing where returns are negative. 0 if healthy is not above random.
    """
    span = healthy - random
    return (value - random) / span if span > 0 else 0.0


def rounds_below(
    returns: Sequence[float] | np.ndarray,
    random: float,
    fraction: float = 0.5,
    best: float = -np.inf,
    tops: np.ndarray | None = None,
) -> int:
    """How many of the newest returns in a row have a score below `fraction` of the running maximum.

    The running maximum is of the returns before them, and of `best`, reached before the first of
    them; or `tops`, if it is given. 0 while nothing was gained over `random`.
    """
    x = np.asarray(returns, dtype=np.float64)
    if x.size == 0:
        return 0
    top = np.maximum.accumulate(np.maximum(x, best)) if tops is None else tops
    fallen = (top > random) & (x - random < fraction * (top - random))
    still = np.flatnonzero(~fallen)
    return int(x.size - 1 - still[-1]) if still.size else int(x.size)


def collapsed(
    evaluations: Sequence[float] | np.ndarray, random: float, best: float = -np.inf
) -> bool:
    """The one definition of collapse: score below half of its running maximum, three times in a row."""
    return rounds_below(evaluations, random, best=best) >= 3


def fallen_from(
    evaluations: Sequence[float] | np.ndarray, random: float, least: float
) -> int | None:
    """Where a finished run first fell: the first of three evaluations in a row that count as a collapse.

    Besides `collapsed`'s rule a fall needs a height: one that two evaluations in a row held, and of at
    least `least`. A policy that never learnt scatters around `random` and has nothing to lose.
    """
    x = np.asarray(evaluations, dtype=np.float64)
    held = np.minimum(x, np.concatenate([[-np.inf], x[:-1]]))
    tops = np.maximum.accumulate(held)
    low = (tops >= max(least, random)) & (x - random < 0.5 * (tops - random))
    three = np.flatnonzero(low[:-2] & low[1:-1] & low[2:])
    return int(three[0]) if three.size else None


def smoothed(returns: Sequence[float] | np.ndarray, window: int = SMOOTH) -> np.ndarray:
    """Running median over the last `window` values, [k]: one unlucky rollout is no fall."""
    x = np.asarray(returns, dtype=np.float64)
    if x.size == 0:
        return x
    padded = np.concatenate([np.full(window - 1, x[0]), x])
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, window), axis=-1)


def score_now(history: History) -> float:
    """Newest smoothed return between the run's first (0) and its best (1); nan without a gain."""
    if not history.start(RETURN).size:
        return float("nan")
    first, best = float(history.start(RETURN)[0]), history.highest(SMOOTHED)
    return normalised_score(history.newest(SMOOTHED), first, best) if best > first else float("nan")


def noise(history: History) -> float:
    """Three times the usual difference between the returns of two rounds, all or the newest ones."""
    steps = np.abs(np.diff(history.series(RETURN)))
    # A policy that begins to walk falls now and then: its returns differ by more than ever before.
    return 3 * max(median(steps), median(steps[-RECENT:])) if steps.size else 0.0


def _earlier_best(history: History, name: str) -> float:
    """The best value, if it was reached before the kept ones."""
    best = history.highest(name)
    kept = history.series(name)
    return best if kept.size and best > kept.max() else -np.inf


def cliff_alarm(history: History, limits: Limits) -> Alarm | None:
    """The return fell off its height and did not come back."""
    returns = history.series(RETURN)
    if RETURN not in history or returns.size < 8:
        return None
    newest, best = history.newest(LEVEL), history.highest(HEIGHT)
    # A fall within the usual noise of the returns is none.
    if best - newest < noise(history):
        return None
    first = float(history.start(RETURN)[0])
    tops = np.maximum.accumulate(history.series(HEIGHT))
    tops = np.maximum(tops, _earlier_best(history, HEIGHT))
    below = rounds_below(history.series(LEVEL), first, tops=tops)
    if below < limits.cliff_rounds or not _lasted(history, below):
        return None
    return Alarm(
        "reward_cliff",
        "danger",
        {"return": newest, "best": best, SINCE: float(history.rounds(LEVEL)[-below])},
        "more than half of what the return had gained is lost and has not come back;",
        "go back to a checkpoint before the fall, with fewer frames per round and smaller steps.",
    )


def _lasted(history: History, below: int) -> bool:
    """Whether enough episodes have ended since the fall, or every environment has had two of them.

    Short rounds hold few episodes, and hear of those that fail early before those that go on.
    """
    ended, episode = history.series(EPISODES), history.newest(EPISODE, 0.0)
    since = history.rounds(RETURN)[-below]
    if not ended.size or history.round - since >= 2 * episode:
        return True
    before = ended[history.rounds(EPISODES) < since]
    return not before.size or ended[-1] - before[-1] >= ENOUGH


def pace_alarm(history: History, limits: Limits) -> Alarm | None:
    """The reward per frame fell off its height for as long as an episode takes.

    Long episodes that end by their time limit tell a fall by their returns only much later.
    """
    pace, rounds, ends = history.series(REWARD), history.rounds(REWARD), history.rounds(RETURN)
    # Where episodes may end early, the pace of a policy that has learnt to go on is no other's.
    if REWARD not in history or ends.size < 3 or history.highest(TERMINATIONS) > 0:
        return None
    # Within an episode the pace has its own course: only means over whole episodes can be compared.
    episode = max(round(median(np.diff(ends))), 1)
    # Half an episode's fall shows in the mean when it is half over; the other half it has to stay.
    needed = int(max(limits.cliff_rounds, math.ceil(episode / 2)))
    # A few episodes do not show what is usual.
    if pace.size < 3 * (episode + SMOOTH + needed):
        return None
    mean = smoothed(np.convolve(pace, np.full(episode, 1 / episode), "valid"))
    below = rounds_below(mean, float(np.mean(history.start(REWARD))))
    if not needed <= below < mean.size:
        return None
    # What is usual before the fall from one episode to the next, beyond what the running median keeps
    # alike. Growth, also growth that slows down, is no noise.
    before, apart = mean[: -below - episode // 2], episode + SMOOTH
    steps = before[apart:] - before[:-apart]
    if steps.size < 3:
        return None
    number = np.arange(steps.size)
    steps -= np.polyval(np.polyfit(number, steps, 1), number)
    best = float(mean[:-below].max())
    if best - mean[-1] < LUCK * median(np.abs(steps - median(steps))):
        return None
    since = float(rounds[-below - episode // 2])
    return Alarm(
        "reward_cliff",
        "danger",
        {"reward per frame": float(mean[-1]), "best": best, SINCE: since},
        "more than half of what the reward per frame had gained is lost, for longer than an episode;",
        "go back to a checkpoint before the fall, with fewer frames per round and smaller steps.",
    )


def collapse_alarm(history: History, limits: Limits) -> Alarm | None:
    """The one definition of collapse, on evaluations; a height is what two of them in a row reached.

    One lucky evaluation is nothing to fall from: the returns of training may never have been there.
    """
    random, best = history.start(RETURN), history.highest(HELD)
    if EVALUATION not in history or HELD not in history or not random.size:
        return None
    evaluations, rounds = history.series(EVALUATION), history.rounds(EVALUATION)
    first = float(random[0])
    # A best score within the noise of evaluations is none to fall from.
    if best - first < max(noise(history), 2 * history.newest("eval/return_std", 0.0)):
        return None
    # Of the first kept evaluation nothing shows whether the one before reached as much.
    held = np.concatenate([[_earlier_best(history, HELD)], history.series(HELD)[1 - len(rounds) :]])
    below = rounds_below(evaluations, first, tops=np.maximum.accumulate(held))
    if below < 3:
        return None
    # The fall lies behind the last evaluation that was good.
    since = float(rounds[max(evaluations.size - below - 1, 0)])
    return Alarm(
        "collapse",
        "danger",
        {"return": float(evaluations[-1]), "best": best, SINCE: since},
        "in three evaluations in a row more than half of what had been gained is lost;",
        "go back to the best checkpoint and lower the step size and the clock ratio.",
    )
