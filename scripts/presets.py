"""Write the tables of docs/presets.md: every task preset as it composes, and what it has reached.

    python scripts/presets.py

Numbers of the presets are read from the configuration, returns from docs/benchmarks/figures.json, what a
memory is worth from docs/benchmarks/memory.csv, and the reasons from the comments in configs/task. Text
above the first table is written by hand.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

from rl_twoclocks import compose
from rl_twoclocks.config import Config

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "presets.md"
TABLES = "<!-- Written by scripts/presets.py: nothing below is typed. -->\n"
FRAMES = re.compile(r"(?:total_frames=|--frames )(\d+)")
NEEDED = {
    "gym": ["task.env_id=CartPole-v1"],
    "atari": ["task.game=pong"],
    "minigrid": [],
    "gazebo": None,
}
"""What a preset needs besides its name; None: a user's own world."""


def clocks(c: Config) -> str:
    """The clocks in one cell."""
    k = c.clocks
    text = f"`{k.name}`: {k.batch_size} / {k.update_frequency}, {k.update_epochs} passes"
    return f"{text} of {k.minibatch_size}; {c.num_envs} envs"


def settings(c: Config) -> str:
    """The rest in one cell."""
    a = c.algo
    return (
        f"{a.objective}, clip {a.clip_epsilon:g}, rate {c.optim.learning_rate:g}, "
        f"gamma {a.gamma:g}, lambda {a.gae_lambda:g}, entropy {a.entropy_coeff:g}"
    )


def budget(figure: dict, frames: int) -> str:
    """The frames that a figure was measured at, where these are not the preset's."""
    used = {int(x) for x in FRAMES.findall(figure["command"])} - {frames}
    return "".join(f", at {x / 1e6:g}M frames" for x in sorted(used))


def measured(name: str, figures: dict[str, dict], frames: int) -> list[str]:
    """The figures of a task, one text each."""
    found = []
    for key, f in sorted(figures.items()):
        ours = key.startswith(f"return.{name}.") and not key.endswith(".sb3")
        if ours or key == f"worlds.{name}":
            label = key.removeprefix(f"return.{name}.") if key.startswith("return") else f["unit"]
            between = f" ({f['low']:.4g} to {f['high']:.4g})" if f["n"] > 1 else ""
            found.append(f"{label}: {f['value']:.4g}{between}, n {f['n']}{budget(f, frames)}")
    return found


def remembered(name: str) -> list[str]:
    """What policies with and without a memory reach in a task, every seed, one text per model."""
    found: dict[str, list[str]] = {}
    with (ROOT / "docs" / "benchmarks" / "memory.csv").open() as file:
        for row in csv.DictReader(file):
            if row["task"] == name:
                found.setdefault(row["model"], []).append(row["success_rate"])
    return [
        f"success rate with `model={model}`, [by seed](benchmarks/memory.csv): {', '.join(rates)}"
        for model, rates in sorted(found.items(), reverse=True)
    ]


def reason(path: Path) -> str:
    """The comments of a preset, as one text; commands are no reasons."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    words = [line.lstrip("# ") for line in lines if line.startswith("#")]
    return " ".join(word for word in words if not word.startswith(("@package", "python -m")))


def main() -> int:
    """Write the page."""
    figures = json.loads((ROOT / "docs" / "benchmarks" / "figures.json").read_text())
    rows: dict[str, list[str]] = {}
    for path in sorted((ROOT / "configs" / "task").glob("*.yaml")):
        name = path.stem
        extra = NEEDED.get(name, [])
        if extra is None:
            continue
        config = compose([f"task={name}", *extra])
        curve = ROOT / "docs" / "benchmarks" / f"learning_{name}.png"
        named = config.task.name.removesuffix("-v0") if name == "minigrid" else name
        found = measured(named, figures, config.total_frames) + remembered(name)
        if curve.exists():
            found.append(f"[curve](benchmarks/{curve.name})")
        cells = [f"`{name}`", clocks(config), settings(config), f"{config.total_frames / 1e6:g}M"]
        cells += ["<br>".join(found) or "not measured yet", reason(path)]
        rows.setdefault(config.task.family, []).append("| " + " | ".join(cells) + " |")
    head = PAGE.read_text().split(TABLES)[0]
    parts = [head + TABLES]
    for family, lines in rows.items():
        parts.append(
            f"\n## {family}\n\n| `task=` | clocks (B / U) | settings | frames | reached | why |\n"
        )
        parts.append("| --- | --- | --- | --- | --- | --- |\n" + "\n".join(lines) + "\n")
    PAGE.write_text("".join(parts))
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
