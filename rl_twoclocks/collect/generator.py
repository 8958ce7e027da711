"""A generator: environments and a policy that collect at their own pace, anywhere.

Workers of the pool, processes behind Redis and actors on a Ray cluster all run this one class.
"""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rl_twoclocks.collect.behaviour import BehaviourPolicy, Published
from rl_twoclocks.collect.source import Noise
from rl_twoclocks.collect.sync import make_collector
from rl_twoclocks.config import Config
from rl_twoclocks.envs import make_env
from rl_twoclocks.seeding import env_seeds, generator
from rl_twoclocks.window import frames_of


class Generator:
    """Collects slices [n, T]: the window's schema, and what only the generator can know of episodes.

    A slice can be dropped or come late, so that sums over time cannot be made where slices arrive:
    `discounted` is the running discounted return, `episode_return` and `episode_length` are those of
    the episode that ends at a frame, and 0 elsewhere.

    Args:
        config: of the run.
        index: of this generator among all.
        num_envs: environments that it steps.
        steps: decisions per environment in a slice.
        life: another number gives other episodes: restarts must not repeat what was seen.
    """

    def __init__(self, config: Config, index: int, num_envs: int, steps: int, life: int) -> None:
        """Make environments, and a policy that is nobody's until one is taken."""
        self.seed, self.index = config.seed, index
        self.env = make_env(config.task, config.collect, num_envs, self._seeds(num_envs, life))
        noise = generator(config.seed, f"policy of generator {index} in life {life}")
        self.behaviour = BehaviourPolicy.fresh(config, self.env, noise)
        # No published version is this one: its weights are not the learner's.
        self.behaviour.version = -1
        frames = num_envs * steps
        self.collector = make_collector(self.env, self.behaviour, frames, config.collect)
        self._batches = iter(self.collector)
        self._sums = EpisodeSums(num_envs, config.algo.gamma)
        self._resets = config.collect.reset_each_rollout

    def _seeds(self, num_envs: int, index: int) -> list[int]:
        return env_seeds(self.seed, f"environments of generator {self.index}", num_envs, index)

    def take(self, published: Published) -> None:
        """Act with another policy from the next slice on."""
        self.behaviour.take(published)

    def slice(self) -> TensorDict:
        """Collect one slice; what follows it may never arrive, so its end is a cut."""
        if self._resets:
            self._sums.restart()
        frames = frames_of(next(self._batches), self.behaviour.distribution, cut_end=True)
        done = frames["terminated"] | frames["truncated"]
        if self._resets:
            # All end here: those that fail on the way alone would be another population.
            done[:, -1] = True
        return frames.update(self._sums.update(frames["reward"], done))

    def begin_new_episodes(self, index: int) -> None:
        """Reset all environments."""
        self.env.reseed(self._seeds(self.env.batch_size[0], index))
        self.collector.reset()
        self._sums.restart()

    def set_noise(self, noise: Noise | None) -> None:
        """Add noise to all observations, of a stream of this generator's own, or stop it."""
        if noise is not None:
            noise = (noise[0], noise[1] + 7919 * self.index)
        self.env.set_noise(noise)

    def close(self) -> None:
        """Close the environments."""
        self.collector.shutdown()
        if not self.env.is_closed:
            self.env.close()


def example_slice(config: Config, num_envs: int, steps: int) -> TensorDict:
    """A slice of the right keys, shapes and types, from a single decision of every environment."""
    generator = Generator(config, 0, num_envs, 1, life=0)
    try:
        return generator.slice().expand(num_envs, steps)
    finally:
        generator.close()


class EpisodeSums:
    """Sums over time within episodes, which run on across slices."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        """Start at the beginning of an episode everywhere."""
        self.gamma = gamma
        self.sums = np.zeros((3, num_envs))

    def restart(self) -> None:
        """Forget the open episodes."""
        self.sums[:] = 0.0

    def update(self, reward: Tensor, done: Tensor) -> dict[str, Tensor]:
        """Take a slice, raw rewards and ends [n, T]; give the three sums at every frame."""
        rewards, ends = reward.double().numpy(), done.numpy()
        out = np.zeros((3, *rewards.shape), dtype=np.float32)
        discounted, total, length = self.sums
        for t in range(rewards.shape[1]):
            discounted *= self.gamma
            discounted += rewards[:, t]
            total += rewards[:, t]
            length += 1
            end = ends[:, t]
            out[0, :, t] = discounted
            out[1, end, t], out[2, end, t] = total[end], length[end]
            self.sums[:, end] = 0.0
        names = ("discounted", "episode_return", "episode_length")
        return {name: torch.from_numpy(values) for name, values in zip(names, out, strict=True)}
