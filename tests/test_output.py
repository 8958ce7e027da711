"""Tests that commands outlive the readers of what they print."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = [
    "rl_twoclocks.train", "task=pendulum", "total_frames=2048", "clocks.update_epochs=1",
    "num_envs=2", "logger=jsonl", "logger.display=plain", "eval.episodes=1", "eval.num_envs=1",
]  # fmt: skip


def unread(words: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a module with both outputs to a pipe whose reader has left."""
    command = [sys.executable, "-m", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        process.stdout.close()
        code = process.wait(timeout=120)
    return subprocess.CompletedProcess(command, code)


def test_a_run_outlives_the_reader_of_its_display(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert unread([*TRAIN, f"run_dir={run}"]).returncode == 0
    assert json.loads((run / "result.json").read_text())["frames"] == 2048
    assert not (run / "error.txt").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["rl_twoclocks.train", "--help"],
        ["rl_twoclocks.lab", "--help"],
        ["rl_twoclocks.doctor", "--svg", "task=pendulum"],
        ["rl_twoclocks.record.workspace", "--json", "someone/project"],
    ],
    ids=lambda words: words[0],
)
def test_what_is_printed_for_nobody_is_no_error(words: list[str]) -> None:
    if words[0].endswith("workspace"):
        pytest.importorskip("wandb_workspaces")
    assert unread(words).returncode == 0


def test_an_error_that_nobody_reads_keeps_its_exit_code() -> None:
    assert unread(["rl_twoclocks.train", "task=nowhere"]).returncode == 2
