"""`--help`: usage, the choices of every group, and every key with its default and meaning."""

from __future__ import annotations

import textwrap
from typing import Any

import yaml
from pydantic import BaseModel

from rl_twoclocks.config import Config
from rl_twoclocks.config_commands import SweepConfig
from rl_twoclocks.configure import compose, config_dir, groups, schema_keys
from rl_twoclocks.rundir import plain
from rl_twoclocks.sweep import load

_USAGE = {
    "train": """\
Train a policy with PPO, from configuration to checkpoint.

  python -m rl_twoclocks.train task=halfcheetah
  python -m rl_twoclocks.train task=hopper clocks=safe seed=3 total_frames=500_000
  python -m rl_twoclocks.train -m task=hopper,walker2d seed=1,2,3
  python -m rl_twoclocks.train sweep=optuna task=pendulum total_frames=100_000

The same command again goes on with an unfinished run. Exit codes: 0 done, 1 failed, 2 bad
configuration, 3 a number was not finite, 128 + n stopped by signal n with the state saved.
""",
    "eval": """\
Evaluate a trained policy, deterministic and stochastic.

  python -m rl_twoclocks.eval checkpoint=runs/halfcheetah/classic-decoupled-1a2b3c4d/seed1
  python -m rl_twoclocks.eval checkpoint=<file> episodes=50 video=true
""",
    "generator": """\
Collect for a learner elsewhere, through a Redis server, until its run has gone.

  python -m rl_twoclocks.generator run=mine url=redis://127.0.0.1:6379

The learner: python -m rl_twoclocks.train ... collect=redis collect.redis.spawn=false
collect.redis.run=mine. Exit codes: 0 the run is over, 1 the server is away, 2 no such run.
""",
    "lab": """\
Run a failure without and with its cure, over seeds, and write a page with a conclusion.

  python -m rl_twoclocks.lab scenario=policy_lag budget=smoke

The same command goes on with what was broken off, and skips what is finished.
""",
    "export": """\
Write a trained policy as ONNX and as a torch.export program.

  python -m rl_twoclocks.export checkpoint=runs/halfcheetah/classic-decoupled-1a2b3c4d/seed1
  python -m rl_twoclocks.export checkpoint=<file> format=onnx out=shipped
""",
}


def help_text(name: str, schema: type[BaseModel]) -> str:
    """Everything that can be typed after a command."""
    lines = [_USAGE[name]]
    if schema is Config:
        lines.append("Groups, as group=choice (default marked *):")
        defaults = _defaults(name)
        for group, choices in groups().items():
            marked = [f"{c}*" if c == defaults.get(group) else c for c in choices]
            text = ", ".join(marked)
            lines += textwrap.wrap(
                f"{group:<14} {text}", 96, initial_indent="  ", subsequent_indent=" " * 17
            )
        lines.append("")
    lines.append("Keys, as key=value:")
    lines += _keys(schema, plain(compose()) if schema is Config else {})
    if schema is Config:
        lines += ["", "Keys of a search, with sweep=optuna:"]
        lines += _keys(SweepConfig, load("optuna", []).model_dump(exclude={"space"}), "sweep.")
        lines += [
            "  sweep.space.<key>.choices, sweep.space.<key>.low, .high, .log",
            "      An axis of the space, besides or in place of those in configs/sweep/optuna.yaml.",
            "",
            "Several runs: -m key=1,2,3; two at a time: -m sweep.jobs=2 ...",
            "Hydra's own options: --hydra-help. To see a resolved configuration: --cfg job",
        ]
    return "\n".join(lines)


def _keys(schema: type[BaseModel], values: dict[str, Any], prefix: str = "") -> list[str]:
    """Every key with its default and meaning; `values` are defaults that are not the schema's own."""
    lines: list[str] = []
    section = None
    # What people type most stands at the top level, so it comes first.
    for key, field in sorted(schema_keys(schema), key=lambda item: "." in item[0]):
        head = key.rsplit(".", 1)[0] if "." in key else ""
        if head != section and section is not None:
            lines.append("")
        section = head
        if values and key.partition(".")[0] not in values:
            continue
        default = _lookup(values, key) if values else field.get_default()
        required = not values and field.is_required()
        lines.append(f"  {prefix}{key}" + ("" if required else f" [{_show(default)}]"))
        if field.description:
            lines += textwrap.wrap(
                " ".join(field.description.split()),
                94,
                initial_indent="      ",
                subsequent_indent="      ",
            )
    return lines


def _defaults(name: str) -> dict[str, Any]:
    primary = yaml.safe_load((config_dir() / f"{name}.yaml").read_text())
    result: dict[str, Any] = {}
    for entry in primary["defaults"]:
        if isinstance(entry, dict):
            result |= entry
    return result


def _lookup(values: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        values = values[part]
    return values


def _show(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).splitlines()[0]
