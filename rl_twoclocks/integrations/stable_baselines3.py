"""The signs of desync in Stable-Baselines3's PPO: `model.learn(..., callback=TwoClocksCallback())`.

The callback reads the rollout buffer and the policy; it changes nothing. Readings go to SB3's own
logger, alarms to its output and to `callback.alarms`.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import CategoricalDistribution
from torch import Tensor

from rl_twoclocks.diagnostics import Alarm, History, Panel, limits, policy_shift
from rl_twoclocks.diagnostics.places import Places
from rl_twoclocks.diagnostics.plasticity import policy_variance
from rl_twoclocks.diagnostics.score import score_readings
from rl_twoclocks.distributions import Categorical, Distribution, Gaussian, Params


class TwoClocksCallback(BaseCallback):
    """Measures each rollout at its end, and what the update before it did to the policy.

    Args:
        thresholds: `calibrated` or `seed`.
        verbose: 1 prints alarms.

    With another model it starts anew.

    Raises:
        ConfigError: there is no such set of thresholds.
        ValueError: when learning starts, for algorithms that learn from no rollouts (DQN, SAC, ...);
            at the first rollout, for action spaces other than Box and Discrete, and for observations
            that are no single array.
    """

    def __init__(self, thresholds: str = "calibrated", verbose: int = 1) -> None:
        """Start with an empty history."""
        super().__init__(verbose)
        self._limits = limits(thresholds, {})
        self._watched: Any = None
        self._forget()

    def _forget(self) -> None:
        self.history, self.panel = History(), Panel(self._limits)
        self.alarms: list[tuple[int, Alarm]] = []
        self._places = Places()
        self._scale: Tensor | None = None
        self._before: dict[str, Any] | None = None
        self._ended: list[dict[str, float]] = []
        self._episodes = 0

    def _init_callback(self) -> None:
        if not hasattr(self.model, "rollout_buffer"):
            name = type(self.model).__name__
            raise ValueError(
                f"{name} learns from no rollouts: TwoClocksCallback is for PPO and A2C"
            )
        if self._watched is not None and self._watched is not self.model:
            self._forget()
        self._watched = self.model

    def _on_step(self) -> bool:
        """Note the episodes that end: `Monitor` puts their returns into `info`."""
        self._ended += [info["episode"] for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_start(self) -> None:
        """Compare the updated policy with the one that collected the last rollout."""
        if self._before is None:
            return
        old, self._before = self._before, None
        distribution, current = self._params(self.model.policy, old["observation"])
        log_prob = distribution.log_prob(current, old["action"])
        log_ratio = log_prob - distribution.log_prob(old["params"], old["action"])
        readings = policy_shift(distribution, old["params"], current, log_ratio)
        advantage = old["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        readings |= score_readings(
            distribution, old["params"], current, old["action"], advantage, log_ratio
        )
        dims = current[0].shape[-1] if distribution is Gaussian else 1
        readings["diag/action_dims"] = float(dims)
        readings["diag/policy_variance"] = policy_variance(distribution, current)
        self._take(readings)
        self.history.next_round()

    def _on_rollout_end(self) -> None:
        """Measure the rollout that the next update learns from."""
        buffer: Any = self.model.rollout_buffer  # type: ignore[attr-defined]
        if isinstance(buffer.observations, dict):
            raise ValueError(
                "observations are a Dict: one array is supported, as of FlattenObservation"
            )
        raw = torch.as_tensor(buffer.observations).flatten(0, 1)
        flat = raw.float().flatten(1)
        if self._scale is None:
            deviation = flat.std(0)
            # What does not vary at first has no size to be brought to.
            self._scale = torch.where(deviation > 1e-6, 1 / deviation.clamp(min=1e-6), 1.0)
        readings = self._places.readings(
            raw, flat * self._scale, self._scale, images=raw.dtype == torch.uint8
        )
        readings |= {"clock/ratio_measured": 1.0, "clock/staleness_min": 0.0}
        if self._ended:
            self._episodes += len(self._ended)
            readings["rollout/return_round"] = float(np.mean([info["r"] for info in self._ended]))
            longest = max(info["l"] for info in self._ended)
            readings["diag/episode_rounds"] = longest / buffer.buffer_size
            self._ended = []
        readings["rollout/episodes"] = float(self._episodes)
        self._take(readings)
        observation = buffer.observations.reshape(-1, *buffer.observations.shape[2:])
        actions = torch.as_tensor(buffer.actions).flatten(0, 1)
        distribution, params = self._params(self.model.policy, observation)
        self._before = {
            "observation": copy.deepcopy(observation),
            "action": actions.squeeze(-1) if distribution is Categorical else actions,
            "advantage": torch.as_tensor(buffer.advantages).flatten().clone(),
            "params": tuple(p.clone() for p in params),
        }

    def _take(self, readings: dict[str, float]) -> None:
        self.history.add(readings)
        for name, value in readings.items():
            self.logger.record(name, value)
        for alarm in self.panel.judge(self.history):
            self.alarms.append((self.num_timesteps, alarm))
            if self.verbose:
                print(f"{self.num_timesteps:,} {alarm}")

    @torch.no_grad()
    def _params(self, policy: Any, observation: np.ndarray) -> tuple[Distribution, Params]:
        """Distribution parameters of a policy for observations [n, ...]."""
        if isinstance(policy.observation_space, gym.spaces.Discrete):
            # The buffer keeps numbers as [n, 1], which the policy does not take.
            observation = observation.reshape(-1)
        tensor, _ = policy.obs_to_tensor(observation)
        given = policy.get_distribution(tensor)
        if isinstance(given, CategoricalDistribution):
            return Categorical, (given.distribution.logits.cpu(),)
        inner = given.distribution
        if not isinstance(inner, torch.distributions.Normal):
            raise ValueError(
                f"{type(given).__name__} is not supported: Box and Discrete actions are"
            )
        return Gaussian, (inner.loc.cpu(), inner.scale.cpu())
