"""The project's own worlds, natively batched, and known to gymnasium.

`make_world("maze", num_envs=4096, size=13)` gives a batch; `gymnasium.make("rl_twoclocks/Maze-v0",
size=13)` gives one environment of the same world. In `maze` and `inspection` an outside rule can check
every reward; `gazebo*` are real gzserver processes.
"""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym

from rl_twoclocks.worlds.base import World, WorldEnv, one_of
from rl_twoclocks.worlds.gazebo import GAZEBO
from rl_twoclocks.worlds.grasp import Grasp
from rl_twoclocks.worlds.inspection import Inspection
from rl_twoclocks.worlds.maze import Maze
from rl_twoclocks.worlds.tmaze import TMaze

__all__ = [
    "WORLDS",
    "Grasp",
    "GraspEnv",
    "Inspection",
    "InspectionEnv",
    "Maze",
    "MazeEnv",
    "TMaze",
    "TMazeEnv",
    "World",
    "make_world",
]

WORLDS: dict[str, type[World]] = {
    "maze": Maze,
    "grasp": Grasp,
    "tmaze": TMaze,
    "inspection": Inspection,
    **GAZEBO,
}
"""By name; with gymnasium `rl_twoclocks/<Class>-v0`."""


class MazeEnv(WorldEnv):
    """One maze for gymnasium; see `Maze`."""

    make = Maze


class GraspEnv(WorldEnv):
    """One gripper for gymnasium; see `Grasp`."""

    metadata = WorldEnv.metadata | {"render_fps": 25}  # type: ignore[misc]  # 0.04 s each
    make = Grasp


class TMazeEnv(WorldEnv):
    """One T-maze for gymnasium; see `TMaze`."""

    make = TMaze


class InspectionEnv(WorldEnv):
    """One surface for gymnasium; see `Inspection`."""

    metadata = WorldEnv.metadata | {"render_fps": 2}  # type: ignore[misc]  # few, to look at
    make = Inspection


def make_world(name: str, num_envs: int, **kwargs: Any) -> World:
    """Make a world by name or by gymnasium id.

    Raises:
        ValueError: there is no such world, or an argument cannot be used; names the nearest.
    """
    ids = {f"rl_twoclocks/{world.__name__}-v0": world for world in WORLDS.values()}
    known: dict[str, Any] = WORLDS | ids
    make = known[one_of("name", name, known)]
    taken = inspect.signature(make).parameters
    if all(argument.kind is not argument.VAR_KEYWORD for argument in taken.values()):
        choices = [name for name in taken if name != "num_envs"]
        for key in kwargs:
            one_of("argument", key, choices)
    return make(num_envs=num_envs, **kwargs)


for _env in (MazeEnv, TMazeEnv, GraspEnv, InspectionEnv):
    _id = f"rl_twoclocks/{_env.make.__name__}-v0"
    if _id not in gym.registry:
        gym.register(_id, entry_point=f"{__name__}:{_env.__name__}")
