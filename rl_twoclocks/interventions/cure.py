"""What a cure sees, and what all cures have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from rl_twoclocks.config import Config
from rl_twoclocks.config_base import Group
from rl_twoclocks.diagnostics import Alarm, History
from rl_twoclocks.diagnostics.alarm import SEVERITIES, Severity
from rl_twoclocks.interventions.orders import Change, Orders


@dataclass(frozen=True)
class View:
    """The state of a run, as a cure may read it."""

    config: Config
    round: int
    alarms: Mapping[str, Alarm]
    """Alarms whose rule held in this round or the one before, by name."""
    history: History
    cells: Tensor | None
    """Histogram cell of every frame of the window, [N * T]; None without a grid."""
    ages: Tensor
    """Age of every frame of the window in rollout columns, [N * T]; 0 is the newest."""
    orders: Orders
    """The orders so far: the schedule's, and what cures before this one changed."""

    def any_of(self, *names: str, at_least: Severity = "watch") -> list[str]:
        """Which of these alarms are on, with at least that severity."""
        rank = SEVERITIES.index(at_least)
        return [name for name in names if name in self.alarms and self.alarms[name].rank >= rank]


NEVER = -math.inf
"""The round of what has not happened yet."""
Settings = TypeVar("Settings", bound=Group)


class Cure(Generic[Settings]):
    """One cure; its memory is its plain attributes named in `memory`, with what they are at first."""

    name: str
    memory: tuple[str, ...] = ()

    def __init__(self, config: Settings) -> None:
        """Take its settings: the group of its name in `interventions`."""
        self.config = config

    def propose(self, view: View) -> Change | None:
        """Say what to change in this round, if anything."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What it remembers."""
        return {name: getattr(self, name) for name in self.memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore."""
        for name in self.memory:
            # A checkpoint may be of before the cure remembered this.
            setattr(self, name, state.get(name, getattr(self, name)))
