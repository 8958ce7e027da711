"""Orders: what the governor wants of the round at hand. Everything else obeys them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from rl_twoclocks.update import Controls


@dataclass(frozen=True)
class Orders:
    """All that may differ from the configuration, for one round."""

    controls: Controls
    passes: int
    batch_size: int
    """B, frames, from the next rollout on."""
    update_frequency: int
    """U, frames, from the next rollout on."""
    keep: Tensor | None = None
    """Frames of the window [k] to learn from; None: all."""
    reseed: bool = False
    """Begin new episodes, from a stream of their own, before the next rollout."""
    noise: float = 0.0
    """Deviation of the noise on the next rollout's observations, in their running deviations."""
    rescue: bool = False
    """Go back to a state from before the cliff."""
    free_memory: bool = False
    """Collect garbage and empty caches."""


@dataclass(frozen=True)
class Change:
    """One cure's part in the orders."""

    cure: str
    """Name of the cure."""
    why: str
    """Names of the alarms, or another reason, in a few words."""
    what: str
    """What it changes, in plain words."""
    fields: dict[str, Any]
    """Fields of `Orders` with their new values; `controls` as a dict of its fields."""

    def apply(self, orders: Orders) -> Orders:
        """Orders with this change."""
        fields = dict(self.fields)
        if "controls" in fields:
            fields["controls"] = replace(orders.controls, **fields["controls"])
        return replace(orders, **fields)
