"""The ablation's table: arms are judged once all their runs are there."""

from __future__ import annotations

import ablation
import pytest


def rows(arm: str, task: str, value: float, seeds: int = 5) -> list[dict]:
    return [{"task": task, "arm": arm, "seed": k, "return_mean": value + k} for k in range(seeds)]


def both(arm: str, value: float) -> list[dict]:
    return rows(arm, "halfcheetah", value) + rows(arm, "hopper", value)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "OUT", tmp_path)


def test_an_arm_that_lacks_a_task_has_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    ablation._table(
        both("shipped", 3000.0) + rows("AGC", "halfcheetah", 1000.0) + both("3 passes", 1500.0)
    )
    said = capsys.readouterr().out
    assert "3 passes: -0.4" in said and "worse" in said
    assert "AGC:" not in said and "AGC" in said.partition("not complete yet: ")[2]


def test_a_task_without_its_base_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    ablation._table(rows("shipped", "halfcheetah", 3000.0) + both("AGC", 1000.0))
    assert "AGC" in capsys.readouterr().out.partition("not complete yet: ")[2]
