from __future__ import annotations

import numpy as np
import pytest

from rl_twoclocks.diagnostics import CALIBRATED
from rl_twoclocks.diagnostics.deployment import deployment_alarm
from rl_twoclocks.diagnostics.history import KEEP
from tests.diagnostics.histories import recorded

FIRST = {"rollout/return_round": np.linspace(-1200.0, -300.0, 20).tolist()}


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


@pytest.mark.parametrize("seed", range(5))
def test_deployment_alarm_is_silent_while_the_gain_is_within_the_noise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    returns = -1200.0 + 100.0 * rng.normal(size=12)
    # One lucky evaluation, and an unlucky one beside it.
    series = {
        "rollout/return_round": returns.tolist(),
        "eval/return_mean": [float(returns[0]) + 120.0],
        "eval/changed_return_mean": [float(returns[0]) - 150.0],
    }
    assert deployment_alarm(recorded(series), CALIBRATED) is None


@pytest.mark.parametrize(("rounds", "raised"), [(4, False), (5, True)])
def test_deployment_alarm_waits_for_five_returns(rounds: int, raised: bool) -> None:
    series = {
        "rollout/return_round": [-1200.0 + k for k in range(rounds)],
        "eval/return_mean": [-200.0],
        "eval/changed_return_mean": [-900.0],
    }
    assert (deployment_alarm(recorded(series), CALIBRATED) is not None) is raised


def test_deployment_alarm_measures_from_the_runs_start_in_a_long_run_too() -> None:
    returns = [*np.linspace(-1200.0, -200.0, 40), *([-200.0] * (KEEP + 90))]
    evaluations = {"eval/return_mean": [-200.0], "eval/changed_return_mean": [-900.0]}
    history = recorded({"rollout/return_round": returns} | evaluations)
    assert history.series("rollout/return_round").min() == -200.0
    alarm = deployment_alarm(history, CALIBRATED)
    assert alarm is not None
    assert alarm.values["score"] == pytest.approx(0.3)
