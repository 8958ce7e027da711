"""What a run came to, as scripts read it."""

from __future__ import annotations

from pathlib import Path

import pytest
import training
import yaml

from rl_twoclocks import batch
from rl_twoclocks.configure import compose
from rl_twoclocks.rundir import plain
from rl_twoclocks.safety import settle


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


@pytest.mark.parametrize(
    ("group", "key", "value", "made"),
    [
        ("algo", "gamma", 0.5, False),
        ("eval", "episodes", 77, False),
        ("logger", "jsonl", False, True),
        # As of a key that is new since, at its default.
        ("algo", "newer_key", None, True),
    ],
)
def test_a_row_counts_while_its_presets_are_what_they_were(
    tmp_path: Path, group: str, key: str, value: object, made: bool
) -> None:
    words = ["task=cartpole", "clocks=classic", "seed=1"]
    stored = plain(settle(compose(words))[0])
    if key == "newer_key":
        del stored["algo"]["target_kl"]
        assert compose(words).algo.target_kl is None
    else:
        stored[group][key] = value
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(stored))
    command = [*batch.COMMAND, *words]
    row = {"command": " ".join(command), "settings": training.settings(tmp_path)}
    assert training.is_made(row, command) is made
    assert not training.is_made(row, [*command, "seed=2"]) and not training.is_made(None, command)
    assert training.is_made(row | {"settings": ""}, command)
