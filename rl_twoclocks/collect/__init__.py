"""Collection: the behaviour policy, where rollouts come from, and episode statistics."""

import contextlib
from collections.abc import Callable

from rl_twoclocks.collect.behaviour import BehaviourPolicy, Published
from rl_twoclocks.collect.episodes import Episodes
from rl_twoclocks.collect.lag import Delay, Ring
from rl_twoclocks.collect.source import Source, SyncSource
from rl_twoclocks.collect.sync import make_collector
from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.envs import BatchedEnv

__all__ = [
    "BehaviourPolicy",
    "Delay",
    "Episodes",
    "Published",
    "Ring",
    "Source",
    "SyncSource",
    "check_source",
    "make_collector",
    "make_source",
]


def make_source(
    env: BatchedEnv,
    behaviour: BehaviourPolicy,
    config: Config,
    update_frequency: int,
    frames: int,
    restarts: int = 0,
) -> Source:
    """Start the source of rollouts that `collect.mode` asks for.

    Args:
        env, behaviour: of this process; used where collection is synchronous.
        config: of the run.
        update_frequency: U, frames per rollout.
        frames: collected so far, so that what starts anew does not repeat itself.
        restarts: of those who collect, so far in this sitting.
    """
    if config.collect.mode == "sync":
        return SyncSource(env, behaviour, config, update_frequency)
    return check_source(config)(config, behaviour, update_frequency, frames, restarts)


def check_source(config: Config) -> Callable[..., Source]:
    """What makes the source that `collect.mode` asks for; nothing is started.

    Raises:
        ConfigError: a package is missing, an address is none, or a server that answers refuses this run.
    """
    mode = config.collect.mode
    if mode == "sync":
        return SyncSource
    try:
        if mode == "async":
            from rl_twoclocks.collect.pool import AsyncSource as Chosen
        elif mode == "redis":
            from rl_twoclocks.collect.redis_source import RedisSource as Chosen  # type: ignore
            from rl_twoclocks.collect.redis_source import queue_of

            queue = queue_of(config)
            # Also where it is refused: a client that stays holds the run's name.
            with contextlib.closing(queue.server):
                queue.check()
        else:
            from rl_twoclocks.collect.ray_source import RaySource as Chosen  # type: ignore
    except ImportError as error:
        raise ConfigError(f"collect={mode} needs {error.name}: pip install '.[{mode}]'") from error
    return Chosen
