"""How the bound of the gradient's norm is tightened."""

from __future__ import annotations

import math

import pytest

from rl_twoclocks.config_cures import ClipConfig
from rl_twoclocks.interventions.clip import Clip
from tests.interventions.views import alarms, controls, view


@pytest.mark.parametrize(("own", "expected"), [(0.5, 0.25), (4.0, 2.0), (math.inf, 3.0)])
def test_the_bound_is_halved_and_without_one_there_is_one_now(own: float, expected: float) -> None:
    there = view(on=alarms("gradient_norm", severity="watch"), rule=controls(max_grad_norm=own))
    change = Clip(ClipConfig()).propose(there)
    assert change is not None
    assert change.fields == {"controls": {"max_grad_norm": expected}}
    after = change.apply(there.orders).controls
    assert (after.max_grad_norm, after.learning_rate) == (expected, 3e-4)


def test_another_alarm_does_not_tighten_it() -> None:
    assert Clip(ClipConfig()).propose(view(on=alarms("policy_kl", "gradients_aligned"))) is None


def test_it_holds_after_the_last_alarm_and_does_not_tighten_round_by_round() -> None:
    cure = Clip(ClipConfig(hold=4))
    bounds = {}
    for k in range(20):
        change = cure.propose(view(round=k, on=alarms("gradient_norm") if k in (2, 3, 5) else {}))
        if change is not None:
            bounds[k] = change.fields["controls"]["max_grad_norm"]
    assert bounds == {k: 0.25 for k in range(2, 10)}


def test_its_memory_makes_a_round_trip() -> None:
    one, other = Clip(ClipConfig(hold=4)), Clip(ClipConfig(hold=4))
    one.propose(view(round=2, on=alarms("gradient_norm")))
    other.load_state_dict(one.state_dict())
    assert other.propose(view(round=6)) is not None
    assert other.propose(view(round=7)) is None
