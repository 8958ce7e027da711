"""A checkpoint is there whole or not at all, and a damaged one is never skipped in silence."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_twoclocks.config_commands import EvalCommandConfig
from rl_twoclocks.eval import evaluate_checkpoint
from rl_twoclocks.export import deployed
from rl_twoclocks.findings import of_window
from rl_twoclocks.record import checkpoint
from rl_twoclocks.record.checkpoint import CheckpointError
from tests.command_envs import ROUND, differing, newest, rows, run

STATE = {"weights": torch.arange(5.0), "frames": 7, "names": ["a", "b"], "none": None}


class Killed(BaseException):
    pass


def damage(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, STATE, 7, keep_last=2)
    assert differing(checkpoint.load(path), STATE) == []


def test_a_kill_while_writing_leaves_the_old_ones_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, STATE, 100, keep_last=2)

    def half(state: Any, file: Any) -> None:
        file.write(b"half of a file")
        raise Killed

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(Killed):
        checkpoint.save(tmp_path, STATE, 200, keep_last=1)
    monkeypatch.undo()
    assert [p.name for p in checkpoint.listed(tmp_path)] == ["checkpoint-000000000100.pt"]
    assert differing(checkpoint.load_newest(tmp_path), STATE) == []


def test_a_kill_before_the_rename_leaves_nothing_that_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Path] = []

    def killed(source: Path, target: Path) -> None:
        copy = source.with_name(source.name)
        left.append(copy)
        data = copy.read_bytes()
        raise Killed(data)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(Killed) as caught:
        checkpoint.save(tmp_path, STATE, 100, keep_last=2)
    left[0].write_bytes(caught.value.args[0])  # as a SIGKILL would leave it
    assert checkpoint.listed(tmp_path) == []
    assert checkpoint.load_newest(tmp_path) is None


def test_an_overwritten_checkpoint_is_old_or_new_and_never_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "best.pt"
    checkpoint.write(path, STATE)

    def half(state: Any, file: Any) -> None:
        file.write(b"half")
        raise Killed

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(Killed):
        checkpoint.write(path, {"frames": 8})
    monkeypatch.undo()
    assert checkpoint.load(path)["frames"] == 7


@pytest.mark.parametrize(
    "name",
    [
        ".partial-12-checkpoint-000000000300.pt",
        "checkpoint-000000000300.pt.tmp",
        "checkpoint-000000000300.pt.part",
        "checkpoint-300.pt",
        "checkpoint-000000000300-copy.pt",
        "best.pt",
        "checkpoint-00000000030x.pt",
    ],
)
def test_a_partial_or_foreign_name_is_never_loaded(tmp_path: Path, name: str) -> None:
    checkpoint.save(tmp_path, STATE, 100, keep_last=2)
    (tmp_path / name).write_bytes(b"no checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = checkpoint.load_newest(tmp_path)
    assert state is not None
    assert [p.name for p in checkpoint.listed(tmp_path)] == ["checkpoint-000000000100.pt"]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for frames in (100, 200, 1000, 20_000):
        checkpoint.save(tmp_path, STATE, frames, keep_last=2)
    assert names(tmp_path) == ["checkpoint-000000001000.pt", "checkpoint-000000020000.pt"]


@pytest.mark.parametrize("keep", [1, 2])
def test_what_was_just_written_is_never_the_one_dropped(tmp_path: Path, keep: int) -> None:
    for frames in (1000, 2000, 3000):
        (tmp_path / f"checkpoint-{frames:012d}.pt").write_bytes(b"damaged")
    path = checkpoint.save(tmp_path, STATE, 500, keep_last=keep)
    assert path.is_file()


def test_a_damaged_newest_falls_back_to_the_one_before_with_a_warning(tmp_path: Path) -> None:
    for frames in (100, 200):
        checkpoint.save(tmp_path, STATE | {"frames": frames}, frames, keep_last=2)
    damage(tmp_path / "checkpoint-000000000200.pt")
    with pytest.warns(UserWarning, match=r"checkpoint-000000000200\.pt cannot be read"):
        state = checkpoint.load_newest(tmp_path)
    assert state is not None
    assert state["frames"] == 100


def test_an_empty_newest_falls_back_too(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, STATE, 100, keep_last=2)
    (tmp_path / "checkpoint-000000000200.pt").touch()
    with pytest.warns(UserWarning, match="cannot be read"):
        assert checkpoint.load_newest(tmp_path) is not None


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError()])
def test_a_read_that_fails_for_the_moment_passes_over_nothing(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for frames in (1, 2):
        checkpoint.save(tmp_path, STATE, frames, keep_last=2)

    def failing(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(torch, "load", failing)
    with pytest.raises(RuntimeError, match=r"checkpoint-000000000002\.pt could not be read"):
        checkpoint.load_newest(tmp_path)


def test_no_readable_checkpoint_is_an_error_and_no_new_start(tmp_path: Path) -> None:
    for frames in (100, 200):
        damage(checkpoint.save(tmp_path, STATE, frames, keep_last=2))
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="none of the 2"):
        checkpoint.load_newest(tmp_path)


def test_no_checkpoint_at_all_is_a_new_start(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path) is None


def test_code_in_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "exploded"),))

    path = tmp_path / "checkpoint-000000000100.pt"
    torch.save({"weights": Bomb()}, path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(path)
    assert not (tmp_path / "exploded").exists()


def test_a_checkpoint_cut_anywhere_is_damaged_and_the_one_before_counts(tmp_path: Path) -> None:
    state = {"weights": torch.arange(40_000.0), "more": [torch.ones(300, k) for k in range(1, 9)]}
    checkpoint.save(tmp_path, state, 1, keep_last=2)
    path = checkpoint.save(tmp_path, state, 2, keep_last=2)
    data = path.read_bytes()
    for size in [*range(0, len(data), 997), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.load(path)
    with pytest.warns(UserWarning, match="trying the one before"):
        assert checkpoint.load_newest(tmp_path) is not None


def test_what_holds_no_state_is_no_checkpoint(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoint.load(tmp_path / "list.pt")


def test_a_runs_checkpoints_load_without_executing_code(tmp_path: Path) -> None:
    run(tmp_path, "task=halfcheetah", "eval=default")
    files = sorted(tmp_path.glob("*.pt"))
    assert [f.name for f in files] == [
        "best.pt",
        "checkpoint-000000000128.pt",
        "checkpoint-000000000256.pt",
    ]
    for file in files:
        state = torch.load(file, weights_only=True)
        assert state["environments"] is not None
        assert torch.isfinite(state["parameters"]).all()


@pytest.mark.parametrize("optimizer", ["optim=adam", "optim=radam", "optim.name=AdamW"])
def test_every_optimizers_state_loads_without_executing_code(
    tmp_path: Path, optimizer: str
) -> None:
    run(tmp_path, "task=cartpole", optimizer)
    assert torch.load(checkpoint.listed(tmp_path)[-1], weights_only=True)["update"]


def test_a_run_goes_on_from_the_last_good_checkpoint(tmp_path: Path) -> None:
    run(tmp_path, "task=cartpole", rounds=3)
    expected = newest(tmp_path)["parameters"]
    damage(tmp_path / f"checkpoint-{3 * ROUND:012d}.pt")
    with pytest.warns(UserWarning, match="cannot be read"):
        result = run(tmp_path, "task=cartpole", rounds=3)
    assert result.rounds == 3
    assert [row["clock/policy_version"] for row in rows(tmp_path)] == [1, 2, 3]
    assert torch.equal(newest(tmp_path)["parameters"], expected)


def test_a_run_with_no_good_checkpoint_fails_and_keeps_its_files(tmp_path: Path) -> None:
    run(tmp_path, "task=cartpole")
    for path in checkpoint.listed(tmp_path):
        damage(path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="can be read"):
        run(tmp_path, "task=cartpole", rounds=3)
    after = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert {k: v for k, v in after.items() if k.endswith((".pt", "jsonl"))} == {
        k: v for k, v in before.items() if k.endswith((".pt", "jsonl"))
    }


@pytest.mark.parametrize(
    "lost", ["normalizer", "parameters", "clocks", "update", "window", "random"]
)
def test_an_incomplete_checkpoint_names_what_it_lacks(tmp_path: Path, lost: str) -> None:
    run(tmp_path, "task=cartpole")
    path = checkpoint.listed(tmp_path)[-1]
    state = checkpoint.load(path)
    del state[lost]
    for old in checkpoint.listed(tmp_path):
        old.unlink()
    checkpoint.write(path, state)
    with pytest.raises(CheckpointError, match=lost):
        run(tmp_path, "task=cartpole", rounds=3)


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "one", "task=cartpole", "model.hidden=[16]")
    run(tmp_path / "two", "task=cartpole")
    for path in checkpoint.listed(tmp_path / "one"):
        checkpoint.write(tmp_path / "two" / path.name, checkpoint.load(path))
    with pytest.raises(CheckpointError, match="another network"):
        run(tmp_path / "two", "task=cartpole", rounds=3)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: evaluate_checkpoint(EvalCommandConfig(checkpoint=str(path))),
        lambda path: deployed(checkpoint.load(path)),
        of_window,
    ],
    ids=["eval", "export", "doctor"],
)
def test_a_checkpoint_of_another_version_is_named(tmp_path: Path, read: Callable) -> None:
    """Of an older format, or with a key that this version does not know: the same for every reader."""
    run(tmp_path / "run", "task=pendulum", rounds=1)
    saved = checkpoint.load(checkpoint.listed(tmp_path / "run")[-1])

    def refused(changed: dict, match: str) -> None:
        place = tmp_path / "old.pt"
        torch.save(changed, place)
        with pytest.raises(CheckpointError, match=match):
            read(place)

    refused(saved | {"format": 1}, "format 1, this version reads")
    older = saved["config"] | {"interventions": {**saved["config"]["interventions"], "gone": 1}}
    refused(saved | {"config": older}, "another version of rl_twoclocks: interventions.gone")
