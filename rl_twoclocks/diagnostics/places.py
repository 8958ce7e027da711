"""The places that rollouts visit: entropy, copies and drift of the states of one run."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from rl_twoclocks.diagnostics.rollout_entropy import (
    Grid,
    duplicate_fraction,
    entropy_by_own_range,
    entropy_of_counts,
    entropy_of_places,
    fit_grid,
    flat_states,
    on_few_values,
    visits_of_states,
)
from rl_twoclocks.diagnostics.state_drift import histogram_kl

CELLS = 2500
"""Of the write-up's histogram: its entropy is at most log2 of these, or of the frames."""


class Places:
    """A grid, fitted to the first rollout, and how often the newest one visited its cells."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.grid: Grid | None = None
        self.counts: Tensor | None = None
        """Visits of each cell [side * side] by the window."""
        self.fresh: Tensor | None = None
        """The same by the newest rollout; None: nothing to compare the next one with."""
        self.cells: Tensor | None = None
        """The cell of each frame [n]."""

    def readings(
        self,
        raw: Tensor,
        features: Tensor,
        scale: Tensor | None = None,
        states: Tensor | None = None,
        images: bool = False,
        newest: Tensor | None = None,
    ) -> dict[str, float]:
        """Read one window.

        Args:
            raw: what frames are told apart by [n, ...], at its own size.
            features: the same as the network takes it [n, ...].
            scale: [d], brings dimensions of `raw` to one size, at the fit; None: they have it.
            states: [n, ...], those of `raw` that are states; None: all.
            images: whether states are images, where copies say nothing.
            newest: frames of the newest rollout [m], which drift is measured from and to; None: all.
        """
        states = raw if states is None else states
        if self.grid is None:
            discrete = on_few_values(flat_states(states))
            distinct = visits_of_states(states).numel() if discrete else 0
            self.grid = replace(fit_grid(raw, scale), discrete=discrete, distinct=distinct)
        side, places = self.grid.side, self.grid.places(raw)
        self.cells = self.grid.within(places)
        fresh = self.cells if newest is None else self.cells[newest]
        before, self.fresh = self.fresh, torch.bincount(fresh, minlength=side * side)
        self.counts = torch.bincount(self.cells, minlength=side * side)
        own, _ = entropy_by_own_range(features)
        most, bits = min(raw.shape[0], CELLS), own
        if self.grid.discrete and self.grid.distinct < most:
            # Of few states there is no more to be had than all of them, and two axes tell few apart.
            most, bits = self.grid.distinct, entropy_of_counts(visits_of_states(states))
        readings = {
            "diag/rollout_entropy": entropy_of_places(places),
            "diag/rollout_entropy_own_range": own,
            "diag/entropy_share": min(bits / max(math.log2(most), 1e-9), 1.0),
        }
        # Where states repeat by nature, copies say nothing.
        if not (images or self.grid.discrete):
            readings["diag/duplicates"] = duplicate_fraction(states)
        if before is not None and before.shape == self.fresh.shape:
            readings["diag/state_drift"] = histogram_kl(before, self.fresh, side)
        return readings

    def state_dict(self) -> dict:
        """Grid, and what the next rollout is compared with."""
        return {"grid": self.grid.state_dict() if self.grid else None, "counts": self.fresh}

    def load_state_dict(self, state: dict) -> None:
        """Restore."""
        self.grid = Grid.from_state(state["grid"]) if state["grid"] else None
        self.fresh = state["counts"]
