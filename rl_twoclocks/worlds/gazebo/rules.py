"""What makes a task of a Gazebo world: how episodes begin, what is observed, what is rewarded."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_twoclocks.imports import import_module
from rl_twoclocks.worlds.gazebo.picture import Picture
from rl_twoclocks.worlds.gazebo.protocol import Array, Start, State


class Verdict(NamedTuple):
    """What a decision led to."""

    reward: float
    terminated: bool = False
    """The episode is over, and nothing would follow."""
    success: bool = False
    """The goal is reached; counts where the episode ends."""


class Rules:
    """Rules of one environment; derive from this class and give its import path as `task.rules`.

    An instance may keep what belongs to the episode under way (a goal, the last distance), if all
    of it follows from `begin` and the states seen since: a resumed run calls both again.
    """

    time_limit = 500
    """Decisions after which an episode is truncated."""

    def begin(self, random: np.random.Generator) -> Start:
        """Draw how the next episode begins; all chance comes from `random`."""
        return Start()

    def observe(self, state: State) -> Array:
        """What the policy sees, numbers [K]; K is always the same."""
        raise NotImplementedError

    def judge(self, state: State, action: Array, late: bool) -> Verdict:
        """Judge the state that an action has led to.

        Args:
            state: after the action.
            action: efforts, N or N m, one per joint of the task.
            late: the time is up.
        """
        raise NotImplementedError

    def draw(self, state: State, picture: Picture) -> None:
        """Draw the world; by default all links as dots, seen from the side (x to the right, z up)."""
        for row in state.links:
            picture.dot((row[0], row[2]), 0.05)


def load_rules(path: str) -> type[Rules]:
    """Import a class of rules by its path, e.g. `my_package:Balance`.

    Raises:
        ValueError: there is no such module or class; names what is there.
    """
    module_name, _, name = path.partition(":")
    if not name:
        raise ValueError(f"rules={path!r} is no import path: write module:Class")
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ValueError(f"rules={path}: {error}") from error
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, Rules)):
        here = [k for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, Rules)]
        listed = ", ".join(k for k in here if k != "Rules") or "none"
        raise ValueError(
            f"rules={path}: {name} is no class derived from rl_twoclocks.worlds.gazebo.Rules; "
            f"those in {module_name}: {listed}"
        )
    return found
