"""Measure the task presets: train them over seeds by the command itself, evaluate, and keep the rows.

    python scripts/worlds.py maze grasp --seeds 1 2 3

Every run goes to `--runs`; finished ones are not trained again and broken-off ones go on. Each is then
evaluated by the evaluation command on the conditions below, on seeds of its own: its last policy, by
the mode and by samples. One row per task, seed, condition and way of acting goes to
docs/benchmarks/worlds.csv, in place of an older one of the same; rows of other runs stay.

Judged by: `judged` is 1 in the rows that count, those of the way of acting that the preset evaluates
by, under the conditions named in `TASKS`: mazes never seen in training; surfaces never seen, turned
by up to 5 degrees; elsewhere those of the training. Marks set beforehand, for each seed: maze 0.95,
grasp 0.9 (a random policy below 0.05), inspection 0.9 with and without rotation in training,
DoorKey-5x5 0.95 within 200,000 frames; CartPole 500, Acrobot -85, LunarLander 200.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import rows as kept

from rl_twoclocks import compose

OUT = Path(__file__).parent.parent / "docs" / "benchmarks" / "worlds.csv"
RUN = ("task", "conditions", "acting", "seed")
"""What a row is known by."""
SAMPLES = 200
"""Episodes of each evaluation."""
AS_TRAINED = "as trained"
RUNS = Path("runs/worlds")


@dataclass(frozen=True)
class Task:
    """What is trained, and what it is judged on beside the conditions of its training."""

    words: list[str]
    changed: dict[str, str] = field(default_factory=dict)
    judged: str = AS_TRAINED
    positive_is_success: bool = False


TEST = "{split: test}"
TASKS = {
    "maze": Task(["task=maze"], {"test": TEST}, "test"),
    "maze-dense": Task(["task=maze", "task.kwargs.reward=dense"], {"test": TEST}, "test"),
    "maze-noisy": Task(["task=maze", "task.kwargs.reward=noisy"], {"test": TEST}, "test"),
    "grasp": Task(["task=grasp"], {"friction 0.2": "{friction: 0.2}"}),
    "grasp-sparse": Task(["task=grasp", "task.kwargs.reward=sparse"]),
    "grasp-noisy": Task(["task=grasp", "task.kwargs.reward=noisy"]),
    "inspection": Task(
        ["task=inspection"],
        {"test": "{split: test, rotation: 0.0}", "test, rotated": "{split: test, rotation: 5.0}"},
        "test, rotated",
    ),
    "inspection-straight": Task(
        ["task=inspection", "task.kwargs.rotation=0.0"],
        {"test": TEST, "test, rotated": "{split: test, rotation: 5.0}"},
        "test, rotated",
    ),
    "MiniGrid-DoorKey-5x5-v0": Task(["task=minigrid"], positive_is_success=True),
    "cartpole": Task(["task=cartpole"]),
    "acrobot": Task(["task=acrobot"]),
    "lunarlander": Task(["task=lunarlander"]),
}


def measure(name: str, seed: int, runs: Path) -> list[dict]:
    """Train one task with one seed, unless that was done, and evaluate it."""
    task, place = TASKS[name], runs / name / f"seed{seed}"
    place.parent.mkdir(parents=True, exist_ok=True)
    train = ["rl_twoclocks.train", *task.words, f"seed={seed}", "logger=jsonl", f"run_dir={place}"]
    _python(train, place.parent / f"seed{seed}.log")
    result = json.loads((place / "result.json").read_text())
    preset = compose(task.words)
    preferred = "deterministic" if preset.eval.deterministic else "stochastic"
    rows = []
    for conditions, changed in ({AS_TRAINED: "{}"} | task.changed).items():
        words = [
            "rl_twoclocks.eval",
            f"checkpoint={result['checkpoint']}",
            f"episodes={SAMPLES}",
            "num_envs=50",
        ]
        words += ["seed=1000", f"changed={changed}"]
        _python(words, place.parent / f"seed{seed}.log")
        kind = "eval" if changed == "{}" else "eval-changed"
        found = json.loads(max(place.glob(f"{kind}-*.json"), key=_age).read_text())
        for acting in ("deterministic", "stochastic"):
            readings = found[acting]
            success = readings.get("eval/success_rate")
            if task.positive_is_success:
                success = float(np.mean([value > 0 for value in readings["returns"]]))
            rows.append(
                {
                    "task": name,
                    "seed": seed,
                    "frames": found["frames"],
                    "conditions": conditions,
                    "acting": acting,
                    "judged": int((conditions, acting) == (task.judged, preferred)),
                    "success_rate": "" if success is None else round(success, 4),
                    "return_mean": round(readings["eval/return_mean"], 4),
                    "episodes": len(readings["returns"]),
                    "wall_seconds": round(result["wall_seconds"], 1),
                    # As if made in the default folder: where it was is nobody's business.
                    "command": f"{_shown(train)} && {_shown(words)}".replace(str(runs), str(RUNS)),
                }
            )
    return rows


def _python(words: list[str], log: Path) -> None:
    with open(log, "a") as file:
        subprocess.run([sys.executable, "-m", *words], stdout=file, stderr=file, check=True)


def _shown(words: list[str]) -> str:
    return " ".join(["python -m", *(f"'{w}'" if " " in w else w for w in words)])


def _age(path: Path) -> float:
    return path.stat().st_mtime


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Train and judge the task presets over seeds.")
    parser.add_argument("tasks", nargs="+", choices=TASKS, help="which")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="which")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    args = parser.parse_args()
    for seed in args.seeds:
        for name in args.tasks:
            rows = measure(name, seed, args.runs)
            kept.merge(OUT, rows, RUN)
            for row in rows:
                print(*list(row.values())[:8], sep="  ", flush=True)


if __name__ == "__main__":
    main()
