"""Vectors of environments as numpy batches, with true final observations and no automatic reset.

gymnasium's vector classes (in this process or one process each) and envpool behind one interface:
`step` never resets, `reset(mask)` resets exactly the environments named. So no observation of the
next episode and no junk row can reach the learner.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from rl_twoclocks.config import ConfigError, TaskConfig
from rl_twoclocks.envs.atari import envpool_atari
from rl_twoclocks.envs.spaces import MASK, flat_mask
from rl_twoclocks.nearest import did_you_mean

Array = np.ndarray
WORLDS = "rl_twoclocks.worlds"
"""Module of the project's own worlds: their time limits are theirs, since their rewards know of them."""


class WorkerError(RuntimeError):
    """A process that runs an environment died or raised; the message names it."""


class VectorBackend(Protocol):
    """N environments stepped together."""

    num_envs: int
    observation_space: gym.Space
    action_space: gym.Space

    @property
    def action_masks(self) -> Array | None:
        """Which actions the newest `info` allows, bool [N, sum of choices]; None if it never tells."""
        ...

    @property
    def envs(self) -> list[gym.Env] | None:
        """The environments themselves, where they live in this process."""
        ...

    def reset(self, mask: Array | None = None, seeds: list[int] | None = None) -> Any:
        """Reset all environments, or those with `mask` true; return observations [N, ...]."""
        ...

    def step(self, action: Array) -> tuple[Any, Array, Array, Array]:
        """Step all; return observation [N, ...], reward, terminated and truncated [N]."""
        ...

    def close(self) -> None:
        """Release processes and simulators."""
        ...


def env_factory(task: TaskConfig, **extra: Any) -> Callable[[], gym.Env]:
    """Give a picklable-by-cloudpickle function that makes one environment of the task."""
    kwargs = {**task.kwargs, **extra}
    if task.game is not None:
        kwargs |= {"game": task.game, "frame_skip": task.frame_skip}
    if task.max_episode_steps is not None and task.import_ == WORLDS:
        kwargs.setdefault("time_limit", task.max_episode_steps)
    elif task.max_episode_steps is not None:
        kwargs["max_episode_steps"] = task.max_episode_steps

    def make() -> gym.Env:
        quiet_mujoco()
        if task.import_:
            importlib.import_module(task.import_)
        return gym.make(task.env_id, disable_env_checker=True, **kwargs)

    return make


def quiet_mujoco() -> None:
    """Drop MuJoCo's deprecation notes about the shipped models; pass every other warning on.

    MuJoCo prints one line per environment and writes MUJOCO_LOG.TXT into the working directory;
    its warning callback is the one place where both can be stopped.
    """
    try:
        import mujoco
    except ImportError:
        return

    def warn(message: str | bytes) -> None:
        text = message.decode() if isinstance(message, bytes) else message
        if "deprecated" not in text:
            print(f"MuJoCo: {text.strip()}", file=sys.stderr)

    mujoco.set_mju_user_warning(warn)


class _MasksOnly:
    """Of all infos keeps action masks alone: merging them costs as much as a third of the physics."""

    action_masks: Array | None = None

    def _add_info(self, vector_infos: dict, env_info: dict, env_num: int) -> dict:
        if self.action_masks is not None:
            if MASK not in env_info:
                raise ValueError(f"environment {env_num} gave no {MASK}, although it has before")
            self.action_masks[env_num] = flat_mask(env_info[MASK])
        return vector_infos


class _SyncVector(_MasksOnly, SyncVectorEnv):
    pass


class _AsyncVector(_MasksOnly, AsyncVectorEnv):
    resetting: Array | None = None
    """Which environments are reset; None: all."""

    def _add_info(self, vector_infos: dict, env_info: dict, env_num: int) -> dict:
        # One that is not reset answers with nothing, and its mask stays.
        stays = self.resetting is not None and not self.resetting[env_num]
        if stays and self._state is AsyncState.WAITING_RESET:
            return vector_infos
        return super()._add_info(vector_infos, env_info, env_num)

    def _raise_if_errors(self, successes: Any) -> None:
        if not all(successes):
            index, kind, value, trace = self.error_queue.get()
            raise WorkerError(
                f"environment worker {index} raised {kind.__name__}: {value}\n{trace}"
            )


def _first_masks(make: Callable[[], gym.Env], num_envs: int) -> Array | None:
    """Room for the action masks of all environments, if those of this kind give any."""
    env = make()
    try:
        info = env.reset(seed=0)[1]
    finally:
        env.close()
    return np.repeat(flat_mask(info[MASK])[None], num_envs, axis=0) if MASK in info else None


def _in_worker(make: Callable[[], gym.Env]) -> Callable[[], gym.Env]:
    """Make an environment in a process of its own, without what a fork inherits from the trainer."""
    trainer = os.getpid()

    def make_here() -> gym.Env:
        # gymnasium also makes one environment in the trainer itself, to read its spaces.
        if os.getpid() != trainer:
            # The trainer handles the terminal's Ctrl-C and ends its workers itself.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            torch.set_num_threads(1)
        return make()

    return make_here


class GymnasiumVector:
    """gymnasium's SyncVectorEnv or AsyncVectorEnv with automatic resets off."""

    def __init__(self, make: Callable[[], gym.Env], num_envs: int, vectorization: str) -> None:
        """Build `num_envs` environments, in this process (`sync`) or one process each (`async`)."""
        self._async = vectorization == "async"
        self._broken = False
        self.vector: Any
        if self._async:
            # fork: TorchRL makes spawn the default, which imports torch once more per environment.
            self.vector = _AsyncVector(
                [_in_worker(make)] * num_envs,
                context="fork",
                autoreset_mode=AutoresetMode.DISABLED,
            )
        else:
            self.vector = _SyncVector(
                [make] * num_envs, copy=False, autoreset_mode=AutoresetMode.DISABLED
            )
        self.num_envs = num_envs
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space
        if not isinstance(self.action_space, gym.spaces.Box):
            self.vector.action_masks = _first_masks(make, num_envs)

    @property
    def action_masks(self) -> Array | None:
        """Which actions the newest `info` allows."""
        return self.vector.action_masks

    def reset(self, mask: Array | None = None, seeds: list[int] | None = None) -> Array:
        """Reset all environments, or those with `mask` true."""
        options = None if mask is None else {"reset_mask": mask}
        seed: list[int | None] | None = None if seeds is None else list(seeds)
        if not self._async:
            with self._explained():
                return self.vector.reset(seed=seed, options=options)[0]
        with self._watch():
            self.vector.resetting = mask
            self.vector.reset_async(seed=seed, options=options)
            self._await_workers()
            return self.vector.reset_wait()[0]

    def step(self, action: Array) -> tuple[Array, Array, Array, Array]:
        """Step all environments; their observations are final where an episode ended."""
        if not self._async:
            with self._explained():
                return self.vector.step(action)[:4]
        with self._watch():
            self.vector.step_async(action)
            self._await_workers()
            return self.vector.step_wait()[:4]

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Say which observation does not fit, where numpy says that something does not."""
        try:
            yield
        except ValueError as error:
            shape = self.observation_space.shape
            for number, seen in enumerate(self.vector._env_obs):
                if shape is not None and seen is not None and np.shape(seen) != shape:
                    raise ValueError(
                        f"environment {number} gives an observation of shape {np.shape(seen)}, and its "
                        f"observation space says {shape}"
                    ) from error
            raise

    @contextlib.contextmanager
    def _watch(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            self._broken = True
            raise WorkerError(
                f"environment worker {self._dead()} died (killed or crashed)"
            ) from error
        except BaseException:
            # Answers may wait in pipes: the environments cannot be asked for anything any more.
            self._broken = True
            raise

    def _await_workers(self) -> None:
        # The end of a killed worker's pipe is not always reported: its process is asked too.
        for pipe, process in zip(self.vector.parent_pipes, self.vector.processes, strict=True):
            while not pipe.poll(0.5):
                if not process.is_alive():
                    raise EOFError

    def _dead(self) -> list[int]:
        # The pipe is closed a moment before the system reports the end of its process.
        for _ in range(100):
            dead = [i for i, p in enumerate(self.vector.processes) if not p.is_alive()]
            if dead:
                return dead
            time.sleep(0.05)
        return []

    @property
    def envs(self) -> list[gym.Env] | None:
        """The environments themselves, where they live in this process."""
        return None if self._async else list(self.vector.envs)

    def close(self) -> None:
        """Close the environments; after a failure workers are killed, not asked."""
        if not self._broken:
            self.vector.close()
            return
        for process in self.vector.processes:
            process.kill()
            process.join()
        for pipe in self.vector.parent_pipes:
            if pipe is not None:
                pipe.close()
        self.vector.closed = True


class EnvpoolVector:
    """envpool's C++ vector; finished environments are reset by name before the next step."""

    envs: list[gym.Env] | None = None
    action_masks: Array | None = None

    def __init__(self, task: TaskConfig, num_envs: int, seed: int, num_threads: int) -> None:
        """Build the pool.

        Raises:
            ConfigError: envpool is not installed or does not have the environment.
        """
        try:
            import envpool
        except ImportError:
            raise ConfigError(
                "collect.backend=envpool needs the envpool package: pip install envpool"
            ) from None
        env_id, kwargs = task.env_id, dict(task.kwargs)
        if task.game is not None:
            env_id, kwargs = envpool_atari(task)
        if env_id not in envpool.list_all_envs():
            hint = did_you_mean(env_id, envpool.list_all_envs(), cutoff=0.7)
            raise ConfigError(
                f"envpool has no environment {env_id!r}; collect.backend=gymnasium may have it. {hint}"
            )
        if task.max_episode_steps is not None:
            kwargs["max_episode_steps"] = task.max_episode_steps
        self._make = lambda seed: envpool.make_gymnasium(
            env_id, num_envs=num_envs, num_threads=num_threads, seed=seed, **kwargs
        )
        # One frame as an image [height, width], as from other backends.
        self._single = np.s_[:, 0] if task.game is not None else np.s_[:]
        self._seed = seed
        self.vector = self._make(seed)
        self.num_envs = num_envs
        self.observation_space = self.vector.observation_space
        if task.game is not None:
            _, *image = self.vector.observation_space.shape
            self.observation_space = gym.spaces.Box(0, 255, tuple(image), np.uint8)
        self._limit = self.vector.spec.config.max_episode_steps
        self.action_space = self.vector.action_space
        self._obs: Array | None = None

    def reset(self, mask: Array | None = None, seeds: list[int] | None = None) -> Array:
        """Reset all or the masked environments; another first seed builds the pool anew."""
        if seeds is not None and seeds[0] != self._seed:
            # envpool takes a seed only when it is built.
            self.vector.close()
            self._seed = seeds[0]
            self.vector = self._make(self._seed)
        if mask is None or self._obs is None:
            self._obs = np.array(self.vector.reset()[0][self._single])
        else:
            ids = np.flatnonzero(mask)
            obs, info = self.vector.reset(ids)
            self._obs[info.get("env_id", ids)] = obs[self._single]
        return self._obs

    def step(self, action: Array) -> tuple[Array, Array, Array, Array]:
        """Step all environments."""
        obs, reward, terminated, truncated, info = self.vector.step(action)
        obs = obs[self._single]
        if "lives" in info:
            # envpool calls the end of a life a truncation.
            late = info["elapsed_step"] >= self._limit
            terminated, truncated = terminated | (truncated & ~late), truncated & late
        # A copy: reset writes first observations of new episodes into it.
        self._obs = np.array(obs)
        return obs, reward, terminated, truncated

    def close(self) -> None:
        """Stop the pool's threads."""
        self.vector.close()
