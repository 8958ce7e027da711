"""Loss spikes at weight broadcasts: a first-in-first-out queue against one partitioned by version.

    python scripts/spikes.py run --backends async --runs runs/spikes
    python scripts/spikes.py collect --runs runs/spikes

Protocol, written down before the runs (the write-up's `stale_broadcast`: generators, a queue, weights
broadcast every 200 learner steps). Hopper-v5, 8 environments, B = U = 256 frames, 2 passes in
minibatches of 64: 8 optimizer steps a round, so that 25 rounds are 200 steps. No interventions. Seeds
301 to 310.

* `fifo`: `collect.order=fifo`, 16 slots, no limit of age, the policy is published every 25 rounds.
* `versioned`: `collect.order=near`, 16 slots, at most 2 versions old, published every round.
* `fifo_fresh`: `fifo`, published every round; `near_late`: `collect.order=near`, published every 25
  rounds. They tell the queue's order from the interval of publication, in which the first two differ
  too.
* `fifo_lambda`, `fifo_rate`: `fifo` with GAE lambda 0.9, and with a third of the learning rate: the
  cures that did not help the write-up's author.

Reading: the logarithm of the critic's loss, one value a round, without the first fifth of the run; the
share of its detrended variance that the period of 25 rounds explains, against the same cycles of 25
values, each turned by a random number of rounds (1,000 times). The figure is the median p-value over
seeds; spikes are there if it is below 0.01, absent if it is above 0.05. Learning of `versioned` counts
as not slower if its median return is not below that of `fifo`; a run that diverges counts with a random
policy's. An order of the queue can matter only where something waits: `waiting` is the mean number of
slices, and below 1 nothing is claimed of the order. `rounds` that were learnt and frames `dropped` say
whether two arms learnt as much.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
import rows as kept
from figures import RANDOM_RETURNS
from training import outcome, over, train_all

from rl_twoclocks.batch import told
from rl_twoclocks.diagnostics.periodicity import strength_at
from rl_twoclocks.record import read_metrics

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "benchmarks"
SEEDS = range(301, 311)
PERIOD, FRAMES = 25, 128_000
RUN = ("backend", "arm", "seed")
FIFO = ["collect.order=fifo", "collect.slots=16", "collect.max_staleness=null"]
FIFO += [f"clocks.publish_interval={PERIOD}"]
ARMS = {
    "fifo": FIFO,
    "versioned": ["collect.order=near", "collect.slots=16", "collect.max_staleness=2"],
    "fifo_fresh": FIFO[:-1],
    "near_late": ["collect.order=near", *FIFO[1:]],
    "fifo_lambda": [*FIFO, "algo.gae_lambda=0.9"],
    "fifo_rate": [*FIFO, "optim.learning_rate=1e-4"],
}
SHARED = [
    "task=hopper", "clocks=classic", "clocks.batch_size=256", "clocks.update_frequency=256",
    "clocks.update_epochs=2", f"total_frames={FRAMES}", f"eval.every_frames={FRAMES}",
    "interventions=off", "logger=jsonl",
]  # fmt: skip


def command(arm: str, backend: str, seed: int) -> list[str]:
    """One run, as a user would type it."""
    words = [*SHARED, f"collect={backend}", *ARMS[arm], f"seed={seed}"]
    return ["python", "-m", "rl_twoclocks.train", *words]


def run(args: argparse.Namespace) -> int:
    """Train one run at a time (each has a learner and a generator); those in spikes.csv are done."""
    done = kept.keys(kept.read(OUT / "spikes.csv"), RUN)
    jobs = [
        (command(arm, backend, seed), args.runs / backend / arm / f"seed{seed}")
        for seed in SEEDS
        for backend in args.backends
        for arm in args.arms
        if (backend, arm, str(seed)) not in done
    ]
    return train_all(jobs, 1)


def series(rows: list[dict]) -> np.ndarray:
    """The logarithm of the critic's loss by round, without the first fifth."""
    losses = [row["train/loss_critic"] for row in rows if row.get("train/loss_critic")]
    return np.log(np.array(losses[len(losses) // 5 :]))


def collect(args: argparse.Namespace) -> int:
    """Write every finished run into spikes.csv, where others stay; draw one run of each arm."""
    rows, shown = [], {}
    for place in over(args.runs, "*/*/seed*"):
        backend, arm, seed = *place.parts[-3:-1], int(place.name.removeprefix("seed"))
        metrics = read_metrics(place / "metrics.jsonl")
        waiting = [row["collect/waiting"] for row in metrics if "collect/waiting" in row]
        try:
            share, p_value = strength_at(series(metrics), PERIOD)
        except ValueError:  # diverged before there were three cycles, which show no period
            share, p_value = 0.0, 1.0
        shown.setdefault((backend, arm), series(metrics))
        rows.append(
            {
                "backend": backend,
                "arm": arm,
                "seed": seed,
                "share": round(share, 4),
                "p": round(p_value, 5),
                "staleness": round(statistics.fmean(r["clock/staleness_mean"] for r in metrics), 3),
                "waiting": round(statistics.fmean(waiting), 2) if waiting else "",
                "rounds": len(metrics),
                "dropped": int(metrics[-1].get("clock/dropped_frames", 0)),
                "return_mean": round(outcome(place, RANDOM_RETURNS["hopper"]), 1),
                "command": told(place),
            }
        )
    if not rows:
        print(f"no finished run below {args.runs}")
        return 1
    kept.merge(OUT / "spikes.csv", rows, RUN)
    _picture(shown)
    return 0


def _picture(shown: dict[tuple[str, str], np.ndarray]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    count = len(shown)
    figure, axes = plt.subplots(
        count, 2, figsize=(9, 1.9 * count), layout="constrained", squeeze=False
    )
    for (left, right), ((backend, arm), x) in zip(axes, sorted(shown.items()), strict=True):
        left.plot(np.arange(x.size), x, linewidth=0.8)
        left.set(ylabel="log critic loss", title=f"{backend}, {arm}: one seed")
        for broadcast in range(0, x.size, PERIOD):
            left.axvline(broadcast, color="grey", alpha=0.25, linewidth=0.6)
        phases = [x[np.arange(x.size) % PERIOD == k].mean() for k in range(PERIOD)]
        right.bar(np.arange(PERIOD), np.array(phases) - x.mean())
        right.set(title="mean by round since the broadcast", xlabel="rounds")
    path = OUT / "spikes.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"wrote {path.relative_to(ROOT)}")


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "collect"])
    parser.add_argument("--backends", nargs="+", choices=["async", "redis"], default=["async"])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["fifo", "versioned"])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "spikes")
    args = parser.parse_args()
    return run(args) if args.what == "run" else collect(args)


if __name__ == "__main__":
    sys.exit(main())
