"""Interventions: one cure per file, and the governor that decides.

Nothing but the governor's `Orders` changes training. With the governor off, or silent, training is
bit-identical to training without it.
"""

from rl_twoclocks.interventions.cure import View
from rl_twoclocks.interventions.governor import Governor
from rl_twoclocks.interventions.memory import free_memory
from rl_twoclocks.interventions.orders import Change, Orders
from rl_twoclocks.interventions.rescue import Rescue, Snapshots

__all__ = ["Change", "Governor", "Orders", "Rescue", "Snapshots", "View", "free_memory"]
