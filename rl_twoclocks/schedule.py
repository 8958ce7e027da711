"""Learning rate and clip range as functions of absolute frames."""

from __future__ import annotations

from rl_twoclocks.config import Config


class Schedule:
    """Gives (learning rate, clip epsilon) of a round from the frames collected before it ends.

    Tied to absolute frames: a resumed run goes on where it was, and with `optim.anneal_frames` set,
    extending `total_frames` changes nothing before that point.
    """

    def __init__(self, config: Config) -> None:
        """Read the schedules of a configuration."""
        self.optim, self.algo = config.optim, config.algo
        self.end = config.optim.anneal_frames or config.total_frames
        self.rollout = config.clocks.update_frequency

    def __call__(self, frames: int) -> tuple[float, float]:
        """Values for the round whose rollout ended at `frames`: full at the first, never 0."""
        left = max(0.0, 1 - (frames - self.rollout) / self.end)
        rate, clip = self.optim.learning_rate, self.algo.clip_epsilon
        return (
            rate * left if self.optim.schedule == "linear" else rate,
            # A trust region of width 0 would stop learning altogether.
            max(clip * left, 1e-3) if self.algo.clip_schedule == "linear" else clip,
        )
