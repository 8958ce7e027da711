"""The Gazebo worlds for gymnasium: one server each; `info["gazebo_died"]` where it died."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym

from rl_twoclocks.worlds.base import Array, World, WorldEnv
from rl_twoclocks.worlds.gazebo.world import Gazebo, GazeboArm, GazeboCartpole, GazeboDiffdrive


class GazeboEnv(WorldEnv):
    """A world file with rules; see `Gazebo`."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 50}  # type: ignore[misc]
    make: ClassVar[Callable[..., World]] = Gazebo
    world: Gazebo

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Step once."""
        observation, reward, terminated, truncated, info = super().step(action)
        if self.world.died[0]:
            info["gazebo_died"] = True
        return observation, reward, terminated, truncated, info


class GazeboCartpoleEnv(GazeboEnv):
    """A pole on a cart; see `GazeboCartpole`."""

    make = GazeboCartpole


class GazeboArmEnv(GazeboEnv):
    """A two-link arm; see `GazeboArm`."""

    make = GazeboArm


class GazeboDiffdriveEnv(GazeboEnv):
    """A robot on two driven wheels; see `GazeboDiffdrive`."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}  # type: ignore[misc]
    make = GazeboDiffdrive


for _env in (GazeboEnv, GazeboCartpoleEnv, GazeboArmEnv, GazeboDiffdriveEnv):
    _id = f"rl_twoclocks/{_env.__name__.removesuffix('Env')}-v0"
    if _id not in gym.registry:
        gym.register(_id, entry_point=f"{__name__}:{_env.__name__}")
