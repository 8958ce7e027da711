"""Measure asynchronous collection on two cores beside the synchronous settings.

    python scripts/async_speed.py --repeats 5

Protocol, written down before the runs: HalfCheetah-v5, `clocks=classic`, 8 environments, no evaluation,
no records but metrics.jsonl. Contenders, each a run of its own, in turns within every repeat: `sync-1`
(one thread, the baseline), `sync-2` (two threads), `processes` (one process per environment),
`envpool-2` (envpool on two threads) and `async` (one worker). Measured: frames per second from the end
of the warm-up to the end of the run. The bound is the baseline's frames per second times (collect +
update) / max(collect, update), its seconds per round: what perfect overlap would give, what a round
costs besides left as it is. `steps` a round tell that all do the same work. Figures are
medians over repeats of ratios within a repeat: `async.of_bound` (async over the bound; mark 0.85) and
`async.vs_best_sync` (async over the fastest synchronous contender of the repeat; mark above 1).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import rows as kept

from rl_twoclocks.record import read_metrics

OUT = Path(__file__).parent.parent / "docs" / "benchmarks" / "async_speed.csv"
CONTENDERS = {
    "sync-1": [],
    "sync-2": ["threads=2"],
    "processes": ["collect=processes"],
    "envpool-2": ["collect=envpool", "collect.vectorization=async"],
    "async": ["collect=async"],
}
U = 2048


def words(extra: list[str], rounds: int) -> list[str]:
    """The command of one contender."""
    base = ["task=halfcheetah", "clocks=classic", "seed=1", f"total_frames={rounds * U}"]
    quiet = ["logger=jsonl", "logger.display=none", "eval=off", "diagnostics.pictures=false"]
    # Equal work: a governor might drop passes of one contender.
    quiet += ["interventions=off"]
    return ["-m", "rl_twoclocks.train", *base, *quiet, "compile=true", *extra]


def measure(extra: list[str], rounds: int, warmup: int) -> dict[str, float]:
    """Run one contender; frames per second, and seconds of collection and update per round."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, *words(extra, rounds), f"run_dir={place}/run"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = read_metrics(Path(place) / "run" / "metrics.jsonl")
    # Frames that were dropped count as work, but not as frames learnt from.
    first, last = rows[warmup], rows[-1]
    learnt = U * (len(rows) - 1 - warmup)
    seconds = last["time/wall_seconds"] - first["time/wall_seconds"]
    timed = rows[warmup + 1 :]
    return {
        "fps": learnt / seconds,
        "collect_seconds": statistics.median(r["time/collect_seconds"] for r in timed),
        "update_seconds": statistics.median(r["time/update_seconds"] for r in timed),
        "steps": statistics.fmean(r["train/steps"] for r in timed),
        "staleness_mean": statistics.fmean(r["clock/staleness_mean"] for r in timed),
        "dropped_frames": last.get("clock/dropped_frames", 0.0),
    }


def main() -> int:
    """Run all contenders in turns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=15)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rows: list[dict] = []
    for repeat in range(1, args.repeats + 1):
        for name, extra in CONTENDERS.items():
            found = measure(extra, args.rounds, args.warmup)
            rows.append({"contender": name, "repeat": repeat} | found)
            _write(args, rows)
            print(f"{repeat} {name}: {found['fps']:,.0f} frames/s", flush=True)
    print(f"wrote {args.out}")
    return 0


def _write(args: argparse.Namespace, rows: list[dict]) -> None:
    """Write what there is so far: a sitting may end at any time."""
    command = f"python scripts/async_speed.py --repeats {args.repeats} --rounds {args.rounds}"
    shown = [
        {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()} for row in rows
    ]
    kept.write(args.out, [row | {"command": command} for row in shown])


if __name__ == "__main__":
    sys.exit(main())
