"""Two sets of runs are compared on what both have, and what is left out is said."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import compare
import pytest

TASKS = {"hopper": 3000.0, "halfcheetah": 5000.0}


def runs(clocks: str, frames: int = 1_000_000, seeds: int = 5, **returns: float) -> list[dict]:
    return [
        {"task": task, "clocks": clocks, "seed": k, "frames": frames, "return_mean": value + k}
        for task, value in returns.items()
        for k in range(seeds)
    ]


def compared(rows: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    file = tmp_path / "returns.csv"
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    words = ["compare.py", "classic", "safe", "--file", str(file), *more]
    monkeypatch.setattr(sys, "argv", words)
    return compare.main()


def test_a_third_sets_longer_budget_takes_no_task_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = runs("classic", **TASKS) + runs("safe", **TASKS)
    rows += runs("sb3", frames=2_000_000, hopper=1.0) + runs("safe", frames=3_000_000, hopper=1.0)
    assert compared(rows, tmp_path, monkeypatch, "--margin", "0.1") == 0
    said = capsys.readouterr().out
    assert "tasks: halfcheetah, hopper" in said and "not inferior" in said


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        (runs("classic", hopper=3e3) + runs("safe", halfcheetah=3e3), [], "no task with runs of"),
        (runs("classic", hopper=3e3), [], "has no runs of safe"),
        (
            runs("classic", **TASKS) + runs("safe", frames=9, hopper=1.0),
            ["--tasks", "hopper"],
            "hopper: both sets have no runs of the same budget",
        ),
        (
            runs("classic", strange=3.0) + runs("safe", strange=4.0),
            ["--tasks", "strange"],
            "strange: it has no return of a random policy",
        ),
        (
            runs("classic", seeds=4, hopper=3e3) + runs("safe", hopper=3e3),
            ["--margin", "0.1"],
            "4 seeds of a task decide nothing",
        ),
        (
            runs("classic", pendulum=-1400.0) + runs("safe", pendulum=-205.0),
            [],
            "pendulum: the reference, -1398, is not above a random policy",
        ),
    ],
)
def test_what_cannot_be_compared_is_said(
    rows: list[dict],
    more: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        compared(rows, tmp_path, monkeypatch, *more)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_task_without_a_common_budget_is_left_out_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = runs("classic", **TASKS) + runs("safe", halfcheetah=5e3) + runs("safe", 9, hopper=1.0)
    assert compared(rows, tmp_path, monkeypatch) == 0
    said = capsys.readouterr().out
    assert "hopper is left out: both sets have no runs of the same budget" in said
    assert "tasks: halfcheetah\n" in said
