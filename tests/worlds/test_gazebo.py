"""A real gzserver: physics, determinism, deaths, processes left behind, a user's own world."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium.utils.env_checker import check_env

import rl_twoclocks
from rl_twoclocks.record import read_metrics
from rl_twoclocks.worlds import make_world
from rl_twoclocks.worlds.gazebo import (
    Gazebo,
    GazeboMissing,
    Installation,
    Rules,
    Start,
    State,
    Verdict,
)
from rl_twoclocks.worlds.gazebo.world import shipped

TASKS = ["gazebo_cartpole", "gazebo_arm", "gazebo_diffdrive"]


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    try:
        Installation.find().plugin()
    except GazeboMissing as error:
        pytest.skip(f"Gazebo's tests did NOT run: {error}")


pytestmark = pytest.mark.gazebo
Make = Callable[..., Gazebo]


@pytest.fixture
def make() -> Iterator[Make]:
    made = []

    def world(name: str, num_envs: int, **settings: object) -> Gazebo:
        found = make_world(name, num_envs, **settings)
        assert isinstance(found, Gazebo)
        made.append(found)
        return found

    yield world
    for found in made:
        found.close()


def play(world: Gazebo, steps: int, seeds: list[int]) -> np.ndarray:
    """Observations and rewards of random actions, resets included."""
    random, high = np.random.default_rng(5), world.action_space.high
    rows = [world.reset(seeds=seeds).ravel().copy()]
    for _ in range(steps):
        action = random.uniform(-1, 1, (1, len(high))) * high
        observation, reward, terminated, truncated = world.step(np.repeat(action, len(seeds), 0))
        rows.append(np.concatenate([observation.ravel(), reward]))
        if (ended := terminated | truncated).any():
            rows.append(world.reset(ended).ravel().copy())
    return np.concatenate(rows)


# -- physics ---------------------------------------------------------------------------------------


def acceleration(place: np.ndarray, velocity: np.ndarray, force: float) -> np.ndarray:
    """The cart-pole by Lagrange's equations, written down apart from the world file."""
    cart, pole, half, inertia, rail, pivot = 1.0, 0.1, 0.5, 0.00834, 0.1, 0.001
    angle, (speed, spin) = place[1], velocity
    mass = np.array(
        [
            [cart + pole, pole * half * math.cos(angle)],
            [pole * half * math.cos(angle), inertia + pole * half**2],
        ]
    )
    forces = [
        force - rail * speed + pole * half * spin**2 * math.sin(angle),
        pole * 9.81 * half * math.sin(angle) - pivot * spin,
    ]
    return np.linalg.solve(mass, forces)


def test_the_cartpole_moves_by_lagranges_equations(make: Make) -> None:
    world = make("gazebo_cartpole", 1)
    world.reset(seeds=[3])
    state = world.states[0]
    place, velocity = np.array(state.positions), np.array(state.velocities)
    dt, force = 0.0005, 1.5

    def slope(y: np.ndarray) -> np.ndarray:
        return np.concatenate([y[2:], acceleration(y[:2], y[2:], force)])

    y = np.concatenate([place, velocity])
    for decision in range(1, 26):  # half a second
        for _ in range(40):
            a = slope(y)
            b = slope(y + dt / 2 * a)
            c = slope(y + dt / 2 * b)
            y = y + dt / 6 * (a + 2 * b + 2 * c + slope(y + dt * c))
        world.ended[:] = False
        world.step(np.array([[force]]))
        state = world.states[0]
        assert state.time == pytest.approx(0.02 * decision)
        np.testing.assert_allclose([*state.positions, *state.velocities], y, atol=0.02)
    assert abs(y[1] - place[1]) > 0.2  # it has really moved


@pytest.mark.parametrize(("task", "skip"), [(TASKS[0], 20), (TASKS[2], 50)])
def test_time_passes_by_frame_skip_milliseconds_per_decision(
    make: Make, task: str, skip: int
) -> None:
    world = make(task, 1)
    world.reset(seeds=[1])
    assert world.hello.step == 0.001
    time.sleep(0.1)
    for k in range(1, 4):
        world.step(np.zeros((1, world.action_space.shape[0])))
        assert world.states[0].iterations == k * skip
        assert world.states[0].time == pytest.approx(k * skip * 0.001)


def test_episodes_begin_as_the_rules_say(make: Make) -> None:
    world = make("gazebo_diffdrive", 1)
    for seed in range(5):
        world.reset(seeds=[seed])
        start = type(world.rules[0])().begin(np.random.default_rng([world.key[0], 0]))
        x, y, z, heading = start.models["robot"]
        base = world.states[0].link("base")
        assert base.place == pytest.approx([x, y, z])
        assert base.heading == pytest.approx(heading)
        assert base.upright == pytest.approx(1)
        observation = world._observation[0]
        assert observation[4] == pytest.approx(world.rules[0].distance, abs=1e-5)
    world = make("gazebo_arm", 1)
    world.reset(seeds=[4])
    expected = type(world.rules[0])().begin(np.random.default_rng([world.key[0], 0])).joints
    for name, (position, velocity) in expected.items():
        assert world.states[0].position(name) == pytest.approx(position)
        assert world.states[0].velocity(name) == pytest.approx(velocity, abs=1e-9)


def test_the_tip_that_the_rules_compute_is_gazebos(make: Make) -> None:
    world = make("gazebo_arm", 1)
    world.reset(seeds=[2])
    for _ in range(10):
        world.step(np.array([[9.0, -3.0]]))
        state = world.states[0]
        elbow, tip = world.rules[0].points(state)
        fore = state.link("fore").place  # the middle of the forearm, 1 m up is the shoulder
        assert ((np.array(elbow) + tip) / 2) == pytest.approx([fore[0], fore[2] - 1.0], abs=1e-3)


# -- the tasks can be solved, and not by chance ---------------------------------------------------


def by_jacobian(world: Gazebo, i: int) -> np.ndarray:
    """Pull the arm's tip to the target and carry the arm's weight."""
    state, rules = world.states[i], world.rules[i]
    first, both = state.position("shoulder"), sum(state.positions)
    arm, fore = (
        0.40 * np.array([-math.cos(first), math.sin(first)]),
        0.35 * np.array([-math.cos(both), math.sin(both)]),
    )
    jacobian = np.stack([arm + fore, fore], axis=1)
    lower = 0.7 * 0.175 * math.sin(both)
    weight = 9.81 * np.array([(0.2 + 0.7 * 0.40) * math.sin(first) + lower, lower])
    return jacobian.T @ (120 * np.subtract(rules.target, rules.points(state)[1])) + weight


def by_bearing(world: Gazebo, i: int) -> np.ndarray:
    """Turn the robot to the goal and drive."""
    ahead, aside, _, _, distance, speed, spin = world._observation[i, :7]
    bearing = math.atan2(aside, ahead)
    turn = 0.15 * (3 * bearing - spin)
    drive = 0.4 * (min(0.8, distance) * math.cos(bearing) - speed)
    return np.array([drive - turn, drive + turn])


@pytest.mark.parametrize(
    ("task", "control"), [("gazebo_arm", by_jacobian), ("gazebo_diffdrive", by_bearing)]
)
def test_a_controller_by_the_book_succeeds_and_chance_does_not(
    make: Make, task: str, control: Callable[[Gazebo, int], np.ndarray]
) -> None:
    world = make(task, 2)
    random, high = np.random.default_rng(0), world.action_space.high
    rates = []
    for book in (True, False):
        world.reset(seeds=[1, 2])
        world.episodes = world.successes = 0
        while world.episodes < 12:
            chance = random.uniform(-high, high, (2, len(high)))
            action = np.stack([control(world, i) for i in range(2)]) if book else chance
            _, _, terminated, truncated = world.step(action)
            if (ended := terminated | truncated).any():
                world.reset(ended)
        rates.append(world.successes / world.episodes)
    assert rates[0] == 1.0
    assert rates[1] <= 0.1


# -- determinism -----------------------------------------------------------------------------------

ELSEWHERE = """
import numpy as np, sys
from tests.worlds.test_gazebo import play
from rl_twoclocks.worlds import make_world
world = make_world(sys.argv[1], 1)
np.save(sys.argv[2], play(world, 40, [11]))
world.close()
"""


@pytest.mark.parametrize("task", TASKS)
def test_same_seed_and_actions_are_bit_identical_wherever_they_are_played(
    make: Make, task: str, tmp_path: Path
) -> None:
    world = make(task, 1)
    first = play(world, 40, [11])
    other = play(world, 30, [12])
    assert not np.array_equal(first[: len(other)], other[: len(first)])
    np.testing.assert_array_equal(first, play(world, 40, [11]))  # after another episode
    pair = play(make(task, 2), 40, [11, 11])  # beside another server
    width = world.observation_space.shape[0]
    np.testing.assert_array_equal(pair[:width], first[:width])
    file = tmp_path / "elsewhere.npy"
    subprocess.run([sys.executable, "-c", ELSEWHERE, task, str(file)], check=True, timeout=120)
    np.testing.assert_array_equal(first, np.load(file))


@pytest.mark.parametrize("task", TASKS)
def test_a_saved_state_is_played_to_the_same_place(make: Make, task: str) -> None:
    world = make(task, 2)
    random = np.random.default_rng(0)
    moves = random.uniform(-0.3, 0.3, (12, *world.action_space.shape)) * world.action_space.high
    world.reset(seeds=[1, 2])
    for action in moves[:6]:
        world.step(np.stack([action, -action]))
    state = {name: value.clone() for name, value in world.state_dict().items()}
    rest = [world.step(np.stack([action, action]))[0].copy() for action in moves[6:]]
    again = make(task, 2)
    again.load_state_dict(state)
    for action, expected in zip(moves[6:], rest, strict=True):
        np.testing.assert_array_equal(again.step(np.stack([action, action]))[0], expected)


# -- deaths ----------------------------------------------------------------------------------------


def test_a_server_killed_in_the_middle_of_a_step_is_back_at_once(make: Make) -> None:
    world = make("gazebo_diffdrive", 2, frame_skip=20_000)  # a step of seconds
    world.reset(seeds=[1, 2])
    victim = world.servers[1].process
    threading.Timer(0.2, victim.kill).start()
    started = time.perf_counter()
    _, reward, terminated, truncated = world.step(np.zeros((2, 2)))
    assert victim.poll() == -signal.SIGKILL
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, True])
    assert reward[1] == 0.0
    started = time.perf_counter()
    world.reset(truncated)
    # Within a second on a free machine (scripts/gazebo_speed.py measures it); tests share theirs.
    assert time.perf_counter() - started < 10
    assert world.servers[1].process.pid != victim.pid
    assert world.states[1].time == 0.0


def test_gymnasium_is_told_of_a_death() -> None:
    env = gym.make("rl_twoclocks/GazeboCartpole-v0")
    env.reset(seed=1)
    assert "gazebo_died" not in env.step(np.zeros(1, np.float32))[4]
    env.unwrapped.world.servers[0].process.kill()
    _, _, terminated, truncated, info = env.step(np.zeros(1, np.float32))
    assert (terminated, truncated) == (False, True)
    assert info == {"is_success": False, "gazebo_died": True}
    env.reset()
    assert env.step(np.zeros(1, np.float32))[4] == {}
    env.close()


END = {
    "normal": "world.close()",
    "forgotten": "pass",
    "exception": "raise RuntimeError",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "killed in a step": "threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()\n"
    "while True: world.step(np.zeros((2, 2)))",
    "killed in a start": "for server in world.servers: server.start(); print(server.process.pid)\n"
    "sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)",
}
PARENT = """
import os, signal, sys, threading, numpy as np
from rl_twoclocks.worlds import make_world
world = make_world("gazebo_diffdrive", 2, frame_skip=200)
world.reset(seeds=[1, 2])
print(*(server.process.pid for server in world.servers), flush=True)
"""


@pytest.mark.parametrize("how", END)
def test_no_server_is_left_behind(how: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PARENT + END[how]], capture_output=True, text=True, timeout=120
    )
    pids = [int(word) for word in run.stdout.split()]
    assert len(pids) == (4 if how == "killed in a start" else 2), run.stderr
    deadline = time.monotonic() + 10
    while left := [pid for pid in pids if is_gazebo(pid)]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def is_gazebo(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.name() == "gzserver" and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_world_that_gazebo_cannot_build_is_told(tmp_path: Path) -> None:
    path = tmp_path / "broken.world"
    path.write_text(shipped("cartpole").read_text().replace("<child>pole", "<child>pool"))
    with pytest.raises(ValueError, match=r"(?s)broken\.world"):
        Gazebo(1, path, Balance, ["slider"])


# -- a world of one's own --------------------------------------------------------------------------


class Balance(Rules):
    """Keep the pole up; the example of the documentation in short."""

    time_limit = 50

    def begin(self, random: np.random.Generator) -> Start:
        return Start(joints={"hinge": (random.uniform(-0.1, 0.1), 0.0)})

    def observe(self, state: State) -> np.ndarray:
        return np.array([state.position("hinge"), state.velocity("hinge")])

    def judge(self, state: State, action: np.ndarray, late: bool) -> Verdict:
        fallen = abs(state.position("hinge")) > 0.3
        return Verdict(1.0, fallen, late and not fallen)


def test_a_world_of_ones_own_trains_and_resumes_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my.world").write_text(shipped("cartpole").read_text())
    monkeypatch.chdir(tmp_path)
    own = ["task=gazebo", "task.world=my.world", "task.joints=[slider]"]
    own += [f"task.rules={__name__}:Balance", "debug=smoke", "logger.display=none", "num_envs=2"]
    clocks = ["clocks.batch_size=128", "clocks.update_frequency=128", "optim.anneal_frames=512"]
    words = [*own, *clocks, "eval.enabled=true", "eval.episodes=2"]
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Balance.__module__])
    for name, budgets in (("a", (512,)), ("b", (256, 512))):
        for frames in budgets:
            more = [f"total_frames={frames}", f"run_dir={tmp_path / name}"]
            rl_twoclocks.train(rl_twoclocks.compose([*words, *more]))
    whole, resumed = (read_metrics(tmp_path / k / "metrics.jsonl") for k in "ab")
    assert [r["train/loss"] for r in whole[1:]] == [r["train/loss"] for r in resumed[1:]]
    assert 0 <= whole[-1]["eval/success_rate"] <= 1
    left = [p for p in psutil.Process(os.getpid()).children() if p.name() == "gzserver"]
    assert left == []


@pytest.mark.parametrize("task", TASKS)
def test_gymnasiums_own_checks_pass(task: str) -> None:
    name = task.title().replace("_", "")
    env = gym.make(f"rl_twoclocks/{name}-v0", render_mode="rgb_array")
    check_env(env.unwrapped)
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (320, 320, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 2
    env.close()
