"""The lag curve: what each objective is worth on data that is several versions old.

    python scripts/lag.py run --stage screen --tasks cartpole acrobot --runs runs/lag
    python scripts/lag.py collect --runs runs/lag

Protocol, written down before the runs. `clocks=classic` (B = U = 2048, 10 passes) for all, without what
a search found for a task (`tuned=none`); every rollout waits `lag` rounds in a queue (`clocks.lag`), and
the frames that fill the queue come on top of the budget, so that all arms learn for as many rounds; no
interventions; evaluation is deterministic, 10 episodes, at the end of the run. Varied: the objective
(`--objectives`), the lag, the task, the seed.

* Screen: all presets at lag 0, 2, 8 and 16, three seeds (201 to 203). At lag 0 `decoupled`, `geppo` and
  `vtrace` are `clipped`, up to rounding: its runs count for them there.
* Parts: each of what the presets are made of, alone, at lag 8, same seeds: V-trace advantages (`align`)
  and the ESS-scaled step (`ess`), both clipped around the behaviour policy; the total-variation filter
  in the place of the clip (`filter`); the proximal centre alone is `decoupled`, score centring alone
  `centred`.
* Final: `clipped`, `twoclocks` and the three best others of the screen, at lag 0, 1, 2, 4, 8, 16 and 32,
  ten seeds (211 to 220) on small tasks, five on MuJoCo. Best means the largest mean score over tasks and
  lags 2, 8 and 16 of the screen; `python scripts/lag.py best` names them.
* Score: (return - random) / (best - random), `best` being the interquartile mean at lag 0 of the
  objective that is best there, on the same task and stage; none before all seeds are there at lag 0.
  An objective holds at a lag if the interquartile mean of its scores, a point, is at least 0.95 (lag 2),
  0.8 (lag 8) or 0.6 (lag 16), all seeds made. Intervals are in figures.json.
  The best of several means is higher than any of them in truth: with the spread of HalfCheetah's seeds
  an objective that loses nothing by lag scores some 0.86 in the screen (8 objectives, 3 seeds).
* A run that ends because a loss is not finite counts with the return of a random policy: score 0.
* The horizontal axis is what was measured (mean staleness, total variation), never the nominal lag.

`collect` writes docs/benchmarks/lag.csv, one row per run, where rows of other runs stay, and a
picture per task, and the tables of docs/benchmarks/lag.md. Runs that lag.csv holds are not made again.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from pathlib import Path

import numpy as np
import rows as kept
import yaml
from figures import LAG_SEEDS, LAG_TWINS, RANDOM_RETURNS, lag_scores, lag_seeds
from training import is_made, outcome, over, settings, train_all

from rl_twoclocks.aggregate import interquartile_mean
from rl_twoclocks.batch import COMMAND, told
from rl_twoclocks.record import read_metrics
from rl_twoclocks.record.records import values

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "benchmarks"
PRESETS = ["clipped", "decoupled", "geppo", "vtrace", "vaco", "centred", "spo", "twoclocks"]
OBJECTIVES = {name: [f"algo={name}"] for name in PRESETS} | {
    "align": ["algo=clipped", "algo.advantage=vtrace"],
    "filter": ["algo=vaco", "algo.advantage=gae", "algo.advantage_refresh=pass"],
    "ess": ["algo=clipped", "algo.ess_base=1.0"],
    "twoclocks_vtrace": ["algo=twoclocks", "algo.advantage=vtrace"],
}
FRAMES = {"cartpole": 150_000, "acrobot": 150_000, "halfcheetah": 300_000, "hopper": 300_000}
STAGES = {
    "screen": ([0, 2, 8, 16], 201),
    "final": ([0, 1, 2, 4, 8, 16, 32], 211),
}
"""Lags and first seed."""
MARKS = {2: 0.95, 8: 0.8, 16: 0.6}
"""The score at which an objective holds, by lag."""
COLOURS = [*(f"C{k}" for k in range(10)), "black", "gold"]
"""Of the objectives, in their order."""
BEST = 3
U = 2048
RUN = ("stage", "task", "objective", "lag", "seed")
TABLES = "<!-- Written by scripts/lag.py collect: nothing below is typed. -->\n"


def command(task: str, objective: str, lag: int, seed: int) -> list[str]:
    """One run, as a user would type it."""
    words = [
        f"task={task}",
        "clocks=classic",
        "tuned=none",
        *OBJECTIVES[objective],
        f"clocks.lag={lag}",
    ]
    # As many rounds of learning for all: what fills the queue comes on top.
    frames = FRAMES[task] + lag * U
    words += [f"seed={seed}", f"total_frames={frames}", f"eval.every_frames={frames}"]
    return [*COMMAND, *words, "interventions=off", "logger=jsonl"]


def run(args: argparse.Namespace) -> int:
    """Train what lag.csv does not hold; return how many runs failed."""
    lags, first = STAGES[args.stage]
    done = kept.by_key(kept.read(OUT / "lag.csv"), RUN)
    jobs = []
    for number, task in itertools.product(range(LAG_SEEDS[args.stage]), args.tasks):
        if number >= lag_seeds(args.stage, task):
            continue
        seed = first + number
        for lag, objective in itertools.product(args.lags or lags, args.objectives):
            if lag == 0 and objective in LAG_TWINS:
                continue
            words = command(task, objective, lag, seed)
            if not is_made(done.get((args.stage, task, objective, str(lag), str(seed))), words):
                place = args.runs / args.stage / task / f"{objective}-{lag}" / f"seed{seed}"
                jobs.append((words, place))
    return train_all(jobs, args.jobs)


def collect(args: argparse.Namespace) -> int:
    """Write every finished run into lag.csv, where others stay, and draw the curves."""
    rows = []
    for place in over(args.runs, "*/*/*/seed*"):
        stage, objective = place.parts[-4], place.parts[-2].rsplit("-", 1)[0]
        config = yaml.safe_load((place / "config.yaml").read_text())
        metrics = read_metrics(place / "metrics.jsonl")
        task, lag = config["task"]["name"], config["clocks"]["lag"]
        found = outcome(place, RANDOM_RETURNS[task])
        # The first rounds after the queue has filled are less old than what is examined.
        steady = metrics[lag:] or metrics

        def mean(name: str, rows: list[dict] = steady) -> float:
            measured = values(rows, name)
            return statistics.fmean(measured) if measured else math.nan

        rows.append(
            {
                "stage": stage,
                "task": task,
                "objective": objective,
                "lag": lag,
                "seed": config["seed"],
                "frames": config["total_frames"],
                "return_mean": round(found, 2),
                "ended": "finished" if (place / "result.json").exists() else "diverged",
                "staleness": round(mean("clock/staleness_mean"), 3),
                "total_variation": round(mean("diag/total_variation"), 5),
                "ess": round(mean("train/ess"), 4),
                "settings": settings(place),
                "command": told(place),
            }
        )
    if not rows:
        print(f"no finished run below {args.runs}")
        return 1
    rows = kept.merge(OUT / "lag.csv", rows, RUN)
    for stage, task in sorted({(r["stage"], r["task"]) for r in rows}):
        _picture(stage, task, rows)
    _write_tables(rows)
    return 0


def best(rows: list[dict]) -> list[str]:
    """The objectives of the final stage: `clipped`, `twoclocks` and the best others of the screen.

    Raises:
        SystemExit: the screen is not complete.
    """
    screen = [row for row in rows if row["stage"] == "screen"]
    tasks = sorted({row["task"] for row in screen})
    lags, _ = STAGES["screen"]
    asked = {task: lag_seeds("screen", task) for task in tasks}
    found = {t: lag_scores([row for row in screen if row["task"] == t], asked[t]) for t in tasks}
    means = {}
    for objective in PRESETS:
        scores: list[float] = []
        for task, lag in itertools.product(tasks, lags):
            each = found[task].get((objective, lag), [])
            if len(each) < asked[task]:
                raise SystemExit(
                    f"the screen lacks {objective} on {task} at lag {lag}: run it first"
                )
            if lag:
                scores.append(statistics.fmean(each))
        means[objective] = statistics.fmean(scores)
    always = ["clipped", "twoclocks"]
    ranked = sorted(means, key=lambda name: -means[name])
    for name in ranked:
        print(f"{name:<10} {means[name]:.3f}")
    return always + [name for name in ranked if name not in always][:BEST]


def _holds(found: dict[tuple[str, int], list[float]], asked: int) -> str:
    """Which objectives hold at which lags, by the rule of the first lines, once all seeds are there."""
    parts = []
    for objective in OBJECTIVES:
        told = []
        for lag, mark in MARKS.items():
            each = found.get((objective, lag), [])
            if len(each) >= asked:
                held = float(interquartile_mean(np.array(each))) >= mark
                told.append(f"{lag} {'yes' if held else 'no'}")
        if told:
            parts.append(f"`{objective}` {', '.join(told)}")
    marks = ", ".join(f"{mark} at lag {lag}" for lag, mark in MARKS.items())
    return f"Holds ({marks}): {'; '.join(parts)}." if parts else ""


def _write_tables(rows: list[dict]) -> None:
    """Put the tables of all stages and tasks into lag.md, in the place of the old ones."""
    page = OUT / "lag.md"
    head = page.read_text().split(TABLES)[0]
    parts = [head + TABLES]
    for stage, task in sorted({(r["stage"], r["task"]) for r in rows}):
        mine = [row for row in rows if row["stage"] == stage and row["task"] == task]
        asked = lag_seeds(stage, task)
        if not (found := lag_scores(mine, asked)):
            parts.append(
                f"\n## {task}, {stage}\n\nNot all seeds are there at lag 0: no scores yet.\n"
            )
            continue
        lags = sorted({lag for _, lag in found})
        lines = ["| objective | " + " | ".join(f"lag {lag}" for lag in lags) + " |"]
        lines.append("| --- " * (len(lags) + 1) + "|")
        for objective in OBJECTIVES:
            cells = [_cell(found.get((objective, lag), [])) for lag in lags]
            if any(cells):
                lines.append(f"| `{objective}` | " + " | ".join(cells) + " |")
        shift = []
        for lag in lags:
            each = [
                float(row["total_variation"])
                for row in mine
                if int(row["lag"]) == lag and row["objective"] in ("clipped", "twoclocks")
            ]
            shift.append(f"lag {lag}: {np.nanmean(each):.2f}")
        parts.append(f"\n## {task}, {stage}\n\n![{task}](lag_{stage}_{task}.png)\n\n")
        parts.append("\n".join(lines) + "\n\n")
        if holds := _holds(found, asked):
            parts.append(holds + "\n\n")
        parts.append("Measured total variation, mean of `clipped` and `twoclocks`: ")
        parts.append(f"{', '.join(shift)}.\n")
    page.write_text("".join(parts))
    print(f"wrote {page.relative_to(ROOT)}")


def _cell(scores: list[float]) -> str:
    """Interquartile mean and every seed."""
    if not scores:
        return ""
    middle = float(interquartile_mean(np.array(scores)))
    return f"**{middle:.2f}** ({', '.join(f'{x:.2f}' for x in scores)})"


def _picture(stage: str, task: str, rows: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    mine = [row for row in rows if row["stage"] == stage and row["task"] == task]
    if not (found := lag_scores(mine, lag_seeds(stage, task))):
        return
    figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
    for objective in OBJECTIVES:
        curve = sorted((lag, values) for (name, lag), values in found.items() if name == objective)
        if not curve:
            continue
        middle = [statistics.median(values) for _, values in curve]
        measured = [
            statistics.fmean(
                float(row["staleness"])
                for row in mine
                if row["objective"] == objective and int(row["lag"]) == lag
            )
            if lag
            else 0.0
            for lag, _ in curve
        ]
        width = 2.6 if objective == "twoclocks" else 1.4
        colour = COLOURS[list(OBJECTIVES).index(objective)]
        axes.plot(measured, middle, "-o", ms=4, linewidth=width, label=objective, color=colour)
        for age, (_, each) in zip(measured, curve, strict=True):
            axes.plot([age] * len(each), each, ".", color=colour, alpha=0.35)
    axes.set(
        xlabel="measured staleness of the data, in versions", ylabel="score (1: best at lag 0)",
        title=f"{task}, {stage}: median over seeds, every seed as a dot",
    )  # fmt: skip
    axes.set_ylim(-0.1, max(1.25, axes.get_ylim()[1]))
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks(STAGES["final"][0], map(str, STAGES["final"][0]))
    axes.grid(alpha=0.25)
    axes.legend(ncols=2, frameon=False, fontsize=9)
    path = OUT / f"lag_{stage}_{task}.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    print(f"wrote {path.relative_to(ROOT)}")


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "collect", "best"])
    parser.add_argument("--stage", choices=list(STAGES), default="screen")
    parser.add_argument("--tasks", nargs="+", choices=list(FRAMES), default=["cartpole", "acrobot"])
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=PRESETS)
    parser.add_argument("--lags", nargs="+", type=int, help="only these")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "lag")
    args = parser.parse_args()
    if args.what == "best":
        print(" ".join(best(kept.read(OUT / "lag.csv"))))
        return 0
    return run(args) if args.what == "run" else collect(args)


if __name__ == "__main__":
    sys.exit(main())
