"""The lag curve's tables: nothing is told of what lacks seeds."""

from __future__ import annotations

from pathlib import Path

import lag
import pytest


def rows(objective: str, at: int, *values: float, task: str = "cartpole") -> list[dict]:
    return [
        {
            "stage": "screen", "task": task, "objective": objective, "lag": at, "seed": k,
            "return_mean": value, "total_variation": 0.1, "staleness": at,
        }
        for k, value in enumerate(values)
    ]  # fmt: skip


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lag, "OUT", tmp_path)
    monkeypatch.setattr(lag, "ROOT", tmp_path)
    (tmp_path / "lag.md").write_text("# Head\n" + lag.TABLES + "outdated")
    return tmp_path / "lag.md"


def test_a_table_says_what_holds_where_all_seeds_are_there(page: Path) -> None:
    lag._write_tables(
        [
            *rows("clipped", 0, 522.0, 522.0, 522.0),
            *rows("clipped", 2, 500.0, 500.0, 500.0),
            *rows("clipped", 8, 222.0, 222.0, 222.0),
            *rows("clipped", 16, 522.0, 522.0),
        ]
    )
    text = page.read_text()
    assert text.startswith("# Head\n") and "outdated" not in text
    assert "`clipped` 2 yes, 8 no." in text
    assert "| `clipped` | **1.00** (1.00, 1.00, 1.00) | **0.96**" in text


def test_without_all_seeds_at_lag_0_there_is_no_score(page: Path) -> None:
    lag._write_tables(rows("clipped", 0, 522.0) + rows("clipped", 2, 500.0, 500.0, 500.0))
    assert "no scores yet" in page.read_text() and "**" not in page.read_text()


def screen(task: str) -> list[dict]:
    found = []
    for number, name in enumerate(lag.PRESETS):
        for at in (0, 2, 8, 16):
            if at or name not in lag.LAG_TWINS:
                found += rows(name, at, *[322.0 if at == 0 else 100.0 + 10 * number] * 3, task=task)
    return found


def test_the_best_are_those_of_the_whole_screen() -> None:
    whole = screen("cartpole") + screen("hopper")
    # By their place in PRESETS: spo, centred and vaco, and the two that are always there.
    assert lag.best(whole) == ["clipped", "twoclocks", "spo", "centred", "vaco"]
    with pytest.raises(SystemExit, match="the screen lacks spo on hopper at lag 8"):
        lag.best(
            [r for r in whole if (r["task"], r["objective"], r["lag"]) != ("hopper", "spo", 8)]
        )
