"""A round that draws from its window instead of using all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rl_twoclocks
from rl_twoclocks.config import ConfigError
from rl_twoclocks.learner import Learner
from rl_twoclocks.record import read_metrics
from rl_twoclocks.safety import settle
from tests.envs import run_config

WORDS = ("clocks.batch_size=256", "clocks.sample=64", "clocks.update_epochs=2")


def test_a_sample_sets_steps_and_reuse_but_not_the_window(tmp_path: Path) -> None:
    config = run_config("Target", tmp_path, *WORDS, "total_frames=640", "interventions=off")
    derived = settle(config)[1]
    assert (derived.minibatches, derived.reuse) == (2, 2.0)
    rl_twoclocks.train(config)
    last = read_metrics(tmp_path / "metrics.jsonl")[-1]
    assert last["train/steps"] == 4
    assert last["clock/ratio_measured"] == 4.0
    assert last["clock/reuse"] == 2.0
    assert last["clock/steps_per_frame"] == 4 / 64


def test_every_round_draws_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    learn = Learner.learn

    def watched(self, ready, controls, passes):
        readings = learn(self, ready, controls, passes)
        if ready.log_ratio.numel() == 256:
            kept.append(set(ready.keep.tolist()))
        return readings

    monkeypatch.setattr(Learner, "learn", watched)
    words = (*WORDS, "total_frames=1280", "interventions=off")
    rl_twoclocks.train(run_config("Target", tmp_path, *words))
    assert len(kept) > 10
    assert all(len(frames) == 64 for frames in kept)
    assert len(set.union(*kept)) > 240
    assert len({frozenset(frames) for frames in kept}) == len(kept)


@pytest.mark.parametrize("sample", [16, 512])
def test_a_sample_that_cannot_be_is_refused(sample: int, tmp_path: Path) -> None:
    config = run_config("Target", tmp_path, "clocks.batch_size=256", f"clocks.sample={sample}")
    with pytest.raises(ConfigError, match=r"must lie between clocks\.minibatch_size=32"):
        settle(config)


def test_a_sample_is_drawn_from_what_the_governor_keeps(tmp_path: Path) -> None:
    from rl_twoclocks.build import build
    from rl_twoclocks.schedule import Schedule

    config, derived = settle(run_config("Target", tmp_path, *WORDS, "clocks.update_frequency=256"))
    parts = build(config, derived)
    try:
        parts.start_source(config)
        ready = parts.learner.prepare(parts.source.next(0, None)[0])
        ready.keep = torch.arange(100)
        readings = parts.learner.learn(ready, Schedule(config)(256), passes=1)
        assert readings["train/steps"] == 2
        assert len(set(ready.keep.tolist())) == 64
        assert max(ready.keep) < 100
    finally:
        parts.close()
