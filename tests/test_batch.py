"""Many runs: made once, each by the command beside it, and never in the place of another one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rl_twoclocks import batch
from rl_twoclocks.cli import Stopped, stoppable
from rl_twoclocks.config import ConfigError
from rl_twoclocks.configure import compose
from rl_twoclocks.rundir import plain
from rl_twoclocks.safety import settle

WORDS = ["task=pendulum", "seed=1"]


def runs_made(monkeypatch: pytest.MonkeyPatch, *codes: int) -> list[list[str]]:
    """Let runs end with these exit codes; the list fills with their overrides."""
    left, made = iter(codes), []

    def ended(words: list[str], log: Path) -> SimpleNamespace:
        made.append(words)
        code = next(left)
        return SimpleNamespace(returncode=code, poll=lambda: code)

    monkeypatch.setattr(batch, "ForkedRun", ended)
    return made


def job(place: Path, *words: str) -> batch.Job:
    return [*batch.COMMAND, *(words or WORDS)], place


def test_a_run_that_diverged_is_over_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runs_made(monkeypatch, 3, 1, 0)
    places = [tmp_path / "arm" / f"seed{k}" for k in (1, 2, 3)]
    assert batch.train_all([job(place) for place in places], 1) == [places[1]]
    assert len(made) == 3
    # The same command would come to the same: what diverged is not made again.
    assert batch.is_over(places[0]) and not batch.is_over(places[1])
    assert batch.train(job(places[0])) and len(made) == 3
    assert batch.told(places[0]) == " ".join([*batch.COMMAND, *WORDS])


def test_one_directory_of_another_command_stops_all_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runs_made(monkeypatch)
    old, new = tmp_path / "arm" / "seed1", tmp_path / "arm" / "seed2"
    batch.claim([job(old, "a=1")])
    with pytest.raises(ConfigError, match=f"{old} is of another command"):
        batch.train_all([job(new), job(old, "a=2")], 2)
    assert made == [] and not new.with_suffix(".txt").exists()
    assert batch.told(old).endswith(" a=1")


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [
        ("algo", "gamma", 0.5),
        ("algo", "clip_epsilon", 0.7),
        ("eval", "episodes", 77),
        ("diagnostics", "every", 3),
        ("diagnostics", "thresholds", "seed"),
    ],
)
def test_a_directory_of_the_same_words_with_other_presets_is_refused(
    tmp_path: Path, group: str, key: str, value: object
) -> None:
    """Also where what differs only measures: runs of two protocols are not put side by side."""
    place = tmp_path / "arm" / "seed1"
    place.mkdir(parents=True)
    stored = plain(settle(compose(WORDS))[0])
    (place / "config.yaml").write_text(yaml.safe_dump(stored))
    # What draws and what logs makes no other run.
    stored["diagnostics"]["pictures"] = False
    stored["logger"]["jsonl"] = False
    (place / "config.yaml").write_text(yaml.safe_dump(stored))
    batch.claim([job(place)])
    stored[group][key] = value
    (place / "config.yaml").write_text(yaml.safe_dump(stored))
    with pytest.raises(ConfigError, match=f"presets were others .{group}.{key}: {value} -> "):
        batch.claim([job(place)])


SLOW = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); "
SLOW += "open(sys.argv[1], 'w').close(); time.sleep(60)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_runs_under_way_and_no_other_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    begun: list[subprocess.Popen] = []

    def slow(words: list[str], log: Path) -> subprocess.Popen:
        words = [sys.executable, "-c", SLOW, str(tmp_path / f"on{len(begun)}")]
        begun.append(subprocess.Popen(words, start_new_session=True))
        return begun[-1]

    def send() -> None:
        while not (tmp_path / "on0").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(batch, "ForkedRun", slow)
    threading.Thread(target=send).start()
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stopped:
        batch.train_all([job(tmp_path / f"seed{k}") for k in range(3)], 1)
    assert stopped.value.exit_code == 128 + number
    assert [run.returncode for run in begun] == [143]
    assert signal.getsignal(number) is before


def test_what_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.05)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
