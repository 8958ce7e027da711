"""Measure how many frames per second the project's own worlds make.

    python scripts/worlds_speed.py --repeats 5

Protocol, written down before the runs: the settings of each preset, a machine with two free cores, one
process per core and one batch of environments in each (`COUNTS`); random actions that are drawn
beforehand; resets included, and the observation as a policy gets it; records and learning left out. A
row is one repeat, frames per second of both processes together over `--seconds` after a second of
warm-up. The figure is the median over repeats, low and high are minimum and maximum; mark for the maze
1,000,000.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np
import rows as kept

import rl_twoclocks
from rl_twoclocks.worlds import make_world

OUT = Path(__file__).parent.parent / "docs" / "benchmarks" / "worlds_speed.csv"
COUNTS = {"maze": 1024, "tmaze": 1024, "inspection": 256, "grasp": 32}
"""Environments in each process."""
PROCESSES = 2
WARMUP = 1.0
"""Seconds."""


def drive(task: str, seconds: float, seed: int) -> float:
    """Frames per second of one batch in this process."""
    kwargs = dict(rl_twoclocks.compose([f"task={task}"]).task.kwargs)
    count = COUNTS[task]
    world = make_world(task, count, **kwargs)
    world.reset(seeds=list(range(seed * count, (seed + 1) * count)))
    world.action_space.seed(seed)
    actions = np.array([[world.action_space.sample() for _ in range(count)] for _ in range(64)])
    frames, started = 0, time.perf_counter()
    until = started + WARMUP + seconds
    warm = False
    while (now := time.perf_counter()) < until:
        if not warm and now - started > WARMUP:
            warm, frames, started = True, 0, now
        _, _, terminated, truncated = world.step(actions[frames // count % 64])
        if (ended := terminated | truncated).any():
            world.reset(ended)
        frames += count
    return frames / (now - started)


def main() -> int:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--tasks", nargs="+", choices=COUNTS, default=list(COUNTS))
    args = parser.parse_args()
    found = []
    command = f"python scripts/worlds_speed.py --repeats {args.repeats} --seconds {args.seconds:g}"
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        for repeat in range(1, args.repeats + 1):
            for task in args.tasks:
                each = [(task, args.seconds, seed) for seed in range(PROCESSES)]
                fps = round(sum(pool.starmap(drive, each, chunksize=1)))
                row = {"task": task, "repeat": repeat, "processes": PROCESSES, "fps": fps}
                found.append(row | {"command": command})
                print(f"{task} {repeat}: {fps:,} frames/s", flush=True)
    kept.merge(OUT, found, ("task", "repeat"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
