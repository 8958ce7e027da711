"""When episodes are begun anew, and how seldom."""

from __future__ import annotations

import pytest

from rl_twoclocks.config_cures import ReseedConfig
from rl_twoclocks.diagnostics import History
from rl_twoclocks.diagnostics.history import EPISODE, RETURN
from rl_twoclocks.interventions.reseed import Reseed
from tests.interventions.views import alarms, view


@pytest.mark.parametrize("name", ["diversity", "duplicates", "reward_staircase"])
def test_lost_variety_begins_new_episodes_with_a_little_noise(name: str) -> None:
    change = Reseed(ReseedConfig(noise=0.03)).propose(view(on=alarms(name, severity="warn")))
    assert change is not None
    assert change.fields == {"reseed": True, "noise": 0.03}
    assert change.why == name
    assert "0.03" in change.what


def test_neither_a_mild_alarm_nor_another_one_reseeds() -> None:
    cure = Reseed(ReseedConfig())
    assert cure.propose(view(on=alarms("diversity", severity="watch"))) is None
    assert cure.propose(view(on=alarms("reward_cliff", "policy_kl"))) is None
    assert cure.propose(view()) is None


def test_it_rests_between_two_reseedings_however_long_the_alarm() -> None:
    cure, history = Reseed(ReseedConfig(rest=10)), History()
    given = []
    for k in range(35):
        history.add({RETURN: 1.0})
        given += [k] if cure.propose(view(round=k, on=alarms("diversity"), history=history)) else []
        history.next_round()
    assert given == [0, 10, 20, 30]


def test_it_rests_longer_and_longer_while_no_episode_ends() -> None:
    """Every reseed cuts all episodes: where none has had time to end, nothing is known of them."""
    cure, on, history = Reseed(ReseedConfig(rest=10)), alarms("diversity"), History()
    given = [k for k in range(200) if cure.propose(view(round=k, on=on, history=history))]
    assert given == [0, 10, 30, 70, 150]
    history.round = 200
    history.add({RETURN: 1.0})
    history.next_round()
    given = [k for k in range(201, 340) if cure.propose(view(round=k, on=on, history=history))]
    # An episode has ended: the usual rest, and then longer again.
    assert given == [201, 211, 231, 271]


def test_every_reason_is_named() -> None:
    change = Reseed(ReseedConfig()).propose(view(on=alarms("duplicates", "diversity")))
    assert change is not None
    assert change.why == "diversity, duplicates"


def test_its_memory_makes_a_round_trip() -> None:
    one, other = Reseed(ReseedConfig(rest=10)), Reseed(ReseedConfig(rest=10))
    one.propose(view(round=7, on=alarms("diversity")))
    other.load_state_dict(one.state_dict())
    assert other.propose(view(round=16, on=alarms("diversity"))) is None
    assert other.propose(view(round=17, on=alarms("diversity"))) is not None


@pytest.mark.parametrize(("episode", "rest"), [(15.2, 17), (3.0, 10)])
def test_episodes_have_time_to_end_between_two_reseedings(episode: float, rest: int) -> None:
    history = History()
    history.add({EPISODE: episode})
    cure, on = Reseed(ReseedConfig(rest=10)), alarms("diversity")
    given = [k for k in range(40) if cure.propose(view(round=k, on=on, history=history))]
    assert given[1] - given[0] == rest
