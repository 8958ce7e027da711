from __future__ import annotations

import pytest
import torch

from rl_twoclocks.optim.agc import adaptive_clip, unit_norm


def test_unit_norms_are_taken_per_output() -> None:
    assert unit_norm(torch.tensor([[3.0, 4.0], [0.0, 2.0]])).tolist() == [[5.0], [2.0]]
    assert unit_norm(torch.tensor([3.0, 4.0])).item() == 5.0
    assert unit_norm(torch.ones(2, 3, 2, 2)).shape == (2, 1, 1, 1)
    assert unit_norm(torch.ones(2, 3, 2, 2)).flatten().tolist() == pytest.approx([12**0.5] * 2)


def test_clipping_by_hand() -> None:
    weight = torch.tensor([[3.0, 4.0], [0.0, 10.0]])
    grad = torch.tensor([[0.0, 2.0], [0.6, 0.8]])
    got = adaptive_clip(weight, grad, clipping=0.1, eps=1e-3)
    torch.testing.assert_close(got, torch.tensor([[0.0, 0.5], [0.6, 0.8]]))


def test_units_within_the_bound_come_back_bit_for_bit() -> None:
    g = torch.Generator().manual_seed(0)
    weight, grad = torch.randn(8, 5, generator=g), 1e-3 * torch.randn(8, 5, generator=g)
    assert torch.equal(adaptive_clip(weight, grad, 0.1, 1e-3), grad)


@pytest.mark.parametrize("shape", [(6, 4), (3, 2, 3, 3), (7,)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_the_bound_holds_for_every_unit_and_directions_stay(shape, size: float) -> None:
    g = torch.Generator().manual_seed(1)
    weight, grad = torch.randn(shape, generator=g), size * torch.randn(shape, generator=g)
    got = adaptive_clip(weight, grad, 0.05, 1e-3)
    limit = 0.05 * unit_norm(weight).clamp(min=1e-3)
    assert (unit_norm(got) <= limit * (1 + 1e-5)).all()
    torch.testing.assert_close(
        got / unit_norm(got).clamp(min=1e-30), grad / unit_norm(grad).clamp(min=1e-30)
    )


def test_a_unit_without_weights_moves_by_the_floor() -> None:
    got = adaptive_clip(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]), 0.1, 1e-2)
    torch.testing.assert_close(got, torch.tensor([[6e-4, 8e-4]]))


def test_a_zero_gradient_stays_zero() -> None:
    assert adaptive_clip(torch.zeros(2, 2), torch.zeros(2, 2), 0.1, 1e-3).abs().sum() == 0


def test_a_nan_gradient_is_not_hidden() -> None:
    got = adaptive_clip(torch.ones(1, 2), torch.tensor([[float("nan"), 1.0]]), 0.1, 1e-3)
    assert torch.isnan(got).any()
