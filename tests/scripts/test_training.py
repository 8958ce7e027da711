"""Runs that scripts make are those of the commands beside them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

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


def test_a_run_that_diverged_is_over_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = iter([3, 1])
    runs: list[list[str]] = []

    def ended(words: list[str], **_: object) -> SimpleNamespace:
        runs.append(words)
        return SimpleNamespace(returncode=next(codes))

    monkeypatch.setattr(training.subprocess, "run", ended)
    diverged, failed = (tmp_path / "arm" / f"seed{k}" for k in (1, 2))
    for place in (diverged, failed):
        place.mkdir(parents=True)
    command = ["python", "-m", "rl_twoclocks.train", "a=1"]
    assert training.train(command, diverged) == 0
    # The same command would come to the same: it is not made again.
    assert training.train(command, diverged) == 0
    assert training.train(command, failed) == 1
    assert len(runs) == 2
    assert training.outcome(diverged, -7.0) == -7.0
    assert training.outcome(failed, -7.0) is None
    assert training.over(tmp_path, "*/seed*") == [diverged]
    assert training.told(diverged) == " ".join(command)
