"""Keep what scenarios of the lab came to: their rows, their curves, and one page about all of them.

    python scripts/lab_results.py lab/policy_lag-short lab/high_ratio-short

Copies results.csv and curves.png of finished scenarios to docs/benchmarks/lab/<scenario>.csv and .png,
and writes docs/benchmarks/lab.md anew, from all that lie there. Nothing on that page is typed.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
from pathlib import Path

from rl_twoclocks import scenario, verdict
from rl_twoclocks.lab_page import arms, claims

OUT = Path(__file__).parent.parent / "docs" / "benchmarks"
HEAD = """<!-- Written by scripts/lab_results.py: nothing below is typed. -->

# What the lab found

Every scenario of [the lab](../lab.md) without its fault, with it, and with its cure. The rule is older
than the runs, and the same for all; every run and its command is in `lab/<scenario>.csv`.
"""


def keep(place: Path) -> None:
    """Copy what one scenario came to.

    Raises:
        SystemExit: the folder holds no conclusion yet.
    """
    told = place / "conclusion.json"
    if not told.is_file():
        raise SystemExit(f"{place} holds no conclusion: python -m rl_twoclocks.lab writes one")
    name = json.loads(told.read_text())["scenario"]
    (OUT / "lab").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(place / "results.csv", OUT / "lab" / f"{name}.csv")
    shutil.copyfile(place / "curves.png", OUT / "lab" / f"{name}.png")


def section(path: Path) -> str:
    """What the rows of one scenario say, in Markdown."""
    scene, runs = scenario.load(path.stem), scenario.read_results(scenario.load(path.stem), path)
    with open(path, newline="") as file:
        (budget,) = {row["budget"] for row in csv.DictReader(file)}
    found = verdict.conclude(scene, path.stem, budget, runs)
    parts = [
        f"## {path.stem}: {scene.question}",
        f"The claim: {scene.claim}.",
        f"**{found.text}**",
        f"```\npython -m rl_twoclocks.lab scenario={path.stem} budget={budget}\n```",
        f"![{path.stem}](lab/{path.stem}.png)",
        table(arms(scene, found, runs)),
    ]
    if found.claims:
        parts.append(table(claims(found)))
    return "\n\n".join(parts)


def table(rows: list[list[str]]) -> str:
    """A table in Markdown; the first row has the names of the columns."""
    heads, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *body))


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", nargs="*", type=Path, help="folders that the lab wrote")
    for place in parser.parse_args().places:
        keep(place)
    sections = [section(path) for path in sorted((OUT / "lab").glob("*.csv"))]
    (OUT / "lab.md").write_text("\n\n".join([HEAD.strip(), *sections]) + "\n")
    print(f"{OUT / 'lab.md'}: {len(sections)} scenarios")
    return 0


if __name__ == "__main__":
    sys.exit(main())
