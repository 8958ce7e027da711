"""Slices and policies as bytes: safetensors, which can hold numbers and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from safetensors.torch import load, save
from tensordict import TensorDict
from torch import Tensor

from rl_twoclocks.collect.behaviour import Published
from rl_twoclocks.distributions import DISTRIBUTIONS, FORBIDDEN, Gaussian


class RefusedError(ValueError):
    """A message that is not what it has to be; says why."""


def pack_slice(frames: TensorDict) -> bytes:
    """A slice as bytes."""
    return save({key: value.contiguous() for key, value in frames.items()})


LARGEST = 1e10
"""Observations, rewards and their sums beyond this spoil running statistics for good."""


def largest_message(example: TensorDict) -> int:
    """Bytes beyond which a message cannot be a slice like the example."""
    return 2 * sum(value.numel() * value.element_size() for value in example.values()) + 65536


def unpack_slice(
    message: bytes, example: TensorDict, published: Collection[int], oldest: int | None = None
) -> TensorDict:
    """Read a slice from a generator that nobody has to trust.

    Its log-probabilities are not believed but taken anew from the parameters that it states, and its
    end is a cut whatever it says.

    Args:
        message: from the queue.
        example: a slice with the keys, shapes and types that it must have.
        published: versions that were ever published.
        oldest: the oldest version that is learnt from; None: any.

    Raises:
        RefusedError: names what is wrong with it.
    """
    if len(message) > largest_message(example):
        raise RefusedError(f"{len(message)} bytes where {largest_message(example)} are the most")
    frames = _load(message, dict(example.items()))
    for key, value in frames.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise RefusedError(f"{key} is not finite")
        if (
            value.is_floating_point()
            and key != "behaviour_log_prob"
            and (value.abs() > LARGEST).any()
        ):
            raise RefusedError(f"{key} is beyond {LARGEST:g}")
    version, other = int(frames["policy_version"].min()), int(frames["policy_version"].max())
    if version != other:
        raise RefusedError("one slice of several versions")
    if oldest is not None and version < oldest:
        raise RefusedError(f"version {version} where the oldest is {oldest}")
    if version not in published:
        raise RefusedError(f"version {version} was never published; the newest is {max(published)}")
    if "behaviour_log_prob" in frames:
        _settle_policy(frames)
    return TensorDict(frames, batch_size=example.batch_size)


def _settle_policy(frames: dict[str, Tensor]) -> None:
    """Check action and parameters, and take log-probabilities and the end's cut from them."""
    distribution = next(d for d in DISTRIBUTIONS if d.keys[0] in frames)
    params = tuple(frames[key] for key in distribution.keys)
    action = frames["action"]
    if distribution is not Gaussian and not (
        action.min() >= 0 and action.max() < params[0].shape[-1]
    ):
        raise RefusedError(f"action {int(action.max())} of {params[0].shape[-1]} choices")
    if distribution is Gaussian and not (params[1] > 0).all():
        raise RefusedError("scale is not positive")
    frames["behaviour_log_prob"] = distribution.log_prob(params, action)
    if not bool((frames["behaviour_log_prob"] > FORBIDDEN / 2).all()):
        raise RefusedError("the stated policy gives its own actions no probability")
    frames["cut"][:, -1] = True


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
    except Exception as error:
        # Whatever a hostile header makes the reader raise: nothing but the bytes is at fault.
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
