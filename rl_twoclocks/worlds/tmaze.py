"""T-mazes, N at once: a cue at the start says which way to turn at the far end of the corridor.

The cue is seen in the first cell only, and all cells between it and the junction look alike. So a
policy without memory takes the correct turn half of the time, whatever it has learnt. After Bakker 2002.
"""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete

from rl_twoclocks.worlds.base import Array, Index, World, below, mix, within

FORWARD, LEFT, RIGHT = range(3)
RIGHT_TURN, WRONG_TURN, BUMP = 1.0, -1.0, -0.05

# Purposes of hashes, so that no two draws share one.
_SIDE = 1


class TMaze(World):
    """N T-mazes; actions forward, left, right.

    Observations, float32 [2]: the cue, -1 (left) or 1 (right) in the first cell and 0 elsewhere; and 1
    at the junction, else 0. The reward is +1 for the turn that the cue named and -1 for the other,
    which both end the episode, and -0.05 for bumping into a wall.

    Args:
        num_envs: N.
        length: decisions from the first cell to the junction, 1 to 1000.
        time_limit: decisions until truncation; None: 4 * length.

    Raises:
        ValueError: an argument cannot be used; names the nearest right value.
    """

    fields = ("place",)

    def __init__(self, num_envs: int, length: int = 10, time_limit: int | None = None) -> None:
        within("length", length, 1, 1000)
        self.length = length
        limit = 4 * length if time_limit is None else time_limit
        space = Box(-1.0, 1.0, (2,), np.float32)
        super().__init__(num_envs, limit, space, Discrete(3))
        self.place, self.side = np.zeros((2, num_envs), dtype=np.int64)

    def _begin(self, index: Array) -> None:
        self.place[index] = 0
        drawn = below(mix(self.key[index], _SIDE, self.episode[index]), 2)
        self.side[index] = np.where(drawn == 0, LEFT, RIGHT)

    def _advance(self, action: Array, late: Array) -> tuple[Array, Array, Array]:
        junction, forward = self.place == self.length, action == FORWARD
        turned = junction & ~forward
        right = turned & (action == self.side)
        bumped = junction == forward
        self.place = self.place + (forward & ~junction)
        reward = RIGHT_TURN * right + WRONG_TURN * (turned & ~right) + BUMP * bumped
        return reward, turned, right

    def _observe(self, index: Index) -> None:
        place = self.place[index]
        cue = np.where(self.side[index] == LEFT, -1.0, 1.0)
        self._observation[index, 0] = np.where(place == 0, cue, 0.0)
        self._observation[index, 1] = place == self.length

    def render(self, number: int = 0) -> Array:
        """Draw one maze, 8 pixels per cell: walls dark, agent blue, the cell to turn to green."""
        picture = np.full((5, self.length + 3, 3), 40)
        picture[2, 1:-1] = picture[1:4, -2] = 235
        picture[1 if self.side[number] == LEFT else 3, -2] = (40, 170, 70)
        picture[2, 1 + self.place[number]] = (40, 90, 220)
        return np.kron(picture, np.ones((8, 8, 1), dtype=int)).astype(np.uint8)
