"""Write metrics as TensorBoard scalars; the x axis is environment frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.tensorboard import SummaryWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import nn

    from rl_twoclocks.record import RunInfo


class TensorBoardLogger:
    """Write scalars to `<run>/tensorboard`."""

    address: str | None = None

    def __init__(self, run: RunInfo) -> None:
        """Open an event file; hide the rows after the checkpoint, or all of a run that had none."""
        # The purge takes its own step with it, and the checkpoint's row is still true.
        purge_step = run.frames + 1 if run.frames else 0
        self._writer = SummaryWriter(str(run.directory / "tensorboard"), purge_step=purge_step)

    def log(self, metrics: Mapping[str, float], frames: int) -> None:
        """Write every metric, `frames` environment frames into the run."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), frames)

    def watch(self, module: nn.Module) -> None:
        """Do nothing: the gradient norms come as metrics."""

    def pictures(self, paths: Sequence[Path], frames: int) -> None:
        """Do nothing: the pictures are in the run directory."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the event files are their own state."""
        return {}

    def close(self, exit_code: int = 0) -> None:
        """Flush and close; a second call does nothing."""
        self._writer.close()
