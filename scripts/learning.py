"""Measure learning: train tasks over seeds by the command itself, and collect what came out.

    python scripts/learning.py run --tasks halfcheetah hopper --seeds 1 2 3 4 5 --clocks classic
    python scripts/learning.py collect

`run` trains `--jobs` at a time, one thread each; finished runs are skipped and broken-off ones go on. A
run that diverged counts with the return of a random policy.
`collect` reads every run below `--runs` into docs/benchmarks/returns.csv (one row per seed: the last
evaluation of the run, deterministic, on seeds of its own) and docs/benchmarks/curves.csv, where rows
of other runs stay, and draws one picture per task. healthy.csv counts what diagnostics and governor did
in the same runs: onsets of alarms by severity, orders given, and the share of the wall time that the
diagnostics took. Figures are computed from these files by scripts/figures.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import rows as kept
import training
import yaml
from figures import RANDOM_RETURNS

from rl_twoclocks.batch import COMMAND, told
from rl_twoclocks.record import read_metrics

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "benchmarks"
RUN = ("task", "clocks", "seed", "frames")
"""What a run is known by in the CSVs."""
POINTS = 100
"""Rows kept of every training curve."""


def command(task: str, clocks: str, seed: int, frames: int, extra: list[str]) -> list[str]:
    """The command of one run, as a user would type it."""
    words = [f"task={task}", f"clocks={clocks}", f"seed={seed}", f"total_frames={frames}"]
    return [*COMMAND, *words, "logger=jsonl", *extra]


def run(args: argparse.Namespace) -> int:
    """Train everything asked for; return how many runs failed."""
    # By seed first: every task has one seed done before any has two.
    jobs = [
        (
            command(task, args.clocks, seed, args.frames, args.overrides),
            args.runs / f"{task}-{args.clocks}{args.label}" / f"seed{seed}",
        )
        for seed in args.seeds
        for task in args.tasks
    ]
    return training.train_all(jobs, args.jobs)


def collect(args: argparse.Namespace) -> int:
    """Write the CSVs and pictures from all finished runs."""
    returns, curves, healthy = [], [], []
    for place in training.over(args.runs, "*/seed*"):
        config = yaml.safe_load((place / "config.yaml").read_text())
        rows = read_metrics(place / "metrics.jsonl")
        task, seed = config["task"]["name"], config["seed"]
        label = place.parent.name.removeprefix(f"{task}-")
        frames = config["total_frames"]
        file = place / "result.json"
        result = json.loads(file.read_text()) if file.exists() else None
        returns.append(
            {
                "task": task,
                "clocks": label,
                "seed": seed,
                "frames": frames,
                "return_mean": training.outcome(place, RANDOM_RETURNS.get(task)),
                "return_std": result["return_std"] if result else "",
                "episodes": config["eval"]["episodes"],
                "wall_seconds": round(result["wall_seconds"], 1) if result else "",
                "command": told(place),
            }
        )
        # Without a governor a run is only what a guarded one is compared with.
        governed = config["interventions"]["governor"] != "off"
        if rows and governed and (place / "events.jsonl").exists():
            healthy.append(
                {"task": task, "clocks": label, "seed": seed, "frames": frames}
                | _watched(place, rows)
            )
        step = max(len(rows) // POINTS, 1)
        for i, row in enumerate(rows):
            if i % step == 0 or "eval/return_mean" in row:
                curves.append(
                    {
                        "task": task,
                        "clocks": label,
                        "seed": seed,
                        "frames": int(row["frames"]),
                        "rollout_return": _short(row.get("rollout/return_mean")),
                        "eval_return": _short(row.get("eval/return_mean")),
                    }
                )
    if not returns:
        print(f"no finished run below {args.runs}")
        return 1
    kept.merge(args.out / "returns.csv", returns, RUN)
    # All points of a run at once: two runs of one seed are not one curve.
    curves = kept.merge(args.out / "curves.csv", curves, RUN[:3])
    if healthy:
        kept.merge(args.out / "healthy.csv", healthy, RUN)
    for task in sorted({row["task"] for row in returns}):
        _picture(task, curves, args.out)
    return 0


def _watched(directory: Path, rows: list[dict]) -> dict:
    """What the governor and the diagnostics did in one run, also in one that diverged."""
    events = read_metrics(directory / "events.jsonl")
    alarms = [e["severity"] for e in events if e["kind"] == "alarm"]
    names = sorted({e["name"] for e in events if e["kind"] == "alarm"})
    orders = [e for e in events if e["kind"] == "order" and e["given"]]
    seconds = sum(row.get("time/diagnostics_seconds", 0.0) for row in rows)
    return {
        "danger": alarms.count("danger"),
        "warn": alarms.count("warn"),
        "watch": alarms.count("watch"),
        "alarms": " ".join(names),
        "orders": len(orders),
        "ordered": " ".join(sorted({e["name"] for e in orders})),
        "diagnostics_share": round(seconds / rows[-1]["time/wall_seconds"], 5),
    }


def _short(value: float | None) -> float | str:
    return "" if value is None else round(value, 2)


def _series(rows: list[dict], key: str) -> list[tuple[int, float]]:
    # Rows that were read back hold text.
    return [(int(row["frames"]), float(row[key])) for row in rows if row[key] != ""]


def _picture(task: str, curves: list[dict], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    labels = sorted({row["clocks"] for row in curves if row["task"] == task})
    labels = [label for label in labels if not label.endswith("-off")]
    for label, colour in zip(
        labels, ("tab:blue", "tab:orange", "tab:green", "tab:red"), strict=False
    ):
        mine = [row for row in curves if row["task"] == task and row["clocks"] == label]
        for number, seed in enumerate(sorted({int(row["seed"]) for row in mine})):
            one = [row for row in mine if int(row["seed"]) == seed]
            train, test = _series(one, "rollout_return"), _series(one, "eval_return")
            axes.plot(*zip(*train, strict=True), color=colour, alpha=0.45, linewidth=1)
            name = f"clocks={label}, evaluation" if number == 0 else None
            axes.plot(
                *zip(*test, strict=True), "o", color=colour, markersize=3.5, alpha=0.8, label=name
            )
    axes.set(xlabel="frames (agent decisions)", ylabel="return", title=f"{task}, every seed")
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False)
    path = out / f"learning_{task}.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    print(f"wrote {path}")


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "collect"])
    parser.add_argument("--tasks", nargs="+", default=["halfcheetah", "hopper"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--clocks", default="classic")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--label", default="", help="suffix for runs with other overrides")
    parser.add_argument("--overrides", nargs="*", default=[], help="further key=value overrides")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "learning")
    parser.add_argument("--out", type=Path, default=OUT, help="folder that collect writes to")
    args = parser.parse_args()
    return run(args) if args.what == "run" else collect(args)


if __name__ == "__main__":
    sys.exit(main())
