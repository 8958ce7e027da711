"""Whether those who collect take the policies that are published to them."""

from __future__ import annotations

import time
from collections import deque

REMEMBERED = 256
"""Publications kept: a slice takes far fewer rounds."""


class Heed:
    """By worker, how many publications behind it went on although newer ones were there to take.

    A worker looks for a policy before every slice. What was published before it finished one slice, it
    must have taken for the next: no slowness of its own can excuse it.
    """

    def __init__(self) -> None:
        """Start with nothing published."""
        self.published: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        self.finished: dict[int, int] = {}
        self.behind: dict[int, int] = {}

    def publish(self, version: int) -> None:
        """Note that a version can be taken from now on."""
        self.published.append((time.monotonic_ns(), version))

    def slice(self, worker: int, finished: int, version: int) -> None:
        """Note a worker's slice by the time that it was finished (monotonic, ns) and its version."""
        before = self.finished.get(worker)
        if before is not None and finished <= before:
            return
        self.finished[worker] = finished
        known = [v for at, v in self.published if before is not None and at <= before]
        # In the order of publication: a ring lets older policies act again.
        if version in known:
            self.behind[worker] = known[::-1].index(version)
        else:
            self.behind[worker] = len(known) if known and version < min(known) else 0

    def readings(self) -> dict[str, float]:
        """Publications that the worst worker is behind by its own fault, and which one that is."""
        worst = max(self.behind, key=lambda worker: self.behind[worker], default=0)
        return {
            "collect/worker_behind": float(self.behind.get(worst, 0)),
            "collect/worker_worst": float(worst),
        }
