"""The panel of alarms: which rules there are, and when one begins and ends."""

from __future__ import annotations

from collections.abc import Callable

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.cliff import cliff_alarm, collapse_alarm, pace_alarm
from rl_twoclocks.diagnostics.clock_signs import (
    lag_alarm,
    publish_alarm,
    ratio_alarm,
    worker_alarm,
)
from rl_twoclocks.diagnostics.deployment import deployment_alarm
from rl_twoclocks.diagnostics.gradients import alignment_alarm, gradient_alarm
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.limits import Limits
from rl_twoclocks.diagnostics.periodicity import periodic_alarm
from rl_twoclocks.diagnostics.plasticity import blind_alarm, dead_alarm, rank_alarm
from rl_twoclocks.diagnostics.policy_shift import clip_alarm, ess_alarm, kl_alarm
from rl_twoclocks.diagnostics.resources import idle_alarm, memory_alarm
from rl_twoclocks.diagnostics.reward_profile import staircase_alarm
from rl_twoclocks.diagnostics.rollout_entropy import diversity_alarm, duplicates_alarm
from rl_twoclocks.diagnostics.score import leak_alarm, score_alarm
from rl_twoclocks.diagnostics.state_drift import drift_alarm
from rl_twoclocks.diagnostics.value_fit import critic_jump_alarm

Rule = Callable[[History, Limits], Alarm | None]

RULES: tuple[Rule, ...] = (
    lag_alarm,
    publish_alarm,
    worker_alarm,
    ratio_alarm,
    kl_alarm,
    ess_alarm,
    clip_alarm,
    gradient_alarm,
    alignment_alarm,
    score_alarm,
    leak_alarm,
    diversity_alarm,
    duplicates_alarm,
    drift_alarm,
    critic_jump_alarm,
    periodic_alarm,
    staircase_alarm,
    cliff_alarm,
    pace_alarm,
    collapse_alarm,
    deployment_alarm,
    dead_alarm,
    rank_alarm,
    blind_alarm,
    memory_alarm,
    idle_alarm,
)
QUIET_ROUNDS = 20
"""An alarm ends when its rule has been silent for so many rounds; until then it is one onset."""


class Panel:
    """Alarms that are on, by name."""

    def __init__(
        self, limits: Limits, rules: tuple[Rule, ...] = RULES, quiet: int = QUIET_ROUNDS
    ) -> None:
        """Start with none on."""
        self.limits, self.rules, self.quiet = limits, rules, quiet
        self.active: dict[str, Alarm] = {}
        self._worst: dict[str, int] = {}
        self._last: dict[str, int] = {}

    def judge(self, history: History) -> list[Alarm]:
        """Apply all rules to the readings of this round; return the alarms that begin or grow worse."""
        found = [alarm for rule in self.rules if (alarm := rule(history, self.limits)) is not None]
        return self.take(found, history.round)

    def take(self, found: list[Alarm], now: int) -> list[Alarm]:
        """Enter alarms of round `now`; return those that begin or grow worse."""
        begun = []
        for alarm in found:
            if alarm.name not in self.active or alarm.rank > self._worst[alarm.name]:
                begun.append(alarm)
                self._worst[alarm.name] = alarm.rank
            self.active[alarm.name] = alarm
            self._last[alarm.name] = now
        for name in [n for n in self.active if now - self._last[n] > self.quiet]:
            del self.active[name]
        return begun

    def fresh(self, now: int, rounds: int = 1) -> dict[str, Alarm]:
        """Alarms whose rule held within the last `rounds` rounds."""
        return {k: v for k, v in self.active.items() if now - self._last[k] < rounds}

    def clear(self) -> None:
        """Switch all alarms off, after a rescue."""
        self.active.clear()
        self._worst.clear()
        self._last.clear()

    def state_dict(self) -> dict:
        """Active alarms and when each was last seen."""
        active = {
            name: vars(alarm) | {"values": {k: float(v) for k, v in alarm.values.items()}}
            for name, alarm in self.active.items()
        }
        return {"active": active, "worst": dict(self._worst), "last": dict(self._last)}

    def load_state_dict(self, state: dict) -> None:
        """Restore."""
        self.active = {k: Alarm(**v) for k, v in state["active"].items()}
        self._worst = dict(state["worst"])
        self._last = dict(state["last"])
