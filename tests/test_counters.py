from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rl_twoclocks
from rl_twoclocks import ConfigError
from rl_twoclocks.record import Display, read_metrics
from rl_twoclocks.record.checkpoint import listed
from rl_twoclocks.seeding import env_seeds
from rl_twoclocks.update import Update
from tests.envs import run_config


class Ledger:
    """What the environments themselves wrote down."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def total(self, kind: str, purpose: str, num_envs: int, index: int = 0) -> int:
        names = [f"{seed}.{kind}" for seed in env_seeds(1, purpose, num_envs, index)]
        return sum(
            (self.path / name).stat().st_size for name in names if (self.path / name).exists()
        )

    def everything(self, kind: str) -> int:
        return sum(file.stat().st_size for file in self.path.glob(f"*.{kind}"))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


def config_of(ledger: Ledger, run: Path, *more: str) -> rl_twoclocks.Config:
    return run_config("Counting", run, f"++task.kwargs.ledger={ledger.path}", *more)


def run(ledger: Ledger, path: Path, *more: str) -> list[dict]:
    rl_twoclocks.train(config_of(ledger, path, *more))
    return read_metrics(path / "metrics.jsonl")


def column(rows: list[dict], name: str) -> list:
    return [row[name] for row in rows]


@pytest.mark.parametrize("frame_skip", [1, 4])
def test_frames_episodes_and_versions_equal_the_ledger(
    frame_skip: int, ledger: Ledger, tmp_path: Path
) -> None:
    rows = run(ledger, tmp_path / "run", f"task.frame_skip={frame_skip}")
    assert ledger.everything("steps") == ledger.total("steps", "environment", 4) == 256
    assert ledger.everything("episodes") == 32
    assert column(rows, "frames") == column(rows, "clock/frames") == [64, 128, 192, 256]
    assert column(rows, "clock/simulator_frames") == [frame_skip * f for f in (64, 128, 192, 256)]
    assert column(rows, "clock/policy_version") == [1, 2, 3, 4]
    assert column(rows, "clock/update_steps") == [0, 4, 8, 12]
    assert column(rows, "rollout/episodes") == [8, 16, 24, 32]
    assert column(rows, "rollout/return_mean") == column(rows, "rollout/length_mean") == [8.0] * 4
    assert column(rows, "rollout/return_std") == [0.0] * 4
    assert column(rows, "clock/staleness_max") == [0.0] * 4


def test_without_calibration_the_first_round_learns(ledger: Ledger, tmp_path: Path) -> None:
    rows = run(ledger, tmp_path / "run", "normalize.calibrate=false")
    assert column(rows, "clock/update_steps") == [4, 8, 12, 16]


@pytest.mark.slow
def test_two_processes_count_as_one(ledger: Ledger, tmp_path: Path) -> None:
    more = ("collect.vectorization=async", "num_envs=2", "++task.kwargs.lengths=[3,7]")
    rows = run(ledger, tmp_path / "run", *more)
    assert ledger.everything("steps") == 256
    assert column(rows, "rollout/episodes")[-1] == ledger.everything("episodes") == 2 * 25
    assert rows[-1]["rollout/return_mean"] == rows[-1]["rollout/length_mean"]


def test_returns_equal_lengths_where_lengths_differ(ledger: Ledger, tmp_path: Path) -> None:
    rows = run(ledger, tmp_path / "run", "++task.kwargs.lengths=[3,7]")
    assert column(rows, "rollout/episodes")[-1] == ledger.everything("episodes") == 4 * 13
    mean = rows[-1]["rollout/return_mean"]
    assert mean == rows[-1]["rollout/length_mean"] == pytest.approx((7 * 3 + 6 * 7) / 13)
    assert rows[-1]["rollout/return_std"] == pytest.approx(
        (7 * (mean - 3) ** 2 / 13 + 6 * (7 - mean) ** 2 / 13) ** 0.5
    )


def test_frames_that_do_not_divide_among_environments_are_refused(tmp_path: Path) -> None:
    more = ("num_envs=3", "clocks.update_frequency=100", "clocks.batch_size=100")
    with pytest.raises(ConfigError, match=r"update_frequency=100.*num_envs=3.*99 or 102"):
        rl_twoclocks.train(run_config("Counter", tmp_path / "run", *more))
    assert not (tmp_path / "run").exists()


def test_three_environments_are_counted_exactly(ledger: Ledger, tmp_path: Path) -> None:
    more = ("num_envs=3", "clocks.update_frequency=99", "clocks.batch_size=99", "total_frames=200")
    rows = run(ledger, tmp_path / "run", *more)
    assert column(rows, "frames") == [99, 198]
    assert ledger.everything("steps") == 198
    assert rows[-1]["rollout/episodes"] == ledger.everything("episodes") == 24
    assert column(rows, "clock/update_steps") == [0, 8]


def test_a_budget_that_is_no_multiple_is_not_overrun_and_said(
    ledger: Ledger, tmp_path: Path, monkeypatch
) -> None:
    messages: list[str] = []
    monkeypatch.setattr(Display, "message", lambda self, text: messages.append(text))
    result = rl_twoclocks.train(config_of(ledger, tmp_path / "run", "total_frames=250"))
    assert result.frames == ledger.everything("steps") == 192
    assert result.rounds == 3
    assert any("last 58 frames are not collected" in text for text in messages)


def test_a_budget_below_one_rollout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="total_frames=63 is less than one rollout"):
        rl_twoclocks.train(run_config("Counter", tmp_path / "run", "total_frames=63"))


def test_a_kl_stop_in_the_second_pass_is_counted(ledger: Ledger, tmp_path: Path) -> None:
    base = ("normalize.calibrate=false", "optim.schedule=constant", "optim.learning_rate=1e-2")
    free = run(ledger, tmp_path / "free", *base, "clocks.minibatch_size=64", "total_frames=64")
    assert free[0]["clock/update_steps"] == 2
    target = free[0]["train/kl_last"] / 3
    more = ("clocks.minibatch_size=64", f"algo.target_kl={target}", "clocks.update_epochs=5")
    rows = run(ledger, tmp_path / "stopped", *base, *more)
    assert rows[0]["train/steps"] == rows[0]["clock/update_steps"] == 1
    assert rows[0]["train/stopped_by_kl"] == 1
    steps = column(rows, "train/steps")
    assert column(rows, "clock/update_steps") == [sum(steps[: i + 1]) for i in range(4)]
    assert column(rows, "clock/skipped_steps") == [0] * 4
    assert column(rows, "frames") == [64, 128, 192, 256]


def test_evaluations_are_not_counted(ledger: Ledger, tmp_path: Path) -> None:
    more = ("eval.enabled=true", "eval.every_frames=64", "eval.episodes=3", "eval.num_envs=3")
    rows = run(ledger, tmp_path / "run", *more)
    assert column(rows, "eval/return_mean") == column(rows, "eval/length_mean") == [8.0] * 4
    assert column(rows, "eval/episodes") == [3] * 4
    assert column(rows, "clock/frames") == [64, 128, 192, 256]
    assert column(rows, "rollout/episodes") == [8, 16, 24, 32]
    assert ledger.total("steps", "environment", 4) == 256
    assert ledger.total("steps", "evaluation", 3) == 4 * 3 * 8


def test_episodes_that_do_not_divide_are_rounded_up(ledger: Ledger, tmp_path: Path) -> None:
    more = ("eval.enabled=true", "eval.episodes=5", "eval.num_envs=2", "total_frames=64")
    rows = run(ledger, tmp_path / "run", *more)
    assert rows[0]["eval/episodes"] == 6


@pytest.mark.parametrize("boundary", [False, True])
def test_a_resumed_run_counts_on(boundary: bool, ledger: Ledger, tmp_path: Path) -> None:
    more = (f"checkpoint.episode_boundary={boundary}", "++task.kwargs.length=10")
    run(ledger, tmp_path / "run", *more, "total_frames=128")
    assert ledger.everything("steps") == 128
    rows = run(ledger, tmp_path / "run", *more)
    assert column(rows, "frames") == column(rows, "clock/frames") == [64, 128, 192, 256]
    assert column(rows, "clock/policy_version") == [1, 2, 3, 4]
    assert column(rows, "clock/update_steps") == [0, 4, 8, 12]
    assert ledger.everything("steps") == 256
    assert rows[-1]["rollout/return_mean"] == rows[-1]["rollout/length_mean"] == 10.0
    assert rows[-1]["rollout/episodes"] == ledger.everything("episodes")


def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path) -> None:
    base = ("optim.anneal_frames=256", "checkpoint.every_frames=128")
    ends, rows = [], []
    for name, budgets in (("whole", [256]), ("broken", [128, 256])):
        for budget in budgets:
            config = run_config("Shifted", tmp_path / name, *base, f"total_frames={budget}")
            rl_twoclocks.train(config)
        rows.append(read_metrics(tmp_path / name / "metrics.jsonl"))
        ends.append(torch.load(listed(tmp_path / name)[-1], weights_only=True)["parameters"])
    assert torch.equal(*ends)
    for one, two in zip(*rows, strict=True):
        keys = {k for k in one if not k.startswith("time/")}
        assert {k: one[k] for k in keys} == {k: two[k] for k in keys}


def test_a_finished_run_collects_nothing_more(ledger: Ledger, tmp_path: Path) -> None:
    run(ledger, tmp_path / "run")
    rows = run(ledger, tmp_path / "run")
    assert len(rows) == 4
    assert ledger.everything("steps") == 256


@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_the_learning_rate_follows_frames(schedule: str, tmp_path: Path, monkeypatch) -> None:
    rates: list[float] = []
    start = Update.start_round
    monkeypatch.setattr(
        Update,
        "start_round",
        lambda self, given: (rates.append(given.learning_rate), start(self, given)),
    )
    more = (f"optim.schedule={schedule}", "optim.learning_rate=0.4", "optim.anneal_frames=256")
    rl_twoclocks.train(run_config("Counter", tmp_path / "run", *more, "total_frames=128"))
    rl_twoclocks.train(run_config("Counter", tmp_path / "run", *more))
    expected = [0.3, 0.2, 0.1] if schedule == "linear" else [0.4] * 3
    assert rates == pytest.approx(expected)


def test_the_learning_rate_is_in_every_learning_row(tmp_path: Path) -> None:
    more = ("optim.learning_rate=0.4", "normalize.calibrate=false")
    rl_twoclocks.train(run_config("Counter", tmp_path / "run", *more))
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row.get("train/learning_rate") for row in rows] == pytest.approx([0.4, 0.3, 0.2, 0.1])
