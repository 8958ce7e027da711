"""Mazes, N at once: +10 for the goal, -5 for bumping into a wall, otherwise 0."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from gymnasium.spaces import Box, Discrete

from rl_twoclocks.worlds.base import (
    Array,
    Index,
    World,
    below,
    mix,
    normal,
    one_of,
    whole,
    within,
)

GOAL, BUMP = 10.0, -5.0
UP, DOWN, LEFT, RIGHT = range(4)
TEST_SHARE = 4
"""One layout in this many is a test layout."""
TRAIL = 4
"""Visits that the trail tells apart: no search that turns back at dead ends enters a cell more often."""

# Purposes of hashes, so that no two draws share one.
_MAZE, _NOISE, _GOAL_CELL, _START_CELL, _CARVE, _SPLIT, _AGAIN = range(1, 8)


def _choices() -> Array:
    """Tabulate which way to go, given the free ones as bits and a number below 12.

    Twelve is divisible by one to four free ways, so each is equally likely: int64 [16, 12].
    """
    free = [[way for way in range(4) if bits >> way & 1] for bits in range(16)]
    return np.array([np.resize(ways or [0], 12) for ways in free])


_CHOICE = _choices()


@dataclass
class Mazes:
    """M mazes as grids with a margin of wall, W x W cells, flattened.

    Attributes:
        wall: bool [M, W * W].
        distance: int16 [M, W * W], moves from a cell to the goal; -1 in walls.
        start: int64 [M], flat position of the agent's first cell.
        goal: int64 [M], flat position of the goal.
    """

    wall: Array
    distance: Array
    start: Array
    goal: Array

    @classmethod
    def room_for(cls, count: int, width: int) -> Mazes:
        """Make room for `count` mazes of `width` x `width` cells."""
        cells = (count, width * width)
        wall, distance = np.ones(cells, dtype=bool), np.full(cells, -1, dtype=np.int16)
        return cls(wall, distance, np.zeros(count, np.int64), np.zeros(count, np.int64))

    def take(self, rows: Array) -> Mazes:
        """Copy some of the mazes."""
        return Mazes(self.wall[rows], self.distance[rows], self.start[rows], self.goal[rows])

    def put(self, rows: Array, mazes: Mazes) -> None:
        """Overwrite some of the mazes."""
        self.wall[rows], self.distance[rows] = mazes.wall, mazes.distance
        self.start[rows], self.goal[rows] = mazes.start, mazes.goal


def carve(seeds: Array, size: int, margin: int) -> Mazes:
    """Make one maze per seed by randomised depth-first search, all at once.

    The search starts at the goal and leaves a tree, so every maze is solvable and a cell's depth is
    its distance to the goal. Passages lie at odd rows and columns, `size` x `size` cells in all.

    Args:
        seeds: uint64 [M].
        size: odd.
        margin: cells of wall around the maze, at least 1.
    """
    count, side = len(seeds), (size - 1) // 2
    width, rooms = size + 2 * margin, side * side
    moves = _moves(width)
    line = margin + 1 + 2 * np.arange(side)
    cells = (line[:, None] * width + line).ravel()
    goal = below(mix(seeds, _GOAL_CELL), rooms)
    start = (goal + 1 + below(mix(seeds, _START_CELL), rooms - 1)) % rooms
    mazes = Mazes.room_for(count, width)
    mazes.start, mazes.goal = cells[start], cells[goal]

    base = np.arange(count) * (width * width)
    fresh = np.zeros(count * width * width, dtype=np.uint8)
    fresh[base[:, None] + cells] = 1
    distance = mazes.distance.reshape(-1)
    everyone = np.arange(count)
    trail = np.zeros((count, rooms), dtype=np.int64)
    trail[:, 0] = base + mazes.goal
    length = np.zeros(count, dtype=np.int64)
    fresh[trail[:, 0]] = distance[trail[:, 0]] = 0
    luck = mix(seeds, _CARVE)
    # Every room but the first is entered once and left once by turning back.
    for _ in range(2 * (rooms - 1)):
        here = trail[everyone, length]
        free = fresh[here + 2 * moves[:, None]]
        ways = free[0] | free[1] << 1 | free[2] << 2 | free[3] << 3
        way = _CHOICE[ways, below(luck, 12)]
        luck = _next(luck)
        on = np.flatnonzero(ways)
        length -= 1
        length[on] += 2
        np.maximum(length, 0, out=length)
        here, step = here[on], moves[way[on]]
        depth, there = distance[here], here + 2 * step
        fresh[there] = 0
        distance[here + step], distance[there] = depth + 1, depth + 2
        trail[on, length[on]] = there
    mazes.wall = mazes.distance < 0
    return mazes


def _next(luck: Array) -> Array:
    """Give the next random words: xorshift64 (Marsaglia 2003), cheaper than a hash."""
    luck = luck ^ (luck << np.uint64(13))
    luck = luck ^ (luck >> np.uint64(7))
    return luck ^ (luck << np.uint64(17))


def is_test(layout: Array) -> Array:
    """Say which mazes are for testing, by a hash of their walls, bool [M, size, size]: bool [M].

    Where start and goal lie does not matter, so no layout is ever seen in both splits.
    """
    bits = np.packbits(layout.reshape(len(layout), -1), axis=1)
    words = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8))).view("<u8")
    return below(mix(_SPLIT, *words.T), TEST_SHARE) == 0


def make_mazes(seeds: Array, size: int, margin: int, split: str) -> Mazes:
    """Make one maze of a split per seed, uint64 [M]."""
    width = size + 2 * margin
    inner = slice(margin, margin + size)
    mazes = Mazes.room_for(len(seeds), width)
    missing = np.arange(len(seeds))
    while len(missing):
        made = carve(seeds, size, margin)
        layout = made.wall.reshape(-1, width, width)[:, inner, inner]
        right = is_test(layout) == (split == "test")
        mazes.put(missing[right], made.take(right))
        missing, seeds = missing[~right], mix(seeds[~right], _AGAIN)
    return mazes


@functools.lru_cache(maxsize=8)
def library(count: int, size: int, margin: int, split: str) -> Mazes:
    """Give the first `count` different mazes of a split; made once per process.

    Raises:
        ValueError: there are not as many.
    """
    # Small mazes repeat: on, until there are enough or hardly any is new.
    drawn, found = count + count // 4 + 64, 0
    while True:
        mazes = make_mazes(mix(_MAZE, np.arange(drawn)), size, margin, split)
        flat = np.column_stack([np.packbits(mazes.wall, axis=1), mazes.start, mazes.goal])
        first = np.sort(np.unique(flat, axis=0, return_index=True)[1])
        if len(first) >= count:
            return mazes.take(first[:count])
        if len(first) <= 1.01 * found:
            raise ValueError(
                f"mazes={count}: {len(first)} different ones of size {size} were found: "
                f"give mazes={len(first)} or less, or null for all"
            )
        drawn, found = 2 * drawn, len(first)


class Maze(World):
    """N mazes; actions up, down, left, right.

    Observations, float32:
    `full` [3 * size * size]: walls, agent and goal as planes of 0 and 1;
    `partial` [window * window + 6]: walls around the agent, the last action (one-hot) and rows and
    columns to the goal as shares of the size; with `trail` [2 * window * window + 6], at the end how
    often the agent has entered each of these cells, in quarters, 1 at most.

    Args:
        num_envs: N.
        size: rows and columns, odd, 7 to 31.
        view: full or partial.
        window: rows and columns of the partial view, odd.
        trail: whether the partial view shows where the agent has been.
        reward: sparse: +10 at the goal, -5 for bumping; dense: also potential-based shaping by the
            distance to the goal (Ng, Harada and Russell 1999); noisy: also Gaussian noise.
        noise: standard deviation of the noisy reward.
        shaping: reward per cell of distance.
        gamma: discount of the shaping; the learner's, for the best policy to stay the best.
        split: train or test; no layout belongs to both.
        mazes: how many different mazes there are; None: no end of them.
        time_limit: decisions until truncation; None: 4 * size * size.

    Raises:
        ValueError: an argument cannot be used; names the nearest right value.
    """

    fields = ("position", "last", "visits")

    def __init__(
        self,
        num_envs: int,
        size: int = 13,
        view: str = "full",
        window: int = 5,
        trail: bool = False,
        reward: str = "sparse",
        noise: float = 1.0,
        shaping: float = 0.1,
        gamma: float = 0.99,
        split: str = "train",
        mazes: int | None = None,
        time_limit: int | None = None,
    ) -> None:
        _odd("size", size, 7, 31)
        _odd("window", window, 3, 31)
        within("noise", noise, 0.0)
        within("gamma", gamma, 0.0, 1.0)
        self.full = one_of("view", view, ("full", "partial")) == "full"
        self.reward = one_of("reward", reward, ("sparse", "dense", "noisy"))
        self.split = one_of("split", split, ("train", "test"))
        self.size, self.noise, self.shaping, self.gamma = size, noise, shaping, gamma
        self.margin = 1 if self.full else window // 2
        self.width = size + 2 * self.margin
        if trail and self.full:
            raise ValueError("trail=true needs view=partial: the full view does not show it")
        self.trail = trail
        inputs = 3 * size * size if self.full else (1 + trail) * window * window + 6
        space = Box(0.0 if self.full else -1.0, 1.0, (inputs,), np.float32)
        limit = 4 * size * size if time_limit is None else time_limit
        super().__init__(num_envs, limit, space, Discrete(4))

        reach = np.arange(window) - window // 2
        self._window = (reach[:, None] * self.width + reach).ravel()
        self._moves = _moves(self.width)
        self._everyone = np.arange(num_envs)
        self.visits = np.zeros((num_envs, self.width * self.width if trail else 0), dtype=np.int8)
        self.row, self.position, self.last, self._drawn = np.zeros((4, num_envs), dtype=np.int64)
        self.mazes = mazes
        if mazes is None:
            # Mazes are carved for many episodes ahead: a batch costs little more than one of them.
            self._ahead = max(4, 128 // num_envs)
            self._stocked = np.zeros(num_envs, dtype=np.int64)
            self._stocked_for = np.zeros(num_envs, dtype=np.uint64)
            self.pool = Mazes.room_for(num_envs * self._ahead, self.width)
        else:
            # A cell takes three bytes in the library.
            whole("mazes", mazes, 1, 2**30 // (3 * self.width**2))
            self.pool = library(mazes, size, self.margin, split)
        self._wall = self.pool.wall.reshape(-1)

    def _stock(self, index: Array) -> None:
        """See to it that the present episodes of these environments have their mazes."""
        # Another seed or an earlier state came in: what is there belongs to other episodes.
        other = (self._stocked_for != self.key) | (self._stocked > self.episode + self._ahead)
        self._stocked = np.where(other, self.episode, np.maximum(self._stocked, self.episode))
        self._stocked_for = self.key.copy()
        if (self._stocked[index] > self.episode[index]).all():
            return
        # For all environments at once, up to `_ahead` episodes for each.
        missing = np.maximum(self.episode, 0)[:, None] + np.arange(self._ahead)
        env, _ = np.nonzero(missing >= self._stocked[:, None])
        episode = missing[missing >= self._stocked[:, None]]
        seeds = mix(self.key[env], _MAZE, episode)
        rows = env * self._ahead + episode % self._ahead
        self.pool.put(rows, make_mazes(seeds, self.size, self.margin, self.split))
        self._stocked = np.maximum(self.episode, 0) + self._ahead

    def _begin(self, index: Array) -> None:
        episode = self.episode[index]
        if self.mazes is None:
            self._stock(index)
            self.row[index] = index * self._ahead + episode % self._ahead
        else:
            self.row[index] = below(mix(self.key[index], _MAZE, episode), self.mazes)
        self.position[index] = self.pool.start[self.row[index]]
        self.last[index] = -1
        if self.trail:
            self.visits[index] = 0
            self.visits[index, self.position[index]] = 1
        if self.full:
            self._draw(index)

    def _draw(self, index: Array) -> None:
        """Write what stays during an episode: walls and goal."""
        inner, area = slice(self.margin, self.margin + self.size), self.size * self.size
        rows = self.row[index]
        wall = self.pool.wall[rows].reshape(-1, self.width, self.width)[:, inner, inner]
        planes = np.zeros((len(index), 3, area), dtype=np.float32)
        planes[:, 0] = wall.reshape(-1, area)
        planes[np.arange(len(index)), 2, self._inner(self.pool.goal[rows])] = 1.0
        self._observation[index] = planes.reshape(len(index), -1)
        self._drawn[index] = area

    def _inner(self, position: Array) -> Array:
        """Turn positions in the grid with its margin into positions in the maze."""
        line, column = np.divmod(position, self.width)
        return (line - self.margin) * self.size + column - self.margin

    def _advance(self, action: Array, late: Array) -> tuple[Array, Array, Array]:
        here, base = self.position, self.row * (self.width * self.width)
        target = here + self._moves[action]
        bumped = self._wall[base + target]
        self.position = np.where(bumped, here, target)
        self.last = action.astype(np.int64)
        if self.trail:
            entered = self.visits[self._everyone, self.position] + ~bumped
            self.visits[self._everyone, self.position] = np.minimum(entered, TRAIL)
        arrived = self.position == self.pool.goal[self.row]
        reward = GOAL * arrived + BUMP * bumped
        if self.reward == "dense":
            distance = self.pool.distance.reshape(-1)
            before, after = distance[base + here], distance[base + self.position]
            reward += self.shaping * (before - self.gamma * after)
        elif self.reward == "noisy":
            reward += self.noise * normal(mix(self.key, _NOISE, self.episode, self.time))
        return reward, arrived, arrived.copy()

    def _observe(self, index: Index) -> None:
        if self.full:
            self._observe_full(index)
        else:
            self._observe_partial(index)

    def _observe_full(self, index: Index) -> None:
        # The agent is all that moves: two cells of the buffer change, not all of it.
        everyone, area = self._everyone[index], self.size * self.size
        here = area + self._inner(self.position[index])
        self._observation[everyone, self._drawn[index]] = 0.0
        self._observation[everyone, here] = 1.0
        self._drawn[index] = here

    def _observe_partial(self, index: Index) -> None:
        rows, here = self.row[index], self.position[index]
        cells = (rows * (self.width * self.width) + here)[:, None] + self._window
        area = len(self._window)
        self._observation[index, :area] = self._wall.take(cells)
        self._observation[index, area : area + 4] = self.last[index][:, None] == np.arange(4)
        lines, columns = np.divmod(self.pool.goal[rows], self.width)
        line, column = np.divmod(here, self.width)
        self._observation[index, area + 4] = (lines - line) / self.size
        self._observation[index, area + 5] = (columns - column) / self.size
        if self.trail:
            around = here[:, None] + self._window
            entered = self.visits[self._everyone[index][:, None], around]
            self._observation[index, area + 6 :] = entered / TRAIL

    def render(self, number: int = 0) -> Array:
        """Draw one maze, 16 pixels per cell: walls dark, agent blue, goal green; unseen cells dim."""
        row, here = self.row[number], self.position[number]
        picture = np.where(self.pool.wall[row][:, None], (40, 40, 40), (235, 235, 235))
        if not self.full:
            unseen = np.ones(len(picture), dtype=bool)
            unseen[here + self._window] = False
            picture[unseen] = picture[unseen] // 2 + 30
        picture[self.pool.goal[row]] = (40, 170, 70)
        picture[here] = (40, 90, 220)
        inner = slice(self.margin, self.margin + self.size)
        picture = picture.reshape(self.width, self.width, 3)[inner, inner]
        return np.kron(picture, np.ones((16, 16, 1), dtype=int)).astype(np.uint8)


def _moves(width: int) -> Array:
    """Give the change of a flat position for up, down, left and right."""
    return np.array([-width, width, -1, 1])


def _odd(name: str, value: int, low: int, high: int) -> None:
    whole(name, value, low, high)
    if value % 2 == 0:
        near = value + 1 if value < high else value - 1
        raise ValueError(
            f"{name}={value} is even: the nearest right values are {value - 1} and {near}"
        )
