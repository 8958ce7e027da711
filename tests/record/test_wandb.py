"""Tests of the W&B logger: against a stub that records calls, and one real offline run."""

from __future__ import annotations

import math
import random
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rl_twoclocks.record import Loggers, RunInfo, make_loggers, read_metrics
from rl_twoclocks.record.wandb import without_secrets
from tests.record import offline

if TYPE_CHECKING:
    from pathlib import Path


class StubRun:
    """A W&B run that records what is done to it."""

    url = "https://wandb.example/run"

    def __init__(self, broken: bool = False) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.broken = broken

    def __getattr__(self, name: str) -> Any:
        def record(*args: Any, **kwargs: Any) -> None:
            if self.broken:
                raise BrokenPipeError("the service died")
            self.calls.append((name, args, kwargs))

        return record

    def named(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


class Stub(ModuleType):
    """A `wandb` module that records inits and fails in the modes it is told to."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.run: StubRun | None = None
        """What a caller has under way."""
        self.failing: set[str] = set()
        self.broken = False
        self.inits: list[dict[str, Any]] = []
        self.runs: list[StubRun] = []
        self.teardowns = 0

    def init(self, **arguments: Any) -> StubRun:
        self.inits.append(arguments)
        if arguments["mode"] in self.failing:
            raise RuntimeError("no\nnetwork")
        self.runs.append(StubRun(self.broken))
        return self.runs[-1]

    def teardown(self) -> None:
        self.teardowns += 1

    @property
    def modes(self) -> list[str]:
        return [arguments["mode"] for arguments in self.inits]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_INIT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    module = Stub()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def make(directory: Path, run: dict[str, Any] | None = None, **changes: Any) -> Loggers:
    config = {
        "wandb": True, "tensorboard": False, "log_freq": 1, "display": "none", "project": "p",
        "entity": None, "group": "g", "tags": ["t"], "wandb_mode": "auto", "watch": False,
        "watch_freq": 10, "sync_tensorboard": False,
    }  # fmt: skip
    info: dict[str, Any] = {"name": "task/preset/seed1", "config": {}, "frames": 0, "state": {}}
    settings: Any = SimpleNamespace(**config | changes)
    return make_loggers(settings, RunInfo(directory=directory, **info | (run or {})))


def test_steps_are_frames_strictly_increasing_and_only_floats(stub: Stub, tmp_path: Path) -> None:
    loggers = make(tmp_path)
    for frames in (0, 2048, 2048, 1024, 4096):
        loggers.log({"clock/policy_version": frames // 2048, "train/kl": math.nan}, frames)
    rows = stub.runs[0].named("log")
    assert [kwargs["step"] for _, kwargs in rows] == [0, 2048, 4096]
    for (row,), kwargs in rows:
        assert row["frames"] == kwargs["step"]
        assert {type(value) for value in row.values()} == {float}
    assert stub.runs[0].named("define_metric") == [(("*",), {"step_metric": "frames"})]


def test_init_names_the_run_and_holds_no_secret(stub: Stub, tmp_path: Path) -> None:
    make(tmp_path, {"config": {"a": {"api_key": "1", "lr": 0.1}}})
    (call,) = stub.inits
    assert call["dir"] == str(tmp_path)
    assert (call["name"], call["project"], call["group"]) == ("task/preset/seed1", "p", "g")
    assert call["tags"] == ["t"]
    assert call["config"] == {"a": {"lr": 0.1}}
    assert call["settings"]["console"] == "off"


def test_secrets_are_removed() -> None:
    config = {
        "wandb_key": 1, "token": 2, "hub_tokens": 3, "Password": 4, "client_secret": 5,
        "keyframes": 6, "hockey": 7, "url": "redis://me:pw@host:1/0", "plain": "http://host/a@b",
        "nested": [{"KEY": 8, "x": None}],
    }  # fmt: skip
    assert without_secrets(config) == {
        "keyframes": 6, "hockey": 7, "url": "redis://***@host:1/0", "plain": "http://host/a@b",
        "nested": [{"x": None}],
    }  # fmt: skip
    for address in ("redis://:a/b@host", "redis://me:a@b@host", "redis://host?db=1&password=a"):
        told = without_secrets([f"collect.redis.url={address}"])[0]
        assert "a" not in told.removeprefix("collect.redis.url=").replace("password", "")


def test_a_password_of_the_command_line_is_not_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    words = ["train", "collect.redis.url=redis://:HUNTER2@host:1", "seed=1"]
    monkeypatch.setattr(sys, "argv", words)
    make(tmp_path, wandb_mode="offline").close()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in written)
    assert not [path for path in written if b"HUNTER2" in path.read_bytes()]
    assert sys.argv is words


def test_finish_exactly_once_per_job(stub: Stub, tmp_path: Path) -> None:
    for exit_code in (0, 1):
        loggers = make(tmp_path)
        loggers.close(exit_code)
        loggers.close()
    finished = [run.named("finish") for run in stub.runs]
    assert finished == [[((), {"exit_code": 0})], [((), {"exit_code": 1})]]
    assert stub.inits[0]["id"] != stub.inits[1]["id"]


def test_resume_reuses_the_id_and_goes_on_after_the_checkpoints_row(
    stub: Stub, tmp_path: Path
) -> None:
    first = make(tmp_path)
    state = first.state_dict()
    first.close(143)
    second = make(tmp_path, {"frames": 2048, "state": state})
    second.log({"x": 1.0}, frames=1024)
    # Of the checkpoint's own frames: an evaluation that a signal had prevented.
    second.log({"eval/return_mean": 1.0}, frames=2048)
    second.log({"x": 1.0}, frames=4096)
    assert [call["id"] for call in stub.inits] == [state["wandb_id"]] * 2
    assert {call["resume"] for call in stub.inits} == {"allow"}
    logged = [(row["frames"], kw["step"]) for (row,), kw in stub.runs[1].named("log")]
    assert logged == [(2048.0, 2049), (4096.0, 4096)]


def test_the_id_outlives_a_leg_without_wandb(tmp_path: Path) -> None:
    state = {"wandb_id": "abc"}
    loggers = make(tmp_path, {"frames": 1, "state": state}, wandb=False)
    assert loggers.state_dict() == state
    loggers.close()
    assert loggers.state_dict() == state


@pytest.mark.parametrize(
    ("mode", "environment", "key", "expected"),
    [
        ("auto", None, None, ["offline"]),
        ("auto", None, "k", ["online"]),
        ("auto", "offline", "k", ["offline"]),
        ("auto", "disabled", "k", []),
        ("auto", "online", "k", ["online"]),
        ("auto", "online", None, ["offline"]),
        ("online", "offline", "k", ["online"]),
        ("offline", "online", "k", ["offline"]),
        ("disabled", "online", "k", []),
    ],
)
def test_modes(
    stub: Stub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    environment: str | None,
    key: str | None,
    expected: list[str],
) -> None:
    for name, value in (("WANDB_MODE", environment), ("WANDB_API_KEY", key)):
        if value is not None:
            monkeypatch.setenv(name, value)
    loggers = make(tmp_path, wandb_mode=mode)
    assert stub.modes == expected
    # Who trains is told where to look, where there is anything to look at.
    assert loggers.address == (StubRun.url if expected == ["online"] else None)


@pytest.mark.parametrize(("failing", "runs"), [({"online"}, 1), ({"online", "offline"}, 0)])
def test_a_failing_init_falls_back_once_with_one_warning(
    stub: Stub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failing: set[str],
    runs: int,
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k")
    stub.failing = failing
    loggers = make(tmp_path)
    loggers.log({"x": 1.0}, frames=1)
    loggers.close()
    assert stub.modes == ["online", "offline"]
    assert stub.inits[0]["id"] == stub.inits[1]["id"]
    assert len(stub.runs) == runs
    (warning,) = caplog.records
    assert len(warning.message.splitlines()) == 1
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


def test_a_failing_init_ends_no_run_of_the_callers(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k")
    stub.failing, stub.run = {"online"}, StubRun()
    logged = make(tmp_path, wandb_mode="online")
    assert (stub.teardowns, stub.modes) == (0, ["online", "offline"])
    # The id of the run that did not start stays taken.
    assert stub.inits[0]["id"] != stub.inits[1]["id"] == logged.state_dict()["wandb_id"]


def test_without_wandb_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    loggers = make(tmp_path)
    loggers.log({"x": 1.0}, frames=1)
    loggers.watch(torch.nn.Linear(1, 1))
    loggers.close()
    assert len(caplog.records) == 1
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


def test_a_service_that_dies_is_one_warning(
    stub: Stub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loggers = make(tmp_path)
    stub.runs[0].broken = True
    for frames in (1, 2):
        loggers.log({"x": 1.0}, frames)
    loggers.close()
    assert len(caplog.records) == 1


def test_watch_only_when_asked(stub: Stub, tmp_path: Path) -> None:
    module = torch.nn.Linear(1, 1)
    for watch in (False, True):
        loggers = make(tmp_path, watch=watch)
        loggers.watch(module)
        loggers.close()
    assert stub.runs[0].named("watch") == []
    assert stub.runs[1].named("watch") == [((module,), {"log": "all", "log_freq": 1})]
    assert [name for name, _, _ in stub.runs[1].calls][-2:] == ["unwatch", "finish"]


def test_synced_tensorboard_is_not_logged_twice(stub: Stub, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    loggers = make(tmp_path, tensorboard=True, sync_tensorboard=True)
    loggers.log({"x": 1.0}, frames=1)
    loggers.close()
    assert stub.inits[0]["sync_tensorboard"] is True
    assert stub.runs[0].named("log") == []


def test_real_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    module = torch.nn.Linear(2, 1)
    states = random.getstate(), torch.get_rng_state()
    start = time.monotonic()
    loggers = make(tmp_path, wandb_mode="offline", watch=True, watch_freq=1)
    loggers.watch(module)
    module(torch.ones(3, 2)).sum().backward()
    for frames in (2048, 4096):
        loggers.log({"train/kl": frames * 1e-5}, frames)
    loggers.close()
    assert time.monotonic() - start < 30
    module(torch.ones(3, 2))  # no hook is left behind
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    wandb.teardown()  # W&B's own process writes the file to its end
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert loggers.state_dict()["wandb_id"] in file.name
    assert b"train/kl" in file.read_bytes()


def test_an_offline_run_holds_all_that_is_sent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = {"task": {"name": "walk", "api_key": "1"}, "seed": 7}
    logged = [
        {"train/kl": 1e-5 * k, "diag/long." + "x" * 300: float(k), "train/ess": math.nan}
        for k in range(150)
    ]
    loggers = make(tmp_path, {"config": settings}, wandb_mode="offline")
    for k, row in enumerate(logged):
        loggers.log(row, 2048 * (k + 1))
    state = loggers.state_dict()
    loggers.close()
    wandb.teardown()  # as at the end of the process: W&B's own process writes the file to its end
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    # More than one block of the file, so that records lie across its seams.
    assert file.stat().st_size > 2 * offline.BLOCK
    found = offline.rows(file)
    assert [row["frames"] for row in found] == [2048.0 * (k + 1) for k in range(150)]
    for kept, row in zip(found, logged, strict=True):
        assert kept["_step"] == kept["frames"]
        assert {name: kept[name] for name in list(row)[:2]} == dict(list(row.items())[:2])
        assert math.isnan(float(kept["train/ess"]))
    stored = offline.config(file)
    assert stored["task"] == {"name": "walk"} and stored["seed"] == 7
    # A second leg goes on with the same run, from the checkpoint's frames.
    loggers = make(tmp_path, {"frames": 4096, "state": state}, wandb_mode="offline")
    for frames in (2048, 4096, 6144):
        loggers.log({"train/kl": 0.5}, frames)
    loggers.close()
    wandb.teardown()
    (second,) = set(tmp_path.glob("wandb/offline-run-*/*.wandb")) - {file}
    assert second.name == file.name
    assert [row["frames"] for row in offline.rows(second)] == [4096.0, 6144.0]
