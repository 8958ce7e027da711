"""Search hyperparameters of `clocks=safe` and `clocks=classic` with one and the same budget.

    python scripts/search.py run --runs runs/search
    python scripts/search.py confirm --runs runs/search
    python scripts/search.py table --runs runs/search

The rule, written down before the runs: for each of the two, `CONFIGS` points are drawn at random from
its space below (point 0 is what was shipped before) and trained on HalfCheetah and Walker2d (at 300,000
frames Hopper tells no points apart) for `FRAMES` frames with seed 101, which no reported run uses.
`CHOSEN` adds one more point to each, thought of after the first were seen. A point's score is the mean
over tasks of (return - random) / (reference - random); a run that diverges counts with the random
return. A short run favours what anneals fast, so the best `FINALISTS` points of each are trained again
on every task in `TASKS` for `CONFIRM_FRAMES` frames with seeds 102 and 103, and the point with the best
mean there is the preset of its side, for all tasks alike. Whoever looks at fewer points of one side
than of the other must say so. No interventions: presets are compared, not the cures that they would be
given.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

import rows as kept
import training
from figures import RANDOM_RETURNS

from rl_twoclocks import batch

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "benchmarks" / "search.csv"
CONFIGS = 8
FINALISTS = 2
FRAMES, CONFIRM_FRAMES = 300_000, 1_000_000
SEARCH_SEED, CONFIRM_SEEDS = 101, (102, 103)
TASKS = {"halfcheetah": 4000.0, "hopper": 3000.0, "walker2d": 3000.0}
"""Reference returns, for the score only."""
SEARCHED = ("halfcheetah", "walker2d")
SPACES: dict[str, dict[str, list]] = {
    "classic": {
        "clocks": [(2048, 2048), (1024, 1024), (512, 512)],
        "clocks.update_epochs": [5, 10, 15],
        "optim.learning_rate": [2e-4, 3e-4, 5e-4],
        "algo.clip_epsilon": [0.1, 0.2, 0.3],
        "algo.gae_lambda": [0.9, 0.95],
        "clocks.minibatch_size": [64, 128],
    },
    "safe": {
        "clocks": [(1984, 496), (1024, 512), (1024, 256), (2000, 400)],
        "clocks.update_epochs": [1, 2, 3],
        "optim.learning_rate": [2e-4, 3e-4, 5e-4],
        "algo.clip_epsilon": [0.1, 0.2],
        "algo.objective": ["decoupled", "geppo"],
        "algo.gae_lambda": [0.9, 0.95],
        "clocks.minibatch_size": [64, 128],
    },
}


SHIPPED: dict[str, list[str]] = {
    "classic": [],
    "safe": ["clocks.batch_size=1984", "clocks.update_frequency=496"],
}
"""Before the search, which chose point 8 of classic and point 6 of safe."""
CHOSEN: dict[str, list[list[str]]] = {
    "classic": [["algo.gae_lambda=0.9"]],
    "safe": [
        [
            *SHIPPED["safe"],
            "algo.advantage=vtrace",
            "algo.max_importance_ratio=1.0",
            "algo.ess_base=1.0",
        ]
    ],
}
COLUMNS = ("clocks", "point", "task", "seed", "frames", "return_mean", "overrides")
POINTS = CONFIGS + 1
"""Points of each."""


def points(clocks: str) -> list[list[str]]:
    """The overrides of every point; the same list on every machine."""
    stream = random.Random(f"search {clocks}")
    drawn: list[list[str]] = [SHIPPED[clocks]]
    while len(drawn) < CONFIGS:
        overrides = []
        for key, values in SPACES[clocks].items():
            value = stream.choice(values)
            if key == "clocks":
                overrides += [
                    f"clocks.batch_size={value[0]}",
                    f"clocks.update_frequency={value[1]}",
                ]
            else:
                overrides.append(f"{key}={value}")
        if overrides not in drawn:
            drawn.append(overrides)
    return drawn + CHOSEN[clocks]


def place(runs: Path, clocks: str, point: int, task: str, seed: int) -> Path:
    """Run directory of one run."""
    return runs / clocks / f"point{point}" / task / f"seed{seed}"


def recorded() -> dict[tuple[str, ...], float]:
    """Returns that search.csv holds already: a search may be made in several sittings."""
    keys = ("clocks", "point", "task", "seed", "frames", "overrides")
    return {tuple(r[k] for k in keys): float(r["return_mean"]) for r in kept.read(OUT)}


def found(runs: Path, clocks: str, point: int, task: str, seed: int) -> float | None:
    """Return of one run, from its directory or from search.csv; None where it is still to be made."""
    directory = place(runs, clocks, point, task, seed)
    if batch.is_over(directory) and batch.told(directory) == " ".join(
        command(clocks, point, task, seed)
    ):
        return training.outcome(directory, RANDOM_RETURNS[task])
    frames = FRAMES if seed == SEARCH_SEED else CONFIRM_FRAMES
    words = " ".join(points(clocks)[point])
    return recorded().get((clocks, str(point), task, str(seed), str(frames), words))


def command(clocks: str, point: int, task: str, seed: int) -> list[str]:
    """One run, as a user would type it."""
    frames = FRAMES if seed == SEARCH_SEED else CONFIRM_FRAMES
    # Without what the search found.
    words = [f"task={task}", f"clocks={clocks}", "tuned=none", f"seed={seed}"]
    words.append(f"total_frames={frames}")
    # Only the end counts; evaluations on the way cost time and change nothing.
    words += [*points(clocks)[point], "logger=jsonl", f"eval.every_frames={frames}"]
    return [*batch.COMMAND, *words, "interventions=off"]


def score(
    runs: Path, clocks: str, point: int, tasks: Iterable[str], seeds: Iterable[int]
) -> float | None:
    """Mean normalised score over tasks and seeds; None where a run is missing."""
    scores = []
    for task, seed in itertools.product(tasks, seeds):
        mean = found(runs, clocks, point, task, seed)
        if mean is None:
            return None
        low, high = RANDOM_RETURNS[task], TASKS[task]
        scores.append((mean - low) / (high - low))
    return statistics.fmean(scores)


def finalists(runs: Path, clocks: str) -> list[int]:
    """The points that go on, best first, and what was shipped before.

    Raises:
        SystemExit: the search is not complete.
    """
    scored = [(score(runs, clocks, p, SEARCHED, [SEARCH_SEED]), p) for p in range(POINTS)]
    if missing := [str(point) for s, point in scored if s is None]:
        raise SystemExit(
            f"clocks={clocks} lacks points {', '.join(missing)}: `search.py run` first"
        )
    done = sorted(((s, p) for s, p in scored if s is not None), reverse=True)
    return list(dict.fromkeys([*(point for _, point in done[:FINALISTS]), 0]))


def table(runs: Path) -> None:
    """Write every run that is done to docs/benchmarks/search.csv, and print the points by score."""
    rows = []
    for clocks in SPACES:
        for point, overrides in enumerate(points(clocks)):
            for task in TASKS:
                for seed in (SEARCH_SEED, *CONFIRM_SEEDS):
                    mean = found(runs, clocks, point, task, seed)
                    if mean is not None:
                        words = " ".join(overrides)
                        frames = FRAMES if seed == SEARCH_SEED else CONFIRM_FRAMES
                        values = (clocks, point, task, seed, frames, round(mean, 1), words)
                        rows.append(dict(zip(COLUMNS, values, strict=True)))
            short = score(runs, clocks, point, SEARCHED, [SEARCH_SEED])
            full = score(runs, clocks, point, TASKS, CONFIRM_SEEDS)
            if short is not None:
                more = "" if full is None else f"  confirmed {full:.3f}"
                print(f"{clocks} point {point}: {short:.3f}{more}  {' '.join(overrides)}")
    # Runs of other seeds stay.
    kept.merge(OUT, rows, (*COLUMNS[:5], COLUMNS[6]))


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "confirm", "table"])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "search")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    args = parser.parse_args()
    if args.what == "table":
        table(args.runs)
        return 0
    if args.what == "run":
        # Point by point on both sides: broken off at any time, both have had the same budget.
        jobs = [(c, p, t, SEARCH_SEED) for p in range(POINTS) for c in SPACES for t in SEARCHED]
    else:
        best = {clocks: finalists(args.runs, clocks) for clocks in SPACES}
        jobs = [(c, p, t, s) for s in CONFIRM_SEEDS for t in TASKS for c in SPACES for p in best[c]]
    todo = [job for job in jobs if found(args.runs, *job) is None]
    return training.train_all([(command(*job), place(args.runs, *job)) for job in todo], args.jobs)


if __name__ == "__main__":
    sys.exit(main())
