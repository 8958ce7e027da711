"""A run that was interrupted ends bit for bit like one that was not (case 8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_twoclocks import compose, state
from rl_twoclocks.build import build
from rl_twoclocks.collect.source import SyncSource
from rl_twoclocks.envs import WorkerError
from rl_twoclocks.learner import Learner
from rl_twoclocks.record import checkpoint
from rl_twoclocks.safety import settle
from rl_twoclocks.schedule import Schedule
from rl_twoclocks.update import Controls, Update
from tests.command_envs import ROUND, differing, newest, rows, run, tiny, walk

ANNEAL = f"optim.anneal_frames={6 * ROUND}"
KEEP = "checkpoint.keep_last=20"
OLD_WINDOW = [f"clocks.batch_size={4 * ROUND}", f"clocks.update_frequency={ROUND}"]
KINDS = {
    "halfcheetah": ["task=halfcheetah", "task.max_episode_steps=50"],
    "pendulum": ["task=pendulum", "task.max_episode_steps=50"],
    "cartpole": ["task=cartpole"],
    "hopper, window of four rollouts": ["task=hopper", *OLD_WINDOW],
}
VARIANTS = {
    "torch optimizer": ["optim=radam"],
    "reset each rollout": ["collect.reset_each_rollout=true"],
    "no normalising": ["normalize=none"],
    "clip schedule": ["algo.clip_schedule=linear", "algo.target_kl=0.01"],
}


def file(folder: Path, rounds: int) -> Path:
    return folder / f"checkpoint-{rounds * ROUND:012d}.pt"


def whole_and_interrupted(tmp_path: Path, *overrides: str) -> tuple[Path, Path]:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, *overrides, ANNEAL, KEEP, rounds=6)
    run(parts, *overrides, ANNEAL, KEEP, rounds=3)
    run(parts, *overrides, ANNEAL, KEEP, rounds=6)
    return whole, parts


def assert_equal_ends(whole: Path, parts: Path) -> None:
    assert [row["clock/policy_version"] for row in rows(parts)] == [1, 2, 3, 4, 5, 6]
    for one, other in zip(rows(whole), rows(parts), strict=True):
        assert one == other
    a, b = newest(whole), newest(parts)
    assert torch.equal(a["parameters"], b["parameters"])
    for key in ("update", "normalizer", "random", "window", "episodes", "clocks", "environments"):
        assert differing(a[key], b[key], key) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_like_one_that_was_not_interrupted(tmp_path: Path, kind: str) -> None:
    whole, parts = whole_and_interrupted(tmp_path, *KINDS[kind])
    assert checkpoint.load(file(parts, 3))["environments"] is not None
    assert_equal_ends(whole, parts)
    first, last = checkpoint.load(file(whole, 3)), newest(whole)
    assert not torch.equal(first["parameters"], last["parameters"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", VARIANTS)
def test_a_resumed_run_of_another_kind_ends_the_same(tmp_path: Path, kind: str) -> None:
    assert_equal_ends(*whole_and_interrupted(tmp_path, "task=cartpole", *VARIANTS[kind]))


def test_a_stated_episode_boundary_gives_equality_without_simulator_state(tmp_path: Path) -> None:
    boundary = ["checkpoint.episode_boundary=true", f"checkpoint.every_frames={3 * ROUND}"]
    whole, parts = whole_and_interrupted(tmp_path, *walk(), *boundary)
    assert newest(parts)["environments"] is None
    assert_equal_ends(whole, parts)


def test_a_boundary_in_a_window_of_four_rollouts_is_a_cut(tmp_path: Path) -> None:
    boundary = ["checkpoint.episode_boundary=true", f"checkpoint.every_frames={3 * ROUND}"]
    whole, parts = whole_and_interrupted(tmp_path, *walk(), *OLD_WINDOW, *boundary)
    assert_equal_ends(whole, parts)
    cut = newest(whole)["window"]["cut"]
    steps = ROUND // 2
    assert cut[:, [steps - 1, -1]].all()
    assert cut.sum() == 2 * cut.shape[0]


def test_without_a_boundary_new_episodes_begin_and_nothing_is_repeated(tmp_path: Path) -> None:
    _, parts = whole_and_interrupted(tmp_path, *walk())
    assert [row["clock/frames"] for row in rows(parts)] == [ROUND * k for k in range(1, 7)]


def test_a_crash_repeats_no_row_and_changes_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["task=cartpole", ANNEAL, KEEP, f"checkpoint.every_frames={3 * ROUND}"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, *overrides, rounds=6)
    learn, calls = Learner.learn, []

    def crash(self: Learner, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("power cut")
        return learn(self, *args)

    monkeypatch.setattr(Learner, "learn", crash)
    with pytest.raises(RuntimeError, match="power cut"):
        run(parts, *overrides, rounds=6)
    assert len(rows(parts)) == 4
    assert [p.name for p in checkpoint.listed(parts)] == [file(parts, 3).name]
    assert "power cut" in (parts / "error.txt").read_text()

    def no_crash(self: Learner, *args: Any) -> Any:
        # Once it goes on it is no crashed run any more.
        assert not (parts / "error.txt").exists()
        return learn(self, *args)

    monkeypatch.setattr(Learner, "learn", no_crash)
    run(parts, *overrides, rounds=6)
    assert_equal_ends(whole, parts)
    assert not (parts / "error.txt").exists()


# What parts hold; the rest of a checkpoint belongs to the sitting.
# What the session adds to the state of the parts.
STATE_KEYS = state._KEYS


@pytest.mark.parametrize(
    "optimizer", ["optim=adam", pytest.param("optim=radam", marks=pytest.mark.slow)]
)
def test_restoring_puts_back_everything_that_was_captured(tmp_path: Path, optimizer: str) -> None:
    overrides = ["task=halfcheetah", optimizer]
    run(tmp_path, *overrides, rounds=3)
    saved = newest(tmp_path)
    config, derived = settle(compose(tiny(tmp_path, *overrides, rounds=3)))
    parts = build(config, derived)
    state.restore(parts, saved)
    parts.start_source(config)
    state.restore_random(parts, saved)
    extra = {key: saved[key] for key in saved.keys() - STATE_KEYS}
    again = state.capture(parts, config, extra)
    parts.close()
    assert differing(saved, again) == []
    assert saved["normalizer"]["observation"]["count"] == 3 * ROUND


def test_the_boundary_row_says_what_the_checkpoint_holds(tmp_path: Path) -> None:
    run(tmp_path, "task=pendulum", KEEP, rounds=3)
    saved, row = newest(tmp_path), rows(tmp_path)[-1]
    assert saved["clocks"]["policy_version"] == row["clock/policy_version"] == 3
    assert saved["clocks"]["frames"] == row["frames"] == 3 * ROUND
    # The first round calibrates the normaliser; two rounds of 2 passes over 4 minibatches follow.
    assert saved["clocks"]["update_steps"] == row["clock/update_steps"] == 16
    assert float(saved["update"]["steps"]) == 16


def rates_of(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seen: list[float] = []
    start = Update.start_round

    def spy(self: Update, controls: Controls) -> None:
        seen.append(controls.learning_rate)
        start(self, controls)

    monkeypatch.setattr(Update, "start_round", spy)
    return seen


def test_extending_a_run_with_anneal_frames_keeps_its_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = rates_of(monkeypatch)
    run(tmp_path, "task=cartpole", ANNEAL, rounds=3)
    run(tmp_path, "task=cartpole", ANNEAL, rounds=8)
    # Round k ends at 128 k and is full at the first; the first only calibrates. 0 after the end.
    expected = [3e-4 * max(0.0, 1 - (k - 1) / 6) for k in range(2, 9)]
    assert seen == pytest.approx(expected)


def test_extending_a_run_without_anneal_frames_stretches_its_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = rates_of(monkeypatch)
    run(tmp_path, "task=cartpole", rounds=3)
    run(tmp_path, "task=cartpole", rounds=6)
    assert seen[:2] == pytest.approx([3e-4 * 2 / 3, 3e-4 * 1 / 3])
    assert seen[2:] == pytest.approx([3e-4 * 3 / 6, 3e-4 * 2 / 6, 3e-4 * 1 / 6])


def test_the_schedule_is_full_at_first_and_never_zero_within_the_run() -> None:
    config = compose(tiny("x", "task=cartpole", rounds=4))
    rates = [Schedule(config)(ROUND * k).learning_rate for k in range(1, 5)]
    assert rates == pytest.approx([3e-4, 2.25e-4, 1.5e-4, 0.75e-4])


def trained(directory: Path, *overrides: str) -> tuple[list[dict], torch.Tensor]:
    run(directory, *overrides, rounds=3)
    return rows(directory), newest(directory)["parameters"]


@pytest.mark.parametrize("task", ["halfcheetah", pytest.param("cartpole", marks=pytest.mark.slow)])
def test_one_seed_gives_one_result_and_another_seed_another(tmp_path: Path, task: str) -> None:
    torch.manual_seed(0)
    first = trained(tmp_path / "1", f"task={task}")
    torch.manual_seed(1)
    torch.rand(7)
    second = trained(tmp_path / "2", f"task={task}")
    other = trained(tmp_path / "3", f"task={task}", "seed=2")
    assert first[0] == second[0]
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[1], other[1])
    assert first[0] != other[0]


WATCHERS = {
    "diagnostics off": ["diagnostics=off"],
    "diagnostics minimal": ["diagnostics=minimal"],
    "diagnostics full": ["diagnostics=full"],
    "other thresholds": ["diagnostics.thresholds=seed", "diagnostics.every=1"],
    "evaluation": ["eval=default", f"eval.every_frames={ROUND}"],
    "evaluation by samples": ["eval=default", "eval.deterministic=false"],
    "tensorboard": ["logger=tensorboard", "logger.display=none"],
    "fewer records": ["logger.log_freq=3"],
    "display": ["logger.display=plain"],
    "more checkpoints": [f"checkpoint.every_frames={ROUND}"],
    "fewer checkpoints": ["checkpoint.every_frames=1000000"],
}


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unwatched")
    run(folder, "task=hopper", *OLD_WINDOW, rounds=3)
    return folder


@pytest.mark.parametrize("watcher", WATCHERS)
def test_watching_changes_no_bit_of_training(tmp_path: Path, unwatched: Path, watcher: str) -> None:
    run(tmp_path, "task=hopper", *OLD_WINDOW, *WATCHERS[watcher], rounds=3)
    one, other = newest(unwatched), newest(tmp_path)
    for key in ("parameters", "update", "normalizer", "random", "window", "environments"):
        assert differing(one[key], other[key], key) == []
    a, b = rows(unwatched)[-1], rows(tmp_path)[-1]
    shared = a.keys() & b.keys()
    assert len(shared) > 20
    assert {key: a[key] for key in shared} == {key: b[key] for key in shared}


def test_interventions_off_is_plain_training_where_none_acts(tmp_path: Path) -> None:
    one = trained(tmp_path / "on", "task=cartpole", "interventions=guard")
    other = trained(tmp_path / "off", "task=cartpole", "interventions=off", "diagnostics=off")
    assert torch.equal(one[1], other[1])


def test_a_simulator_lost_in_mid_round_saves_no_simulator_of_mid_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is saved then is the last round's end, and the simulators have gone on since."""
    rollouts, collect = iter(range(10)), SyncSource.next

    def fails(self: SyncSource, *args: Any) -> Any:
        found = collect(self, *args)
        if next(rollouts) == 2:
            raise WorkerError("the simulator is gone")
        return found

    rare = ["task=cartpole", "checkpoint.every_frames=1000000"]
    with monkeypatch.context() as patched:
        patched.setattr(SyncSource, "next", fails)
        with pytest.raises(WorkerError, match="is gone"):
            run(tmp_path, *rare, rounds=4)
    saved = newest(tmp_path)
    assert saved["environments"] is None
    assert saved["clocks"]["frames"] == 2 * ROUND
    assert run(tmp_path, *rare, rounds=4).rounds == 4
    assert len(rows(tmp_path)) == 4
