"""Lag on purpose is the lag that is measured."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import rl_twoclocks
from rl_twoclocks.build import build
from rl_twoclocks.collect.episodes import Episodes
from rl_twoclocks.flowmap import predict
from rl_twoclocks.record import read_metrics
from rl_twoclocks.safety import settle
from rl_twoclocks.schedule import Schedule
from rl_twoclocks.update import Controls
from tests.envs import run_config


def trained(path: Path, *words: str) -> list[dict]:
    rl_twoclocks.train(run_config("Target", path, "total_frames=640", *words))
    return read_metrics(path / "metrics.jsonl")


@pytest.mark.parametrize("lag", [1, 3])
def test_a_queue_makes_every_frame_that_old(lag: int, tmp_path: Path) -> None:
    rows = trained(tmp_path, f"clocks.lag={lag}")
    # The queue fills before the first round; from then on the lag grows to its full size.
    assert [row["clock/staleness_mean"] for row in rows] == [min(i, lag) for i in range(len(rows))]
    assert rows[0]["frames"] == 64 * (lag + 1)
    assert rows[-1]["frames"] == 640


def test_no_lag_is_what_it_was(tmp_path: Path) -> None:
    plain, zero = trained(tmp_path / "a"), trained(tmp_path / "b", "clocks.lag=0")
    for one, two in zip(plain, zero, strict=True):
        assert {k: v for k, v in one.items() if not k.startswith("time/")} == {
            k: v for k, v in two.items() if not k.startswith("time/")
        }


def test_a_ring_mixes_versions_up_to_the_lag(tmp_path: Path) -> None:
    rows = trained(tmp_path, "clocks.lag=3", "clocks.lag_mode=ring", "total_frames=3200")
    seen = {int(row["clock/staleness_mean"]) for row in rows}
    assert seen == {0, 1, 2, 3}


def test_a_ring_of_a_slow_publisher_is_as_old_as_is_foretold(tmp_path: Path) -> None:
    words = ["clocks.lag=2", "clocks.lag_mode=ring", "clocks.publish_interval=3"]
    rows = trained(tmp_path, *words, "total_frames=9600")
    foretold = predict(run_config("Target", tmp_path, *words))
    ages = [row["clock/staleness_max"] for row in rows]
    assert max(ages) == foretold.oldest == 8
    assert sum(ages[20:]) / len(ages[20:]) == pytest.approx(foretold.mean, abs=1.0)


@pytest.mark.parametrize("lag", [2, 4])
def test_an_episode_boundary_leaves_the_lag_as_it_is(lag: int, tmp_path: Path) -> None:
    words = [f"clocks.lag={lag}", "checkpoint.every_frames=128", "checkpoint.episode_boundary=true"]
    rows = trained(tmp_path, *words)
    assert [row["clock/staleness_mean"] for row in rows] == [min(i, lag) for i in range(len(rows))]
    assert rows[-1]["frames"] == 640


def test_aligning_leaves_a_ring_nothing_old_to_draw(tmp_path: Path) -> None:
    words = ["clocks.lag=4", "clocks.lag_mode=ring", "clocks.align_kl=1e-12"]
    rows = trained(tmp_path, *words, "diagnostics=default")
    assert all(row["clock/staleness_max"] == 0 for row in rows)


def test_a_slow_publisher_makes_data_older_round_by_round(tmp_path: Path) -> None:
    rows = trained(tmp_path, "clocks.publish_interval=3", "normalize.calibrate=false")
    assert [row["clock/staleness_mean"] for row in rows[:7]] == [0, 1, 2, 0, 1, 2, 0]


def test_a_large_kl_publishes_before_its_time(tmp_path: Path) -> None:
    words = ["clocks.publish_interval=100", "clocks.publish_kl=1e-9", "diagnostics=default"]
    rows = trained(tmp_path, *words)
    assert all(row["clock/staleness_mean"] == 0 for row in rows)


@pytest.mark.parametrize(
    "lag",
    [
        ["clocks.lag=2"],
        ["clocks.publish_interval=3"],
        ["clocks.lag=2", "clocks.lag_mode=ring"],
        ["clocks.gradient_lag=3"],
    ],
)
def test_lag_is_part_of_the_checkpoint(lag: list[str], tmp_path: Path) -> None:
    words = [*lag, "checkpoint.every_frames=64", "optim.anneal_frames=640"]
    rl_twoclocks.train(run_config("Target", tmp_path / "a", *words, "total_frames=640"))
    rl_twoclocks.train(run_config("Target", tmp_path / "b", *words, "total_frames=320"))
    rl_twoclocks.train(run_config("Target", tmp_path / "b", *words, "total_frames=640"))
    whole, resumed = (read_metrics(tmp_path / k / "metrics.jsonl") for k in "ab")
    assert len(whole) == len(resumed) >= 8
    for one, two in zip(whole, resumed, strict=True):
        for key in ("train/loss", "clock/staleness_mean", "frames", "train/kl"):
            assert one.get(key) == two.get(key)


def test_a_round_without_a_step_has_readings(tmp_path: Path) -> None:
    """Gradients of old parameters are beyond the KL limit from the first minibatch on."""
    words = ["clocks.gradient_lag=3", "algo.target_kl=1e-9", "total_frames=320"]
    rl_twoclocks.train(run_config("Target", tmp_path, *words))
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "train/steps" in row]
    assert any(row["train/steps"] == 0 for row in rows)
    for row in rows:
        assert all(math.isfinite(row[key]) for key in ("train/loss", "train/kl", "grad_norm/total"))


@pytest.mark.parametrize("lag", [1, 3])
def test_stale_gradients_are_those_of_older_parameters(lag: int, tmp_path: Path) -> None:
    """With plain steps of a constant size, lagged steps repeat the gradients of `lag` steps ago."""
    words = [f"clocks.gradient_lag={lag}", "optim.name=SGD", "~optim.kwargs.eps"]
    words += ["optim.max_grad_norm=null"]
    config, derived = settle(run_config("Target", tmp_path, *words))
    parts = build(config, derived)
    try:
        update = parts.learner.update
        update.start_round(Controls(0.1, 0.2))
        g = torch.Generator().manual_seed(0)
        n = 32
        minibatch = (
            torch.randn(n, 3, generator=g),
            torch.randn(n, 2, generator=g),
            torch.full((n,), -2.0),
            torch.full((n,), -2.0),
            torch.randn(n, generator=g),
            torch.randn(n, generator=g),
            torch.zeros(n),
        )
        where = [parts.flat.vector.clone()]
        for _ in range(5):
            update(*minibatch)
            where.append(parts.flat.vector.clone())

        def gradient(at: torch.Tensor) -> torch.Tensor:
            def loss(vector: torch.Tensor) -> torch.Tensor:
                return update.loss(parts.flat.named(vector), *minibatch)[0]

            return torch.func.grad(loss)(at)

        for step in range(5):
            # Until there are parameters so old, the newest are used.
            old = where[step - lag] if step >= lag else where[step]
            moved = where[step] - where[step + 1]
            torch.testing.assert_close(moved, 0.1 * gradient(old), atol=1e-6, rtol=1e-4)
    finally:
        parts.close()


def test_a_boundary_between_episodes_keeps_what_waits_and_cuts_it(tmp_path: Path) -> None:
    config, derived = settle(run_config("Target", tmp_path, "clocks.lag=2"))
    parts = build(config, derived)
    try:
        parts.start_source(config)
        for _ in range(2):
            parts.delay.fill(parts.source.next(0, None)[0])
        assert not parts.delay.filling
        parts.begin_new_episodes(config.seed)
        assert not parts.delay.filling
        older, newest = parts.delay.queue
        assert newest["cut"][:, -1].all()
        assert not older["cut"].any()
    finally:
        parts.close()


def test_an_interval_that_was_asked_for_is_no_failure_to_publish(tmp_path: Path) -> None:
    from rl_twoclocks.record.events import read_events

    trained(tmp_path, "clocks.publish_interval=5", "diagnostics=default")
    assert not [e for e in read_events(tmp_path / "events.jsonl") if e["name"] == "publish_lag"]


def test_schedules_end_where_they_are_told_to_whatever_waits_in_a_queue(tmp_path: Path) -> None:
    for lag in (0, 4):
        words = [f"clocks.lag={lag}", "optim.anneal_frames=640", "total_frames=1280"]
        schedule = Schedule(run_config("Target", tmp_path, *words))
        first = 64 * (lag + 1)
        assert schedule(first).learning_rate == pytest.approx(3e-4)
        assert schedule(640 + 64).learning_rate == 0.0
        assert schedule(640).learning_rate > 0


@pytest.mark.parametrize("words", [["checkpoint.episode_boundary=true"], []])
def test_only_whole_episodes_are_counted_when_environments_are_reset_under_lag(
    words: list[str], tmp_path: Path
) -> None:
    """Episodes of 10 in rollouts of 16 columns: a reset leaves one open in every environment."""
    more = ["clocks.lag=2", "checkpoint.every_frames=192", "task.kwargs={length: 10}"]
    config = run_config("Counter", tmp_path, "total_frames=1280", *more, *words)
    rl_twoclocks.train(config)
    found = read_metrics(tmp_path / "metrics.jsonl")
    assert {row["rollout/return_mean"] for row in found} == {10.0}
    assert {row["rollout/return_std"] for row in found} == {0.0}


def test_episodes_that_lost_frames_are_not_counted_at_their_ends() -> None:
    episodes = Episodes(num_envs=1)
    ends = torch.zeros(1, 6, dtype=torch.bool)
    ends[0, 3] = True
    assert episodes.update(torch.ones(1, 6), ends) == [(4.0, 4)]
    episodes.lose_open()
    assert episodes.update(torch.ones(1, 6), ends) == []
    assert episodes.update(torch.ones(1, 6), ends) == [(6.0, 6)]
