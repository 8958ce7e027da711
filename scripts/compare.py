"""Compare two sets of runs of returns.csv: interquartile means, their ratio, probability of improvement.

    python scripts/compare.py classic safe
    python scripts/compare.py classic safe --tasks halfcheetah hopper --file docs/benchmarks/returns.csv
    python scripts/compare.py classic safe --margin 0.10

Pooled over the tasks that both sets have, in scores: (return - random) / (first set's interquartile mean
- random). Intervals are 95 % stratified bootstrap intervals. Of each task, the longest budget that both
sets have counts. With `--margin`, a last line says whether the second set is not inferior by more than
that score (one-sided 95 %); the exit code is 1 if it may be. It takes at least `ENOUGH` seeds a task.
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
    normalised,
    pooled,
    probability_of_improvement,
    ratio,
    shortfall,
)

ENOUGH = 5
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
    if not args.file.is_file():
        parser.error(f"there is no {args.file}")
    with args.file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    known = {row["clocks"] for row in rows}
    if strange := {args.first, args.second} - known:
        names = ", ".join(sorted(strange))
        parser.error(f"{args.file} has no runs of {names}: it has {', '.join(sorted(known))}")
    try:
        first, second = shared(rows, args.first, args.second, args.tasks)
        scores = [scaled(first, first), scaled(second, first)]
    except ValueError as error:
        parser.error(str(error))
    tasks = list(first)
    fewest = min(len(runs[task]) for runs in (first, second) for task in tasks)
    if args.margin is not None and fewest < ENOUGH:
        parser.error(f"--margin: {fewest} seeds of a task decide nothing, it takes {ENOUGH}")
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


Returns = dict[str, list[float]]
"""By task, one per seed."""


def shared(
    rows: list[dict[str, str]], first: str, second: str, asked: list[str] | None
) -> tuple[Returns, Returns]:
    """The returns of both sets on the tasks that both have, at the longest budget that both have.

    Raises:
        ValueError: there is no such task, or one that was asked for is none.
    """
    found: dict[str, dict[str, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        found[row["task"]][row["clocks"]][int(row["frames"])].append(float(row["return_mean"]))
    sets: tuple[Returns, Returns] = ({}, {})
    for task in sorted(set(asked or found)):
        mine, theirs = (found[task][name] for name in (first, second))
        budgets = set(mine) & set(theirs)
        why = None if budgets else "both sets have no runs of the same budget"
        why = "it has no return of a random policy" if task not in RANDOM_RETURNS else why
        if why is None:
            sets[0][task], sets[1][task] = mine[max(budgets)], theirs[max(budgets)]
        elif asked:
            raise ValueError(f"{task}: {why}")
        elif mine and theirs:
            print(f"{task} is left out: {why}")
    if not sets[0]:
        raise ValueError(f"no task with runs of {first} and of {second}")
    return sets


def scaled(runs: Returns, reference: Returns) -> Returns:
    """Scores by task, where 1 is the reference's interquartile mean.

    Raises:
        ValueError: the reference is no better than a random policy on a task.
    """
    scores = {}
    for task, returns in runs.items():
        top = float(interquartile_mean(np.array(reference[task])))
        try:
            scores[task] = normalised(returns, RANDOM_RETURNS[task], top)
        except ValueError as error:
            raise ValueError(f"{task}: {error}") from None
    return scores


if __name__ == "__main__":
    raise SystemExit(main())
