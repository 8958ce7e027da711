"""The clock ratio is lowered: B first, then U, in whole columns, never above the cap."""

from __future__ import annotations

import pytest

from rl_twoclocks.config_cures import RatioConfig
from rl_twoclocks.interventions.ratio import Ratio, within
from rl_twoclocks.safety import SAFE_TABLE, WATCH_RATIO
from tests.interventions.views import alarms, config, view

OLD = alarms("effective_sample_size")


def first_order(family: str, n: int, batch: int, frequency: int) -> tuple[int, int]:
    """B and U after the first alarm."""
    settings = config(family, n, minibatch_size=64, batch_size=batch, update_frequency=frequency)
    change = Ratio(RatioConfig()).propose(view(on=OLD, settings=settings))
    if change is None:
        return batch, frequency
    return change.fields["batch_size"], change.fields["update_frequency"]


@pytest.mark.parametrize(
    ("family", "n", "batch", "frequency", "expected"),
    [
        # No row: B may fall to U.
        ("other", 4, 4096, 512, (2048, 512)),
        ("other", 4, 1024, 512, (512, 512)),
        # Above twice the cap: at once to the cap.
        ("other", 4, 40_960, 512, (5120, 512)),
        # mujoco, B may fall to 1024: half of 8 needs no more than B.
        ("mujoco", 8, 4096, 512, (2048, 512)),
        # B would be 512, below the band: it stays at 1024 and U rises until the ratio is 2.
        ("mujoco", 8, 2048, 256, (1024, 256)),
        ("mujoco", 8, 1024, 256, (1024, 512)),
        # Both: B to the band's floor, U up to the cap of 5. 1024 / 208 = 4.92.
        ("mujoco", 8, 2048, 128, (1024, 208)),
        # Ratio 1 is the least.
        ("mujoco", 8, 1024, 800, (1024, 1024)),
    ],
)
def test_the_clocks_after_an_alarm_are_those_found_by_hand(
    family: str, n: int, batch: int, frequency: int, expected: tuple[int, int]
) -> None:
    assert first_order(family, n, batch, frequency) == expected


CASES = [
    (family, n, batch // n * n, frequency // n * n)
    for family in ("other", "mujoco", "atari", "inspection")
    for n in (1, 3, 4, 7, 8, 10, 16)
    for batch in (512, 1000, 2048, 4096, 10_000)
    for frequency in (64, 100, 200, 333, 500, 512)
    if batch // n * n >= frequency // n * n
]


def test_everywhere_the_ratio_falls_in_whole_columns_and_b_never_rises_nor_u_falls() -> None:
    for family, n, batch, frequency in CASES:
        b, u = first_order(family, n, batch, frequency)
        case = (family, n, batch, frequency, b, u)
        assert b % n == u % n == 0, case
        assert frequency <= u <= b <= batch, case
        assert b / u < batch / frequency or batch == frequency, case
        assert b >= 64 or b == batch, case


def test_the_ratio_is_never_above_the_cap() -> None:
    for family, n, batch, frequency in CASES:
        row = SAFE_TABLE.get(family)
        cap = row.ratio_cap if row else WATCH_RATIO
        b, u = first_order(family, n, batch, frequency)
        assert b / u <= max(1.0, min(cap, batch / frequency / 2)), (family, n, batch, frequency)


def test_u_stays_as_long_as_b_can_fall() -> None:
    for family, n, batch, frequency in CASES:
        b, u = first_order(family, n, batch, frequency)
        row = SAFE_TABLE.get(family)
        floor = max(row.batch_size[0] if row else 0, frequency, 64)
        if u > frequency:
            assert b <= -(-floor // n) * n, (family, n, batch, frequency, b, u)


@pytest.mark.parametrize(
    ("name", "severity", "acts"),
    [
        ("effective_sample_size", "danger", True),
        ("effective_sample_size", "warn", False),
        ("clock_ratio", "danger", True),
        ("clock_ratio", "watch", False),
        ("score_residual", "warn", False),
        ("baseline_leak", "warn", True),
        ("policy_lag", "danger", False),
        ("policy_kl", "danger", False),
    ],
)
def test_only_alarms_of_old_data_lower_it(name: str, severity: str, acts: bool) -> None:
    settings = config(batch_size=4096, update_frequency=512)
    change = Ratio(RatioConfig()).propose(
        view(on=alarms(name, severity=severity), settings=settings)
    )
    assert (change is not None) is acts


def test_it_holds_what_it_ordered_and_rests_between_two_changes() -> None:
    settings = config(batch_size=4096, update_frequency=512)
    cure = Ratio(RatioConfig(rest=20))
    given = []
    for k in range(65):
        change = cure.propose(view(round=k, on=OLD, settings=settings))
        assert change is not None
        given.append((change.fields["batch_size"], change.fields["update_frequency"]))
    assert given == [(2048, 512)] * 20 + [(1024, 512)] * 20 + [(512, 512)] * 25
    quiet = cure.propose(view(round=100, settings=settings))
    assert quiet is not None
    assert quiet.why == "earlier order"
    assert quiet.fields == {"batch_size": 512, "update_frequency": 512}


def test_classic_clocks_are_left_alone() -> None:
    settings = config(batch_size=512, update_frequency=512)
    assert Ratio(RatioConfig()).propose(view(on=OLD, settings=settings)) is None


@pytest.mark.parametrize("rescue", [True, False])
def test_the_smaller_u_of_a_rescue_is_kept_and_the_ratio_held(rescue: bool) -> None:
    settings = config(batch_size=4096, update_frequency=512, minibatch_size=64)
    cure = Ratio(RatioConfig())
    assert cure.propose(view(round=0, on=OLD, settings=settings)) is not None
    assert cure.most == 4.0
    rescued = {"batch_size": 1024, "update_frequency": 128, "rescue": rescue}
    held = cure.propose(view(round=1, settings=settings, **rescued))
    assert held is not None
    assert held.fields == {"batch_size": 512, "update_frequency": 128}
    # What the rescue set is within the limit: nothing is left to change, least of all upwards.
    rescued["batch_size"] = 512
    assert cure.propose(view(round=2, settings=settings, **rescued)) is None


@pytest.mark.parametrize("most", [1.0, 1.7, 2.5, 4.0])
def test_within_holds_any_ratio_in_whole_columns(most: float) -> None:
    above = [case for case in CASES if case[2] > most * case[3]]
    for family, n, batch, frequency in above:
        settings = config(family, n, minibatch_size=64)
        b, u = within(view(settings=settings), batch, frequency, most)
        case = (family, n, batch, frequency, b, u)
        assert b % n == u % n == 0, case
        assert b / u <= most, case
        assert frequency <= u <= b <= batch, case


def test_its_memory_makes_a_round_trip() -> None:
    settings = config(batch_size=4096, update_frequency=512)
    one, other = Ratio(RatioConfig()), Ratio(RatioConfig())
    one.propose(view(round=0, on=OLD, settings=settings))
    other.load_state_dict(one.state_dict())
    for k in (1, 19, 20, 21):
        a, b = (c.propose(view(round=k, on=OLD, settings=settings)) for c in (one, other))
        assert a == b
        assert a is not None


def test_a_window_whose_newest_data_is_old_is_not_what_makes_it_so() -> None:
    settings = config(batch_size=4096, update_frequency=512)
    on = alarms("effective_sample_size", "policy_lag")
    assert Ratio(RatioConfig()).propose(view(on=on, settings=settings)) is None
