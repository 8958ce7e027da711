"""Does a rescue bring a run back whose cause returns? Learning rate 30 x too high, clock ratio 50.

    python scripts/rescue.py run --runs runs/rescue
    python scripts/rescue.py table --runs runs/rescue

Arms, alike in everything else: `none` (no governor; a number that is not finite ends the run), `skip`
(the same, but such a step is thrown away and the run goes on, as those of the other arms do),
`rollback` (back to before the cliff, nothing slower), `rescue` (the shipped rescue, other cures off),
`guard` (all cures). The rule, written down before the runs: a run has recovered if it fell (the
governor's cliff alarm, a loss that is not finite, or three evaluations in a row below half of the best
score), finished its budget, and the median score of its last ten evaluations, a quarter of the budget,
is at least 0.95 of the best one before the fall.
A run that never fell has nothing to recover from and is reported as such.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import run as start

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "benchmarks" / "rescue.csv"
FRAMES = 100_000
LAST = 10
"""Evaluations at the end that are judged."""
RANDOM = 22.0
"""Return of a random policy on CartPole."""
CAUSE = [
    "task=cartpole",
    "clocks=safe",
    "clocks.update_frequency=256",
    "clocks.batch_size=12800",
    "clocks.minibatch_size=64",
    "optim.learning_rate=9e-3",
    "optim.schedule=constant",
]
ONLY_RESCUE = [
    f"interventions.{cure}.enabled=false"
    for cure in ("trim", "reseed", "step", "clip", "ratio", "passes", "width", "memory")
]
ARMS = {
    "none": ["interventions=observe"],
    "skip": ["interventions=observe", "interventions.on_nonfinite=skip"],
    "rollback": [*ONLY_RESCUE, "interventions.rescue.shrink=1", "interventions.rescue.step=1"],
    "rescue": ONLY_RESCUE,
    "guard": [],
}


def train(runs: Path, arm: str, seed: int) -> int:
    """Train one run, unless it is done."""
    place = runs / arm / f"seed{seed}"
    if (place / "result.json").exists():
        return 0
    words = [*CAUSE, *ARMS[arm], f"seed={seed}", f"total_frames={FRAMES}", f"run_dir={place}"]
    words += [f"eval.every_frames={FRAMES // 40}", "logger=jsonl", "logger.display=none"]
    words += ["compile=true", "on_existing=overwrite", "eval.episodes=5", "eval.num_envs=5"]
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.parent / f"seed{seed}.log", "w") as log:
        command = [sys.executable, "-m", "rl_twoclocks.train", *words]
        code = start(command, stdout=log, stderr=log, check=False).returncode
    print(f"{arm} seed {seed}: exit {code}", flush=True)
    return code


def judge(place: Path) -> dict[str, object]:
    """Apply the rule to one run."""
    from rl_twoclocks.diagnostics.cliff import collapsed
    from rl_twoclocks.record import read_metrics

    rows = read_metrics(place / "metrics.jsonl")
    events = read_metrics(place / "events.jsonl")
    points = [(r["frames"], r["eval/return_mean"]) for r in rows if "eval/return_mean" in r]
    values = [value for _, value in points]
    fallen = [points[i][0] for i in range(len(values)) if collapsed(values[: i + 1], RANDOM)]
    fallen += [e["frames"] for e in events if e["name"] in ("reward_cliff", "nonfinite")]
    ended = place / "error.txt"
    if ended.exists() and "NonFiniteError" in ended.read_text():
        fallen.append(rows[-1]["frames"])
    fall = min(fallen, default=None)
    best = max((v for f, v in points if fall is None or f <= fall), default=RANDOM)
    scores = [(v - RANDOM) / (best - RANDOM) for v in values[-LAST:]] if best > RANDOM else []
    finished = (place / "result.json").exists()
    last = statistics.median(scores) if scores else 0.0
    return {
        "fell_at": "" if fall is None else fall,
        "best_before": round(best, 1),
        "last_returns": " ".join(f"{v:.0f}" for v in values[-LAST:]),
        "last_score": round(last, 3),
        "recovered": "" if fall is None else int(finished and last >= 0.95),
        "rescues": sum(e["kind"] == "rescue" for e in events),
        "finished": int(finished),
    }


def table(runs: Path) -> None:
    """Write docs/benchmarks/rescue.csv."""
    rows = []
    for arm in ARMS:
        for place in sorted((runs / arm).glob("seed*")):
            if (place / "metrics.jsonl").exists():
                words = " ".join(["python -m rl_twoclocks.train", *CAUSE, *ARMS[arm]])
                seed = int(place.name.removeprefix("seed"))
                rows.append({"arm": arm, "seed": seed, **judge(place), "command": words})
    for row in rows:
        print(json.dumps({k: v for k, v in row.items() if k != "command"}))
    if rows:
        with open(OUT, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    # Seeds 1 to 12 served to build the rescue.
    parser.add_argument("--seeds", nargs="+", type=int, default=[13, 14, 15, 16, 17])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "rescue")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    args = parser.parse_args()
    if args.what == "table":
        table(args.runs)
        return 0
    jobs = [(arm, seed) for seed in args.seeds for arm in args.arms]
    with ThreadPoolExecutor(args.jobs) as pool:
        return sum(code != 0 for code in pool.map(lambda job: train(args.runs, *job), jobs))


if __name__ == "__main__":
    sys.exit(main())
