"""Runs that fork from a server: they are the command, with its exit codes, log and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rl_twoclocks import forked
from rl_twoclocks.forked import ForkedRun
from rl_twoclocks.rundir import in_use

SMALL = ["task=cartpole", "logger=jsonl", "compile=false", "logger.display=none"]


def test_a_fork_is_the_command(tmp_path: Path) -> None:
    words = [*SMALL, "total_frames=4096", f"run_dir={tmp_path}/run", "threads=3"]
    run = ForkedRun(words, tmp_path / "log")
    run.wait()
    said = (tmp_path / "log").read_text()
    assert run.poll() == run.returncode == 0, said
    assert (tmp_path / "run" / "result.json").exists()
    assert "python -m rl_twoclocks.eval" in said
    # Imported where warnings would go to the terminal of the one who waits.
    assert "RuntimeWarning" not in said


def test_errors_and_exit_codes_are_the_commands(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    runs = [ForkedRun([f"task={name}"], tmp_path / "log") for name in ("halfcheeta", "hoper")]
    for run in runs:
        run.wait()
    assert [run.poll() for run in runs] == [2, 2]
    said = (tmp_path / "log").read_text()
    assert said.startswith("before\n")
    assert "did you mean task=halfcheetah" in said and "did you mean task=hopper" in said


def test_a_run_that_is_told_to_end_saves_its_state(tmp_path: Path) -> None:
    words = [*SMALL, "total_frames=4_000_000", f"run_dir={tmp_path}/run"]
    run = ForkedRun(words, tmp_path / "log")
    rows = tmp_path / "run" / "metrics.jsonl"
    while not (rows.exists() and rows.read_text()) and run.poll() is None:
        time.sleep(0.05)
    assert os.getsid(run._process.pid) == run._process.pid
    run.terminate()
    run.wait()
    assert run.returncode == 128 + signal.SIGTERM, (tmp_path / "log").read_text()
    assert list((tmp_path / "run").glob("checkpoint-*.pt"))


WAITING = """
import sys
from pathlib import Path
from rl_twoclocks.forked import ForkedRun
if __name__ == "__main__":
    ForkedRun(sys.argv[2:], Path(sys.argv[1])).wait()
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="Linux tells processes that their starter ended"
)
def test_a_run_whose_starter_is_killed_saves_its_state_and_ends(tmp_path: Path) -> None:
    words = [*SMALL, "total_frames=4_000_000", f"run_dir={tmp_path}/run"]
    (tmp_path / "waiting.py").write_text(WAITING)
    log, run = tmp_path / "log", tmp_path / "run"
    log.touch()
    starter = subprocess.Popen([sys.executable, str(tmp_path / "waiting.py"), str(log), *words])
    rows = run / "metrics.jsonl"
    while not (rows.exists() and rows.read_text()):
        assert starter.poll() is None, log.read_text()
        time.sleep(0.05)
    assert in_use(run)
    starter.kill()
    starter.wait()
    limit = time.monotonic() + 30
    while in_use(run):
        assert time.monotonic() < limit, "the run goes on, and nobody would end it"
        time.sleep(0.05)
    assert list(run.glob("checkpoint-*.pt"))


def test_environment_variables_of_today_reach_a_server_that_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ForkedRun(["--help"], tmp_path / "first").wait()
    (tmp_path / "mine_forked.py").write_text("import os\nprint('says', os.environ['MINE'])\n")
    monkeypatch.setenv("MINE", "hello")
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "task.import=mine_forked", "total_frames=2048", f"run_dir={tmp_path}/run"]
    run = ForkedRun(words, tmp_path / "log")
    run.wait()
    assert "says hello" in (tmp_path / "log").read_text()


def test_where_cuda_was_touched_before_the_fork_the_run_is_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []

    def become(file: str, words: list[str]) -> None:
        became.append(words)
        raise SystemExit

    for name in ("setsid", "dup2", "close"):
        monkeypatch.setattr(forked.os, name, lambda *_: None)
    monkeypatch.setattr(forked.os, "execv", become)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(SystemExit):
        forked._train(["task=hopper"], str(tmp_path / "log"), dict(os.environ))
    assert became == [[sys.executable, "-m", "rl_twoclocks.train", "task=hopper"]]
