"""MiniGrid's tasks: what the network gets is what MiniGrid's own one-hot wrapper gives."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import rl_twoclocks
from rl_twoclocks.record import read_metrics

minigrid = pytest.importorskip("minigrid")

NAME = "MiniGrid-DoorKey-5x5-v0"


def test_observations_are_those_of_minigrids_own_wrapper() -> None:
    from minigrid.wrappers import ImgObsWrapper, OneHotPartialObsWrapper

    import rl_twoclocks.envs.minigrid  # noqa: F401  (registers it)

    ours = gym.make("rl_twoclocks/MiniGrid-v0", env=NAME, disable_env_checker=True)
    theirs = ImgObsWrapper(OneHotPartialObsWrapper(gym.make(NAME, disable_env_checker=True)))
    assert ours.observation_space.shape == (np.prod(theirs.observation_space.shape),)
    found, expected = ours.reset(seed=5)[0], theirs.reset(seed=5)[0]
    rng = np.random.default_rng(0)
    for _ in range(300):
        np.testing.assert_array_equal(found, expected.ravel())
        action = rng.integers(7)
        found, *rest, _ = ours.step(action)
        expected, *others, _ = theirs.step(action)
        assert rest == others
        if rest[1] or rest[2]:
            found, expected = ours.reset()[0], theirs.reset()[0]
    assert ours.observation_space.contains(found)


def test_another_of_its_tasks_is_an_override_away(tmp_path: Path) -> None:
    words = ["debug=smoke", "task=minigrid", "task.kwargs.env=MiniGrid-Empty-5x5-v0"]
    config = rl_twoclocks.compose([*words, "logger.display=none", f"run_dir={tmp_path}"])
    assert config.task.name == "MiniGrid-Empty-5x5-v0"
    rl_twoclocks.train(config)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2
