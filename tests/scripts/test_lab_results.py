"""The page about all scenarios: written from rows, and from nothing else."""

from __future__ import annotations

from pathlib import Path

import lab_results
import pytest

from rl_twoclocks import scenario, verdict
from rl_twoclocks.scenario import Run

FRAMES = 200_000


def _finish(place: Path, name: str, faulty: float) -> None:
    """What the lab leaves of ten seeds of the three arms that count."""
    place.mkdir()
    scene = scenario.load(name)
    gains = {"healthy": 1.0, "fault": faulty, "cure": 1.0}
    runs = [
        Run(arm, 500 + seed, gain * (1000 + seed), frames=FRAMES, curve=((FRAMES, gain * 1000.0),))
        for arm, gain in gains.items()
        for seed in range(10)
    ]
    scenario.write_results(scene, "short", runs, place / "results.csv")
    verdict.write(scene, verdict.conclude(scene, name, "short", runs), runs, place)


def test_the_page_is_made_of_all_rows_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "docs"
    monkeypatch.setattr(lab_results, "OUT", out)

    def main(*places: Path) -> str:
        monkeypatch.setattr("sys.argv", ["lab_results.py", *map(str, places)])
        assert lab_results.main() == 0
        return (out / "lab.md").read_text()

    _finish(tmp_path / "lag", "policy_lag", faulty=0.1)
    _finish(tmp_path / "ratio", "high_ratio", faulty=1.0)
    assert main(tmp_path / "lag").count("\n## ") == 1
    text = main(tmp_path / "ratio")
    assert text.count("\n## ") == 2, "what was kept before stays"
    assert "policy_lag: the failure reproduces and is cured" in text
    assert "high_ratio: the failure does not reproduce" in text
    assert "scenario=policy_lag budget=short" in text
    for name in ("policy_lag", "high_ratio"):
        assert (out / "lab" / f"{name}.png").stat().st_size > 1000
    assert main() == text, "the same rows give the same page"


def test_a_folder_without_a_conclusion_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_results, "OUT", tmp_path / "docs")
    monkeypatch.setattr("sys.argv", ["lab_results.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="holds no conclusion"):
        lab_results.main()
    assert not (tmp_path / "docs").exists()


def test_cells_do_not_break_the_table() -> None:
    assert lab_results.table([["a", "b|c"], ["1", "2"]]).splitlines() == [
        "| a | b\\|c |",
        "| --- | --- |",
        "| 1 | 2 |",
    ]
