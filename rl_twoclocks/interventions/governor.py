"""The governor: the only one that decides. It asks every cure, in order, and adds their changes up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rl_twoclocks.config import InterventionsConfig
from rl_twoclocks.interventions.clip import Clip
from rl_twoclocks.interventions.cure import Cure, View
from rl_twoclocks.interventions.memory import Memory
from rl_twoclocks.interventions.orders import Change, Orders
from rl_twoclocks.interventions.passes import Passes
from rl_twoclocks.interventions.ratio import Ratio
from rl_twoclocks.interventions.rescue import Rescue
from rl_twoclocks.interventions.reseed import Reseed
from rl_twoclocks.interventions.step import Step
from rl_twoclocks.interventions.trim import Trim
from rl_twoclocks.interventions.width import Width


class Governor:
    """Turns alarms into orders, round by round.

    Under `observe` every cure decides as it would, and nothing is ordered. Cures hold what they began
    for a number of rounds, and rest before they change anything again (hysteresis).
    """

    def __init__(self, config: InterventionsConfig) -> None:
        """Make the cures that are allowed. Rescue first: what it sets, others refine."""
        self.mode = config.governor
        kinds: tuple[type[Cure], ...] = (
            Rescue, Ratio, Reseed, Trim, Clip, Step, Passes, Width, Memory,
        )  # fmt: skip
        every = [kind(getattr(config, kind.name)) for kind in kinds]
        self.cures = [cure for cure in every if self.mode != "off" and cure.config.enabled]
        self.active: dict[str, str] = {}

    def decide(self, view: View) -> tuple[Orders, list[Change]]:
        """Orders of this round, and the changes that began or differ from the last round's.

        Args:
            view: the run as the cures see it; its orders are the schedule's.
        """
        changes = []
        orders = view.orders
        for cure in self.cures:
            change = cure.propose(replace(view, orders=orders))
            if change is not None:
                changes.append(change)
                # Under `observe` later cures too see what would have been ordered.
                orders = change.apply(orders)
        news = [c for c in changes if self.active.get(c.cure) != c.what]
        self.active = {change.cure: change.what for change in changes}
        return (orders if self.mode == "guard" else view.orders), news

    def state_dict(self) -> dict[str, Any]:
        """What the cures remember, and what is on."""
        cures = {cure.name: cure.state_dict() for cure in self.cures}
        return {"cures": cures, "active": dict(self.active)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore; a cure that was off then starts fresh."""
        self.active = dict(state["active"]) if self.cures else {}
        for cure in self.cures:
            if cure.name in state["cures"]:
                cure.load_state_dict(state["cures"][cure.name])
