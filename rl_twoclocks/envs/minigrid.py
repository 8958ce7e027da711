"""MiniGrid's tasks by name: what the agent sees of the grid, as zeros and ones.

`gymnasium.make("rl_twoclocks/MiniGrid-v0", env="MiniGrid-DoorKey-5x5-v0")`; needs the `minigrid` extra.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rl_twoclocks.config import ConfigError

try:
    import minigrid  # noqa: F401  (registers its environments)
    from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
except ImportError:
    raise ConfigError(
        "task=minigrid needs the minigrid package: pip install '.[minigrid]'"
    ) from None


class OneHot(gym.ObservationWrapper):
    """The agent's partial view, kind, colour and state of each cell one-hot: float32 [cells * 20].

    Mission and direction are left out: the view turns with the agent, and a task has one mission.
    """

    _TABLES = tuple(
        np.eye(len(names), dtype=np.float32)
        for names in (OBJECT_TO_IDX, COLOR_TO_IDX, STATE_TO_IDX)
    )

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, gym.spaces.Dict)
        height, width, _ = env.observation_space["image"].shape  # type: ignore[misc]
        size = height * width * sum(len(table) for table in self._TABLES)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size,), np.float32)

    def observation(self, observation: dict[str, Any]) -> np.ndarray:
        """Turn an observation of MiniGrid's into a flat vector."""
        image = observation["image"]
        parts = [table[image[..., k]] for k, table in enumerate(self._TABLES)]
        return np.concatenate(parts, axis=-1).ravel()


def make(env: str, render_mode: str | None = None, **kwargs: Any) -> gym.Env:
    """Make one of MiniGrid's environments; `kwargs` are its own."""
    return OneHot(gym.make(env, render_mode=render_mode, **kwargs))


if "rl_twoclocks/MiniGrid-v0" not in gym.registry:
    gym.register("rl_twoclocks/MiniGrid-v0", entry_point=f"{__name__}:make")
