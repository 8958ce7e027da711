from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from rl_twoclocks.diagnostics import CALIBRATED
from rl_twoclocks.diagnostics.plasticity import (
    blind_alarm,
    dead_alarm,
    dead_fraction,
    feature_rank,
    hidden_features,
    policy_variance,
    rank_alarm,
)
from rl_twoclocks.distributions import Categorical, Gaussian
from tests.diagnostics.histories import recorded


def normal(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def test_hidden_features_are_the_outputs_of_the_nonlinearities_in_order() -> None:
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
    inputs = normal(10, 3)
    first, second = hidden_features(network, inputs)
    torch.testing.assert_close(first, network[0](inputs).tanh())
    torch.testing.assert_close(second, network[2](first).relu())
    assert not first.requires_grad


def test_a_linear_network_has_no_hidden_features() -> None:
    assert hidden_features(nn.Sequential(nn.Linear(3, 2)), normal(4, 3)) == []


def test_dead_fraction_counts_units_that_do_not_vary_over_all_layers() -> None:
    living, silent = normal(100, 3), torch.zeros(100, 1)
    saturated, flickering = torch.ones(100, 2), torch.ones(100, 2) + 1e-5 * normal(100, 2)
    features = [torch.cat([living, silent], 1), torch.cat([saturated, flickering], 1)]
    assert dead_fraction(features) == pytest.approx(5 / 8)
    assert dead_fraction(features, tolerance=1e-8) == pytest.approx(3 / 8)


def test_dead_fraction_sees_relus_that_a_large_negative_bias_has_killed() -> None:
    network = nn.Sequential(nn.Linear(4, 10), nn.ReLU())
    with torch.no_grad():
        network[0].bias.copy_(torch.tensor([-1e4] * 4 + [0.5] * 6))
    assert dead_fraction(hidden_features(network, normal(200, 4))) == pytest.approx(0.4)


def test_dead_fraction_without_hidden_layers_is_zero() -> None:
    assert dead_fraction([]) == 0.0


@pytest.mark.parametrize("rank", [1, 2, 5, 16])
def test_feature_rank_of_features_with_equally_strong_directions(rank: int) -> None:
    directions = torch.linalg.qr(normal(16, 16, seed=1)).Q[:rank]
    assert feature_rank(normal(5000, rank) @ directions + 3.0) == rank


def test_feature_rank_leaves_out_directions_that_hold_less_than_one_percent() -> None:
    features = normal(5000, 4) * torch.tensor([10.0, 10.0, 0.1, 0.1])
    assert feature_rank(features) == 2
    assert feature_rank(features, keep=1 - 1e-6) == 4
    assert feature_rank(features, keep=0.4) == 1


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5, 0.1, 1e4 / 3, -1e6 / 7, 1e12, 3e30])
@pytest.mark.parametrize("n", [7, 256, 1000])
def test_feature_rank_of_constant_features_is_zero(value: float, n: int) -> None:
    assert feature_rank(torch.full((n, 8), value)) == 0
    assert feature_rank(value * normal(1, 8).repeat(n, 1)) == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_feature_rank_of_features_that_are_not_finite_is_zero(value: float) -> None:
    features = normal(64, 8)
    features[5, 3] = value
    assert feature_rank(features) == 0


@pytest.mark.parametrize("size", [1e-10, 1e10])
def test_feature_rank_does_not_depend_on_the_size_of_the_features(size: float) -> None:
    features = normal(500, 8) * torch.tensor([5.0, 4.0, 3.0] + [0.01] * 5)
    assert feature_rank(size * features) == feature_rank(features) == 3


def test_gaussian_policy_variance_by_hand() -> None:
    loc = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    scale = torch.tensor([[0.5, 1.0], [0.5, 1.0]])
    assert policy_variance(Gaussian, (loc, scale)) == pytest.approx((1 / 0.25 + 0) / 2)


def test_categorical_policy_variance_by_hand() -> None:
    logits = torch.tensor([[0.8, 0.2], [0.4, 0.6]]).log()
    assert policy_variance(Categorical, (logits,)) == pytest.approx(2 * 0.2**2)


def test_policy_that_acts_alike_in_every_state_has_no_variance_however_wide_it_is() -> None:
    alike = torch.tensor([[0.3, -2.0, 0.1]]).repeat(50, 1)
    assert policy_variance(Gaussian, (alike, torch.full((50, 3), 5.0))) == pytest.approx(
        0, abs=1e-9
    )
    assert policy_variance(Categorical, (alike,)) == pytest.approx(0, abs=1e-9)


def test_dead_alarm_after_two_measurements() -> None:
    alarm = dead_alarm(recorded({"diag/dead_units": [0.0, 0.3, 0.4]}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("dead_units", "warn")
    assert alarm.values == {"share": 0.4}


@pytest.mark.parametrize("series", [[0.0] * 5, [0.0, 0.4], [0.4, 0.4, 0.2]])
def test_dead_alarm_is_silent(series: list[float]) -> None:
    assert dead_alarm(recorded({"diag/dead_units": series}), CALIBRATED) is None


def test_rank_alarm_on_half_of_the_directions_lost() -> None:
    alarm = rank_alarm(recorded({"diag/feature_rank": [20, 30, 25, 14, 13]}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("feature_rank", "watch")
    assert alarm.values == {"rank": 13, "highest": 30}


@pytest.mark.parametrize("series", [[20, 30, 28, 27], [30, 20, 14], [30, 14, 14, 16], [3, 3, 3]])
def test_rank_alarm_is_silent(series: list[float]) -> None:
    assert rank_alarm(recorded({"diag/feature_rank": series}), CALIBRATED) is None


def test_blind_alarm_on_a_policy_that_has_lost_its_variance_over_states() -> None:
    alarm = blind_alarm(recorded({"diag/policy_variance": [0.1, 2.0, 0.05, 0.04]}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("state_blind", "danger")
    assert alarm.values == {"variance over states": 0.04, "highest": 2.0}


@pytest.mark.parametrize("series", [[0.1, 2.0, 1.5, 1.0], [2.0, 0.04], [2.0, 0.04, 0.04, 0.3]])
def test_blind_alarm_is_silent(series: list[float]) -> None:
    assert blind_alarm(recorded({"diag/policy_variance": series}), CALIBRATED) is None


@pytest.mark.parametrize(("returns", "raised"), [([0.0, 90.0], False), ([0.0, 100.0, 40.0], True)])
def test_a_policy_that_has_learnt_to_stay_in_one_place_is_not_blind(
    returns: list[float], raised: bool
) -> None:
    """InvertedPendulum at its best: the states that it visits become fewer, round by round."""
    n = 60
    variance = (2.0 * np.geomspace(1.0, 0.01, n)).tolist()
    rounds = np.interp(np.linspace(0, 1, n), np.linspace(0, 1, len(returns)), returns).tolist()
    history = recorded({"diag/policy_variance": variance, "rollout/return_round": rounds})
    assert (blind_alarm(history, CALIBRATED) is not None) is raised
    # Within a round or two no policy learns so much.
    sudden = [2.0] * (n - 2) + [0.02] * 2
    history = recorded({"diag/policy_variance": sudden, "rollout/return_round": rounds})
    assert blind_alarm(history, CALIBRATED) is not None
