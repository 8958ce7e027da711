"""An environment that can be slow, crash or send signals, and helpers for tests of whole runs."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

if TYPE_CHECKING:
    from rl_twoclocks import Config

ROOT = Path(__file__).parent.parent
ROUND = 128
"""Frames of a round of `tiny`."""


class Walk(gym.Env):
    """A noisy point that a one-dimensional action pushes; its state cannot be captured.

    Args:
        marks: folder in which instance k of this process leaves `step-k` at its first step, with its
            process id and torch's number of threads.
        sleep: seconds per step, from instance `slow_from` on.
        signal: number of a signal that instance `signal_from` sends its process at step `at`.
        crash: raise at step `at`.
        run_seed, crash_seed: crash only if they are the same.
    """

    made = 0

    def __init__(
        self,
        marks: str | None = None,
        sleep: float = 0.0,
        slow_from: int = 1,
        signal: int = 0,
        signal_from: int = 1,
        at: int = 10,
        crash: bool = False,
        run_seed: int = 0,
        crash_seed: int = 0,
    ) -> None:
        Walk.made += 1
        self.number, self.steps, self.at = Walk.made, 0, at
        self.marks = Path(marks) if marks else None
        self.sleep = sleep if self.number >= slow_from else 0.0
        self.signal = signal if self.number == signal_from else 0
        self.crash = crash and run_seed == crash_seed
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        if self.signal and at == 0:
            os.kill(os.getpid(), self.signal)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        return self.place.copy(), {}

    def step(self, action: np.ndarray) -> Any:
        self.steps += 1
        if self.marks is not None and self.steps == 1:
            self._mark()
        if self.sleep:
            time.sleep(self.sleep)
        if self.crash and self.steps == self.at:
            self.stumble()
        if self.signal and self.steps == self.at:
            os.kill(os.getpid(), self.signal)
        self.place = 0.9 * self.place + 0.1 * float(action[0]) + 0.1 * self.np_random.normal(size=2)
        distance = float(np.abs(self.place).sum())
        return self.place.copy(), -distance, distance > 2.5, False, {}

    def stumble(self) -> None:
        raise RuntimeError("the walker stumbled over a stone")

    def _mark(self) -> None:
        import torch

        self.marks.mkdir(parents=True, exist_ok=True)
        text = f"{os.getpid()} {torch.get_num_threads()}"
        temporary = self.marks / f".step-{self.number}-{os.getpid()}"
        temporary.write_text(text)
        temporary.rename(self.marks / f"step-{self.number}-{os.getpid()}")


if "CommandWalk-v0" not in gym.registry:
    gym.register("CommandWalk-v0", entry_point=Walk, max_episode_steps=30)

WALK = ("task=gym", "task.env_id=CommandWalk-v0", "task.import=tests.command_envs")


def walk(**kwargs: Any) -> list[str]:
    """Overrides that choose this environment with keyword arguments."""
    return [*WALK, *(f"+task.kwargs.{key}={value}" for key, value in kwargs.items())]


def tiny(directory: Path | str, *overrides: str, rounds: int = 2) -> list[str]:
    """Overrides of a run of a few hundred frames: two environments, rounds of 128 frames."""
    return [
        "debug=smoke",
        "num_envs=2",
        f"clocks.batch_size={ROUND}",
        f"clocks.update_frequency={ROUND}",
        "clocks.minibatch_size=32",
        f"total_frames={rounds * ROUND}",
        "logger.display=none",
        "eval=off",
        "device=cpu",
        f"run_dir={directory}",
        *overrides,
    ]


def run(directory: Path | str, *overrides: str, rounds: int = 2) -> Any:
    """Train a tiny run in this process."""
    import rl_twoclocks

    place = None if directory == "null" else str(directory)
    changes = {"run_dir": place, "total_frames": rounds * ROUND}
    return rl_twoclocks.train(composed(overrides).model_copy(update=changes))


@functools.cache
def composed(overrides: tuple[str, ...]) -> Config:
    """A tiny run's configuration, composed once: folder and budget are the only ones to differ."""
    import rl_twoclocks

    return rl_twoclocks.compose(tiny("unset", *overrides))


def rows(directory: Path) -> list[dict[str, Any]]:
    """Rows of a run's metrics without what depends on the machine's speed."""
    from rl_twoclocks.record import read_metrics

    return [
        {key: value for key, value in row.items() if not key.startswith("time/")}
        for row in read_metrics(Path(directory) / "metrics.jsonl")
    ]


def newest(directory: Path | str) -> dict[str, Any]:
    """The newest checkpoint of a run."""
    from rl_twoclocks.record import checkpoint

    return checkpoint.load(checkpoint.listed(Path(directory))[-1])


def differing(a: Any, b: Any, place: str = "") -> list[str]:
    """Places where two nested states are not the same, bit for bit."""
    import torch

    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        agree = a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return [f"{place}: keys {sorted(map(str, a.keys() ^ b.keys()))}"]
        return [line for key in a for line in differing(a[key], b[key], f"{place}.{key}")]
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return [line for i, (x, y) in pairs for line in differing(x, y, f"{place}[{i}]")]
    else:
        agree = type(a) is type(b) and a == b
    return [] if agree else [place]


def environment() -> dict[str, str]:
    """Environment variables of a command in a process of its own."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "PYTEST"))}
    return clean | {"PYTHONPATH": str(ROOT), "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}


def start(arguments: list[str], cwd: Path, command: str = "train") -> subprocess.Popen[str]:
    """Start a command of the package in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", f"rl_twoclocks.{command}", *arguments],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def command(
    arguments: list[str], cwd: Path, command: str = "train", seconds: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command of the package to its end, which has to come within `seconds`."""
    process = start(arguments, cwd, command)
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for(
    folder: Path, pattern: str, process: subprocess.Popen[str], seconds: float = 90
) -> Path:
    """Wait until a file is there and return it; otherwise end the process and fail."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and process.poll() is None:
        found = sorted(folder.glob(pattern)) if folder.is_dir() else []
        if found:
            return found[0]
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"no {pattern} in {folder}: {process.communicate()}")
