"""Runs that scripts make are those of the commands beside them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "training.py"
SPEC = importlib.util.spec_from_file_location("training", SCRIPT)
assert SPEC is not None and SPEC.loader is not None
training = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(training)


def test_a_finished_run_of_another_command_is_not_taken(tmp_path: Path) -> None:
    place = tmp_path / "arm" / "seed1"
    training.claim(["python", "a=1"], place)
    training.claim(["python", "a=1"], place)
    place.mkdir()
    (place / "result.json").write_text("{}")
    with pytest.raises(SystemExit, match="of another command"):
        training.train(["python", "a=2"], place)
    assert training.train(["python", "a=1"], place) == 0
    assert (tmp_path / "arm" / "seed1.txt").read_text() == "python a=1\n"
