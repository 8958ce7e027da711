"""Measure Gazebo in lock-step: decisions per second, two servers beside one, recovery, memory.

    python scripts/gazebo_speed.py --repeats 5

Protocol, written down before the runs. A machine with two free cores. Random actions from one
seeded stream, 20 iterations of 1 ms per decision (`gazebo_diffdrive`: 50), resets included, records
and learning left out. In every repeat one server and then two servers make `--decisions` decisions
each, after a warm-up of a tenth of that; the figure of two is decisions of both together. Recovery:
seconds from a kill -9 in the middle of a step to the end of the reset that follows, the worst of
`--repeats`. Memory: resident size of one server after the first 1,000 decisions and after `--long`
(100,000) decisions.

Figures, by scripts/figures.py: the median rate over repeats, the median of the ratios of two servers
to one within a repeat (mark 1.6), the worst recovery (mark 1 s), and the memory after over the memory
before (mark 1.02). `load` is the number of cores in use
just before a row was measured, while the script waits: above 0.2 the machine was not free, and the row
says so.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from rl_twoclocks.worlds import make_world
from rl_twoclocks.worlds.gazebo import Gazebo

OUT = Path(__file__).parent.parent / "docs" / "benchmarks" / "gazebo_speed.csv"
TASKS = ("gazebo_cartpole", "gazebo_arm", "gazebo_diffdrive")


def made(task: str, servers: int, **settings: object) -> Gazebo:
    """A world after its first reset."""
    world = make_world(task, servers, **settings)
    assert isinstance(world, Gazebo)
    world.reset(seeds=list(range(servers)))
    return world


def drive(world: Gazebo, decisions: int, random: np.random.Generator) -> None:
    """Step with random actions, and reset what ends."""
    high = world.action_space.high
    for _ in range(decisions):
        action = random.uniform(-high, high, (world.num_envs, len(high)))
        _, _, terminated, truncated = world.step(action)
        if (ended := terminated | truncated).any():
            world.reset(ended)


def rate(task: str, servers: int, decisions: int) -> float:
    """Decisions per second of all servers together."""
    world, random = made(task, servers), np.random.default_rng(0)
    try:
        drive(world, decisions // 10, random)
        started = time.perf_counter()
        drive(world, decisions, random)
        return decisions * servers / (time.perf_counter() - started)
    finally:
        world.close()


def recovery() -> float:
    """Seconds from the kill to a world that can be stepped again."""
    world = made("gazebo_diffdrive", 1, frame_skip=20_000)
    killed = []

    def kill() -> None:
        killed.append(time.perf_counter())
        world.servers[0].process.kill()

    try:
        threading.Timer(0.3, kill).start()
        world.step(np.zeros((1, 2)))
        world.reset(np.array([True]))
        return time.perf_counter() - killed[0]
    finally:
        world.close()


def memory(task: str, decisions: int) -> tuple[float, float]:
    """Resident megabytes of a server, early and late."""
    world, random = made(task, 1), np.random.default_rng(0)
    try:
        process = psutil.Process(world.servers[0].process.pid)
        drive(world, 1000, random)
        early = process.memory_info().rss / 2**20
        drive(world, decisions - 1000, random)
        return early, process.memory_info().rss / 2**20
    finally:
        world.close()


def busy() -> float:
    """Cores in use by anyone while this script waits for a second."""
    return psutil.cpu_percent(interval=1.0) / 100 * (os.cpu_count() or 1)


def measure(repeats: int, decisions: int, long: int) -> list[dict[str, object]]:
    """All rows: task, what, repeat, value, load."""
    rows: list[dict[str, object]] = []

    def add(task: str, what: str, repeat: int, value: float, load: float) -> None:
        row = {"task": task, "what": what, "repeat": repeat, "value": round(value, 4)}
        rows.append(row | {"load": round(load, 2)})
        print(*rows[-1].values(), flush=True)

    for repeat in range(1, repeats + 1):
        for task in TASKS:
            for servers in (1, 2):
                load = busy()
                add(task, f"rate_{servers}", repeat, rate(task, servers, decisions), load)
        load = busy()
        add("gazebo_diffdrive", "recovery_seconds", repeat, recovery(), load)
    load = busy()
    for name, value in zip(("early", "late"), memory("gazebo_cartpole", long), strict=True):
        add("gazebo_cartpole", f"memory_{name}_mb", 1, value, load)
    return rows


def main() -> int:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--decisions", type=int, default=2000)
    parser.add_argument("--long", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rows = measure(args.repeats, args.decisions, args.long)
    command = f"python scripts/gazebo_speed.py --repeats {args.repeats}"
    command += f" --decisions {args.decisions} --long {args.long}"
    with open(args.out, "w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "command"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {"command": command} for row in rows)
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
