"""Adaptive gradient clipping: bound a unit's gradient relative to its weights."""

from __future__ import annotations

import torch
from torch import Tensor


def unit_norm(x: Tensor) -> Tensor:
    """L2 norm per output unit (first dimension kept); of the whole tensor below 2 dimensions."""
    if x.ndim < 2:
        return x.square().sum().sqrt()
    return x.square().sum(dim=tuple(range(1, x.ndim)), keepdim=True).sqrt()


def adaptive_clip(weight: Tensor, grad: Tensor, clipping: float, eps: float) -> Tensor:
    """Scale a gradient so that ||G_i|| <= clipping * max(||W_i||, eps) for every unit i.

    Source: Brock, De, Smith and Simonyan 2021 (NFNets), algorithm 1. Units within the bound come
    back unchanged.
    """
    limit = clipping * unit_norm(weight).clamp(min=eps)
    norm = unit_norm(grad)
    return torch.where(norm > limit, grad * (limit / norm.clamp(min=1e-12)), grad)
