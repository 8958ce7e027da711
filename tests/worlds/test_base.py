"""What every world must do: repeat itself, not depend on the batch, resume exactly, suit gymnasium."""

from __future__ import annotations

import io
import os
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from rl_twoclocks.envs import BatchedEnv, snapshot
from rl_twoclocks.worlds import World, make_world
from rl_twoclocks.worlds.base import below, mix, normal, uniform

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("maze", {"size": 7, "time_limit": 12}),
    ("maze", {"size": 9, "view": "partial", "reward": "dense", "mazes": 20, "time_limit": 9}),
    ("maze", {"size": 7, "view": "partial", "reward": "noisy", "time_limit": 7, "split": "test"}),
    ("maze", {"size": 7, "view": "partial", "trail": True, "time_limit": 9}),
    ("grasp", {"time_limit": 6}),
    ("grasp", {"time_limit": 9, "reward": "dense", "friction": 0.2, "spread": 0.0}),
    ("inspection", {"time_limit": 6}),
    ("inspection", {"rotation": 8.0, "split": "test", "places": 3, "stride": 12, "trail": True}),
]
IDS = ["full", "dense", "noisy", "trail", "grasp", "slippery", "inspection", "rotated"]
SEEDS = list(range(50, 60))
every_world = pytest.mark.parametrize(("name", "settings"), SETTINGS, ids=IDS)


def actions(world: World, steps: int, seed: int = 0) -> np.ndarray:
    rng, space = np.random.default_rng(seed), world.action_space
    if isinstance(space, gym.spaces.Box):
        return rng.uniform(-1, 1, (steps, world.num_envs, *space.shape)).astype(np.float32)
    return rng.integers(0, space.n, (steps, world.num_envs))


def play(world: World, moves: np.ndarray, seeds: list[int] | None = None) -> list[np.ndarray]:
    """Observations before each step, rewards, ends and successes [steps, N, ...]."""
    observation = world._observation if seeds is None else world.reset(seeds=seeds)
    rows = []
    for action in moves:
        before = observation.copy()
        observation, reward, terminated, truncated = world.step(action)
        final, success = observation.copy(), world.success.copy()
        if (ended := terminated | truncated).any():
            observation = world.reset(ended)
        rows.append((before, reward, terminated, truncated, success, final))
    return [np.stack(column) for column in zip(*rows, strict=True)]


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@every_world
def test_same_seeds_and_actions_give_the_same_numbers(name: str, settings: dict) -> None:
    world, again = (make_world(name, 10, **settings) for _ in range(2))
    moves = actions(world, 80)
    first = play(world, moves, SEEDS)
    assert_same(first, play(again, moves, SEEDS))
    assert_same(first, play(world, moves, SEEDS))  # a world that has been used starts over
    other = play(again, moves, [seed + 1000 for seed in SEEDS])
    assert not np.array_equal(first[0][0], other[0][0])


@every_world
def test_an_environment_does_in_a_batch_what_it_does_alone(name: str, settings: dict) -> None:
    world = make_world(name, 10, **settings)
    moves = actions(world, 60)
    together = play(world, moves, SEEDS)
    for i in (0, 4, 9):
        alone = play(make_world(name, 1, **settings), moves[:, i : i + 1], SEEDS[i : i + 1])
        assert_same([column[:, i : i + 1] for column in together], alone)


@every_world
def test_gymnasium_gets_the_same_world(name: str, settings: dict) -> None:
    env = gym.make(f"rl_twoclocks/{name.capitalize()}-v0", **settings)
    world = make_world(name, 1, **settings)
    mine, theirs = world.reset(seeds=[3]), env.reset(seed=3)[0]
    for action in actions(world, 60)[:, 0]:
        np.testing.assert_array_equal(mine[0], theirs)
        mine, *rest = world.step(np.array([action]))
        theirs, *others, info = env.step(action)
        assert [row[0] for row in rest] == others
        np.testing.assert_array_equal(mine[0], theirs)
        if others[1] or others[2]:
            assert info == {"is_success": bool(world.success[0])}
            mine, theirs = world.reset(np.array([True])), env.reset()[0]


@every_world
def test_a_saved_state_goes_on_exactly(name: str, settings: dict) -> None:
    world = make_world(name, 10, **settings)
    moves = actions(world, 100)
    play(world, moves[:50], SEEDS)
    file = io.BytesIO()
    torch.save(world.state_dict(), file)
    counts = world.episodes, world.successes
    rest = play(world, moves[50:])
    file.seek(0)
    state = torch.load(file, weights_only=True)
    fresh = make_world(name, 10, **settings)
    for other in (fresh, world):
        other.load_state_dict(state)
        assert (other.episodes, other.successes) == counts
        assert_same(rest, play(other, moves[50:]))


@every_world
def test_the_project_can_resume_it_inside_gymnasium(name: str, settings: dict) -> None:
    env = gym.make(f"rl_twoclocks/{name.capitalize()}-v0", disable_env_checker=True, **settings)
    space = env.action_space
    first, second = (np.full(space.shape, value, space.dtype) for value in (0, 1))
    env.reset(seed=1)
    env.step(first)
    state = snapshot.capture(env)
    assert state is not None
    expected = env.step(second)
    env.reset(seed=2)
    snapshot.restore(env, state)
    found = env.step(second)
    np.testing.assert_array_equal(found[0], expected[0])
    assert found[1:] == expected[1:]


class Held(World):
    """A world whose goal is reached long before its episodes end."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, 5, gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2))

    def _begin(self, index: np.ndarray) -> None:
        pass

    def _advance(self, action: np.ndarray, late: np.ndarray) -> tuple[np.ndarray, ...]:
        return np.zeros(self.num_envs), np.zeros_like(late), np.ones_like(late)

    def _observe(self, index: Any) -> None:
        pass


def test_a_success_counts_once_an_episode() -> None:
    world = Held(3)
    world.reset()
    for _ in range(10):
        ended = np.logical_or(*world.step(np.zeros(3, int))[2:])
        if ended.any():
            world.reset(ended)
    assert (world.episodes, world.successes) == (6, 6)


@pytest.mark.parametrize("argument", ["sise", "tral"])
def test_an_argument_that_there_is_not_is_named_with_the_nearest(argument: str) -> None:
    near = {"sise": "size", "tral": "trail"}[argument]
    with pytest.raises(ValueError, match=f"{argument}.*did you mean {near}"):
        make_world("maze", 1, **{argument: 9})


def can_draw() -> bool:
    """Whether MuJoCo can draw in this process: without a display or EGL it would abort it."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("MUJOCO_GL"))


@every_world
def test_gymnasiums_own_checks_pass(name: str, settings: dict) -> None:
    draws = name != "grasp" or can_draw()
    mode = "rgb_array" if draws else None
    env = gym.make(f"rl_twoclocks/{name.capitalize()}-v0", render_mode=mode, **settings)
    check_env(env.unwrapped, skip_render_check=not draws)
    if not draws:
        return
    env.reset(seed=0)
    picture = env.render()
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3


@every_world
def test_it_runs_as_one_torchrl_environment(name: str, settings: dict) -> None:
    world = make_world(name, 10, **settings)
    rollout = BatchedEnv(world, SEEDS).rollout(40, break_when_any_done=False)
    assert world.observation_space.contains(rollout["observation"][3, 5].numpy())
    ends = rollout["next", "done"].sum()
    assert ends == world.episodes > 0
    steps = rollout["action"].transpose(0, 1).numpy()
    played = play(make_world(name, 10, **settings), steps, SEEDS)
    np.testing.assert_array_equal(played[0], rollout["observation"].transpose(0, 1).numpy())
    np.testing.assert_array_equal(played[5], rollout["next", "observation"].transpose(0, 1).numpy())


@every_world
def test_a_mask_resets_those_it_names(name: str, settings: dict) -> None:
    world = make_world(name, 10, **settings)
    world.reset(seeds=SEEDS)
    before = world.step(actions(world, 1)[0])[0].copy()
    mask = np.arange(10) % 3 == 0
    after = world.reset(mask)
    np.testing.assert_array_equal(before[~mask], after[~mask])
    assert (world.time == np.where(mask, 0, 1)).all()
    assert (world.episode == np.where(mask, 1, 0)).all()


def test_an_ended_environment_must_be_reset() -> None:
    world = make_world("inspection", 3)
    with pytest.raises(RuntimeError, match="environment 0 has no episode"):
        world.step(np.zeros(3, np.int64))
    world.reset()
    world.step(np.array([0, 5, 0]))
    with pytest.raises(RuntimeError, match="environment 1 has no episode"):
        world.step(np.zeros(3, np.int64))


def test_without_seeds_two_worlds_differ() -> None:
    first, second = (make_world("maze", 8).reset().copy() for _ in range(2))
    assert not np.array_equal(first, second)


def test_a_wrong_call_names_what_is_right() -> None:
    with pytest.raises(ValueError, match="did you mean maze"):
        make_world("mase", 1)
    with pytest.raises(ValueError, match="num_envs=0"):
        make_world("maze", 0)
    with pytest.raises(ValueError, match="seeds has 1 entries: give 2"):
        make_world("maze", 2).reset(seeds=[1])
    state = make_world("maze", 2).state_dict()
    with pytest.raises(ValueError, match="'key'"):
        make_world("maze", 3).load_state_dict(state)


def test_hashes_are_even_and_unrelated() -> None:
    bits = mix(7, np.arange(100_000))
    counts = np.bincount(below(bits, 5))
    assert abs(counts - 20_000).max() < 600
    shares, draws = uniform(bits), normal(bits)
    assert abs(shares.mean() - 0.5) < 0.005
    assert abs(draws.mean()) < 0.02
    assert abs(draws.std() - 1) < 0.01
    assert abs(np.corrcoef(shares[:-1], shares[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(shares, uniform(mix(8, np.arange(100_000))))[0, 1]) < 0.02
