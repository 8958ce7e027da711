"""Steering: asks the governor for orders, writes down what it says, and carries its orders out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from rl_twoclocks import state
from rl_twoclocks.build import Parts
from rl_twoclocks.config import Config
from rl_twoclocks.diagnose import Diagnose
from rl_twoclocks.diagnostics.cliff import SINCE
from rl_twoclocks.diagnostics.history import LEVEL, RETURN
from rl_twoclocks.interventions import Governor, Orders, Rescue, Snapshots, View, free_memory
from rl_twoclocks.record.events import Events
from rl_twoclocks.safety import unit
from rl_twoclocks.schedule import Schedule
from rl_twoclocks.seeding import stream_seed

if TYPE_CHECKING:
    from rl_twoclocks.session import Session


OF_THE_POLICY = ("policy_kl", "effective_sample_size", "gradient_norm", "reward_cliff", "collapse")
"""Alarms that say that the policy may be ill; others, as of old data, say nothing of its weights."""


class Steering:
    """Between diagnostics and the loop."""

    def __init__(self, config: Config, parts: Parts, diagnose: Diagnose, events: Events) -> None:
        """Make the governor; it is silent unless `interventions.governor` is set."""
        self.config, self.parts, self.diagnose, self.events = config, parts, diagnose, events
        self.schedule = Schedule(config)
        self.governor = Governor(config.interventions)
        rescue = config.interventions.rescue
        self.rescues = config.interventions.governor == "guard" and rescue.enabled
        self.snapshots = Snapshots(rescue.every, rescue.before)

    def decide(self) -> Orders:
        """Orders for the round at hand: the schedule's, and what the governor changes."""
        parts, config = self.parts, self.config
        orders = Orders(
            self.schedule(parts.clocks.frames),
            config.clocks.update_epochs,
            config.clocks.batch_size,
            config.clocks.update_frequency,
        )
        if not self.governor.cures:
            return orders
        n, columns = parts.window.take().batch_size
        ages = torch.arange(columns - 1, -1, -1).repeat(n)
        view = View(
            config,
            self.diagnose.history.round,
            self.diagnose.alarms(),
            self.diagnose.history,
            self.diagnose.places.cells,
            ages,
            orders,
        )
        orders, news = self.governor.decide(view)
        self.diagnose.passes = orders.passes
        for change in news:
            self.events.order(change, self.governor.mode, parts.clocks)
        return orders

    def readings(self) -> dict[str, float]:
        """`order/<cure>`: 1 for every cure that is on (or would be, under `observe`)."""
        return {f"order/{name}": 1.0 for name in self.governor.active}

    def emergency(self, orders: Orders, error: Exception) -> Orders:
        """Go back because of a loss or gradient that is not finite; the round's new orders.

        Raises:
            NonFiniteError: it is not to be rescued, or there is nothing to go back to.
        """
        cure = next((c for c in self.governor.cures if isinstance(c, Rescue)), None)
        wanted = self.config.interventions.on_nonfinite == "rescue"
        if not (wanted and self.rescues and cure and cure.left and self.snapshots.kept):
            raise error
        self.events.note("nonfinite", str(error), self.parts.clocks)
        cure.begin(self.diagnose.history.round)
        self.rescue()
        return cure.at_once(orders, self.config)

    def rescue(self) -> None:
        """Go back to before the cliff: weights, optimizer, normaliser; never clocks."""
        parts, version = self.parts, self.parts.clocks.policy_version
        active = self.diagnose.panel.active
        alarm = active.get("reward_cliff", active.get("collapse"))
        returned = self.diagnose.history.rounds(RETURN)
        onset = int(returned[-1]) if len(returned) else version
        if alarm is not None:
            onset = int(alarm.values[SINCE])
        found = self.snapshots.before(onset - self.config.interventions.rescue.before)
        if found is not None:
            state.restore_learned(parts, found["state"])
            self.snapshots.cut(found["version"])
        back = found["version"] if found else version
        self.events.note("rescue", f"weights of version {back} at version {version}", parts.clocks)
        parts.window.clear()
        parts.clocks.dropped_frames += parts.delay.clear()
        if parts.ring is not None:
            parts.ring.clear()
        parts.fork_streams(self.config.seed)
        self.diagnose.forget(found["score"] if found else float("-inf"))

    def obey(self, orders: Orders, session: Session) -> None:
        """Carry out what concerns the next rollout, after publishing."""
        parts, whole = self.parts, unit(self.config)
        orders = replace(
            orders,
            batch_size=-(-orders.batch_size // whole) * whole,
            update_frequency=-(-orders.update_frequency // whole) * whole,
        )
        parts.window.resize(orders.batch_size)
        if orders.update_frequency != parts.update_frequency:
            session.restart_collector(orders.update_frequency)
        assert parts.source is not None
        parts.source.set_noise(self._noise(orders))
        if orders.reseed or orders.rescue:
            session.begin_new_episodes()
        if orders.rescue:
            # Slices under way are of the policy that fell.
            session.align = True
        if orders.free_memory:
            free_memory(parts.flat.vector.device)
        if self.rescues and self.snapshots.due(parts.clocks.policy_version) and not orders.rescue:
            score = self.diagnose.history.newest(LEVEL, float("-inf"))
            sound = not any(
                alarm.severity == "danger" and name in OF_THE_POLICY
                for name, alarm in self.diagnose.alarms().items()
            )
            version = parts.clocks.policy_version
            self.snapshots.offer(state.learned_state(parts), version, score, sound)

    def _noise(self, orders: Orders) -> tuple[torch.Tensor, int] | None:
        if not orders.noise or self.parts.env.image:
            return None
        deviation = 1 / self.parts.normalizer.scale
        if not self.config.normalize.observation and self.parts.window.frames is not None:
            deviation = self.parts.window.frames["observation"].flatten(0, 1).std(0)
        seed = stream_seed(self.config.seed, "noise", self.parts.clocks.policy_version)
        return orders.noise * deviation, seed

    def state_dict(self) -> dict[str, Any]:
        """Governor and states to go back to."""
        return {
            "governor": self.governor.state_dict(),
            "snapshots": list(self.snapshots.kept),
            "noise": self.parts.env.noise_state(),
            "update_frequency": self.parts.update_frequency,
            "batch_size": self.parts.window.length * self.config.num_envs,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore."""
        self.governor.load_state_dict(saved["governor"])
        self.snapshots.kept.extend(saved["snapshots"])
        self.parts.env.restore_noise(saved["noise"])
        self.parts.update_frequency = saved["update_frequency"]
        self.parts.window.resize(saved["batch_size"])
