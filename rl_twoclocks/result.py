"""What a run came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    run_dir: str
    frames: int
    rounds: int
    return_mean: float | None
    """Mean return of the last evaluation; None without evaluation."""
    return_std: float | None
    best_return: float | None
    wall_seconds: float
    """Over all sessions of the run."""
    stopped_by: str | None
    """Name of the signal that ended this sitting early; None when the budget is used up."""
    checkpoint: str | None
    """Newest checkpoint; None if a signal came before the first round ended."""

    def as_dict(self) -> dict:
        """Plain values, as in `result.json`."""
        return asdict(self)
