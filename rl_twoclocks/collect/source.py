"""Where rollouts come from: one interface for collection here, in workers, and on other machines."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from tensordict import TensorDict
from torch import Tensor
from torchrl.collectors import Collector

from rl_twoclocks.collect.behaviour import BehaviourPolicy
from rl_twoclocks.collect.sync import make_collector
from rl_twoclocks.config import Config
from rl_twoclocks.envs import BatchedEnv
from rl_twoclocks.seeding import env_seeds
from rl_twoclocks.window import frames_of

Noise = tuple[Tensor, int]
"""Deviations of observation noise and the seed of its stream."""


Stop = Callable[[], bool]


def never() -> bool:
    """Go on."""
    return False


class Source(Protocol):
    """Gives rollouts, every frame stamped with the version of the policy that acted."""

    @property
    def restarts(self) -> int:
        """How many of those who collect died and were replaced, in this sitting."""
        ...

    def next(
        self, version: int, max_staleness: int | None, should_stop: Stop = never
    ) -> tuple[TensorDict, int] | None:
        """The next U frames in the window's schema, and the frames collected since the last call.

        Args:
            version: the learner's.
            max_staleness: versions by which a frame may be older; None: any. What is older is dropped
                and counted among the frames.
            should_stop: asked while there is nothing to take.

        Returns:
            None if it was told to stop before there were enough frames.
        """
        ...

    @property
    def given(self) -> int:
        """Version of the policy that those who collect are given."""
        ...

    def publish(self, behaviour: BehaviourPolicy) -> None:
        """Give a policy (weights, normaliser and version together) to those who collect."""
        ...

    def learnt(self) -> None:
        """The learner has taken steps, whose first ones are compiled, which takes long.

        From now on what a full queue has no room for may be dropped, if the configuration says so.
        """
        ...

    def begin_new_episodes(self, seed: int, index: int) -> None:
        """Reset all environments from a stream that follows from a seed and an index."""
        ...

    def set_noise(self, noise: Noise | None) -> None:
        """Add noise to all observations from the next rollout on, or stop it."""
        ...

    def discard(self) -> int:
        """Drop what waits; the number of frames dropped since the last call of `next`."""
        ...

    def readings(self) -> dict[str, float]:
        """What was dropped, restarted or is waiting: `clock/*` and `collect/*`."""
        ...

    def close(self) -> None:
        """Stop collecting and free what this holds."""
        ...


class SyncSource:
    """TorchRL's collector in this process: the policy waits for the data, the data for the policy."""

    def __init__(
        self, env: BatchedEnv, behaviour: BehaviourPolicy, config: Config, update_frequency: int
    ) -> None:
        """Start collecting; resets the environments, or takes up their restored state."""
        self.env, self.behaviour = env, behaviour
        self.cut_end = config.collect.reset_each_rollout or config.collect.split_trajs
        self.collector: Collector = make_collector(env, behaviour, update_frequency, config.collect)
        self._batches = iter(self.collector)

    @property
    def restarts(self) -> int:
        """Simulators that died and were started again."""
        return self.env.restarts

    @property
    def given(self) -> int:
        """Of the policy that acts."""
        return self.behaviour.version

    def next(
        self, version: int, max_staleness: int | None, should_stop: Stop = never
    ) -> tuple[TensorDict, int]:
        """Collect with the policy as it is now."""
        rollout = frames_of(next(self._batches), self.behaviour.distribution, self.cut_end)
        return rollout, rollout.numel()

    def publish(self, behaviour: BehaviourPolicy) -> None:
        """Nothing to do: the policy that was published to is the one that acts."""

    def learnt(self) -> None:
        """Nothing to do: nothing waits here."""

    def begin_new_episodes(self, seed: int, index: int) -> None:
        """Reset all environments."""
        n = self.env.batch_size[0]
        self.env.reseed(env_seeds(seed, "environment", n, index=index))
        self.collector.reset()

    def set_noise(self, noise: Noise | None) -> None:
        """Add noise to all observations."""
        self.env.set_noise(noise)

    def discard(self) -> int:
        """Nothing waits here."""
        return 0

    def readings(self) -> dict[str, float]:
        """Nothing is ever dropped here; `collect/restarts` counts simulators that died, if any did."""
        return {"collect/restarts": self.restarts} if self.restarts else {}

    def close(self) -> None:
        """Stop the collector; the environments stay open and can be collected from again."""
        self.collector.shutdown(close_env=False)


def choose(
    versions: Sequence[int],
    wanted: int,
    per_round: int,
    version: int,
    max_staleness: int | None,
    order: str,
    stream: random.Random,
) -> tuple[list[int], list[int]]:
    """Which of the waiting slices to learn from, and which to drop.

    Args:
        versions: of the slices, oldest arrival first.
        wanted: how many to take now, and `per_round` in every later round.
        version: the learner's.
        max_staleness: versions by which a slice may be older; None: any.
        order: near (newest version first; where all that waits can still be taken in time, but not if
            it waited for another round, the oldest), random, or fifo (oldest arrival first).
        stream: for the random order.

    Returns:
        Positions taken, at most `wanted`, and positions too old. Of one version the earlier arrival
        comes first; with `near`, a bound is what keeps anything from waiting for ever.
    """
    everything = range(len(versions))
    too_old = [
        i for i in everything if max_staleness is not None and version - versions[i] > max_staleness
    ]
    good = [i for i in everything if i not in set(too_old)]
    if order == "near":
        oldest_first = (
            max_staleness is not None
            and good
            and _rescue([max_staleness - version + versions[i] for i in good], wanted, per_round)
        )
        good.sort(key=lambda i: versions[i] if oldest_first else -versions[i])
    elif order == "random":
        stream.shuffle(good)
    return good[:wanted], too_old


def _rescue(left: list[int], wanted: int, per_round: int) -> bool:
    """Whether the oldest have to be taken now, so that nothing that waits is wasted.

    Args:
        left: rounds for which each slice that waits may still be taken after this one.
        wanted: slices that are still taken in this round, and `per_round` in every later one.
    """
    # The newest first for ever would leave the others to expire. Where not all can be saved, saving
    # what is oldest would make all that is learnt from as old as it may be.
    slack = max(
        1 + max(-(-(number - wanted) // per_round), 0) - rounds
        for number, rounds in enumerate(sorted(left), 1)
    )
    return slack == 1
