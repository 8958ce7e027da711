from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rl_twoclocks.diagnostics import CALIBRATED, SEED
from rl_twoclocks.diagnostics.gradients import (
    alignment_alarm,
    covariance_readings,
    gradient_alarm,
    gram_matrix,
)
from tests.diagnostics.histories import recorded


def normal(n: int, d: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def read(gradients: Tensor, minibatch_size: int = 64) -> dict[str, float]:
    return covariance_readings(gram_matrix(gradients), minibatch_size)


def test_gram_matrix_holds_inner_products_in_double_precision() -> None:
    gram = gram_matrix(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert gram.dtype == torch.float64
    assert gram.tolist() == [[5.0, 11.0], [11.0, 25.0]]


@pytest.mark.parametrize(("m", "d"), [(3, 2), (8, 40), (16, 500)])
@pytest.mark.parametrize("seed", range(3))
def test_spectrum_readings_agree_with_the_explicit_covariance(m: int, d: int, seed: int) -> None:
    gradients = 0.3 + normal(m, d, seed) * torch.linspace(0.2, 3, d, dtype=torch.float64)
    values = torch.linalg.eigvalsh(torch.cov(gradients.T)).flip(0)[: m - 1]
    readings = read(gradients)
    participation = float(values.sum() ** 2 / values.square().sum())
    assert readings["diag/grad_participation"] == pytest.approx(participation)
    assert readings["diag/grad_condition"] == pytest.approx(float(values[0] / values[-1]))


def test_alignment_is_the_mean_cosine_of_all_pairs() -> None:
    readings = read(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]))
    assert readings["diag/grad_alignment"] == pytest.approx(2 * math.sqrt(0.5) / 3)


def test_noise_along_one_direction_has_participation_one_and_infinite_condition() -> None:
    base, along = normal(1, 30), normal(1, 30, seed=1)
    readings = read(base + torch.tensor([[1.0], [-2.0], [0.5], [3.0]]) * along)
    assert readings["diag/grad_participation"] == pytest.approx(1.0)
    assert readings["diag/grad_condition"] == math.inf


def test_noise_in_all_directions_has_participation_near_the_number_of_gradients_less_one() -> None:
    readings = read(normal(16, 50_000))
    assert readings["diag/grad_participation"] == pytest.approx(15, abs=0.1)
    assert readings["diag/grad_condition"] == pytest.approx(1.0, abs=0.2)


def test_noise_scale_by_hand() -> None:
    gradients = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]])
    signal = (1 * 3 + 1 * 2 + 3 * 2) / 3
    noise = 10 * ((1 + 9 + 4) / 3 - signal)
    assert read(gradients, 10)["diag/noise_scale"] == pytest.approx(noise / signal)


@pytest.mark.parametrize("minibatch_size", [16, 128])
def test_noise_scale_recovers_trace_over_squared_gradient(minibatch_size: int) -> None:
    d = 300
    deviations = torch.linspace(0.1, 1.0, d, dtype=torch.float64)
    mean = normal(1, d, seed=7) * 0.3
    true = float(deviations.square().sum() / mean.square().sum())
    noise = normal(400, d) * deviations / minibatch_size**0.5
    assert read(mean + noise, minibatch_size)["diag/noise_scale"] == pytest.approx(true, rel=0.05)


def test_noise_scale_is_infinite_where_the_mean_drowns_and_zero_without_noise() -> None:
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert read(opposite)["diag/noise_scale"] == math.inf
    assert read(torch.ones(4, 4))["diag/noise_scale"] == 0.0


@pytest.mark.parametrize(("m", "d"), [(3, 1), (4, 7), (8, 300), (16, 5000)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_identical_gradients_have_no_noise_and_one_direction(m: int, d: int, size: float) -> None:
    for seed in range(3):
        readings = read((size * normal(1, d, seed)).float().repeat(m, 1))
        assert readings["diag/grad_participation"] == 1.0
        assert readings["diag/grad_condition"] == 1.0
        assert readings["diag/grad_alignment"] == pytest.approx(1.0)
        assert readings["diag/noise_scale"] == pytest.approx(0.0, abs=1e-9)


def test_readings_do_not_depend_on_the_scale_of_the_loss() -> None:
    gradients = 0.5 + normal(8, 60)
    small, large = read(1e-4 * gradients), read(1e4 * gradients)
    for name, value in read(gradients).items():
        assert small[name] == pytest.approx(value)
        assert large[name] == pytest.approx(value)


@pytest.mark.parametrize("m", [0, 1, 2])
def test_fewer_than_three_gradients_are_refused(m: int) -> None:
    with pytest.raises(ValueError, match=f"at least 3 gradients, not {m}"):
        read(torch.ones(m, 5))


def test_gradient_alarm_on_a_norm_that_stays_far_above_the_runs_usual() -> None:
    history = recorded({"diag/grad_norm_max": [2.0] * 20 + [9.0, 10.0, 11.0]})
    alarm = gradient_alarm(history, CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("gradient_norm", "warn")
    assert alarm.values == {"largest layer": 11.0, "usual": 2.0}


def test_gradient_alarm_does_not_take_the_newest_rounds_for_usual() -> None:
    history = recorded({"diag/grad_norm_max": [2.0, 2.0, 2.0, 9.0, 10.0, 11.0]})
    assert gradient_alarm(history, CALIBRATED) is not None


@pytest.mark.parametrize(
    "series",
    [[2.0] * 23, [2.0] * 20 + [9.0, 4.0, 11.0], [6.0] * 20 + [9.0] * 3, [0.1] * 20 + [4.0] * 3],
    ids=["healthy", "one calm round", "usual for the run", "small in absolute terms"],
)
def test_gradient_alarm_is_silent(series: list[float]) -> None:
    assert gradient_alarm(recorded({"diag/grad_norm_max": series}), CALIBRATED) is None


def test_gradient_alarm_of_the_seed_set_needs_no_multiple_of_the_usual() -> None:
    history = recorded({"diag/grad_norm_max": [2.0] * 20 + [5.5, 5.5, 5.5]})
    assert gradient_alarm(history, SEED) is not None
    assert gradient_alarm(history, CALIBRATED) is None


def test_gradient_alarm_of_the_seed_set_on_a_norm_of_20_in_every_round() -> None:
    history = recorded({"diag/grad_norm_max": [20.0] * 40})
    alarm = gradient_alarm(history, SEED)
    assert alarm is not None
    assert alarm.values == {"largest layer": 20.0, "usual": 20.0}
    # The calibrated set takes it for usual, but not whatever is usual.
    assert gradient_alarm(history, CALIBRATED) is None
    ceiling = CALIBRATED.gradient_ceiling
    for norm, raised in ((ceiling, False), (1.01 * ceiling, True)):
        constant = recorded({"diag/grad_norm_max": [norm] * 40})
        assert (gradient_alarm(constant, CALIBRATED) is not None) is raised


@pytest.mark.parametrize("rounds", [3, 4])
def test_gradient_alarm_of_the_seed_set_needs_no_history(rounds: int) -> None:
    history = recorded({"diag/grad_norm_max": [20.0] * rounds})
    assert gradient_alarm(history, SEED) is not None


def test_alignment_alarm_after_three_measurements_along_one_direction() -> None:
    readings = {"diag/grad_participation": [9.0, 1.2, 1.1, 1.3], "diag/grad_condition": [50.0]}
    alarm = alignment_alarm(recorded(readings), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("gradients_aligned", "warn")
    assert alarm.values == {"participation": 1.3, "condition": 50.0}


@pytest.mark.parametrize("series", [[9.0] * 5, [9.0, 1.2, 1.1], [1.2, 1.1, 1.3, 9.0]])
def test_alignment_alarm_is_silent_on_spread_gradients(series: list[float]) -> None:
    assert alignment_alarm(recorded({"diag/grad_participation": series}), CALIBRATED) is None
