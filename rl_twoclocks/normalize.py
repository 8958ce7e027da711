"""Running statistics of observations and returns; they move once a round."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_twoclocks.config import NormalizeConfig


class RunningMoments:
    """Mean and variance of a stream of batches, merged exactly (Chan et al. 1979), in float64."""

    def __init__(self, shape: tuple[int, ...], device: torch.device | str = "cpu") -> None:
        """Start empty: count 0, mean 0, variance 1."""
        self.count = 0
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.m2 = torch.zeros(shape, dtype=torch.float64, device=device)

    @property
    def variance(self) -> Tensor:
        """Population variance; 1 while there is no data."""
        return self.m2 / self.count if self.count else torch.ones_like(self.m2)

    def update(self, batch: Tensor) -> None:
        """Merge a batch [n, *shape]."""
        batch = batch.to(self.mean)
        n = batch.shape[0]
        if n == 0:
            return
        mean = batch.mean(0)
        m2 = (batch - mean).square().sum(0)
        delta = mean - self.mean
        total = self.count + n
        self.mean += delta * (n / total)
        self.m2 += m2 + delta.square() * (self.count * n / total)
        self.count = total

    def state_dict(self) -> dict:
        """Count, mean and sum of squared deviations."""
        return {"count": self.count, "mean": self.mean.clone(), "m2": self.m2.clone()}

    def load_state_dict(self, state: dict) -> None:
        """Restore; shapes must agree."""
        if state["mean"].shape != self.mean.shape:
            raise ValueError(
                f"normaliser of shape {tuple(state['mean'].shape)} does not fit observations of "
                f"shape {tuple(self.mean.shape)}"
            )
        self.count = int(state["count"])
        self.mean.copy_(state["mean"])
        self.m2.copy_(state["m2"])


class Normalizer:
    """Observation and reward scaling by statistics that change in `update` alone."""

    def __init__(
        self,
        shape: tuple[int, ...],
        num_envs: int,
        gamma: float,
        config: NormalizeConfig,
        real: Tensor | None = None,
    ) -> None:
        """Make empty statistics for observations of `shape` and `num_envs` reward streams.

        `real`, bool of `shape`, names the entries to normalise; the others (choices, bits, masks)
        stay as they are. None: all.
        """
        self.config = config
        self.real = real
        self.gamma = gamma
        self.observation = RunningMoments(shape)
        self.returns = RunningMoments(())
        self.discounted = np.zeros(num_envs)
        self.refresh()

    def refresh(self) -> None:
        """Derive what `normalize` uses from the statistics."""
        self.shift = self.observation.mean.float()
        self.scale = (self.observation.variance + 1e-8).rsqrt().float()
        if self.real is not None:
            self.shift = torch.where(self.real, self.shift, 0.0)
            self.scale = torch.where(self.real, self.scale, 1.0)
        deviation = float(self.returns.variance.sqrt())
        # Rewards that were all zero so far say nothing of their size.
        self._reward_factor = 1.0 / (deviation + 1e-8) if deviation > 0 else 1.0

    def update(self, observation: Tensor, reward: Tensor, done: Tensor) -> None:
        """Merge a rollout: observations [N, T, ...], raw rewards and ends [N, T].

        The discounted return runs on across rollouts and starts anew after an end.
        """
        discounted = None
        if self.config.reward == "return":
            r, d = reward.cpu().double().numpy(), done.cpu().numpy()
            g = np.empty_like(r)
            for t in range(r.shape[1]):
                self.discounted = self.discounted * self.gamma + r[:, t]
                g[:, t] = self.discounted
                self.discounted[d[:, t]] = 0.0
            discounted = torch.from_numpy(g)
        self.merge(observation, discounted)

    def merge(self, observation: Tensor, discounted: Tensor | None) -> None:
        """Merge a rollout's observations [N, T, ...] and running discounted returns [N, T]."""
        if self.config.observation:
            self.observation.update(observation.flatten(0, 1).cpu())
        if self.config.reward == "return" and discounted is not None:
            self.returns.update(discounted.flatten())
        self.refresh()

    def normalize(self, observation: Tensor) -> Tensor:
        """Bring observations [..., obs] to mean 0 and deviation 1, cut at `observation_clip`."""
        if not self.config.observation:
            return observation
        shift = self.shift.to(observation.device)
        scale = self.scale.to(observation.device)
        clip = self.config.observation_clip
        return ((observation - shift) * scale).clamp_(-clip, clip)

    def scale_reward(self, reward: Tensor) -> Tensor:
        """Scale raw rewards for learning; all frames of a window by one factor."""
        if self.config.reward == "return":
            clip = self.config.reward_clip
            return (reward * self._reward_factor).clamp(-clip, clip)
        if self.config.reward == "sign":
            return reward.sign()
        return reward * self.config.reward_scale if self.config.reward == "constant" else reward

    def state_dict(self) -> dict:
        """All statistics with their counts, and the open discounted returns."""
        return {
            "observation": self.observation.state_dict(),
            "returns": self.returns.state_dict(),
            "discounted": torch.from_numpy(self.discounted.copy()),
            "real": self.real,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore statistics; open returns only where the number of environments agrees."""
        self.observation.load_state_dict(state["observation"])
        self.returns.load_state_dict(state["returns"])
        if state["discounted"].shape[0] == self.discounted.shape[0]:
            self.discounted = state["discounted"].numpy().copy()
        self.refresh()
