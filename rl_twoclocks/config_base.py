"""What every group of the configuration shares."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError


class ConfigError(ValueError):
    """The configuration cannot be run; the message names the key and the nearest right one."""


RUN_NAME = r"^[A-Za-z0-9_.-]+$"
"""Names on a Redis server: letters that a command line takes as they are."""


class Group(BaseModel):
    """A frozen group of keys; docstrings of its fields are its help text."""

    model_config = ConfigDict(
        frozen=True,
        allow_inf_nan=False,
        extra="forbid",
        use_attribute_docstrings=True,
        populate_by_name=True,
        protected_namespaces=(),
    )


def first_wrong(error: ValidationError) -> str:
    """The first key that is wrong, and why."""
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
