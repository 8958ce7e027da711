"""Slices and policies as bytes: safetensors, which can hold numbers and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from tensordict import TensorDict
from torch import Tensor

from rl_twoclocks.collect.behaviour import Published


class RefusedError(ValueError):
    """A message that is not what it has to be; says why."""


def pack_slice(frames: TensorDict) -> bytes:
    """A slice as bytes."""
    return save({key: value.contiguous() for key, value in frames.items()})


def unpack_slice(message: bytes, example: TensorDict, newest: int) -> TensorDict:
    """Read a slice from a generator that nobody has to trust.

    Args:
        message: from the queue.
        example: a slice with the keys, shapes and types that it must have.
        newest: the newest version that was ever published.

    Raises:
        RefusedError: names what is wrong with it.
    """
    expected = sum(value.numel() * value.element_size() for value in example.values())
    if len(message) > 2 * expected + 65536:
        raise RefusedError(f"{len(message)} bytes where about {expected} are due")
    frames = _load(message, dict(example.items()))
    for key, value in frames.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise RefusedError(f"{key} is not finite")
    if (frames["reward"].abs() > 1e30).any() or (frames["observation"].abs() > 1e30).any():
        raise RefusedError("a number is beyond any use")
    versions = frames["policy_version"]
    if int(versions.min()) < 0 or int(versions.max()) > newest:
        raise RefusedError(f"version {int(versions.max())} where the newest is {newest}")
    if int(versions.min()) != int(versions.max()):
        raise RefusedError("one slice of several versions")
    return TensorDict(frames, batch_size=example.batch_size)


def pack_policy(policy: Published) -> bytes:
    """A policy as bytes."""
    tensors = policy._asdict() | {"version": torch.tensor(policy.version)}
    return save(tensors)


def unpack_policy(message: bytes, like: Published) -> Published:
    """Read a policy that must fit the network that `like` is of.

    Raises:
        RefusedError: names what is wrong with it.
    """
    tensors = _load(message, like._asdict() | {"version": torch.tensor(0)})
    return Published(**(tensors | {"version": int(tensors["version"])}))  # type: ignore[arg-type]


def _load(message: bytes, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    try:
        tensors = load(message)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise RefusedError(f"no safetensors: {error}") from error
    if tensors.keys() != like.keys():
        wrong = ", ".join(sorted(tensors.keys() ^ like.keys()))
        raise RefusedError(f"keys differ: {wrong[:200]}")
    for key, value in tensors.items():
        if value.shape != like[key].shape or value.dtype != like[key].dtype:
            raise RefusedError(
                f"{key} is {value.dtype} {tuple(value.shape)}, not {like[key].dtype} "
                f"{tuple(like[key].shape)}"
            )
    return tensors
