from __future__ import annotations

import numpy as np
import pytest

from rl_twoclocks.diagnostics import CALIBRATED, SEED, Limits
from rl_twoclocks.diagnostics.history import KEEP
from rl_twoclocks.diagnostics.reward_profile import (
    STEEP,
    alert_line,
    staircase_alarm,
    staircase_length,
    variance_profile,
)
from tests.diagnostics.histories import recorded


def learning_curve(rounds: int, seed: int, noise: float = 3.0) -> np.ndarray:
    rise = 100 * (1 - np.exp(-np.arange(rounds) / 8))
    return rise + np.random.default_rng(seed).normal(scale=noise, size=rounds)


def staircase(seed: int, swing: float = 80.0, pairs: int = 14) -> np.ndarray:
    return np.concatenate([learning_curve(150, seed), [70.0 + swing, 70.0 - swing] * pairs])


def test_variance_profile_of_a_ramp_is_the_variance_of_ten_consecutive_integers() -> None:
    profile = variance_profile(np.arange(25), scale=1.0)
    np.testing.assert_allclose(profile, np.full(16, 99 / 12))


def test_variance_profile_is_in_units_of_the_squared_scale() -> None:
    returns = [0.0, 4.0] * 10
    np.testing.assert_allclose(variance_profile(returns, scale=2.0, window=4), np.ones(17))
    np.testing.assert_allclose(variance_profile(returns, scale=-2.0, window=4), np.ones(17))


def test_variance_profile_sees_only_its_window() -> None:
    returns = np.zeros(30)
    returns[10] = 10.0
    profile = variance_profile(returns, scale=1.0)
    assert profile[0] == 0.0
    np.testing.assert_allclose(profile[1:11], np.full(10, 9.0))
    assert profile[11] == 0.0


@pytest.mark.parametrize("rollouts", [0, 1, 9])
def test_variance_profile_of_fewer_rollouts_than_a_window_is_empty(rollouts: int) -> None:
    assert variance_profile(np.ones(rollouts), scale=1.0).shape == (0,)


def test_alert_line_is_one_and_a_half_times_the_mean() -> None:
    assert alert_line(np.array([1.0, 3.0])) == 3.0
    assert alert_line(np.zeros(0)) == 0.0


@pytest.mark.parametrize(
    ("profile", "length"),
    [([1, 1, 5, 5, 5], 3), ([5, 5, 5], 3), ([5, 5, 1], 0), ([5, 1, 5, 2, 2], 0), ([], 0)],
)
def test_staircase_length_counts_the_newest_entries_above_the_level(
    profile: list[float], length: int
) -> None:
    assert staircase_length(np.array(profile), level=2.0) == length


@pytest.mark.parametrize(
    ("limits", "swing", "severity"),
    [
        (CALIBRATED, 8.0, "watch"),
        (CALIBRATED, 80.0, "warn"),
        (SEED, 450.0, "watch"),
        (SEED, -1500.0, "warn"),
    ],
    ids=["calibrated", "calibrated, steep", "seed", "seed, steep"],
)
@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_staircase_alarm_on_variance_that_rose_and_stays_high(
    limits: Limits, swing: float, severity: str, seed: int, narrow: bool
) -> None:
    pairs = 14 if limits is CALIBRATED else 8
    returns = staircase(seed, swing, pairs)
    if swing < 0:
        # Rare and deep: what lies beside them, and so the trend and the gain, stays as it was.
        returns[150:] = np.where(np.arange(2 * pairs) % 4 == 3, 70.0 + swing, 70.0)
    bits = np.where(np.arange(returns.size) < 150, 9.5, 2.0 if narrow else 8.5)
    series = {"rollout/return_round": returns, "diag/rollout_entropy": bits}
    series["diag/rollout_entropy_own_range"] = bits
    alarm = staircase_alarm(recorded(series), limits)
    assert alarm is not None
    # Without fewer different states it is what a policy that begins to walk looks like.
    expected = severity if narrow else "watch"
    assert (alarm.name, alarm.severity) == ("reward_staircase", expected)
    assert alarm.values["variance"] > alarm.values["alert line"]
    assert (alarm.values["variance"] > STEEP * alarm.values["alert line"]) is (severity == "warn")
    assert alarm.values["windows"] > limits.staircase


@pytest.mark.parametrize("seed", range(5))
def test_staircase_alarm_of_the_seed_set_is_absolute(seed: int) -> None:
    # A hundred times the run's usual variance, but none beyond 3 in units of what was gained.
    seed_series = {"rollout/return_round": staircase(seed, swing=200.0, pairs=8)}
    assert staircase_alarm(recorded(seed_series), SEED) is None
    series = {"rollout/return_round": staircase(seed, swing=200.0)}
    alarm = staircase_alarm(recorded(series), CALIBRATED)
    assert alarm is not None
    assert 1.0 < alarm.values["variance"] < SEED.staircase_rise
    assert alarm.values["alert line"] < 0.02
    beyond = staircase_alarm(recorded({"rollout/return_round": staircase(seed, 450.0, 8)}), SEED)
    assert beyond is not None
    assert beyond.values["alert line"] == SEED.staircase_rise


@pytest.mark.parametrize("seed", range(5))
def test_staircase_alarm_sees_one_after_a_fast_rise(seed: int) -> None:
    # Within five rounds from 0 to 100: their variance must not lift the line for ever.
    rise = np.concatenate([np.arange(0.0, 100.0, 20.0), np.full(55, 100.0)])
    calm = rise + np.random.default_rng(seed).normal(scale=3.0, size=60)
    assert staircase_alarm(recorded({"rollout/return_round": calm}), CALIBRATED) is None
    for swing in (25.0, 80.0):
        returns = np.concatenate([calm, [70.0 + swing, 70.0 - swing] * 14])
        assert staircase_alarm(recorded({"rollout/return_round": returns}), CALIBRATED) is not None


@pytest.mark.parametrize("seed", range(3))
def test_staircase_alarm_measures_the_gain_from_the_runs_start_in_a_long_run_too(
    seed: int,
) -> None:
    calm = np.full(KEEP + 88, 100.0)
    calm += np.random.default_rng(seed).normal(scale=3.0, size=calm.size)
    returns = np.concatenate([np.linspace(0.0, 100.0, 20), calm, [150.0, -10.0] * 14])
    alarm = staircase_alarm(recorded({"rollout/return_round": returns}), CALIBRATED)
    assert alarm is not None
    # In units of the gain of 100, and not of what was gained within the kept rounds.
    assert alarm.values["variance"] < 1.0


@pytest.mark.parametrize("seed", range(3))
def test_staircase_alarm_is_silent_on_one_fall_to_a_new_level(seed: int) -> None:
    returns = learning_curve(113, seed)
    returns[100:] -= 40.0
    on = [
        after
        for after in range(1, 14)
        if staircase_alarm(recorded({"rollout/return_round": returns[: 100 + after]}), CALIBRATED)
    ]
    assert on == []


@pytest.mark.parametrize("seed", range(10))
def test_staircase_alarm_is_silent_on_a_healthy_learning_curve(seed: int) -> None:
    history = recorded({"rollout/return_round": learning_curve(120, seed)})
    assert staircase_alarm(history, CALIBRATED) is None


@pytest.mark.parametrize("factor", [1e-3, 1e4])
def test_staircase_alarm_does_not_depend_on_the_scale_of_the_reward(factor: float) -> None:
    plain = staircase_alarm(recorded({"rollout/return_round": staircase(0)}), CALIBRATED)
    scaled = staircase_alarm(recorded({"rollout/return_round": factor * staircase(0)}), CALIBRATED)
    assert plain is not None
    assert scaled is not None
    assert scaled.values["variance"] == pytest.approx(plain.values["variance"])


def test_staircase_alarm_is_silent_while_the_return_grows() -> None:
    returns = staircase(0)
    returns[150:] += np.linspace(0, 400, 28)
    assert staircase_alarm(recorded({"rollout/return_round": returns}), CALIBRATED) is None


@pytest.mark.parametrize("returns", [[7.0] * 60, [1.0, -1.0] * 19], ids=["constant", "short"])
def test_staircase_alarm_is_silent_on_constant_returns_and_early_in_a_run(
    returns: list[float],
) -> None:
    assert staircase_alarm(recorded({"rollout/return_round": returns}), CALIBRATED) is None


def test_staircase_alarm_is_silent_in_a_round_without_a_return() -> None:
    history = recorded({"rollout/return_round": staircase(0)})
    history.next_round()
    assert staircase_alarm(history, CALIBRATED) is None
