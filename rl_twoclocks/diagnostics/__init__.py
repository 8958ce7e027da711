"""Diagnostics: pure functions, tensors in, readings and alarms out. None changes training.

Each file holds one sign: how it is measured, and the rule that raises its alarm. They work on plain
tensors of any trainer; `rl_twoclocks.integrations` shows it for Stable-Baselines3.
"""

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.first_ratio import first_ratio
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.limits import CALIBRATED, SEED, Limits, levels, limits
from rl_twoclocks.diagnostics.panel import Panel
from rl_twoclocks.diagnostics.policy_shift import policy_shift
from rl_twoclocks.diagnostics.value_fit import explained_variance

__all__ = [
    "CALIBRATED",
    "SEED",
    "Alarm",
    "History",
    "Limits",
    "Panel",
    "explained_variance",
    "first_ratio",
    "levels",
    "limits",
    "policy_shift",
]
