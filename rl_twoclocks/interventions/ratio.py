"""Clock-ratio enforcement while a run goes on: shrink the window first, then collect more."""

from __future__ import annotations

import math

from rl_twoclocks.config_cures import RatioConfig
from rl_twoclocks.interventions.cure import NEVER, Cure, View
from rl_twoclocks.interventions.orders import Change
from rl_twoclocks.safety import SAFE_TABLE, ratio_cap


class Ratio(Cure[RatioConfig]):
    """Halves the clock ratio, or brings it to the family's cap, when data is too old for its policy.

    For the rest of the run: a ratio that was too high for this run is not tried again. Where the newest
    data is old already (a queue, a policy that is seldom published), the window is not what makes it so.
    """

    name = "ratio"
    memory = ("last", "most")
    last: float = NEVER
    most = 0.0
    """Clock ratio that is allowed from now on; 0: any."""

    def propose(self, view: View) -> Change | None:
        """Order smaller B, or larger U, from the next rollout on."""
        why = view.any_of("effective_sample_size", "clock_ratio", at_least="danger")
        why += view.any_of("baseline_leak", at_least="warn")
        if view.any_of("policy_lag", at_least="warn"):
            why = []
        batch, frequency = view.orders.batch_size, view.orders.update_frequency
        ratio = min(batch / frequency, self.most or batch / frequency)
        if why and view.round - self.last >= self.config.rest and ratio > 1:
            cap = ratio_cap(view.config.task.family)
            self.last, self.most = view.round, max(1.0, min(cap, ratio / 2))
        if not self.most or batch / frequency <= self.most:
            return None
        batch, frequency = within(view, batch, frequency, self.most)
        what = f"B {batch:,} / U {frequency:,} = {batch / frequency:.3g}"
        fields = {"batch_size": batch, "update_frequency": frequency}
        return Change(self.name, ", ".join(why) or "earlier order", what, fields)


def within(view: View, batch: int, frequency: int, most: float) -> tuple[int, int]:
    """B and U with a ratio of at most `most`, in whole columns of N frames: B first, then U."""
    n, minibatch = view.config.num_envs, view.config.clocks.minibatch_size
    row = SAFE_TABLE.get(view.config.task.family)
    floor = max(row.batch_size[0] if row else frequency, frequency, minibatch)
    floor = min(-(-floor // n) * n, batch)
    smaller = max(int(most * frequency) // n * n, floor)
    if smaller > most * frequency:
        frequency = min(-(-math.ceil(smaller / most) // n) * n, smaller)
    return smaller, frequency
