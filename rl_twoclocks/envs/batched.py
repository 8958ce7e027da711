"""One TorchRL environment of batch size [N] over a vector of environments."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Composite, Unbounded
from torchrl.envs import EnvBase

from rl_twoclocks.config import ConfigError
from rl_twoclocks.envs import snapshot
from rl_twoclocks.envs.frames import FrameStack, FrameStore
from rl_twoclocks.envs.spaces import MASK, Actions, Encoding, is_image
from rl_twoclocks.envs.vector import VectorBackend
from rl_twoclocks.worlds.base import World


class NonFiniteError(RuntimeError):
    """An observation, reward, loss or gradient is NaN or infinite."""


class BatchedEnv(EnvBase):
    """N environments as a single EnvBase, without a TensorDict per environment.

    Keys: `observation` [N, ...] in float32 (images in bytes; see `frames`), `action` in the true
    bounds, `reward` [N, 1] unscaled, `terminated`, `truncated`, `done` [N, 1], `is_init` [N, 1] where
    an episode begins, `success` [N, 1] where the task can tell that its goal is reached. `next` always
    holds the true next observation.
    """

    def __init__(
        self, backend: VectorBackend, seeds: list[int], stack: FrameStack | None = None
    ) -> None:
        """Wrap a backend; `seeds` (one per environment) are used by the first reset.

        With `stack` its images are stacked.

        Raises:
            ConfigError: a space that the networks here cannot take.
        """
        self.backend = backend
        self._seeds: list[int] | None = list(seeds)
        self._restored: np.ndarray | None = None
        self._current: torch.Tensor | None = None
        self.begun = torch.ones(backend.num_envs, 1, dtype=torch.bool)
        """Whether an episode begins with the newest observation, [N, 1]."""
        self.decisions = 0
        self.success: np.ndarray | None = None
        """Whether the newest step reached the task's goal, bool [N]; None where no rule can tell."""
        self.died: np.ndarray | None = None
        """Whether the newest step lost a simulator, bool [N]; None where none can die."""
        self._noise: tuple[np.ndarray, np.random.Generator] | None = None
        n = backend.num_envs
        super().__init__(device=torch.device("cpu"), batch_size=torch.Size([n]))
        # EnvBase opens at its own reset, which is overridden here.
        self.is_closed = False
        # Worlds that run one by one, behind gymnasium.
        inner = [getattr(env.unwrapped, "world", None) for env in backend.envs or []]
        self._worlds = [world for world in inner if isinstance(world, World)]
        obs_space, act_space = backend.observation_space, backend.action_space
        masks = backend.action_masks
        self.encoding = Encoding(obs_space, act_space, 0 if masks is None else masks.shape[1])
        """How observations become numbers."""
        self.stack = stack
        self.image = is_image(obs_space)
        """Whether observations are images of bytes: they stay so, and the network scales them."""
        self.observation_shape = torch.Size(stack.shape if stack else self.encoding.shape)
        """Of one observation, as a network sees it."""
        dtype = torch.uint8 if self.image else torch.float32
        spec = Unbounded(shape=(n, *self.observation_shape), dtype=dtype)
        if self.frames is not None:
            spec = Unbounded(shape=(n, self.observation_shape[0]), dtype=torch.int64)
        begun = Binary(n=1, shape=(n, 1), dtype=torch.bool)
        self.observation_spec = Composite(observation=spec, is_init=begun, shape=(n,))
        self._flags: tuple[str, ...] = ("done", "terminated", "truncated")
        if self.tells_success:
            self.observation_spec["success"] = begun.clone()
            self._flags += ("success",)
        self.actions = Actions(act_space, n, self.encoding.masked)
        """How the policy's actions become the environment's."""
        self.action_spec = self.actions.spec
        self.reward_spec = Unbounded(shape=(n, 1), dtype=torch.float32)
        flag = Binary(n=1, shape=(n, 1), dtype=torch.bool)
        self.done_spec = Composite(
            done=flag.clone(), terminated=flag.clone(), truncated=flag.clone(), shape=(n,)
        )
        self._false = torch.zeros(n, 1, dtype=torch.bool)

    # -- EnvBase -------------------------------------------------------------------------------

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None
        if tensordict is not None and "_reset" in tensordict.keys():  # noqa: SIM118
            mask = tensordict.get("_reset").view(-1).numpy()
        return self._after_reset(self._reset_backend(mask))

    def _reset_backend(self, mask: np.ndarray | None) -> np.ndarray:
        if self._restored is not None:
            # Episodes go on: `begun` is what it was.
            obs, self._restored = self._restored, None
            if self.stack is not None and self.stack.by_number:
                self.stack.numbers = obs
            return obs
        began = np.ones(self.batch_size[0], dtype=bool) if mask is None else mask
        self.begun = torch.from_numpy(began.copy()).unsqueeze(1)
        seeds, self._seeds = self._seeds, None
        seen = self.backend.reset(None if mask is None or mask.all() else mask, seeds)
        if self.stack is not None:
            return self.stack.begin(seen, mask)
        obs = self._seen(seen)
        if self._noise is not None and mask is not None and self._current is not None:
            # Those that go on keep the observation that they have been given.
            obs[~mask] = self._current.numpy()[~mask]
        self._require_finite(obs, "observation")
        self._require_choice(obs)
        return obs

    def _after_reset(self, obs: np.ndarray) -> TensorDict:
        flags = {key: self._false.clone() for key in self._flags}
        self._current = torch.from_numpy(obs)
        return TensorDict._new_unsafe(
            {"observation": self._current, "is_init": self.begun.clone(), **flags},
            batch_size=self.batch_size,
            device=self.device,
        )

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        return self._advance(tensordict)[0]

    def _advance(self, tensordict: TensorDictBase) -> tuple[TensorDict, np.ndarray]:
        action = self.actions(tensordict.get("action").numpy())
        seen, reward, terminated, truncated = self.backend.step(action)
        # Checked as they will be used: a double beyond single precision is infinite there.
        obs = self._seen(seen) if self.stack is None else self.stack.push(seen)
        reward = _single(reward.reshape(-1, 1))
        self.decisions += 1
        self._require_finite(obs, "observation")
        self._require_finite(reward, "reward")
        # Ended by itself and by the clock in the same step: it ended by itself.
        terminated = terminated.reshape(-1, 1)
        truncated = truncated.reshape(-1, 1) & ~terminated
        done = terminated | truncated
        self._require_choice(obs, ~done.reshape(-1))
        self.success, self.died = self._told("success"), self._told("died")
        keys = {
            "observation": torch.from_numpy(obs),
            "is_init": self._false,
            "reward": torch.from_numpy(reward),
            "terminated": torch.from_numpy(terminated.copy()),
            "truncated": torch.from_numpy(truncated),
            "done": torch.from_numpy(done),
        }
        if self.success is not None:
            keys["success"] = torch.from_numpy(self.success.reshape(-1, 1))
        result = TensorDict._new_unsafe(keys, batch_size=self.batch_size, device=self.device)
        return result, done.reshape(-1)

    def step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """Step and reset what ended, in one pass without TorchRL's re-validation of known keys."""
        following, done = self._advance(tensordict)
        tensordict._set_str("next", following, validated=True, inplace=False, non_blocking=False)
        self._current, self.begun = following.get("observation"), self._false
        if done.any():
            return tensordict, self._after_reset(self._reset_backend(done))
        return tensordict, TensorDict._new_unsafe(
            {
                "observation": self._current,
                # One of its own: at a full reset the collector writes into the tensors that it has.
                "is_init": torch.zeros_like(self._false),
                **dict.fromkeys(self._flags, self._false),
            },
            batch_size=self.batch_size,
            device=self.device,
        )

    def _set_seed(self, seed: int | None) -> None:
        # Seeds come from the run's own streams: see `reseed`.
        return None

    # -- own -----------------------------------------------------------------------------------

    def reseed(self, seeds: list[int]) -> None:
        """Give the seeds that the next full reset uses."""
        self._seeds = list(seeds)

    def set_noise(self, noise: tuple[torch.Tensor, int] | None) -> None:
        """Add Gaussian noise to all observations from now on: deviations [...] and a seed; or none.

        What is acted on, learnt from and bootstrapped stays one and the same observation. Images take
        no noise.
        """
        if noise is None or self.image:
            self._noise = None
        else:
            deviation, seed = noise
            if self.encoding.real is not None:
                # Choices, bits and masks say what they say.
                deviation = deviation.cpu() * self.encoding.real
            self._noise = deviation.cpu().numpy(), np.random.default_rng(seed)

    def noise_state(self) -> dict[str, Any] | None:
        """The noise and where its stream stands, as plain data; None without noise."""
        if self._noise is None:
            return None
        deviation, stream = self._noise
        state = json.dumps(stream.bit_generator.state)
        return {"deviation": torch.from_numpy(deviation.copy()), "stream": state}

    def restore_noise(self, state: dict[str, Any] | None) -> None:
        """Restore what `noise_state` gave."""
        self.set_noise(None if state is None else (state["deviation"], 0))
        if state is not None and self._noise is not None:
            self._noise[1].bit_generator.state = json.loads(state["stream"])

    @property
    def frames(self) -> FrameStore | None:
        """Where frames lie whose numbers are the observations; None where these are themselves."""
        return self.stack.store if self.stack is not None and self.stack.by_number else None

    def _seen(self, given: Any) -> np.ndarray:
        if self.image:
            return given.copy()
        obs = _single(self.encoding(given, self.backend.action_masks))
        if self._noise is None:
            return obs
        deviation, stream = self._noise
        return obs + deviation * stream.standard_normal(obs.shape, dtype=np.float32)

    @property
    def tells_success(self) -> bool:
        """Whether a rule can tell that an episode reached the task's goal."""
        return isinstance(self.backend, World) or bool(self._worlds)

    @property
    def restarts(self) -> int:
        """Simulators that died and were started again so far."""
        worlds = [self.backend] if isinstance(self.backend, World) else self._worlds
        return sum(world.restarts for world in worlds)

    def _told(self, name: str) -> np.ndarray | None:
        """What worlds say of the newest step; a copy: the reset of those that ended clears their own."""
        if isinstance(self.backend, World):
            return getattr(self.backend, name).copy()
        if self._worlds:
            return np.array([bool(getattr(world, name)[0]) for world in self._worlds])
        return None

    def hold(self) -> None:
        """Let the next full reset go on from where the environments are."""
        if self._current is not None:
            self._restored = self._current.numpy().copy()

    def snapshot(self) -> dict[str, Any] | None:
        """Capture every simulator and the observation to act on next; None where one cannot be."""
        if isinstance(self.backend, World) and self._current is not None:
            return {"simulators": self.backend.state_dict(), **self._shown()}
        if self.backend.envs is None or self._current is None:
            return None
        states = [snapshot.capture(env) for env in self.backend.envs]
        if any(state is None for state in states):
            return None
        return {"simulators": states, **self._shown()}

    def _shown(self) -> dict[str, torch.Tensor]:
        assert self._current is not None
        return {"observation": self._current.clone(), "begun": self.begun.clone()}

    def restore(self, state: dict[str, Any]) -> None:
        """Put every simulator back; the next full reset then gives the captured observation."""
        self.begun = state.get("begun", self._false)
        if isinstance(self.backend, World):
            self._restore_world(self.backend, state)
            return
        if self.backend.envs is None or len(self.backend.envs) != len(state["simulators"]):
            raise ConfigError("num_envs or collect differ from the run that was saved")
        self.backend.reset()
        for env, simulator in zip(self.backend.envs, state["simulators"], strict=True):
            snapshot.restore(env, simulator)
        self._seeds = None
        self._restored = state["observation"].numpy()

    def _restore_world(self, world: World, state: dict[str, Any]) -> None:
        try:
            world.load_state_dict(state["simulators"])
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"num_envs or collect differ from the run that was saved: {error}"
            ) from error
        self._seeds = None
        self._restored = state["observation"].numpy()

    def _require_choice(self, obs: np.ndarray, acting: np.ndarray | bool = True) -> None:
        if not self.encoding.masked:
            return
        blocked = self.encoding.blocked(obs) & acting
        if blocked.any():
            raise ValueError(
                f"the {MASK} of environment {int(np.flatnonzero(blocked)[0])} allows no action at "
                f"its decision {self.decisions}"
            )

    def _require_finite(self, array: np.ndarray, quantity: str) -> None:
        # The sum is finite if all are, at a third of the cost; overflow of it is looked into.
        if array.dtype.kind != "f" or math.isfinite(np.add.reduce(array, axis=None)):
            return
        bad = ~np.isfinite(array.reshape(array.shape[0], -1)).all(axis=1)
        if bad.any():
            raise NonFiniteError(
                f"{quantity} of environment {int(np.flatnonzero(bad)[0])} is not finite "
                f"at its decision {self.decisions}"
            )

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the backend; a second call does nothing."""
        if not self.is_closed:
            self.backend.close()
            super().close(raise_if_closed=False)


def _single(array: np.ndarray) -> np.ndarray:
    # A copy always: vectors reuse their output buffers.
    with np.errstate(over="ignore"):
        return array.astype(np.float32)
