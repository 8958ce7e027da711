"""The two clocks: the policy's, in versions, and the environment's, in fresh frames."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor


@dataclass
class Clocks:
    """Where both clocks stand. There is no bare `step` anywhere."""

    frames: int = 0
    """Agent decisions collected, over all environments."""
    simulator_frames: int = 0
    """`frames` x frame_skip."""
    policy_version: int = 0
    """Learner rounds finished."""
    published_version: int = 0
    """Version that the collectors have."""
    update_steps: int = 0
    """Optimizer steps applied."""
    skipped_steps: int = 0
    """Optimizer steps thrown away because something was not finite."""
    dropped_frames: int = 0
    """`frames` that were dropped before they could be learnt from."""

    def collected(self, frames: int, frame_skip: int, dropped: int = 0) -> None:
        """Tick the environment clock; `dropped` of the frames will not be learnt from."""
        self.frames += frames
        self.dropped_frames += dropped
        self.simulator_frames += frames * frame_skip

    def readings(self) -> dict[str, float]:
        """`clock/*`: where both clocks stand."""
        return {
            f"clock/{name}": value
            for name, value in asdict(self).items()
            if name != "published_version"
        }

    def state_dict(self) -> dict[str, int]:
        """All counters."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore all counters."""
        for field in fields(self):
            setattr(self, field.name, int(state.get(field.name, 0)))


def clock_readings(
    clocks: Clocks,
    versions: Tensor,
    fresh: int,
    ratio: float,
    passes: int,
    minibatches: int,
    used: float = 1.0,
    keep: Tensor | None = None,
) -> dict[str, float]:
    """Read both clocks against the frames that a round really uses.

    Args:
        clocks: where the clocks stand.
        versions: [N, T], the version stamped on every frame of the window.
        fresh: frames that the newest rollout brought.
        ratio: the clock ratio B / U in force: the configured one, unless the governor changed it.
        passes, minibatches: of the round, as planned.
        used: share of the window's frames that a round draws from.
        keep: numbers of the frames that it draws from, in the flattened window; None: all.

    Returns:
        `clock/*`. staleness: learner's version - frame's version, in rounds. lifetime: rounds for
        which a frame has been in the window, this one included, if all rollouts were as long as the
        newest. ratio_measured: frames in the window per fresh one; equals B / U once the window is full.
        reuse: ratio_measured x passes x used.
    """
    staleness = (clocks.policy_version - versions).double()
    # By its place, not its stamp: what waited before it came has served no round by that, and neighbours
    # may share a version.
    columns = max(fresh // versions.shape[0], 1)
    ages = torch.arange(versions.shape[1] - 1, -1, -1, device=versions.device)
    served = (ages // columns + 1).double().expand_as(staleness)
    if keep is not None:
        keep = keep.to(versions.device)
        staleness, served = staleness.flatten()[keep], served.flatten()[keep]
    measured = versions.numel() / fresh
    return {
        "clock/ratio": ratio,
        "clock/ratio_measured": measured,
        "clock/staleness_min": float(staleness.min()),
        "clock/staleness_mean": float(staleness.mean()),
        "clock/staleness_max": float(staleness.max()),
        "clock/lifetime_mean": float(served.mean()),
        "clock/lifetime_max": float(served.max()),
        "clock/publish_lag": clocks.policy_version - clocks.published_version,
        "clock/reuse": measured * passes * used,
        "clock/steps_per_frame": passes * minibatches / fresh,
    }
