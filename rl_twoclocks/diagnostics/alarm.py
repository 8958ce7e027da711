"""What a diagnostic says when something is out of step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["watch", "warn", "danger"]
SEVERITIES: tuple[Severity, ...] = ("watch", "warn", "danger")


@dataclass(frozen=True)
class Alarm:
    """One alarm: what is wrong, how bad, on what evidence, and what to do."""

    name: str
    severity: Severity
    values: dict[str, float]
    """The readings that raised it."""
    cause: str
    """The likely cause, one plain sentence."""
    cure: str
    """What would help, one plain sentence."""

    def __str__(self) -> str:
        """One line for a person."""
        values = ", ".join(f"{key} {value:.3g}" for key, value in self.values.items())
        return f"{self.severity.upper()} {self.name}: {self.cause} ({values}) {self.cure}"

    @property
    def rank(self) -> int:
        """0 for watch, 1 for warn, 2 for danger."""
        return SEVERITIES.index(self.severity)
