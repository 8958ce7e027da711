"""The run directory: a deterministic place, and the rule for what is already there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import yaml

from rl_twoclocks.config import Config, ConfigError

# What may differ between two sittings of the same run: where and how, not what.
_FREE = (
    "total_frames",
    "device",
    "threads",
    "compile",
    "cuda_graphs",
    "run_dir",
    "on_existing",
    "logger",
    "checkpoint",
    "eval",
    "diagnostics",
)


def plain(config: Config) -> dict[str, Any]:
    """The configuration as nested plain values, keys as typed on the command line."""
    return config.model_dump(mode="json", by_alias=True)


def essence(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a plain configuration that a resumed run must agree on."""
    return {key: value for key, value in config.items() if key not in _FREE}


def run_name(config: Config) -> str:
    """`<task>/<presets>-<hash>/seed<k>`: the same for the same experiment, else different."""
    core = essence(plain(config))
    core.pop("seed")
    digest = hashlib.sha256(json.dumps(core, sort_keys=True).encode()).hexdigest()[:8]
    return f"{config.task.name}/{config.clocks.name}-{config.algo.name}-{digest}/seed{config.seed}"


def directory(config: Config) -> Path:
    """Where the run's results go, absolute."""
    return Path(config.run_dir or Path("runs") / run_name(config)).expanduser().absolute()


def difference(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """List the keys whose values differ, as `key: old -> new`."""
    lines = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += difference(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a} -> {b}")
    return lines


def claim(config: Config) -> tuple[Path, bool]:
    """Prepare the run directory; return it and whether there is a run to go on with.

    Raises:
        ConfigError: there is a run, and `on_existing` forbids it or its configuration differs.
    """
    path = directory(config)
    stored = path / "config.yaml"
    if path.exists() and not path.is_dir():
        raise ConfigError(f"run_dir={path} is a file")
    exists = stored.is_file()
    if exists and config.on_existing == "fail":
        raise ConfigError(
            f"{path} already holds a run: on_existing=resume goes on with it, overwrite starts over"
        )
    if not exists and path.is_dir() and any(path.iterdir()):
        ours = {"metrics.jsonl", "wandb", "tensorboard", "error.txt", "lock"}
        strange = sorted(p.name for p in path.iterdir() if p.name not in ours)
        if strange:
            raise ConfigError(f"{path} is not empty and holds no run (it has {strange[0]})")
    if exists and config.on_existing == "overwrite":
        shutil.rmtree(path)
        exists = False
    if exists:
        differs = difference(essence(yaml.safe_load(stored.read_text())), essence(plain(config)))
        if differs:
            raise ConfigError(
                f"{path} holds a run with another configuration:\n  "
                + "\n  ".join(differs)
                + "\nset run_dir to another place, or on_existing=overwrite"
            )
    path.mkdir(parents=True, exist_ok=True)
    write_text(stored, yaml.safe_dump(plain(config), sort_keys=False))
    return path, exists


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_name(f".partial-{os.getpid()}-{path.name}")
    temporary.write_text(text)
    os.replace(temporary, path)
