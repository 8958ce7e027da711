"""The window: the last B frames, each with all that is needed to learn from it at any later time.

Schema, tensors [N, T, ...]: `observation`, `next_observation` (the true next one), `reward` (both
raw), `terminated`, `truncated`, `cut` (time does not run on to the next column although no episode
ended), `action` (before squashing), the behaviour policy's parameters (`loc` and `scale`, or
`logits`), `behaviour_log_prob`, `policy_version` (of the policy that acted), of a recurrent policy
`memory` and `next_memory` (its state before and after the decision). Normalising and scaling happen
at use, with one set of statistics for the whole window. Observations that are stacks of images are the
numbers of their frames where these lie in this process (`rl_twoclocks.envs.frames`).
"""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase

from rl_twoclocks import memory
from rl_twoclocks.distributions import Distribution


def frames_of(collected: TensorDictBase, distribution: Distribution, cut_end: bool) -> TensorDict:
    """Bring one batch of TorchRL's collector [N, T] into the window's schema.

    Args:
        collected: the collector's batch.
        distribution: what the behaviour policy's parameters mean. Log-probabilities are taken here,
            once a rollout, at a fraction of what they cost at every decision.
        cut_end: the next rollout does not continue this one.
    """
    following = collected["next"]
    params = tuple(collected[key] for key in distribution.keys)
    shape = collected.batch_size
    besides = {key: collected[key] for key in memory.KEYS if key in collected}
    if "success" in following:
        besides["success"] = following["success"].squeeze(-1)
    cut = torch.zeros(shape, dtype=torch.bool)
    cut[:, -1] = cut_end
    return TensorDict(
        {
            "observation": collected["observation"],
            "next_observation": following["observation"],
            "reward": following["reward"].squeeze(-1),
            "terminated": following["terminated"].squeeze(-1),
            "truncated": following["truncated"].squeeze(-1),
            "cut": cut,
            "action": collected["raw_action"],
            "behaviour_log_prob": distribution.log_prob(params, collected["raw_action"]),
            "policy_version": collected["policy_version"],
            **dict(zip(distribution.keys, params, strict=True)),
            **besides,
        },
        batch_size=shape,
    )


BESIDES = ("success", "abandoned", "discounted", "episode_return", "episode_length")
"""What a rollout may have besides the schema, for statistics alone: `abandoned`, where environments were
reset after it, while it waited; the last three if it is from elsewhere."""


class Window:
    """The newest `batch_size` frames over N environments, oldest first along time."""

    def __init__(self, batch_size: int, num_envs: int) -> None:
        """Start empty.

        Raises:
            ValueError: the frames do not divide among the environments.
        """
        self.num_envs = num_envs
        self.frames: TensorDict | None = None
        self.resize(batch_size)

    def resize(self, batch_size: int) -> None:
        """Hold another number of frames from now on; the oldest beyond it are dropped.

        Raises:
            ValueError: the frames do not divide among the environments.
        """
        if batch_size % self.num_envs:
            raise ValueError(
                f"batch_size {batch_size} is not a multiple of num_envs {self.num_envs}"
            )
        self.length = batch_size // self.num_envs
        if self.frames is not None:
            self.frames = self.frames[:, -self.length :]

    def rollouts(self, update_frequency: int) -> int:
        """Rounds for which a frame stays, with rollouts of so many frames."""
        return -(-self.length * self.num_envs // update_frequency)

    def append(self, rollout: TensorDict) -> None:
        """Add a rollout [N, T]; the oldest frames beyond the window's size are dropped."""
        rollout = rollout.exclude(*BESIDES)
        if self.frames is None or rollout.shape[1] >= self.length:
            self.frames = rollout[:, -self.length :]
        else:
            kept = self.frames[:, -(self.length - rollout.shape[1]) :]
            self.frames = torch.cat([kept, rollout], dim=1)

    def take(self) -> TensorDict:
        """All frames [N, T]; the newest column counts as a cut.

        Raises:
            RuntimeError: the window is empty.
        """
        if self.frames is None:
            raise RuntimeError("the window is empty")
        return self.frames

    def clear(self) -> None:
        """Drop all frames."""
        self.frames = None

    def cut(self) -> None:
        """Mark that the newest frames are not continued: the environments were reset."""
        if self.frames is not None:
            self.frames["cut"][:, -1] = True

    def state_dict(self) -> dict:
        """All tensors by name."""
        if self.frames is None:
            return {}
        return {key: value.clone() for key, value in self.frames.items()}

    def load_state_dict(self, state: dict) -> None:
        """Restore the frames."""
        self.frames = None
        if state:
            shape = state["reward"].shape
            self.frames = TensorDict({k: v.clone() for k, v in state.items()}, batch_size=shape)
