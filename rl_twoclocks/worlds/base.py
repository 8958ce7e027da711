"""What the verifiable-reward worlds share: N environments as arrays, stepped without a loop over them.

A world has rewards that an outside rule can check. Everything random in it is a hash of the
environment's key (its seed), its episode and its time: so an environment does the same alone as in
any batch, and its whole state is a handful of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_twoclocks.nearest import there_are

Array = np.ndarray
Index = np.ndarray | slice
"""Which environments: their numbers, or all of them as `slice(None)`."""

EVERY = slice(None)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_WORD = 2**64


def mix(*words: Array | int) -> Array:
    """Hash integers elementwise to uint64 [...]: SplitMix64's finaliser over a chain of words.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
    """
    state = np.zeros(1, dtype=np.uint64)
    for word in words:
        state = (state + _GOLDEN) ^ np.asarray(word).astype(np.uint64)
        state = (state ^ (state >> np.uint64(30))) * _FIRST
        state = (state ^ (state >> np.uint64(27))) * _SECOND
        state ^= state >> np.uint64(31)
    return state


def below(bits: Array, high: int) -> Array:
    """Turn hashes [...] into integers from 0 to `high` - 1, `high` < 2^32 (Lemire 2019)."""
    return (((bits >> np.uint64(32)) * np.uint64(high)) >> np.uint64(32)).astype(np.int64)


def uniform(bits: Array) -> Array:
    """Turn hashes [...] into float64 in [0, 1)."""
    return (bits >> np.uint64(11)) * 2.0**-53


def normal(bits: Array) -> Array:
    """Turn hashes [...] into standard normal numbers (Box and Muller 1958)."""
    radius = np.sqrt(-2.0 * np.log1p(-uniform(bits)))
    return radius * np.cos(2.0 * np.pi * uniform(mix(bits)))


def one_of(name: str, value: str, choices: Collection[str]) -> str:
    """Give the value back if it is a choice.

    Raises:
        ValueError: it is not; names the argument and the nearest choice.
    """
    if value not in choices:
        raise ValueError(f"{name}={value!r}: {there_are(str(value), choices)}")
    return value


def whole(name: str, value: int, low: int, high: float = float("inf")) -> None:
    """Check that a value is a whole number, low <= value <= high.

    Raises:
        ValueError: it is not; names the argument and the nearest right value.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ValueError(f"{name}={value!r} is no whole number")
    within(name, value, low, high)


def within(name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Check low <= value <= high.

    Raises:
        ValueError: it is not; names the argument and the nearest right value.
    """
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float, np.number)):
        raise ValueError(f"{name}={value!r} is no number")
    if not low <= value <= high:
        near = high if value > high else low
        raise ValueError(f"{name}={value} is outside {low} to {high}: the nearest is {near}")


class World:
    """N environments stepped together: a `VectorBackend` with successes counted.

    Observations are a view of one buffer, which the next call overwrites. A subclass begins
    episodes (`_begin`), moves (`_advance`), draws what is seen (`_observe`) and a picture (`render`).

    Attributes:
        success: bool [N], whether the newest step reached the goal or decided right.
        episodes: episodes ended so far, over all environments.
        successes: how many of them succeeded.
        restarts: simulators that died and were started again, where there are such.
    """

    restarts = 0

    envs: list[gym.Env] | None = None
    action_masks: Array | None = None
    fields: ClassVar[tuple[str, ...]] = ()
    """The subclass's own arrays that change within an episode."""
    _SHARED = ("key", "episode", "time", "ended", "success")

    def __init__(
        self, num_envs: int, time_limit: int, observation_space: gym.Space, action_space: gym.Space
    ) -> None:
        whole("num_envs", num_envs, 1)
        whole("time_limit", time_limit, 1)
        assert observation_space.shape is not None
        self.num_envs, self.time_limit = num_envs, time_limit
        self.observation_space, self.action_space = observation_space, action_space
        # As in gymnasium, who never gives a seed gets a different one each time.
        self.key: Array = np.random.SeedSequence().generate_state(num_envs, np.uint64)
        self.episode = np.full(num_envs, -1, dtype=np.int64)
        self.time = np.zeros(num_envs, dtype=np.int64)
        self.ended = np.ones(num_envs, dtype=bool)
        self.success = np.zeros(num_envs, dtype=bool)
        self.died = np.zeros(num_envs, dtype=bool)
        """Whether a simulator's death ended the episode, which says nothing of the policy."""
        self.episodes = self.successes = 0
        self._observation = np.zeros((num_envs, *observation_space.shape), dtype=np.float32)

    def _begin(self, index: Array) -> None:
        """Set up the present episode of these environments."""
        raise NotImplementedError

    def _advance(self, action: Array, late: Array) -> tuple[Array, Array, Array]:
        """Move all; `late` [N]: time is up. Return reward, terminated and success [N].

        May set `late` where an episode cannot go on: it is truncated there.
        """
        raise NotImplementedError

    def _observe(self, index: Index) -> None:
        """Write the observations of these environments into the buffer."""
        raise NotImplementedError

    def render(self, number: int = 0) -> Array:
        """Draw one environment as an image, uint8 [height, width, 3]."""
        raise NotImplementedError

    def reset(self, mask: Array | None = None, seeds: list[int] | None = None) -> Array:
        """Begin new episodes in all environments, or in those with `mask` true.

        Args:
            mask: bool [N].
            seeds: one per environment; those reset begin anew with the first episode of theirs.

        Raises:
            ValueError: not one seed per environment.
        """
        index = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        if seeds is not None:
            if len(seeds) != self.num_envs:
                raise ValueError(
                    f"seeds has {len(seeds)} entries: give {self.num_envs}, one per environment"
                )
            words = np.array([seed % _WORD for seed in seeds], dtype=np.uint64)
            self.key[index] = mix(words)[index]
            self.episode[index] = -1
        self.episode[index] += 1
        self.time[index] = 0
        self.ended[index] = self.success[index] = self.died[index] = False
        self._begin(index)
        self._observe(index)
        return self._observation

    def step(self, action: Array) -> tuple[Array, Array, Array, Array]:
        """Step all with actions [N]; return observation [N, ...], reward, terminated, truncated [N].

        Raises:
            RuntimeError: an environment has ended, or never begun, and was not reset.
        """
        if self.ended.any():
            number = int(np.flatnonzero(self.ended)[0])
            raise RuntimeError(f"environment {number} has no episode under way: reset it first")
        self.time += 1
        late = self.time >= self.time_limit
        reward, terminated, self.success = self._advance(action, late)
        truncated = late & ~terminated
        self.ended = terminated | truncated
        self.episodes += int(np.count_nonzero(self.ended))
        self.successes += int(np.count_nonzero(self.success & self.ended))
        self._observe(EVERY)
        return self._observation, reward, terminated, truncated

    def close(self) -> None:
        """Do nothing: most worlds have nothing to release."""

    def state_dict(self) -> dict[str, Tensor]:
        """Capture everything that the future depends on, as tensors."""
        arrays = {name: getattr(self, name) for name in (*self._SHARED, *self.fields)}
        # torch has no arithmetic on uint64; the same bits travel as int64.
        state = {name: torch.from_numpy(_signed(array).copy()) for name, array in arrays.items()}
        return state | {"counts": torch.tensor([self.episodes, self.successes])}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put back what `state_dict` of a world with the same settings gave.

        Raises:
            ValueError: an entry is missing or has another shape; names it.
        """
        for name in (*self._SHARED, *self.fields):
            own = getattr(self, name)
            if name not in state or tuple(state[name].shape) != own.shape:
                found = tuple(state[name].shape) if name in state else "nothing"
                raise ValueError(f"state[{name!r}] has {found}: expected shape {own.shape}")
        for name in self._SHARED:
            _signed(getattr(self, name))[...] = state[name].numpy()
        self.episodes, self.successes = state["counts"].tolist()
        begun = np.flatnonzero(self.episode >= 0)
        self._begin(begun)
        for name in self.fields:
            getattr(self, name)[...] = state[name].numpy()
        self._observe(begun)


def _signed(array: Array) -> Array:
    return array.view(np.int64) if array.dtype == np.uint64 else array


class WorldEnv(gym.Env):
    """One environment of a world for gymnasium; `info["is_success"]` at the end of an episode.

    Args:
        render_mode: `rgb_array` or None.
        kwargs: arguments of the world, without `num_envs`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}  # type: ignore[misc]
    make: ClassVar[Callable[..., World]]

    def __init__(self, render_mode: str | None = None, **kwargs: Any) -> None:
        self.world = type(self).make(num_envs=1, **kwargs)
        self.observation_space = self.world.observation_space
        self.action_space = self.world.action_space
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin the next episode, or the first one of a seed."""
        super().reset(seed=seed)
        observation = self.world.reset(seeds=None if seed is None else [seed])
        return observation[0].copy(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Step once."""
        observation, reward, terminated, truncated = self.world.step(np.array([action]))
        ended = bool(terminated[0] or truncated[0])
        info = {"is_success": bool(self.world.success[0])} if ended else {}
        return (
            observation[0].copy(),
            float(reward[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            info,
        )

    def render(self) -> Array | None:  # type: ignore[override]
        """Draw the environment, uint8 [height, width, 3]."""
        return self.world.render() if self.render_mode else None

    def close(self) -> None:
        """Close the world."""
        self.world.close()

    def state_dict(self) -> dict[str, Tensor]:
        """Capture the world's state."""
        return self.world.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put a captured state back."""
        self.world.load_state_dict(state)
