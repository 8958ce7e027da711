"""Read what a run has written down: its configuration, its rows and its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.config_base import first_wrong
from rl_twoclocks.record.jsonl import read_metrics

Row = dict[str, Any]


@dataclass(frozen=True)
class Records:
    """The rows and events of a run directory."""

    directory: Path
    rows: list[Row]
    events: list[Row]

    @classmethod
    def read(cls, directory: Path, strict: bool = True) -> Records:
        """Read both files; one that is missing has nothing in it.

        Without `strict` lines that are broken are left out.

        Raises:
            ConfigError: a line other than the last is broken.
        """
        try:
            rows = read_metrics(directory / "metrics.jsonl", strict)
            return cls(directory, rows, read_metrics(directory / "events.jsonl", strict))
        except ValueError as error:
            raise ConfigError(str(error)) from error


def newest_tenth(rows: Sequence[Row]) -> Sequence[Row]:
    """The last tenth of the rows, at least ten."""
    return rows[-max(10, len(rows) // 10) :]


def values(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """What a metric was in the rows that have it; what was not finite is left out."""
    return [row[name] for row in rows if row.get(name) is not None]


def stored_config(directory: Path) -> Config:
    """The configuration that a run wrote down.

    Raises:
        ConfigError: it is missing or broken.
    """
    path = directory / "config.yaml"
    try:
        return Config.model_validate(yaml.safe_load(path.read_text()))
    except ValidationError as error:
        raise ConfigError(
            f"{path} was edited, or written by another version of rl_twoclocks: {first_wrong(error)}"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
