"""Tests of the TensorBoard logger."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from rl_twoclocks.record import RunInfo, make_loggers, read_metrics

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_twoclocks.record.tensorboard import TensorBoardLogger

if TYPE_CHECKING:
    from pathlib import Path


def run_info(directory: Path, frames: int = 0) -> RunInfo:
    return RunInfo("task/preset/seed1", directory, {}, frames, {})


def scalars(directory: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(directory / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_scalars_lie_at_their_frames(tmp_path: Path) -> None:
    logger = TensorBoardLogger(run_info(tmp_path))
    logger.log({"clock/ratio": 1.5, "clock/policy_version": 1}, frames=2048)
    logger.log({"clock/ratio": 2.5}, frames=4096)
    logger.close()
    logger.close(1)
    assert scalars(tmp_path, "clock/ratio") == [(2048, 1.5), (4096, 2.5)]
    assert scalars(tmp_path, "clock/policy_version") == [(2048, 1.0)]


def test_resume_hides_only_the_rows_after_the_checkpoint(tmp_path: Path) -> None:
    first = TensorBoardLogger(run_info(tmp_path))
    for frames in (1, 2, 3):
        first.log({"x": 1.0}, frames)
    first.close()
    second = TensorBoardLogger(run_info(tmp_path, frames=2))
    second.log({"x": 5.0}, frames=3)
    second.close()
    assert scalars(tmp_path, "x") == [(1, 1.0), (2, 1.0), (3, 5.0)]


def test_a_run_that_begins_anew_hides_all_rows_of_the_killed_one(tmp_path: Path) -> None:
    first = TensorBoardLogger(run_info(tmp_path))
    for frames in (1, 2, 3):
        first.log({"x": 1.0}, frames)
    first.close()
    second = TensorBoardLogger(run_info(tmp_path))
    second.log({"x": 5.0}, frames=1)
    second.close()
    assert scalars(tmp_path, "x") == [(1, 5.0)]


def test_a_missing_package_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "rl_twoclocks.record.tensorboard", None)
    config = SimpleNamespace(wandb=False, tensorboard=True)
    loggers = make_loggers(config, run_info(tmp_path))  # type: ignore[arg-type]
    loggers.log({"x": 1.0}, frames=1)
    loggers.close()
    assert [record.message.split(":")[0] for record in caplog.records] == ["TensorBoard is off"]
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1
