"""Environments of every supported kind of space, as `twoclocks-spaces/<Name>-v0`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_twoclocks import Config, compose

PREFIX = "twoclocks-spaces"
BOUNDS = {
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "half": spaces.Box(np.float32([-np.inf, 0.5]), np.float32([2.0, np.inf])),
    "asymmetric": spaces.Box(-1.0, 3.0, (1,), np.float32),
    "per dimension": spaces.Box(
        np.float32([-1, -np.inf, 0, -np.inf]), np.float32([5, np.inf, np.inf, -3])
    ),
    "huge": spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (1,), np.float32),
    "grid": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
    "tenths": spaces.Box(np.array([-0.1, 0.1, -0.3]), np.array([0.1, 0.7, 0.3]), dtype=np.float64),
    "integers": spaces.Box(0, 10, (2,), np.int64),
}
SEEN: dict[str, spaces.Space] = {
    "Discrete": spaces.Discrete(4, start=2),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
    "MultiBinary": spaces.MultiBinary(3),
    "Dict": spaces.Dict(
        {
            "where": spaces.Box(-100.0, 100.0, (2,), np.float32),
            "what": spaces.Discrete(3),
            "deep": spaces.Dict({"bits": spaces.MultiBinary(2)}),
        }
    ),
}
DONE: dict[str, spaces.Space] = {
    "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
    "Started": spaces.MultiDiscrete([3, 2], start=[5, -1]),
    "MultiBinary": spaces.MultiBinary((2, 2)),
    **BOUNDS,
}


class Sampler(gym.Env):
    """Random observations of a space; the reward is the mean of the action.

    Args:
        seen, done: names in `SEEN` and `DONE`; None: a real vector, two choices.
    """

    def __init__(self, seen: str | None = None, done: str | None = None) -> None:
        vector = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = SEEN[seen] if seen else vector
        self.action_space = DONE[done] if done else spaces.Discrete(2)
        self.k, self.length = 0, 16

    def _draw(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.k = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple:
        assert self.action_space.contains(action), (action, self.action_space)
        self.k += 1
        reward = float(np.clip(np.mean(action), -10, 10))
        return self._draw(), reward, False, self.k >= 16, {}

    def state_dict(self) -> dict[str, Any]:
        return {"k": self.k}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.k = state["k"]


class Masked(gym.Env):
    """Numbers 0 to 4; which may be named changes with every decision, and others are an error.

    The reward is the number named. The best policy names the highest that is allowed.

    Args:
        place: where the mask is: `info` or `key`, a key of the observation.
        pairs: two numbers at once, of 5 and of 3, with a mask each.
        empty: from this decision on nothing is allowed.
    """

    def __init__(self, place: str = "info", pairs: bool = False, empty: int | None = None) -> None:
        self.place, self.pairs, self.empty = place, pairs, empty
        self.sizes = [5, 3] if pairs else [5]
        self.action_space = spaces.MultiDiscrete(self.sizes) if pairs else spaces.Discrete(5)
        own = spaces.Box(-1.0, 1.0, (2,), np.float32)
        mask = spaces.MultiBinary(sum(self.sizes))
        self.observation_space = (
            spaces.Dict({"action_mask": mask, "own": own}) if place == "key" else own
        )
        self.k, self.length = 0, 16

    def _draw(self) -> tuple[Any, dict[str, Any]]:
        self.masks = [self.np_random.integers(0, 2, k, dtype=np.int8) for k in self.sizes]
        for mask in self.masks:
            mask[self.np_random.integers(len(mask))] = 1
        if self.empty is not None and self.k >= self.empty:
            self.masks[0][:] = 0
        own = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        if self.place == "key":
            return {"action_mask": np.concatenate(self.masks), "own": own}, {}
        return own, {"action_mask": tuple(self.masks) if self.pairs else self.masks[0]}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        # Of different lengths: environments are reset one by one.
        self.k, self.length = 0, int(self.np_random.integers(12, 21))
        return self._draw()

    def step(self, action: Any) -> tuple:
        chosen = np.atleast_1d(action)
        for mask, value in zip(self.masks, chosen, strict=True):
            if not mask[value]:
                raise ValueError(f"{action} is not allowed by {self.masks}")
        self.k += 1
        observation, info = self._draw()
        return observation, float(chosen.sum()), False, self.k >= self.length, info

    def state_dict(self) -> dict[str, Any]:
        return {"k": self.k, "length": self.length, "masks": [mask.tolist() for mask in self.masks]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.k, self.length = state["k"], state["length"]
        self.masks = [np.array(mask, np.int8) for mask in state["masks"]]


for _name, _class in {"Sampler": Sampler, "Masked": Masked}.items():
    if f"{PREFIX}/{_name}-v0" not in gym.registry:
        gym.register(f"{PREFIX}/{_name}-v0", entry_point=_class)


def overrides(name: str, run_dir: Path, kwargs: dict[str, Any], *more: str) -> list[str]:
    """Command-line overrides of a run of four short rounds on one of these environments."""
    return [
        "task=gym",
        f"task.env_id={PREFIX}/{name}-v0",
        "task.import=tests.spaces",
        *[f"task.kwargs.{key}={value}" for key, value in kwargs.items()],
        "debug=smoke",
        "logger.display=none",
        f"run_dir={run_dir}",
        "device=cpu",
        "total_frames=256",
        "num_envs=4",
        "clocks.batch_size=64",
        "clocks.update_frequency=64",
        "clocks.minibatch_size=32",
        "model.hidden=[16]",
        *more,
    ]


def run_config(name: str, run_dir: Path, kwargs: dict[str, Any], *more: str) -> Config:
    """Compose the configuration of such a run."""
    return compose(overrides(name, run_dir, kwargs, *more))
