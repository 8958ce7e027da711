"""`-m sweep.jobs=2`: jobs in processes of their own, checked before the first, none lost by another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl_twoclocks import batch, multirun
from rl_twoclocks.config import ConfigError

SMALL = ["task=cartpole", "total_frames=4096", "clocks=classic", "compile=false", "logger=jsonl"]


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs_end(monkeypatch: pytest.MonkeyPatch, codes: dict[str, int]) -> list[list[str]]:
    """Let the job with this word end with that code, and all others with 0."""
    made: list[list[str]] = []

    def ended(words: list[str], log: Path) -> SimpleNamespace:
        made.append(words)
        code = next((codes[w] for w in words if w in codes), 0)
        log.write_text("error: it broke\n" if code else "fine\n")
        place = log.with_suffix("")
        place.mkdir(exist_ok=True)
        (place / "result.json").write_text(json.dumps({"return_mean": 7.5}))
        return SimpleNamespace(returncode=code, poll=lambda: code)

    monkeypatch.setattr(batch, "ForkedRun", ended)
    return made


def test_every_combination_is_a_job(at: Path) -> None:
    jobs = multirun.plan([*SMALL, "algo.gamma=0.9,0.99", "seed=1,2"])
    assert [job.overrides[-2:] for job in jobs] == [
        [f"algo.gamma={gamma}", f"seed={seed}"] for gamma in ("0.9", "0.99") for seed in (1, 2)
    ]
    assert len({job.place for job in jobs}) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algo.gamma=0.99,1.5"], r"job 1, .*algo.gamma=1.5: .*gamma"),
        (["seed=3,3"], "jobs 0 and 1 are one experiment"),
        (["device=cpu,auto"], "jobs 0 and 1 are one experiment"),
        (["task=glob(*)"], "write the values one by one"),
    ],
)
def test_a_job_that_cannot_be_run_is_named_before_any_begins(
    at: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    made = runs_end(monkeypatch, {})
    with pytest.raises(ConfigError, match=said):
        multirun.run_jobs([*SMALL, *words], 2)
    assert made == []


@pytest.mark.parametrize(("code", "became"), [(1, "exit code 1"), (-9, "killed by SIGKILL")])
def test_a_job_that_fails_takes_no_other_along_and_is_named_last(
    at: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
    became: str,
) -> None:
    made = runs_end(monkeypatch, {"seed=3": code})
    assert multirun.run_jobs([*SMALL, "seed=1,2,3,4"], 2) == (code if code > 0 else 128 - code)
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(made) == 4 and "sweep       3 of 4 jobs done" in lines
    assert lines[-1].startswith(f"failed      job 2, {became}") and "seed=3" in lines[-1]
    assert "seed3.log" in lines[-1] and sum("7.5" in line for line in lines) == 3


def command(at: Path, *words: str) -> subprocess.Popen:
    arguments = [sys.executable, "-m", "rl_twoclocks.train", "-m", *words]
    path = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(
        arguments, cwd=at, env=path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def rows(at: Path) -> list[Path]:
    return [p for p in at.glob("runs/*/*/seed*/metrics.jsonl") if p.stat().st_size]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_jobs_under_way_save_their_state(
    at: Path, number: signal.Signals
) -> None:
    long = [*SMALL, "total_frames=10_000_000", "checkpoint.every_frames=10_000_000"]
    sweep = command(at, "sweep.jobs=2", *long, "seed=1,2,3")
    deadline = time.monotonic() + 120
    while len(rows(at)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    sweep.send_signal(number)
    try:
        said = sweep.communicate(timeout=60)[0]
    finally:
        sweep.terminate()
    assert sweep.returncode == 128 + number, said
    assert "the same command goes on" in said
    saved = {p.parent.name for p in at.glob("runs/*/*/seed*/checkpoint-*.pt")}
    assert saved == {"seed1", "seed2"} and not list(at.glob("runs/*/*/seed3/*"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep.jobs=0", "seed=1,2"], "how many jobs at a time"),
        (["sweep.jobs=2", "hydra/launcher=joblib"], "does not go with sweep.jobs=2"),
        (["sweep.jobs=2", "sead=1,2"], "did you mean seed"),
        (["hydra/launcher=jobib", "seed=1,2"], "jobib"),
    ],
)
def test_mistakes_are_told_before_anything_runs(at: Path, words: list[str], said: str) -> None:
    sweep = command(at, *SMALL, *words)
    text = sweep.communicate(timeout=60)[0]
    assert sweep.returncode == 2 and said in text and "silent" not in text, text
    assert not list(at.glob("runs/.sweep*"))
