"""Reseed: new episodes from a seeded stream, with a little noise on what is observed.

Seeds follow from the run's seed and the rollout's number, never from the wall clock: a run stays
reproducible. Source: the two-clocks write-up, stage one.
"""

from __future__ import annotations

import math

from rl_twoclocks.config_cures import ReseedConfig
from rl_twoclocks.diagnostics.history import EPISODE, RETURN
from rl_twoclocks.interventions.cure import NEVER, Cure, View
from rl_twoclocks.interventions.orders import Change


class Reseed(Cure[ReseedConfig]):
    """Reseeds when the data has lost its variety, and then rests."""

    name = "reseed"
    memory = ("last", "longer")
    last: float = NEVER
    longer = 1
    """Times the usual rest: twice as long after every reseed since which no episode has ended."""

    def propose(self, view: View) -> Change | None:
        """Begin new episodes before the next rollout."""
        why = view.any_of("diversity", "duplicates", "reward_staircase", at_least="warn")
        # Episodes must have time to end: their returns tell whether the narrow policy has learnt.
        ended = view.history.rounds(RETURN)
        judged = bool(ended.size) and ended[-1] > self.last
        if judged:
            self.longer = 1
        rest = max(self.config.rest, math.ceil(view.history.newest(EPISODE, 0.0)) + 1)
        if not why or view.round - self.last < rest * self.longer:
            return None
        if self.last != NEVER and not judged:
            self.longer *= 2
        self.last = view.round
        what = f"new episodes in all environments, observation noise {self.config.noise:g}"
        fields = {"reseed": True, "noise": self.config.noise}
        return Change(self.name, ", ".join(why), what, fields)
