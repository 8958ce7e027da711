from __future__ import annotations

import pytest

from rl_twoclocks.diagnostics import CALIBRATED
from rl_twoclocks.diagnostics.clock_signs import lag_alarm, publish_alarm, ratio_alarm
from tests.diagnostics.histories import recorded


@pytest.mark.parametrize(
    ("lag", "severity"), [(1, "watch"), (3, "watch"), (4, "warn"), (7, "warn"), (8, "danger")]
)
def test_lag_alarm_grows_with_the_versions_that_the_newest_data_is_old(
    lag: float, severity: str
) -> None:
    alarm = lag_alarm(recorded({"clock/staleness_min": [0, lag, lag]}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("policy_lag", severity)
    assert alarm.values == {"versions": lag}


@pytest.mark.parametrize("series", [[0] * 9, [0, 0, 8], [8, 8, 0], [8]])
def test_lag_alarm_is_silent_on_fresh_data_or_a_single_late_rollout(series: list[float]) -> None:
    assert lag_alarm(recorded({"clock/staleness_min": series}), CALIBRATED) is None


def test_publish_alarm_where_the_policy_does_not_reach_the_collectors() -> None:
    alarm = publish_alarm(recorded({"clock/publish_lag": [0, 2, 3]}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("publish_lag", "danger")
    assert alarm.values == {"versions": 3}


@pytest.mark.parametrize("series", [[0] * 9, [1] * 9, [0, 0, 2], [3, 3, 0]])
def test_publish_alarm_is_silent(series: list[float]) -> None:
    assert publish_alarm(recorded({"clock/publish_lag": series}), CALIBRATED) is None


@pytest.mark.parametrize(
    ("ratio", "severity"), [(10, "watch"), (49.9, "watch"), (50, "danger"), (400, "danger")]
)
def test_ratio_alarm_follows_the_zones_of_the_specification(ratio: float, severity: str) -> None:
    series = {"clock/ratio_measured": [ratio], "clock/ratio": [4.0]}
    alarm = ratio_alarm(recorded(series), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("clock_ratio", severity)
    assert alarm.values == {"measured": ratio, "in force": 4.0}


@pytest.mark.parametrize("ratio", [1, 4, 9.99])
def test_ratio_alarm_is_silent_in_the_safe_zone(ratio: float) -> None:
    assert ratio_alarm(recorded({"clock/ratio_measured": [ratio]}), CALIBRATED) is None


def test_clock_alarms_say_nothing_in_a_round_without_readings() -> None:
    names = ("clock/staleness_min", "clock/publish_lag", "clock/ratio_measured")
    history = recorded({name: [60.0] * 5 for name in names})
    rules = (lag_alarm, publish_alarm, ratio_alarm)
    assert all(rule(history, CALIBRATED) is not None for rule in rules)
    history.next_round()
    assert all(rule(history, CALIBRATED) is None for rule in rules)
