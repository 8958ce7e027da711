"""What healthy runs read: quantiles of the signs over rounds and seeds, beside the write-ups' levels.

    python scripts/levels.py --runs runs/learning

Reads the runs that `scripts/learning.py run` made and writes docs/benchmarks/levels.csv: one row per
task and sign, quantiles over the rounds of all seeds together. docs/findings.md quotes them.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from rl_twoclocks.record import read_metrics

ROOT = Path(__file__).parent.parent
SIGNS = {
    "diag/rollout_entropy_own_range": "3.0 to 4.5 mid-training, below 2.0 danger",
    "diag/grad_norm_max": "healthy below 3, alarm above 5",
    "diag/kl_behaviour": "",
    "train/clip_fraction": "",
    "diag/ess": "",
    "diag/baseline_leak": "most of the gradient's noise",
    "diag/score_residual": "",
    "diag/state_drift": "",
    "diag/explained_variance": "",
    "diag/feature_rank": "",
}
QUANTILES = (0.05, 0.5, 0.95)


def main() -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "learning")
    args = parser.parse_args()
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    seeds: dict[str, int] = defaultdict(int)
    for path in sorted(args.runs.glob("*/seed*/metrics.jsonl")):
        task = path.parts[-3]
        seeds[task] += 1
        for row in read_metrics(path):
            for sign in SIGNS:
                if row.get(sign) is not None:
                    values[task, sign].append(row[sign])
    rows = []
    for (task, sign), found in sorted(values.items()):
        low, middle, high = np.quantile(found, QUANTILES)
        rows.append(
            {
                "task": task,
                "sign": sign,
                "seeds": seeds[task],
                "rounds": len(found),
                "q05": f"{low:.4g}",
                "median": f"{middle:.4g}",
                "q95": f"{high:.4g}",
                "write_ups": SIGNS[sign],
            }
        )
    if not rows:
        print(f"no run below {args.runs}")
        return 1
    out = ROOT / "docs" / "benchmarks" / "levels.csv"
    with open(out, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {out.relative_to(ROOT)} ({len(rows)} rows)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
