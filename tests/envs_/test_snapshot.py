"""A simulator's state, captured and restored, gives the same future bit for bit."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_twoclocks import compose
from rl_twoclocks.config import CollectConfig
from rl_twoclocks.configure import groups
from rl_twoclocks.envs import make_env, snapshot
from rl_twoclocks.envs.vector import env_factory
from tests.command_envs import Walk, differing

NEEDY = {"gym", "atari"}  # these need more than their name
LOST = {"lunarlander", "minigrid"}
GAZEBO = {"gazebo", "gazebo_arm", "gazebo_cartpole", "gazebo_diffdrive"}  # tested with its server
TASKS = sorted(set(groups()["task"]) - NEEDY - LOST - GAZEBO)
CLASSIC = [
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
]
LIMIT, STEPS = 60, 50


def task(name: str):
    return compose([f"task={name}", f"task.max_episode_steps={LIMIT}"]).task


def actions(env: gym.Env, count: int) -> list:
    env.action_space.seed(5)
    return [env.action_space.sample() for _ in range(count)]


def play(env: gym.Env, chosen: list) -> list:
    seen = []
    for action in chosen:
        obs, reward, terminated, truncated, _ = env.step(action)
        seen.append((np.array(obs), float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            seen.append(np.array(env.reset()[0]))
    seen.append(np.array(env.reset()[0]))
    return seen


def assert_same(one: list, other: list) -> None:
    assert len(one) == len(other)
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        if isinstance(a, tuple):
            assert np.array_equal(a[0], b[0]), f"observation {i}: {np.abs(a[0] - b[0]).max()}"
            assert a[1:] == b[1:], f"entry {i}"
        else:
            assert np.array_equal(a, b), f"first observation of an episode, entry {i}"


def future_is_restored(make, before: int) -> list:
    original, other = make(), make()
    original.reset(seed=3)
    chosen = actions(original, before + STEPS)
    for action in chosen[:before]:
        if any(original.step(action)[2:4]):
            original.reset()
    state = snapshot.capture(original)
    assert state is not None
    other.reset(seed=99)
    for action in chosen[:7]:
        if any(other.step(action)[2:4]):
            other.reset()
    snapshot.restore(other, state)
    expected = play(original, chosen[before:])
    assert_same(expected, play(other, chosen[before:]))
    original.close()
    other.close()
    return expected


@pytest.mark.parametrize("name", TASKS)
def test_a_restored_task_has_the_same_future(name: str) -> None:
    future_is_restored(env_factory(task(name)), 23)


@pytest.mark.parametrize("name", sorted(LOST))
def test_a_simulator_that_cannot_be_captured_says_so(name: str) -> None:
    env = env_factory(task(name))()
    env.reset(seed=3)
    assert snapshot.capture(env) is None
    env.close()


@pytest.mark.parametrize("name", ["halfcheetah", "ant", "cartpole"])
def test_a_state_captured_before_the_first_step_has_the_same_future(name: str) -> None:
    future_is_restored(env_factory(task(name)), 0)


@pytest.mark.parametrize("before", [0, 23])
@pytest.mark.parametrize("env_id", CLASSIC)
def test_a_restored_classic_control_env_has_the_same_future(env_id: str, before: int) -> None:
    future_is_restored(lambda: gym.make(env_id, max_episode_steps=LIMIT), before)


@pytest.mark.parametrize("env_id", CLASSIC)
def test_a_restored_state_has_the_precision_that_it_had(env_id: str) -> None:
    env = gym.make(env_id)
    env.reset(seed=1)
    env.step(env.action_space.sample())
    before = np.asarray(env.unwrapped.state)
    snapshot.restore(env, snapshot.capture(env))
    assert np.asarray(env.unwrapped.state).dtype == before.dtype
    assert np.array_equal(env.unwrapped.state, before)


@pytest.mark.parametrize("name", ["halfcheetah", "pendulum"])
def test_the_time_limit_goes_on_from_where_it_was(name: str) -> None:
    seen = future_is_restored(env_factory(task(name)), 23)
    truncated = [i for i, entry in enumerate(seen) if isinstance(entry, tuple) and entry[3]]
    assert truncated == [LIMIT - 23 - 1]


def test_a_captured_state_is_not_moved_by_later_steps() -> None:
    env = env_factory(task("halfcheetah"))()
    env.reset(seed=1)
    state = snapshot.capture(env)
    assert state is not None
    kept = copy.deepcopy(state)
    play(env, actions(env, 5))
    assert differing(kept, state) == []


def test_an_unknown_simulator_answers_none() -> None:
    assert snapshot.capture(Walk()) is None


def test_a_wrapper_with_hidden_state_answers_none() -> None:
    env = gym.wrappers.NormalizeObservation(gym.make("Pendulum-v1"))
    env.reset(seed=1)
    assert snapshot.capture(env) is None


def test_an_env_with_a_state_dict_of_its_own_is_captured() -> None:
    class Counter(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (1,))
        action_space = gym.spaces.Box(-1, 1, (1,))
        count = 0

        def state_dict(self) -> dict:
            return {"count": self.count}

        def load_state_dict(self, state: dict) -> None:
            self.count = state["count"]

    one, other = Counter(), Counter()
    one.count = 7
    one.reset(seed=1)
    other.reset(seed=2)
    state = snapshot.capture(one)
    assert state is not None
    snapshot.restore(other, state)
    assert other.count == 7
    assert other.np_random.random() == one.np_random.random()


def test_a_batch_is_restored_with_the_observation_to_act_on() -> None:
    def make():
        return make_env(task("halfcheetah"), CollectConfig(), 2, [1, 2])

    one, other = make(), make()
    state = one.reset()
    for _ in range(5):
        _, state = one.step_and_maybe_reset(state.set("action", one.action_spec.zero()))
    saved = one.snapshot()
    assert saved is not None
    other.restore(saved)
    restored = other.reset()
    assert torch.equal(restored["observation"], state["observation"])
    action = torch.full_like(one.action_spec.zero(), 0.3)
    a, _ = one.step_and_maybe_reset(state.set("action", action))
    b, _ = other.step_and_maybe_reset(restored.set("action", action))
    assert torch.equal(a["next", "observation"], b["next", "observation"])
    assert torch.equal(a["next", "reward"], b["next", "reward"])
    one.close()
    other.close()
