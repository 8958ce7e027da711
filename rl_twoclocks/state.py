"""What a checkpoint holds: everything that the next round depends on."""

from __future__ import annotations

import copy
from typing import Any

import torch
from pydantic import ValidationError

from rl_twoclocks.build import Parts
from rl_twoclocks.collect import BehaviourPolicy, Published
from rl_twoclocks.config import Config
from rl_twoclocks.config_base import first_wrong
from rl_twoclocks.normalize import Normalizer
from rl_twoclocks.optim import FlatParameters
from rl_twoclocks.record.checkpoint import CheckpointError
from rl_twoclocks.rundir import plain
from rl_twoclocks.seeding import stream_seed

FORMAT = 4
"""Raised when a checkpoint of an older version can no longer be read."""


_KEYS = {
    "format",
    "config",
    "parameters",
    "parameter_names",
    "update",
    "normalizer",
    "window",
    "delay",
    "ring",
    "behaviour",
    "episodes",
    "clocks",
    "random",
    "environments",
    "frames",
    "memory",
}
_OF_THE_SESSION = {"align", "owed", "diagnose", "steering", "unlogged"}


def capture(
    parts: Parts, config: Config, extra: dict[str, Any], simulators: bool = True
) -> dict[str, Any]:
    """Collect the state at the end of a round, as tensors and plain values.

    Where the simulators cannot be captured, or are not to be, since they are in the middle of a round,
    `environments` is None: a stated episode boundary.
    """
    environments = None
    if simulators and not config.checkpoint.episode_boundary and config.collect.mode == "sync":
        environments = parts.env.snapshot()
    return {
        "format": FORMAT,
        "config": plain(config),
        "parameters": parts.flat.vector.detach().cpu().clone(),
        "parameter_names": list(parts.flat.names),
        "update": parts.learner.update.state_dict(),
        "normalizer": parts.normalizer.state_dict(),
        "window": parts.window.state_dict(),
        "delay": parts.delay.state_dict(),
        "ring": parts.ring.state_dict() if parts.ring is not None else None,
        # What acts may be older than what was learnt last.
        "behaviour": parts.behaviour.published()._asdict(),
        "episodes": parts.episodes.state_dict(),
        "clocks": parts.clocks.state_dict(),
        "random": {
            "policy": parts.policy_noise.get_state(),
            "minibatch": parts.minibatch_order.get_state(),
        },
        "environments": environments,
        # Images whose numbers the window and the environments hold.
        "frames": parts.env.frames.state_dict() if parts.env.frames is not None else None,
        "memory": None if parts.behaviour.memory is None else parts.behaviour.memory.cpu(),
        **extra,
    }


def restore(parts: Parts, state: dict[str, Any]) -> None:
    """Put a captured state back, the behaviour policy as it was included.

    Call before the collector starts. Without captured simulators the environments begin new
    episodes, with seeds that follow from the run's seed and the frames so far.

    Raises:
        CheckpointError: the state is of another format or another network.
    """
    check(state)
    _check_network(parts.flat, state)
    with torch.no_grad():
        parts.flat.vector.copy_(state["parameters"])
    parts.learner.update.load_state_dict(state["update"])
    parts.normalizer.load_state_dict(state["normalizer"])
    parts.window.load_state_dict(state["window"])
    parts.delay.load_state_dict(state["delay"])
    if parts.ring is not None and state["ring"] is not None:
        parts.ring.load_state_dict(state["ring"])
    parts.episodes.load_state_dict(state["episodes"])
    parts.clocks.load_state_dict(state["clocks"])
    parts.behaviour.take(Published(**state["behaviour"]))
    if parts.env.frames is not None and state["frames"] is not None:
        parts.env.frames.load_state_dict(state["frames"])
    if state["environments"] is not None:
        parts.env.restore(state["environments"])
        parts.behaviour.remember(state["memory"])
    else:
        parts.begin_new_episodes(state["config"]["seed"])


def learned_state(parts: Parts) -> dict[str, Any]:
    """What learning has made: parameters, optimizer and normaliser, without clocks and data."""
    return {
        "parameters": parts.flat.vector.detach().cpu().clone(),
        "update": copy.deepcopy(parts.learner.update.state_dict()),
        "normalizer": parts.normalizer.state_dict(),
    }


def restore_learned(parts: Parts, state: dict[str, Any]) -> None:
    """Put back what `learned_state` gave; the clocks go on."""
    with torch.no_grad():
        parts.flat.vector.copy_(state["parameters"])
    parts.learner.update.load_state_dict(state["update"])
    parts.normalizer.load_state_dict(state["normalizer"])


def learned(
    config: Config, policy: BehaviourPolicy, state: dict[str, Any]
) -> tuple[torch.Tensor, Normalizer]:
    """Take flat parameters and normaliser out of a checkpoint, for a policy of that network.

    Raises:
        CheckpointError: the state is incomplete or of another network.
    """
    check(state)
    _check_network(policy.flat, state)
    normalizer = Normalizer(
        tuple(state["normalizer"]["observation"]["mean"].shape),
        1,
        config.algo.gamma,
        config.normalize,
        state["normalizer"]["real"],
    )
    normalizer.load_state_dict(state["normalizer"])
    return state["parameters"], normalizer


def restore_random(parts: Parts, state: dict[str, Any]) -> None:
    """Set the random streams; call after the collector started, which draws a first action."""
    noise = state["random"]["policy"]
    if noise.shape == parts.policy_noise.get_state().shape:
        parts.policy_noise.set_state(noise)
    else:
        # Of another kind of device, whose streams cannot be continued here.
        seed = int(state["config"]["seed"])
        parts.policy_noise.manual_seed(stream_seed(seed, f"policy from {parts.clocks.frames}"))
    parts.minibatch_order.set_state(state["random"]["minibatch"])


def check(state: dict[str, Any]) -> None:
    """Refuse what is no complete checkpoint of this format.

    Raises:
        CheckpointError: names what is missing.
    """
    if (found := state.get("format", FORMAT)) != FORMAT:
        raise CheckpointError(f"the checkpoint has format {found}, this version reads {FORMAT}")
    missing = (_KEYS | _OF_THE_SESSION) - state.keys()
    statistics = state.get("normalizer", {})
    for part in ("observation", "returns"):
        missing |= {f"normalizer.{part}"} - {f"normalizer.{key}" for key in statistics}
        for key in ("count", "mean", "m2"):
            if key not in statistics.get(part, {}):
                missing.add(f"normalizer.{part}.{key}")
    missing |= {f"normalizer.{key}" for key in ("discounted", "real") if key not in statistics}
    if missing:
        raise CheckpointError(f"the checkpoint lacks {', '.join(sorted(missing))}")


def configuration(state: dict[str, Any]) -> Config:
    """What a complete checkpoint of this format was made with.

    Raises:
        CheckpointError: names what is missing, or the first key that this version does not know.
    """
    check(state)
    try:
        return Config.model_validate(state["config"])
    except ValidationError as error:
        raise CheckpointError(
            f"the checkpoint was written by another version of rl_twoclocks: {first_wrong(error)}"
        ) from error


def _check_network(flat: FlatParameters, state: dict[str, Any]) -> None:
    shape = tuple(state["parameters"].shape)
    if state["parameter_names"] != flat.names or shape != tuple(flat.vector.shape):
        raise CheckpointError(
            f"the checkpoint is of another network: {shape[0]} parameters, not "
            f"{flat.vector.numel()}"
        )
