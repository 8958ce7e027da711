"""gymnasium's spaces: observations as one float32 tensor, actions as a TorchRL spec.

Whatever is seen becomes one tensor here, so that windows, sources, checkpoints and diagnostics know
of one kind of observation only. An action mask is a part of what is seen: its entries are the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec

from rl_twoclocks.config import ConfigError

Array = np.ndarray
MASK = "action_mask"
"""Key of an observation, or of `info`, that tells which actions are allowed; as in gymnasium."""
NO_BOUND = 1e30
"""Bounds from here on are none: their range overflows single precision."""
SMALLEST = 36
"""Height and width, pixels, from which the convolutions of PPO's paper leave something over."""
SEEN = "Box, Discrete, MultiDiscrete, MultiBinary and Dict of these"
DONE = "Box, Discrete, MultiDiscrete and MultiBinary"


@dataclass(frozen=True)
class Part:
    """One leaf of an observation space, which fills `size` columns of the vector."""

    path: tuple[str, ...]
    space: gym.Space
    size: int

    @property
    def real(self) -> bool:
        """Whether running moments normalise it; what is one-hot or a bit stays as it is."""
        return isinstance(self.space, gym.spaces.Box)

    def columns(self, observation: Any) -> Array:
        """This part of a batch of observations as columns [N, size]."""
        for key in self.path:
            observation = observation[key]
        n = len(observation)
        if isinstance(self.space, gym.spaces.Discrete):
            return _one_hot(observation, int(self.space.n), int(self.space.start))
        if isinstance(self.space, gym.spaces.MultiDiscrete):
            chosen = (observation - self.space.start).reshape(n, -1)
            each = zip(chosen.T, self.space.nvec.flatten(), strict=True)
            return np.concatenate([_one_hot(column, int(k)) for column, k in each], axis=1)
        return np.asarray(observation).reshape(n, -1)

    def layout(self) -> dict[str, Any]:
        """Say what it is, for those who read an export."""
        return {"key": ".".join(self.path), "space": str(self.space), "columns": self.size}


class Encoding:
    """From a batch of observations to numbers [N, *shape].

    A Box keeps its shape. Every other space becomes a vector: the parts of a Dict in its order, real
    ones flat, choices one-hot, bits as 0 and 1, and the action mask at the end.

    Attributes:
        shape: of one observation.
        real: bool of that shape, the entries that running moments normalise; None: all.
        mask_size: entries of the action mask at the end, K x n for K choices among at most n.
    """

    def __init__(self, space: gym.Space, actions: gym.Space, info_mask: int = 0) -> None:
        """Lay out observations of a space; `info_mask`: entries of the masks that come in `info`.

        Raises:
            ConfigError: names a space that the networks here cannot take, and those that they can.
        """
        self._choices = _choices(actions)
        self._inside = isinstance(space, gym.spaces.Dict) and MASK in space.spaces
        self.masked = self._inside or info_mask > 0
        if self._inside:
            info_mask = _entries(space[MASK])  # type: ignore[index]
            space = gym.spaces.Dict({k: v for k, v in space.items() if k != MASK})  # type: ignore
        if self.masked and info_mask != sum(self._choices):
            raise ConfigError(
                f"{MASK} has {info_mask} entries, but action space {actions} has "
                f"{sum(self._choices)} choices to allow"
            )
        self.plain = isinstance(space, gym.spaces.Box) and not self.masked
        if self.plain:
            assert space.shape is not None
            self.shape, self.mask_size = tuple(space.shape), 0
            self.parts = [Part((), space, math.prod(space.shape))]
            self.real: torch.Tensor | None = None
            return
        self.parts = list(_parts(space))
        self.mask_size = len(self._choices) * max(self._choices) if self.masked else 0
        real = [part.real for part in self.parts for _ in range(part.size)]
        self.real = torch.tensor(real + [False] * self.mask_size)
        self.shape = (len(self.real),)
        # Where the entries of the mask of each choice go, filled up to equal numbers.
        grid = np.arange(max(self._choices, default=0)) < np.array(self._choices or [0])[:, None]
        self._allowed = np.flatnonzero(grid)

    def __call__(self, observation: Any, masks: Array | None = None) -> Array:
        """Encode a batch; `masks` bool [N, sum of choices] where they come in `info`."""
        if self.plain:
            return observation
        columns = [part.columns(observation) for part in self.parts]
        if self.masked:
            given = observation[MASK] if self._inside else masks
            flat = flat_mask(given, batched=True)
            padded = np.zeros((len(flat), self.mask_size), dtype=bool)
            padded[:, self._allowed] = flat
            columns.append(padded)
        return np.concatenate(columns, axis=1, dtype=np.float32, casting="unsafe")

    def blocked(self, encoded: Array) -> Array:
        """Which rows of encoded observations [N, ...] allow no action, bool [N]."""
        if not self.mask_size:
            return np.zeros(len(encoded), dtype=bool)
        mask = encoded[:, -self.mask_size :].reshape(len(encoded), len(self._choices), -1)
        return np.any(~np.any(mask > 0, axis=2), axis=1)

    def layout(self) -> list[dict[str, Any]]:
        """What the entries of an encoded observation are, in order."""
        masks = [{"key": MASK, "columns": self.mask_size}] if self.masked else []
        return [part.layout() for part in self.parts] + masks


class Actions:
    """From a batch of actions of the policy to the environment's own."""

    def __init__(self, space: gym.Space, num_envs: int, masked: bool) -> None:
        """Read the space.

        Raises:
            ConfigError: names a space that policies here cannot act in, and those that they can.
        """
        n = num_envs
        self.space = space
        self.spec: TensorSpec
        if isinstance(space, gym.spaces.Box):
            low, high = _bound(space.low, 1).expand(n, -1), _bound(space.high, -1).expand(n, -1)
            if low.shape[1] == 0:
                raise ConfigError(f"action space {space} has no entry: nothing can be done in it")
            self.spec = Bounded(low, high, dtype=torch.float32)
        elif choices := _choices(space):
            # TorchRL's way to say that there are masks; which ones, every observation says.
            given = torch.ones(n, sum(choices), dtype=torch.bool) if masked else None
            if isinstance(space, gym.spaces.Discrete):
                self.spec = Categorical(choices[0], shape=(n,), dtype=torch.int64, mask=given)
            else:
                shape = (n, len(choices))
                self.spec = MultiCategorical(choices, shape=shape, dtype=torch.int64, mask=given)
        else:
            raise ConfigError(f"action space {space} is not supported: {DONE} are")
        assert space.shape is not None
        self._shape = (n, *space.shape)
        start = getattr(space, "start", 0)
        self._start = start if np.any(start) else None

    def __call__(self, action: Array) -> Array:
        """Bring actions [N, ...] to the type, shape and start of the space."""
        dtype: Any = self.space.dtype
        if action.dtype != dtype:
            if action.dtype.kind == "f" and dtype.kind in "iu":
                action = np.rint(action)
            action = action.astype(dtype)
        if action.shape != self._shape:
            action = action.reshape(self._shape)
        return action if self._start is None else action + self._start


def is_image(space: gym.Space) -> bool:
    """Whether these are images of bytes, large enough for convolutions; smaller ones are grids."""
    sides = sorted(space.shape or ())[-2:]
    return space.dtype == np.uint8 and len(space.shape or ()) in (2, 3) and min(sides) >= SMALLEST


def flat_mask(mask: Any, batched: bool = False) -> Array:
    """A mask of a Discrete space, or those of a MultiDiscrete one (a tuple, or one array of any shape).

    As one bool array [entries], with `batched` [N, entries].
    """
    parts = mask if isinstance(mask, tuple) else (mask,)
    flat = [np.asarray(part).reshape(len(part) if batched else 1, -1) for part in parts]
    joined = np.concatenate(flat, axis=1) != 0
    return joined if batched else joined[0]


def _choices(space: gym.Space) -> list[int]:
    """Among how many values each choice of an action space is; none for real actions."""
    if isinstance(space, gym.spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, gym.spaces.MultiDiscrete):
        return [int(k) for k in space.nvec.flatten()]
    if isinstance(space, gym.spaces.MultiBinary):
        return [2] * math.prod(space.shape)
    return []


def _parts(space: gym.Space, path: tuple[str, ...] = ()) -> list[Part]:
    if isinstance(space, gym.spaces.Dict):
        return [part for key, inner in space.items() for part in _parts(inner, (*path, key))]
    key = f" of key {'.'.join(path)}" if path else ""
    if isinstance(space, gym.spaces.Box):
        if is_image(space):
            raise ConfigError(
                f"observation space {space}{key} is an image beside something else, which is not "
                "supported yet: leave it out (gymnasium's FilterObservation) or flatten it "
                "(FlattenObservation)"
            )
        return [Part(path, space, math.prod(space.shape))]
    if isinstance(space, gym.spaces.Discrete):
        return [Part(path, space, int(space.n))]
    if isinstance(space, gym.spaces.MultiDiscrete):
        return [Part(path, space, int(space.nvec.sum()))]
    if isinstance(space, gym.spaces.MultiBinary):
        return [Part(path, space, math.prod(space.shape))]
    raise ConfigError(f"observation space {space}{key} is not supported: {SEEN} are")


def _entries(mask: gym.Space) -> int:
    """How many numbers a space of masks has; a tuple of masks, one for each choice, has their sum."""
    parts = mask.spaces if isinstance(mask, gym.spaces.Tuple) else (mask,)
    return sum(math.prod(part.shape) for part in parts if part.shape)


def _bound(bound: Array, inward: int) -> torch.Tensor:
    """A bound of a Box [A] in single precision, infinite where there is none.

    `inward` is the direction in which the space lies, 1 or -1: rounding must not leave it.
    """
    flat = np.asarray(bound, dtype=np.float64).flatten()
    flat = np.where(np.abs(flat) >= NO_BOUND, np.copysign(np.inf, flat), flat)
    single = flat.astype(np.float32)
    outside = np.isfinite(flat) & ((single - flat) * inward < 0)
    return torch.from_numpy(
        np.where(outside, np.nextafter(single, np.float32(inward * np.inf)), single)
    )


def _one_hot(values: Array, n: int, start: int = 0) -> Array:
    return np.asarray(values).reshape(-1, 1) - start == np.arange(n)
