"""Memory cure: give back what nobody holds."""

from __future__ import annotations

import gc

import torch

from rl_twoclocks.config_cures import MemoryConfig
from rl_twoclocks.interventions.cure import NEVER, Cure, View
from rl_twoclocks.interventions.orders import Change


class Memory(Cure[MemoryConfig]):
    """Frees memory when it creeps, and then rests."""

    name = "memory"
    memory = ("last",)
    last: float = NEVER

    def propose(self, view: View) -> Change | None:
        """Free memory before the next rollout."""
        if not view.any_of("memory_creep") or view.round - self.last < self.config.rest:
            return None
        self.last = view.round
        return Change(
            self.name, "memory_creep", "collect garbage, empty caches", {"free_memory": True}
        )


def free_memory(device: torch.device) -> None:
    """Collect garbage, and give cached memory of a device back to the system."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
