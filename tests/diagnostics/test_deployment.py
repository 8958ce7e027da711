from __future__ import annotations

import pytest

from rl_twoclocks.diagnostics import CALIBRATED
from rl_twoclocks.diagnostics.deployment import deployment_alarm, deployment_score
from tests.diagnostics.histories import recorded

FIRST = {"rollout/return_round": [-1200.0, -800.0, -300.0]}


@pytest.mark.parametrize(
    ("changed", "score"), [(-200, 1.0), (-1200, 0.0), (-700, 0.5), (-1700, -0.5)]
)
def test_deployment_score_is_one_at_the_return_in_training_and_zero_at_random(
    changed: float, score: float
) -> None:
    assert deployment_score(-200.0, changed, -1200.0) == pytest.approx(score)


def test_deployment_alarm_where_the_changed_conditions_fail() -> None:
    series = FIRST | {"eval/return_mean": [-200.0], "eval/changed_return_mean": [-900.0]}
    alarm = deployment_alarm(recorded(series), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("deployment_gap", "warn")
    assert alarm.values == {"score": pytest.approx(0.3), "training": -200.0, "changed": -900.0}


@pytest.mark.parametrize(
    ("training", "changed"),
    [(-200.0, -250.0), (-200.0, -700.0), (-200.0, -100.0), (-1300.0, -1500.0)],
    ids=["transfers", "half", "better", "nothing learnt"],
)
def test_deployment_alarm_is_silent(training: float, changed: float) -> None:
    series = FIRST | {"eval/return_mean": [training], "eval/changed_return_mean": [changed]}
    assert deployment_alarm(recorded(series), CALIBRATED) is None


def test_deployment_alarm_leaves_a_policy_that_collapsed_to_other_alarms() -> None:
    evaluations = {"eval/return_mean": [-200.0, -1300.0], "eval/changed_return_mean": [-1500.0]}
    assert deployment_alarm(recorded(FIRST | evaluations), CALIBRATED) is None


@pytest.mark.parametrize("missing", ["eval/return_mean", "eval/changed_return_mean"])
def test_deployment_alarm_needs_both_evaluations(missing: str) -> None:
    series = FIRST | {"eval/return_mean": [-200.0], "eval/changed_return_mean": [-900.0]}
    del series[missing]
    assert deployment_alarm(recorded(series), CALIBRATED) is None


def test_deployment_alarm_needs_a_random_return() -> None:
    series = {"eval/return_mean": [-200.0], "eval/changed_return_mean": [-900.0]}
    assert deployment_alarm(recorded(series), CALIBRATED) is None
