"""From Hydra's groups and overrides to the validated configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.nearest import did_you_mean, nearest
from rl_twoclocks.rundir import flatten

Schema = TypeVar("Schema", bound=BaseModel)


def config_dir() -> Path:
    """The shipped `configs/`: beside the package in a checkout, inside it when installed."""
    inside = Path(__file__).parent / "configs"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "configs"


def groups() -> dict[str, list[str]]:
    """Every config group with its choices; sweeps and the lab are no part of a run's configuration."""
    return {
        folder.name: sorted(p.stem for p in folder.glob("*.yaml"))
        for folder in sorted(config_dir().iterdir())
        if folder.is_dir() and folder.name not in ("sweep", "lab")
    }


def schema_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf key of a schema, dotted, with its pydantic field."""
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from schema_keys(field.annotation, key + ".")
        else:
            yield key, field


def compose(overrides: Sequence[str] = ()) -> Config:
    """Compose a configuration as the command line does, from Python.

    Raises:
        ConfigError: an override names no key or choice, or a value is not allowed.
    """
    overrides = free_form(check_overrides(overrides))
    if GlobalHydra.instance().is_initialized():
        GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            return validate(hydra_compose("train", overrides=overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(str(error)) from error


def validate(config: DictConfig | dict[str, Any], schema: type[Schema] = Config) -> Schema:  # type: ignore[assignment]
    """Check a composed configuration against the schema.

    Raises:
        ConfigError: lists every wrong key and value, with the nearest right key.
    """
    values: Any = config
    if isinstance(config, DictConfig):
        # Unresolved first: what is missing may be what another key interpolates.
        raw: Any = OmegaConf.to_container(config, resolve=False)
        if missing := sorted(key for key, value in flatten(raw).items() if value == "???"):
            raise ConfigError("\n".join(f"{key} is required: write {key}=..." for key in missing))
        try:
            values = OmegaConf.to_container(config, resolve=True)
        except OmegaConfBaseException as error:
            raise ConfigError(str(error).splitlines()[0]) from error
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        lines = []
        for item in error.errors():
            key = ".".join(str(part) for part in item["loc"])
            if item["type"] == "extra_forbidden":
                lines.append(f"unknown key {key}{_nearest(key, schema)}")
            elif item["type"] == "missing":
                lines.append(f"{key} is required: write {key}=...")
            else:
                value = "null" if item["input"] is None else repr(item["input"])
                lines.append(f"{key}={value}: {item['msg']}{_meant(item)}")
        raise ConfigError("\n".join(lines)) from error


def _meant(error: ErrorDetails) -> str:
    """The nearest of the choices where a value is none of them; else nothing."""
    if error["type"] != "literal_error" or not isinstance(error["input"], str):
        return ""
    meant = did_you_mean(error["input"], re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    return f"; {meant}" if meant else ""


def assign(key: str, value: Any) -> str:
    """The override that gives a key this value, whatever characters a text has: `key='a,b'`."""
    if value is None or isinstance(value, (bool, int, float)):
        return f"{key}={'null' if value is None else value}"
    if isinstance(value, (list, tuple)):
        return f"{key}=[{','.join(assign('', item)[1:] for item in value)}]"
    text = str(value)
    if re.fullmatch(r"[A-Za-z_/][\w./-]*", text, re.ASCII) and text.lower() not in _WORDS:
        return f"{key}={text}"
    # Hydra reads a backslash as one of its own only before a quote.
    quoted = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + (m[2] and "\\'"), text)
    return f"{key}='{quoted}'"


_WORDS = ("null", "true", "false", "nan", "inf")
"""What Hydra does not take for text."""

FREE = ("kwargs", "limits", "changed")
"""Ends of the keys whose values are free-form dictionaries."""


def free_form(overrides: Sequence[str]) -> list[str]:
    """Let keys of free-form dictionaries be set without Hydra's `++`, whether or not they exist."""
    keys = [key for key, _ in schema_keys() if key.endswith(FREE)]
    # Of the tasks some alone have these in their files; `safety` says of the others what is meant.
    some = tuple(f"task.{name}=" for name in ("world", "joints", "rules", "game"))
    free = tuple(key + sign for key in keys for sign in ".=") + some
    return [f"++{text}" if text.startswith(free) else text for text in overrides]


def check_overrides(overrides: Sequence[str], schema: type[BaseModel] = Config) -> Sequence[str]:
    """Check the names in command-line overrides, before Hydra composes anything; return them.

    Raises:
        ConfigError: names the nearest key, group or choice.
    """
    known = dict(schema_keys(schema))
    choices = groups() if schema is Config else {}
    parser = OverridesParser.create()
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            raise ConfigError(f"{text!r} is no override: write key=value") from error
        key = override.key_or_group.split("@")[0]
        if key == "hydra" or key.startswith(("hydra.", "hydra/")):
            continue
        if key in choices:
            _check_choice(key, override, choices[key])
        elif not _is_key(key, known):
            raise ConfigError(f"unknown key {key}{_nearest(key, schema)}")
    return overrides


def _is_key(key: str, known: dict[str, Any]) -> bool:
    if key in known:
        return True
    # Free-form dictionaries take any key below them, and a whole group may be set at once.
    return any(key.startswith(k + ".") and k.endswith(FREE) for k in known)


def _check_choice(group: str, override: Override, choices: list[str]) -> None:
    if override.is_sweep_override():
        names = list(override.sweep_string_iterator()) if override.is_choice_sweep() else []
    else:
        names = [str(override.value())]
    for name in names:
        if name not in (*choices, "None"):
            near = nearest(name, choices)
            hint = f"did you mean {group}={near[0]}? " if near else ""
            raise ConfigError(f"{group}={name}: {hint}choices are {', '.join(choices)}")


def _nearest(key: str, schema: type[BaseModel]) -> str:
    known = [k for k, _ in schema_keys(schema)]
    near_groups = [] if "." in key else groups()
    if schema is Config and (group := nearest(key, near_groups, cutoff=0.7)):
        return f": did you mean {group[0]}?"
    last = key.rsplit(".", 1)[-1]
    same = [k for k in known if k.rsplit(".", 1)[-1] == last]
    near = nearest(key, same or known, cutoff=0.0 if same else 0.5)
    if not near:
        leaf = {k.rsplit(".", 1)[-1]: k for k in known}
        near = [leaf[m] for m in nearest(last, leaf, cutoff=0.5)]
    if near:
        return f": did you mean {near[0]}?"
    if schema is not Config and (key in near_groups or _is_key(key, dict(schema_keys()))):
        return ": it is for rl_twoclocks.train; --help lists the keys of this command"
    return "; --help lists all keys"
