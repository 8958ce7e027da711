from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_twoclocks.distributions import Gaussian
from rl_twoclocks.window import Window, frames_of


def rollout(start: int, length: int, num_envs: int = 2, version: int = 0) -> TensorDict:
    time = torch.arange(start, start + length).expand(num_envs, length)
    stamp = time + 100 * torch.arange(num_envs).unsqueeze(-1)
    return TensorDict(
        {
            "reward": stamp.float(),
            "cut": torch.zeros(num_envs, length, dtype=torch.bool),
            "policy_version": torch.full((num_envs, length), version),
        },
        batch_size=(num_envs, length),
    )


def times(window: Window) -> list[float]:
    return window.take()["reward"][0].tolist()


def test_the_window_grows_and_then_drops_the_oldest_frames() -> None:
    window = Window(12, 2)
    seen = []
    for start in range(0, 12, 2):
        window.append(rollout(start, 2, version=start))
        seen.append(times(window))
    assert seen[0] == [0, 1]
    assert seen[2] == [0, 1, 2, 3, 4, 5]
    assert seen[3] == [2, 3, 4, 5, 6, 7]
    assert seen[5] == [6, 7, 8, 9, 10, 11]
    frames = window.take()
    assert frames["reward"][1].tolist() == [106, 107, 108, 109, 110, 111]
    assert frames["policy_version"][0].tolist() == [6, 6, 8, 8, 10, 10]
    assert frames.numel() == 12


def test_rollouts_that_do_not_divide_the_window_fill_it_exactly() -> None:
    window = Window(10, 2)
    for start in range(0, 9, 3):
        window.append(rollout(start, 3))
    assert times(window) == [4, 5, 6, 7, 8]


def test_a_rollout_longer_than_the_window_leaves_its_newest_frames() -> None:
    window = Window(6, 2)
    window.append(rollout(0, 2))
    window.append(rollout(2, 5))
    assert times(window) == [4, 5, 6]


def test_a_cut_marks_the_newest_column_of_every_environment_alone() -> None:
    window = Window(12, 2)
    window.append(rollout(0, 3))
    window.cut()
    window.append(rollout(3, 3))
    assert window.take()["cut"].tolist() == [[False, False, True, False, False, False]] * 2


def test_an_empty_window_says_so() -> None:
    window = Window(4, 2)
    window.cut()
    assert window.state_dict() == {}
    with pytest.raises(RuntimeError, match="empty"):
        window.take()


def test_frames_that_do_not_divide_among_environments_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        Window(10, 3)


def test_the_state_makes_a_round_trip_and_stands_alone() -> None:
    window = Window(8, 2)
    window.append(rollout(0, 3))
    state = window.state_dict()
    window.cut()
    copy = Window(8, 2)
    copy.load_state_dict(state)
    assert not copy.take()["cut"].any()
    copy.append(rollout(3, 3))
    assert times(copy) == [2, 3, 4, 5]
    assert state["reward"][0].tolist() == [0, 1, 2]


def test_an_empty_state_empties_the_window() -> None:
    window = Window(8, 2)
    window.append(rollout(0, 3))
    window.load_state_dict({})
    with pytest.raises(RuntimeError):
        window.take()


@pytest.mark.parametrize("cut_end", [False, True])
def test_a_collectors_batch_comes_into_the_windows_schema(cut_end: bool) -> None:
    n, t = 2, 3
    following = {
        "observation": torch.rand(n, t, 4),
        "reward": torch.rand(n, t, 1),
        "terminated": torch.rand(n, t, 1) > 0.5,
        "truncated": torch.rand(n, t, 1) > 0.5,
    }
    collected = TensorDict(
        {
            "observation": torch.rand(n, t, 4),
            "raw_action": torch.rand(n, t, 1),
            "action": torch.full((n, t, 1), 9.0),
            "policy_version": torch.full((n, t), 3),
            "loc": torch.rand(n, t, 1),
            "scale": torch.rand(n, t, 1),
            "next": TensorDict(following, batch_size=(n, t)),
        },
        batch_size=(n, t),
    )
    frames = frames_of(collected, Gaussian, cut_end)
    assert frames["cut"].tolist() == [[False, False, cut_end]] * n
    assert torch.equal(frames["action"], collected["raw_action"])
    assert torch.equal(frames["next_observation"], following["observation"])
    for key in ("reward", "terminated", "truncated"):
        assert torch.equal(frames[key], following[key][..., 0])
    normal = torch.distributions.Normal(collected["loc"], collected["scale"])
    expected = normal.log_prob(collected["raw_action"]).sum(-1)
    torch.testing.assert_close(frames["behaviour_log_prob"], expected)
    assert {"loc", "scale", "observation", "policy_version"} <= set(frames.keys())
