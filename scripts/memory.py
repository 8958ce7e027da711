"""A task that needs memory: the same command with and without a memory, over seeds.

    python scripts/memory.py run --seeds 1 2 3
    python scripts/memory.py collect

Runs one after the other, into runs/memory; `collect` writes docs/benchmarks/memory.csv, one row per
run: the last policy, deterministic, over 100 episodes of its own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import rows
from training import train_all

from rl_twoclocks.record import read_metrics

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "memory"
OUT = ROOT / "docs" / "benchmarks" / "memory.csv"
TASK, MODELS = "tmaze", ("recurrent", "mlp")
KEY = ("task", "model", "seed")


def command(model: str, seed: int) -> list[str]:
    """The command of a run; the T-maze has a few different observations only, which is no sign."""
    words = f"python -m rl_twoclocks.train task={TASK} model={model} seed={seed}"
    return [*words.split(), "interventions=observe", "logger=jsonl", "eval.episodes=100"]


def row(model: str, seed: int) -> dict[str, object]:
    """What one finished run came to."""
    place = RUNS / model / f"seed{seed}"
    last = read_metrics(place / "metrics.jsonl")[-1]
    return {
        "task": TASK,
        "model": model,
        "seed": seed,
        "frames": json.loads((place / "result.json").read_text())["frames"],
        "return": f"{last['eval/return_mean']:.3f}",
        "success_rate": f"{last['eval/success_rate']:.2f}",
        "command": " ".join(command(model, seed)),
    }


def main() -> int:
    """Run or collect."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("run", "collect"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    jobs = [(model, seed) for model in MODELS for seed in args.seeds]
    if args.action == "run":
        return train_all([(command(m, s), RUNS / m / f"seed{s}") for m, s in jobs], at_a_time=1)
    done = [job for job in jobs if (RUNS / job[0] / f"seed{job[1]}" / "result.json").exists()]
    if not done:
        print(f"no finished run below {RUNS}")
        return 1
    rows.merge(OUT, [row(*job) for job in done], KEY)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
