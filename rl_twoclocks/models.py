"""Actor and critic networks, and the map from raw actions to the environment's bounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchrl.data import Bounded, TensorSpec
from torchrl.data import MultiCategorical as MultiChoice

from rl_twoclocks.config import ConfigError, ModelConfig
from rl_twoclocks.distributions import (
    FORBIDDEN,
    Categorical,
    Distribution,
    Gaussian,
    MultiCategorical,
    Params,
)
from rl_twoclocks.memory import Memory

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
}


class ActorCritic(nn.Module):
    """Separate actor and critic; observations are already normalised.

    With `config.convolutions` both stand on a shared trunk, which takes images of bytes as they are.
    With a memory, both also see the output of one cell, and an observation is what
    `memory.remember` makes of it: [n, ...] are single decisions, [n, T, ...] are sequences.

    Args:
        observation_shape: shape of one observation; flattened for an MLP. If the actions are masked,
            its last entries are the mask.
        action_spec: TorchRL spec of a batch of actions; boxes get a Gaussian, choices categoricals.
        config: sizes and initialisation.
        generator: stream for the initial weights.
    """

    def __init__(
        self,
        observation_shape: torch.Size,
        action_spec: TensorSpec,
        config: ModelConfig,
        generator: torch.Generator,
    ) -> None:
        """Build and initialise both networks orthogonally."""
        super().__init__()
        inputs = self.inputs = math.prod(observation_shape)
        self.trunk = nn.Sequential()
        self.memory: Memory | None = None
        self.sequence = 1
        if config.convolutions:
            self.trunk = _trunk(observation_shape, config, generator)
            inputs, config = config.hidden[-1], config.model_copy(update={"hidden": []})
        elif config.memory != "none":
            self.memory = Memory(inputs, config, generator)
            self.sequence = config.sequence
            inputs += config.memory_units
        self.distribution: Distribution
        if isinstance(action_spec, Bounded):
            outputs = action_spec.shape[-1]
            self.distribution = Gaussian
            self.log_std = nn.Parameter(torch.full((outputs,), config.log_std_init))
        elif isinstance(action_spec, MultiChoice):
            choices = action_spec.nvec[0]
            most = int(choices.max())
            outputs = len(choices) * most
            self.distribution = MultiCategorical
            valid = torch.arange(most) < choices.unsqueeze(-1)
            self.register_buffer("valid", valid, persistent=False)
        else:
            outputs = action_spec.space.n
            self.distribution = Categorical
        self.mask_size = outputs if getattr(action_spec, "mask", None) is not None else 0
        self.actor = _mlp(inputs, config, outputs, config.actor_gain, generator)
        self.critic = _mlp(inputs, config, 1, 1.0, generator)

    valid: Tensor
    """Bool [K, n], the values that each of several choices has."""

    def policy(self, observation: Tensor) -> Params:
        """Distribution parameters for observations [..., obs]."""
        return self.head(self.actor(self.features(observation)), self.seen(observation))

    def head(self, output: Tensor, observation: Tensor) -> Params:
        """Turn the actor's output [..., A] for observations [..., obs] into distribution parameters."""
        if self.distribution is Gaussian:
            return output, self.log_std.exp().expand_as(output)
        if self.mask_size:
            allowed = observation[..., -self.mask_size :] > 0
            output = torch.where(allowed, output, FORBIDDEN)
        if self.distribution is MultiCategorical:
            output = output.unflatten(-1, self.valid.shape)
            output = torch.where(self.valid, output, FORBIDDEN)
        return (output,)

    def value(self, observation: Tensor) -> Tensor:
        """State values [...] in units of scaled reward."""
        return self.critic(self.features(observation)).squeeze(-1)

    def forward(self, observation: Tensor) -> tuple[Params, Tensor]:
        """Policy parameters and values in one call, for the fused step."""
        features = self.features(observation)
        params = self.head(self.actor(features), self.seen(observation))
        return params, self.critic(features).squeeze(-1)

    @property
    def sees(self) -> bool:
        """Whether observations are images of bytes."""
        return len(self.trunk) > 0

    def layers(self, name: str) -> nn.Sequential:
        """All layers of the `actor` or the `critic`, in order, those that both share included."""
        return nn.Sequential(*self.trunk, *getattr(self, name))

    def seen(self, observation: Tensor) -> Tensor:
        """The observation itself, without what goes with it for the memory."""
        return observation if self.memory is None else observation[..., : self.inputs]

    def features(self, observation: Tensor) -> Tensor:
        """What actor and critic take: the trunk's output, or the observation with the memory's."""
        if self.memory is None:
            return self.trunk(observation)
        seen, stored, start = observation.split([self.inputs, self.memory.size, 1], -1)
        if observation.ndim == 2:
            return self.recall(seen, stored)[0]
        # Sequences of one length, whatever the number of columns.
        parts = (x.unflatten(1, (-1, self.sequence)).flatten(0, 1) for x in (seen, stored, start))
        seen_part, stored_part, start_part = parts
        output = self.memory.unroll(seen_part, stored_part, start_part > 0)
        return torch.cat([seen, output.reshape(*seen.shape[:-1], self.memory.units)], -1)

    def recall(self, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Features of single observations [n, obs], and the memory's next state [n, S]."""
        assert self.memory is not None
        output, following = self.memory.step(seen, state)
        return torch.cat([seen, output], -1), following

    def heads(self) -> set[str]:
        """Names of the parameters that adaptive gradient clipping leaves alone."""
        last = {f"{net}.{len(getattr(self, net)) - 1}." for net in ("actor", "critic")}
        return {
            name
            for name, p in self.named_parameters()
            if p.ndim < 2 or any(name.startswith(prefix) for prefix in last)
        }


class Pixels(nn.Module):
    """Images of bytes [n, C, H, W] or [n, H, W, C] to [n, C, H, W] in [0, 1]."""

    def __init__(self, channels_last: bool) -> None:
        super().__init__()
        self.channels_last = channels_last

    def forward(self, images: Tensor) -> Tensor:
        """Cast, where the images are: on the device."""
        x = images.float() / 255
        if self.channels_last:
            x = x.movedim(-1, 1)
        # The layout in which a CPU's backward pass through convolutions is fastest, by a quarter.
        return x.contiguous(memory_format=torch.channels_last)


def _trunk(shape: torch.Size, config: ModelConfig, generator: torch.Generator) -> nn.Sequential:
    """Convolutions and hidden layers over images of bytes (Mnih et al. 2015).

    Raises:
        ConfigError: observations are no images, or too small for these convolutions.
    """
    if not config.hidden:
        raise ConfigError("model.convolutions needs a layer in model.hidden, e.g. [512]")
    if len(shape) != 3:
        other = "task.frame_stack=4" if len(shape) == 2 else "model=mlp"
        raise ConfigError(
            f"model={config.name} is for images of three dimensions, and observations are "
            f"{list(shape)}: write {other}"
        )
    channels_last = shape[-1] < shape[0]
    channels, *size = (shape[-1], *shape[:-1]) if channels_last else shape
    layers: list[nn.Module] = [Pixels(channels_last)]
    for width, kernel, stride in config.convolutions:
        layers += [nn.Conv2d(channels, width, kernel, stride), _ACTIVATIONS[config.activation]()]
        channels, size = width, [(side - kernel) // stride + 1 for side in size]
    if min(size) < 1:
        raise ConfigError(f"images {list(shape)} are too small for model={config.name}")
    layers.append(nn.Flatten())
    inputs = channels * math.prod(size)
    for width in config.hidden:
        layers += [nn.Linear(inputs, width), _ACTIVATIONS[config.activation]()]
        inputs = width
    for layer in layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.orthogonal_(layer.weight, math.sqrt(2), generator=generator)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def _mlp(
    inputs: int, config: ModelConfig, outputs: int, gain: float, generator: torch.Generator
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in config.hidden:
        layers += [nn.Linear(inputs, width), _ACTIVATIONS[config.activation]()]
        inputs = width
    layers.append(nn.Linear(inputs, outputs))
    linears = [m for m in layers if isinstance(m, nn.Linear)]
    for linear in linears:
        last = linear is linears[-1]
        nn.init.orthogonal_(linear.weight, gain if last else math.sqrt(2), generator=generator)
        nn.init.zeros_(linear.bias)
    return nn.Sequential(*layers)


def fast_mlp(network: nn.Sequential) -> Callable[[Tensor], Tensor]:
    """A forward pass without module dispatch, over the very weights of `network`.

    Halves the time of a policy step on eight environments; weights are read at call time, so
    in-place updates are seen.
    """
    steps: list[tuple[Tensor, Tensor] | nn.Module] = []
    for layer in network:
        if isinstance(layer, nn.Linear):
            steps.append((layer.weight.detach().t(), layer.bias.detach()))
        else:
            steps.append(torch.tanh if isinstance(layer, nn.Tanh) else layer)  # type: ignore[arg-type]

    def forward(x: Tensor) -> Tensor:
        for step in steps:
            x = torch.addmm(step[1], x, step[0]) if isinstance(step, tuple) else step(x)
        return x

    return forward


class ActionMap:
    """Raw actions to the environment's: squashed to its bounds, or passed on for choices.

    With one bound only, tanh gives way to softplus and clip to a one-sided clip; without any, the raw
    action is the environment's.
    """

    def __init__(self, action_spec: TensorSpec, squash: str, device: torch.device | str) -> None:
        """Take the bounds of one environment from a batched spec."""
        self.real = isinstance(action_spec, Bounded)
        if self.real:
            self.low = action_spec.space.low[0].to(device)
            self.high = action_spec.space.high[0].to(device)
            above, below = self.low.isfinite(), self.high.isfinite()
            self.bounded = bool((above & below).all())
            self.between, self.above, self.below = above & below, above & ~below, below & ~above
            # Halves first: the range of large bounds may overflow.
            self.centre = torch.where(self.between, self.low / 2 + self.high / 2, 0.0)
            self.half = torch.where(self.between, self.high / 2 - self.low / 2, 1.0)
        self.squash = torch.tanh if squash == "tanh" else (lambda u: u.clamp(-1, 1))
        self.rise = F.softplus if squash == "tanh" else F.relu

    def __call__(self, raw: Tensor) -> Tensor:
        """Map raw actions [N, A] (or choices [N], [N, K]) to actions inside the bounds."""
        if not self.real:
            return raw
        # Rounding may push centre + half * 1 past the bound by one unit in the last place.
        squashed = torch.addcmul(self.centre, self.half, self.squash(raw))
        if self.bounded:
            return squashed.clamp(self.low, self.high)
        action = torch.where(self.between, squashed, raw)
        action = torch.where(self.above, self.low + self.rise(raw), action)
        action = torch.where(self.below, self.high - self.rise(-raw), action)
        return action.clamp(self.low, self.high)
