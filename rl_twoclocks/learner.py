"""One round of learning: passes over the window in minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_twoclocks import advantage
from rl_twoclocks.config import Config
from rl_twoclocks.distributions import Params
from rl_twoclocks.envs import NonFiniteError
from rl_twoclocks.envs.frames import FrameStore
from rl_twoclocks.memory import remember, starts, whole_sequences
from rl_twoclocks.models import ActorCritic
from rl_twoclocks.normalize import Normalizer
from rl_twoclocks.objectives import standardize
from rl_twoclocks.optim import FlatParameters
from rl_twoclocks.update import FIELDS, READINGS, Controls, Update


@dataclass
class Round:
    """A window made ready to learn from: segments [N, T, ...] and the same frames flat [N * T].

    Images are not normalised: they stay bytes, or numbers of them that `Learner.look` looks up.
    """

    segments: TensorDict
    """Normalised observations, scaled rewards, ends; what advantages are computed from."""
    flat: dict[str, Tensor]
    """The tensors of `FIELDS`, by frame."""
    log_ratio: Tensor
    """[N, T] proximal over behaviour policy before the first step: 0 where the clocks agree."""
    behaviour: tuple[Tensor, ...]
    """The behaviour policy's parameters, by frame."""
    keep: Tensor | None = None
    """Frames [k] that minibatches are drawn from; None: all."""

    @property
    def frames(self) -> int:
        """How many frames the round learns from."""
        return self.log_ratio.numel() if self.keep is None else self.keep.numel()


BY_PASS = ("kl", "clip_fraction", "ess", "max_ratio", "loss_critic")
"""Readings that are kept by pass."""
IMAGES = 256
"""Images that a network looks at in one call: its activations are many times their size."""


class Learner:
    """Turns a window into a better policy; owns passes, minibatches and advantage refreshes."""

    def __init__(
        self,
        config: Config,
        flat: FlatParameters,
        update: Update,
        normalizer: Normalizer,
        generator: torch.Generator,
        frames: FrameStore | None = None,
    ) -> None:
        """Take the parts that learning needs; `generator` shuffles minibatches.

        `frames` holds the images whose numbers are the observations, if they are numbers.
        """
        self.config = config
        assert isinstance(flat.module, ActorCritic)
        self.model = flat.module
        self.sequence = self.model.sequence
        self.update = update
        self.normalizer = normalizer
        self.generator = generator
        self.device = flat.vector.device
        self.frames, self._here = frames, frames.frames if frames else None
        self.by_pass: dict[str, list[float]] = {}
        """Means of the `BY_PASS` readings in each pass of the last round."""

    @torch.no_grad()
    def prepare(self, window: TensorDict) -> Round:
        """Normalise a window [N, T] and read the proximal policy, before the round's first step."""
        window = window.to(self.device)
        if self.frames is not None:
            # Each frame goes to the device once, however many stacks it is part of.
            self._here = self.frames.frames.to(self.device)
        norm, dist = self.normalizer, self.model.distribution
        done = window["terminated"] | window["truncated"] | window["cut"]
        observation = self._normalize(window["observation"])
        following = self._normalize(window["next_observation"])
        if self.model.memory is not None:
            observation = remember(observation, window["memory"], starts(done))
            following = remember(following, window["next_memory"], torch.ones_like(done))
        segments = TensorDict(
            {
                "observation": observation,
                "next_observation": following,
                "reward": norm.scale_reward(window["reward"]),
                "terminated": window["terminated"],
                "done": done,
            },
            batch_size=window.batch_size,
        )
        value = None
        if self.model.sees:
            params, value = self._see(segments["observation"])
        else:
            params = self.model.policy(segments["observation"])
        proximal = dist.log_prob(params, window["action"])
        behaviour = window["behaviour_log_prob"]
        flat = {
            "observation": segments["observation"].flatten(0, 1),
            "action": window["action"].flatten(0, 1),
            "behaviour_log_prob": behaviour.flatten(),
            "proximal_log_prob": proximal.flatten(),
        }
        behaviour_params = tuple(window[k].flatten(0, 1) for k in dist.keys)
        if self.config.algo.objective == "centred":
            proximal_params = tuple(part.flatten(0, 1) for part in params)
            power = self.config.algo.importance_power
            blend, mass = dist.blend(behaviour_params, proximal_params, power)
            before = mass * dist.expected_log_prob(blend, proximal_params)
            extra = (*blend, mass, before)
            flat |= dict(zip(self.update.fields[len(FIELDS) :], extra, strict=True))
        ready = Round(segments, flat, proximal - behaviour, behaviour_params)
        self._refresh(ready, value)
        return ready

    def look(self, observation: Tensor) -> Tensor:
        """What the network takes for observations of a round [n, ...]."""
        if self.frames is None:
            return observation
        return self.frames.stacks(observation, self._here)

    def _normalize(self, observation: Tensor) -> Tensor:
        """What a round keeps of raw observations [N, T, ...]."""
        if self.model.sees:
            return observation
        return self.normalizer.normalize(observation).flatten(2)

    def _see(self, observation: Tensor) -> tuple[Params, Tensor]:
        """Policy parameters and values [N, T, ...] of images, some at a time."""
        shape = observation.shape[:2]
        parts = [self.model(self.look(part)) for part in observation.flatten(0, 1).split(IMAGES)]
        params = tuple(
            torch.cat(part).unflatten(0, shape) for part in zip(*(p for p, _ in parts), strict=True)
        )
        return params, torch.cat([value for _, value in parts]).unflatten(0, shape)

    def _value(self, observation: Tensor) -> Tensor:
        """Values [...] of a round's observations [..., obs]."""
        if not self.model.sees:
            return self.model.value(observation)
        dims = observation.ndim - (3 if self.frames is None else 1)
        flat = observation.reshape(-1, *observation.shape[dims:])
        parts = [self.model.value(self.look(part)) for part in flat.split(IMAGES)]
        return torch.cat(parts).view(observation.shape[:dims])

    def learn(self, ready: Round, controls: Controls, passes: int) -> dict[str, float]:
        """Run all passes; return the means of the readings over the steps that were applied.

        Raises:
            NonFiniteError: a loss or gradient is not finite and `on_nonfinite` is `stop`; the
                parameters are those before that step.
        """
        sample = self.config.clocks.sample
        if sample is not None and sample < ready.frames:
            drawn = torch.randperm(ready.frames, generator=self.generator)[:sample]
            ready.keep = drawn if ready.keep is None else ready.keep[drawn.to(ready.keep.device)]
        if ready.keep is not None and self.sequence > 1:
            ready.keep = whole_sequences(ready.keep, ready.log_ratio.numel(), self.sequence)
        self.update.start_round(controls)
        readings: list[Tensor] = []
        value_drift = torch.zeros((), device=self.device)
        for number in range(passes):
            if number > 0 and self.config.algo.advantage_refresh == "pass":
                value_drift = self._refresh(ready)
            for minibatch in self._minibatches(ready):
                readings.append(self.update(*minibatch))
                # Where a look at the flag costs nothing, no time is spent on steps after a stop.
                if self.device.type == "cpu" and not self.update.alive:
                    break
            if not self.update.alive:
                break
        rates = {
            "train/learning_rate": controls.learning_rate,
            "train/clip_epsilon": controls.clip_epsilon,
        }
        per_pass = -(-ready.frames // self.config.clocks.minibatch_size)
        return rates | self._summary(torch.stack(readings), per_pass, value_drift)

    def gradients(self, ready: Round, count: int) -> Tensor:
        """Flat gradients [count, P] of disjoint minibatches at the present parameters.

        As many as the window has, if it has fewer. The order is fixed: no stream is touched.
        """
        size = self.config.clocks.minibatch_size // self.sequence
        units = ready.log_ratio.numel() // self.sequence
        count = min(count, units // size)
        order = torch.randperm(units, generator=torch.Generator().manual_seed(0)).to(self.device)
        taken = order[: count * size]
        batches = [part[taken].unflatten(0, (count, size)) for part in self._units(ready)]
        flat = self.update.flat

        def loss(vector: Tensor, *minibatch: Tensor) -> Tensor:
            return self.update.loss(flat.named(vector), *minibatch)[0]

        grad = torch.func.grad(loss)
        if self.model.sees:
            # All at once, their activations would not fit.
            minibatches = zip(*batches, strict=True)
            return torch.stack([grad(flat.vector, self.look(o), *rest) for o, *rest in minibatches])
        return torch.func.vmap(grad, in_dims=(None, *[0] * len(batches)))(flat.vector, *batches)

    def backward(self, ready: Round, model: ActorCritic) -> None:
        """Pass backward through a copy of the network on one minibatch, for those who watch it."""
        size = self.config.clocks.minibatch_size // self.sequence
        observation, *rest = (part[:size] for part in self._units(ready))
        minibatch = (self.look(observation), *rest)
        loss, _ = self.update.loss(dict(model.named_parameters()), *minibatch, model=model)
        loss.backward()
        model.zero_grad()

    def _minibatches(self, ready: Round) -> Iterator[tuple[Tensor, ...]]:
        units = ready.frames // self.sequence
        size = self.config.clocks.minibatch_size // self.sequence
        order = torch.randperm(units, generator=self.generator).to(self.device)
        if ready.keep is not None:
            kept = ready.keep.to(self.device)[:: self.sequence] // self.sequence
            order = kept[order]
        # One shape for all steps (one compiled graph): a last minibatch that is not full takes
        # frames from the front of the same random order.
        count = -(-units // size)
        order = order.repeat(-(-count * size // units))[: count * size]
        shuffled = [part[order] for part in self._units(ready)]
        for start in range(0, count * size, size):
            observation, *rest = (tensor[start : start + size] for tensor in shuffled)
            yield self.look(observation), *rest

    def _units(self, ready: Round) -> list[Tensor]:
        """The step's fields by what stays together: frames [n, ...], or sequences [n, L, ...]."""
        parts = [ready.flat[key] for key in self.update.fields]
        length = self.sequence
        return parts if length == 1 else [part.unflatten(0, (-1, length)) for part in parts]

    def _refresh(self, ready: Round, value: Tensor | None = None) -> Tensor:
        """Compute advantages with the newest critic; return how far values moved, in deviations.

        `value` [N, T] is the critic's, if it is known already.
        """
        algo = self.config.algo
        # Towards the policy of the round's start: the surrogate takes care of what passes change.
        log_ratio = ready.log_ratio if algo.advantage == "vtrace" else None
        result = advantage.estimate(
            ready.segments,
            self._value,
            algo.gamma,
            algo.gae_lambda,
            log_ratio,
            algo.rho_clip,
            algo.c_clip,
            value,
        )
        estimated, target, value = (tensor.flatten() for tensor in result)
        if algo.normalize_advantage == "window":
            estimated = standardize(estimated)
        ready.flat |= {"advantage": estimated, "target": target}
        old = ready.flat.setdefault("old_value", value)
        return (value - old).square().mean().sqrt() / (old.std(correction=0) + 1e-8)

    def _summary(self, readings: Tensor, per_pass: int, value_drift: Tensor) -> dict[str, float]:
        """What the round's steps [steps, readings] came to, computed on the host."""
        drift, rows = float(value_drift), readings.cpu()
        applied, finite = (rows[:, READINGS.index(name)] > 0 for name in ("applied", "finite"))
        stops = (~applied & finite).nonzero()
        if stops.numel():
            # A GPU has computed on, for nothing: what came after the stop is no reading of the round.
            rows = rows[: int(stops[0]) + 1]
            applied, finite = applied[: len(rows)], finite[: len(rows)]
        bad = (~finite).nonzero()
        if bad.numel() and not self.update.skip_nonfinite:
            step = int(bad[0])
            raise NonFiniteError(
                f"loss or gradient is not finite in pass {step // per_pass + 1}, minibatch "
                f"{step % per_pass + 1}; the step was not taken"
            )
        steps = float(applied.sum())
        # Where no step was taken, the readings are of those that would have been.
        counted = applied if steps else finite
        mean = rows[counted].mean(0)
        passes = torch.stack([part.mean(0) for part in rows.split(per_pass)])
        self.by_pass = {name: passes[:, READINGS.index(name)].tolist() for name in BY_PASS}
        named = dict(zip((*READINGS, *self.update.flat.names), mean.tolist(), strict=True))
        return {
            **{f"train/{key}": named[key] for key in READINGS[:8]},
            "train/kl_last": float(rows[-1, READINGS.index("kl")]),
            "train/steps": steps,
            "train/steps_skipped": int(bad.numel()),
            "train/step_scale": named["step_scale"],
            "train/stopped_by_kl": float(len(rows) - bad.numel() > steps),
            "diag/value_drift": drift,
            "grad_norm/total": named["grad_norm"],
            **{f"grad_norm/{name}": named[name] for name in self.update.flat.names},
        }
