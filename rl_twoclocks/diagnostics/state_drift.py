"""State drift: how far the distribution of states moved from one rollout to the next."""

from __future__ import annotations

import math

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


def nearest_neighbour_kl(before: Tensor, after: Tensor, k: int = 5) -> float:
    """KL(before || after) in nats between samples [n, d] and [m, d], without any grid.

    The k-nearest-neighbour estimator (Wang, Kulkarni, Verdu 2009). It under-estimates in many
    dimensions and its bias on equal distributions is some 0.05: whiten, project to at most 8
    dimensions, and compare with the run's own usual value. May be slightly negative.

    Raises:
        ValueError: a sample has no more than k points.
    """
    n, m = before.shape[0], after.shape[0]
    if n <= k or m <= k:
        raise ValueError(f"{k} neighbours need more than {k} points, not {n} and {m}")
    # Distances by products cancel far from the origin.
    centre = before.double().mean(0)
    before, after = before.double() - centre, after.double() - centre
    # k + 1: the nearest neighbour in the own sample is the point itself.
    own = torch.cdist(before, before).kthvalue(k + 1, dim=1).values
    other = torch.cdist(before, after).kthvalue(k, dim=1).values
    # Repeated points have distance 0; the floor keeps the answer defined.
    floor = 1e-12
    ratio = (other.clamp(min=floor) / own.clamp(min=floor)).log().mean()
    return float(before.shape[1] * ratio) + math.log(m / (n - 1))


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
