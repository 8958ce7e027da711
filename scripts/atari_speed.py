"""Measure speed and memory on Pong beside Stable-Baselines3, on one thread of one core.

    python scripts/atari_speed.py --repeats 5 --rounds 10 --warmup 2

All do the same work: Pong without sticky actions, 8 environments, 1,024 frames a round (128 decisions
each), 3 passes in minibatches of 256, the Nature CNN, Adam at 2.5e-4; frame skip 4, stacks of four grey
frames of 84 x 84, up to 30 no-ops, FIRE at resets, an episode per life, rewards by their sign. Each
runs in a fresh interpreter pinned to the same core, one after the other: A B C A B C ...

`rollout_mb` is what holds the rollout and its images while it is learnt from, in MiB: for
Stable-Baselines3 the arrays of its rollout buffer (its flattened copy is not counted twice), here the
ring of frames, the window and the collector's own batch, every storage once. `grown_mb` is the peak of
the resident memory above that after all imports; activations of a minibatch are most of it, for
everyone. `peak_rss_mb` is the peak itself, libraries included.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import benchmark
from benchmark_peers import Round, Row, Stopwatch, recorded_rounds, summarize

FRAMES_PER_BATCH = 1024
PROTOCOL = benchmark.Protocol(
    script=Path(__file__).resolve(),
    peers=Path(__file__).stem,
    names=("ours", "ours-default", "ours-envpool", "sb3"),
    measured=(*benchmark.MEASURED, "rollout_mb", "grown_mb"),
    out=Path("docs/benchmarks/atari_speed.csv"),
    frames=FRAMES_PER_BATCH,
)


@dataclass(frozen=True)
class AtariRow(Row):
    """Speed of one contender, and what it took, MiB."""

    rollout_mb: float
    grown_mb: float


def resident_mb(which: str) -> float:
    """Resident memory of this process, MiB: VmRSS now, or VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(which)).split()[1]) / 1024


def conclude(
    timed: list[Round], warmup: int, born: float, held: float, imported: float
) -> AtariRow:
    """Put speed and memory together."""
    taken = time.perf_counter() - born
    row = summarize(timed, warmup * FRAMES_PER_BATCH, taken, FRAMES_PER_BATCH)
    return AtariRow(**vars(row), rollout_mb=held, grown_mb=resident_mb("VmHWM") - imported)


def run_sb3(rounds: int, warmup: int) -> AtariRow:
    """Run Stable-Baselines3's PPO on its own Atari wrappers, a `DummyVecEnv` of 8.

    GAE is inside its collect time. Everything not named in this file's first lines is its default.
    """
    watch = Stopwatch(FRAMES_PER_BATCH)
    import ale_py
    import gymnasium as gym
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    imported = resident_mb("VmRSS")
    gym.register_envs(ale_py)

    class TimedPPO(PPO):
        def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
            with watch.collecting():
                return super().collect_rollouts(*args, **kwargs)

        def train(self) -> None:
            with watch.updating():
                super().train()

    envs = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=8, seed=0), 4)
    agent = TimedPPO(
        "CnnPolicy",
        envs,
        n_steps=FRAMES_PER_BATCH // 8,
        batch_size=256,
        n_epochs=3,
        learning_rate=2.5e-4,
        clip_range=0.1,
        ent_coef=0.01,
        device="cpu",
        seed=0,
    )
    agent.learn(total_timesteps=(rounds + warmup) * FRAMES_PER_BATCH)
    timed = watch.rounds()
    arrays = [value for value in vars(agent.rollout_buffer).values() if hasattr(value, "nbytes")]
    held = sum(array.nbytes for array in arrays) / 2**20
    envs.close()
    return conclude(timed, warmup, watch.born, held, imported)


def run_ours(overrides: list[str], rounds: int, warmup: int) -> AtariRow:
    """Run this project's trainer and read the times that it recorded."""
    born = time.perf_counter()
    import ale_py  # noqa: F401

    import rl_twoclocks
    from rl_twoclocks.loop import run as run_rounds

    words = ["task=pong", "device=cpu", "logger=jsonl", "logger.display=none", "eval=off"]
    words.append(f"total_frames={(rounds + warmup) * FRAMES_PER_BATCH}")
    held = 0.0

    def watched(config: Any, session: Any, stop: Any) -> None:
        nonlocal held
        run_rounds(config, session, stop)
        held = held_mb(session.parts)

    imported = resident_mb("VmRSS")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        place = Path(folder) / "run"
        config = rl_twoclocks.compose([*words, f"run_dir={place}", *overrides])
        rl_twoclocks.loop.run = watched
        rl_twoclocks.train(config)
        timed = recorded_rounds(place / "metrics.jsonl")
    return conclude(timed, warmup, born, held, imported)


def held_mb(parts: Any) -> float:
    """Every storage of the ring, the window and the collector's own batch, MiB."""
    own = parts.source.collector._final_rollout
    tensors = [parts.env.frames.frames, *parts.window.take().values()]
    tensors += own.values(include_nested=True, leaves_only=True) if own is not None else []
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values()) / 2**20


CONTENDERS: dict[str, Callable[[int, int], AtariRow]] = {
    # Compiled, as every run that is long enough; without diagnostics, as the peer has none.
    "ours": lambda r, w: run_ours(["compile=true", "diagnostics=minimal"], r, w),
    "ours-default": lambda r, w: run_ours(["compile=true"], r, w),
    "ours-envpool": lambda r, w: run_ours(
        ["compile=true", "diagnostics=minimal", "collect=envpool"], r, w
    ),
    "sb3": run_sb3,
}


if __name__ == "__main__":
    sys.exit(benchmark.main(protocol=PROTOCOL))
