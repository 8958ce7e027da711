"""Environments: one batched TorchRL environment over gymnasium's vectors or envpool."""

from __future__ import annotations

import difflib
import importlib
import os
import sys

import gymnasium as gym

from rl_twoclocks.config import CollectConfig, ConfigError, TaskConfig
from rl_twoclocks.envs.batched import BatchedEnv, NonFiniteError
from rl_twoclocks.envs.vector import (
    EnvpoolVector,
    GymnasiumVector,
    VectorBackend,
    WorkerError,
    env_factory,
)

__all__ = ["BatchedEnv", "NonFiniteError", "WorkerError", "check_task", "make_env"]


def make_env(
    task: TaskConfig, collect: CollectConfig, num_envs: int, seeds: list[int]
) -> BatchedEnv:
    """Make `num_envs` environments of a task as one TorchRL environment.

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
            raise ConfigError(f"cannot make {task.env_id!r}: {error}") from error
    return BatchedEnv(backend, seeds)


def _native(task: TaskConfig, num_envs: int) -> VectorBackend:
    from rl_twoclocks.worlds import make_world

    kwargs = dict(task.kwargs)
    if task.max_episode_steps is not None:
        # The world's own clock, which its rewards know of.
        kwargs["time_limit"] = task.max_episode_steps
    try:
        return make_world(task.env_id, num_envs, **kwargs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"cannot make {task.env_id!r}: {error}") from error


def check_task(task: TaskConfig) -> None:
    """Check that the environment id is registered, importing the user's module first.

    Raises:
        ConfigError: the module cannot be imported or the id is unknown; names near ids.
    """
    if task.import_:
        # As for `python -m`: a console script's path does not have the working directory.
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            importlib.import_module(task.import_)
        except ImportError as error:
            raise ConfigError(f"task.import={task.import_}: {error}") from error
    try:
        gym.spec(task.env_id)
    except gym.error.Error as error:
        near = difflib.get_close_matches(task.env_id, list(gym.registry), n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(f"task.env_id={task.env_id!r}: {error}{hint}") from error
