"""The learning runs' table: what `collect` keeps of runs of earlier sittings."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import learning
import pytest

from tests.command_envs import ROUND, run


def points(path: Path) -> list[str]:
    with path.open() as file:
        return [row["frames"] for row in csv.DictReader(file)]


def test_a_run_made_anew_takes_the_place_of_the_whole_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[str]] = []
    for sitting, lengths in (("first", "clocks.update_frequency=64"), ("second", "")):
        place = tmp_path / sitting / "pendulum-classic" / "seed1"
        more = [lengths, "clocks.batch_size=64", "clocks.minibatch_size=32"] if lengths else []
        run(place, "task=pendulum", "eval=default", *more, rounds=2)
        place.with_name("seed1.txt").write_text("python -m rl_twoclocks.train task=pendulum\n")
        out = tmp_path / "out"
        monkeypatch.setattr(
            sys, "argv", ["x", "collect", "--runs", str(place.parents[1]), "--out", str(out)]
        )
        assert learning.main() == 0
        made.append(points(out / "curves.csv"))
    assert made[1] == [str(ROUND), str(2 * ROUND)]
    assert set(made[0]) - set(made[1])
