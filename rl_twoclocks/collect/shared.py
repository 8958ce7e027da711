"""Shared memory between the learner and its workers, without locks: a killed process can hold none.

Everything is guarded by a number that is odd (or a state that says so) while its owner writes; who
reads looks at it before and after. Tensors come from torch's shared memory, whose files are unlinked
as soon as they are mapped: nothing is left over, however a process ends.
"""

from __future__ import annotations

import time

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_twoclocks.collect.behaviour import Published

FREE, WRITING, READY = 0, 1, 2
PATIENCE = 10.0
"""Seconds after which a publication under way is given up: it takes a millisecond."""


def shared(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Zeros in shared memory."""
    return torch.zeros(*shape, dtype=dtype).share_memory_()


class Board:
    """The published policy; one writes, all read."""

    def __init__(self, first: Published) -> None:
        """Allocate for policies of this size, and publish a first one."""
        self.parameters, self.shift, self.scale = (
            torch.empty_like(part).share_memory_()
            for part in (first.parameters, first.shift, first.scale)
        )
        self.stamp = shared(2)
        self.learnt = shared(1)
        """1 once the learner has taken steps."""
        self.write(first)

    def write(self, policy: Published) -> None:
        """Publish."""
        self.stamp[0] += 1
        self.parameters.copy_(policy.parameters)
        self.shift.copy_(policy.shift)
        self.scale.copy_(policy.scale)
        self.stamp[1] = policy.version
        self.stamp[0] += 1

    @property
    def version(self) -> int:
        """Of the newest policy."""
        return int(self.stamp[1])

    def read(self) -> Published:
        """The newest policy, whole.

        Raises:
            EOFError: who was writing is gone and will never finish.
        """
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            before = int(self.stamp[0])
            policy = Published(
                self.parameters.clone(), self.shift.clone(), self.scale.clone(), self.version
            )
            if before % 2 == 0 and before == int(self.stamp[0]):
                return policy
            time.sleep(1e-4)
        raise EOFError("the learner stopped in the middle of a publication")


class Shelf:
    """One worker's slots; the worker fills them, the learner empties them."""

    def __init__(self, example: TensorDict, slots: int) -> None:
        """Allocate `slots` slices shaped like `example` [n, T]."""
        self.slices = example.unsqueeze(0).expand(slots, *example.shape).clone().share_memory_()
        self.state = shared(slots)
        self.number = shared(slots)
        self.version = shared(slots)
        # One writer each, the worker and the learner, so that no count is lost.
        self.filled, self.taken = shared(3), shared(3)

    # -- the worker's side ---------------------------------------------------------------------

    def place(self, drop: bool) -> int | None:
        """A slot to fill; with `drop` the oldest waiting one if none is free, else None."""
        free = (self.state == FREE).nonzero()
        if len(free):
            return int(free[0])
        if not drop:
            return None
        waiting = torch.where(self.state == READY, self.number, torch.iinfo(torch.int64).max)
        slot = int(waiting.argmin())
        if self.state[slot] != READY:
            return None
        self.state[slot] = WRITING
        return slot

    def fill(self, slot: int, frames: TensorDict, number: int, version: int) -> None:
        """Put a slice in a slot and let it be seen."""
        self.state[slot] = WRITING
        self.slices[slot].copy_(frames)
        self.number[slot], self.version[slot] = number, version
        counts = _counts(frames)
        self.state[slot] = READY
        # Last: nothing counts as lost before it can be seen.
        self.filled += counts

    # -- the learner's side --------------------------------------------------------------------

    def ready(self) -> list[tuple[int, int, int]]:
        """(number, slot, version) of the waiting slices, oldest first."""
        slots = (self.state == READY).nonzero().flatten().tolist()
        return sorted((int(self.number[s]), s, int(self.version[s])) for s in slots)

    @property
    def full(self) -> bool:
        """Whether the worker has to wait for room."""
        return not bool((self.state != READY).any())

    def take(self, slot: int, number: int) -> TensorDict | None:
        """Copy a waiting slice and free its slot; None if the worker has replaced it meanwhile."""
        frames = self.slices[slot].clone()
        if self.state[slot] != READY or int(self.number[slot]) != number:
            return None
        self.taken += _counts(frames)
        self.state[slot] = FREE
        return frames

    def drop(self, slot: int, number: int) -> None:
        """Free a slot unread, unless the worker has replaced its slice meanwhile."""
        if self.state[slot] == READY and int(self.number[slot]) == number:
            self.state[slot] = FREE

    @property
    def lost(self) -> Tensor:
        """Frames, episodes and summed episode lengths that nobody will learn from, [3].

        What was filled, was not taken and does not wait: whoever dropped it. While the worker fills a
        slot this may be a slice less than in truth.
        """
        filled = self.filled.clone()
        waiting = [_counts(self.slices[slot]) for _, slot, _ in self.ready()]
        return filled - self.taken - sum(waiting, torch.zeros_like(filled))

    def abandon(self) -> None:
        """Free what a dead worker was writing."""
        self.state[self.state == WRITING] = FREE


def _counts(frames: TensorDict) -> Tensor:
    """Frames, episodes that ended in them, and their summed lengths, [3]."""
    lengths = frames["episode_length"]
    return torch.stack([torch.tensor(lengths.numel()), (lengths > 0).sum(), lengths.sum()]).long()
