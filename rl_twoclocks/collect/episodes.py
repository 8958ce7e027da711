"""Returns and lengths of finished episodes, from unscaled rewards."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor


class Episodes:
    """Episode statistics that run on across rollouts."""

    def __init__(self, num_envs: int, recent: int = 100) -> None:
        """Start with no finished episode; means are over the `recent` newest ones."""
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, dtype=np.int64)
        self.finished: deque[tuple[float, int]] = deque(maxlen=recent)
        self.count = 0
        self.newest: list[tuple[float, int]] = []
        self.reached: list[bool] = []
        """Of the episodes that ended in the newest rollout, whether each reached its goal, if told."""

    def update(self, reward: Tensor, done: Tensor) -> list[tuple[float, int]]:
        """Add a rollout, raw rewards and ends [N, T]; return (return, length) of what finished."""
        r, d = reward.double().numpy(), done.numpy()
        finished: list[tuple[int, float, int]] = []
        for env in range(r.shape[0]):
            start = 0
            for end in np.flatnonzero(d[env]) + 1:
                total = self.returns[env] + r[env, start:end].sum()
                length = int(self.lengths[env] + end - start)
                if not np.isnan(total):
                    finished.append((int(end), float(total), length))
                self.returns[env], self.lengths[env], start = 0.0, 0, int(end)
            self.returns[env] += r[env, start:].sum()
            self.lengths[env] += r.shape[1] - start
        # By time, so that "recent" means recent whatever the environment's number.
        return self.take([(total, length) for _, total, length in sorted(finished)])

    def take(self, finished: list[tuple[float, int]]) -> list[tuple[float, int]]:
        """Add a rollout's finished episodes, (return, length) by time."""
        self.finished.extend(finished)
        self.count += len(finished)
        self.newest = finished
        return finished

    def discard_open(self) -> None:
        """Forget unfinished episodes: the environments were reset."""
        self.returns[:] = 0.0
        self.lengths[:] = 0

    def lose_open(self) -> None:
        """Leave unfinished episodes out when they end: frames of theirs were dropped."""
        self.returns[:] = np.nan

    def readings(self) -> dict[str, float]:
        """`rollout/*`: mean return and length of the newest finished episodes, and their count.

        `rollout/return_round` is the mean of those that finished in the newest rollout, if any, and
        `rollout/success_rate` the share of these that reached their goal, where the task can tell.
        """
        result: dict[str, float] = {"rollout/episodes": self.count}
        if self.reached:
            result["rollout/success_rate"] = float(np.mean(self.reached))
        if self.newest:
            result["rollout/return_round"] = float(np.mean([total for total, _ in self.newest]))
        if self.finished:
            returns, lengths = zip(*self.finished, strict=True)
            result["rollout/return_mean"] = float(np.mean(returns))
            result["rollout/return_std"] = float(np.std(returns))
            result["rollout/length_mean"] = float(np.mean(lengths))
        return result

    def state_dict(self) -> dict:
        """Open and recent episodes."""
        return {
            "returns": torch.from_numpy(self.returns.copy()),
            "lengths": torch.from_numpy(self.lengths.copy()),
            "finished": [[total, length] for total, length in self.finished],
            "count": self.count,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore; open episodes only where the number of environments agrees."""
        if state["returns"].shape[0] == self.returns.shape[0]:
            self.returns = state["returns"].numpy().copy()
            self.lengths = state["lengths"].numpy().copy()
        self.finished.clear()
        self.finished.extend((total, length) for total, length in state["finished"])
        self.count = state["count"]
