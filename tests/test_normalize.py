from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import rl_twoclocks
from rl_twoclocks.config import NormalizeConfig
from rl_twoclocks.normalize import Normalizer, RunningMoments
from rl_twoclocks.record import read_metrics
from tests.envs import run_config


def make(num_envs: int = 1, gamma: float = 0.5, **config) -> Normalizer:
    return Normalizer((2,), num_envs, gamma, NormalizeConfig(**config))


def feed(norm: Normalizer, seed: int = 0, n: int = 1, t: int = 20) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    observation = 100 + 5 * torch.randn(n, t, 2, generator=g)
    reward = torch.randn(n, t, generator=g)
    norm.update(observation, reward, torch.zeros(n, t, dtype=torch.bool))
    return observation


@pytest.mark.parametrize("sizes", [[10, 1, 0, 39], [1, 1, 1], [500]])
@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_merged_batches_equal_the_whole(sizes: list[int], offset: float) -> None:
    g = torch.Generator().manual_seed(1)
    parts = [offset + torch.randn(size, 3, generator=g, dtype=torch.float64) for size in sizes]
    moments = RunningMoments((3,))
    for part in parts:
        moments.update(part)
    whole = torch.cat(parts)
    assert moments.count == sum(sizes)
    torch.testing.assert_close(moments.mean, whole.mean(0), rtol=1e-12, atol=1e-12)
    variance = whole.var(0, correction=0)
    torch.testing.assert_close(moments.variance, variance, rtol=1e-9, atol=1e-9)


def test_without_data_nothing_is_shifted_or_scaled() -> None:
    moments = RunningMoments((2,))
    assert (moments.count, moments.mean.tolist(), moments.variance.tolist()) == (0, [0, 0], [1, 1])
    x = torch.tensor([[0.5, -2.0]])
    torch.testing.assert_close(make().normalize(x), x)


def test_normalized_data_has_mean_zero_and_deviation_one() -> None:
    norm = make()
    observation = feed(norm, t=400)
    out = norm.normalize(observation).flatten(0, 1)
    torch.testing.assert_close(out.mean(0), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(out.std(0, correction=0), torch.ones(2), atol=1e-4, rtol=0)


def test_far_observations_are_cut_and_the_input_is_left_alone() -> None:
    norm = make(observation_clip=3.0)
    feed(norm)
    x = torch.tensor([[1e9, -1e9]])
    assert norm.normalize(x).tolist() == [[3.0, -3.0]]
    assert x.tolist() == [[1e9, -1e9]]


def test_a_constant_observation_stays_finite() -> None:
    norm = make()
    norm.update(torch.full((1, 9, 2), 7.0), torch.zeros(1, 9), torch.zeros(1, 9, dtype=torch.bool))
    assert norm.normalize(torch.full((1, 2), 7.0)).tolist() == [[0.0, 0.0]]


def test_statistics_are_frozen_between_updates() -> None:
    norm = make(num_envs=2)
    feed(norm, n=2)
    before, x = norm.state_dict(), torch.full((2, 3, 2), 90.0)
    first = norm.normalize(x)
    for _ in range(3):
        norm.normalize(torch.randn(2, 50, 2))
        norm.scale_reward(torch.randn(2, 50))
    assert torch.equal(norm.normalize(x), first)
    after = norm.state_dict()
    for key in ("mean", "m2", "count"):
        assert np.array_equal(before["observation"][key], after["observation"][key])
        assert np.array_equal(before["returns"][key], after["returns"][key])


def test_discounted_returns_by_hand_with_an_end_and_across_rollouts() -> None:
    norm = make(num_envs=2, gamma=0.5)
    seen = []
    merge = norm.returns.update
    norm.returns.update = lambda batch: (seen.append(batch.tolist()), merge(batch))[1]  # type: ignore[method-assign]
    reward = torch.tensor([[1.0, 1.0, 1.0], [2.0, 0.0, 4.0]])
    done = torch.tensor([[False, True, False], [False, False, False]])
    norm.update(torch.zeros(2, 3, 2), reward, done)
    assert sorted(seen[0]) == sorted([1.0, 1.5, 1.0, 2.0, 1.0, 4.5])
    assert norm.discounted.tolist() == [1.0, 4.5]
    norm.update(torch.zeros(2, 1, 2), torch.tensor([[1.0], [0.0]]), torch.tensor([[True], [False]]))
    assert sorted(seen[1]) == [1.5, 2.25]
    assert norm.discounted.tolist() == [0.0, 2.25]
    values = np.array([1.0, 1.5, 1.0, 2.0, 1.0, 4.5, 1.5, 2.25])
    assert norm.returns.count == 8
    assert float(norm.returns.variance) == pytest.approx(values.var())
    scaled = norm.scale_reward(torch.tensor([2.0]))
    assert float(scaled) == pytest.approx(2 / values.std(), rel=1e-6)


def test_one_factor_scales_rewards_in_proportion() -> None:
    norm = make()
    feed(norm)
    a, b = norm.scale_reward(torch.tensor([0.1, 0.3])).tolist()
    assert b == pytest.approx(3 * a)


def test_reward_modes() -> None:
    x = torch.tensor([100.0])
    assert make(reward="none").scale_reward(x).item() == 100.0
    assert make(reward="constant", reward_scale=0.25).scale_reward(x).item() == 25.0
    clipped = make(reward="return", reward_clip=4.0)
    assert clipped.scale_reward(x).item() == 4.0
    assert clipped.scale_reward(-x).item() == -4.0


def test_switched_off_nothing_moves() -> None:
    norm = make(observation=False, reward="none")
    observation = feed(norm)
    assert (norm.observation.count, norm.returns.count) == (0, 0)
    assert torch.equal(norm.normalize(observation), observation)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_rewards_of_any_scale_come_out_near_one(scale: float) -> None:
    norm = make(gamma=0.9)
    g = torch.Generator().manual_seed(0)
    reward = scale * torch.randn(1, 500, generator=g)
    norm.update(torch.zeros(1, 500, 2), reward, torch.zeros(1, 500, dtype=torch.bool))
    assert 0.1 < float(norm.scale_reward(reward).std()) < 1.5


def test_state_makes_a_round_trip_with_its_count() -> None:
    norm = make(num_envs=3)
    feed(norm, n=3)
    copy = make(num_envs=3)
    copy.load_state_dict(norm.state_dict())
    assert copy.observation.count == 60
    feed(norm, seed=5, n=3)
    feed(copy, seed=5, n=3)
    assert torch.equal(copy.shift, norm.shift)
    assert torch.equal(copy.scale, norm.scale)
    assert copy.returns.count == norm.returns.count == 120
    assert copy.discounted.tolist() == norm.discounted.tolist()
    x = torch.tensor([1.0])
    assert torch.equal(copy.scale_reward(x), norm.scale_reward(x))


def test_a_saved_state_does_not_move_with_the_statistics() -> None:
    norm = make()
    feed(norm)
    state = norm.state_dict()
    mean, discounted = state["observation"]["mean"].clone(), state["discounted"].clone()
    feed(norm, seed=9)
    assert torch.equal(state["observation"]["mean"], mean)
    assert torch.equal(state["discounted"], discounted)


def test_statistics_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        make().observation.load_state_dict(RunningMoments((3,)).state_dict())


def test_open_returns_are_dropped_where_the_number_of_environments_differs() -> None:
    norm = make(num_envs=3)
    feed(norm, n=3)
    other = make(num_envs=2)
    other.load_state_dict(norm.state_dict())
    assert other.discounted.tolist() == [0.0, 0.0]
    assert other.observation.count == 60


@pytest.mark.parametrize(
    ("words", "calibrates"),
    [
        ([], True),
        (["normalize.observation=false"], True),
        (["normalize.observation=false", "normalize.reward=none"], False),
        (["normalize.calibrate=false"], False),
    ],
)
def test_the_first_rollout_calibrates_whatever_has_statistics(
    words: list[str], calibrates: bool, tmp_path: Path
) -> None:
    rl_twoclocks.train(run_config("Counter", tmp_path, "total_frames=192", *words))
    steps = [row["clock/update_steps"] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert (steps[0] == 0) is calibrates
    assert steps[1] > steps[0]


def test_the_first_reward_after_none_keeps_its_size_beside_a_smaller_one() -> None:
    norm = make()
    zeros = torch.zeros(1, 50)
    norm.update(torch.zeros(1, 50, 2), zeros, torch.zeros(1, 50, dtype=torch.bool))
    assert norm.scale_reward(torch.tensor([1.0, 0.01])).tolist() == pytest.approx([1.0, 0.01])
