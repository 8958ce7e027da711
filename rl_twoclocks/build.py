"""From a configuration to the parts of a run."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import torch
from torchrl.collectors import Collector

from rl_twoclocks.clocks import Clocks
from rl_twoclocks.collect import BehaviourPolicy, Episodes, make_collector
from rl_twoclocks.config import CollectConfig, Config, ConfigError
from rl_twoclocks.envs import BatchedEnv, make_env
from rl_twoclocks.evaluate import under_changed_conditions
from rl_twoclocks.learner import Learner
from rl_twoclocks.models import ActionMap, ActorCritic
from rl_twoclocks.normalize import Normalizer
from rl_twoclocks.optim import FlatParameters
from rl_twoclocks.safety import Derived
from rl_twoclocks.seeding import env_seeds, generator, stream_seed
from rl_twoclocks.update import Update
from rl_twoclocks.window import Window

COMPILE_PAYS_AFTER = 50_000
"""Optimizer steps from which compiling (some 15 s) is won back (some 0.5 ms a step)."""


@dataclass
class Parts:
    """What a run is made of. Each part is made from the configuration alone."""

    env: BatchedEnv
    model: ActorCritic
    flat: FlatParameters
    normalizer: Normalizer
    behaviour: BehaviourPolicy
    learner: Learner
    window: Window
    episodes: Episodes
    clocks: Clocks
    policy_noise: torch.Generator
    minibatch_order: torch.Generator
    update_frequency: int
    """U of the rollout at hand, frames; differs from the configuration where the governor says so."""

    def make_collector(self, config: Config) -> Collector:
        """Start collecting; resets the environments, or takes up their restored state."""
        return make_collector(self.env, self.behaviour, self.update_frequency, config.collect)

    def publish(self) -> None:
        """Give weights and normaliser statistics together to the behaviour policy."""
        version = self.clocks.published_version
        self.behaviour.publish(self.flat.vector, self.normalizer, version)

    def begin_new_episodes(self, seed: int) -> None:
        """State an episode boundary: the next full reset starts episodes that follow from it.

        What was open is cut, not ended: its last states are still bootstrapped.
        """
        n = self.env.batch_size[0]
        self.env.reseed(env_seeds(seed, "environment", n, index=self.clocks.frames))
        self.window.cut()
        self.forget_open_episodes()

    def forget_open_episodes(self) -> None:
        """Drop the sums that run on across rollouts: the environments are reset."""
        self.episodes.discard_open()
        self.normalizer.discounted[:] = 0.0

    def restart_streams(self, seed: int) -> None:
        """Set the streams of policy noise and minibatches to their beginning."""
        self.policy_noise.manual_seed(stream_seed(seed, "policy"))
        self.minibatch_order.manual_seed(stream_seed(seed, "minibatch"))

    def fork_streams(self, seed: int) -> None:
        """Set the streams of policy noise and minibatches to a place no other round has used."""
        version = self.clocks.policy_version
        self.policy_noise.manual_seed(stream_seed(seed, f"policy from {version}"))
        self.minibatch_order.manual_seed(stream_seed(seed, f"minibatch from {version}"))

    def close(self) -> None:
        """Close the environments."""
        self.env.close()


def build(config: Config, derived: Derived) -> Parts:
    """Make all parts, environments included.

    Raises:
        ConfigError: a device or an environment is not to be had.
    """
    device = find_device(config.device)
    collect_device = find_device(config.collect.device)
    env = make_env(
        config.task,
        config.collect,
        config.num_envs,
        env_seeds(config.seed, "environment", config.num_envs),
    )
    if config.eval.enabled and config.eval.changed:
        # Conditions that cannot be had are found out now, not at the first evaluation.
        changed = under_changed_conditions(config)
        make_env(changed.task, CollectConfig(), 1, env_seeds(config.seed, "check", 1)).close()
    shape = env.observation_spec["observation"].shape[1:]
    model = ActorCritic(shape, env.action_spec, config.model, generator(config.seed, "weights"))
    flat = FlatParameters(model.to(device))
    normalizer = Normalizer(tuple(shape), config.num_envs, config.algo.gamma, config.normalize)
    noise = generator(config.seed, "policy", collect_device)
    action_map = ActionMap(env.action_spec, config.model.squash, collect_device)
    behaviour = BehaviourPolicy(
        model, action_map, normalizer, config.num_envs, noise, collect_device
    )
    update = Update(
        flat,
        config.algo,
        config.optim,
        config.interventions,
        compile_step=decide_compile(config, derived),
        cuda_graphs=config.cuda_graphs and device.type == "cuda",
    )
    order = generator(config.seed, "minibatch")
    return Parts(
        env=env,
        model=model,
        flat=flat,
        normalizer=normalizer,
        behaviour=behaviour,
        learner=Learner(config, flat, update, normalizer, order),
        window=Window(config.clocks.batch_size, config.num_envs),
        episodes=Episodes(config.num_envs),
        clocks=Clocks(),
        policy_noise=noise,
        minibatch_order=order,
        update_frequency=config.clocks.update_frequency,
    )


def find_device(name: str) -> torch.device:
    """Resolve auto, cpu, cuda or cuda:N.

    Raises:
        ConfigError: there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device={name}: choices are auto, cpu, cuda, cuda:0, ...") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={name}: this machine has {torch.cuda.device_count()} CUDA devices"
        )
    return device


def decide_compile(config: Config, derived: Derived) -> bool:
    """Whether to compile the optimizer step; says why not where it was asked for and cannot be."""
    if config.compile is False:
        return False
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        if config.compile is True:
            raise ConfigError("compile=true needs a C++ compiler (g++ or clang++) on the PATH")
        return False
    return config.compile is True or derived.update_steps >= COMPILE_PAYS_AFTER
