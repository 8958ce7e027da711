"""The asynchronous pool: true stamps, bounded age, dead workers, nothing left over."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import rl_twoclocks
from rl_twoclocks.collect.heed import Heed
from rl_twoclocks.collect.pool import AsyncSource
from rl_twoclocks.collect.shared import FREE, READY, WRITING, Board, Shelf
from rl_twoclocks.collect.source import choose
from rl_twoclocks.config import ConfigError
from rl_twoclocks.envs import NonFiniteError, WorkerError
from rl_twoclocks.record import read_metrics
from rl_twoclocks.safety import settle
from rl_twoclocks.window import BESIDES
from tests.command_envs import start
from tests.envs import run_config
from tests.sources import collecting, publish, true_stamps


def wait_for_slices(source: AsyncSource, count: int) -> None:
    limit = time.monotonic() + 60
    while source.readings()["collect/waiting"] < count and time.monotonic() < limit:
        time.sleep(0.02)


def dead_workers(pids: list[int], seconds: float = 10.0) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("order", "limit", "taken", "dropped"),
    [
        ("near", None, [2, 0], []),
        ("near", 2, [0, 3], [1]),
        ("near", 5, [2, 0], []),
        ("near", 0, [], [0, 1, 2, 3]),
        ("fifo", None, [0, 1], []),
        ("fifo", 2, [0, 2], [1]),
    ],
)
def test_near_versions_come_first_and_old_ones_are_dropped(
    order: str, limit: int | None, taken: list[int], dropped: list[int]
) -> None:
    found = choose([5, 3, 6, 5], 2, 2, 7, limit, order, random.Random(0))
    assert found == (taken, dropped)


@pytest.mark.parametrize(("workers", "slots"), [(1, 4), (2, 4), (3, 8)])
def test_near_versions_first_wastes_nothing_where_workers_wait(workers: int, slots: int) -> None:
    # Workers fill what is free with the newest version, as often as the learner empties it.
    shelf: list[int] = []
    ages = []
    for version in range(100):
        shelf += [max(version - 1, 0)] * (slots - len(shelf))
        taken, too_old = choose(shelf, workers, workers, version, 8, "near", random.Random(0))
        assert not too_old
        ages += [version - shelf[i] for i in taken]
        shelf = [v for i, v in enumerate(shelf) if i not in taken]
    assert max(ages) == 8
    assert sorted(ages)[len(ages) // 2] == 1


def test_near_versions_come_first_where_not_all_can_be_saved() -> None:
    shelf: list[int] = []
    ages = []
    for version in range(100):
        shelf += [max(version - 1, 0)] * (16 - len(shelf))
        taken, too_old = choose(shelf, 1, 1, version, 2, "near", random.Random(0))
        ages += [version - shelf[i] for i in taken]
        shelf = [v for i, v in enumerate(shelf) if i not in {*taken, *too_old}]
    assert set(ages[2:]) == {1}


def test_what_later_rounds_take_counts_where_this_one_lacks_few() -> None:
    # One slice is lacking now, four are taken in the next round: all three can be used.
    taken, too_old = choose([3, 4, 4], 1, 4, 5, 2, "near", random.Random(0))
    assert (taken, too_old) == ([0], [])


def test_a_random_order_takes_every_slice_equally_often() -> None:
    stream = random.Random(0)
    first = [choose([1, 2, 3], 1, 1, 3, None, "random", stream)[0][0] for _ in range(600)]
    assert all(150 < first.count(i) < 250 for i in range(3))


def test_a_board_is_never_read_half_written() -> None:
    from rl_twoclocks.collect import Published

    board = Board(Published(torch.zeros(4), torch.zeros(2), torch.ones(2), 0))
    board.stamp[0] += 1  # someone is writing
    board.parameters.fill_(7.0)
    with pytest.raises(TimeoutError), _alarm(0.2):
        board.read()
    board.stamp[1], board.stamp[0] = 3, board.stamp[0] + 1
    policy = board.read()
    assert (policy.version, policy.parameters.tolist()) == (3, [7.0] * 4)


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(*args: object) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _slice(value: float) -> rl_twoclocks.window.TensorDict:
    from tensordict import TensorDict

    return TensorDict(
        {"reward": torch.full((2, 3), value), "episode_length": torch.tensor([[0.0, 5, 0]] * 2)},
        batch_size=(2, 3),
    )


def test_a_full_shelf_lets_the_worker_wait_or_drop_its_oldest() -> None:
    shelf = Shelf(_slice(0.0), slots=2)
    for number in (1, 2):
        slot = shelf.place(drop=False)
        shelf.fill(slot, _slice(float(number)), number, number)
    assert shelf.place(drop=False) is None
    slot = shelf.place(drop=True)
    assert [number for number, *_ in shelf.ready()] == [2]
    shelf.fill(slot, _slice(3.0), 3, 3)
    assert shelf.lost.tolist() == [6, 2, 10]
    number, slot, version = shelf.ready()[-1]
    assert (number, version) == (3, 3)
    assert float(shelf.take(slot, number)["reward"][0, 0]) == 3.0
    assert shelf.state[slot] == FREE


def test_a_slice_replaced_while_it_is_read_is_not_taken_and_one_of_a_dead_worker_is_freed() -> None:
    shelf = Shelf(_slice(0.0), slots=2)
    shelf.fill(0, _slice(1.0), 1, 1)
    assert shelf.take(0, number=7) is None
    assert shelf.state[0] == READY
    shelf.state[1] = WRITING
    shelf.abandon()
    assert shelf.state.tolist() == [READY, FREE]


def test_a_slice_that_both_sides_reach_for_is_counted_once() -> None:
    shelf = Shelf(_slice(0.0), slots=1)
    shelf.fill(0, _slice(1.0), 1, 1)
    # The worker claims the slot between the learner's look at it and the learner's freeing it.
    slot = shelf.place(drop=True)
    shelf.state[slot] = READY
    assert shelf.take(slot, 1) is not None
    shelf.fill(slot, _slice(2.0), 2, 2)
    assert shelf.lost.tolist() == [0, 0, 0]


def test_stamps_tell_the_truth(tmp_path: Path) -> None:
    """The stored version's parameters give the stored log-probabilities, whatever came since."""
    config = run_config("Target", tmp_path, "collect=async", "collect.workers=2", "collect.slots=8")
    with collecting(config) as (parts, source):
        # Nobody can tell of this task what succeeds, and nothing waits in a queue of the learner's.
        assert set(BESIDES) - {"success", "abandoned"} <= set(source.next(0, None)[0].keys())
        assert len(true_stamps(parts, source, versions=9)) > 3


def test_frames_beyond_the_limit_are_dropped_and_counted(tmp_path: Path) -> None:
    config = run_config("Counter", tmp_path, "collect=async", "collect.slots=4")
    with collecting(config) as (parts, source):
        wait_for_slices(source, 4)
        publish(parts, 9)
        rollout, frames = source.next(9, 0)
        assert rollout["policy_version"].unique().tolist() == [9]
        assert frames >= (1 + 4) * rollout.numel()
        # Counter's episodes are all as long, so that dropping favours none.
        assert source.readings()["clock/dropped_length_ratio"] == pytest.approx(1.0)


def test_episode_sums_are_made_where_the_frames_are(tmp_path: Path) -> None:
    config = run_config("Lengths", tmp_path, "collect=async")
    with collecting(config) as (parts, source):
        for _ in range(3):
            parts.count_episodes(source.next(0, None)[0])
    lengths = [length for _, length in parts.episodes.finished]
    assert set(lengths) == {3, 7}
    assert all(total == length for total, length in parts.episodes.finished)


@pytest.mark.parametrize("restarts", [0, 3])
def test_a_killed_worker_is_started_again_as_often_as_allowed(
    restarts: int, tmp_path: Path
) -> None:
    words = ["collect=async", f"collect.max_restarts={restarts}", "collect.slots=2"]
    with collecting(run_config("Target", tmp_path, *words)) as (_, source):
        for _ in range(restarts):
            source.next(0, None)
            os.kill(source.workers[0].pid, signal.SIGKILL)
            begin = time.monotonic()
            # What was waiting is still good; the third is of the new worker.
            rollouts = [source.next(0, None)[0] for _ in range(4)]
            assert time.monotonic() - begin < 60
            assert all(r.shape == (4, 16) for r in rollouts)
        assert source.readings()["collect/restarts"] == restarts
        os.kill(source.workers[0].pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=f"max_restarts={restarts}"):
            for _ in range(5):
                source.next(0, None)


@pytest.mark.parametrize(
    ("name", "words", "error", "text"),
    [
        ("Raising", [], WorkerError, "worker 0 raised ValueError: simulator fell over"),
        (
            "Poison",
            ["task.kwargs={quantity: reward, value: nan, frame: 3, bad_seed: 0}"],
            NonFiniteError,
            "reward of environment",
        ),
    ],
)
def test_an_error_in_a_worker_ends_the_run_with_its_own_message(
    name: str, words: list[str], error: type[Exception], text: str, tmp_path: Path
) -> None:
    config = run_config(name, tmp_path, "collect=async", *words)
    if name == "Poison":
        from rl_twoclocks.seeding import env_seeds

        bad = env_seeds(config.seed, "environments of generator 0", 4)[2]
        kwargs = config.task.kwargs | {"bad_seed": bad}
        task = config.task.model_copy(update={"kwargs": kwargs})
        config = config.model_copy(update={"task": task})
    with pytest.raises(error, match=text), collecting(config) as (_, source):
        for _ in range(3):
            source.next(0, None)


def test_nothing_is_left_over(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    config = run_config("Target", tmp_path, "collect=async", "collect.workers=2")
    with collecting(config) as (_, source):
        source.next(0, None)
        pids = [worker.pid for worker in source.workers]
        assert not dead_workers(pids, 0.1)
    assert dead_workers(pids)
    assert {f for f in os.listdir("/dev/shm") if f.startswith("torch")} <= before


def test_a_whole_run_and_its_resumption(tmp_path: Path) -> None:
    words = ["collect=async", "clocks.publish_interval=2", "checkpoint.every_frames=64"]
    result = rl_twoclocks.train(run_config("Target", tmp_path, *words))
    assert result.stopped_by is None
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows[-1]["frames"] == result.frames >= 256
    assert max(row["clock/publish_lag"] for row in rows) == 1
    assert all(row["clock/staleness_min"] >= 0 for row in rows)
    longer = rl_twoclocks.train(run_config("Target", tmp_path, *words, "total_frames=512"))
    assert longer.frames >= 512
    assert longer.rounds > result.rounds


def test_the_order_to_align_waits_for_data_of_the_newest_policy(tmp_path: Path) -> None:
    words = ["collect=async", "clocks.align_kl=1e-9", "total_frames=512", "collect.slots=4"]
    rl_twoclocks.train(run_config("Target", tmp_path, *words, "diagnostics=default"))
    rows = read_metrics(tmp_path / "metrics.jsonl")
    moved = [i for i, row in enumerate(rows[:-1]) if row.get("diag/kl_behaviour", 0) > 1e-9]
    assert moved
    assert all(rows[i + 1]["clock/staleness_max"] == 0 for i in moved)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["collect.workers=3"], "nearest is collect.workers=2, or num_envs=6"),
        (["collect.vectorization=async"], "raise collect.workers"),
        (["clocks.publish_interval=10"], "write collect.max_staleness=9$"),
        (["clocks.lag=9", "clocks.lag_mode=ring"], "write collect.max_staleness=9$"),
        (
            ["clocks.lag=4", "clocks.lag_mode=ring", "clocks.publish_interval=4"],
            "write collect.max_staleness=19$",
        ),
        (["clocks.batch_size=256", "collect.max_staleness=2"], "write collect.max_staleness=3$"),
        (["clocks.align_kl=0.1", "diagnostics=minimal"], "write diagnostics=default"),
        (["clocks.publish_kl=0.1", "diagnostics=off"], "write diagnostics=default"),
    ],
)
def test_workers_that_cannot_be_are_refused_before_anything_runs(
    words: list[str], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=text):
        rl_twoclocks.train(run_config("Target", tmp_path / "run", "collect=async", *words))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_twenty_kills_lose_nothing_and_leave_no_memory_behind(tmp_path: Path) -> None:
    words = ["collect=async", "collect.workers=2", "collect.max_restarts=20"]
    with collecting(run_config("Target", tmp_path, *words)) as (_, source):
        me = psutil.Process()
        used = []
        for kill in range(20):
            rollout, _ = source.next(0, None)
            assert rollout.shape == (4, 16)
            os.kill(source.workers[kill % 2].pid, signal.SIGKILL)
            for _ in range(3):
                assert bool(torch.isfinite(source.next(0, None)[0]["reward"]).all())
            used.append(me.memory_info().rss)
        assert source.readings()["collect/restarts"] == 20
        assert used[-1] - used[4] < 20e6
        assert len([c for c in me.children(recursive=True) if "worker" in c.name()]) <= 2


def test_no_frame_grows_older_than_the_bound_in_the_window(tmp_path: Path) -> None:
    """A slice may come at age 1 at most: the window of four rollouts keeps it for three rounds more."""
    words = ["collect=async", "collect.order=fifo", "collect.slots=8", "collect.max_staleness=4"]
    words += ["clocks.batch_size=256", "clocks.ratio.mode=observe", "diagnostics=default"]
    rl_twoclocks.train(run_config("Target", tmp_path, *words, "total_frames=2560"))
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert max(row["clock/staleness_max"] for row in rows) <= 4
    # It would have been older: slices had to be dropped for it.
    assert rows[-1]["clock/dropped_frames"] > 0


@pytest.mark.parametrize(
    ("words", "waiting"),
    [
        (["collect=async", "collect.when_full=drop", "collect.slots=2", "total_frames=6400"], 0),
        # However seldom the policy is published, the learner has taken steps.
        (
            [
                "collect=async",
                "collect.when_full=drop",
                "collect.slots=2",
                "total_frames=6400",
                "clocks.publish_interval=1000",
                "collect.max_staleness=999",
            ],
            0,
        ),
        # Every round aligns: what waits in the queue is dropped, and it fills anew.
        (["clocks.lag=3", "clocks.align_kl=1e-9", "diagnostics=default", "total_frames=2560"], 3),
    ],
)
def test_learnt_and_dropped_frames_add_up_to_those_collected(
    words: list[str], waiting: int, tmp_path: Path
) -> None:
    rl_twoclocks.train(run_config("Target", tmp_path, *words))
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows[-1]["clock/dropped_frames"] > 0
    # Where the budget ends, the queue does not fill anew.
    for row in rows[: -1 if waiting else None]:
        learnt = 64 * row["clock/policy_version"]
        assert row["frames"] == learnt + 64 * waiting + row["clock/dropped_frames"]


def test_nothing_is_dropped_before_the_first_steps_which_are_compiled(tmp_path: Path) -> None:
    words = ["collect=async", "collect.when_full=drop", "collect.slots=2"]
    with collecting(run_config("Target", tmp_path, *words)) as (parts, source):
        wait_for_slices(source, 2)
        for version in range(4):
            publish(parts, version + 1)
            time.sleep(0.1)
            assert int(source.shelves[0].lost[0]) == 0
        source.learnt()
        limit = time.monotonic() + 30
        while int(source.shelves[0].lost[0]) == 0 and time.monotonic() < limit:
            time.sleep(0.02)
        assert int(source.shelves[0].lost[0]) > 0


def test_what_was_dropped_is_counted_over_all_sittings(tmp_path: Path) -> None:
    words = ["collect=async", "collect.when_full=drop", "collect.slots=2", "checkpoint=default"]
    rl_twoclocks.train(run_config("Target", tmp_path, *words, "total_frames=3200"))
    rl_twoclocks.train(run_config("Target", tmp_path, *words, "total_frames=9600"))
    rows = read_metrics(tmp_path / "metrics.jsonl")
    for row in rows:
        assert row["frames"] == 64 * row["clock/policy_version"] + row["clock/dropped_frames"]


@pytest.mark.parametrize("evaluation", [True, False])
def test_a_budget_that_new_episodes_use_up_is_evaluated_and_logged(
    evaluation: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_twoclocks.collect.source.SyncSource.discard", lambda self: 64)
    words = ["checkpoint.episode_boundary=true", "checkpoint.every_frames=64", "total_frames=1280"]
    words += [
        f"eval.enabled={str(evaluation).lower()}",
        "eval.every_frames=1280",
        "eval.episodes=2",
    ]
    config = run_config("Target", tmp_path, *words, "logger.log_freq=1000")
    result = rl_twoclocks.train(config)
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert row["clock/policy_version"] == 10
    assert (result.frames, row["frames"]) == (1280, 1280)
    assert (result.return_mean is not None) == ("eval/return_mean" in row) == evaluation


def test_a_publication_that_does_nothing_raises_an_alarm_within_five_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_twoclocks.record.events import read_events

    monkeypatch.setattr(AsyncSource, "publish", lambda self, behaviour: None)
    words = [
        "collect=async",
        "collect.max_staleness=null",
        "collect.order=fifo",
        "diagnostics=default",
    ]
    rl_twoclocks.train(run_config("Target", tmp_path, *words, "total_frames=1280"))
    alarms = [e for e in read_events(tmp_path / "events.jsonl") if e["kind"] == "alarm"]
    for name in ("policy_lag", "publish_lag"):
        found = [e for e in alarms if e["name"] == name]
        assert found and found[0]["round"] <= 5


def test_a_worker_that_takes_no_policy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_twoclocks.record.events import read_events

    start = AsyncSource._start

    def cut_off(self: AsyncSource, index: int):
        board, self.board = self.board, Board(self.board.read()) if index == 1 else self.board
        pipe = start(self, index)
        self.board = board
        return pipe

    monkeypatch.setattr(AsyncSource, "_start", cut_off)
    words = [
        "collect=async",
        "collect.workers=2",
        "collect.max_staleness=null",
        "collect.order=fifo",
    ]
    words += ["collect.order=fifo", "diagnostics=default", "total_frames=1280"]
    rl_twoclocks.train(run_config("Target", tmp_path, *words))
    events = read_events(tmp_path / "events.jsonl")
    found = [e for e in events if e["kind"] == "alarm" and e["name"] == "worker_version"]
    assert found
    assert found[0]["values"]["worker"] == 1


def test_what_was_published_during_a_slice_is_not_held_against_it() -> None:
    heed = Heed()
    heed.slice(0, time.monotonic_ns(), 0)
    heed.publish(1)
    # Begun before version 1 was there.
    heed.slice(0, between := time.monotonic_ns(), 0)
    assert heed.readings() == {"collect/worker_behind": 0.0, "collect/worker_worst": 0.0}
    heed.slice(0, between, 0)
    heed.publish(2)
    heed.slice(0, time.monotonic_ns(), 1)
    heed.slice(3, time.monotonic_ns(), 0)
    assert heed.readings()["collect/worker_behind"] == 0
    heed.publish(5)
    heed.slice(3, time.monotonic_ns(), 0)
    assert heed.readings() == {"collect/worker_behind": 2.0, "collect/worker_worst": 3.0}
    heed.slice(3, time.monotonic_ns(), 5)
    assert heed.readings()["collect/worker_behind"] == 0


def test_an_older_policy_that_acts_again_is_no_disobedience() -> None:
    heed = Heed()
    heed.slice(0, time.monotonic_ns(), 0)
    for version in (7, 3):  # a ring let an older one act
        heed.publish(version)
    heed.slice(0, time.monotonic_ns(), 7)
    heed.slice(0, time.monotonic_ns(), 3)
    assert heed.readings()["collect/worker_behind"] == 0
    heed.publish(9)
    heed.slice(0, time.monotonic_ns(), 3)
    heed.slice(0, time.monotonic_ns(), 3)
    assert heed.readings()["collect/worker_behind"] == 1
    heed.slice(0, time.monotonic_ns(), 1)
    assert heed.readings()["collect/worker_behind"] > 1


def test_another_rollout_length_gives_no_new_restarts(tmp_path: Path) -> None:
    config = run_config("Target", tmp_path, "collect=async", "collect.max_restarts=1")
    with collecting(config) as (parts, source):
        os.kill(source.workers[0].pid, signal.SIGKILL)
        for _ in range(4):
            source.next(0, None)
        assert source.restarts == 1
        source.close()
        parts.start_source(config)
        again: Any = parts.source
        assert again.readings()["collect/restarts"] == 1
        os.kill(again.workers[0].pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="max_restarts=1"):
            for _ in range(5):
                again.next(0, None)


def test_a_worker_that_was_replaced_is_an_event(tmp_path: Path) -> None:
    from rl_twoclocks.record.events import read_events

    config = run_config("Target", tmp_path, "collect=async", "total_frames=1280")
    start, killed = AsyncSource._start, []

    def wounded(self: AsyncSource, index: int):
        pipe = start(self, index)
        if not killed:
            killed.append(index)
            self.workers[index].kill()
        return pipe

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncSource, "_start", wounded)
        rl_twoclocks.train(config)
    events = [e for e in read_events(tmp_path / "events.jsonl") if e["kind"] == "restart"]
    assert len(events) == 1


def test_told_to_stop_it_stops_waiting(tmp_path: Path) -> None:
    with collecting(run_config("Target", tmp_path, "collect=async", "collect.slots=2")) as (
        _,
        source,
    ):
        wait_for_slices(source, 2)
        os.kill(source.workers[0].pid, signal.SIGSTOP)
        for _ in range(2):
            assert source.next(0, None, lambda: True) is not None
        begin = time.monotonic()
        assert source.next(0, None, lambda: True) is None
        assert time.monotonic() - begin < 5
        os.kill(source.workers[0].pid, signal.SIGCONT)
        assert source.next(0, None) is not None


def test_a_worker_that_hangs_is_replaced_while_others_go_on(tmp_path: Path) -> None:
    words = ["collect=async", "collect.workers=2", "collect.patience=2", "collect.max_restarts=1"]
    with collecting(run_config("Target", tmp_path, *words)) as (_, source):
        source.next(0, None)
        hung = source.workers[0].pid
        os.kill(hung, signal.SIGSTOP)
        begin = time.monotonic()
        while source.readings()["collect/restarts"] == 0:
            assert source.next(0, None) is not None
            assert time.monotonic() - begin < 60
        assert dead_workers([hung])
        assert source.next(0, None) is not None
        os.kill(source.workers[1].pid, signal.SIGSTOP)
        with pytest.raises(WorkerError, match=r"died or hung .*max_restarts=1"):
            while time.monotonic() - begin < 120:
                source.next(0, None)


def test_a_worker_that_waited_for_room_is_not_taken_for_hung_once_it_has_it(
    tmp_path: Path,
) -> None:
    words = ["collect=async", "collect.slots=2", "collect.patience=1"]
    with collecting(run_config("Target", tmp_path, *words)) as (_, source):
        wait_for_slices(source, 2)
        time.sleep(1.5)
        os.kill(source.workers[0].pid, signal.SIGSTOP)
        source.discard()
        source._listen(0.0)
        os.kill(source.workers[0].pid, signal.SIGCONT)
        assert source.readings()["collect/restarts"] == 0


def test_a_job_that_was_suspended_has_not_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_twoclocks.collect import patience

    seen = [0.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: seen[0])
    clock = patience.WakingClock()
    seen[0] = 3.0
    assert clock.now() == 3.0
    seen[0] = 4000.0
    assert clock.now() == 3.0 + patience.LONGEST
    seen[0] = 4001.0
    assert clock.now() == 4.0 + patience.LONGEST


HANGING = """
import os, sys, time, multiprocessing as m
from rl_twoclocks.collect.patience import end_with_starter
def hang(pipe):
    end_with_starter()
    pipe.send(os.getpid())
    while True:
        sum(range(10**9))  # one call that holds the interpreter for seconds
if __name__ == "__main__":
    context = m.get_context(sys.argv[1])
    mine, theirs = context.Pipe()
    context.Process(target=hang, args=(theirs,)).start()
    print(mine.recv(), flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends processes with their starters")
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_worker_whose_simulator_hangs_ends_with_the_learner(tmp_path: Path, method: str) -> None:
    script = tmp_path / "hanging.py"
    script.write_text(HANGING)
    words = [sys.executable, str(script), method]
    learner = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert learner.stdout is not None
    worker = psutil.Process(int(learner.stdout.readline()))
    learner.kill()
    learner.wait()
    ended(worker)


def ended(process: psutil.Process) -> None:
    """Wait until a process is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        limit = time.monotonic() + 10
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < limit
            time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends processes with their starters")
def test_the_pools_workers_end_with_a_learner_that_is_killed(tmp_path: Path) -> None:
    """Also one that is stopped in its simulator, which sees no pipe close."""
    words = ["task=cartpole", "collect=async", "collect.workers=2", "num_envs=4", "eval=off"]
    words += ["total_frames=10_000_000", f"run_dir={tmp_path / 'run'}", "logger=jsonl"]
    learner = start(words, tmp_path)
    try:
        rows, limit = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 90
        while not (rows.exists() and rows.read_text().count("\n") > 2):
            assert learner.poll() is None and time.monotonic() < limit
            time.sleep(0.05)
        pool = psutil.Process(learner.pid).children(recursive=True)
        workers = [process for process in pool if process.ppid() != learner.pid]
        assert len(workers) == 2
        os.kill(workers[0].pid, signal.SIGSTOP)
    finally:
        learner.kill()
        learner.wait()
    for process in pool:
        ended(process)


def test_near_versions_first_needs_a_bound(tmp_path: Path) -> None:
    words = ["collect=async", "collect.max_staleness=null"]
    with pytest.raises(ConfigError, match="old ones would wait for ever"):
        rl_twoclocks.train(run_config("Target", tmp_path / "run", *words))
    settle(run_config("Target", tmp_path / "run", *words, "collect.order=random"))


def test_signals_to_the_whole_group_are_the_learners_business(tmp_path: Path) -> None:
    with collecting(run_config("Target", tmp_path, "collect=async")) as (_, source):
        source.next(0, None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            os.kill(source.workers[0].pid, number)
        for _ in range(4):
            source.next(0, None)
        assert source.readings()["collect/restarts"] == 0


def test_a_run_whose_worker_raises_leaves_a_checkpoint_of_its_last_round(tmp_path: Path) -> None:
    from rl_twoclocks.record import checkpoint

    config = run_config(
        "Raising", tmp_path, "collect=async", "task.kwargs={frame: 90}", "total_frames=1280"
    )
    with pytest.raises(WorkerError, match="fell over"):
        rl_twoclocks.train(config)
    saved = checkpoint.load(checkpoint.listed(tmp_path)[-1])
    assert saved["clocks"]["frames"] == read_metrics(tmp_path / "metrics.jsonl")[-1]["frames"]


def test_a_broken_connection_of_a_simulator_is_not_taken_for_the_learners() -> None:
    from rl_twoclocks.collect.worker import simulator

    for error in (EOFError, BrokenPipeError, ConnectionResetError):
        with pytest.raises(RuntimeError, match="simulator's connection"), simulator():
            raise error("the simulator hung up")


def test_a_publication_that_never_ends_ends_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_twoclocks.collect import Published, shared

    monkeypatch.setattr(shared, "PATIENCE", 0.05)
    board = Board(Published(torch.zeros(4), torch.zeros(2), torch.ones(2), 0))
    board.stamp[0] += 1
    with pytest.raises(EOFError):
        board.read()


def test_arrivals_are_in_order_over_all_workers(tmp_path: Path) -> None:
    words = ["collect=async", "collect.workers=2", "collect.slots=8", "collect.order=fifo"]
    with collecting(run_config("Target", tmp_path, *words)) as (_, source):
        wait_for_slices(source, 8)
        numbers = [n for shelf in source.shelves for n, *_ in shelf.ready()]
        assert len(set(numbers)) == 8
        # By one clock, not by a count of each worker's own.
        assert min(numbers) > 10**6


@pytest.mark.parametrize("collect", ["sync", "async"])
def test_where_rollouts_begin_anew_every_episode_counts(collect: str, tmp_path: Path) -> None:
    """Also those that are cut: the others are those that fail early."""
    words = [f"collect={collect}", "task.kwargs={length: 1000}", "collect.reset_each_rollout=true"]
    rl_twoclocks.train(run_config("Counter", tmp_path, *words, "num_envs=4"))
    row = read_metrics(tmp_path / "metrics.jsonl")[-1]
    columns = 64 // 4
    assert row["rollout/length_mean"] == columns
    assert row["rollout/episodes"] == row["frames"] / columns


@pytest.mark.parametrize("resets", [True, False])
def test_slices_that_begin_with_a_reset_begin_new_sums(resets: bool, tmp_path: Path) -> None:
    from rl_twoclocks.collect.generator import Generator

    words = ["task.kwargs={length: 12}", f"collect.reset_each_rollout={str(resets).lower()}"]
    generator = Generator(run_config("Counter", tmp_path, *words), 0, 2, 8, life=0)
    try:
        ends = [generator.slice()["episode_length"].max().item() for _ in range(3)]
    finally:
        generator.close()
    assert ends == ([8, 8, 8] if resets else [0, 12, 12])
