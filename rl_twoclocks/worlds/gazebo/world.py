"""N Gazebo servers as one world, stepped together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from torch import Tensor

from rl_twoclocks.envs.vector import WorkerError
from rl_twoclocks.worlds.base import EVERY, Array, Index, World, within
from rl_twoclocks.worlds.gazebo.installation import Installation
from rl_twoclocks.worlds.gazebo.picture import Picture
from rl_twoclocks.worlds.gazebo.protocol import Hello, State, reset_request, step_request
from rl_twoclocks.worlds.gazebo.rules import Rules, load_rules
from rl_twoclocks.worlds.gazebo.sdf import STEP, WorldFile
from rl_twoclocks.worlds.gazebo.server import GazeboDied, Server
from rl_twoclocks.worlds.gazebo.tasks import Arm, Cartpole, Diffdrive

MAX_DEATHS = 5
"""Deaths of one server without a whole episode between them, after which it is not started again."""


class Gazebo(World):
    """A world file with rules; actions are efforts on the named joints, N or N m.

    A server that dies truncates its episode: the frame has reward 0 and shows the last known state;
    the next reset waits for a new server. The state of an environment is its seed and its actions
    so far: `load_state_dict` plays them again, which gives the same state bit for bit.

    Args:
        num_envs: servers, one per environment; more than there are cores gain nothing.
        world: path of an SDF world.
        rules: a class, or its import path.
        joints: those that the actions drive, in this order; each needs an effort limit in the world.
        frame_skip: iterations of the physics per decision.
        physics_step: seconds per iteration, written over the world's own.
        time_limit: decisions per episode; None: of the rules.
        installation: where Gazebo is; None: found.

    Raises:
        ValueError: the world, the joints or the rules cannot be used, or there is no Gazebo.
    """

    fields = ("actions",)

    def __init__(
        self,
        num_envs: int,
        world: str | Path,
        rules: str | type[Rules],
        joints: list[str],
        frame_skip: int = 20,
        physics_step: float = STEP,
        time_limit: int | None = None,
        installation: Installation | None = None,
    ) -> None:
        within("num_envs", num_envs, 1)
        within("frame_skip", frame_skip, 1)
        within("physics_step", physics_step, 1e-5, 0.1)
        file = WorldFile.read(world)
        make_rules = load_rules(rules) if isinstance(rules, str) else rules
        where = installation or Installation.find()
        text = file.prepared(physics_step, where.plugin())
        self.frame_skip, self.deaths = frame_skip, [0] * num_envs
        self.rules = [make_rules() for _ in range(num_envs)]
        self.servers: list[Server] = []
        try:
            for core in _cores(num_envs):
                self.servers.append(Server(text, file.path.parent, where, core))
            self.hello = self._greet(file, physics_step)
            self._driven = self._find(file, joints)
            limits = self.hello.efforts[self._driven].astype(np.float32)
            size = self._observation_size()
            space = Box(-np.inf, np.inf, (size,), np.float32)
            limit = self.rules[0].time_limit if time_limit is None else time_limit
            super().__init__(num_envs, limit, space, Box(-limits, limits))
        except BaseException:
            self.close()
            raise
        self.actions = np.zeros((num_envs, self.time_limit, len(limits)), dtype=np.float32)

    def _greet(self, file: WorldFile, step: float) -> Hello:
        try:
            hello = self.servers[0].hello()
        except GazeboDied as error:
            raise ValueError(f"Gazebo cannot run {file.path}: {error}") from error
        found = {name.rsplit("::", 1)[-1] for name in hello.joints.scoped}
        if missing := file.joints - found:
            raise ValueError(
                f"Gazebo did not load all of {file.path}: it lacks {', '.join(sorted(missing))}"
            )
        if abs(hello.step - step) > 1e-9:
            raise ValueError(f"Gazebo runs {file.path} at {hello.step} s per iteration, not {step}")
        return hello

    def _find(self, file: WorldFile, joints: list[str]) -> Array:
        if not joints or len(set(joints)) < len(joints):
            raise ValueError(f"joints={joints}: name each joint that the actions drive, once")
        driven = np.array([self.hello.joints[name] for name in joints])
        for name, number in zip(joints, driven, strict=True):
            if not 0 < self.hello.efforts[number] < np.inf:
                raise ValueError(
                    f"joint {name!r} of {file.path} has no bound: write "
                    "<axis>...<limit><effort>10</effort></limit></axis>, in N or N m"
                )
        return driven

    def _observation_size(self) -> int:
        rules = self.rules[0]
        start = rules.begin(np.random.default_rng(0))
        found = self._exchange({0: reset_request(self.hello, 0, start)})
        if not found:
            raise ValueError("Gazebo died at its first reset")
        shape = self._tried(rules, found[0])
        if len(shape) != 1 or not shape[0]:
            raise ValueError(
                f"{type(rules).__name__}.observe gives shape {shape}: give numbers [K]"
            )
        self.states: list[State] = [found[0]] * len(self.rules)
        return shape[0]

    def _tried(self, rules: Rules, state: State) -> tuple[int, ...]:
        """The shape of what is observed, after both rules were asked once."""
        method = "observe"
        try:
            shape = np.shape(rules.observe(state))
            method = "judge"
            _reward, _over, _success = rules.judge(state, np.zeros(len(self._driven)), False)
        except (NotImplementedError, TypeError) as error:
            wanted = "numbers [K]" if method == "observe" else "a Verdict"
            raise ValueError(
                f"{type(rules).__name__}.{method} cannot be used: {type(error).__name__} {error}; "
                f"it has to give {wanted}"
            ) from error
        return shape

    # -- World ---------------------------------------------------------------------------------

    def _begin(self, index: Array) -> None:
        self.died[index] = False
        todo = {}
        for i in index.tolist():
            random = np.random.default_rng([self.key[i], self.episode[i]])
            start = self.rules[i].begin(random)
            seed = int(random.integers(2**32))
            todo[i] = reset_request(self.hello, seed, start)
        while todo:
            for i, state in self._exchange(todo).items():
                self.states[i] = state
                del todo[i]

    def _advance(self, action: Array, late: Array) -> tuple[Array, Array, Array]:
        limit = self.action_space
        assert isinstance(limit, Box)
        action = np.clip(np.asarray(action, np.float32), limit.low, limit.high)
        if not np.isfinite(action).all():
            number = int(np.flatnonzero(~np.isfinite(action).all(axis=1))[0])
            raise ValueError(f"the action of environment {number} is not finite: {action[number]}")
        self.actions[np.arange(self.num_envs), self.time - 1] = action
        return self._play(np.arange(self.num_envs), action, late)

    def _play(self, index: Array, action: Array, late: Array) -> tuple[Array, Array, Array]:
        """Step some environments, with their actions; `late` becomes true where a server died."""
        efforts = np.zeros((len(index), len(self.hello.joints)))
        efforts[:, self._driven] = action
        requests = {
            i: step_request(self.frame_skip, row)
            for i, row in zip(index.tolist(), efforts, strict=True)
        }
        found = self._exchange(requests)
        reward = np.zeros(len(index), dtype=np.float64)
        terminated, success = np.zeros((2, len(index)), dtype=bool)
        for k, i in enumerate(index.tolist()):
            if i not in found:
                self.died[i] = late[k] = True
                continue
            self.states[i] = found[i]
            verdict = self.rules[i].judge(found[i], action[k], bool(late[k]))
            reward[k], terminated[k], success[k] = verdict
            if late[k] or terminated[k]:
                self.deaths[i] = 0
        return reward, terminated, success

    def _observe(self, index: Index) -> None:
        for i in np.arange(self.num_envs)[index].tolist():
            seen = np.asarray(self.rules[i].observe(self.states[i]))
            if seen.shape != self._observation.shape[1:]:
                raise ValueError(
                    f"{type(self.rules[i]).__name__}.observe gives {seen.shape[0]} numbers, "
                    f"and gave {self._observation.shape[1]} before"
                )
            self._observation[i] = seen

    def render(self, number: int = 0) -> Array:
        """Draw one environment as its rules say, uint8 [height, width, 3]."""
        picture = Picture()
        self.rules[number].draw(self.states[number], picture)
        return picture.array()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put a state back: begin its episodes and play their actions again.

        Raises:
            ValueError: an entry is missing or has another shape; names it.
        """
        super().load_state_dict(state)
        played = np.where(self.episode >= 0, self.time, 0)
        for t in range(int(played.max())):
            index = np.flatnonzero(played > t)
            late = np.full(len(index), t + 1 >= self.time_limit)
            self._play(index, self.actions[index, t], late)
            if self.died[index].any():
                raise WorkerError("Gazebo died while the actions of a saved state were played")
        self._observe(EVERY)

    def close(self) -> None:
        """End all servers; a second call does nothing."""
        for server in self.servers:
            server.close()

    # -- servers -------------------------------------------------------------------------------

    def _exchange(self, requests: Mapping[int, bytes]) -> dict[int, State]:
        """Send all requests, then await all replies; those that died are missing, and restarted.

        Raises:
            WorkerError: a server died too often.
        """
        found: dict[int, State] = {}
        dead: dict[int, GazeboDied] = {}
        for i, request in requests.items():
            try:
                self.servers[i].hello()
                self.servers[i].send(request)
            except GazeboDied as error:
                dead[i] = error
        for i in requests.keys() - dead.keys():
            try:
                found[i] = self.hello.state(self.servers[i].receive())
            except GazeboDied as error:
                dead[i] = error
        for i, reason in dead.items():
            self._restart(i, reason)
        return found

    def _restart(self, number: int, reason: GazeboDied) -> None:
        self.deaths[number] += 1
        if self.deaths[number] > MAX_DEATHS:
            raise WorkerError(
                f"environment {number}: Gazebo died {self.deaths[number]} times in a row: {reason}"
            ) from reason
        self.restarts += 1
        self.servers[number].start()


def _cores(servers: int) -> list[int | None]:
    """The core that each server stays on, where there are as many servers as cores, or more.

    A server that wakes up is else often put on the core of one that is about to: they then step in
    turns, and two on two cores made 1.4 times the decisions of one in place of 1.7. With cores to
    spare the scheduler does better, and runs beside this one may need the same cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not 1 < len(cores) <= servers:
        return [None] * servers
    return [cores[i % len(cores)] for i in range(servers)]


def shipped(name: str) -> Path:
    """The file of a world that comes with the package."""
    return Path(__file__).parent / f"{name}.world"


class GazeboCartpole(Gazebo):
    """A pole on a cart; see `Cartpole`. Further arguments as of `Gazebo`."""

    def __init__(self, num_envs: int, **settings: Any) -> None:
        super().__init__(num_envs, shipped("cartpole"), Cartpole, ["slider"], **settings)


class GazeboArm(Gazebo):
    """A two-link arm; see `Arm`. Further arguments as of `Gazebo`."""

    def __init__(self, num_envs: int, **settings: Any) -> None:
        super().__init__(num_envs, shipped("arm"), Arm, ["shoulder", "elbow"], **settings)


class GazeboDiffdrive(Gazebo):
    """A robot on two driven wheels; see `Diffdrive`. Further arguments as of `Gazebo`."""

    def __init__(self, num_envs: int, **settings: Any) -> None:
        wheels = ["left_wheel", "right_wheel"]
        settings = {"frame_skip": 50} | settings
        super().__init__(num_envs, shipped("diffdrive"), Diffdrive, wheels, **settings)
