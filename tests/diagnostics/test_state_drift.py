from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rl_twoclocks.diagnostics import CALIBRATED
from rl_twoclocks.diagnostics.state_drift import drift_alarm, histogram_kl
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


def test_drift_alarm_after_two_rounds_beyond_its_level() -> None:
    alarm = drift_alarm(recorded({"diag/state_drift": [0.2, 3.5, 4.0]}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("state_drift", "warn")
    assert alarm.values == {"nats": 4.0}


@pytest.mark.parametrize("series", [[0.2] * 10, [0.2, 0.2, 4.0], [4.0, 4.0, 0.2], [4.0]])
def test_drift_is_no_alarm_on_a_healthy_run_or_a_single_jump(series: list[float]) -> None:
    assert drift_alarm(recorded({"diag/state_drift": series}), CALIBRATED) is None
