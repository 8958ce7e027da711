"""Lag on purpose: data that waits for rounds, and policies drawn from a ring of older ones.

For experiments and tests. The stamps stay true: what lags is measured like any other lag.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import torch
from tensordict import TensorDict

from rl_twoclocks.collect.behaviour import BehaviourPolicy, Published


class Delay:
    """A first-in-first-out queue: every rollout is learnt from `rounds` rounds after the newest one."""

    def __init__(self, rounds: int) -> None:
        """Start empty; the first `rounds` rollouts fill the queue."""
        self.rounds = rounds
        self.queue: deque[TensorDict] = deque()

    @property
    def filling(self) -> bool:
        """Whether another rollout is needed before one comes out."""
        return len(self.queue) < self.rounds

    def push(self, rollout: TensorDict) -> TensorDict:
        """Put the newest rollout in and take the oldest out."""
        if self.rounds == 0:
            return rollout
        self.queue.append(rollout.clone())
        return self.queue.popleft()

    def fill(self, rollout: TensorDict) -> None:
        """Put a rollout in without taking one out."""
        self.queue.append(rollout.clone())

    def clear(self) -> int:
        """Drop what waits; how many frames it was."""
        frames = sum(rollout.numel() for rollout in self.queue)
        self.queue.clear()
        return frames

    def cut(self) -> bool:
        """Mark that the newest waiting rollout is not continued; False if none waits."""
        if self.queue:
            newest = self.queue[-1]
            newest["cut"][:, -1] = True
            newest["abandoned"] = newest["cut"].clone()
        return bool(self.queue)

    def state_dict(self) -> list[dict[str, torch.Tensor]]:
        """All waiting rollouts."""
        return [{k: v.clone() for k, v in rollout.items()} for rollout in self.queue]

    def load_state_dict(self, state: list[dict[str, torch.Tensor]]) -> None:
        """Restore."""
        self.queue = deque(TensorDict(r, batch_size=r["reward"].shape) for r in state)


class Ring:
    """The last `size` published policies; one of them, drawn at random, acts in the next rollout."""

    def __init__(self, size: int, seed: int) -> None:
        """Start empty."""
        self.kept: deque[Published] = deque(maxlen=size)
        self.stream = random.Random(seed)

    def publish(self, behaviour: BehaviourPolicy) -> None:
        """Keep the policy just published, and let a kept one act."""
        self.kept.append(behaviour.published())
        behaviour.take(self.kept[self.stream.randrange(len(self.kept))])

    def clear(self) -> None:
        """Forget all policies, after a rescue."""
        self.kept.clear()

    def state_dict(self) -> dict[str, Any]:
        """All kept policies, and where the draw stands."""
        version, inside, _ = self.stream.getstate()
        return {"kept": [p._asdict() for p in self.kept], "draw": [version, list(inside)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore."""
        self.kept.extend(Published(**p) for p in state["kept"])
        version, inside = state["draw"]
        self.stream.setstate((version, tuple(inside), None))
