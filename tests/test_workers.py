"""Environment processes that die, raise or end are noticed, named and cleaned up (case 13)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

import rl_twoclocks
from rl_twoclocks import compose
from rl_twoclocks.envs import WorkerError
from tests.command_envs import ROUND, Walk, command, newest, rows, run, tiny, walk

PROCESSES = "collect=processes"
KEPT = ("resource_tracker", "wandb-core", "gpu_stats")
killed: list[float] = []


@pytest.fixture(autouse=True)
def _whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "made", 0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    for left in children():
        left.kill()
        left.wait(10)


def children() -> list[psutil.Process]:
    multiprocessing.active_children()  # reaps what has ended
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            # These outlive their users by design: the tracker of shared memory, W&B's service, and
            # the server that forks asynchronous workers, which bear its command line.
            words = " ".join(process.cmdline())
            if "forkserver" in words and process.ppid() == os.getpid():
                continue
            if process.status() != psutil.STATUS_ZOMBIE and not any(k in words for k in KEPT):
                found.append(process)
    return found


def gone(seconds: float = 10) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if not children():
            return True
        time.sleep(0.1)
    return False


def kill_worker(index: int, marks: Path, number: int = signal.SIGKILL) -> threading.Thread:
    def work() -> None:
        limit = time.monotonic() + 120
        while len(list(marks.glob("step-*"))) < 2 and time.monotonic() < limit:
            time.sleep(0.02)
        # Worker 0 is started first. Nothing else that this process has started may be hit.
        workers = sorted(process.pid for process in multiprocessing.active_children())
        killed.append(time.monotonic())
        os.kill(workers[index], number)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("index", [0, 1])
def test_a_killed_worker_is_named_and_the_others_end(tmp_path: Path, index: int) -> None:
    marks = tmp_path / "marks"
    config = compose(tiny(tmp_path / "run", *walk(marks=marks, sleep=0.01), PROCESSES, rounds=1000))
    thread = kill_worker(index, marks)
    with pytest.raises(WorkerError) as caught:
        rl_twoclocks.train(config)
    ended = time.monotonic()
    thread.join()
    assert ended - killed[-1] < 60
    assert gone()
    assert re.search(rf"worker \[?{index}\]? died", str(caught.value))
    assert str(caught.value) in (tmp_path / "run" / "error.txt").read_text()


def test_a_run_whose_worker_was_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    overrides = [*walk(marks=marks, sleep=0.001), PROCESSES, f"checkpoint.every_frames={ROUND}"]
    run(tmp_path / "run", *overrides, rounds=2)
    for mark in marks.iterdir():
        mark.unlink()
    thread = kill_worker(1, marks)
    with pytest.raises(WorkerError):
        run(tmp_path / "run", *overrides, rounds=1000)
    thread.join()
    done = newest(tmp_path / "run")["clocks"]["policy_version"]
    assert done >= 2
    assert run(tmp_path / "run", *overrides, rounds=done + 1).rounds == done + 1


def test_an_exception_in_a_worker_shows_where_it_was_raised(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="the walker stumbled over a stone") as caught:
        run(tmp_path, *walk(crash=True), PROCESSES)
    assert gone()
    assert isinstance(caught.value, WorkerError)
    text = (tmp_path / "error.txt").read_text()
    assert "command_envs.py" in text
    assert "in stumble" in text


def test_an_exception_in_this_process_shows_where_it_was_raised(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stumbled over a stone"):
        run(tmp_path, *walk(crash=True))
    assert "in stumble" in (tmp_path / "error.txt").read_text()


def test_a_normal_end_leaves_no_process(tmp_path: Path) -> None:
    result = run(tmp_path / "run", *walk(marks=tmp_path / "marks"), PROCESSES, "eval=default")
    assert result.rounds == 2
    pids = {int(p.name.split("-")[2]) for p in (tmp_path / "marks").iterdir()}
    assert len(pids - {os.getpid()}) == 2
    assert gone()


def test_a_signal_leaves_no_process(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    overrides = [*walk(marks=marks, sleep=0.002), PROCESSES]

    def work() -> None:
        limit = time.monotonic() + 120
        while not list(marks.glob("step-*")) and time.monotonic() < limit:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=work)
    thread.start()
    result = run(tmp_path / "run", *overrides, rounds=1000)
    thread.join()
    assert result.stopped_by == "SIGTERM"
    assert gone()


def test_an_environment_that_cannot_be_made_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(rl_twoclocks.ConfigError, match="no_such_argument"):
        run(tmp_path, *walk(no_such_argument=1), PROCESSES)
    assert gone()


def test_a_run_that_is_refused_leaves_no_process(tmp_path: Path) -> None:
    run(tmp_path, *walk())
    with pytest.raises(rl_twoclocks.ConfigError, match="vectorization"):
        run(tmp_path, *walk(), PROCESSES)
    assert gone()


def test_processes_train_exactly_like_one_process(tmp_path: Path) -> None:
    run(tmp_path / "sync", *walk(), rounds=3)
    run(tmp_path / "async", *walk(), PROCESSES, rounds=3)
    assert rows(tmp_path / "sync") == rows(tmp_path / "async")
    assert torch.equal(
        newest(tmp_path / "sync")["parameters"], newest(tmp_path / "async")["parameters"]
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_torch_uses_the_configured_threads(tmp_path: Path, threads: int) -> None:
    run(tmp_path / "run", *walk(marks=tmp_path / "marks"), f"threads={threads}")
    assert torch.get_num_threads() == threads
    marks = sorted((tmp_path / "marks").iterdir())
    assert [int(mark.read_text().split()[1]) for mark in marks] == [threads, threads]


def test_a_worker_has_one_thread_whatever_the_learner_has(tmp_path: Path) -> None:
    run(tmp_path / "run", *walk(marks=tmp_path / "marks"), PROCESSES, "threads=2")
    marks = [mark.read_text().split() for mark in (tmp_path / "marks").iterdir()]
    assert len({pid for pid, _ in marks}) == 2
    assert {count for _, count in marks} == {"1"}


@pytest.mark.slow
def test_the_command_says_which_worker_died(tmp_path: Path) -> None:
    done = command(tiny(tmp_path / "run", *walk(crash=True), PROCESSES), tmp_path)
    assert done.returncode == 1
    assert "in stumble" in done.stderr
    assert "the walker stumbled over a stone" in done.stderr
