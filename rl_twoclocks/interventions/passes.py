"""Fewer passes while further passes fit noise; back up, one at a time, when it is quiet."""

from __future__ import annotations

from rl_twoclocks.config_cures import PassesConfig
from rl_twoclocks.interventions.cure import NEVER, Cure, View
from rl_twoclocks.interventions.orders import Change


class Passes(Cure[PassesConfig]):
    """Halves the passes on an alarm, and gives one back per 3 x `rest` quiet rounds.

    Twice as many quiet rounds after every pass that brought the alarm back.
    """

    name = "passes"
    memory = ("last", "alarmed", "passes", "wait", "given")
    last: float = NEVER
    alarmed: float = NEVER
    passes = 0
    wait = 3
    """Quiet rounds before a pass is given back, in `rest`."""
    given = False
    """Whether the last change gave a pass back."""

    def propose(self, view: View) -> Change | None:
        """Set this round's passes."""
        wanted = view.orders.passes
        now = self.passes or wanted
        why = view.any_of("clip_fraction", "policy_kl", "dead_units", at_least="warn")
        if why:
            self.alarmed = view.round
        quiet = view.round - max(self.last, self.alarmed)
        if why and now > 1 and view.round - self.last >= self.config.rest:
            self.last, self.passes = view.round, max(1, now // 2)
            self.wait *= 2 if self.given else 1
            self.given = False
        elif not why and self.passes and quiet >= self.wait * self.config.rest:
            # Giving back waits longer than taking away: otherwise it would swing.
            self.last, self.passes, self.given = view.round, now + 1, True
        if not self.passes or self.passes >= wanted:
            self.passes = 0
            return None
        what = f"{self.passes} of {wanted} passes"
        return Change(self.name, ", ".join(why) or "earlier order", what, {"passes": self.passes})
