"""What a run came to, as scripts read it."""

from __future__ import annotations

from pathlib import Path

import pytest
import training

from rl_twoclocks import batch


def test_a_run_that_diverged_counts_with_the_return_of_a_random_policy(tmp_path: Path) -> None:
    diverged, finished, broken = (tmp_path / "arm" / f"seed{k}" for k in (1, 2, 3))
    for place in (diverged, finished, broken):
        place.mkdir(parents=True)
    batch.diverged_file(diverged).touch()
    (finished / "result.json").write_text('{"return_mean": 5.0}')
    assert training.outcome(diverged, -7.0) == -7.0
    assert training.outcome(finished, None) == 5.0
    assert training.outcome(broken, -7.0) is None
    with pytest.raises(SystemExit, match="no return of a random policy"):
        training.outcome(diverged, None)
    assert training.over(tmp_path, "*/seed*") == [diverged, finished]


def test_a_place_of_another_command_ends_a_script_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "arm" / "seed1"
    batch.claim([(["python", "a=1"], place)])
    with pytest.raises(SystemExit) as ended:
        training.train_all([(["python", "a=2"], place)], 1)
    assert ended.value.code == 2 and "of another command" in capsys.readouterr().err
