"""The entropy bonus that holds a least width."""

from __future__ import annotations

import pytest

from rl_twoclocks.config_cures import WidthConfig
from rl_twoclocks.diagnostics import History
from rl_twoclocks.interventions.width import Width
from tests.interventions.views import controls, view


def measured(**readings: float) -> History:
    history = History()
    history.add({f"diag/{name}": value for name, value in readings.items()})
    return history


def coeff(cure: Width, own: float = 0.0, **readings: float) -> float | None:
    there = view(history=measured(**readings), rule=controls(entropy_coeff=own))
    change = cure.propose(there)
    return None if change is None else change.fields["controls"]["entropy_coeff"]


@pytest.mark.parametrize(
    "narrow", [{"policy_std": 0.049}, {"policy_entropy_share": 0.019}], ids=["gaussian", "choices"]
)
def test_a_narrow_policy_gets_a_bonus_that_grows_by_half_up_to_its_bound(narrow: dict) -> None:
    cure = Width(WidthConfig())
    got = [coeff(cure, **narrow) for _ in range(15)]
    assert got == pytest.approx([min(0.001 * 1.5**k, 0.05) for k in range(15)])


@pytest.mark.parametrize(
    "wide", [{}, {"policy_std": 0.05}, {"policy_entropy_share": 0.02}], ids=["none", "std", "share"]
)
def test_a_policy_that_is_wide_enough_or_not_measured_gets_none(wide: dict) -> None:
    assert coeff(Width(WidthConfig()), **wide) is None


def test_the_bonus_decays_when_the_policy_is_wide_again_and_ends() -> None:
    cure = Width(WidthConfig())
    for _ in range(3):
        coeff(cure, policy_std=0.01)
    got = [coeff(cure, policy_std=0.3) for _ in range(60)]
    assert got[0] == pytest.approx(0.001 * 1.5**2 / 1.1)
    assert got[1] == pytest.approx(0.001 * 1.5**2 / 1.1**2)
    ended = got.index(None)
    assert 20 < ended < 50
    assert set(got[ended:]) == {None}
    assert cure.coeff == 0.0


def test_a_policy_that_stays_narrow_for_all_the_bonus_is_left_alone() -> None:
    cure = Width(WidthConfig())
    got = [coeff(cure, policy_std=0.01) for _ in range(150)]
    assert got[60] == 0.05 and got[-1] is None
    # Once it is wide again and narrows anew, it is tried anew.
    for _ in range(60):
        coeff(cure, policy_std=0.3)
    assert coeff(cure, policy_std=0.01) is not None


def test_a_larger_bonus_of_the_configuration_is_never_lowered() -> None:
    cure = Width(WidthConfig())
    assert coeff(cure, own=0.01, policy_std=0.01) is None
    got = [coeff(cure, own=0.01, policy_std=0.01) for _ in range(9)]
    assert all(x is None or x > 0.01 for x in got)
    assert got[-1] is not None


def test_its_memory_makes_a_round_trip() -> None:
    one, other = Width(WidthConfig()), Width(WidthConfig())
    coeff(one, policy_std=0.01)
    other.load_state_dict(one.state_dict())
    assert coeff(other, policy_std=0.01) == pytest.approx(0.0015)
