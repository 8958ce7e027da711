"""Loss spikes at weight broadcasts: read from the lab's runs of `stale_broadcast`.

    python -m rl_twoclocks.lab scenario=stale_broadcast budget=short
    python scripts/spikes.py lab/stale_broadcast-short

Protocol, written down before the runs: the scenario's (configs/lab/stale_broadcast.yaml), where weights
are broadcast every `PERIOD` rounds of 40 optimizer steps, 200 learner steps, and the learner is the
slower side, so that slices wait. In the arms `fault_seldom` and `cure_seldom`, written down when no
spikes had been seen at 200 steps, it is every 25 rounds, 1,000 steps. `period` is that of a run's
configuration; where weights are given away every round, `PERIOD`.

Reading: the logarithm of the critic's loss in the first pass of every round, without the first fifth of
the run; the share of its detrended variance that the period of the broadcasts explains, against the same
cycles, each turned by a random number of rounds (1,000 times). The figure is the median p-value over
seeds; spikes are there if it is below 0.01, absent if it is above 0.05. `kl_p` is the same of the KL of
the policy to its data, for comparison: it decides nothing. `fault` and `cure` differ in the queue alone,
`fault` and `fresh_alone` in the interval of publication. An order can
matter only where something waits: `waiting` is the mean number of slices, and below 1 nothing is claimed
of the order. `rounds` that were learnt and frames `dropped` say whether two arms learnt as much: where
an arm has less than 0.9 of the rounds of `fault`, its p-value says nothing beside it. How well they
learnt is judged by the lab.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
import rows as kept
from training import over

from rl_twoclocks import scenario
from rl_twoclocks.batch import told
from rl_twoclocks.diagnostics.periodicity import strength_at
from rl_twoclocks.record import read_metrics
from rl_twoclocks.record.records import stored_config

OUT = Path(__file__).parent.parent / "docs" / "benchmarks"
PERIOD = 5
"""Rounds between broadcasts."""
RUN = ("arm", "seed")


LOSS, KL = "diag/critic_loss_first_pass", "diag/kl_behaviour"


def series(rows: list[dict], name: str = LOSS) -> np.ndarray:
    """The logarithm of a reading by round, without the first fifth.

    Raises:
        SystemExit: it is missing in some rounds, so that nothing can be said of their beat.
    """
    late = rows[len(rows) // 5 :]
    if lacking := [int(row["frames"]) for row in late if not row.get(name)]:
        raise SystemExit(f"no {name} at frame {lacking[0]}: was it measured every round?")
    return np.log(np.array([row[name] for row in late]))


def beat(x: np.ndarray, period: int) -> tuple[float, float]:
    """Share of a series that beats with the broadcasts, and its p-value."""
    try:
        return strength_at(x, period)
    except ValueError:  # diverged before there were three cycles, which show no period
        return 0.0, 1.0


def collect(runs: Path) -> int:
    """Write every finished run into spikes.csv, where others stay; draw one run of each arm."""
    rows: list[dict] = []
    shown: dict[str, tuple[np.ndarray, int]] = {}
    scene = scenario.load("stale_broadcast")
    arms = scenario.every_arm(scene)
    for place in over(runs, "*/seed*"):
        arm, seed = place.parent.name, int(place.name.removeprefix("seed"))
        if arm not in arms or arm == "healthy":
            continue  # healthy has no queue and no broadcasts
        metrics = read_metrics(place / "metrics.jsonl")
        waiting = [row["collect/waiting"] for row in metrics if "collect/waiting" in row]
        interval = stored_config(place).clocks.publish_interval
        period = interval if interval > 1 else PERIOD
        share, p_value = beat(series(metrics), period)
        kl_share, kl_p = beat(series(metrics, KL), period)
        shown.setdefault(arm, (series(metrics), period))
        rows.append(
            {
                "arm": arm,
                "seed": seed,
                "period": period,
                "share": round(share, 4),
                "p": round(p_value, 5),
                "kl_share": round(kl_share, 4),
                "kl_p": round(kl_p, 5),
                "staleness": round(statistics.fmean(r["clock/staleness_mean"] for r in metrics), 3),
                "waiting": round(statistics.fmean(waiting), 2) if waiting else "",
                "rounds": len(metrics),
                "dropped": int(metrics[-1].get("clock/dropped_frames", 0)),
                "command": told(place),
            }
        )
    if not rows:
        print(f"no finished run below {runs}")
        return 1
    kept.merge(OUT / "spikes.csv", rows, RUN)
    # As the lab does, further arms apart.
    core = {arm: found for arm, found in shown.items() if arm in scene.arms}
    further = {arm: found for arm, found in shown.items() if arm in scene.controls}
    for name, some in (("spikes.png", core), ("spikes-further.png", further)):
        if some:
            _picture(name, some)
    return 0


def _picture(name: str, shown: dict[str, tuple[np.ndarray, int]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    count = len(shown)
    figure, axes = plt.subplots(
        count, 2, figsize=(9, 1.9 * count), layout="constrained", squeeze=False
    )
    for (left, right), (arm, (x, period)) in zip(axes, sorted(shown.items()), strict=True):
        left.plot(np.arange(x.size), x, linewidth=0.8)
        left.set(ylabel="log critic loss", title=f"{arm}: one seed")
        phases = [x[np.arange(x.size) % period == k].mean() for k in range(period)]
        right.bar(np.arange(period), np.array(phases) - x.mean())
        right.set(title="mean by place in the period", xlabel=f"round modulo {period}")
    path = OUT / name
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"wrote {path.name}")


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="folder of the lab's runs")
    return collect(parser.parse_args().runs)


if __name__ == "__main__":
    sys.exit(main())
