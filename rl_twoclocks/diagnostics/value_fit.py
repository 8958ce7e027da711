"""How much of the value targets the critic explains."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.history import History, median
from rl_twoclocks.diagnostics.limits import Limits


def explained_variance(value: Tensor, target: Tensor) -> float:
    """1 - Var(target - value) / Var(target), both [n]; 1 is perfect, 0 a constant, below 0 worse.

    Constant targets give 0: there is nothing to explain.

    Raises:
        ValueError: the shapes differ, or there is no frame.
    """
    if value.shape != target.shape:
        shapes = f"values {list(value.shape)} and targets {list(target.shape)}"
        raise ValueError(f"{shapes} differ in shape: give one value per target")
    if target.numel() == 0:
        raise ValueError("no frames: what a critic explains of an empty window is not defined")
    wide = target.double()
    variance = wide.var(correction=0)
    residual = (wide - value).var(correction=0)
    constant = variance <= 1e-12 * wide.square().mean()
    return float(torch.where(constant, 0.0, 1 - residual / variance.clamp(min=1e-300)))


def critic_jump_alarm(history: History, limits: Limits) -> Alarm | None:
    """The critic's loss in the first pass jumps from one round to the next and stays up."""
    series = history.series("diag/critic_loss_first_pass")
    if "diag/critic_loss_first_pass" not in history or series.size < 16:
        return None
    before = median(series[-13:-3])
    jump = float(series[-3:].min()) / max(before, 1e-12) - 1
    steps = np.abs(np.diff(series[:-3])) / np.maximum(series[:-4], 1e-12)
    usual = limits.critic_jump_noise * median(steps)
    if limits.entropy_relative:
        narrow = history.newest("diag/entropy_share", 1.0) < limits.entropy_floor
    else:
        narrow = history.newest("diag/rollout_entropy_own_range", 99.0) < limits.entropy_low
    level = max(limits.critic_jump_narrow if narrow else limits.critic_jump, usual)
    if jump <= level:
        return None
    return Alarm(
        "critic_jump",
        # While a policy learns its targets change too: alone it is no more than a hint.
        "warn" if narrow else "watch",
        {"jump": jump, "level": level},
        "the critic's loss jumped: the targets changed under it (rewards, normaliser or states);",
        "look for what changed in the environment.",
    )
