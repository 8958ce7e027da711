"""Compare two sets of runs of returns.csv: interquartile means, their ratio, probability of improvement.

    python scripts/compare.py classic safe
    python scripts/compare.py classic safe --tasks halfcheetah hopper --file docs/benchmarks/returns.csv
    python scripts/compare.py classic safe --margin 0.10

Pooled over the tasks that both sets have, in scores: (return - random) / (first set's interquartile mean
- random). Intervals are 95 % stratified bootstrap intervals. With `--margin`, a last line says whether
the second set is not inferior by more than that score (one-sided 95 %); the exit code is 1 if it may be.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from figures import RANDOM_RETURNS

from rl_twoclocks.aggregate import (
    difference,
    interquartile_mean,
    pooled,
    probability_of_improvement,
    ratio,
    shortfall,
)

FILE = Path(__file__).parent.parent / "docs" / "benchmarks" / "returns.csv"


def main() -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", help="clocks of the set that is the measure")
    parser.add_argument("second", help="clocks of the set that is compared with it")
    parser.add_argument("--tasks", nargs="+", help="only these; default: all that both have")
    parser.add_argument("--margin", type=float, help="by how much the second may be inferior")
    parser.add_argument("--file", type=Path, default=FILE)
    args = parser.parse_args()
    if args.margin is not None and args.margin < 0:
        parser.error(f"--margin {args.margin:g}: by how much the second may be lower, at least 0")
    returns: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    if not args.file.is_file():
        parser.error(f"there is no {args.file}")
    with args.file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    # Only runs of the longest budget that a task has: others are no further seeds.
    longest: dict[str, int] = defaultdict(int)
    for row in rows:
        longest[row["task"]] = max(longest[row["task"]], int(row["frames"]))
    for row in rows:
        if int(row["frames"]) == longest[row["task"]]:
            returns[row["clocks"]][row["task"]].append(float(row["return_mean"]))
    for name in (args.first, args.second):
        if name not in returns:
            parser.error(
                f"{args.file} has no runs of {name!r}: it has {', '.join(sorted(returns))}"
            )
    first, second = returns[args.first], returns[args.second]
    tasks = sorted(set(args.tasks or set(first) & set(second)))
    if lacking := [
        t for t in tasks if t not in first or t not in second or t not in RANDOM_RETURNS
    ]:
        parser.error(f"not in both sets, or without a random return: {', '.join(lacking)}")
    scores = []
    for runs in (first, second):
        scaled = {}
        for task in tasks:
            low = RANDOM_RETURNS[task]
            span = float(interquartile_mean(np.array(first[task]))) - low
            scaled[task] = [(x - low) / span for x in runs[task]]
        scores.append(scaled)
    print(f"tasks: {', '.join(tasks)}")
    if any(len({len(runs[task]) for task in tasks}) > 1 for runs in (first, second)):
        print("tasks have unequal numbers of seeds: those with more weigh more")
    for name, mine, runs in zip((args.first, args.second), scores, (first, second), strict=True):
        count = sum(len(runs[task]) for task in tasks)
        print(f"{name:<12} score {pooled(mine)}, {count} runs")
        for task in tasks:
            print(f"{'':<12}   {task:<26} return {pooled({task: runs[task]})}")
    print(f"{args.second} / {args.first}: {ratio(scores[1], scores[0])}")
    print(f"{args.second} - {args.first}: {difference(scores[1], scores[0])}")
    better = probability_of_improvement(scores[1], scores[0])
    print(f"probability that a run of {args.second} beats one of {args.first}: {better}")
    if args.margin is None:
        return 0
    worst = shortfall(scores[1], scores[0])
    verdict = "not inferior" if worst <= args.margin else "may be inferior"
    print(f"{args.second} is lower by {worst:.3g} at most: {verdict} by more than {args.margin:g}")
    return int(worst > args.margin)


if __name__ == "__main__":
    raise SystemExit(main())
