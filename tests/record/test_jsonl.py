"""Tests of the JSONL logger."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from rl_twoclocks.record import RunInfo, read_metrics
from rl_twoclocks.record.jsonl import JsonlLogger

if TYPE_CHECKING:
    from pathlib import Path


def run_info(directory: Path, frames: int = 0) -> RunInfo:
    return RunInfo("task/preset/seed1", directory, {}, frames, {})


def write(directory: Path, text: str) -> Path:
    path = directory / "metrics.jsonl"
    path.write_text(text)
    return path


def test_rows_are_flushed_as_they_come_and_keep_every_digit(tmp_path: Path) -> None:
    logger = JsonlLogger(run_info(tmp_path))
    logger.log({"train/kl": 0.1 + 0.2, "clock/policy_version": 1}, frames=2048)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows == [{"frames": 2048, "train/kl": 0.1 + 0.2, "clock/policy_version": 1}]
    assert isinstance(rows[0]["clock/policy_version"], int)


def test_non_finite_numbers_are_null_in_strictly_valid_json(tmp_path: Path) -> None:
    logger = JsonlLogger(run_info(tmp_path))
    logger.log({"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}, frames=1)

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=refuse) == {
        "frames": 1, "a": None, "b": None, "c": None, "d": 1.0
    }  # fmt: skip


def test_resume_drops_later_rows_and_a_torn_line(tmp_path: Path) -> None:
    path = write(
        tmp_path, '{"frames": 1}\n{"frames": 2, "x": 0.1}\n{"frames": 3}\n{"frames": 4, "x'
    )
    logger = JsonlLogger(run_info(tmp_path, frames=2))
    assert read_metrics(path) == [{"frames": 1}, {"frames": 2, "x": 0.1}]
    logger.log({"x": 0.3}, frames=3)
    assert [row["frames"] for row in read_metrics(path)] == [1, 2, 3]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_new_run_starts_an_empty_file(tmp_path: Path) -> None:
    path = write(tmp_path, '{"frames": 0}\n{"frames": 1}\n')
    JsonlLogger(run_info(tmp_path))
    assert read_metrics(path) == []


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        ("", []),
        ('{"frames": 1}', [1]),
        ('{"frames": 1}\n', [1]),
        ('{"frames": 1}\n{"fra', [1]),
        ('{"frames": 1}\n\0\0\0\0', [1]),
    ],
)
def test_read_metrics_forgives_the_last_line(tmp_path: Path, text: str, frames: list[int]) -> None:
    assert [row["frames"] for row in read_metrics(write(tmp_path, text))] == frames


def test_read_metrics_without_a_file(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2"):
        read_metrics(write(tmp_path, '{"frames": 1}\nrust\n{"frames": 3}\n'))


def test_close_twice(tmp_path: Path) -> None:
    logger = JsonlLogger(run_info(tmp_path))
    logger.close()
    logger.close(1)
