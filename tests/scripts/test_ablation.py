"""The ablation's table: arms are judged once all their runs are there."""

from __future__ import annotations

from pathlib import Path

import ablation
import pytest


def rows(arm: str, task: str, value: float, seeds: int = 5) -> list[dict]:
    return [{"task": task, "arm": arm, "seed": k, "return_mean": value + k} for k in range(seeds)]


def both(arm: str, value: float) -> list[dict]:
    return rows(arm, "halfcheetah", value) + rows(arm, "hopper", value)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "OUT", tmp_path)


def test_an_arm_that_lacks_a_task_has_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ablation._report(
        both("shipped", 3000.0) + rows("AGC", "halfcheetah", 1000.0) + both("3 passes", 1500.0)
    )
    assert "AGC" in capsys.readouterr().out.partition("not complete yet: ")[2]
    table = (tmp_path / "ablation.md").read_text()
    line = next(line for line in table.splitlines() if line.startswith("| 3 passes"))
    assert "`clocks.update_epochs=3`" in line and "shipped | -0.4" in line and "worse" in line
    assert "| AGC" not in table


def test_a_task_without_its_base_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    ablation._report(rows("shipped", "halfcheetah", 3000.0) + both("AGC", 1000.0))
    assert "AGC" in capsys.readouterr().out.partition("not complete yet: ")[2]
