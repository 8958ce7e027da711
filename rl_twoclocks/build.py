"""From a configuration to the parts of a run."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import torch
from tensordict import TensorDict

from rl_twoclocks import evaluate
from rl_twoclocks.clocks import Clocks
from rl_twoclocks.collect import (
    BehaviourPolicy,
    Delay,
    Episodes,
    Ring,
    Source,
    check_source,
    make_source,
)
from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.envs import BatchedEnv, make_env
from rl_twoclocks.learner import Learner
from rl_twoclocks.models import ActionMap, ActorCritic
from rl_twoclocks.normalize import Normalizer
from rl_twoclocks.optim import FlatParameters
from rl_twoclocks.safety import Derived
from rl_twoclocks.seeding import env_seeds, generator, stream_seed
from rl_twoclocks.update import Update
from rl_twoclocks.window import Window

COMPILE_PAYS_AFTER = 5_000
"""Optimizer steps from which compiling (10 to 20 s) is won back (2 to 4 ms a step)."""


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

    delay: Delay
    ring: Ring | None
    source: Source | None = None
    """Where rollouts come from, once collection has started."""

    def start_source(self, config: Config) -> None:
        """Start collecting; resets the environments, or takes up their restored state."""
        memory = self.behaviour.memory
        # Another number of frames per rollout starts the source anew, but gives no new restarts.
        restarts = self.source.restarts if self.source is not None else 0
        self.source = make_source(
            self.env, self.behaviour, config, self.update_frequency, self.clocks.frames, restarts
        )
        # The collector tries the policy once when it starts.
        self.behaviour.memory = memory
        self.source.publish(self.behaviour)

    def publish(self) -> None:
        """Give weights and normaliser statistics together to the behaviour policy.

        It counts as published once those who collect have it: what they say, not what was meant.
        """
        version = self.clocks.policy_version
        self.behaviour.publish(self.flat.vector, self.normalizer, version)
        if self.ring is not None:
            self.ring.publish(self.behaviour)
        acts = self.behaviour.version
        if self.source is not None:
            self.source.publish(self.behaviour)
            acts = self.source.given
        # With a ring an older policy acts on purpose.
        if acts == (self.behaviour.version if self.ring is not None else version):
            self.clocks.published_version = version

    def count_episodes(self, rollout: TensorDict, reset_after: bool = False) -> None:
        """Add the episodes that ended in a rollout [N, T].

        Where all environments are reset after it, all have ended: those that fail on the way alone would
        be another population.
        """
        done = rollout["terminated"] | rollout["truncated"]
        if "success" in rollout:
            self.episodes.reached = rollout["success"][done].tolist()
        if reset_after:
            done[:, -1] = True
        if "episode_return" not in rollout:
            self.episodes.update(rollout["reward"], done)
            return
        # Column by column: by time.
        lengths, totals = (rollout[f"episode_{k}"].T.flatten() for k in ("length", "return"))
        ended = lengths > 0
        found = zip(totals[ended].tolist(), lengths[ended].int().tolist(), strict=True)
        self.episodes.take(list(found))

    def update_statistics(self, rollout: TensorDict) -> None:
        """Merge a rollout [N, T] into the normaliser's statistics."""
        if "discounted" in rollout:
            self.normalizer.merge(rollout["observation"], rollout["discounted"])
            return
        done = rollout["terminated"] | rollout["truncated"]
        self.normalizer.update(rollout["observation"], rollout["reward"], done)

    def begin_new_episodes(self, seed: int) -> None:
        """State an episode boundary: the next full reset starts episodes that follow from it.

        What was open is cut, not ended: its last states are still bootstrapped.
        """
        n = self.env.batch_size[0]
        self.env.reseed(env_seeds(seed, "environment", n, index=self.clocks.frames))
        self.cut()

    def cut(self) -> None:
        """Mark that the newest rollout is not continued, wherever it is.

        The sums of its open episodes end with it: at once, or when it leaves the queue.
        """
        if not self.delay.cut():
            self.window.cut()
            self.forget_open_episodes()

    def lose_delayed(self) -> None:
        """Drop what waits in the queue: a hole in time, after which all sums begin anew."""
        self.clocks.dropped_frames += self.delay.clear()
        self.cut()
        self.episodes.lose_open()

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
        """Stop collecting and close the environments."""
        if self.source is not None:
            self.source.close()
        self.env.close()


def build(config: Config, derived: Derived) -> Parts:
    """Make all parts, environments included.

    Raises:
        ConfigError: a device, an environment or a way of collecting is not to be had.
    """
    check_source(config)
    device = find_device(config.device)
    collect_device = find_device(config.collect.device)
    # Where others collect, one environment is enough to know the spaces.
    here = config.collect.mode == "sync"
    n = config.num_envs if here else 1
    seeds = env_seeds(config.seed, "environment", n)
    env = make_env(
        config.task,
        config.collect,
        n,
        seeds,
        columns(config, config.clocks.update_frequency) if here else 0,
    )
    if env.image != bool(config.model.convolutions) or (env.image and config.normalize.observation):
        env.close()
        raise ConfigError(
            f"observations are {'' if env.image else 'no '}images of bytes "
            f"{list(env.observation_shape)}: write model={'cnn' if env.image else 'mlp'}"
            + (" normalize.observation=false" if env.image else "")
        )
    if config.eval.enabled:
        try:
            evaluate.check(config)
        except ConfigError:
            env.close()
            raise
    shape = env.observation_shape
    model = ActorCritic(shape, env.action_spec, config.model, generator(config.seed, "weights"))
    flat = FlatParameters(model.to(device))
    algo, real = config.algo, env.encoding.real
    normalizer = Normalizer(tuple(shape), config.num_envs, algo.gamma, config.normalize, real)
    noise = generator(config.seed, "policy", collect_device)
    action_map = ActionMap(env.action_spec, config.model.squash, collect_device)
    behaviour = BehaviourPolicy(
        model, action_map, normalizer, config.num_envs, noise, collect_device, env.frames
    )
    update = Update(
        flat,
        config.algo,
        config.optim,
        config.interventions,
        compile_step=decide_compile(config, derived, device.type == "cuda"),
        cuda_graphs=config.cuda_graphs and device.type == "cuda",
        gradient_lag=config.clocks.gradient_lag,
        round_steps=derived.minibatches * config.clocks.update_epochs,
    )
    order = generator(config.seed, "minibatch")
    clocks, ring_seed = config.clocks, stream_seed(config.seed, "ring of policies")
    return Parts(
        env=env,
        model=model,
        flat=flat,
        normalizer=normalizer,
        behaviour=behaviour,
        learner=Learner(config, flat, update, normalizer, order, env.frames),
        window=Window(config.clocks.batch_size, config.num_envs),
        episodes=Episodes(config.num_envs),
        clocks=Clocks(),
        policy_noise=noise,
        minibatch_order=order,
        update_frequency=config.clocks.update_frequency,
        delay=Delay(clocks.lag if clocks.lag_mode == "queue" else 0),
        ring=Ring(clocks.lag + 1, ring_seed) if clocks.lag_mode == "ring" else None,
    )


def columns(config: Config, update_frequency: int) -> int:
    """Decisions per environment that wait or are learnt from at one time, at most."""
    clocks = config.clocks
    waiting = clocks.lag * update_frequency if clocks.lag_mode == "queue" else 0
    return (clocks.batch_size + waiting) // config.num_envs


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


def decide_compile(config: Config, derived: Derived, gpu: bool) -> bool:
    """Whether to compile the optimizer step.

    Raises:
        ConfigError: it was asked for, as CUDA graphs do too, and cannot be.
    """
    if config.compile is False:
        if config.cuda_graphs:
            raise ConfigError(
                "cuda_graphs=true captures the compiled step: leave compile=false out"
            )
        return False
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        if config.compile is True:
            raise ConfigError("compile=true needs a C++ compiler (g++ or clang++) on the PATH")
        return False
    wanted = config.compile is True or (gpu and config.cuda_graphs)
    return wanted or derived.update_steps >= COMPILE_PAYS_AFTER
