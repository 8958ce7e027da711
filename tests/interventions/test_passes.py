"""Passes fall fast, come back slowly, and do not swing."""

from __future__ import annotations

import pytest

from rl_twoclocks.config_cures import PassesConfig
from rl_twoclocks.interventions.passes import Passes
from tests.interventions.views import alarms, view

NOISY = alarms("clip_fraction", severity="warn")


def passes(cure: Passes, round: int, on: bool, wanted: int = 10) -> int:
    """What the round gets, order or not."""
    change = cure.propose(view(round=round, on=NOISY if on else {}, passes=wanted))
    return wanted if change is None else change.fields["passes"]


@pytest.mark.parametrize("name", ["clip_fraction", "policy_kl", "dead_units"])
def test_an_alarm_halves_the_passes(name: str) -> None:
    change = Passes(PassesConfig()).propose(view(on=alarms(name, severity="warn"), passes=10))
    assert change is not None
    assert change.fields == {"passes": 5}
    assert change.what == "5 of 10 passes"
    assert change.why == name


def test_neither_a_mild_alarm_nor_another_one_does() -> None:
    cure = Passes(PassesConfig())
    assert cure.propose(view(on=alarms("policy_kl", severity="watch"))) is None
    assert cure.propose(view(on=alarms("diversity"))) is None


def test_under_a_lasting_alarm_they_halve_once_per_rest_down_to_one() -> None:
    cure = Passes(PassesConfig(rest=10))
    got = [passes(cure, k, True) for k in range(50)]
    assert got == [5] * 10 + [2] * 10 + [1] * 30


def test_when_quiet_they_come_back_one_at_a_time_and_slower_than_they_fell() -> None:
    cure = Passes(PassesConfig(rest=10))
    got = [passes(cure, k, k == 0, wanted=4) for k in range(100)]
    assert got == [2] * 30 + [3] * 30 + [4] * 40
    # All given back: the cure is off, and halves from the full number again.
    assert cure.propose(view(round=100, passes=4)) is None
    assert passes(cure, 101, True, wanted=4) == 2


def test_an_alarm_soon_after_a_pass_was_given_back_waits_for_its_rest() -> None:
    cure = Passes(PassesConfig(rest=10))
    for k in range(31):
        passes(cure, k, k == 0, wanted=8)
    assert [passes(cure, k, True, wanted=8) for k in range(31, 41)] == [5] * 9 + [2]


def test_a_pass_that_brings_the_alarm_back_comes_back_later_the_next_time() -> None:
    """Where a number of passes is too much for good, they must not swing for ever."""
    cure = Passes(PassesConfig(rest=10))
    on, seen = True, []
    for k in range(400):
        seen.append(passes(cure, k, on, wanted=3))
        # Two passes are too many.
        on = seen[-1] >= 2
    given = [k for k in range(1, 400) if seen[k] == 2 and seen[k - 1] == 1]
    # After 30 quiet rounds, then 60, 120 and 240.
    assert len(given) == 3


def test_one_pass_is_never_taken_away() -> None:
    cure = Passes(PassesConfig())
    assert [passes(cure, k, True, wanted=1) for k in range(30)] == [1] * 30


def test_a_pass_does_not_come_back_in_the_first_quiet_round_after_a_long_alarm() -> None:
    cure = Passes(PassesConfig(rest=10))
    for k in range(100):
        passes(cure, k, True)
    assert passes(cure, 100, False) == 1


def test_its_memory_makes_a_round_trip() -> None:
    one, other = Passes(PassesConfig(rest=10)), Passes(PassesConfig(rest=10))
    passes(one, 5, True)
    other.load_state_dict(one.state_dict())
    assert [passes(other, k, True) for k in (6, 14, 15)] == [5, 5, 2]
