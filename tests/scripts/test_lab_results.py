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


def test_further_arms_are_added_to_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "docs"
    monkeypatch.setattr(lab_results, "OUT", out)

    def main(place: Path) -> list[dict[str, str]]:
        monkeypatch.setattr("sys.argv", ["lab_results.py", str(place)])
        assert lab_results.main() == 0
        return lab_results.kept.read(out / "lab" / "policy_lag.csv")

    further = tmp_path / "policy_lag-short"
    further.mkdir()
    runs = [Run("vtrace_8", 500 + k, 900.0, frames=FRAMES, curve=()) for k in range(10)]
    scene = scenario.load("policy_lag")
    scenario.write_results(scene, "short", runs, further / "results.csv")
    with pytest.raises(SystemExit, match="has no conclusion"):
        main(further)
    _finish(tmp_path / "lag", "policy_lag", faulty=0.1)
    core = main(tmp_path / "lag")
    both = main(further)
    assert [row for row in both if row["arm"] != "vtrace_8"] == core
    assert main(further) == both, "rows of the same runs take their place"
    assert "V-trace is better than PPO at lag 8" in (out / "lab.md").read_text()
    scenario.write_results(scene, "full", runs, further / "results.csv")
    with pytest.raises(SystemExit, match="no result of the lab"):
        main(further)
    assert lab_results.kept.read(out / "lab" / "policy_lag.csv") == both


def test_a_folder_without_a_conclusion_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_results, "OUT", tmp_path / "docs")
    monkeypatch.setattr("sys.argv", ["lab_results.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="has no conclusion"):
        lab_results.main()
    place = tmp_path / "lag"
    _finish(place, "policy_lag", faulty=0.1)
    rows = (place / "results.csv").read_text()
    for text, said in (
        (rows.replace("fault,501", "fault,x"), "is no result of the lab"),
        (rows.replace("healthy,509", "helthy,509"), "decides nothing: undecided"),
        (rows.replace("short", "full", 1), "is no result of the lab"),
        ("\n".join(rows.splitlines()[:4]), "is no result of the lab"),
    ):
        (place / "results.csv").write_text(text)
        monkeypatch.setattr("sys.argv", ["lab_results.py", str(place)])
        with pytest.raises(SystemExit, match=said):
            lab_results.main()
    (place / "conclusion.json").write_text('{"scenario": "../../elsewhere"}')
    with pytest.raises(SystemExit, match="no result of the lab"):
        lab_results.main()
    assert not (tmp_path / "docs").exists()


def test_what_is_kept_is_what_the_page_says() -> None:
    assert (lab_results.OUT / "lab.md").read_text() == lab_results.page()


def test_cells_do_not_break_the_table() -> None:
    assert lab_results.table([["a", "b|c"], ["1", "2"]]).splitlines() == [
        "| a | b\\|c |",
        "| --- | --- |",
        "| 1 | 2 |",
    ]
