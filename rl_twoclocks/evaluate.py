"""Evaluation on environments and a random stream of its own, with a frozen copy of the normaliser."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_twoclocks.collect import BehaviourPolicy
from rl_twoclocks.config import CollectConfig, Config, TaskConfig
from rl_twoclocks.envs import BatchedEnv, make_env
from rl_twoclocks.normalize import Normalizer
from rl_twoclocks.seeding import env_seeds, stream_seed


@dataclass(frozen=True)
class Evaluation:
    """Returns (unscaled) and lengths (decisions), one per episode."""

    returns: list[float]
    lengths: list[int]
    successes: list[bool] | None = None
    """Whether each reached its goal; None where the task cannot tell."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    def readings(self, prefix: str = "eval/") -> dict[str, float]:
        """`eval/*` metrics."""
        values = {
            "return_mean": self.mean,
            "return_std": float(np.std(self.returns)),
            "return_min": float(np.min(self.returns)),
            "return_max": float(np.max(self.returns)),
            "length_mean": float(np.mean(self.lengths)),
            "episodes": len(self.returns),
        }
        if self.successes is not None:
            values["success_rate"] = float(np.mean(self.successes))
        return {prefix + name: value for name, value in values.items()}


LONGEST = 200_000
"""Decisions after which an evaluated episode counts as it stands: a task that never ends ends no run."""
ENDLESS = f"an episode has not ended within {LONGEST:,} decisions: set task.max_episode_steps"


def evaluate(
    act: Callable[[Tensor], Tensor],
    env: BatchedEnv,
    episodes: int,
    seeds: list[int],
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Run whole episodes with a policy and return them, or None if told to stop.

    Every environment runs the same number of episodes, so that short ones are not over-represented;
    `episodes` is rounded up to a multiple of the environments. An episode that does not end counts as it
    stands after `LONGEST` decisions; one whose simulator died does not count, and another is run.

    Args:
        act: from raw observations [N, ...] to actions [N, ...].
        env: used from its reset on; N environments.
        episodes: how many, at least.
        seeds: one per environment, for the first reset.
        should_stop: asked at every step.
    """
    n = env.batch_size[0]
    each = -(-episodes // n)
    env.reseed(seeds)
    state = env.reset()
    total, length = np.zeros(n), np.zeros(n, dtype=np.int64)
    results: list[list[tuple[float, int, bool]]] = [[] for _ in range(n)]
    while any(len(r) < each for r in results):
        if should_stop():
            return None
        state.set("action", act(state.get("observation")))
        with torch.no_grad():
            stepped, state = env.step_and_maybe_reset(state)
        following = stepped.get("next")
        total += following.get("reward").view(-1).double().numpy()
        length += 1
        success, died = env.success, env.died
        endless = length >= LONGEST
        if endless.any():
            warnings.warn(ENDLESS, stacklevel=2)
        for i in np.flatnonzero(following.get("done").view(-1).numpy() | endless):
            if died is not None and died[i]:
                warnings.warn(
                    "a simulator died in evaluation: its episode is run anew", stacklevel=2
                )
            elif len(results[i]) < each:
                reached = bool(success[i]) if success is not None else False
                results[i].append((float(total[i]), int(length[i]), reached))
            total[i], length[i] = 0.0, 0
    returns, lengths, successes = zip(*(e for r in results for e in r), strict=True)
    return Evaluation(list(returns), list(lengths), list(successes) if env.tells_success else None)


def under_changed_conditions(config: Config) -> Config:
    """The same run with the task's keyword arguments that `eval.changed` names replaced."""
    task = config.task
    changes = {key: getattr(task, key) | config.eval.changed for key in ("kwargs", "eval_kwargs")}
    return config.model_copy(update={"task": task.model_copy(update=changes)})


def for_evaluation(task: TaskConfig) -> TaskConfig:
    """The task as it is evaluated and shown."""
    return task.model_copy(update={"kwargs": task.kwargs | task.eval_kwargs})


def place_of(config: Config) -> tuple[TaskConfig, CollectConfig]:
    """The task as it is evaluated, and how: in this process, on gymnasium's or the world's own."""
    backend = "native" if config.collect.backend == "native" else "gymnasium"
    changes = {"backend": backend, "vectorization": "sync"}
    return for_evaluation(config.task), config.collect.model_copy(update=changes)


def check(config: Config) -> None:
    """Make what evaluations need once, where training has not made the same already.

    Raises:
        ConfigError: it cannot be had; better now than at the first evaluation, a tenth into the run.
    """
    for variant in [config, *([under_changed_conditions(config)] if config.eval.changed else [])]:
        task, collect = place_of(variant)
        if (task, collect.backend) != (config.task, config.collect.backend):
            make_env(task, collect, 1, env_seeds(config.seed, "check", 1)).close()


class Evaluator:
    """Evaluates the learner's newest state: environments, policy copy and seeds of its own.

    Every evaluation starts from the same seeds, so two evaluations of one state agree exactly.
    """

    def __init__(self, config: Config) -> None:
        """Build environments and a policy."""
        self.episodes = config.eval.episodes
        n = min(config.eval.num_envs, self.episodes)
        seed = config.seed if config.eval.seed is None else config.eval.seed
        self.seeds = env_seeds(seed, "evaluation", n)
        self.env = make_env(*place_of(config), n, self.seeds)
        self.noise_seed = stream_seed(seed, "evaluation noise")
        noise = None if config.eval.deterministic else torch.Generator()
        self.policy = BehaviourPolicy.fresh(config, self.env, noise)

    def __call__(
        self,
        parameters: Tensor,
        normalizer: Normalizer,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Evaluation | None:
        """Evaluate flat parameters with a normaliser's present statistics; None if told to stop."""
        self.policy.publish(parameters, normalizer, version=0)
        if self.policy.generator is not None:
            self.policy.generator.manual_seed(self.noise_seed)
        return evaluate(
            lambda observation: self.policy.act(observation, self.env.begun)[0],
            self.env,
            self.episodes,
            self.seeds,
            should_stop,
        )

    def close(self) -> None:
        """Close the environments."""
        self.env.close()
