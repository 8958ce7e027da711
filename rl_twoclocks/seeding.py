"""Random numbers by purpose: one independent stream each, all derived from the run's seed."""

from __future__ import annotations

import zlib

import numpy as np
import torch


def stream_seed(seed: int, purpose: str, index: int = 0) -> int:
    """Derive the seed of a named stream; different purposes and indices never share one."""
    key = [seed, zlib.crc32(purpose.encode()), index]
    return int(np.random.SeedSequence(key).generate_state(1, dtype=np.uint32)[0])


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Make the torch generator of a named stream on a device."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, purpose))


def env_seeds(seed: int, purpose: str, num_envs: int, index: int = 0) -> list[int]:
    """Give one seed per environment; `index` counts reseedings of the same stream."""
    key = [seed, zlib.crc32(purpose.encode()), index]
    state = np.random.SeedSequence(key).generate_state(num_envs, dtype=np.uint32)
    return [int(s) & 0x7FFFFFFF for s in state]
