from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rl_twoclocks.diagnostics import CALIBRATED
from rl_twoclocks.diagnostics.state_drift import drift_alarm, histogram_kl, nearest_neighbour_kl
from tests.diagnostics.histories import recorded


def normal(n: int, d: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def counts_of(values: Tensor, side: int) -> Tensor:
    index = ((values + 5) / 10 * side).long().clamp(0, side - 1)
    return torch.bincount(index[:, 0] * side + index[:, 1], minlength=side * side)


def test_histogram_kl_of_two_cells_by_hand() -> None:
    before, after = torch.tensor([3, 1, 0, 0]), torch.tensor([1, 3, 0, 0])
    expected = (3.5 - 1.5) / 5 * math.log(3.5 / 1.5)
    assert histogram_kl(before, after, side=2, coarse=1) == pytest.approx(expected)


def test_histogram_kl_is_not_symmetric_and_goes_from_before_to_after() -> None:
    before, after = torch.tensor([8, 0, 0, 0]), torch.tensor([4, 4, 0, 0])
    forward = 8.5 / 9 * math.log(8.5 / 4.5) + 0.5 / 9 * math.log(0.5 / 4.5)
    backward = 0.5 * math.log(4.5 / 8.5) + 0.5 * math.log(4.5 / 0.5)
    assert histogram_kl(before, after, 2, coarse=1) == pytest.approx(forward)
    assert histogram_kl(after, before, 2, coarse=1) == pytest.approx(backward)


def test_histogram_kl_of_equal_histograms_is_zero() -> None:
    counts = torch.randint(0, 9, (15 * 15,), generator=torch.Generator().manual_seed(0))
    assert histogram_kl(counts, counts, side=15) == 0.0


@pytest.mark.parametrize("n", [1, 100, 2048])
def test_histogram_kl_of_disjoint_places_is_finite_and_known(n: int) -> None:
    before, after = torch.zeros(100, dtype=torch.int64), torch.zeros(100, dtype=torch.int64)
    before[0], after[99] = n, n
    expected = n / (n + 1) * math.log(2 * n + 1)
    assert histogram_kl(before, after, side=10) == pytest.approx(expected)


def test_histogram_kl_does_not_see_moves_within_a_merged_block() -> None:
    before, near, far = (torch.zeros(10, 10, dtype=torch.int64) for _ in range(3))
    before[0, 0], near[4, 4], far[5, 0] = 50, 50, 50
    assert histogram_kl(before.flatten(), near.flatten(), side=10) == 0.0
    assert histogram_kl(before.flatten(), far.flatten(), side=10) > 3.0


def test_histogram_kl_takes_sides_that_blocks_do_not_divide() -> None:
    before, after = (torch.zeros(7, 7, dtype=torch.int64) for _ in range(2))
    before[0, 0], after[6, 6] = 1, 1
    expected = 0.5 * math.log(3)
    assert histogram_kl(before.flatten(), after.flatten(), side=7) == pytest.approx(expected)


def test_histogram_kl_approaches_the_kl_of_shifted_gaussians() -> None:
    before, after = normal(100_000, 2, 0), normal(100_000, 2, 1) + torch.tensor([0.5, 0.0])
    kl = histogram_kl(counts_of(before, 100), counts_of(after, 100), side=100, coarse=4)
    assert kl == pytest.approx(0.5**2 / 2, abs=0.02)


def test_nearest_neighbour_kl_of_three_and_four_points_by_hand() -> None:
    before, after = (
        torch.tensor([[0.0], [1.0], [3.0]]),
        torch.tensor([[0.5], [10.0], [20.0], [30.0]]),
    )
    distances = math.log(0.5 / 1) + math.log(0.5 / 1) + math.log(2.5 / 2)
    expected = distances / 3 + math.log(4 / 2)
    assert nearest_neighbour_kl(before, after, k=1) == pytest.approx(expected, rel=1e-5)


def test_nearest_neighbour_kl_of_gaussians_shifted_by_0_3_in_both_dimensions_is_0_09() -> None:
    estimates = [
        nearest_neighbour_kl(normal(800, 2, seed), normal(800, 2, seed + 100) + 0.3)
        for seed in range(5)
    ]
    assert sum(estimates) / len(estimates) == pytest.approx(0.09, abs=0.03)


def test_nearest_neighbour_kl_of_one_distribution_is_about_zero() -> None:
    estimates = [
        nearest_neighbour_kl(normal(800, 2, seed), normal(800, 2, seed + 100)) for seed in range(5)
    ]
    assert sum(estimates) / len(estimates) == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize(("n", "m"), [(1500, 700), (700, 1500)])
def test_nearest_neighbour_kl_takes_samples_of_different_size_and_scale(n: int, m: int) -> None:
    expected = 2 * (math.log(2) + 1 / 8 - 1 / 2)
    kl = nearest_neighbour_kl(normal(n, 2, 0), 2 * normal(m, 2, 1))
    assert kl == pytest.approx(expected, abs=0.15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [1.0, 1024.0, 8192.0])
def test_nearest_neighbour_kl_does_not_depend_on_where_the_states_lie(
    far: float, dtype: torch.dtype
) -> None:
    # Multiples of 1/256: adding the offset rounds nothing.
    before, after = (((256 * normal(400, 3, seed)).round() / 256).to(dtype) for seed in (0, 1))
    after = after * 2
    near = nearest_neighbour_kl(before, after)
    moved = nearest_neighbour_kl(before + far, after + far)
    assert moved == pytest.approx(near, abs=1e-6)


@pytest.mark.parametrize(("n", "m"), [(0, 50), (5, 50), (50, 5), (50, 4), (50, 0)])
def test_nearest_neighbour_kl_refuses_too_few_points(n: int, m: int) -> None:
    with pytest.raises(ValueError, match=f"not {n} and {m}"):
        nearest_neighbour_kl(normal(n, 2, 0), normal(m, 2, 1), k=5)


def test_drift_alarm_after_two_rounds_beyond_its_level() -> None:
    alarm = drift_alarm(recorded({"diag/state_drift": [0.2, 3.5, 4.0]}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("state_drift", "warn")
    assert alarm.values == {"nats": 4.0}


@pytest.mark.parametrize("series", [[0.2] * 10, [0.2, 0.2, 4.0], [4.0, 4.0, 0.2], [4.0]])
def test_drift_is_no_alarm_on_a_healthy_run_or_a_single_jump(series: list[float]) -> None:
    assert drift_alarm(recorded({"diag/state_drift": series}), CALIBRATED) is None
