"""Learning rate and clip range as functions of absolute frames."""

from __future__ import annotations

import math

from rl_twoclocks.config import Config
from rl_twoclocks.update import Controls


class Schedule:
    """Gives the controls of a round from the frames collected before it ends.

    Tied to absolute frames: a resumed run goes on where it was, and with `optim.anneal_frames` set,
    extending `total_frames` changes nothing before that point.
    """

    def __init__(self, config: Config) -> None:
        """Read the schedules of a configuration."""
        self.optim, self.algo = config.optim, config.algo
        c = config.clocks
        # Rollouts that fill a queue are not learnt from: the first round comes after them.
        waiting = c.lag * c.update_frequency if c.lag_mode == "queue" else 0
        self.end = max((config.optim.anneal_frames or config.total_frames) - waiting, 1)
        self.first = c.update_frequency + waiting
        target = config.algo.target_kl
        self.kl_limit = math.inf if target is None else 1.5 * target

    def __call__(self, frames: int) -> Controls:
        """Values for the round whose rollout ended at `frames`: full at the first, 0 from the end on."""
        left = max(0.0, 1 - (frames - self.first) / self.end)
        rate, clip = self.optim.learning_rate, self.algo.clip_epsilon
        bound = self.optim.max_grad_norm
        cap, start = self.algo.max_importance_ratio, self.algo.importance_ratio_start
        return Controls(
            learning_rate=rate * left if self.optim.schedule == "linear" else rate,
            # A trust region of width 0 would stop learning altogether.
            clip_epsilon=max(clip * left, 1e-3) if self.algo.clip_schedule == "linear" else clip,
            entropy_coeff=self.algo.entropy_coeff,
            max_grad_norm=math.inf if bound is None else bound,
            kl_limit=self.kl_limit,
            max_importance_ratio=cap if start is None else start + (cap - start) * (1 - left),
            ess_base=self.algo.ess_base or 0.0,
        )
