"""What asynchronous collection costs in return: HalfCheetah, a million frames, beside synchronous runs.

    python scripts/async_returns.py run --runs runs/async
    python scripts/async_returns.py collect --runs runs/async

Protocol, written down before the runs: `task=halfcheetah total_frames=1000000` and nothing else but the
seed (41 to 50) and, in the arm `async`, `collect=async`: one worker, four slots, data at most eight
versions old, as shipped. An asynchronous run has the machine to itself, synchronous ones run two at a
time (what they learn does not depend on it). The last evaluation counts: deterministic, 10 episodes. A
run that diverges counts with the return of a random policy. The figure `async.return_ratio` is the
interquartile mean of (return - random) of `async` over that of `sync`, with its 95 % bootstrap interval.
Asynchronous collection is not inferior if the figure is at least 0.90; that is sure only if the interval
lies above 0.90.

`collect` writes docs/benchmarks/async_returns.csv, one row per run, where rows of other runs stay. Runs
that it holds are not made again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import rows as kept
from figures import RANDOM_RETURNS
from training import is_made, outcome, over, settings, train_all

from rl_twoclocks.batch import COMMAND, Job, told
from rl_twoclocks.record import read_metrics
from rl_twoclocks.record.records import values

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "benchmarks" / "async_returns.csv"
ARMS = {"async": ["collect=async"], "sync": []}
JOBS = {"async": 1, "sync": 2}
"""Runs at a time: an asynchronous run wants two cores."""
SEEDS = range(41, 51)
RUN = ("arm", "seed")


def run(runs: Path, arms: list[str]) -> int:
    """Train what the CSV does not hold; return how many runs failed."""
    done = kept.by_key(kept.read(OUT), RUN)
    failed = 0
    for arm in arms:
        jobs: list[Job] = []
        for seed in SEEDS:
            words = ["task=halfcheetah", f"seed={seed}", "total_frames=1000000", "logger=jsonl"]
            command = [*COMMAND, *words, *ARMS[arm]]
            if not is_made(done.get((arm, str(seed))), command):
                jobs.append((command, runs / arm / f"seed{seed}"))
        failed += train_all(jobs, JOBS[arm])
    return failed


def collect(runs: Path) -> int:
    """Write every finished run into the CSV."""
    rows = []
    for place in over(runs, "*/seed*"):
        metrics = read_metrics(place / "metrics.jsonl")
        rows.append(
            {
                "arm": place.parent.name,
                "seed": int(place.name.removeprefix("seed")),
                "return_mean": outcome(place, RANDOM_RETURNS["halfcheetah"]),
                "staleness": round(statistics.fmean(values(metrics, "clock/staleness_mean")), 3),
                "wall_seconds": round(metrics[-1]["time/wall_seconds"], 1),
                "settings": settings(place),
                "command": told(place),
            }
        )
    if not rows:
        print(f"no finished run below {runs}")
        return 1
    kept.merge(OUT, rows, RUN)
    return 0


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "collect"])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "async")
    args = parser.parse_args()
    return run(args.runs, args.arms) if args.what == "run" else collect(args.runs)


if __name__ == "__main__":
    sys.exit(main())
