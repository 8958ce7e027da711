"""Where metrics go changes nothing that is trained (case 11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_envs import differing, newest, rows, run

TRAINED = ("parameters", "update", "normalizer", "random", "window", "clocks", "environments")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


def assert_equal_runs(one: Path, other: Path) -> None:
    assert rows(one) == rows(other)
    a, b = newest(one), newest(other)
    for key in TRAINED:
        assert differing(a[key], b[key], key) == []


def test_wandb_offline_trains_exactly_like_jsonl_alone(tmp_path: Path) -> None:
    base = ["task=cartpole", "eval=default"]
    run(tmp_path / "jsonl", *base, rounds=3)
    run(tmp_path / "wandb", *base, "logger=wandb", "logger.display=none", rounds=3)
    assert_equal_runs(tmp_path / "jsonl", tmp_path / "wandb")
    assert list((tmp_path / "wandb" / "wandb").glob("offline-run-*/*.wandb"))
    assert newest(tmp_path / "wandb")["loggers"]["wandb_id"]
    assert not (tmp_path / "jsonl" / "wandb").exists()


@pytest.mark.slow
def test_histograms_of_weights_and_gradients_change_nothing(tmp_path: Path) -> None:
    run(tmp_path / "jsonl", "task=cartpole", rounds=3)
    watched = ["logger=wandb", "logger.display=none", "logger.watch=true", "logger.watch_freq=2"]
    run(tmp_path / "wandb", "task=cartpole", *watched, rounds=3)
    assert_equal_runs(tmp_path / "jsonl", tmp_path / "wandb")


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_same_wandb_run(tmp_path: Path) -> None:
    overrides = ["task=cartpole", "logger=wandb", "logger.display=none", "optim.anneal_frames=512"]
    run(tmp_path, *overrides, rounds=2)
    first = newest(tmp_path)["loggers"]["wandb_id"]
    run(tmp_path, *overrides, rounds=4)
    assert newest(tmp_path)["loggers"]["wandb_id"] == first
    assert [row["clock/policy_version"] for row in rows(tmp_path)] == [1, 2, 3, 4]


def test_a_package_that_is_not_there_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    run(tmp_path / "jsonl", "task=cartpole")
    monkeypatch.setitem(sys.modules, "wandb", None)
    run(tmp_path / "wandb", "task=cartpole", "logger=wandb", "logger.display=none")
    assert_equal_runs(tmp_path / "jsonl", tmp_path / "wandb")
