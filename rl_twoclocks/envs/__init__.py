"""Environments: one batched TorchRL environment over gymnasium's vectors or envpool."""

from __future__ import annotations

import inspect
import os
import re
from typing import Any

import gymnasium as gym

from rl_twoclocks.config import CollectConfig, ConfigError, TaskConfig
from rl_twoclocks.envs.batched import BatchedEnv, NonFiniteError
from rl_twoclocks.envs.frames import FrameStack
from rl_twoclocks.envs.vector import (
    EnvpoolVector,
    GymnasiumVector,
    VectorBackend,
    WorkerError,
    env_factory,
)
from rl_twoclocks.imports import import_module
from rl_twoclocks.nearest import did_you_mean

__all__ = ["BatchedEnv", "NonFiniteError", "WorkerError", "check_task", "make_env"]


def make_env(
    task: TaskConfig, collect: CollectConfig, num_envs: int, seeds: list[int], remember: int = 0
) -> BatchedEnv:
    """Make `num_envs` environments of a task as one TorchRL environment.

    With `remember`, stacks of frames are given as numbers that can be looked up in `env.frames` for
    so many decisions; without, as what they are.

    Raises:
        ConfigError: the id, its keyword arguments or its spaces cannot be used.
    """
    backend: VectorBackend
    if collect.backend == "envpool":
        threads = min(num_envs, 1 if collect.vectorization == "sync" else os.cpu_count() or 1)
        backend = EnvpoolVector(task, num_envs, seed=seeds[0], num_threads=threads)
    elif collect.backend == "native":
        backend = _native(task, num_envs)
    else:
        check_task(task)
        try:
            backend = GymnasiumVector(env_factory(task), num_envs, collect.vectorization)
        except (TypeError, ValueError, gym.error.Error) as error:
            why = _unknown_argument(task, str(error)) or f"cannot make {task.env_id!r}: {error}"
            raise ConfigError(why) from error
    stack = None
    if task.frame_stack > 1:
        space = backend.observation_space
        if space.dtype != "uint8" or space.shape is None or len(space.shape) != 2:
            raise ConfigError(
                f"task.frame_stack={task.frame_stack} needs images [height, width] of bytes, and "
                f"{task.env_id} gives {space}: write task.frame_stack=1"
            )
        stack = FrameStack(num_envs, task.frame_stack, space.shape, remember)
    return BatchedEnv(backend, seeds, stack)


def _native(task: TaskConfig, num_envs: int) -> VectorBackend:
    from rl_twoclocks.worlds import make_world

    kwargs = dict(task.kwargs)
    if task.max_episode_steps is not None:
        # The world's own clock, which its rewards know of.
        kwargs.setdefault("time_limit", task.max_episode_steps)
    try:
        return make_world(task.env_id, num_envs, **kwargs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"cannot make {task.env_id!r}: {error}") from error


def _unknown_argument(task: TaskConfig, error: str) -> str:
    """What to say where an environment does not take one of `task.kwargs`; else nothing."""
    found = re.search(r"unexpected keyword argument '(\w+)'", error)
    if found is None or found[1] not in task.kwargs:
        return ""
    entry = gym.spec(task.env_id).entry_point
    make: Any = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    taken = [
        name
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    hint = did_you_mean(found[1], taken) or f"it takes {', '.join(taken) or 'none'}"
    return f"task.kwargs.{found[1]} is no argument of {task.env_id}: {hint}"


def check_task(task: TaskConfig) -> None:
    """Check that the environment id is registered, importing the user's module first.

    Raises:
        ConfigError: the module cannot be imported or the id is unknown; names near ids.
    """
    if task.import_:
        try:
            import_module(task.import_)
        except ImportError as error:
            raise ConfigError(f"task.import={task.import_}: {error}") from error
    try:
        gym.spec(task.env_id)
    except gym.error.Error as error:
        hint = did_you_mean(task.env_id, gym.registry, most=3)
        raise ConfigError(f"task.env_id={task.env_id!r}: {error} {hint}".rstrip()) from error
