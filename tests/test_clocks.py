from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rl_twoclocks
from rl_twoclocks.clocks import Clocks, clock_readings
from rl_twoclocks.collect import BehaviourPolicy
from rl_twoclocks.record import read_metrics
from rl_twoclocks.record.events import read_events
from tests.envs import run_config


def test_the_environment_clock_ticks_in_decisions_and_simulator_frames() -> None:
    clocks = Clocks()
    clocks.collected(64, 1)
    clocks.collected(64, 4)
    assert (clocks.frames, clocks.simulator_frames) == (128, 320)
    assert clocks.policy_version == clocks.update_steps == 0


def test_readings_of_a_window_of_three_versions_by_hand() -> None:
    clocks = Clocks(policy_version=7, published_version=5)
    versions = torch.tensor([[4, 4, 5, 5, 7, 7], [4, 4, 5, 5, 7, 7]])
    got = clock_readings(clocks, versions, fresh=4, ratio=3.0, passes=4, minibatches=6)
    assert got == pytest.approx(
        {
            "clock/ratio": 3.0,
            "clock/ratio_measured": 3.0,
            "clock/staleness_min": 0.0,
            "clock/staleness_mean": 5 / 3,
            "clock/staleness_max": 3.0,
            "clock/lifetime_mean": 2.0,
            "clock/lifetime_max": 3.0,
            "clock/publish_lag": 2,
            "clock/reuse": 12.0,
            "clock/steps_per_frame": 6.0,
        }
    )


def test_a_half_empty_window_reads_below_the_configured_ratio() -> None:
    versions = torch.tensor([[0, 0, 1, 1]])
    got = clock_readings(Clocks(policy_version=1), versions, 2, 4.0, 2, 1)
    assert (got["clock/ratio"], got["clock/ratio_measured"]) == (4.0, 2.0)
    assert got["clock/reuse"] == 4.0
    assert got["clock/steps_per_frame"] == 1.0


@pytest.mark.parametrize(
    "versions", [[5, 4, 4, 4], [5, 5, 5, 5], [3, 3, 3, 3]], ids=["mixed", "newest", "old"]
)
def test_how_often_a_frame_serves_does_not_depend_on_whose_policy_collected_it(
    versions: list[int],
) -> None:
    """Slices of several workers, or a policy published every fourth round: B = U all the same."""
    window = torch.tensor(versions).repeat_interleave(8).view(4, 8)
    got = clock_readings(Clocks(policy_version=5), window, 32, 1.0, 10, 4)
    assert got["clock/ratio_measured"] == 1.0
    assert got["clock/reuse"] == 10.0
    assert got["clock/steps_per_frame"] == 40 / 32
    assert got["clock/lifetime_mean"] == got["clock/lifetime_max"] == 1.0


def test_collectors_that_stopped_receiving_policies_show_as_staleness_and_lag() -> None:
    clocks = Clocks(policy_version=9, published_version=6)
    got = clock_readings(clocks, torch.full((2, 4), 6), 8, 1.0, 1, 1)
    assert got["clock/staleness_min"] == got["clock/staleness_max"] == 3.0
    assert got["clock/publish_lag"] == 3


def test_counters_make_a_round_trip() -> None:
    clocks = Clocks(1, 2, 3, 4, 5, 6, 7)
    copy = Clocks()
    copy.load_state_dict(clocks.state_dict())
    assert copy == clocks
    assert clocks.readings() == {
        "clock/policy_version": 3,
        "clock/update_steps": 5,
        "clock/frames": 1,
        "clock/simulator_frames": 2,
        "clock/skipped_steps": 6,
        "clock/dropped_frames": 7,
    }


def test_frames_that_waited_before_they_were_learnt_from_have_served_no_round_by_that() -> None:
    versions = torch.tensor([[0, 0, 1, 1]])
    got = clock_readings(Clocks(policy_version=9), versions, 2, 2.0, 10, 4)
    assert got["clock/staleness_max"] == 9.0
    assert (got["clock/lifetime_mean"], got["clock/lifetime_max"]) == (1.5, 2.0)


def test_clocks_of_a_trimmed_window_are_those_of_the_frames_that_are_learnt_from() -> None:
    versions = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]])
    keep = torch.tensor([2, 3, 6, 7])
    got = clock_readings(Clocks(policy_version=4), versions, 2, 4.0, 10, 2, 0.5, keep)
    assert (got["clock/staleness_mean"], got["clock/staleness_max"]) == (0.5, 1.0)
    assert (got["clock/lifetime_mean"], got["clock/lifetime_max"]) == (1.5, 2.0)
    assert got["clock/ratio_measured"] == 4.0 and got["clock/reuse"] == 20.0


def test_a_policy_counts_as_published_once_it_has_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishing that does nothing shows in the clocks, not only in how old the data becomes."""
    publish = BehaviourPolicy.publish

    def only_once(self: BehaviourPolicy, vector: Any, normalizer: Any, version: int) -> None:
        if version == 0:
            publish(self, vector, normalizer, version)

    monkeypatch.setattr(BehaviourPolicy, "publish", only_once)
    config = run_config("Target", tmp_path, "diagnostics=default", "total_frames=512")
    rl_twoclocks.train(config)
    lags = [row["clock/publish_lag"] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert lags == list(range(len(lags)))
    events = read_events(tmp_path / "events.jsonl")
    assert "publish_lag" in {e["name"] for e in events if e["kind"] == "alarm"}
