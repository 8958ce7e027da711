"""Environments with known answers, registered on import as `twoclocks-test/<Name>-v0`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from rl_twoclocks import Config, compose

REPOSITORY = Path(__file__).parent.parent
PREFIX = "twoclocks-test"


class Counter(gym.Env):
    """Observation k (decisions so far), reward 1, episodes of `length`.

    Args:
        length: decisions per episode.
        ends: terminated, truncated or both.
        stagger: the first episode starts at k = seed % length, so that environments are out of phase.
        rewards: reward of every episode in turn instead of 1.
        lengths: length of every episode in turn instead of `length`.
    """

    observation_space = Box(-1e6, 1e6, (1,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(
        self,
        length: int = 8,
        ends: str = "terminated",
        stagger: bool = False,
        rewards: list[float] | None = None,
        lengths: list[int] | None = None,
    ) -> None:
        self.length, self.ends, self.stagger = length, ends, stagger
        self.rewards = rewards or [1.0]
        self.lengths = lengths or [length]
        self.k, self.episode = 0, -1

    def _observation(self) -> np.ndarray:
        return np.array([self.k], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.episode += 1
        self.k = seed % self.length if self.stagger and seed is not None else 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple:
        self.k += 1
        ended = self.k >= self.lengths[self.episode % len(self.lengths)]
        reward = self.rewards[self.episode % len(self.rewards)]
        terminated = ended and self.ends in ("terminated", "both")
        truncated = ended and self.ends in ("truncated", "both")
        return self._observation(), reward, terminated, truncated, {}

    def state_dict(self) -> dict[str, int]:
        return {"k": self.k, "episode": self.episode}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.k, self.episode = state["k"], state["episode"]


class Target(gym.Env):
    """Random observations N(mean, std); the reward is best where the action follows the first."""

    action_space: gym.Space = Box(-2.0, 2.0, (2,), np.float32)

    def __init__(self, mean: float = 0.0, std: float = 1.0, length: int = 16) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.mean, self.std, self.length = mean, std, length
        self.k = 0
        self.observation = np.zeros(3, np.float32)

    def _draw(self) -> np.ndarray:
        noise = self.np_random.standard_normal(3)
        self.observation = (self.mean + self.std * noise).astype(np.float32)
        return self.observation

    def _reward(self, action: Any) -> float:
        wanted = (float(self.observation[0]) - self.mean) / self.std
        return -float(np.square(np.asarray(action) - np.clip(wanted, -1, 1)).sum())

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.k = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple:
        reward = self._reward(action)
        self.k += 1
        return self._draw(), reward, False, self.k >= self.length, {}

    def state_dict(self) -> dict[str, Any]:
        return {"k": self.k, "observation": self.observation.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.k = state["k"]
        self.observation = np.array(state["observation"], np.float32)


class Choice(Target):
    """Target with three choices."""

    action_space = Discrete(3)

    def _reward(self, action: Any) -> float:
        return float(int(action) == int(self.observation[0] > self.mean))


class Poison(Target):
    """Target that emits one bad value at the environment's decision `frame` (0: at the reset).

    Args:
        quantity: observation or reward.
        value: what is emitted there, e.g. nan, inf, -inf, 1e39.
        bad_seed: only the environment whose first reset had this seed is bad; None: all are.
    """

    def __init__(self, quantity: str, value: str, frame: int, bad_seed: int | None) -> None:
        super().__init__()
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float64)
        self.quantity, self.value = quantity, float(value)
        self.frame, self.bad_seed = frame, bad_seed
        self.decisions, self.bad = 0, False

    def _poisoned(self, observation: np.ndarray) -> np.ndarray:
        observation = observation.astype(np.float64)
        if self.bad and self.quantity == "observation" and self.decisions == self.frame:
            observation[1] = self.value
        return observation

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        if seed is not None:
            self.bad = self.bad_seed is None or seed == self.bad_seed
        observation, info = super().reset(seed=seed)
        return self._poisoned(observation), info

    def step(self, action: Any) -> tuple:
        self.decisions += 1
        observation, reward, terminated, truncated, info = super().step(action)
        if self.bad and self.quantity == "reward" and self.decisions == self.frame:
            reward = self.value
        return self._poisoned(observation), reward, terminated, truncated, info


class Counting(Counter):
    """Counter that writes one byte per decision to `<ledger>/<seed of its first reset>.steps`.

    Ended episodes go to `.episodes` likewise; nothing in memory is trusted.
    """

    def __init__(self, ledger: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ledger = Path(ledger)
        self.name = "unseeded"

    def _tick(self, kind: str) -> None:
        file = os.open(
            self.ledger / f"{self.name}.{kind}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
        )
        try:
            os.write(file, b".")
        finally:
            os.close(file)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        if seed is not None:
            self.name = str(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple:
        self._tick("steps")
        result = super().step(action)
        if result[2] or result[3]:
            self._tick("episodes")
        return result


class Raising(Target):
    """Target that raises ValueError("simulator fell over") inside step at its decision `frame`."""

    def __init__(self, frame: int = 5) -> None:
        super().__init__()
        self.frame, self.decisions = frame, 0

    def step(self, action: Any) -> tuple:
        self.decisions += 1
        if self.decisions == self.frame:
            raise ValueError("simulator fell over")
        return super().step(action)


class Hanging(Target):
    """Target that hangs inside step at its decision `frame`, if nobody has made the file `once` yet."""

    def __init__(self, once: str = "", frame: int = 40) -> None:
        super().__init__()
        self.once, self.frame, self.decisions = Path(once), frame, 0

    def step(self, action: Any) -> tuple:
        self.decisions += 1
        if self.decisions == self.frame and not self.once.exists():
            self.once.touch()
            time.sleep(600)
        return super().step(action)


_REGISTERED: dict[str, tuple[type[gym.Env], dict[str, Any]]] = {
    "Counter": (Counter, {}),
    "Lengths": (Counter, {"lengths": [3, 7]}),
    "Target": (Target, {}),
    "Shifted": (Target, {"mean": 100.0, "std": 5.0}),
    "Choice": (Choice, {}),
    "Poison": (Poison, {}),
    "Counting": (Counting, {}),
    "Raising": (Raising, {}),
    "Hanging": (Hanging, {}),
}
for _name, (_class, _kwargs) in _REGISTERED.items():
    if f"{PREFIX}/{_name}-v0" not in gym.registry:
        gym.register(f"{PREFIX}/{_name}-v0", entry_point=_class, kwargs=_kwargs)


def overrides(name: str, run_dir: Path, *more: str) -> list[str]:
    """Command-line overrides of a run of four short rounds on one of these environments."""
    return [
        "task=gym",
        f"task.env_id={PREFIX}/{name}-v0",
        "task.import=tests.envs",
        "debug=smoke",
        "logger=jsonl",
        "logger.display=none",
        f"run_dir={run_dir}",
        "device=cpu",
        "total_frames=256",
        "num_envs=4",
        "clocks.batch_size=64",
        "clocks.update_frequency=64",
        "clocks.minibatch_size=32",
        "clocks.update_epochs=2",
        "model.hidden=[16]",
        "eval.enabled=false",
        *more,
    ]


def run_config(name: str, run_dir: Path, *more: str) -> Config:
    """Compose the configuration of such a run."""
    return compose(overrides(name, run_dir, *more))
