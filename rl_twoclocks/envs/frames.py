"""Stacks of the newest frames, every frame kept once.

A stack of four frames repeats three of the stack before it, and the next observation all but one. So
what a rollout holds is the numbers of frames: int64 [..., 4], oldest first. The frames themselves lie
in one ring, and a stack is gathered when a network looks at it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

LOST = "frames of this window have been overwritten: the ring of frames is too small for it"
SLACK = 1.0625
"""Room for the last frames of episodes, beside one frame a decision; the ring grows where it must."""


class FrameStore:
    """A ring of frames [H, W] in bytes, which can be looked at by number.

    Args:
        decisions: the newest for which all frames are kept.
        num_envs: frames of a decision, without those that begin or end an episode.
        height: of a frame.
        width: of a frame.
    """

    def __init__(self, decisions: int, num_envs: int, height: int, width: int) -> None:
        """Start empty."""
        capacity = int(SLACK * num_envs * (decisions + 1)) + 1
        self.frames = torch.zeros(capacity, height, width, dtype=torch.uint8)
        self.count = 0
        # How many frames there were before each of the decisions that count.
        self._marks = deque([0], maxlen=decisions)

    def add(self, frames: np.ndarray, decides: bool) -> np.ndarray:
        """Take frames [n, H, W] in; return their numbers, int64 [n]. `decides`: a decision led there."""
        if decides:
            self._marks.append(self.count)
        live = self.count + len(frames) - self._marks[0]
        if live > len(self.frames):
            self._grow(int(SLACK * live) + 1)
        numbers = np.arange(self.count, self.count + len(frames))
        self.frames.numpy()[numbers % len(self.frames)] = frames
        self.count += len(frames)
        return numbers

    def remember(self, decisions: int) -> None:
        """Keep all frames of at least so many decisions from now on."""
        if decisions > (self._marks.maxlen or 0):
            self._marks = deque(self._marks, maxlen=decisions)

    def _grow(self, capacity: int) -> None:
        old = {"frames": self.frames, "count": self.count, "marks": list(self._marks)}
        self.frames = self.frames.new_zeros(capacity, *self.frames.shape[1:])
        self.load_state_dict(old)

    def stacks(self, numbers: Tensor, frames: Tensor | None = None) -> Tensor:
        """Frames [..., H, W] by number [...]: for numbers [n, 4] stacks; from a copy if `frames` is one.

        Raises:
            RuntimeError: one of them has been overwritten.
        """
        if numbers.device.type == "cpu" and int(numbers.min()) < self.count - len(self.frames):
            raise RuntimeError(LOST)
        frames = self.frames if frames is None else frames
        slots = numbers.reshape(-1) % len(self.frames)
        return frames.index_select(0, slots).view(*numbers.shape, *frames.shape[1:])

    def state_dict(self) -> dict[str, Any]:
        """All frames, and how many there have been."""
        return {"frames": self.frames.clone(), "count": self.count, "marks": list(self._marks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore; the ring grows to the size of the one that was saved, which had grown too."""
        old, count = state["frames"], state["count"]
        if len(old) > len(self.frames):
            self.frames = self.frames.new_zeros(old.shape)
        kept = min(count, len(old), len(self.frames))
        numbers = torch.arange(count - kept, count)
        self.frames[numbers % len(self.frames)] = old[numbers % len(old)]
        self.count = count
        self._marks.clear()
        self._marks.extend(state["marks"])


class FrameStack:
    """The stacks that N environments show now; a new episode's are filled with its first frame.

    Args:
        num_envs: N.
        size: frames of a stack.
        image: height and width of a frame.
        remember: decisions for which stacks can be looked up by number; 0: they are never.
    """

    def __init__(self, num_envs: int, size: int, image: tuple[int, ...], remember: int = 0) -> None:
        """Start with no episode."""
        self.by_number = remember > 0
        self.store = FrameStore(remember + size, num_envs, *image)
        self.numbers = np.zeros((num_envs, size), dtype=np.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one stack, [size, height, width]."""
        return self.numbers.shape[1], *self.store.frames.shape[1:]

    def begin(self, frames: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Begin episodes where `mask` [N] is true, or everywhere; return what is observed."""
        chosen = np.ones(len(frames), bool) if mask is None else mask
        self.numbers = self.numbers.copy()
        self.numbers[chosen] = self.store.add(frames[chosen], decides=False)[:, None]
        return self._observe()

    def push(self, frames: np.ndarray) -> np.ndarray:
        """Add the next frame of every environment [N, H, W]; return what is observed."""
        newest = self.store.add(frames, decides=True)[:, None]
        self.numbers = np.concatenate([self.numbers[:, 1:], newest], axis=1)
        return self._observe()

    def _observe(self) -> np.ndarray:
        """Numbers [N, size], or stacks [N, size, H, W]."""
        if self.by_number:
            return self.numbers
        return self.store.stacks(torch.from_numpy(self.numbers)).numpy()
