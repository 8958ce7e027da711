"""Which diagnostics run when; they read, and change nothing."""

from __future__ import annotations

import time

import torch
from tensordict import TensorDict

from rl_twoclocks.build import Parts
from rl_twoclocks.clocks import clock_readings
from rl_twoclocks.config import Config
from rl_twoclocks.diagnostics import Alarm, explained_variance, first_ratio, policy_shift
from rl_twoclocks.learner import Round


class Diagnose:
    """Runs the configured set before and after a round's steps, and keeps the alarms raised."""

    def __init__(self, config: Config, parts: Parts) -> None:
        """Choose the set: off, minimal or default."""
        self.config, self.parts = config, parts
        self.level = ("off", "minimal", "default").index(config.diagnostics.name)
        self.alarms: list[Alarm] = []
        self.seconds = 0.0

    def before(self, window: TensorDict, ready: Round, rollout: TensorDict) -> dict[str, float]:
        """Read the clocks and the first ratio, before the round's first step."""
        if self.level < 1:
            return {}
        started = time.perf_counter()
        clocks, limits = self.config.clocks, self.config.diagnostics
        readings = clock_readings(
            self.parts.clocks,
            window["policy_version"],
            clocks.batch_size / clocks.update_frequency,
            clocks.update_epochs,
            -(-window.numel() // clocks.minibatch_size),
        )
        newest = ready.log_ratio[:, -rollout.shape[1] :]
        ratio, alarm = first_ratio(
            newest,
            self.parts.behaviour.moved(self.parts.flat.vector, self.parts.normalizer),
            limits.first_ratio_mean,
            limits.first_ratio_max,
        )
        if alarm is not None:
            self.alarms.append(alarm)
        if self.level > 1:
            # Before learning: later, targets are of newer critics than `old_value`.
            fit = explained_variance(ready.flat["old_value"], ready.flat["target"])
            readings["diag/explained_variance"] = fit
        self.seconds = time.perf_counter() - started
        return readings | ratio

    @torch.no_grad()
    def after(self, ready: Round) -> dict[str, float]:
        """Read how far the round moved the policy, and how well the critic fits."""
        if self.level < 2:
            return {}
        started = time.perf_counter()
        model, flat = self.parts.model, ready.flat
        current = model.policy(flat["observation"])
        log_ratio = (
            model.distribution.log_prob(current, flat["action"]) - flat["behaviour_log_prob"]
        )
        readings = policy_shift(model.distribution, ready.behaviour, current, log_ratio)
        readings["time/diagnostics_seconds"] = self.seconds + time.perf_counter() - started
        return readings
