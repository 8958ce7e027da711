"""A tighter gradient bound: decided before any change of the step size.

A stale sample's exploding gradient looks like a learning rate that is too high.
"""

from __future__ import annotations

import math

from rl_twoclocks.config_cures import ClipConfig
from rl_twoclocks.interventions.cure import NEVER, Cure, View
from rl_twoclocks.interventions.orders import Change


class Clip(Cure[ClipConfig]):
    """On while a layer's gradient stays high, and for `hold` rounds after."""

    name = "clip"
    memory = ("until",)
    until: float = NEVER

    def propose(self, view: View) -> Change | None:
        """Lower the bound of this round."""
        if view.any_of("gradient_norm"):
            self.until = view.round + self.config.hold
        if view.round > self.until:
            return None
        bound = view.orders.controls.max_grad_norm
        # Without a bound there is one now: the write-up's healthy level.
        bound = 3.0 if math.isinf(bound) else bound * self.config.factor
        what = f"bound the gradient's norm at {bound:g}"
        return Change(self.name, "gradient_norm", what, {"controls": {"max_grad_norm": bound}})
