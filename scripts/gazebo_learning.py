"""Train the Gazebo tasks over seeds, and measure what was learnt on episodes never seen in training.

    python scripts/gazebo_learning.py --tasks gazebo_cartpole gazebo_arm gazebo_diffdrive --seeds 1 2 3

Every run is the command itself with the preset as shipped; a finished one is not run again. Judged
by: the share of 100 deterministic episodes of the *last* policy, on seeds of their own, that
succeed. Marks set beforehand: `gazebo_cartpole` reaches its time limit in all, `gazebo_arm` is
within 5 cm of the target at the end in at least 0.9, `gazebo_diffdrive` reaches its goal in at
least 0.9. A row with seed 0 is the same for uniformly random actions. Writes
docs/benchmarks/gazebo.csv; rows of other runs stay.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import rows as kept
import torch

from rl_twoclocks import compose
from rl_twoclocks.envs import make_env
from rl_twoclocks.evaluate import Evaluation, evaluate

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "benchmarks" / "gazebo.csv"
TASKS = ("gazebo_cartpole", "gazebo_arm", "gazebo_diffdrive")
EPISODES, SEED = 100, 10_000
"""Of the final evaluation; no training run uses this seed."""


def train(task: str, seed: int, place: Path) -> dict:
    """Train, or take what is there; what `result.json` says."""
    words = ["-m", "rl_twoclocks.train", f"task={task}", f"seed={seed}", "logger=jsonl"]
    words += [f"run_dir={place}", "logger.display=plain"]
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".log"), "a") as log:
        subprocess.run([sys.executable, *words], check=True, stdout=log, stderr=log)
    return json.loads((place / "result.json").read_text())


def judge(checkpoint: str) -> dict[str, float]:
    """Readings of the deterministic policy on fresh episodes."""
    words = [f"checkpoint={checkpoint}", f"episodes={EPISODES}", "num_envs=4", f"seed={SEED}"]
    subprocess.run([sys.executable, "-m", "rl_twoclocks.eval", *words], check=True)
    path = Path(checkpoint)
    return json.loads(path.with_name(f"eval-{path.stem}.json").read_text())["deterministic"]


def at_random(task: str) -> Evaluation:
    """Whole episodes of uniformly random actions."""
    config = compose([f"task={task}"])
    env = make_env(config.task, config.collect, 4, [SEED + i for i in range(4)])
    torch.manual_seed(0)
    try:
        found = evaluate(
            lambda _: env.action_spec.rand(), env, EPISODES, [SEED + i for i in range(4)]
        )
        assert found is not None
        return found
    finally:
        env.close()


def row(task: str, seed: int, runs: Path) -> dict[str, object]:
    """One row of the table."""
    if seed == 0:
        readings, frames, seconds = at_random(task).readings(), 0, 0.0
        command = "uniformly random actions"
    else:
        result = train(task, seed, runs / task / f"seed{seed}")
        readings, frames = judge(result["checkpoint"]), result["frames"]
        seconds = result["wall_seconds"]
        command = f"python -m rl_twoclocks.train task={task} seed={seed} logger=jsonl"
    return {
        "task": task,
        "seed": seed,
        "frames": frames,
        "episodes": readings["eval/episodes"],
        "success_rate": round(readings["eval/success_rate"], 4),
        "return_mean": round(readings["eval/return_mean"], 3),
        "return_std": round(readings["eval/return_std"], 3),
        "length_mean": round(readings["eval/length_mean"], 2),
        "train_seconds": round(seconds),
        "command": command,
    }


def main() -> int:
    """Train, measure, merge into the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "gazebo")
    args = parser.parse_args()
    for seed in args.seeds:
        for task in args.tasks:
            found = row(task, seed, args.runs)
            print(f"{task} seed {seed}: success {found['success_rate']}", flush=True)
            kept.merge(OUT, [found], ("task", "seed"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
