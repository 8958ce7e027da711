"""What the tests of all sources of rollouts share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from rl_twoclocks.build import Parts, build
from rl_twoclocks.config import Config
from rl_twoclocks.safety import settle


@contextlib.contextmanager
def collecting(config: Config) -> Iterator[tuple[Parts, Any]]:
    """The parts of a run and the source that its rollouts come from, at work."""
    config, derived = settle(config)
    parts = build(config, derived)
    try:
        parts.start_source(config)
        yield parts, parts.source
    finally:
        parts.close()


def publish(parts: Parts, version: int) -> None:
    """Give the learner's parameters and statistics away as a version."""
    parts.clocks.policy_version = parts.clocks.published_version = version
    parts.publish()


def true_stamps(parts: Parts, source: Any, versions: int) -> set[int]:
    """Check that every stamp's parameters give the stored log-probabilities; the stamps seen."""
    published = {0: parts.behaviour.published()}
    seen: set[int] = set()
    for version in range(versions):
        with torch.no_grad():
            parts.flat.vector.add_(0.1 * torch.randn_like(parts.flat.vector))
        parts.normalizer.merge(torch.randn(4, 8, 3) + version, torch.randn(4, 8))
        parts.clocks.policy_version = parts.clocks.published_version = version
        # Version 0 is what the source begins with.
        if version:
            parts.publish()
        published[version] = parts.behaviour.published()
        rollout, frames = source.next(version, None)
        assert rollout.shape == (4, 16)
        assert frames >= rollout.numel()
        for stamp in rollout["policy_version"].unique().tolist():
            part = rollout[(rollout["policy_version"] == stamp).all(1)]
            parts.behaviour.take(published[stamp])
            _, _, params = parts.behaviour.act(part["observation"].flatten(0, 1))
            again = parts.model.distribution.log_prob(params, part["action"].flatten(0, 1))
            stored = part["behaviour_log_prob"].flatten()
            torch.testing.assert_close(again, stored, atol=1e-5, rtol=0)
            seen.add(stamp)
        parts.behaviour.take(published[version])
    return seen
