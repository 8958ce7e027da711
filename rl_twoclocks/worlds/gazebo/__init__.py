"""Gazebo 11 in lock-step: real gzserver processes that advance only when they are told to.

`docs/gazebo.md` tells how to install it and how to bring a world of one's own.
"""

from __future__ import annotations

from rl_twoclocks.worlds.gazebo.envs import GazeboEnv
from rl_twoclocks.worlds.gazebo.installation import GazeboMissing, Installation
from rl_twoclocks.worlds.gazebo.picture import Picture
from rl_twoclocks.worlds.gazebo.protocol import Link, Start, State
from rl_twoclocks.worlds.gazebo.rules import Rules, Verdict
from rl_twoclocks.worlds.gazebo.sdf import STEP, WorldFile
from rl_twoclocks.worlds.gazebo.world import Gazebo, GazeboArm, GazeboCartpole, GazeboDiffdrive

__all__ = [
    "GAZEBO",
    "STEP",
    "Gazebo",
    "GazeboEnv",
    "GazeboMissing",
    "Installation",
    "Link",
    "Picture",
    "Rules",
    "Start",
    "State",
    "Verdict",
    "WorldFile",
]

GAZEBO: dict[str, type[Gazebo]] = {
    "gazebo": Gazebo,
    "gazebo_cartpole": GazeboCartpole,
    "gazebo_arm": GazeboArm,
    "gazebo_diffdrive": GazeboDiffdrive,
}
"""By the names of `task=`."""
