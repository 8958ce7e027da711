"""An entropy bonus that holds a least width: a narrow policy turns small lags into large ratios."""

from __future__ import annotations

from rl_twoclocks.config_cures import WidthConfig
from rl_twoclocks.interventions.cure import Cure, View
from rl_twoclocks.interventions.orders import Change

ENOUGH = 100
"""Rounds at the largest bonus after which a policy that is still narrow is left alone."""


class Width(Cure[WidthConfig]):
    """Raises the entropy bonus while the policy is too narrow, and lets it decay after."""

    name = "width"
    memory = ("coeff", "tried")
    coeff = 0.0
    tried = 0
    """Rounds at the largest bonus in which the policy has stayed narrow."""

    def propose(self, view: View) -> Change | None:
        """Set this round's weight of the bonus."""
        c, history = self.config, view.history
        std = history.newest("diag/policy_std", 1.0)
        share = history.newest("diag/policy_entropy_share", 1.0)
        narrow = std < c.std or share < c.fraction
        if narrow:
            self.coeff = min(max(self.coeff * 1.5, c.coeff), c.max_coeff)
            self.tried += self.coeff == c.max_coeff
        else:
            self.tried = 0
        if not narrow and self.coeff:
            self.coeff = self.coeff / 1.1 if self.coeff > c.coeff / 10 else 0.0
        if self.tried > ENOUGH:
            # It wants to be narrow: a bonus that does not hold it open only spoils the objective.
            return None
        own = view.orders.controls.entropy_coeff
        if self.coeff <= own:
            return None
        fields = {"controls": {"entropy_coeff": self.coeff}}
        why = "narrow policy" if narrow else "earlier order"
        return Change(self.name, why, "entropy bonus", fields)
