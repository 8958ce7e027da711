"""One Atari game as PPO's paper plays it, on the Arcade Learning Environment.

Single frames [84, 84] come out, in grey; `task.frame_stack` makes stacks of them. The images of games
are part of the package ale-py: nothing is downloaded.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch

from rl_twoclocks.config import ConfigError, TaskConfig
from rl_twoclocks.nearest import did_you_mean

SIZE = 84
"""Height and width of an observation, pixels."""
MAX_FRAMES = 108_000
"""Simulator frames after which a game is truncated: half an hour."""


class Atari(gym.Env):
    """A game with raw scores as rewards (`normalize.reward=sign` clips them for learning).

    Every frame is the maximum of the last two simulator frames of a decision, in grey, brought to
    84 x 84 by areas (Mnih et al. 2015): what gymnasium's `AtariPreprocessing` gives, bit for bit.

    Args:
        game: name of the game, as `space_invaders`.
        frame_skip: simulator frames per decision.
        noop_max: a game begins after 1 to this many frames without an action; 0: at once.
        fire_reset: press FIRE for one decision when a game or a life begins, where the game has it.
        episodic_life: end the episode with every life, not only with the game. The next episode goes
            on with the next life.
        repeat_action_probability: with which the last action is repeated (sticky actions, Machado et
            al. 2018). PPO's paper has none.
        render_mode: `rgb_array` or None.

    Raises:
        ValueError: there is no such game; names the nearest.
        gymnasium.error.DependencyNotInstalled: ale-py or OpenCV is missing.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 15}  # type: ignore[misc]

    def __init__(
        self,
        game: str,
        frame_skip: int = 4,
        noop_max: int = 30,
        fire_reset: bool = True,
        episodic_life: bool = True,
        repeat_action_probability: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        try:
            import ale_py
            import cv2
        except ImportError as error:
            raise gym.error.DependencyNotInstalled(
                f"Atari needs {error.name}: pip install '.[atari]'"
            ) from error
        if isinstance(noop_max, bool) or not isinstance(noop_max, int) or noop_max < 0:
            raise ValueError(
                f"noop_max={noop_max!r} is no whole number from 0 on: the paper has 30"
            )
        self._resize = cv2.resize
        self._area = cv2.INTER_AREA
        self.frame_skip, self.noop_max, self.episodic_life = frame_skip, noop_max, episodic_life
        self.render_mode = render_mode
        self.rom = _rom(game)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", repeat_action_probability)
        self.ale.setInt("max_num_frames_per_episode", MAX_FRAMES)
        self.ale.loadROM(self.rom)
        self.actions = self.ale.getMinimalActionSet()
        self._fires = fire_reset and ale_py.Action.FIRE in self.actions
        self._noop, self._fire = ale_py.Action.NOOP, ale_py.Action.FIRE
        self.observation_space = gym.spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
        self.action_space = gym.spaces.Discrete(len(self.actions))
        # The last two screens of a decision.
        self._screens = np.zeros((2, *self.ale.getScreenDims()), np.uint8)
        self._lives = 0
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a game; or the next life, where only a life has ended and no seed is given."""
        if seed is not None:
            # As ale-py's own environment does, so that a seed means the same game in both.
            own, simulator = np.random.SeedSequence(seed).generate_state(2)
            super().reset(seed=int(own))
            self.ale.setInt("random_seed", int(np.uint32(simulator).astype(np.int32)))
            self.ale.loadROM(self.rom)
        if self._over or seed is not None:
            self._begin_game()
        else:
            self._begin_life()
        if self._ended():
            self._begin_game()
        self._lives, self._over = self.ale.lives(), True
        self.ale.getScreenGrayscale(self._screens[0])
        self._screens[1] = 0
        return self._observe(), {"lives": self._lives}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Repeat an action for `frame_skip` frames; the reward is the raw score."""
        reward, lost = self._repeat(self.actions[int(action)])
        if lost and self._fires and not self.episodic_life and not self._ended():
            reward += self._begin_life()
        terminated = self.ale.game_over(with_truncation=False)
        truncated = self.ale.game_truncated()
        life = lost and self.episodic_life and not (terminated or truncated)
        # A time limit around this environment ends games that do not know of it.
        self._over = not life
        terminated |= life
        return self._observe(), reward, terminated, truncated, {"lives": self._lives}

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The screen in colour, uint8 [210, 160, 3]."""
        return self.ale.getScreenRGB() if self.render_mode else None

    def close(self) -> None:
        """Nothing to free but memory."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next decision depends on."""
        system = bytearray(self.ale.cloneSystemState().__getstate__())
        return {
            "system": torch.frombuffer(system, dtype=torch.uint8),
            "screens": torch.from_numpy(self._screens.copy()),
            "lives": self._lives,
            "over": self._over,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        from ale_py import ALEState

        system = ALEState.__new__(ALEState)
        system.__setstate__(state["system"].numpy().tobytes())
        self.ale.restoreSystemState(system)
        self._screens[:] = state["screens"].numpy()
        self._lives, self._over = state["lives"], state["over"]

    # -- inside --------------------------------------------------------------------------------

    def _begin_game(self) -> None:
        self.ale.reset_game()
        frames = int(self.np_random.integers(1, self.noop_max + 1)) if self.noop_max else 0
        for _ in range(frames):
            self.ale.act(self._noop)
            if self._ended():
                self.ale.reset_game()
        self._lives = self.ale.lives()
        if self._fires:
            self._repeat(self._fire)

    def _begin_life(self) -> float:
        """Let the next life begin; what it scores counts."""
        self._lives = self.ale.lives()
        return self._repeat(self._fire if self._fires else self._noop)[0]

    def _repeat(self, action: Any) -> tuple[float, bool]:
        """Act for one decision; the score, and whether a life was lost."""
        reward, skip, lost = 0.0, self.frame_skip, False
        for frame in range(skip):
            reward += self.ale.act(action)
            lives = self.ale.lives()
            lost |= lives < self._lives
            self._lives = lives
            # As in gymnasium's: an end in the middle leaves the screens as they were.
            if self._ended() or (lost and self.episodic_life):
                break
            if frame >= skip - 2:
                self.ale.getScreenGrayscale(self._screens[skip - 1 - frame])
        return reward, lost

    def _ended(self) -> bool:
        return self.ale.game_over(with_truncation=True)

    def _observe(self) -> np.ndarray:
        """The frame [84, 84]."""
        newest = self._screens[0]
        if self.frame_skip > 1:
            np.maximum(newest, self._screens[1], out=newest)
        return self._resize(newest, (SIZE, SIZE), interpolation=self._area)


def _rom(game: str) -> Any:
    """Where the image of a game is."""
    from ale_py import roms

    known = roms.get_all_rom_ids()
    if game not in known:
        hint = did_you_mean(game, known, most=3) or f"there are {', '.join(known)}"
        raise ValueError(f"task.game={game!r} is no Atari game: {hint}")
    return roms.get_rom_path(game)


ENVPOOL = {
    "noop_max": "noop_max",
    "fire_reset": "use_fire_reset",
    "episodic_life": "episodic_life",
    "repeat_action_probability": "repeat_action_probability",
}
"""Arguments of `Atari`, as envpool calls them."""


def envpool_atari(task: TaskConfig) -> tuple[str, dict[str, Any]]:
    """The id and the arguments with which envpool plays a game as `Atari` does.

    Raises:
        ConfigError: an argument that `Atari` does not take; names those that it does.
    """
    assert task.game is not None
    if unknown := sorted(task.kwargs.keys() - ENVPOOL):
        raise ConfigError(f"task.kwargs.{unknown[0]} is none of Atari's: {', '.join(ENVPOOL)}")
    kwargs: dict[str, Any] = {"episodic_life": True, "use_fire_reset": True}
    kwargs |= {ENVPOOL[key]: value for key, value in task.kwargs.items()}
    # Single frames and raw scores: stacks are made here, and rewards clipped at use.
    kwargs |= {"frame_skip": task.frame_skip, "stack_num": 1, "reward_clip": False}
    return task.game.title().replace("_", "") + "-v5", kwargs


if "rl_twoclocks/Atari-v0" not in gym.registry:
    gym.register("rl_twoclocks/Atari-v0", entry_point=f"{__name__}:Atari")
