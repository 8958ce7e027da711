"""The run directory: a deterministic place, and the rule for what is already there."""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.nearest import nearest

# What may differ between two sittings of the same run: where and how, not what.
FREE = (
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


_OURS = (
    "config.yaml",
    "metrics.jsonl",
    "events.jsonl",
    "pictures",
    "export",
    "result.json",
    "error.txt",
    "checkpoint-*.pt",
    "best.pt",
    "eval-*.json",
    "checkpoint-*.mp4",
    "best*.mp4",
    "wandb",
    "tensorboard",
    ".partial-*",
)
"""Names of all that a run writes into its directory."""


def plain(config: Config) -> dict[str, Any]:
    """The configuration as nested plain values, keys as typed on the command line.

    This is what is written down and sent to loggers: passwords in addresses are left out.
    """
    values = config.model_dump(mode="json", by_alias=True)
    redis = values["collect"]["redis"]
    if redis["url"] is not None:
        redis["url"] = masked(redis["url"])
    return values


def masked(url: str) -> str:
    """An address without its password, whatever the password holds, and without its query."""
    scheme, _, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    user = login.partition(":")[0]
    return f"{scheme}://{user + ':***' if at else ''}{at}{place.partition('?')[0]}"


def essence(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a plain configuration that a resumed run must agree on."""
    core = {key: value for key, value in config.items() if key not in FREE}
    # Where the server is, what it is called, where policies act and what is forgiven makes no other
    # experiment.
    elsewhere = ("redis", "ray_address", "device", "patience", "max_restarts")
    core["collect"] = {k: v for k, v in core["collect"].items() if k not in elsewhere}
    if config["interventions"]["governor"] == "guard":
        # What the governor decides by changes training, where it acts.
        measured = config["diagnostics"]
        keys = ("every", "features", "thresholds", "limits")
        core["diagnostics"] = {key: measured[key] for key in keys}
        core["diagnostics"]["measures"] = measured["name"] in ("default", "full")
        if config["interventions"]["rescue"]["enabled"]:
            # Evaluations that collapse order a rescue.
            core["eval"] = {k: v for k, v in config["eval"].items() if k != "num_envs"}
    # What of its group changes training.
    boundary = config["checkpoint"]["episode_boundary"]
    core["checkpoint"] = {"episode_boundary": boundary}
    if boundary:
        core["checkpoint"]["every_frames"] = config["checkpoint"]["every_frames"]
    return core


def protocol(config: dict[str, Any]) -> dict[str, Any]:
    """The essence of a plain configuration, and what its runs are measured by, whatever it changes."""
    drawn = {key: value for key, value in config["diagnostics"].items() if key != "pictures"}
    return essence(config) | {"eval": config["eval"], "diagnostics": drawn}


def run_name(config: Config) -> str:
    """`<task>/<presets>-<hash>/seed<k>`: the same for the same experiment, else different."""
    core = essence(plain(config))
    core.pop("seed")
    digest = hashlib.sha256(json.dumps(core, sort_keys=True).encode()).hexdigest()[:8]
    return f"{config.task.name}/{config.clocks.name}-{config.algo.name}-{digest}/seed{config.seed}"


def directory(config: Config) -> Path:
    """Where the run's results go, absolute."""
    return Path(config.run_dir or Path("runs") / run_name(config)).expanduser().absolute()


def nearest_runs(path: Path, most: int = 5) -> str:
    """Name the run directories nearest to a wrong path, as the end of a message; else nothing.

    They are looked for below the path, or below what exists of it.
    """
    base = path.expanduser().absolute()
    for _ in range(3):
        if base.is_dir():
            break
        base = base.parent
    if not base.is_dir() or base == Path(base.anchor):
        return ""
    patterns = ("metrics.jsonl", "*/metrics.jsonl", "*/*/metrics.jsonl", "*/*/*/metrics.jsonl")
    found = itertools.islice(itertools.chain.from_iterable(map(base.glob, patterns)), 200)
    names = sorted(str(p.parent) for p in found)
    if not path.is_absolute():
        # As it was typed: the answer can be typed the same way.
        names = [os.path.relpath(name) for name in names]
    near = nearest(str(path), names, most, cutoff=0.0)
    return f"; there are runs in {', '.join(near)}" if near else ""


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values as dotted keys, `{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def difference(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """List the keys whose values differ, as `key: old -> new`."""
    a, b = flatten(old), flatten(new)
    pairs = ((key, a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()))
    return [f"{key}: {x} -> {y}" for key, x, y in pairs if x != y]


def changed(
    stored: Path, config: Config, of: Callable[[dict[str, Any]], dict[str, Any]] = essence
) -> list[str]:
    """List what makes a configuration another experiment than that of a config.yaml.

    Compared is `of` both: `essence`, or `protocol` where runs are put side by side.
    """
    old, new = of(yaml.safe_load(stored.read_text())), of(plain(config))
    # What counts for one of them alone follows from what differs in both.
    both = old.keys() & new.keys()
    return difference({k: old[k] for k in both}, {k: new[k] for k in both})


def in_use(path: Path) -> bool:
    """Whether a process is training in a run directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextlib.contextmanager
def claim(config: Config) -> Iterator[tuple[Path, bool]]:
    """Hold the run directory; give it and whether there is a run to go on with.

    Raises:
        ConfigError: there is a run, and `on_existing` forbids it or its configuration differs; or
            another process is training there.
    """
    path = directory(config)
    if path.exists() and not path.is_dir():
        raise ConfigError(f"run_dir={path} is a file")
    with held(path):
        yield path, _prepare(config, path)


@contextlib.contextmanager
def held(path: Path, doing: str = "training", key: str = "run_dir") -> Iterator[None]:
    """Keep other processes out of a directory; the system lets go of it if this one is killed.

    Raises:
        ConfigError: another process is `doing` something there, or `key` names no place for a directory.
    """
    existed = path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{key}={path} cannot be made: {error.strerror}") from error
    # The directory itself is locked: no file that could be left over.
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process is {doing} in {path}") from None
        for torn in path.glob(".partial-*"):
            # Of a process that was killed while it wrote; an export's is a folder.
            shutil.rmtree(torn) if torn.is_dir() else torn.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)
        if not existed and not any(path.iterdir()):
            path.rmdir()


def _prepare(config: Config, path: Path) -> bool:
    stored = path / "config.yaml"
    exists = stored.is_file() and _is_ours(stored)
    if exists and config.on_existing == "fail":
        raise ConfigError(
            f"{path} already holds a run: on_existing=resume goes on with it, overwrite starts over"
        )
    if not exists:
        strange = sorted(p.name for p in path.iterdir() if not _written_by_us(p))
        if strange or stored.is_file():
            strange = strange or [stored.name]
            raise ConfigError(f"{path} is not empty and holds no run (it has {strange[0]})")
    learnt = sorted(p.name for p in path.glob("*.pt") if _written_by_us(p))
    if learnt and not exists and config.on_existing != "overwrite":
        raise ConfigError(
            f"{path} holds {learnt[-1]} and no config.yaml, which says what that is: put the file back, "
            "set run_dir to another place, or on_existing=overwrite"
        )
    if config.on_existing == "overwrite":
        # By name: what somebody else keeps in the same directory stays. The configuration last: what
        # a kill leaves is a run still.
        ours = [entry for entry in path.iterdir() if _written_by_us(entry)]
        for entry in sorted(ours, key=lambda entry: entry == stored):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        exists = False
    if exists:
        differs = changed(stored, config)
        if differs:
            judged = any(line.startswith(("eval.", "diagnostics.")) for line in differs)
            why = "\n(with interventions=guard the governor decides by these: they change training)"
            raise ConfigError(
                f"{path} holds a run with another configuration:\n  "
                + "\n  ".join(differs)
                + (why if judged else "")
                + "\nset run_dir to another place, or on_existing=overwrite"
            )
    write_text(stored, yaml.safe_dump(plain(config), sort_keys=False))
    return exists


def _written_by_us(path: Path) -> bool:
    return any(fnmatch.fnmatch(path.name, pattern) for pattern in _OURS)


def _is_ours(stored: Path) -> bool:
    """Whether a config.yaml is one that a run wrote."""
    try:
        values = yaml.safe_load(stored.read_text())
    except (yaml.YAMLError, UnicodeDecodeError):
        return False
    return isinstance(values, dict) and {"task", "clocks", "algo"} <= values.keys()


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a name to write to; what is written takes `path`'s place at the end, whole or not at all.

    What a kill leaves is named `.partial-<process>-<name>`, and `held` removes it.
    """
    temporary = path.with_name(f".partial-{os.getpid()}-{path.name}")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
