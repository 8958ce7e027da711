"""Mazes: solvable, checked by rules written here anew, and never shared by training and test."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rl_twoclocks.worlds import Maze
from rl_twoclocks.worlds.base import mix
from rl_twoclocks.worlds.maze import DOWN, LEFT, RIGHT, UP, is_test, make_mazes

STEP = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}
# The first maze of seed 1: A the agent, G the goal.
FIXED = ["#######", "#....A#", "#.###.#", "#...#.#", "###.#.#", "#G..#.#", "#######"]
SOLUTION = [LEFT] * 4 + [DOWN] * 2 + [RIGHT] * 2 + [DOWN] * 2 + [LEFT] * 2


def search(wall: np.ndarray, goal: tuple[int, int]) -> np.ndarray:
    """Moves from every cell to the goal by breadth-first search; -1 where there is no way."""
    distance = np.full(wall.shape, -1)
    distance[goal] = 0
    queue = deque([goal])
    while queue:
        line, column = queue.popleft()
        for down, across in STEP.values():
            cell = line + down, column + across
            if not wall[cell] and distance[cell] < 0:
                distance[cell] = distance[line, column] + 1
                queue.append(cell)
    return distance


def planes(observation: np.ndarray) -> tuple[np.ndarray, tuple[int, int], tuple[int, int]]:
    """Walls, agent and goal of one full observation."""
    size = int((len(observation) / 3) ** 0.5)
    wall, agent, goal = observation.reshape(3, size, size)
    assert set(np.unique(observation)) == {0.0, 1.0}
    assert agent.sum() == goal.sum() == 1
    return (
        wall > 0,
        divmod(int(agent.argmax()), size),
        divmod(int(goal.argmax()), size),
    )


def towards(observation: np.ndarray) -> int:
    """An action that shortens the way to the goal."""
    wall, (line, column), goal = planes(observation)
    distance = search(wall, goal)
    ways = [a for a, (down, across) in STEP.items() if not wall[line + down, column + across]]
    return min(ways, key=lambda a: distance[line + STEP[a][0], column + STEP[a][1]])


def judge(observation: np.ndarray, action: int) -> tuple[float, tuple[int, int], bool]:
    """The outside rule: reward, the agent's next cell and whether it is the goal."""
    wall, agent, goal = planes(observation)
    target = agent[0] + STEP[action][0], agent[1] + STEP[action][1]
    if wall[target]:
        return -5.0, agent, False
    return (10.0 if target == goal else 0.0), target, target == goal


@pytest.mark.parametrize("size", [7, 9, 13, 21, 31])
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_maze_is_solvable(size: int, split: str) -> None:
    count, margin = (150, 2) if size < 21 else (10, 2)
    mazes = make_mazes(mix(9, np.arange(count)), size, margin, split)
    width = size + 2 * margin
    for k in range(count):
        wall = mazes.wall[k].reshape(width, width)
        edge = np.ones_like(wall)
        edge[margin + 1 : -margin - 1, margin + 1 : -margin - 1] = False
        assert wall[edge].all()
        rooms = wall[margin + 1 : -margin : 2, margin + 1 : -margin : 2]
        assert not rooms.any()
        # A tree: one passage less than rooms, and every one of them has a way to the goal.
        assert (~wall).sum() == 2 * rooms.size - 1
        goal, start = (divmod(int(place[k]), width) for place in (mazes.goal, mazes.start))
        distance = search(wall, goal)
        assert distance[start] > 0
        np.testing.assert_array_equal(distance, mazes.distance[k].reshape(width, width))


def test_starts_goals_and_ways_are_spread_evenly() -> None:
    mazes = make_mazes(mix(3, np.arange(8000)), 7, 1, "train")
    for places in (mazes.start, mazes.goal):
        counts = np.bincount(places)
        assert abs(counts[counts > 0] / 8000 - 1 / 9).max() < 0.02
    wall = mazes.wall.reshape(-1, 9, 9)
    # No direction is preferred: a maze is as likely as its mirror images.
    for flipped in (wall[:, ::-1], wall[:, :, ::-1], wall.transpose(0, 2, 1)):
        assert abs(wall.mean(0) - flipped.mean(0)).max() < 0.06


@pytest.mark.parametrize("size", [7, 13])
def test_rewards_and_moves_follow_the_rule(size: int) -> None:
    world = Maze(24, size=size, time_limit=60)
    before = world.reset(seeds=list(range(24))).copy()
    rng = np.random.default_rng(0)
    seen = {-5.0: 0, 0.0: 0, 10.0: 0}
    time, successes = np.zeros(24, int), 0
    for _ in range(150):
        action = rng.integers(0, 4, 24)
        for i in np.flatnonzero(rng.random(24) < 0.5):
            action[i] = towards(before[i])
        after, reward, terminated, truncated = world.step(action)
        time += 1
        for i in range(24):
            expected, cell, arrived = judge(before[i], int(action[i]))
            assert reward[i] == expected
            assert planes(after[i])[1] == cell
            assert terminated[i] == world.success[i] == arrived
            assert truncated[i] == (time[i] == 60 and not arrived)
            seen[expected] += 1
            successes += arrived
        ended = terminated | truncated
        time[ended] = 0
        before = (world.reset(ended) if ended.any() else after).copy()
    assert all(count > 5 for count in seen.values())
    assert world.successes == successes


def test_a_maze_by_hand() -> None:
    world = Maze(1, size=7)
    picture = np.array([list(line) for line in FIXED])
    wall, agent, goal = planes(world.reset(seeds=[1])[0])
    np.testing.assert_array_equal(wall, picture == "#")
    assert picture[agent] == "A"
    assert picture[goal] == "G"
    # Into the wall above and to the right: the agent stays.
    for action in (UP, RIGHT):
        observation, reward, terminated, truncated = world.step(np.array([action]))
        assert planes(observation[0])[1] == (1, 5)
        assert (reward[0], terminated[0], truncated[0]) == (-5.0, False, False)
    rewards = []
    for action in SOLUTION:
        observation, reward, terminated, truncated = world.step(np.array([action]))
        rewards.append(float(reward[0]))
    assert rewards == [0.0] * 11 + [10.0]
    assert planes(observation[0])[1] == goal
    assert terminated[0]
    assert not truncated[0]
    assert (world.episodes, world.successes) == (1, 1)


@pytest.mark.parametrize(("limit", "ends"), [(11, "truncated"), (12, "terminated")])
def test_the_time_limit_truncates_unless_the_goal_is_reached(limit: int, ends: str) -> None:
    world = Maze(1, size=7, time_limit=limit)
    world.reset(seeds=[1])
    for action in SOLUTION[:limit]:
        assert not world.ended[0]
        _, _, terminated, truncated = world.step(np.array([action]))
    assert (terminated[0], truncated[0]) == (ends == "terminated", ends == "truncated")
    assert (world.episodes, world.successes) == (1, int(ends == "terminated"))


def test_time_limits_grow_with_the_size() -> None:
    assert [Maze(1, size=size).time_limit for size in (7, 13, 31)] == [196, 676, 3844]


@pytest.mark.parametrize("window", [3, 5, 9])
def test_the_partial_view_is_cut_out_of_the_full_one(window: int) -> None:
    settings: dict[str, Any] = {"size": 9, "time_limit": 30}
    full = Maze(12, view="full", **settings)
    partial = Maze(12, view="partial", window=window, **settings)
    seeds, reach = list(range(12)), window // 2
    whole, part = full.reset(seeds=seeds), partial.reset(seeds=seeds)
    assert (part[:, -6:-2] == 0).all()
    rng = np.random.default_rng(1)
    for _ in range(60):
        action = rng.integers(0, 4, 12)
        whole, reward, *ends = full.step(action)
        part, other_reward, *other_ends = partial.step(action)
        np.testing.assert_array_equal([reward, *ends], [other_reward, *other_ends])
        for i in range(12):
            wall, (line, column), goal = planes(whole[i])
            padded = np.pad(wall, reach, constant_values=True)
            expected = padded[line : line + window, column : column + window].ravel()
            np.testing.assert_array_equal(part[i, : window * window], expected)
            np.testing.assert_array_equal(part[i, -6:-2], np.arange(4) == action[i])
            away = (goal[0] - line) / 9, (goal[1] - column) / 9
            np.testing.assert_allclose(part[i, -2:], away, rtol=1e-6)
        if full.ended.any():
            ended = full.ended.copy()
            full.reset(ended)
            partial.reset(ended)


def assert_all_arrive(world: Maze, decide: Callable[[np.ndarray], np.ndarray]) -> None:
    """A rule brings all to their goals, without a bump, in the time of a walk around every wall."""
    n = world.num_envs
    observation = world.reset(seeds=list(range(n)))
    rooms = ((world.size - 1) // 2) ** 2
    going, reached = np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
    for _ in range(4 * rooms):
        observation, reward, terminated, _ = world.step(decide(observation))
        assert (reward >= 0).all()
        reached |= going & terminated
        going &= ~terminated
        if terminated.any():
            observation = world.reset(terminated)
    assert reached.all()


@pytest.mark.parametrize("size", [7, 13])
def test_the_partial_view_is_enough_without_memory(size: int) -> None:
    # The right hand stays on the wall: right of the last move if free, else ahead, left, back.
    turns = {UP: (RIGHT, UP, LEFT, DOWN), RIGHT: (DOWN, RIGHT, UP, LEFT)}
    turns |= {DOWN: (LEFT, DOWN, RIGHT, UP), LEFT: (UP, LEFT, DOWN, RIGHT)}

    def turn(observation: np.ndarray) -> np.ndarray:
        free = observation[:, [1, 7, 3, 5]] == 0
        last = observation[:, 9:13].argmax(1)
        return np.array([next(a for a in turns[last[i]] if free[i, a]) for i in range(100)])

    assert_all_arrive(Maze(100, size=size, view="partial", window=3, split="test"), turn)


@pytest.mark.parametrize("window", [3, 7])
def test_the_trail_counts_how_often_cells_were_entered(window: int) -> None:
    settings: dict[str, Any] = {"size": 7, "time_limit": 25}
    full = Maze(8, view="full", **settings)
    world = Maze(8, view="partial", window=window, trail=True, **settings)
    whole, part = full.reset(seeds=list(range(8))), world.reset(seeds=list(range(8)))
    rng, reach, area = np.random.default_rng(4), window // 2, window * window
    entered = np.zeros((8, 7, 7))
    for i in range(8):
        entered[i][planes(whole[i])[1]] = 1
    for _ in range(80):
        before = [planes(whole[i])[1] for i in range(8)]
        for i in range(8):
            line, column = before[i]
            around = np.pad(entered[i], reach)[line : line + window, column : column + window]
            np.testing.assert_allclose(part[i, area + 6 :], np.minimum(around, 4).ravel() / 4)
        action = rng.integers(0, 4, 8)
        whole, part = full.step(action)[0], world.step(action)[0]
        for i in range(8):
            here = planes(whole[i])[1]
            entered[i][here] += here != before[i]
        if full.ended.any():
            ended = full.ended.copy()
            whole, part = full.reset(ended), world.reset(ended)
            for i in np.flatnonzero(ended):
                entered[i] = 0
                entered[i][planes(whole[i])[1]] = 1


def test_the_trail_is_enough_without_a_rule_of_the_hand() -> None:
    # To the free cell that was entered least, and back only from a dead end.
    around, back = [1, 7, 3, 5], [DOWN, UP, RIGHT, LEFT]

    def onward(observation: np.ndarray) -> np.ndarray:
        last = observation[:, 9:13][:, back]
        entered = observation[:, 15:][:, around] + 10 * observation[:, around] + 5 * last
        return entered.argmin(1)

    assert_all_arrive(
        Maze(100, size=13, view="partial", window=3, trail=True, split="test"), onward
    )


def test_dense_rewards_add_the_change_of_a_potential() -> None:
    dense = Maze(8, size=9, reward="dense", shaping=0.2, gamma=0.9)
    observation = dense.reset(seeds=list(range(8))).copy()
    rng = np.random.default_rng(2)
    for _ in range(40):
        action = rng.integers(0, 4, 8)
        after, reward, terminated, _ = dense.step(action)
        for i in range(8):
            wall, here, goal = planes(observation[i])
            sparse, there, _ = judge(observation[i], int(action[i]))
            potential = -0.2 * search(wall, goal)
            expected = sparse + 0.9 * potential[there] - potential[here]
            assert reward[i] == pytest.approx(expected)
        observation = (dense.reset(terminated) if terminated.any() else after).copy()


def test_noisy_rewards_are_the_sparse_ones_and_gaussian_noise() -> None:
    sparse, noisy = Maze(500, size=7), Maze(500, size=7, reward="noisy", noise=2.0)
    for world in (sparse, noisy):
        world.reset(seeds=list(range(500)))
    rng, errors = np.random.default_rng(3), []
    for _ in range(40):
        action = rng.integers(0, 4, 500)
        _, reward, *_ = sparse.step(action)
        _, other, *_ = noisy.step(action)
        errors.append(other - reward)
        if sparse.ended.any():
            ended = sparse.ended.copy()
            sparse.reset(ended)
            noisy.reset(ended)
    error = np.concatenate(errors)
    assert abs(error.mean()) < 0.05
    assert error.std() == pytest.approx(2.0, rel=0.03)
    assert abs(np.corrcoef(errors[0], errors[1])[0, 1]) < 0.15


def layouts(world: Maze, episodes: int) -> set[bytes]:
    """Walls of the mazes that a world with full view gives."""
    area, found = world.size**2, set()
    for _ in range(episodes):
        found |= {row[:area].tobytes() for row in world.reset()}
    return found


@pytest.mark.parametrize("mazes", [None, 60])
def test_training_and_test_mazes_are_disjoint(mazes: int | None) -> None:
    # Of size 7 there are only 88 layouts: sharing could not be avoided by luck.
    train = layouts(Maze(256, size=7, mazes=mazes), 20)
    test = layouts(Maze(256, size=7, split="test", mazes=mazes), 20)
    assert not train & test
    if mazes is None:
        assert len(train) + len(test) == 88
        assert 12 < len(test) < 32


def test_the_split_depends_on_the_layout_alone() -> None:
    mazes = make_mazes(mix(5, np.arange(200)), 9, 3, "test")
    layout = mazes.wall.reshape(-1, 15, 15)[:, 3:-3, 3:-3]
    assert is_test(layout).all()
    assert is_test(layout[::-1][:7]).all()
    assert not is_test(
        make_mazes(mix(5, np.arange(200)), 9, 3, "train").wall.reshape(-1, 15, 15)[:, 3:-3, 3:-3]
    ).any()


def test_a_finite_set_has_as_many_different_mazes() -> None:
    world = Maze(512, size=13, mazes=8)
    seen = {row.tobytes() for _ in range(3) for row in world.reset()}
    assert len(seen) == 8
    assert len({row.tobytes() for row in Maze(512, size=13).reset()}) == 512


def test_as_many_mazes_as_are_advised_can_be_had() -> None:
    with pytest.raises(ValueError, match="give mazes=") as refused:
        Maze(1, size=7, mazes=20_000)
    most = int(str(refused.value).split("give mazes=")[1].split()[0])
    assert Maze(1, size=7, mazes=most).mazes == most


def test_a_long_stay_leaves_the_trail_within_its_bounds() -> None:
    world = Maze(4, size=7, view="partial", trail=True, time_limit=2000)
    observation = world.reset(seeds=[0, 1, 2, 3])
    for k in range(1200):
        if not world.ended.any():
            observation = world.step(np.full(4, (UP, DOWN, LEFT, RIGHT)[k % 4]))[0]
    assert world.observation_space.contains(observation[0])
    assert observation[:, -25:].max() == 1.0


def test_what_ended_is_not_undone_by_a_reset() -> None:
    world = Maze(1, size=7)
    world.reset(seeds=[1])
    for action in SOLUTION:
        _, _, terminated, _ = world.step(np.array([action]))
    world.reset(terminated)
    assert terminated[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 12}, "size=12 is even: the nearest right values are 11 and 13"),
        ({"size": 33}, "size=33 is outside 7 to 31: the nearest is 31"),
        ({"window": 4}, "window=4 is even"),
        ({"trail": True}, "trail=true needs view=partial"),
        ({"view": "ful"}, "view='ful': did you mean full"),
        ({"reward": "noise"}, "reward='noise': did you mean noisy"),
        ({"split": "validation"}, "split='validation': there are train, test"),
        ({"mazes": 0}, "mazes=0 is outside 1 "),
        ({"size": 7, "mazes": 20_000}, "mazes=20000: [0-9]+ different ones of size 7"),
        ({"size": "13"}, "size='13' is no whole number"),
        ({"mazes": 2.5}, "mazes=2.5 is no whole number"),
        ({"time_limit": 2.5}, "time_limit=2.5 is no whole number"),
        ({"size": 31, "mazes": 2**20}, "mazes=1048576 is outside"),
        ({"time_limit": 0}, "time_limit=0 "),
        ({"noise": -1.0}, "noise=-1.0 "),
        ({"gamma": 1.5}, "gamma=1.5 is outside 0.0 to 1.0: the nearest is 1.0"),
    ],
)
def test_a_wrong_argument_names_the_nearest_right_value(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Maze(1, **arguments)
