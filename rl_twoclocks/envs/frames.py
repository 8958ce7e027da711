"""Stacks of the newest frames, every frame kept once.

A stack of four frames repeats three of the stack before it, and the next observation all but one. So
what a rollout holds is the numbers of frames: int64 [..., 4], oldest first. The frames themselves lie
in one ring, and a stack is gathered when a network looks at it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

LOST = "frames of this window have been overwritten: the ring of frames is too small for it"


class FrameStore:
    """A ring of frames [H, W] in bytes; the newest `capacity` of them can be looked at by number."""

    def __init__(self, capacity: int, height: int, width: int) -> None:
        """Start empty."""
        self.frames = torch.zeros(capacity, height, width, dtype=torch.uint8)
        self._array = self.frames.numpy()
        self.count = 0

    def add(self, frames: np.ndarray) -> np.ndarray:
        """Take frames [n, H, W] in; return their numbers, int64 [n]."""
        numbers = np.arange(self.count, self.count + len(frames))
        self._array[numbers % len(self._array)] = frames
        self.count += len(frames)
        return numbers

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
        return {"frames": self.frames.clone(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore; a ring of another size takes the newest frames that it can hold."""
        old, count = state["frames"], state["count"]
        kept = min(count, len(old), len(self.frames))
        numbers = torch.arange(count - kept, count)
        self.frames[numbers % len(self.frames)] = old[numbers % len(old)]
        self.count = count


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
        # At most two frames a decision: the last of an episode, and the first of the next one.
        self.store = FrameStore(2 * num_envs * (remember + size), *image)
        self.numbers = np.zeros((num_envs, size), dtype=np.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one stack, [size, height, width]."""
        return self.numbers.shape[1], *self.store.frames.shape[1:]

    def begin(self, frames: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Begin episodes where `mask` [N] is true, or everywhere; return what is observed."""
        chosen = np.ones(len(frames), bool) if mask is None else mask
        self.numbers = self.numbers.copy()
        self.numbers[chosen] = self.store.add(frames[chosen])[:, None]
        return self._observe()

    def push(self, frames: np.ndarray) -> np.ndarray:
        """Add the next frame of every environment [N, H, W]; return what is observed."""
        newest = self.store.add(frames)[:, None]
        self.numbers = np.concatenate([self.numbers[:, 1:], newest], axis=1)
        return self._observe()

    def _observe(self) -> np.ndarray:
        """Numbers [N, size], or stacks [N, size, H, W]."""
        if self.by_number:
            return self.numbers
        return self.store.stacks(torch.from_numpy(self.numbers)).numpy()
