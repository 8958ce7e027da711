"""The policy that acts: its own copy of weights and normaliser, changed by `publish` alone."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_twoclocks.config import Config
from rl_twoclocks.envs import BatchedEnv
from rl_twoclocks.envs.frames import FrameStore
from rl_twoclocks.memory import KEYS
from rl_twoclocks.models import ActionMap, ActorCritic, fast_mlp
from rl_twoclocks.normalize import Normalizer
from rl_twoclocks.optim import FlatParameters


class Published(NamedTuple):
    """A policy as it is given away: everything that acting needs, and its version."""

    parameters: Tensor
    """Flat weights [P]."""
    shift: Tensor
    scale: Tensor
    """Of the observations, as the normaliser had them."""
    version: int


class BehaviourPolicy(TensorDictModuleBase):
    """Acts on raw observations and stamps every frame with its version.

    Reads `observation` [N, ...]; writes `action` (in the environment's bounds), `raw_action` (before
    squashing), the distribution's parameters and `policy_version` [N]. A recurrent policy also reads
    `is_init` and writes `memory` and `next_memory` [N, S]; its state runs on across rollouts.

    Args:
        model: the learner's network; copied.
        action_map: from raw actions to the environment's.
        normalizer: the statistics to act with at first; copied.
        num_envs: N.
        generator: stream of the policy noise; None acts by the mode.
        device: where this copy lives.
        frames: where images lie whose numbers are the observations; None: these are themselves.
    """

    def __init__(
        self,
        model: ActorCritic,
        action_map: ActionMap,
        normalizer: Normalizer,
        num_envs: int,
        generator: torch.Generator | None,
        device: torch.device | str = "cpu",
        frames: FrameStore | None = None,
    ) -> None:
        """Copy the model to `device`; it acts as version 0 until something is published."""
        super().__init__()
        own = copy.deepcopy(model).to(device).requires_grad_(False).eval()
        self.distribution = own.distribution
        self.in_keys = ["observation"]
        self.out_keys = [
            "action",
            "raw_action",
            *own.distribution.keys,
            "policy_version",
        ]
        self.memory: Tensor | None = None
        """State [N, S] of a recurrent policy after its newest decisions."""
        if own.memory is not None:
            self.in_keys.append("is_init")
            self.out_keys += KEYS
            self.memory = torch.zeros(num_envs, own.memory.size, device=device)
        self.flat = FlatParameters(own)
        # Outside the module's registry: TorchRL would otherwise look for weights to synchronise.
        object.__setattr__(self, "_model", own)
        self._actor = fast_mlp(own.layers("actor"))
        self._frames = frames
        self._action_map = action_map
        self.generator = generator
        self._device = torch.device(device)
        self._enabled = normalizer.config.observation
        self._clip = normalizer.config.observation_clip
        self._stamp = torch.zeros(num_envs, dtype=torch.int64)
        self.publish(self.flat.vector, normalizer, version=0)

    @classmethod
    def fresh(
        cls, config: Config, env: BatchedEnv, generator: torch.Generator | None
    ) -> BehaviourPolicy:
        """A policy with initial weights for an environment, to publish trained ones to."""
        shape = env.observation_shape
        model = ActorCritic(shape, env.action_spec, config.model, torch.Generator())
        normalizer = Normalizer(tuple(shape), 1, config.algo.gamma, config.normalize)
        action_map = ActionMap(env.action_spec, config.model.squash, "cpu")
        return cls(model, action_map, normalizer, env.batch_size[0], generator)

    @property
    def network(self) -> ActorCritic:
        """This policy's own copy of the network."""
        return self._model

    @torch.no_grad()
    def publish(self, parameters: Tensor, normalizer: Normalizer, version: int) -> None:
        """Take over the learner's flat parameters and normaliser statistics together."""
        self.take(Published(parameters, normalizer.shift, normalizer.scale, version))

    def published(self) -> Published:
        """A copy of the policy that acts now, on the CPU."""
        return Published(
            self.flat.vector.detach().cpu().clone(),
            self.shift.cpu().clone(),
            self.scale.cpu().clone(),
            self.version,
        )

    @torch.no_grad()
    def take(self, published: Published) -> None:
        """Act with a policy that was given away."""
        self.flat.vector.copy_(published.parameters)
        self.shift = published.shift.to(self._device, copy=True)
        self.scale = published.scale.to(self._device, copy=True)
        self.version = published.version
        self._stamp = torch.full_like(self._stamp, published.version)

    def moved(self, parameters: Tensor, normalizer: Normalizer) -> str:
        """Name what differs from the learner: `weights`, `normaliser`, or `mode` if neither does."""
        if not torch.equal(self.flat.vector, parameters.to(self._device)):
            return "weights"
        for mine, theirs in ((self.shift, normalizer.shift), (self.scale, normalizer.scale)):
            if not torch.equal(mine, theirs.to(self._device)):
                return "normaliser"
        return "mode"

    @torch.no_grad()
    def act(
        self, observation: Tensor, begun: Tensor | None = None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Return environment action, raw action and distribution parameters for [N, obs].

        `begun`, bool [N, 1], tells where an episode begins: a memory starts anew there.
        """
        if self._frames is not None:
            observation = self._frames.stacks(observation)
        x = observation if self._device.type == "cpu" else observation.to(self._device)
        if self._enabled:
            x = ((x - self.shift) * self.scale).clamp_(-self._clip, self._clip)
        if not self._model.sees and x.ndim != 2:
            x = x.flatten(1)
        features = x if self.memory is None else self._recall(x, begun)
        params = self._model.head(self._actor(features), x)
        if self.generator is None:
            raw = self.distribution.mode(params)
        else:
            raw = self.distribution.sample(params, self.generator)
        return self._action_map(raw), raw, params

    def remember(self, memory: Tensor | None) -> None:
        """Go on with a state [N, S] that was saved; None where there is none."""
        self.memory = None if memory is None else memory.to(self._device)

    def _recall(self, x: Tensor, begun: Tensor | None) -> Tensor:
        """Features of normalised observations, and the memory one decision further."""
        before = self.memory
        assert before is not None
        if begun is not None:
            before = torch.where(begun.to(self._device), 0.0, before)
        features, self.memory = self._model.recall(x, before)
        self._recalled = (before, self.memory)
        return features

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Act for TorchRL's collector."""
        begun = None if self.memory is None else tensordict.get("is_init")
        action, raw, params = self.act(tensordict.get("observation"), begun)
        values: tuple[Tensor, ...] = (action, raw, *params, self._stamp)
        if self.memory is not None:
            values += self._recalled
        if self._device.type != "cpu":
            values = tuple(value.cpu() for value in values)
        for key, value in zip(self.out_keys, values, strict=True):
            # `set` would check shape and device of every key at every step: a tenth of collection.
            tensordict._set_str(key, value, validated=True, inplace=False, non_blocking=False)
        return tensordict
