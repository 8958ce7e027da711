from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rl_twoclocks.diagnostics import CALIBRATED
from rl_twoclocks.diagnostics.score import (
    expected_score,
    leak_alarm,
    score,
    score_alarm,
    score_power,
    score_readings,
)
from rl_twoclocks.distributions import Categorical, Gaussian, Params
from tests.diagnostics.histories import recorded


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(n: int, d: int, seed: int) -> Params:
    loc = torch.randn(n, d, generator=stream(seed), dtype=torch.float64)
    scale = torch.rand(n, d, generator=stream(seed + 1), dtype=torch.float64) + 0.5
    return loc, scale


def logits(n: int, choices: int, seed: int) -> Params:
    return (torch.randn(n, choices, generator=stream(seed), dtype=torch.float64),)


def readings_of_shift(gap: float, n: int, seed: int, advantage: Tensor) -> dict[str, float]:
    """A unit Gaussian whose mean lies `gap` below that of the data's policy, in one dimension."""
    ones = torch.ones(n, 1, dtype=torch.float64)
    behaviour, current = (gap * ones, ones), (0 * ones, ones)
    action = gap + torch.randn(n, 1, generator=stream(seed), dtype=torch.float64)
    ratio = Gaussian.log_prob(current, action) - Gaussian.log_prob(behaviour, action)
    return score_readings(Gaussian, behaviour, current, action, advantage, ratio)


def signs(n: int) -> Tensor:
    return torch.randint(0, 2, (n,), generator=stream(99)).double() * 2 - 1


@pytest.mark.parametrize("seed", range(3))
def test_gaussian_score_agrees_with_autograd(seed: int) -> None:
    loc, scale = gaussian(7, 3, seed)
    action = torch.randn(7, 3, generator=stream(seed + 5), dtype=torch.float64)
    leaves = [loc.requires_grad_(), scale.log().requires_grad_()]
    log_prob = Gaussian.log_prob((leaves[0], leaves[1].exp()), action).sum()
    gradient = torch.cat(torch.autograd.grad(log_prob, leaves), dim=-1)
    torch.testing.assert_close(score(Gaussian, (loc, scale), action), gradient)


@pytest.mark.parametrize("seed", range(3))
def test_categorical_score_agrees_with_autograd(seed: int) -> None:
    (leaf,) = logits(7, 4, seed)
    leaf.requires_grad_()
    action = torch.randint(0, 4, (7,), generator=stream(seed))
    (gradient,) = torch.autograd.grad(Categorical.log_prob((leaf,), action).sum(), leaf)
    torch.testing.assert_close(score(Categorical, (leaf,), action), gradient)


def test_gaussian_expected_score_agrees_with_monte_carlo() -> None:
    behaviour, current = gaussian(1, 2, 0), gaussian(1, 2, 10)
    many = tuple(x.expand(400_000, -1) for x in behaviour)
    action = torch.normal(*many, generator=stream(3))
    drawn = score(Gaussian, tuple(x.expand(400_000, -1) for x in current), action).mean(0)
    closed = expected_score(Gaussian, behaviour, current)[0]
    torch.testing.assert_close(drawn, closed, atol=0.03, rtol=0.02)
    assert float(closed.abs().max()) > 0.3


def test_categorical_expected_score_is_the_sum_over_all_choices() -> None:
    behaviour, current = logits(6, 5, 0), logits(6, 5, 1)
    p = behaviour[0].softmax(-1)
    summed = sum(p[:, a, None] * score(Categorical, current, torch.full((6,), a)) for a in range(5))
    torch.testing.assert_close(expected_score(Categorical, behaviour, current), summed)


def test_expected_score_by_hand() -> None:
    one = torch.ones(1, 1)
    expected = expected_score(Gaussian, (3 * one, 2 * one), (one, 4 * one))
    assert expected.tolist() == [[2 / 16, (4 + 4) / 16 - 1]]


def test_expected_score_on_a_policys_own_data_is_zero() -> None:
    g, c = gaussian(20, 3, 0), logits(20, 4, 0)
    assert float(expected_score(Gaussian, g, g).abs().max()) < 1e-12
    assert float(expected_score(Categorical, c, c).abs().max()) == 0.0


def test_gaussian_score_power_agrees_with_monte_carlo() -> None:
    params = gaussian(1, 3, 4)
    many = tuple(x.expand(400_000, -1) for x in params)
    drawn = score(Gaussian, many, torch.normal(*many, generator=stream(0))).square().sum(-1)
    assert float(drawn.mean()) == pytest.approx(float(score_power(Gaussian, params)), rel=0.02)


def test_categorical_score_power_is_the_sum_over_all_choices() -> None:
    params = logits(6, 5, 2)
    p = params[0].softmax(-1)
    summed = sum(
        p[:, a] * score(Categorical, params, torch.full((6,), a)).square().sum(-1) for a in range(5)
    )
    torch.testing.assert_close(score_power(Categorical, params), summed)


@pytest.mark.parametrize("gap", [4.0, 9.0, 20.0])
def test_score_power_of_an_almost_certain_choice_is_twice_the_rare_ones_chance(gap: float) -> None:
    rare = 1 / (1 + math.exp(gap))
    power = score_power(Categorical, (torch.tensor([[gap, 0.0], [0.0, gap]]),))
    assert power.tolist() == pytest.approx([2 * rare * (1 - rare)] * 2, rel=1e-3)


@pytest.mark.parametrize("gap", [12.0, 20.0, 40.0, 80.0])
def test_score_power_does_not_cancel_for_an_almost_certain_choice(gap: float) -> None:
    rare = math.exp(-gap)
    (power,) = score_power(Categorical, (torch.tensor([[gap, 0.0]]),)).tolist()
    assert 0.9 * rare <= power <= 2.2 * rare


def test_residual_on_a_policys_own_data_is_one_in_root_mean_square() -> None:
    residuals = torch.tensor(
        [
            readings_of_shift(0.0, 500, seed, torch.ones(500))["diag/score_residual"]
            for seed in range(200)
        ]
    )
    assert float(residuals.square().mean().sqrt()) == pytest.approx(1.0, abs=0.15)


def test_residual_on_stale_data_grows_with_the_root_of_the_frames_and_weights_remove_it() -> None:
    small, large = (readings_of_shift(0.5, n, 0, torch.ones(n)) for n in (2500, 40_000))
    expected = math.hypot(0.5, 0.25) / math.sqrt(3 / 40_000)
    assert large["diag/score_residual"] == pytest.approx(expected, rel=0.05)
    assert large["diag/score_residual"] > 3 * small["diag/score_residual"]
    assert large["diag/score_residual_weighted"] < 3


@pytest.mark.parametrize("gap", [0.0, 0.3, 1.0])
def test_drift_is_exact(gap: float) -> None:
    expected = math.sqrt((gap**2 + gap**4) / 3)
    drift = readings_of_shift(gap, 10, 0, torch.ones(10))["diag/score_drift"]
    assert drift == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("gap", [0.3, 1.0, 2.0])
def test_leak_under_advantages_of_random_sign_has_its_closed_form(gap: float) -> None:
    n = 60_000
    expected = (gap**2 + gap**4) / (3 + 5 * gap**2 + gap**4)
    leak = readings_of_shift(gap, n, 0, signs(n))["diag/baseline_leak"]
    assert leak == pytest.approx(expected, abs=0.02)


def test_leak_on_a_policys_own_data_is_zero() -> None:
    assert readings_of_shift(0.0, 1000, 0, signs(1000))["diag/baseline_leak"] == 0.0


@pytest.mark.parametrize("n", [1, 2, 1000])
@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_leak_without_any_advantage_or_with_one_frame_is_zero(n: int, gap: float) -> None:
    none = readings_of_shift(gap, n, 0, torch.zeros(n, dtype=torch.float64))
    assert none["diag/baseline_leak"] == 0.0
    assert readings_of_shift(gap, 1, n, signs(1))["diag/baseline_leak"] == 0.0


@pytest.mark.parametrize("top", [45.0, 100.0, 300.0])
def test_weighted_residual_holds_where_weights_overflow(top: float) -> None:
    logits, action = (torch.zeros(4, 2),), torch.tensor([0, 0, 1, 1])
    ratio = torch.tensor([top, 0.0, 0.0, 0.0])
    readings = score_readings(Categorical, logits, logits, action, torch.ones(4), ratio)
    assert all(math.isfinite(x) for x in readings.values())
    # One frame carries all the weight: its score is (1/2, -1/2), the power is 1/2.
    mean, noise = math.hypot(0.5, 0.5) / 4, math.sqrt(0.5 / 4) * math.sqrt(1 / 4)
    assert readings["diag/score_residual_weighted"] == pytest.approx(mean / noise, rel=1e-4)


def test_readings_of_a_categorical_policy_by_hand() -> None:
    n = 8
    behaviour, current = (torch.tensor([[0.0, 0.0]]).repeat(n, 1),), (torch.zeros(n, 2),)
    action = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    readings = score_readings(
        Categorical, behaviour, current, action, torch.ones(n), torch.zeros(n)
    )
    expected = math.hypot(0.25, 0.25) / math.sqrt(0.5 / n)
    assert readings["diag/score_residual"] == pytest.approx(expected, rel=1e-5)
    assert readings["diag/score_residual_weighted"] == pytest.approx(expected, rel=1e-5)
    assert readings["diag/score_drift"] == 0.0


def test_weighted_residual_is_relative_to_the_noise_of_the_weights() -> None:
    behaviour, current = (torch.tensor([[3.0, 1.0]]).log().repeat(4, 1),), (torch.zeros(4, 2),)
    action = torch.tensor([0, 0, 0, 1])
    ratio = torch.tensor([2 / 3, 2 / 3, 2 / 3, 4.0]).log()
    readings = score_readings(Categorical, behaviour, current, action, torch.ones(4), ratio)
    mean = (3 * (2 / 3) * 0.5 - 4.0 * 0.5) / 4
    noise = math.sqrt(0.5 / 4) * math.sqrt((3 * 4 / 9 + 16) / 4)
    expected = math.hypot(mean, mean) / noise
    assert readings["diag/score_residual_weighted"] == pytest.approx(expected, rel=1e-5)


def test_score_alarm_after_three_rounds_beyond_its_level() -> None:
    series = {"diag/score_residual": [2.0, 40.0, 41.0, 42.0]}
    alarm = score_alarm(recorded(series | {"diag/score_residual_weighted": [5.0]}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("score_residual", "watch")
    assert alarm.values == {"residual": 42.0, "with weights": 5.0}


@pytest.mark.parametrize("series", [[1.2] * 9, [2.0, 40.0, 41.0], [40.0, 41.0, 42.0, 5.0]])
def test_score_alarm_is_silent_on_a_healthy_run_or_a_short_excess(series: list[float]) -> None:
    assert score_alarm(recorded({"diag/score_residual": series}), CALIBRATED) is None


def test_leak_alarm_after_three_rounds_beyond_its_level() -> None:
    alarm = leak_alarm(recorded({"diag/baseline_leak": [0.1, 0.6, 0.7, 0.8]}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("baseline_leak", "warn")
    assert alarm.values == {"share": 0.8}


@pytest.mark.parametrize("series", [[0.02] * 9, [0.1, 0.6, 0.7], [0.6, 0.7, 0.8, 0.1]])
def test_leak_alarm_is_silent_on_a_healthy_run_or_a_short_excess(series: list[float]) -> None:
    assert leak_alarm(recorded({"diag/baseline_leak": series}), CALIBRATED) is None
