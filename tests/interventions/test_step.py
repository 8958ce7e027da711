"""When steps are scaled, and for how long."""

from __future__ import annotations

import math

import pytest

from rl_twoclocks.config_cures import RescueConfig, StepConfig
from rl_twoclocks.diagnostics import History
from rl_twoclocks.interventions.rescue import Rescue
from rl_twoclocks.interventions.step import Step
from tests.interventions.views import alarms, controls, view


@pytest.mark.parametrize(
    "name", ["policy_kl", "effective_sample_size", "clip_fraction", "state_blind"]
)
def test_a_policy_that_moves_too_far_scales_steps(name: str) -> None:
    change = Step(StepConfig()).propose(view(on=alarms(name, severity="warn")))
    assert change is not None
    wanted = {"kl_target": 0.02, "ess_base": 0.9, "kl_limit": 0.1}
    assert change.fields == {"controls": wanted}
    assert change.why == name


def test_neither_a_mild_alarm_nor_another_one_scales() -> None:
    cure = Step(StepConfig())
    assert cure.propose(view(on=alarms("policy_kl", severity="watch"))) is None
    assert cure.propose(view(on=alarms("diversity"))) is None
    assert cure.propose(view(round=0)) is None


def test_it_holds_for_twenty_rounds_after_the_last_alarm() -> None:
    cure = Step(StepConfig(hold=20))
    sounding = {3, 4, 10}
    given = [
        k
        for k in range(60)
        if cure.propose(view(round=k, on=alarms("policy_kl") if k in sounding else {}))
    ]
    assert given == list(range(3, 31))


def test_always_means_from_the_first_round_on_without_an_alarm() -> None:
    cure = Step(StepConfig(always=True))
    changes = [cure.propose(view(round=k)) for k in (0, 50)]
    assert [c.why for c in changes if c is not None] == ["always", "always"]


@pytest.mark.parametrize(("own", "expected"), [(math.inf, 0.1), (0.5, 0.1), (0.03, 0.03)])
def test_the_kl_limit_is_only_ever_tightened(own: float, expected: float) -> None:
    cure = Step(StepConfig(kl_stop=0.1))
    change = cure.propose(view(on=alarms("policy_kl"), rule=controls(kl_limit=own)))
    assert change is not None
    assert change.fields["controls"]["kl_limit"] == expected


def test_the_scheduled_rate_itself_is_left_alone() -> None:
    there = view(on=alarms("policy_kl"))
    change = Step(StepConfig()).propose(there)
    assert change is not None
    after = change.apply(there.orders)
    assert after.controls.learning_rate == there.orders.controls.learning_rate
    assert (after.controls.kl_target, after.controls.ess_base) == (0.02, 0.9)


def test_its_memory_makes_a_round_trip() -> None:
    one, other = Step(StepConfig(hold=5)), Step(StepConfig(hold=5))
    one.propose(view(round=7, on=alarms("clip_fraction")))
    other.load_state_dict(one.state_dict())
    held = other.propose(view(round=12))
    assert held is not None
    assert held.why == "clip_fraction"
    assert other.propose(view(round=13)) is None


@pytest.mark.parametrize("cure", [Step(StepConfig()), Rescue(RescueConfig())])
def test_targets_count_per_action_dimension_as_the_alarms_do(cure: Step | Rescue) -> None:
    history = History()
    history.add({"diag/action_dims": 17.0, "train/kl": 1.0})
    on = alarms("policy_kl", "reward_cliff")
    change = cure.propose(view(round=30, on=on, history=history, rule=controls(kl_limit=9.0)))
    assert change is not None
    found = change.fields["controls"]
    assert (found["kl_target"], found["kl_limit"]) == pytest.approx((0.02 * 17, 0.1 * 17))
