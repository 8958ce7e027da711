"""Size of the report: build the page about one run and about twenty, and count its bytes.

    python scripts/report_size.py runs/learning/*-classic/seed??/

Writes docs/benchmarks/report.csv. Of fewer than twenty runs some are shown several times, under names of
their own; use runs of 1M frames.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rl_twoclocks.config import ConfigError
from rl_twoclocks.report import write
from rl_twoclocks.reporting.runs import Run, read_runs

OUT = Path(__file__).parent.parent / "docs" / "benchmarks"
MANY = 20
COLUMNS = ["runs", "different", "frames", "bytes", "command"]


def many(runs: list[Run], count: int) -> list[Run]:
    """So many runs, from the first on, and again from the first where there are too few."""
    turns = itertools.islice(enumerate(itertools.cycle(runs)), count)
    return [
        run if number < len(runs) else replace(run, label=f"{run.label} ({number + 1})")
        for number, run in turns
    ]


def measure(runs: list[Run]) -> list[dict[str, str | int]]:
    """Count the bytes of both pages."""
    rows: list[dict[str, str | int]] = []
    with tempfile.TemporaryDirectory() as folder:
        for count in (1, MANY):
            shown = many(runs, count)
            page = write(shown, Path(folder) / "report.html")
            rows.append(
                {
                    "runs": count,
                    "different": min(count, len(runs)),
                    "frames": min(run.frames for run in shown),
                    "bytes": page.stat().st_size,
                    "command": "python scripts/report_size.py <run directories>",
                }
            )
    return rows


def main(argv: list[str] | None = None) -> int:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", nargs="+", metavar="run_dir")
    parser.add_argument("--out", type=Path, default=OUT / "report.csv")
    args = parser.parse_args(argv)
    try:
        rows = measure(read_runs(args.directories))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with open(args.out, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(f"{row['runs']} runs ({row['different']} different): {row['bytes']:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
