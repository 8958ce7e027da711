"""Rescue's numbers: how clocks shrink, which state is gone back to, how often."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import pytest

from rl_twoclocks.config_cures import RescueConfig
from rl_twoclocks.diagnostics import Alarm
from rl_twoclocks.diagnostics.cliff import SINCE
from rl_twoclocks.interventions import Snapshots
from rl_twoclocks.interventions.rescue import Rescue, shrunk
from rl_twoclocks.safety import SAFE_TABLE
from tests.command_envs import differing
from tests.diagnostics.histories import recorded
from tests.interventions.views import alarms, config, view
from tests.test_update import make_update, minibatch, network, step


@pytest.mark.parametrize(
    ("family", "n", "batch", "frequency", "factor", "count", "expected"),
    [
        # The write-up's: 2000 -> 500.
        ("other", 4, 2000, 2000, 0.25, 1, (500, 500)),
        ("other", 4, 4096, 1024, 0.25, 1, (1024, 256)),
        # At least 256 without a family, in whole columns.
        ("other", 4, 2048, 512, 1 / 64, 1, (1024, 256)),
        ("other", 10, 2000, 500, 1 / 64, 1, (1040, 260)),
        # The family's smallest U is 200.
        ("mujoco", 8, 2048, 2048, 0.25, 1, (512, 512)),
        ("mujoco", 8, 1984, 496, 0.25, 1, (800, 200)),
        ("mujoco", 8, 2048, 2048, 0.01, 1, (200, 200)),
        # A ratio of 10 is above mujoco's cap of 5.
        ("mujoco", 8, 20_000, 2000, 0.5, 1, (5000, 1000)),
        # U lies below the band already: it stays.
        ("mujoco", 8, 256, 128, 0.25, 1, (256, 128)),
        ("other", 4, 4096, 1024, 1.0, 1, (4096, 1024)),
        # The ratio's cap halves with every further rescue, 5, 2.5, 1.25, down to 1.
        ("mujoco", 8, 1984, 496, 0.25, 2, (496, 200)),
        ("mujoco", 8, 1984, 496, 0.25, 3, (248, 200)),
        ("mujoco", 8, 1984, 496, 0.25, 4, (200, 200)),
        ("other", 4, 4096, 1024, 0.25, 2, (1024, 256)),
        ("other", 4, 4096, 1024, 0.25, 3, (640, 256)),
    ],
)
def test_shrunk_clocks_are_those_found_by_hand(
    family: str,
    n: int,
    batch: int,
    frequency: int,
    factor: float,
    count: int,
    expected: tuple[int, int],
) -> None:
    settings = config(family, n, batch_size=batch, update_frequency=frequency, minibatch_size=64)
    assert shrunk(settings, factor, count) == expected


def test_the_ratio_never_rises_and_all_bounds_hold_everywhere() -> None:
    sizes = itertools.product((1, 3, 8, 10), (300, 1024, 1984, 6000), (60, 200, 496, 1024))
    for family, (n, b, u) in itertools.product(("other", "mujoco", "atari"), sizes):
        row = SAFE_TABLE.get(family)
        cap, smallest = (row.ratio_cap, row.update_frequency[0]) if row else (10.0, 256)
        batch, frequency = b // n * n, u // n * n
        if batch < max(frequency, 64):
            continue
        settings = config(
            family, n, batch_size=batch, update_frequency=frequency, minibatch_size=64
        )
        last = (batch, frequency)
        for count in range(1, 7):
            x, y = shrunk(settings, 0.5**count, count)
            case = (family, n, batch, frequency, count, x, y)
            assert x % n == y % n == 0, case
            assert 64 <= y <= x or y == frequency, case
            assert x / y <= batch / frequency, case
            # One window holds a minibatch at least.
            assert x / y <= max(1.0, cap * 0.5 ** (count - 1)) or x < 64 + n, case
            assert x <= last[0], case
            assert min(smallest, frequency) <= y <= last[1], case
            last = (x, y)


def test_a_factor_of_one_leaves_all_clocks_within_the_cap_alone() -> None:
    for n in (1, 8):
        for u in range(n, 600, n):
            for batch in (1024, 1984, 2000, 2048):
                if not batch / 10 <= u <= batch:
                    continue
                settings = config(
                    "other", n, batch_size=batch, update_frequency=u, minibatch_size=8
                )
                assert shrunk(settings, 1.0) == (batch, u)


def test_each_rescue_shrinks_clocks_and_step_once_more_up_to_the_most() -> None:
    settings = config(batch_size=4096, update_frequency=4096, minibatch_size=64)
    cure = Rescue(RescueConfig(most=3, before=10))
    seen = []
    moved = recorded({"train/kl": [0.1]})
    for k in range(50):
        change = cure.propose(
            view(
                round=k, on=alarms("reward_cliff", "first_ratio"), settings=settings, history=moved
            )
        )
        assert change is not None
        fields = change.fields
        if fields["rescue"]:
            seen.append((k, fields["batch_size"], fields["update_frequency"]))
        rate = fields["controls"]["learning_rate"]
        assert rate == pytest.approx(3e-4 * 0.25 ** len(seen))
    # However long the alarm: at most one in ten rounds.
    assert seen == [(0, 1024, 1024), (11, 256, 256), (22, 256, 256)]


@pytest.mark.parametrize(("kl", "again"), [(0.001, False), (0.02, True)])
def test_a_policy_that_hardly_moved_since_a_rescue_is_not_brought_back(
    kl: float, again: bool
) -> None:
    cure = Rescue(RescueConfig(before=10))
    on = alarms("reward_cliff", "first_ratio")
    # The first fall may have any cause, so that how far the policy moved says nothing.
    assert cure.propose(view(round=0, on=on, history=recorded({"train/kl": [0.0]})))
    later = cure.propose(view(round=20, on=on, history=recorded({"train/kl": [kl] * 20})))
    assert later is not None
    assert later.fields["rescue"] is again


def test_a_rollback_alone_changes_no_clock_and_no_step() -> None:
    cure = Rescue(RescueConfig(shrink=1.0, step=1.0))
    change = cure.propose(view(round=3, on=alarms("reward_cliff", "first_ratio")))
    assert change is not None
    assert change.fields == {"rescue": True}
    assert cure.propose(view(round=4)) is None


@pytest.mark.parametrize("name", ["reward_cliff", "collapse"])
def test_what_the_rescue_set_is_held_without_going_back_again(name: str) -> None:
    cure = Rescue(RescueConfig())
    first = cure.propose(view(round=5, on=alarms(name, "first_ratio")))
    later = cure.propose(view(round=6))
    assert first is not None
    assert later is not None
    assert (first.fields["rescue"], later.fields["rescue"]) == (True, False)
    assert first.fields["batch_size"] == later.fields["batch_size"]
    assert first.fields["controls"] == later.fields["controls"]
    assert (first.why, later.why) == (name, "earlier order")


def test_no_other_alarm_and_none_that_is_mild_rescues() -> None:
    cure = Rescue(RescueConfig())
    assert cure.propose(view(on=alarms("policy_kl", "diversity", "clock_ratio"))) is None
    assert cure.propose(view(on=alarms("reward_cliff", "first_ratio", severity="warn"))) is None
    assert cure.count == 0


@pytest.mark.parametrize(
    ("signs", "severity", "enough"),
    [
        (["policy_kl"], "danger", True),
        (["policy_kl", "effective_sample_size"], "warn", True),
        # By itself a warning comes now and then in a healthy run.
        (["effective_sample_size"], "warn", False),
        (["clip_fraction", "critic_jump"], "danger", False),
    ],
)
@pytest.mark.parametrize(
    ("blamed", "rescued"), [(None, False), (11, False), (12, True), (40, True)]
)
def test_a_fall_is_rescued_where_steps_may_have_led_there(
    blamed: int | None, rescued: bool, signs: list[str], severity: str, enough: bool
) -> None:
    cure = Rescue(RescueConfig(before=10))
    fall = Alarm("reward_cliff", "danger", {SINCE: 22.0}, "because;", "do it.")
    for k in range(41):
        on = {"reward_cliff": fall} if k == 40 else {}
        on |= alarms(*signs, severity=severity) if k == blamed else {}
        change = cure.propose(view(round=k, on=on))
    assert (change is not None) is (rescued and enough)


def test_zero_rescues_means_none() -> None:
    assert (
        Rescue(RescueConfig(most=0)).propose(view(on=alarms("reward_cliff", "first_ratio"))) is None
    )


def filled(
    scores: dict[int, float], every: int = 5, before: int = 10, sick: tuple[int, ...] = ()
) -> Snapshots:
    snapshots = Snapshots(every, before)
    for version, score in scores.items():
        snapshots.offer({"of": version}, version, score, sound=version not in sick)
    return snapshots


def versions(snapshots: Snapshots) -> list[int]:
    return [s["version"] for s in snapshots.kept]


def test_sixteen_states_are_kept_and_the_oldest_go() -> None:
    snapshots = filled({k: 0.0 for k in range(5, 201, 5)})
    assert versions(snapshots) == list(range(125, 201, 5))
    assert [k for k in range(1, 12) if snapshots.due(k)] == [5, 10]


@pytest.mark.parametrize("later", [40, 400])
def test_the_best_sound_state_is_kept_however_late_a_fall_is_noticed(later: int) -> None:
    scores = {5: 1.0, 10: 50.0, 15: 100.0} | dict.fromkeys(range(20, 20 + 5 * later, 5), 10.0)
    snapshots = filled(scores)
    assert versions(snapshots)[0] == 15
    assert len(versions(snapshots)) == 16
    found = snapshots.before(17)
    assert found is not None
    assert found["version"] == 15


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ({5: -math.inf, 10: 1.0, 15: 50.0, 20: 100.0, 25: 100.0}, 20),
        ({5: -math.inf, 10: -math.inf}, 10),
        ({5: -math.inf}, 5),
        ({5: -math.inf, 10: 3.0}, 10),
    ],
)
def test_states_of_unknown_score_are_gone_back_to_only_where_there_is_no_other(
    scores: dict[int, float], chosen: int
) -> None:
    found = filled(scores).before(30)
    assert found is not None
    assert found["version"] == chosen


def test_a_rescue_between_two_decisions_slows_the_next_rollout_already() -> None:
    cure, seen = Rescue(RescueConfig()), view(round=5)
    cure.begin(5)
    orders = cure.at_once(seen.orders, seen.config)
    assert orders.rescue
    later = cure.propose(view(round=6))
    assert later is not None
    assert orders.batch_size == later.fields["batch_size"]
    assert orders.update_frequency == later.fields["update_frequency"]
    alone = Rescue(RescueConfig(shrink=1.0, step=1.0))
    alone.begin(5)
    assert alone.at_once(seen.orders, seen.config) == replace(seen.orders, rescue=True)


def test_of_the_states_close_to_the_best_before_the_cliff_the_earliest_is_chosen() -> None:
    scores = {5: 1.0, 10: 2.0, 15: 9.2, 20: 10.0, 25: 9.9, 30: 50.0}
    snapshots = filled(scores)
    found = snapshots.before(29)
    assert found is not None
    # 30 is too late; 9.2 lies within a tenth of the spread from 10.
    assert found["version"] == 15
    assert found["state"] == {"of": 15}
    assert snapshots.before(14)["version"] == 10
    assert snapshots.before(5)["version"] == 5


def test_sound_states_come_first_however_good_the_sick_ones_were() -> None:
    scores = {5: 1.0, 10: 2.0, 15: 9.0, 20: 10.0}
    assert filled(scores, sick=(15, 20)).before(20)["version"] == 10
    assert filled(scores, sick=(5, 10, 15, 20)).before(20)["version"] == 20


def test_a_long_illness_does_not_push_out_the_sound_states_before_it() -> None:
    sick = tuple(range(25, 301, 5))
    snapshots = filled({k: 0.0 for k in range(5, 301, 5)}, sick=sick)
    assert versions(snapshots)[:4] == [5, 10, 15, 20]
    assert len(snapshots.kept) == 16
    assert versions(snapshots)[-1] == 300


def test_where_none_is_old_enough_the_oldest_is_chosen_and_without_any_none() -> None:
    assert filled({10: 1.0, 15: 2.0}).before(3)["version"] == 10
    assert filled({}).before(3) is None


def test_states_that_lead_to_the_cliff_are_forgotten() -> None:
    snapshots = filled({5: 1.0, 10: 1.0, 15: 1.0, 20: 1.0})
    snapshots.cut(10)
    assert versions(snapshots) == [5, 10]
    snapshots.cut(4)
    assert versions(snapshots) == []


@pytest.mark.parametrize("name", ["Adam", "RAdam"])
def test_a_state_that_was_gone_back_to_can_be_gone_back_to_again(name: str) -> None:
    update = make_update(network(), name)
    step(update, minibatch(network(), 0))
    kept = copy.deepcopy(update.state_dict())
    untouched = copy.deepcopy(kept)
    update.load_state_dict(kept)
    step(update, minibatch(network(), 1))
    assert differing(untouched, kept) == []
