"""Rows of measurements survive whatever is merged into them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import rows as kept

OLD = [{"task": "a", "seed": 1, "x": 1.0, "older": "y"}, {"task": "a", "seed": 2, "x": 2.0}]


def test_new_rows_take_the_place_of_their_own_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    kept.merge(path, OLD[1:], ("task", "seed"))
    # A column that only the older row has is no reason to lose either.
    kept.merge(path, OLD[:1], ("task", "seed"))
    kept.merge(path, [{"task": "a", "seed": 2, "x": 9.0}], ("task", "seed"))
    found = kept.read(path)
    assert [(r["seed"], r["x"], r["older"]) for r in found] == [("1", "1.0", "y"), ("2", "9.0", "")]
    assert [p.name for p in tmp_path.iterdir()] == ["r.csv"]


def test_a_kill_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.csv"
    kept.merge(path, OLD, ("task", "seed"))
    before = path.read_bytes()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(csv.DictWriter, "writerows", killed)
    with pytest.raises(KeyboardInterrupt):
        kept.merge(path, [{"task": "b", "seed": 1, "x": 3.0}], ("task", "seed"))
    assert path.read_bytes() == before
