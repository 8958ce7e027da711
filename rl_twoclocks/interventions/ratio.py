"""Clock-ratio enforcement while a run goes on: shrink the window first, then collect more."""

from __future__ import annotations

from rl_twoclocks.config import RatioConfig
from rl_twoclocks.interventions.cure import Remembering, View
from rl_twoclocks.interventions.orders import Change
from rl_twoclocks.safety import SAFE_TABLE, WATCH_RATIO


class Ratio(Remembering):
    """Halves the excess of the clock ratio when data is too old for its policy."""

    name = "ratio"
    memory = ("last", "batch_size", "update_frequency")

    def __init__(self, config: RatioConfig) -> None:
        """Take the settings."""
        self.config = config
        self.last = -config.rest
        self.batch_size = self.update_frequency = 0

    def propose(self, view: View) -> Change | None:
        """Order smaller B, or larger U, from the next rollout on."""
        why = view.any_of("effective_sample_size", "clock_ratio", at_least="danger")
        why += view.any_of("score_residual", "baseline_leak", "policy_lag", at_least="warn")
        batch = self.batch_size or view.orders.batch_size
        frequency = self.update_frequency or view.orders.update_frequency
        changed = ""
        if why and view.round - self.last >= self.config.rest and batch > frequency:
            batch, frequency = next_clocks(view, batch, frequency)
            changed = ", ".join(why)
            self.last, self.batch_size, self.update_frequency = view.round, batch, frequency
        if not self.batch_size or view.orders.rescue:
            return None
        # A rescue may have shrunk both below what was ordered here.
        batch = min(self.batch_size, view.orders.batch_size)
        frequency = min(self.update_frequency, batch)
        what = f"B {batch:,} / U {frequency:,} = {batch / frequency:.3g}"
        fields = {"batch_size": batch, "update_frequency": frequency}
        return Change(self.name, changed or "earlier order", what, fields)


def next_clocks(view: View, batch: int, frequency: int) -> tuple[int, int]:
    """Half of the clock ratio, or the family's cap if that is lower, in whole columns of N frames."""
    n, minibatch = view.config.num_envs, view.config.clocks.minibatch_size
    row = SAFE_TABLE.get(view.config.task.family)
    cap = row.ratio_cap if row else WATCH_RATIO
    wanted = max(1.0, min(cap, batch / frequency / 2))
    floor = max(row.batch_size[0] if row else frequency, frequency, minibatch)
    floor = min(-(-floor // n) * n, batch)
    smaller = max(int(wanted * frequency) // n * n, floor)
    if smaller / frequency > wanted:
        larger = -(-int(smaller / wanted) // n) * n
        frequency = min(max(larger, frequency), smaller)
    return smaller, frequency
