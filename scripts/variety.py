"""Do trimming and reseeding help while the data has lost its variety?

    python scripts/variety.py run --jobs 2 --runs runs/variety
    python scripts/variety.py collect --runs runs/variety

Protocol, written down before the runs: HalfCheetah-v5 and CartPole, 60,000 frames in rounds of 512
(`clocks=classic` otherwise), seeds 421 to 430. From 30 to 50 % of the run all observations stand still
(`frozen`) or move by a tenth only (`contraction`), as those of broken sensors; then they are right
again. Evaluations see what is true, 10 episodes, deterministic; what counts is the last one. Arms:
`healthy` (nothing breaks), `none` (the governor watches), `trim` (70 % of the window, the newest, as
long as the alarm lasts), `reseed` (new episodes and a little noise), `both`; no other cure.

The fault harms if the 95 % stratified bootstrap interval of the difference of the pooled interquartile
mean of `none` from that of `healthy` lies below 0. A cure helps (hurts) if that of its difference from
`none` lies above (below) 0; otherwise this is undecided. Where the fault does not harm, nothing can be
said for a cure. Scores are (return - random) / (healthy - random). A run that diverges counts with the
return of a random policy.

`collect` writes docs/benchmarks/variety.csv, one row per run, where rows of other runs stay, and prints
the verdicts. Runs that the CSV holds are not made again.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import rows as kept
from faults import FRAMES, ROUND, come_to, each_apart, planted, settings
from figures import RANDOM_RETURNS
from training import outcome, over

from rl_twoclocks import batch, compose
from rl_twoclocks.aggregate import difference, interquartile_mean, normalised
from rl_twoclocks.record.records import Records

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "benchmarks" / "variety.csv"
TASKS, SEEDS = ["halfcheetah", "cartpole"], range(421, 431)
FAULTS = ["frozen", "contraction"]
BEGIN, END = int(0.3 * FRAMES), int(0.5 * FRAMES)
ARMS = {"none": [], "trim": ["trim"], "reseed": ["reseed"], "both": ["trim", "reseed"]}
"""The cures that act."""
CURES = ("trim", "reseed", "step", "clip", "ratio", "passes", "width", "memory", "rescue")
RUN = ("task", "fault", "arm", "seed")
Job = tuple[Path, str, str, str, int]


def overrides(arm: str) -> list[str]:
    """The governor of an arm: only its own cures are on."""
    if not ARMS.get(arm):
        return []
    off = [f"interventions.{c}.enabled=false" for c in CURES if c not in ARMS[arm]]
    return ["interventions=guard", "interventions.on_nonfinite=stop", *off]


def train(job: Job) -> str:
    """Train one run in a process of its own."""
    runs, task, fault, arm, seed = job
    place = runs / task / fault / arm / f"seed{seed}"
    if batch.is_over(place):
        return f"{place}: done before"
    config = compose([*settings(task, seed, place), "eval.episodes=10", *overrides(arm)])
    # A run without a fault is planted one that begins when it is over.
    begin = FRAMES if arm == "healthy" else BEGIN
    place.parent.mkdir(parents=True, exist_ok=True)
    with planted("frozen" if arm == "healthy" else fault, begin, ROUND, END):
        return come_to(place, config)


def jobs(runs: Path) -> list[Job]:
    """What variety.csv does not hold."""
    done = kept.keys(kept.read(OUT), RUN)
    return [
        (runs, task, fault, arm, seed)
        for seed in SEEDS
        for task in TASKS
        for fault, arm in [("-", "healthy"), *((f, a) for f in FAULTS for a in ARMS)]
        if (task, fault, arm, str(seed)) not in done
    ]


def collect(runs: Path) -> int:
    """Write every finished run into variety.csv; print the verdicts."""
    rows = []
    for place in over(runs, "*/*/*/seed*"):
        task, fault, arm, seed = (*place.parts[-4:-1], int(place.name[4:]))
        orders = [e for e in Records.read(place).events if e["kind"] == "order"]
        rows.append(
            {
                "task": task,
                "fault": fault,
                "arm": arm,
                "seed": seed,
                "return_mean": round(outcome(place, RANDOM_RETURNS[task]) or 0.0, 2),
                "ended": "diverged" if batch.diverged_file(place).exists() else "finished",
                "orders": len(orders),
                "begin": "" if arm == "healthy" else BEGIN,
                "end": "" if arm == "healthy" else END,
                "command": "python scripts/variety.py run",
            }
        )
    if not rows:
        print(f"no finished run below {runs}")
        return 1
    for line in verdicts(kept.merge(OUT, rows, RUN)):
        print(line)
    return 0


def verdicts(rows: list[dict]) -> list[str]:
    """What the rule at the top says, a line per fault and arm; nothing before all seeds are there."""
    returns: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        returns[row["fault"], row["arm"]][row["task"]].append(float(row["return_mean"]))
    healthy = returns["-", "healthy"]
    full = {
        k for k, v in returns.items() if sorted(map(len, v.values())) == [len(SEEDS)] * len(TASKS)
    }
    if ("-", "healthy") not in full:
        return ["not complete yet: healthy"]
    one = {task: float(interquartile_mean(np.array(x))) for task, x in healthy.items()}

    def scores(fault: str, arm: str) -> dict[str, list[float]]:
        found = returns[fault, arm]
        return {t: normalised(found[t], RANDOM_RETURNS[t], one[t]) for t in TASKS}

    lines = []
    for fault in FAULTS:
        for arm in ARMS:
            base = ("-", "healthy") if arm == "none" else (fault, "none")
            if not {(fault, arm), base} <= full:
                lines.append(f"{fault}, {arm}: not complete yet")
                continue
            gap = difference(scores(fault, arm), scores(*base))
            words = ("harms", "does not harm") if arm == "none" else ("hurts", "helps")
            said = words[0] if gap.high < 0 else words[1] if gap.low > 0 else "undecided"
            lines.append(
                f"{fault}, {arm}: {gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f}), {said}"
            )
    return lines


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "collect"])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "variety")
    args = parser.parse_args()
    if args.what == "collect":
        return collect(args.runs)
    each_apart(train, jobs(args.runs), args.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
