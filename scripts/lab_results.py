"""Keep what scenarios of the lab came to: their rows, their curves, and one page about all of them.

    python scripts/lab_results.py lab/policy_lag-short lab/high_ratio-short

Copies results.csv, curves.png and further-arms.png of finished scenarios to docs/benchmarks/lab/, as
<scenario>.csv, <scenario>.png and <scenario>-further.png, and writes docs/benchmarks/lab.md anew, from
all that lie there. Nothing on that page is typed. A folder `<scenario>-<budget>` of further arms alone
adds them to the rows that are kept.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import tempfile
from pathlib import Path

import rows as kept

from rl_twoclocks import scenario, verdict
from rl_twoclocks.config import ConfigError
from rl_twoclocks.config_commands import ScenarioConfig
from rl_twoclocks.lab_page import arms, claims
from rl_twoclocks.scenario import Run
from rl_twoclocks.verdict import Conclusion

OUT = Path(__file__).parent.parent / "docs" / "benchmarks"
RUN = ("arm", "seed")
HEAD = """<!-- Written by scripts/lab_results.py: nothing below is typed. -->

# What the lab found

Every scenario of [the lab](../lab.md) without its fault, with it, and with its cure. The rule is older
than the runs, and the same for all; every run and its command is in `lab/<scenario>.csv`.
"""


def keep(place: Path) -> None:
    """Copy what one scenario came to.

    Raises:
        SystemExit: the folder holds no conclusion, or none that decides anything; nothing was copied.
    """
    told, rows, curves = (place / name for name in ("conclusion.json", "results.csv", "curves.png"))
    if rows.is_file() and not told.exists() and _add(place.name.rpartition("-")[0], rows):
        return
    if lacking := [path.name for path in (told, rows, curves) if not path.is_file()]:
        raise SystemExit(
            f"{place} has no {', '.join(lacking)}: python -m rl_twoclocks.lab writes them"
        )
    name = str(json.loads(told.read_text())["scenario"])
    found = _read(name, rows)[-1]
    if found.verdict.startswith("undecided"):
        raise SystemExit(f"{place} decides nothing: {found.verdict}")
    (OUT / "lab").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(rows, OUT / "lab" / f"{name}.csv")
    shutil.copyfile(curves, OUT / "lab" / f"{name}.png")
    further = OUT / "lab" / f"{name}-further.png"
    further.unlink(missing_ok=True)
    if (place / "further-arms.png").is_file():
        shutil.copyfile(place / "further-arms.png", further)


def _add(name: str, rows: Path) -> bool:
    """Add further arms to the rows that are kept of a scenario; False where there are none to add to."""
    path = OUT / "lab" / f"{name}.csv"
    if not name or not path.is_file():
        return False
    more, arms = kept.read(rows), list(scenario.every_arm(scenario.load(name)))
    merged = [*kept.others(path, more, RUN), *more]
    merged.sort(key=lambda row: (arms.index(row["arm"]), int(row["seed"])))
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "results.csv"
        kept.write(whole, merged)
        _read(name, whole)
        shutil.copyfile(whole, path)
    return True


def _read(name: str, rows: Path) -> tuple[ScenarioConfig, list[Run], Conclusion]:
    """Return what `concluded` does, or say that it is no result."""
    try:
        return concluded(name, rows)
    except (ConfigError, ValueError, KeyError) as error:
        raise SystemExit(f"{rows} is no result of the lab: {error}") from error


def concluded(name: str, rows: Path) -> tuple[ScenarioConfig, list[Run], Conclusion]:
    """A scenario, its runs, and what they say."""
    scene = scenario.load(name)
    runs = scenario.read_results(scene, rows)
    with open(rows, newline="") as file:
        (budget,) = {row["budget"] for row in csv.DictReader(file)}
    return scene, runs, verdict.conclude(scene, name, budget, runs)


def page() -> str:
    """The page about all that is kept."""
    found = {path.stem: concluded(path.stem, path) for path in sorted((OUT / "lab").glob("*.csv"))}
    healthy = {name: _healthy(runs) for name, (_, runs, _) in found.items()}
    parts = [HEAD.strip()]
    for name, (scene, runs, conclusion) in found.items():
        twins = [other for other in found if other != name and healthy[other] == healthy[name]]
        parts += section(scene, runs, conclusion, twins)
    return "\n\n".join(parts) + "\n"


def _healthy(runs: list[Run]) -> list[tuple[int, float]]:
    return sorted((run.seed, run.value) for run in runs if run.arm == "healthy")


def section(
    scene: ScenarioConfig, runs: list[Run], found: Conclusion, twins: list[str]
) -> list[str]:
    """What the runs of one scenario say, in Markdown; `twins` have the same healthy runs."""
    name = found.scenario
    parts = [
        f"## {name}: {scene.question}",
        f"The claim: {scene.claim}.",
        f"**{found.text}**",
        f"```\npython -m rl_twoclocks.lab scenario={name} budget={found.budget}\n```",
        f"![{name}](lab/{name}.png)",
        table(arms(scene, found, runs)),
    ]
    if (OUT / "lab" / f"{name}-further.png").is_file():
        parts.append(f"![{name}, further arms](lab/{name}-further.png)")
    if twins:
        parts.append(
            f"The healthy runs are those of {', '.join(twins)} too: same configuration, same seeds."
        )
    return [*parts, table(claims(found))] if found.claims else parts


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
    (OUT / "lab.md").write_text(page())
    print(f"wrote {OUT / 'lab.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
