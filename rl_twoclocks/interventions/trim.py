"""Entropy-gated batch trimming: below the gate, a round learns from part of its window.

Advantages are computed over the whole window first, so a frame's value estimate never depends on
whether its neighbours stay, and no trajectory is cut. Source: the two-clocks write-up (70 %).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_twoclocks.config_cures import TrimConfig
from rl_twoclocks.interventions.cure import Cure, View
from rl_twoclocks.interventions.orders import Change


def kept_frames(keep: str, fraction: float, ages: Tensor, cells: Tensor | None) -> Tensor:
    """Choose frames of a window, as indices [k] in ascending order, k = fraction x frames.

    Args:
        keep: newest; first (the oldest: the write-up's literal text); rare (those in the least
            visited cells, newer ones first among equals).
        fraction: share that stays, at least one frame.
        ages: [n], age of every frame; 0 is the newest.
        cells: [n], histogram cell of every frame; needed by `rare`.

    Raises:
        ValueError: `rare` without cells.
    """
    n = ages.numel()
    count = max(1, round(fraction * n))
    if keep == "rare":
        if cells is None:
            raise ValueError("keep=rare needs the cells of the entropy's histogram")
        visits = torch.bincount(cells)[cells]
        # One key: visits first, age second.
        key = visits * (int(ages.max()) + 1) + ages
    else:
        key = ages if keep == "newest" else -ages
    return torch.argsort(key, stable=True)[:count].sort().values


class Trim(Cure[TrimConfig]):
    """Trims while the data has lost its variety."""

    name = "trim"

    def propose(self, view: View) -> Change | None:
        """Trim this round's window."""
        why = view.any_of("diversity", "duplicates", at_least="warn")
        if not why or (self.config.keep == "rare" and view.cells is None):
            return None
        kept = kept_frames(self.config.keep, self.config.fraction, view.ages, view.cells)
        dropped = view.ages.numel() - kept.numel()
        what = f"learn from the {self.config.keep} {kept.numel():,} frames, {dropped:,} dropped"
        return Change(self.name, ", ".join(why), what, {"keep": kept})
