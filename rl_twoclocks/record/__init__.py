"""Record a run: metrics to JSONL, TensorBoard and W&B, and a live display for the person watching.

A logger only ever reads what it is given. A logger that cannot work is left out with one warning:
recording never stops a training run.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rl_twoclocks.record.display import Display
from rl_twoclocks.record.jsonl import JsonlLogger, read_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import nn

    from rl_twoclocks.config import LoggerConfig

__all__ = ["Display", "Logger", "Loggers", "RunInfo", "make_loggers", "read_metrics"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunInfo:
    """Identify the run that is recorded."""

    name: str  # e.g. "halfcheetah/classic-decoupled-1a2b3c4d/seed1"
    directory: Path  # the run directory; exists
    config: dict[str, Any]  # the resolved configuration, plain and nested, without secrets
    frames: int  # frames of the checkpoint that was resumed from; 0 for a new run
    state: dict[str, Any]  # state_dict() of the loggers in that checkpoint; {} for a new run


class Logger(Protocol):
    """Write metrics somewhere."""

    address: str | None
    """Where the run can be watched on the network, if it can."""

    def log(self, metrics: Mapping[str, float], frames: int) -> None:
        """Record one row of metrics, `frames` environment frames into the run."""

    def watch(self, module: nn.Module) -> None:
        """Follow the gradients and parameters of a module, where the logger can."""

    def pictures(self, paths: Sequence[Path], frames: int) -> None:
        """Show pictures of the run, where the logger can."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as plain strings and integers."""

    def close(self, exit_code: int = 0) -> None:
        """Flush and close; a second call does nothing."""


class Loggers:
    """Pass every call on to several loggers."""

    def __init__(self, loggers: Sequence[Logger], state: Mapping[str, Any] | None = None) -> None:
        """Keep the loggers, and the `state` of an earlier leg of the run.

        The earlier state outlives a leg that runs with its logger switched off.
        """
        self._loggers = list(loggers)
        self.address = next((x.address for x in loggers if x.address is not None), None)
        """Where the run can be watched on the network, if it can."""
        self._state = dict(state or {})

    def log(self, metrics: Mapping[str, float], frames: int) -> None:
        """Record one row of metrics, `frames` environment frames into the run."""
        for logger in self._loggers:
            logger.log(metrics, frames)

    def watch(self, module: nn.Module) -> None:
        """Follow the gradients and parameters of a module, where a logger can."""
        for logger in self._loggers:
            logger.watch(module)

    def pictures(self, paths: Sequence[Path], frames: int) -> None:
        """Show pictures of the run, where a logger can."""
        for logger in self._loggers:
            logger.pictures(paths, frames)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all loggers, merged."""
        state = dict(self._state)
        for logger in self._loggers:
            state |= logger.state_dict()
        return state

    def close(self, exit_code: int = 0) -> None:
        """Close every logger, also when one of them fails; a second call does nothing."""
        while self._loggers:
            logger = self._loggers.pop()
            self._state |= logger.state_dict()
            try:
                logger.close(exit_code)
            except Exception as error:
                _log.warning("%s did not close: %s", type(logger).__name__, error)


def make_loggers(config: LoggerConfig, run: RunInfo) -> Loggers:
    """Build the loggers that the configuration asks for; JSONL is always on.

    Args:
        config: The `logger` group of the configuration.
        run: The run to record; on a resumed run the rows after its checkpoint are taken back.
    """
    loggers: list[Logger] = [JsonlLogger(run)]
    # W&B before TensorBoard: `sync_tensorboard` must be in place when the writer is made.
    if config.wandb:
        from rl_twoclocks.record.wandb import WandbLogger

        loggers.append(WandbLogger(config, run))
    if config.tensorboard:
        try:
            from rl_twoclocks.record.tensorboard import TensorBoardLogger

            loggers.append(TensorBoardLogger(run))
        except ImportError as error:
            _log.warning("TensorBoard is off: %s (pip install tensorboard)", error)
    return Loggers(loggers, run.state)
