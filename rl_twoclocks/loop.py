"""The training loop: collect -> window -> diagnose -> learn -> publish -> record."""

from __future__ import annotations

import time

import torch

from rl_twoclocks.build import build
from rl_twoclocks.config import Config
from rl_twoclocks.envs import NonFiniteError
from rl_twoclocks.result import Result
from rl_twoclocks.rundir import claim
from rl_twoclocks.safety import settle
from rl_twoclocks.session import Session
from rl_twoclocks.signals import StopSignal


def train(config: Config) -> Result:
    """Train a policy from a configuration; go on with the run if its directory holds one.

    Raises:
        ConfigError: the configuration cannot be run; nothing was changed.
        NonFiniteError: an observation, reward, loss or gradient is not finite; the last checkpoint
            is good.
        WorkerError: an environment's process died.
    """
    config, derived = settle(config)
    torch.set_num_threads(config.threads)
    # In TF32 a convolution gives other log-probabilities than those of the policy that acted.
    torch.backends.cudnn.allow_tf32 = False
    with StopSignal() as stop:
        parts = build(config, derived)
        try:
            with (
                claim(config) as (directory, exists),
                Session(config, derived, directory, exists, parts) as session,
            ):
                if not session.finished:
                    run(config, session, stop)
                return session.result(stop)
        finally:
            parts.close()


def run(config: Config, session: Session, stop: StopSignal) -> None:
    """Run rounds until the budget is used up or a signal comes."""
    parts, clocks = session.parts, session.parts.clocks
    diagnose, steering = session.diagnose, session.steering
    session.start_collector()
    session.make_up(stop)
    while not session.over and not stop:
        started = time.perf_counter()

        # Collect: the environment clock ticks. Every frame carries the version that acted.
        with session.name_place():
            rollout = session.collect(stop)
        if rollout is None:
            break
        parts.window.append(rollout)
        parts.count_episodes(rollout, config.collect.reset_each_rollout)
        collected = time.perf_counter()

        # Diagnose before the first step, and decide what this round shall be.
        window = parts.window.take()
        ready = parts.learner.prepare(window)
        readings = diagnose.before(window, ready, rollout)
        orders = steering.decide()

        # Learn: all passes of the round.
        calibrating = session.calibrating
        if calibrating:
            # Collected without statistics: good for estimating them, not for learning. (What waits in a
            # pool, or in a queue of `clocks.lag` rounds, was collected so too, and is learnt from.)
            parts.window.clear()
        elif orders.rescue:
            steering.rescue()
        else:
            ready.keep = orders.keep
            readings |= diagnose.chosen(window, rollout.numel(), orders.keep)
            with session.name_place():
                try:
                    readings |= parts.learner.learn(ready, orders.controls, orders.passes)
                except NonFiniteError as error:
                    orders = steering.emergency(orders, error)
            if not orders.rescue:
                clocks.update_steps += int(readings["train/steps"])
                clocks.skipped_steps += int(readings["train/steps_skipped"])
                readings |= diagnose.after(ready)
                session.watch(ready)
        learned = time.perf_counter()

        # Publish: the policy clock ticks. Weights and normaliser statistics change together, here.
        if not orders.rescue:
            parts.update_statistics(rollout)
        if config.collect.reset_each_rollout or "abandoned" in rollout:
            parts.forget_open_episodes()
        session.publish(readings, now=calibrating or orders.rescue)
        steering.obey(orders, session)

        # Record, evaluate, save.
        readings["time/collect_seconds"] = collected - started
        readings["time/update_seconds"] = learned - collected
        readings["time/round_seconds"] = time.perf_counter() - started
        session.record(readings, stop)
    if not stop:
        session.make_up(stop)
    # A signal between two rounds finds the last one unsaved.
    session.save()
    session.draw()


__all__ = ["NonFiniteError", "Result", "run", "train"]
