"""Diagnostics: pure functions, tensors in, readings and alarms out. None changes training."""

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.first_ratio import first_ratio
from rl_twoclocks.diagnostics.policy_shift import policy_shift
from rl_twoclocks.diagnostics.value_fit import explained_variance

__all__ = ["Alarm", "explained_variance", "first_ratio", "policy_shift"]
