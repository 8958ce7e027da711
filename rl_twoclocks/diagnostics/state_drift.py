"""State drift: how far the distribution of states moved from one rollout to the next."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.limits import Limits

COARSE = 5
"""Neighbouring cells merged per axis: KL between fine histograms would be sampling noise."""


def histogram_kl(before: Tensor, after: Tensor, side: int, coarse: int = COARSE) -> float:
    """KL(before || after) in nats between two histograms of the same cells.

    Args:
        before, after: counts [side * side] of `rollout_entropy.Grid`.
        side: cells per axis.
        coarse: cells per axis that are merged.

    Returns:
        0 for equal histograms. Half a count is added to every cell that either rollout visits, so
        the value is finite; its noise on equal distributions is about cells / (2 x frames).
    """
    p, q = _merge(before, side, coarse), _merge(after, side, coarse)
    seen = (p + q) > 0
    if not bool(seen.any()):
        return 0.0
    p, q = p[seen] + 0.5, q[seen] + 0.5
    p, q = p / p.sum(), q / q.sum()
    return max(0.0, float((p * (p / q).log()).sum()))


def _merge(counts: Tensor, side: int, coarse: int) -> Tensor:
    padded = -(-side // coarse) * coarse
    grid = torch.zeros(padded, padded, dtype=torch.float64, device=counts.device)
    grid[:side, :side] = counts.view(side, side).double()
    n = padded // coarse
    return grid.view(n, coarse, n, coarse).sum((1, 3)).flatten()


def drift_alarm(history: History, limits: Limits) -> Alarm | None:
    """Consecutive rollouts that lie in different places."""
    if not history.all_beyond("diag/state_drift", limits.drift, 2):
        return None
    return Alarm(
        "state_drift",
        "warn",
        {"nats": history.newest("diag/state_drift")},
        "each rollout visits other states than the one before: the policy moves faster than its data;",
        "take smaller steps, or collect more frames per version.",
    )
