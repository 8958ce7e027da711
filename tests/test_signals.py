"""A signal ends a run cleanly at any moment, and the run can go on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

import rl_twoclocks
from rl_twoclocks import compose
from rl_twoclocks.record import checkpoint
from rl_twoclocks.signals import WATCHED, StopSignal
from tests.command_envs import ROUND, Walk, newest, rows, run, start, tiny, wait_for, walk

MANY = 500
PHASES = {
    "collecting": ["+task.kwargs.sleep=0.01"],
    "evaluating": [
        "+task.kwargs.sleep=0.2",
        "+task.kwargs.slow_from=3",
        "eval=default",
        f"eval.every_frames={ROUND}",
    ],
}
FIRST_STEP = {"collecting": "step-1-*", "evaluating": "step-3-*"}


@pytest.fixture(autouse=True)
def _first_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "made", 0)


def end(process: subprocess.Popen[str], seconds: float = 60) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, out, err


def overrides_of(tmp_path: Path, phase: str) -> list[str]:
    return [*walk(marks=tmp_path / "marks"), *PHASES[phase]]


def stop(tmp_path: Path, phase: str, number: signal.Signals) -> tuple[int, str, str]:
    process = start(tiny(tmp_path / "run", *overrides_of(tmp_path, phase), rounds=MANY), tmp_path)
    wait_for(tmp_path / "marks", FIRST_STEP[phase], process)
    process.send_signal(number)
    return end(process)


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("collecting", signal.SIGTERM),
        pytest.param("evaluating", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("collecting", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("evaluating", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("collecting", signal.SIGUSR1, marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_exits_with_its_code(
    tmp_path: Path, phase: str, number: signal.Signals
) -> None:
    code, out, err = stop(tmp_path, phase, number)
    assert code == 128 + number, err
    assert "Traceback" not in err
    assert f"stopped by {number.name}" in err
    saved = newest(tmp_path / "run")
    assert 0 < saved["clocks"]["frames"] < MANY * ROUND
    assert torch.isfinite(saved["parameters"]).all()
    assert str(checkpoint.listed(tmp_path / "run")[-1]) in out
    done = saved["clocks"]["policy_version"]
    result = run(
        tmp_path / "run", *walk(marks=tmp_path / "marks"), *PHASES[phase], rounds=done + 1,
    )  # fmt: skip
    assert result.stopped_by is None
    assert [r["clock/policy_version"] for r in rows(tmp_path / "run")] == [*range(1, done + 2)]


def test_a_signal_in_an_evaluation_does_not_wait_for_its_end(tmp_path: Path) -> None:
    evaluation = ["eval=default", f"eval.every_frames={ROUND}", "eval.episodes=1000"]
    started = time.monotonic()
    result = run(
        tmp_path, *walk(signal=int(signal.SIGTERM), signal_from=3, sleep=0.005, slow_from=3),
        *evaluation, rounds=5,
    )  # fmt: skip
    assert time.monotonic() - started < 8
    assert (result.stopped_by, result.rounds, result.return_mean) == ("SIGTERM", 1, None)
    assert newest(tmp_path)["clocks"]["policy_version"] == 1
    assert "eval/return_mean" not in rows(tmp_path)[-1]


@pytest.mark.parametrize("rounds", [1, 3])
def test_an_evaluation_that_a_signal_prevented_is_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    words = ["task=cartpole", "eval=default", f"eval.every_frames={ROUND}"]

    def interrupted(*args: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr("rl_twoclocks.session.Evaluator.__call__", interrupted)
        first = run(tmp_path, *words, rounds=rounds)
    # Also in the last round: what the run came to is not known yet.
    assert (first.stopped_by, first.rounds, first.return_mean) == ("SIGTERM", 1, None)
    assert not (tmp_path / "result.json").exists()
    second = run(tmp_path, *words, rounds=rounds)
    assert (second.stopped_by, second.rounds) == (None, rounds)
    assert second.return_mean is not None
    assert (tmp_path / "result.json").is_file()
    found = [row["eval/return_mean"] for row in rows(tmp_path) if "eval/return_mean" in row]
    assert found[-1] == second.return_mean
    third = run(tmp_path, *words, rounds=rounds)
    assert third.return_mean == second.return_mean


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_round_is_finished_and_the_result_names_the_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    overrides = walk(signal=int(number), at=ROUND // 2 + 5)
    result = run(tmp_path, *overrides, rounds=6)
    assert (result.stopped_by, result.rounds, result.frames) == (number.name, 2, 2 * ROUND)
    assert Path(result.checkpoint) == checkpoint.listed(tmp_path)[-1]
    assert not (tmp_path / "result.json").exists()
    assert not (tmp_path / "error.txt").exists()
    result = run(tmp_path, *overrides, rounds=6)
    assert (result.stopped_by, result.rounds) == (None, 6)
    assert (tmp_path / "result.json").is_file()
    assert [row["clock/policy_version"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_a_signal_in_the_last_round_is_no_interruption(tmp_path: Path) -> None:
    result = run(tmp_path, *walk(signal=int(signal.SIGTERM)), rounds=1)
    assert (result.stopped_by, result.rounds) == (None, 1)
    assert (tmp_path / "result.json").is_file()


def test_a_signal_before_the_first_round_names_no_file_that_is_not_there(tmp_path: Path) -> None:
    result = run(tmp_path, *walk(signal=int(signal.SIGTERM), at=0))
    assert (result.stopped_by, result.frames) == ("SIGTERM", 0)
    assert result.checkpoint is None
    assert checkpoint.listed(tmp_path) == []


def test_a_signal_before_the_first_round_loses_nothing(tmp_path: Path) -> None:
    overrides = walk(signal=int(signal.SIGTERM), at=0)
    run(tmp_path, *overrides)
    Walk.made = 10
    assert run(tmp_path, *overrides).rounds == 2


def test_handlers_are_put_back(tmp_path: Path) -> None:
    def mine(number: int, frame: object) -> None:
        pass

    before = {number: signal.getsignal(number) for number in WATCHED}
    try:
        signal.signal(signal.SIGTERM, mine)
        run(tmp_path, "task=cartpole")
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGINT) is before[signal.SIGINT]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_handlers_are_put_back_after_an_error(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in WATCHED}
    with pytest.raises(RuntimeError, match="stumbled"):
        run(tmp_path, *walk(crash=True))
    with pytest.raises(rl_twoclocks.ConfigError):
        run(tmp_path / "other", *walk(no_such_argument=1))
    assert {number: signal.getsignal(number) for number in WATCHED} == before


def test_training_works_outside_the_main_thread(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    config = compose(tiny(tmp_path, "task=cartpole"))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(rl_twoclocks.train, config).result().rounds == 2


def test_the_first_signal_is_kept() -> None:
    with StopSignal() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop
        assert stop.received is signal.SIGUSR1


def test_a_second_signal_kills_at_once(tmp_path: Path) -> None:
    overrides = walk(marks=tmp_path / "marks", sleep=1.0)
    process = start(tiny(tmp_path / "run", *overrides, rounds=MANY), tmp_path)
    wait_for(tmp_path / "marks", "step-1-*", process)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    survived_the_first = process.poll() is None
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, _, _ = end(process, 10)
    assert survived_the_first
    assert code == -signal.SIGTERM
    assert time.monotonic() - started < 5


@pytest.mark.slow
def test_a_signal_while_compiling_saves_and_exits_with_its_code(tmp_path: Path) -> None:
    overrides = [*walk(marks=tmp_path / "marks"), "compile=true"]
    process = start(tiny(tmp_path / "run", *overrides, rounds=MANY), tmp_path)
    wait_for(tmp_path / "marks", "step-1-*", process)
    limit = time.monotonic() + 60
    while not rows(tmp_path / "run") and time.monotonic() < limit:
        time.sleep(0.05)
    # The first round calibrates; the second one compiles.
    time.sleep(1.5)
    seen = len(rows(tmp_path / "run"))
    process.send_signal(signal.SIGTERM)
    code, _, err = end(process, 180)
    assert seen == 1
    assert code == 143, err
    assert newest(tmp_path / "run")["clocks"]["policy_version"] == 2


@pytest.mark.slow
def test_ctrl_c_reaches_the_whole_group_and_still_saves(tmp_path: Path) -> None:
    overrides = [*walk(marks=tmp_path / "marks", sleep=0.01), "collect=processes"]
    process = start(tiny(tmp_path / "run", *overrides, rounds=MANY), tmp_path)
    wait_for(tmp_path / "marks", "step-*", process)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = end(process)
    assert code == 130, err
    assert newest(tmp_path / "run")["clocks"]["frames"] > 0
