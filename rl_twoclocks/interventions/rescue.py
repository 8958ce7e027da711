"""Rescue: on a reward cliff go back to before it, and carry on slower.

The clocks of a rescued run stay monotone: versions and frames are never counted back. The window is
emptied and random streams fork, so that the same fall is not simply played again. U and B shrink (the
write-up: 2000 -> 500) and so does the step, at every rescue once more: a cause that returns meets a
slower learner each time. Steps are scaled by KL and effective sample size from then on, and an entropy
bonus keeps the policy wide enough to learn.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from rl_twoclocks.config import Config
from rl_twoclocks.config_cures import RescueConfig
from rl_twoclocks.diagnostics.cliff import SINCE
from rl_twoclocks.diagnostics.policy_shift import action_dims
from rl_twoclocks.interventions.cure import NEVER, Cure, View
from rl_twoclocks.interventions.orders import Change, Orders
from rl_twoclocks.safety import SAFE_TABLE, ratio_cap

BLAMED = (
    "policy_kl", "effective_sample_size", "gradient_norm", "gradients_aligned", "first_ratio",
    "policy_lag", "publish_lag", "clock_ratio", "baseline_leak", "score_residual", "state_blind",
)  # fmt: skip
"""Alarms that say that steps were too large, or taken on data of another policy."""
STILL = 0.05
"""Nats by which a policy has to have moved since a rescue for another one to bring anything back."""
SMALLEST_U = 256
"""Least U, frames, for families without a row of their own."""


class Rescue(Cure[RescueConfig]):
    """Orders a rescue on a reward cliff, and holds its clocks and step size afterwards.

    Only where something says that the learner's own steps may have led there. Returns also fall by
    themselves, for dozens of rounds on Hopper, and come back: slower clocks would keep them down.
    """

    name = "rescue"
    memory = ("count", "last", "blamed")
    count = 0
    last: float = NEVER
    blamed: float = NEVER
    """The newest round in which one danger, or two warnings, said that steps are to blame."""

    @property
    def left(self) -> bool:
        """Whether another rescue is allowed."""
        return self.count < self.config.most

    def begin(self, now: int) -> None:
        """Count a rescue in round `now`; from then on its clocks and steps hold."""
        self.count += 1
        self.last = now

    def _clocks(self, config: Config) -> tuple[int, int]:
        """B and U after the rescues so far."""
        return shrunk(config, self.config.shrink**self.count, self.count)

    def at_once(self, orders: Orders, config: Config) -> Orders:
        """A round's orders with a rescue that began when they had been given."""
        if self.config.shrink == self.config.step == 1.0:
            return replace(orders, rescue=True)
        batch, frequency = self._clocks(config)
        return replace(orders, rescue=True, batch_size=batch, update_frequency=frequency)

    def propose(self, view: View) -> Change | None:
        """Go back, or hold what the last rescue set."""
        # One warning by itself comes now and then in a healthy run.
        signs = view.any_of(*BLAMED, at_least="warn")
        if len(signs) > 1 or view.any_of(*BLAMED, at_least="danger"):
            self.blamed = view.round
        why = view.any_of("reward_cliff", "collapse", at_least="danger")
        onset = min((view.alarms[name].values.get(SINCE, view.round) for name in why), default=0)
        caused = self.blamed >= onset - self.config.before
        # Under `observe` the alarm goes on: one cliff is one rescue there too.
        rested = view.round - self.last > self.config.before
        # After a rescue history begins anew. A policy that has stayed where it was put did not fall by
        # its steps, and smaller ones would only keep it there.
        moved = not self.count or float(view.history.series("train/kl").sum()) > STILL
        rescue = bool(why) and caused and rested and moved and self.left
        if rescue:
            self.begin(view.round)
        if not self.count:
            return None
        if self.config.shrink == self.config.step == 1.0:
            return (
                Change(self.name, ", ".join(why), "rollback alone", {"rescue": True})
                if rescue
                else None
            )
        batch, frequency = self._clocks(view.config)
        scale, steps = self.config.step**self.count, view.config.interventions.step
        dims = action_dims(view.history)
        fields: dict[str, Any] = {
            "rescue": rescue,
            "batch_size": batch,
            "update_frequency": frequency,
            "controls": {
                "learning_rate": view.orders.controls.learning_rate * scale,
                # What fell once moves too fast: from here on every step is measured.
                "kl_target": steps.kl_target * dims,
                "ess_base": max(view.orders.controls.ess_base, steps.ess_base),
                "kl_limit": min(view.orders.controls.kl_limit, steps.kl_stop * dims),
                # A policy that has narrowed on the way to the cliff explores nothing.
                "entropy_coeff": max(view.orders.controls.entropy_coeff, self.config.entropy_coeff),
            },
        }
        what = (
            f"rescue {self.count} of {self.config.most}: B {batch:,} / U {frequency:,}, "
            f"learning rate x {scale:.3g}"
        )
        return Change(self.name, ", ".join(why) or "earlier order", what, fields)


def shrunk(config: Config, factor: float, count: int = 1) -> tuple[int, int]:
    """B and U after the `count`-th rescue: U x `factor`, and a clock ratio that only falls.

    U stays at or above the family's smallest. The ratio is at most the family's cap, half of it after
    the second rescue, and so on down to 1: a ratio above the cap is part of the cause.
    """
    n, c = config.num_envs, config.clocks
    row = SAFE_TABLE.get(config.task.family)
    floor = max(row.update_frequency[0] if row else SMALLEST_U, c.minibatch_size)
    floor = min(-(-floor // n) * n, c.update_frequency)
    frequency = max(int(c.update_frequency * factor) // n * n, floor)
    cap = ratio_cap(config.task.family) * 0.5 ** (count - 1)
    # In integers: B / U x U may fall one short of B.
    wanted = min(c.batch_size * frequency // c.update_frequency, int(cap * frequency))
    batch = max(wanted // n * n, frequency)
    smallest = -(-c.minibatch_size // n) * n
    return max(batch, smallest), frequency


CLOSE = 0.1
"""States within this share of the scores' spread from the best one count as equally good."""


class Snapshots:
    """States of the newest rounds to go back to, in memory and in every checkpoint."""

    def __init__(self, every: int, before: int) -> None:
        """Keep one per `every` rounds, enough to look `before` rounds behind a long cliff."""
        self.every = every
        self.room = max(4, 8 * before // every)
        self.kept: list[dict[str, Any]] = []

    def offer(self, state: dict[str, Any], version: int, score: float, sound: bool) -> None:
        """Keep the state of a round.

        Args:
            state: what to go back to.
            version: of the policy.
            score: the level of the return then; -inf before the first episode has ended.
            sound: whether nothing said that the policy itself was ill.
        """
        row = {"version": version, "score": score, "state": state, "sound": sound}
        if len(self.kept) == self.room:
            best = max(self.kept, key=lambda s: (s["sound"], s["score"], s["version"]))
            # A long illness must not push out the last states from before it, and whatever comes after
            # the best one must not push that out: some falls are noticed late.
            gone = next((s for s in self.kept if (sound or not s["sound"]) and s is not best), None)
            if gone is None:
                return
            self.kept = [s for s in self.kept if s is not gone]
        self.kept.append(row)

    def due(self, version: int) -> bool:
        """Whether the state of this round should be offered."""
        return version % self.every == 0

    def before(self, version: int) -> dict[str, Any] | None:
        """The state to go back to from version `version` or before, else the oldest; None without any.

        Sound states first. Of those that come close to the best score the earliest: what leads to a
        cliff has been at work for the least time there.
        """
        old = [s for s in self.kept if s["version"] <= version]
        old = [s for s in old if s["sound"]] or old
        if not old:
            return self.kept[0] if self.kept else None
        scores = [s["score"] for s in old if math.isfinite(s["score"])]
        if not scores:
            # No episode had ended yet: the newest has learnt most.
            return old[-1]
        near = max(scores) - CLOSE * (max(scores) - min(scores))
        return next(s for s in old if s["score"] >= near)

    def cut(self, version: int) -> None:
        """Forget states after a version: they lead to the cliff."""
        while self.kept and self.kept[-1]["version"] > version:
            self.kept.pop()
