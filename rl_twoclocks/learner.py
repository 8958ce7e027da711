"""One round of learning: passes over the window in minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_twoclocks import advantage
from rl_twoclocks.config import Config
from rl_twoclocks.envs import NonFiniteError
from rl_twoclocks.models import ActorCritic
from rl_twoclocks.normalize import Normalizer
from rl_twoclocks.objectives import standardize
from rl_twoclocks.optim import FlatParameters
from rl_twoclocks.update import FIELDS, READINGS, Update


@dataclass
class Round:
    """A window made ready to learn from: segments [N, T, ...] and the same frames flat [N * T]."""

    segments: TensorDict
    """Normalised observations, scaled rewards, ends; what advantages are computed from."""
    flat: dict[str, Tensor]
    """The tensors of `FIELDS`, by frame."""
    log_ratio: Tensor
    """[N, T] proximal over behaviour policy before the first step: 0 where the clocks agree."""
    behaviour: tuple[Tensor, ...]
    """The behaviour policy's parameters, by frame."""


class Learner:
    """Turns a window into a better policy; owns passes, minibatches and advantage refreshes."""

    def __init__(
        self,
        config: Config,
        flat: FlatParameters,
        update: Update,
        normalizer: Normalizer,
        generator: torch.Generator,
    ) -> None:
        """Take the parts that learning needs; `generator` shuffles minibatches."""
        self.config = config
        assert isinstance(flat.module, ActorCritic)
        self.model = flat.module
        self.update = update
        self.normalizer = normalizer
        self.generator = generator
        self.device = flat.vector.device

    @torch.no_grad()
    def prepare(self, window: TensorDict) -> Round:
        """Normalise a window [N, T] and read the proximal policy, before the round's first step."""
        window = window.to(self.device)
        norm, dist = self.normalizer, self.model.distribution
        segments = TensorDict(
            {
                "observation": norm.normalize(window["observation"]).flatten(2),
                "next_observation": norm.normalize(window["next_observation"]).flatten(2),
                "reward": norm.scale_reward(window["reward"]),
                "terminated": window["terminated"],
                "done": window["terminated"] | window["truncated"] | window["cut"],
            },
            batch_size=window.batch_size,
        )
        params = self.model.policy(segments["observation"])
        proximal = dist.log_prob(params, window["action"])
        behaviour = window["behaviour_log_prob"]
        flat = {
            "observation": segments["observation"].flatten(0, 1),
            "action": window["action"].flatten(0, 1),
            "behaviour_log_prob": behaviour.flatten(),
            "proximal_log_prob": proximal.flatten(),
        }
        ready = Round(
            segments, flat, proximal - behaviour, tuple(window[k].flatten(0, 1) for k in dist.keys)
        )
        self._refresh(ready)
        return ready

    def learn(self, ready: Round, learning_rate: float, clip_epsilon: float) -> dict[str, float]:
        """Run all passes; return the means of the readings over the steps that were applied.

        Raises:
            NonFiniteError: a loss or gradient is not finite and `on_nonfinite` is `stop`; the
                parameters are those before that step.
        """
        self.update.start_round(learning_rate, clip_epsilon)
        readings: list[Tensor] = []
        value_drift = torch.zeros((), device=self.device)
        for number in range(self.config.clocks.update_epochs):
            if number > 0 and self.config.algo.advantage_refresh == "pass":
                value_drift = self._refresh(ready)
            for minibatch in self._minibatches(ready.flat):
                readings.append(self.update(*minibatch))
                # Where a look at the flag costs nothing, no time is spent on steps after a stop.
                if self.device.type == "cpu" and not self.update.alive:
                    break
            if not self.update.alive:
                break
        rates = {"train/learning_rate": learning_rate, "train/clip_epsilon": clip_epsilon}
        per_pass = -(-ready.log_ratio.numel() // self.config.clocks.minibatch_size)
        return rates | self._summary(torch.stack(readings), per_pass, value_drift)

    def backward(self, ready: Round, model: ActorCritic) -> None:
        """Pass backward through a copy of the network on one minibatch, for those who watch it."""
        size = self.config.clocks.minibatch_size
        minibatch = (ready.flat[key][:size] for key in FIELDS)
        loss, _ = self.update.loss(dict(model.named_parameters()), *minibatch, model=model)
        loss.backward()
        model.zero_grad()

    def _minibatches(self, flat: dict[str, Tensor]) -> Iterator[tuple[Tensor, ...]]:
        frames = flat["target"].shape[0]
        size = self.config.clocks.minibatch_size
        order = torch.randperm(frames, generator=self.generator).to(self.device)
        # One shape for all steps (one compiled graph): a last minibatch that is not full takes
        # frames from the front of the same random order.
        count = -(-frames // size)
        order = order.repeat(-(-count * size // frames))[: count * size]
        shuffled = [flat[key][order] for key in FIELDS]
        for start in range(0, count * size, size):
            yield tuple(tensor[start : start + size] for tensor in shuffled)

    def _refresh(self, ready: Round) -> Tensor:
        """Compute advantages with the newest critic; return how far values moved, in deviations."""
        algo = self.config.algo
        result = advantage.estimate(ready.segments, self.model.value, algo.gamma, algo.gae_lambda)
        estimated, target, value = (tensor.flatten() for tensor in result)
        if algo.normalize_advantage == "window":
            estimated = standardize(estimated)
        ready.flat |= {"advantage": estimated, "target": target}
        old = ready.flat.setdefault("old_value", value)
        return (value - old).square().mean().sqrt() / (old.std(correction=0) + 1e-8)

    def _summary(self, readings: Tensor, per_pass: int, value_drift: Tensor) -> dict[str, float]:
        """Bring the round's readings to the host in one transfer."""
        weight = readings[:, READINGS.index("applied")].unsqueeze(-1)
        applied = weight.sum()
        mean = torch.where(weight > 0, readings, torch.zeros_like(readings)).sum(0) / applied
        last = torch.stack([readings[-1, READINGS.index("kl")], applied, value_drift])
        bad = (readings[:, READINGS.index("finite")] == 0).nonzero()
        values = torch.cat([mean, last]).tolist()
        size = len(READINGS)
        named = dict(zip(READINGS, values[:size], strict=True))
        skipped = int(bad.numel())
        if skipped and not self.update.skip_nonfinite:
            step = int(bad[0])
            raise NonFiniteError(
                f"loss or gradient is not finite in pass {step // per_pass + 1}, minibatch "
                f"{step % per_pass + 1}; the step was not taken"
            )
        layers = dict(zip(self.update.flat.names, values[size:-3], strict=True))
        return {
            **{f"train/{key}": named[key] for key in READINGS[:8]},
            "train/kl_last": values[-3],
            "train/steps": values[-2],
            "train/steps_skipped": skipped,
            "train/stopped_by_kl": float(len(readings) - skipped > values[-2]),
            "diag/value_drift": values[-1],
            "grad_norm/total": named["grad_norm"],
            **{f"grad_norm/{name}": value for name, value in layers.items()},
        }
