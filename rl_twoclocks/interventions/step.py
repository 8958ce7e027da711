"""Smaller steps while the policy moves too far: scaled by KL and by effective sample size.

The rules run inside the optimizer step, minibatch by minibatch (rsl_rl's for KL, VCPO's for ESS); this
cure switches them on and off. The step never exceeds the tuned learning rate.
"""

from __future__ import annotations

from rl_twoclocks.config_cures import StepConfig
from rl_twoclocks.diagnostics.policy_shift import action_dims
from rl_twoclocks.interventions.cure import NEVER, Cure, View
from rl_twoclocks.interventions.orders import Change


class Step(Cure[StepConfig]):
    """On while policy KL or effective sample size are bad, and for `hold` rounds after."""

    name = "step"
    memory = ("until", "why")
    until: float = NEVER
    why = ""

    def propose(self, view: View) -> Change | None:
        """Scale this round's steps."""
        why = view.any_of("policy_kl", "effective_sample_size", at_least="warn")
        why += view.any_of("clip_fraction", "state_blind", at_least="warn")
        if why:
            self.until, self.why = view.round + self.config.hold, ", ".join(why)
        if view.round > self.until and not self.config.always:
            return None
        c = self.config
        # As the alarms: what a policy of many action dimensions moves in all of them adds up.
        target, stop = (each * action_dims(view.history) for each in (c.kl_target, c.kl_stop))
        limit = min(view.orders.controls.kl_limit, stop)
        base = max(view.orders.controls.ess_base, c.ess_base)
        controls = {"kl_target": target, "ess_base": base, "kl_limit": limit}
        what = f"scale steps to a KL of {target:.3g} and by the effective sample size"
        return Change(self.name, self.why or "always", what, {"controls": controls})
