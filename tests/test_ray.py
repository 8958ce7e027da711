"""Collection on a local Ray cluster of two workers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import rl_twoclocks
from rl_twoclocks.build import build
from rl_twoclocks.collect.patience import WakingClock
from rl_twoclocks.config import ConfigError
from rl_twoclocks.envs import NonFiniteError, WorkerError
from rl_twoclocks.record import read_metrics
from rl_twoclocks.safety import settle
from tests.envs import run_config
from tests.sources import true_stamps

on_ray = pytest.mark.ray


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )
    yield ray
    ray.shutdown()


WORDS = ("collect=ray", "collect.workers=2", "collect.slots=4")


@on_ray
def test_stamps_tell_the_truth_and_a_dead_worker_is_replaced(cluster: Any, tmp_path: Path) -> None:
    config, derived = settle(run_config("Target", tmp_path, *WORDS, "collect.max_restarts=1"))
    parts = build(config, derived)
    try:
        parts.start_source(config)
        source: Any = parts.source
        assert len(true_stamps(parts, source, versions=7)) > 1
        cluster.kill(source.actors[0])
        begin = time.monotonic()
        for _ in range(6):
            source.next(6, None)
        assert time.monotonic() - begin < 90
        assert source.readings()["collect/restarts"] == 1
        cluster.kill(source.actors[1])
        with pytest.raises(WorkerError, match="max_restarts=1"):
            for _ in range(9):
                source.next(6, None)
    finally:
        parts.close()


def test_an_actor_that_replaces_another_gets_the_noise_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
    from unittest.mock import MagicMock

    from rl_twoclocks.collect import ray_source

    ray = MagicMock()
    monkeypatch.setattr(ray_source, "ray", ray)
    source: Any = object.__new__(ray_source.RaySource)
    source.config, source.envs, source.steps, source.life, source.restarts = None, 2, 4, 0, 1
    source.actors, source.pending, source.policy, source.noise = {}, {}, None, "noise"
    source.asked, source.told, source.clock = {}, {}, WakingClock()
    source._start(0)
    source.actors[0].order.remote.assert_called_once_with("set_noise", "noise")


@on_ray
def test_a_whole_run_whose_worker_is_killed_from_outside(cluster: Any, tmp_path: Path) -> None:
    import threading

    import psutil

    rows = tmp_path / "metrics.jsonl"

    def kill() -> None:
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            if rows.exists() and len(rows.read_text().splitlines()) >= 10:
                break
            time.sleep(0.01)
        for process in psutil.process_iter(["cmdline"]):
            if "ray::Actor" in " ".join(process.info["cmdline"] or []):
                os.kill(process.pid, signal.SIGKILL)
                return

    thread = threading.Thread(target=kill)
    thread.start()
    result = rl_twoclocks.train(run_config("Target", tmp_path, *WORDS, "total_frames=6400"))
    thread.join()
    last = read_metrics(rows)[-1]
    # A slice that was dropped leaves no room for one more rollout.
    assert result.frames > 6400 - 64
    assert last["collect/restarts"] == 1
    assert last["clock/staleness_max"] <= 8


@on_ray
def test_an_actor_that_gives_nothing_is_replaced(cluster: Any, tmp_path: Path) -> None:
    # The cluster has room for two: the third is never begun.
    words = ["collect=ray", "collect.workers=4", "collect.max_restarts=0", "collect.patience=20"]
    config, derived = settle(run_config("Target", tmp_path, *words))
    parts = build(config, derived)
    try:
        parts.start_source(config)
        limit = time.monotonic() + 120
        with pytest.raises(WorkerError, match="nothing for 20 seconds"):
            # The two that work make up for the others meanwhile.
            while time.monotonic() < limit:
                parts.source.next(0, None)
    finally:
        parts.close()


@on_ray
def test_an_actor_that_hangs_is_replaced_where_there_is_no_other(
    cluster: Any, tmp_path: Path
) -> None:
    words = ["collect=ray", "collect.workers=1", "collect.patience=120"]
    words += [f"task.kwargs={{once: {tmp_path / 'once'}}}"]
    config, derived = settle(run_config("Hanging", tmp_path / "run", *words))
    parts = build(config, derived)
    try:
        parts.start_source(config)
        source: Any = parts.source
        source.next(0, None)
        source.collect = config.collect.model_copy(update={"patience": 3.0})
        replace = source._replace

        def patient(*arguments: Any) -> None:
            # A new one takes seconds to begin on a busy machine.
            source.collect = config.collect
            replace(*arguments)

        source._replace = patient
        for _ in range(5):
            assert source.next(0, None) is not None
        assert source.readings()["collect/restarts"] == 1
    finally:
        parts.close()


@on_ray
def test_an_order_that_fails_is_heard_of(cluster: Any, tmp_path: Path) -> None:
    config, derived = settle(run_config("Target", tmp_path, "collect=ray"))
    parts = build(config, derived)
    try:
        parts.start_source(config)
        source: Any = parts.source
        source.next(0, None)
        source._tell("begin_other_episodes", 1)
        with pytest.raises(WorkerError, match="no attribute 'begin_other_episodes'"):
            for _ in range(20):
                source.next(0, None)
    finally:
        parts.close()


def test_a_cluster_that_does_not_answer_is_an_error_of_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
    from types import SimpleNamespace

    from rl_twoclocks.collect import ray_source

    def silent(*arguments: Any, **named: Any) -> None:
        raise ray.exceptions.RaySystemError("the raylet is gone")

    stand_in = SimpleNamespace(put=silent, wait=silent, kill=silent, exceptions=ray.exceptions)
    monkeypatch.setattr(ray_source, "ray", stand_in)
    source: Any = object.__new__(ray_source.RaySource)
    source.clock, source.pending, source.version, source.uncounted = WakingClock(), {1: 0}, 0, 0
    order = SimpleNamespace(remote=silent)
    source.actors, source.mine = {0: SimpleNamespace(order=order)}, False
    source.noise, source.restarts, source.told = None, 0, {}
    source.begin_new_episodes(0, 1)
    source.set_noise((None, 1))
    for version in (0, 1):
        source.published = SimpleNamespace(version=version)
        with pytest.raises(WorkerError, match="the raylet is gone"):
            source.next(version, None)
    source.close()


@on_ray
@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("Raising", WorkerError, "raised ValueError: simulator fell over"),
        ("Poison", NonFiniteError, "in Ray worker 1"),
    ],
)
def test_an_error_in_a_worker_ends_the_run_with_its_own_message(
    cluster: Any, name: str, error: type[Exception], text: str, tmp_path: Path
) -> None:
    # So many that both of them are asked, however late one begins.
    words = [*WORDS, "total_frames=1_000_000"]
    if name == "Poison":
        from rl_twoclocks.seeding import env_seeds

        bad = env_seeds(1, "environments of generator 1", 2)[0]
        words.append(f"task.kwargs={{quantity: reward, value: nan, frame: 3, bad_seed: {bad}}}")
    with pytest.raises(error, match=text):
        rl_twoclocks.train(run_config(name, tmp_path, *words))


@pytest.mark.parametrize("mode", ["ray", "redis"])
def test_distributed_collection_does_not_start_from_a_ratio_of_ten(
    mode: str, tmp_path: Path
) -> None:
    words = [f"collect={mode}", "clocks.batch_size=640", "clocks.update_frequency=64"]
    words.append("collect.max_staleness=16")
    with pytest.raises(ConfigError, match="below 10 that holds on one machine"):
        rl_twoclocks.train(run_config("Target", tmp_path / "run", *words))
    assert not (tmp_path / "run").exists()
    settle(run_config("Target", tmp_path / "run", *words, "clocks.ratio.mode=observe"))
