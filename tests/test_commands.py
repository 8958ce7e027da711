"""The commands end to end, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rl_twoclocks import state
from rl_twoclocks.config import Config
from rl_twoclocks.config_commands import EvalCommandConfig
from rl_twoclocks.configure import groups, schema_keys
from rl_twoclocks.help import help_text
from tests.command_envs import ROOT, command, environment, rows, tiny, walk


def test_two_rounds_from_the_command_line_say_where_the_results_are(tmp_path: Path) -> None:
    done = command(["debug=smoke", "task=cartpole"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    folder = next((tmp_path / "runs" / "cartpole").glob("custom-decoupled-*/seed1"), None) or next(
        (tmp_path / "runs" / "cartpole").glob("*/seed1")
    )
    assert str(folder) in done.stdout
    assert f"checkpoint={folder}/checkpoint-000000001024.pt" in done.stdout
    assert "1,024 frames asked, 2 rounds = 1,024" in done.stdout
    assert (
        torch.load(folder / "checkpoint-000000001024.pt", weights_only=True)["format"]
        == state.FORMAT
    )
    result = json.loads((folder / "result.json").read_text())
    assert (result["frames"], result["rounds"]) == (1024, 2)
    assert [row["clock/frames"] for row in rows(folder)] == [512, 1024]
    assert {p.name for p in tmp_path.iterdir()} == {"runs"}


def test_a_wrong_key_exits_with_2_and_no_traceback(tmp_path: Path) -> None:
    done = command(["algo.clip_epsilom=0.3"], tmp_path)
    assert done.returncode == 2
    assert "did you mean algo.clip_epsilon?" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["task=halfcheeta"], ["did you mean task=halfcheetah", "hopper"]),
        (["algo.gamma=2"], ["algo.gamma"]),
        (["task=gym"], ["task.env_id"]),
        (["clocks.batch_size=100"], ["clocks.batch_size", "clocks.update_frequency"]),
        (["task=gym", "task.env_id=Hoper-v5"], ["Hopper-v5"]),
        (["algo.gamma"], ["algo.gamma"]),
        (["-m", "task=hopper,halfcheeta"], ["did you mean task=halfcheetah"]),
        # Hydra's own findings count too.
        (["+algo.gamma=0.9"], ["algo.gamma"]),
        (["~task.kwargs.foo"], ["task.kwargs.foo"]),
    ],
)
def test_a_configuration_that_cannot_run_exits_with_2(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    done = command(arguments, tmp_path)
    assert done.returncode == 2, done.stderr
    assert all(word in done.stderr for word in words)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_crash_exits_with_1_and_keeps_the_error(tmp_path: Path) -> None:
    done = command(tiny(tmp_path / "run", *walk(crash=True)), tmp_path)
    assert done.returncode == 1
    assert "the walker stumbled over a stone" in done.stderr
    assert "in stumble" in (tmp_path / "run" / "error.txt").read_text()


def test_help_lists_every_group_choice_and_key() -> None:
    text = help_text("train", Config)
    for group, choices in groups().items():
        assert f"  {group}" in text
        assert all(choice in text for choice in choices)
    lines = text.splitlines()
    for key, _ in schema_keys():
        assert any(line.startswith(f"  {key} [") or line == f"  {key}" for line in lines), key
    assert max(map(len, lines)) <= 100
    assert "halfcheetah*" in text
    assert "[0.2]" in text


def test_help_of_the_evaluation_lists_its_keys() -> None:
    text = help_text("eval", EvalCommandConfig)
    assert "checkpoint" in text
    assert "episodes [10]" in text


@pytest.mark.parametrize("name", ["train", "eval"])
def test_the_help_option_exits_with_0(tmp_path: Path, name: str) -> None:
    done = command(["--help"], tmp_path, name)
    assert done.returncode == 0, done.stderr
    assert f"python -m rl_twoclocks.{name}" in done.stdout
    assert done.stderr == ""


def test_the_resolved_configuration_is_shown_as_help_says(tmp_path: Path) -> None:
    text = help_text("train", Config)
    assert "--cfg job" in text
    # What a search takes, too.
    assert "sweep.trials [30]" in text and "sweep.space.<key>.choices" in text
    done = command(["task=hopper", "--cfg", "job"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "env_id: Hopper-v5" in done.stdout


SWEEP = [
    "-m",
    *[word for word in tiny("null", *walk(crash=True, crash_seed=1)) if word != "run_dir=null"],
    "+task.kwargs.run_seed=${seed}",
    "seed=0,1,2",
]


def test_a_crash_in_a_sweep_ends_one_run_and_is_not_forgotten(tmp_path: Path) -> None:
    done = command(SWEEP, tmp_path)
    assert done.returncode not in (0, None), done.stdout
    folders = {p.name: p for p in (tmp_path / "runs" / "CommandWalk-v0").glob("*/seed*")}
    assert sorted(folders) == ["seed0", "seed1", "seed2"]
    for name in ("seed0", "seed2"):
        assert (folders[name] / "result.json").is_file()
        assert [row["clock/policy_version"] for row in rows(folders[name])] == [1, 2]
        assert not (folders[name] / "error.txt").exists()
    assert not (folders["seed1"] / "result.json").exists()
    assert "the walker stumbled over a stone" in (folders["seed1"] / "error.txt").read_text()
    assert rows(folders["seed0"]) != rows(folders["seed2"])


@pytest.mark.slow
def test_a_sweep_run_again_skips_what_is_finished(tmp_path: Path) -> None:
    command(SWEEP, tmp_path)
    folders = {p.name: p for p in (tmp_path / "runs" / "CommandWalk-v0").glob("*/seed*")}
    before = {
        name: {p.name: p.read_bytes() for p in folders[name].iterdir()}
        for name in ("seed0", "seed2")
    }
    done = command(SWEEP, tmp_path)
    assert done.returncode != 0
    for name, files in before.items():
        assert {p.name: p.read_bytes() for p in folders[name].iterdir()} == files


@pytest.mark.slow
def test_a_whole_sweep_exits_with_0(tmp_path: Path) -> None:
    words = [word for word in tiny("null", *walk()) if word != "run_dir=null"]
    done = command(["-m", *words, "seed=0,1"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").glob("*/*/seed*/result.json"))) == 2


@pytest.mark.slow
def test_a_finished_run_is_over_at_once(tmp_path: Path) -> None:
    words = tiny(tmp_path / "run", "task=cartpole", rounds=3)
    assert command(words, tmp_path).returncode == 0
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = command(words, tmp_path)
    assert again.returncode == 0
    assert "384 in 3 rounds" in again.stdout
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_wrong_checkpoint_exits_with_2_and_lists_what_is_there(tmp_path: Path) -> None:
    assert command(tiny(tmp_path / "run", "task=cartpole"), tmp_path).returncode == 0
    done = command(["checkpoint=run/checkpoint-7.pt"], tmp_path, "eval")
    assert done.returncode == 2
    assert "checkpoint-000000000256.pt" in done.stderr
    assert "Traceback" not in done.stderr


MEMORY = """
import gc, psutil
from tests.command_envs import run
def used():
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20
for job in range(12):
    run(f"{FOLDER}/{job}", "task=cartpole", "eval=default")
    if job == 1:
        before = used()
print(used() - before)
"""


@pytest.mark.slow
def test_ten_jobs_in_one_process_leak_less_than_50_mb(tmp_path: Path) -> None:
    code = MEMORY.replace("{FOLDER}", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.strip().splitlines()[-1]) < 50
