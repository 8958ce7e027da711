"""The size of the report, of runs written by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import report_size

from rl_twoclocks import compose
from rl_twoclocks.rundir import plain
from tests.run_folders import ROUNDS, U, make


def test_both_pages_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = plain(compose(["task=walker2d", "total_frames=81920"]))
    folders = [make(tmp_path / "run" / f"seed{s}", config, seed=s) for s in (1, 2)]
    out = tmp_path / "report.csv"
    assert report_size.main([*map(str, folders), "--out", str(out)]) == 0
    with open(out, newline="") as file:
        one, twenty = csv.DictReader(file)
    assert (one["runs"], one["different"], one["frames"]) == ("1", "1", str(ROUNDS * U))
    assert (twenty["runs"], twenty["different"]) == ("20", "2")
    assert 20_000 < int(one["bytes"]) < int(twenty["bytes"]) < 20 * int(one["bytes"])
    assert report_size.main([str(tmp_path), "--out", str(out)]) == 2
    assert "there are runs in" in capsys.readouterr().err


def test_runs_are_repeated_under_names_of_their_own(tmp_path: Path) -> None:
    config = plain(compose(["task=walker2d", "total_frames=81920"]))
    folders = [make(tmp_path / "run" / f"seed{s}", config, seed=s) for s in (1, 2, 3)]
    shown = report_size.many(report_size.read_runs(folders), 5)
    assert [run.label for run in shown] == [
        "run/seed1", "run/seed2", "run/seed3", "run/seed1 (4)", "run/seed2 (5)",
    ]  # fmt: skip
