"""Lock-step, deaths and restarts, with a stand-in for gzserver: needs no Gazebo."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from rl_twoclocks.collect.source import SyncSource
from rl_twoclocks.envs import BatchedEnv, WorkerError
from rl_twoclocks.evaluate import evaluate
from rl_twoclocks.worlds.gazebo import (
    Gazebo,
    GazeboMissing,
    Installation,
    Rules,
    Start,
    State,
    Verdict,
)
from rl_twoclocks.worlds.gazebo import server as server_module
from rl_twoclocks.worlds.gazebo.installation import VARIABLE
from rl_twoclocks.worlds.gazebo.world import MAX_DEATHS, _cores
from tests.worlds import gazebo_stand_in as stand_in
from tests.worlds.gazebo_stand_in import DIE, DT, HANG, LIMIT

WORLD = '<sdf version="1.6"><world name="w"><model name="toy">{}</model></world></sdf>'
SLIDER = '<joint name="slider" type="prismatic"/>'


@dataclass(frozen=True)
class StandIn(Installation):
    """An installation whose server is the stand-in, told how to fail."""

    folder: Path = Path("/nonexistent")
    how: dict[str, str] = field(default_factory=dict)

    def plugin(self) -> Path:
        return Path("liblockstep.so")

    def command(self, world: Path) -> list[str]:
        return [sys.executable, "-S", stand_in.__file__, str(world)]

    def environment(self) -> dict[str, str]:
        return self.how


class Slide(Rules):
    """Reward is where the mass is; over beyond 1 m; success at the time limit."""

    time_limit = 20

    def begin(self, random: np.random.Generator) -> Start:
        return Start(joints={"slider": (random.uniform(-0.1, 0.1), 0.0)})

    def observe(self, state: State) -> np.ndarray:
        return np.array([state.position("slider"), state.velocity("slider")])

    def judge(self, state: State, action: np.ndarray, late: bool) -> Verdict:
        place = state.position("slider")
        return Verdict(place, abs(place) > 1.0, late)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "toy.world"
    path.write_text(WORLD.format(SLIDER))
    return path


class Worlds:
    """Makes worlds that are closed after the test."""

    def __init__(self, file: Path) -> None:
        self.file, self.made = file, list[Gazebo]()

    def __call__(self, n: int, **how: Any) -> Gazebo:
        settings = {k: how.pop(k) for k in list(how) if k in ("time_limit", "frame_skip", "joints")}
        settings = {"joints": ["slider"], "frame_skip": 10} | settings
        world = Gazebo(n, self.file, Slide, installation=StandIn(how=how), **settings)
        self.made.append(world)
        return world


@pytest.fixture
def make(file: Path) -> Iterator[Worlds]:
    worlds = Worlds(file)
    yield worlds
    for world in worlds.made:
        world.close()
        assert all(server.process.poll() is not None for server in world.servers)


class NoJudge(Slide):
    judge = Rules.judge


class Bare(Slide):
    def judge(self, state: State, action: np.ndarray, late: bool) -> Verdict:
        return 1.0  # type: ignore[return-value]


class NoObserve(Slide):
    observe = Rules.observe


class Growing(Slide):
    asked = 0

    def observe(self, state: State) -> np.ndarray:
        self.asked += 1
        return np.zeros(2 if self.asked == 1 else 3)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (NoJudge, "NoJudge.judge cannot be used: NotImplementedError"),
        (Bare, "Bare.judge cannot be used: TypeError .* has to give a Verdict"),
        (NoObserve, "NoObserve.observe cannot be used: .* has to give numbers"),
    ],
)
def test_rules_that_lack_a_part_are_named_before_any_work(
    file: Path, rules: type[Rules], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        Gazebo(1, file, rules, ["slider"], installation=StandIn())


def test_an_observation_that_changes_its_length_is_named(file: Path) -> None:
    world = Gazebo(1, file, Growing, ["slider"], installation=StandIn())
    try:
        with pytest.raises(
            ValueError, match=r"Growing\.observe gives 3 numbers, and gave 2 before"
        ):
            world.reset(seeds=[1])
    finally:
        world.close()


def pushed(x: float, v: float, effort: float, count: int) -> tuple[float, float]:
    """Semi-implicit Euler in closed form: after k iterations v + k f dt, and the sums of that."""
    return x + count * v * DT + effort * DT**2 * count * (count + 1) / 2, v + count * effort * DT


def test_actions_are_efforts_and_time_passes_only_when_asked(make: Worlds) -> None:
    world = make(2)
    first = world.reset(seeds=[1, 2]).copy()
    assert first[0, 0] != first[1, 0]
    assert np.abs(first[:, 0]).max() <= 0.1
    assert (world.action_space.low[0], world.action_space.high[0]) == (-LIMIT, LIMIT)
    time.sleep(0.05)
    second, reward, terminated, truncated = world.step(np.array([[10.0], [500.0]]))
    for i, effort in ((0, 10.0), (1, LIMIT)):  # what is beyond the limit is cut off
        expected = pushed(float(first[i, 0]), 0.0, effort, 10)
        np.testing.assert_allclose(second[i], expected, rtol=1e-5)
        assert reward[i] == pytest.approx(expected[0], rel=1e-5)
    assert not (terminated | truncated).any()
    assert [state.iterations for state in world.states] == [10, 10]


def test_episodes_end_by_the_rules_and_by_the_clock(make: Worlds) -> None:
    world = make(2, time_limit=30)
    world.reset(seeds=[1, 2])
    action = np.array([[0.0], [LIMIT]])
    ends = []
    for _ in range(30):
        _, _, terminated, truncated = world.step(action)
        ends.append((terminated.tolist(), truncated.tolist(), world.success.tolist()))
        if terminated[1]:
            world.reset(np.array([False, True]))
    # 100 m/s^2 over a metre: 0.14 s, so 14 or 15 decisions of 10 ms.
    over = [k for k, (terminated, _, _) in enumerate(ends) if terminated[1]]
    assert over[0] in (13, 14)
    assert ends[-1][1] == [True, False]
    assert ends[-1][2][0] is True


def test_all_requests_are_sent_before_any_reply_is_awaited(make: Worlds) -> None:
    world = make(4, STAND_IN_SLOW="0.3")
    world.reset(seeds=[1, 2, 3, 4])
    started = time.perf_counter()
    world.step(np.zeros((4, 1)))
    assert 0.3 <= time.perf_counter() - started < 0.9  # one after the other: 1.2


def test_a_dead_server_truncates_and_the_next_reset_has_a_new_one(make: Worlds) -> None:
    world = make(3)
    world.reset(seeds=[1, 2, 3])
    before = world.step(np.full((3, 1), 5.0))[0].copy()
    action = np.array([[5.0], [DIE], [5.0]])
    pid = world.servers[1].process.pid
    after, reward, terminated, truncated = world.step(action)
    assert truncated.tolist() == [False, True, False]
    assert not terminated.any()
    assert world.died.tolist() == [False, True, False]
    assert reward[1] == 0.0
    assert not world.success[1]
    np.testing.assert_array_equal(after[1], before[1])  # the last that was seen
    assert (after[[0, 2]] != before[[0, 2]]).all()
    assert world.restarts == 1
    world.reset(np.array([False, True, False]))
    assert world.servers[1].process.pid != pid
    assert world.time.tolist() == [2, 0, 2]
    assert not world.died.any()
    world.step(np.zeros((3, 1)))
    assert world.states[1].iterations == 10


def test_an_episode_whose_server_died_in_evaluation_is_run_anew(make: Worlds) -> None:
    world = make(2)
    env = BatchedEnv(world, [1, 2])
    calls = 0

    def act(observation: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        action = observation.new_zeros(2, 1)
        action[1] = DIE if calls == 3 else 0.0
        return action

    with pytest.warns(UserWarning, match="simulator died"):
        result = evaluate(act, env, 4, [1, 2])
    assert result is not None
    # Whole ones only: 20 decisions each.
    assert result.lengths == [20] * 4
    assert result.successes == [True] * 4


def test_a_server_killed_between_two_steps_is_noticed_in_the_next(make: Worlds) -> None:
    world = make(2)
    world.reset(seeds=[1, 2])
    world.servers[0].process.kill()
    world.servers[0].process.wait()
    _, _, _, truncated = world.step(np.zeros((2, 1)))
    assert truncated.tolist() == [True, False]
    world.servers[1].process.kill()
    world.servers[1].process.wait()
    world.reset(np.array([False, True]))  # between a step and a reset: no episode is lost
    assert world.restarts == 2


def test_a_server_that_hangs_is_given_up(make: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PATIENCE", 0.5)
    world = make(1)
    world.reset(seeds=[1])
    stuck = world.servers[0].process
    assert world.step(np.array([[HANG]]))[3].tolist() == [True]
    assert stuck.poll() is not None


def test_a_server_that_dies_over_and_over_ends_the_run(make: Worlds) -> None:
    world = make(1)
    world.reset(seeds=[1])
    for _ in range(MAX_DEATHS):
        world.step(np.array([[DIE]]))
        world.reset(np.array([True]))
    with pytest.raises(WorkerError, match=rf"environment 0: Gazebo died {MAX_DEATHS + 1} times"):
        world.step(np.array([[DIE]]))


def test_a_whole_episode_makes_up_for_earlier_deaths(make: Worlds) -> None:
    world = make(1, time_limit=2)
    world.reset(seeds=[1])
    for _ in range(MAX_DEATHS + 2):
        world.step(np.array([[DIE]]))
        world.reset(np.array([True]))
        for _ in range(2):
            world.step(np.zeros((1, 1)))
        world.reset(np.array([True]))
    assert world.restarts == MAX_DEATHS + 2


def test_same_seeds_and_actions_give_the_same_numbers_alone_and_in_a_batch(make: Worlds) -> None:
    moves = np.random.default_rng(0).uniform(-20, 20, (50, 3, 1))

    def play(world: Gazebo, moves: np.ndarray, seeds: list[int]) -> np.ndarray:
        rows = [world.reset(seeds=seeds).copy()]
        for action in moves:
            observation, reward, terminated, truncated = world.step(action)
            rows.append(np.column_stack([observation[:, :1], reward]).copy())
            if (ended := terminated | truncated).any():
                rows.append(world.reset(ended).copy())
        return np.stack(rows)

    world = make(3)
    first = play(world, moves, [7, 8, 9])
    np.testing.assert_array_equal(first, play(world, moves, [7, 8, 9]))
    np.testing.assert_array_equal(first[:, 1:2], play(make(1), moves[:, 1:2], [8]))


def test_a_saved_state_goes_on_exactly(make: Worlds) -> None:
    moves = np.random.default_rng(0).uniform(-20, 20, (40, 2, 1))
    world = make(2)
    world.reset(seeds=[1, 2])
    for action in moves[:15]:
        world.step(action)
    world.reset(np.array([True, False]))
    for action in moves[15:18]:
        world.step(action)
    state = {name: value.clone() for name, value in world.state_dict().items()}
    rest = [world.step(action)[0].copy() for action in moves[18:20]]
    other = make(2)
    other.load_state_dict(state)
    assert other.time.tolist() == [3, 18]
    for action, expected in zip(moves[18:20], rest, strict=True):
        np.testing.assert_array_equal(other.step(action)[0], expected)


def test_restarts_are_told_as_readings(make: Worlds) -> None:
    world = make(1)
    env = BatchedEnv(world, [1])
    state = env.reset()
    source = SyncSource.__new__(SyncSource)
    source.env = env
    assert source.readings() == {}
    state["action"] = state["observation"].new_full((1, 1), DIE)
    stepped = env.step(state)["next"]
    assert (bool(stepped["truncated"]), bool(stepped["terminated"])) == (True, False)
    assert not bool(stepped["success"])
    assert source.readings() == {"collect/restarts": 1}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"STAND_IN_SAYS": "no port"}, "process .*log ends:\nno port"),
        (
            {"STAND_IN_SAYS": "Failed to load plugin x", "STAND_IN_STAYS": "1"},
            "Failed to load plugin",
        ),
        ({"STAND_IN_SAYS": "Error Code 4", "STAND_IN_STAYS": "1"}, "Error Code 4"),
    ],
)
def test_a_server_that_does_not_start_is_told_with_its_log(
    make: Worlds, how: dict[str, str], message: str
) -> None:
    before = set(psutil.Process().children())
    with pytest.raises(ValueError, match=f"(?s){message}"):
        make(2, **how)
    assert set(psutil.Process().children()) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"joints": ["slidr"]}, "did you mean slider"),
        ({"joints": []}, "name each joint"),
        ({"joints": ["slider", "slider"]}, "once"),
        ({"frame_skip": 0}, "frame_skip=0"),
        ({"time_limit": 0}, "time_limit=0"),
    ],
)
def test_bad_settings_are_named_and_leave_no_process(
    make: Worlds, settings: dict[str, Any], message: str
) -> None:
    before = set(psutil.Process().children())
    with pytest.raises(ValueError, match=message):
        make(1, **settings)
    assert set(psutil.Process().children()) == before


def test_a_world_that_was_loaded_in_part_is_refused(make: Worlds) -> None:
    make.file.write_text(WORLD.format(SLIDER + '<joint name="hinge" type="revolute"/>'))
    with pytest.raises(ValueError, match=r"did not load all of .*: it lacks hinge"):
        make(1)


def test_an_action_that_is_not_finite_is_refused(make: Worlds) -> None:
    world = make(2)
    world.reset(seeds=[1, 2])
    with pytest.raises(ValueError, match="action of environment 1 is not finite"):
        world.step(np.array([[0.0], [np.nan]]))


def test_without_gazebo_the_message_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(GazeboMissing, match=f"no Gazebo in {tmp_path}.*make gazebo.*{VARIABLE}"):
        Installation.find()


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_installer_empties_no_folder(tmp_path: Path, slash: str) -> None:
    mine = tmp_path / "tools"
    mine.mkdir()
    (mine / "file").write_text("mine")
    script = Path(server_module.__file__).parent / "install.sh"
    done = subprocess.run(["bash", script, f"{mine}{slash}"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "tools is there and is no Gazebo" in done.stderr
    assert [p.name for p in tmp_path.rglob("*")] == ["tools", "file"]


@pytest.mark.parametrize(
    ("cores", "servers", "stay"),
    [({2, 5}, 1, [None]), ({2, 5}, 2, [2, 5]), ({2, 5}, 3, [2, 5, 2]), ({3}, 2, [None, None]),
     ({0, 1, 2, 3}, 2, [None, None])],
)  # fmt: skip
def test_servers_stay_on_a_core_each_only_where_there_are_as_many(
    cores: set[int], servers: int, stay: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: cores)
    assert _cores(servers) == stay


def test_a_server_stays_on_its_core_also_after_it_was_started_again(file: Path) -> None:
    core = min(os.sched_getaffinity(0))
    server = server_module.Server(file.read_text(), file.parent, StandIn(), core)
    try:
        for _ in range(2):
            assert os.sched_getaffinity(server.process.pid) == {core}
            server.start()
    finally:
        server.close()
