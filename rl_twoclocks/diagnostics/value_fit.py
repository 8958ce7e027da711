"""How much of the value targets the critic explains."""

from __future__ import annotations

import torch
from torch import Tensor


def explained_variance(value: Tensor, target: Tensor) -> float:
    """1 - Var(target - value) / Var(target), both [n]; 1 is perfect, 0 a constant, below 0 worse.

    Constant targets give 0: there is nothing to explain.
    """
    variance = target.var(correction=0)
    residual = (target - value).var(correction=0)
    return float(torch.where(variance > 0, 1 - residual / variance.clamp(min=1e-20), 0.0))
