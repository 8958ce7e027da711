"""What single parts of the classic preset are worth: one part changed at a time.

    python scripts/ablation.py run --jobs 2 --runs runs/ablation
    python scripts/ablation.py collect --runs runs/ablation

Protocol, written down before the runs: HalfCheetah-v5 and Hopper-v5, `clocks=classic`, 300,000 frames,
seeds 401 to 405, no interventions, evaluation deterministic, 10 episodes, at the end. `ARMS` names what
is changed; `shipped` changes nothing. An arm is worse (better) if the 95 % stratified bootstrap
interval of the difference of its pooled interquartile mean from that of its base lies below (above) 0,
otherwise undecided. Ten comparisons at 95 % on five seeds: expect one that is decided by chance. A run
that diverges counts with the return of a random policy. The base is `shipped`, and `safe clocks` for
the cut segments (a window of classic is one rollout: there is nothing to cut). Scores are (return -
random) / (that of `shipped` - random).

`collect` writes docs/benchmarks/ablation.csv, one row per run, where rows of other runs stay, the table
ablation.md, and draws ablation.png. Runs that the CSV holds are not made again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import rows as kept
from figures import (
    ABLATION_BASES,
    ABLATION_SEEDS,
    ABLATION_TASKS,
    RANDOM_RETURNS,
    ablation_gaps,
    ablation_returns,
)
from training import is_made, outcome, over, settings, train_all

from rl_twoclocks.aggregate import interquartile_mean
from rl_twoclocks.batch import COMMAND, told

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "benchmarks"
RUN = ("task", "arm", "seed")
SEEDS, FRAMES = range(401, 401 + ABLATION_SEEDS), 300_000
ARMS: dict[str, list[str]] = {
    "shipped": [],
    "advantages once a round": ["algo.advantage_refresh=round"],
    "reward not scaled": ["normalize.reward=none"],
    "wider first policy": ["model.log_std_init=0.0"],
    "narrower first policy": ["model.log_std_init=-1.0"],
    "5 passes": ["clocks.update_epochs=5"],
    "3 passes": ["clocks.update_epochs=3"],
    "clip 0.1": ["algo.clip_epsilon=0.1"],
    "AGC": ["optim=adam_agc"],
    # The preset's clip is another one: here the clocks alone change.
    "safe clocks": ["algo.clip_epsilon=0.2"],
    "safe clocks and segments cut": ["algo.clip_epsilon=0.2", "collect.split_trajs=true"],
}
HEADING = """<!-- Written by scripts/ablation.py collect: nothing below is typed. -->

# What single parts of the classic preset are worth

One part changed at a time: 300,000 frames, five seeds, no interventions, returns as interquartile means.
The protocol is in the first lines of [scripts/ablation.py](../../scripts/ablation.py), every run in
[ablation.csv](ablation.csv). A verdict is about both tasks together, of which one may decide it; of ten
comparisons one may be decided by chance.

```
python scripts/ablation.py run --jobs 2 --runs runs/ablation
python scripts/ablation.py collect --runs runs/ablation
```

![Ablation](ablation.png)

| arm | what is changed | {tasks} | base | difference in score (95 %) | verdict |
| --- | --- | --- | --- | --- | --- | --- |"""


def command(task: str, arm: str, seed: int) -> list[str]:
    """One run, as a user would type it."""
    clocks = "safe" if arm.startswith("safe") else "classic"
    words = [f"task={task}", f"clocks={clocks}", *ARMS[arm], f"seed={seed}"]
    words += [f"total_frames={FRAMES}", f"eval.every_frames={FRAMES}"]
    return [*COMMAND, *words, "interventions=off", "logger=jsonl"]


def run(args: argparse.Namespace) -> int:
    """Train what ablation.csv does not hold; return how many runs failed."""
    done = kept.by_key(kept.read(OUT / "ablation.csv"), RUN)
    jobs = [
        (command(task, arm, seed), args.runs / task / arm.replace(" ", "_") / f"seed{seed}")
        for seed in SEEDS
        for task in ABLATION_TASKS
        for arm in ARMS
        if not is_made(done.get((task, arm, str(seed))), command(task, arm, seed))
    ]
    return train_all(jobs, args.jobs)


def collect(args: argparse.Namespace) -> int:
    """Write every finished run into ablation.csv, where others stay; write the table and draw it."""
    rows = []
    for place in over(args.runs, "*/*/seed*"):
        task, arm, seed = place.parts[-3], place.parts[-2].replace("_", " "), place.name[4:]
        rows.append(
            {
                "task": task,
                "arm": arm,
                "seed": int(seed),
                "return_mean": round(outcome(place, RANDOM_RETURNS[task]), 2),
                "settings": settings(place),
                "command": told(place),
            }
        )
    if not rows:
        print(f"no finished run below {args.runs}")
        return 1
    _report(kept.merge(OUT / "ablation.csv", rows, RUN))
    return 0


def _report(rows: list[dict]) -> None:
    """Write ablation.md and draw ablation.png."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    gaps = ablation_gaps(rows)
    arms = [arm for arm in ARMS if arm in gaps]
    if missing := set(ARMS) - {*arms, "shipped"}:
        print(f"not complete yet: {', '.join(sorted(missing))}")
    returns = ablation_returns(rows)
    lines = [HEADING.format(tasks=" | ".join(ABLATION_TASKS))]
    figure, axes = plt.subplots(figsize=(7.5, 0.42 * len(arms) + 1.2), layout="constrained")
    for place, arm in enumerate(["shipped", *arms] if arms else []):
        cells = [f"{interquartile_mean(np.array(returns[arm][t])):,.0f}" for t in ABLATION_TASKS]
        told = ["", "", ""]
        if gap := gaps.get(arm):
            verdict = "worse" if gap.high < 0 else "better" if gap.low > 0 else "undecided"
            told = [ABLATION_BASES.get(arm, "shipped"), f"{gap.value:+.2f}", verdict]
            told[1] += f" ({gap.low:+.2f} to {gap.high:+.2f})"
            axes.errorbar(
                gap.value, -place, xerr=[[gap.value - gap.low], [gap.high - gap.value]],
                fmt="o", color="tab:blue", capsize=3,
            )  # fmt: skip
        words = ["clocks=safe", *ARMS[arm]] if arm.startswith("safe") else ARMS[arm]
        changed = f"`{' '.join(words)}`" if words else ""
        lines.append(f"| {' | '.join([arm, changed, *cells, *told])} |")
    (OUT / "ablation.md").write_text("\n".join(lines) + "\n")
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks([-k for k in range(1, len(arms) + 1)], arms)
    axes.set(
        xlabel="score, difference from the base (shipped: 1)",
        title="HalfCheetah and Hopper, classic, 300,000 frames",
    )
    axes.grid(axis="x", alpha=0.25)
    figure.savefig(OUT / "ablation.png", dpi=130)
    plt.close(figure)


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "collect"])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "ablation")
    args = parser.parse_args()
    return run(args) if args.what == "run" else collect(args)


if __name__ == "__main__":
    sys.exit(main())
