"""A user's environment that does not keep to what it says: named, with what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rl_twoclocks
from rl_twoclocks.config import ConfigError
from rl_twoclocks.config_commands import EvalCommandConfig
from rl_twoclocks.envs.vector import GymnasiumVector
from rl_twoclocks.eval import evaluate_checkpoint
from tests.envs import run_config


class Wide(gym.Env):
    """Says three numbers and gives five, at once or after the first step."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, late: bool) -> None:
        self.late = late

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        return np.zeros(3 if self.late else 5, np.float32), {}

    def step(self, action: Any) -> tuple:
        return np.zeros(5, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("late", [False, True])
def test_an_observation_of_another_shape_is_named(late: bool) -> None:
    vector = GymnasiumVector(lambda: Wide(late), 2, "sync")
    with pytest.raises(ValueError, match=r"environment 0 gives .* shape \(5,\).* says \(3,\)"):
        vector.reset(seeds=[1, 2])
        vector.step(np.zeros((2, 1), np.float32))


def test_a_video_of_what_cannot_draw_is_refused_before_the_evaluation(tmp_path: Path) -> None:
    config = run_config("Target", tmp_path / "run", "total_frames=512")
    result = rl_twoclocks.train(config)
    command = EvalCommandConfig(checkpoint=str(result.checkpoint), episodes=1, video=True)
    with pytest.raises(ConfigError, match="Target-v0 cannot draw: it has to take render_mode"):
        evaluate_checkpoint(command)
    assert not list((tmp_path / "run").glob("eval-*.json"))
