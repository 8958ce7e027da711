from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rl_twoclocks
from rl_twoclocks.cli import explain
from rl_twoclocks.envs import NonFiniteError, make_env
from rl_twoclocks.record import read_metrics
from rl_twoclocks.record.checkpoint import listed
from rl_twoclocks.seeding import env_seeds
from rl_twoclocks.update import Update
from tests.envs import REPOSITORY, overrides, run_config

BAD_ENV = 2
STEPS = 16  # decisions of each environment per round


def poison(quantity: str, value: str, frame: int, purpose: str = "environment") -> tuple[str, ...]:
    seed = env_seeds(1, purpose, 4)[BAD_ENV]
    settings = {"quantity": quantity, "value": f"'{value}'", "frame": frame, "bad_seed": seed}
    kwargs = [f"++task.kwargs.{key}={setting}" for key, setting in settings.items()]
    return (*kwargs, "checkpoint.every_frames=64")


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def assert_last_checkpoint_is_good(path: Path, frames: int) -> None:
    last = listed(path)[-1]
    assert last.name == f"checkpoint-{frames:012d}.pt"
    state = torch.load(last, weights_only=True)
    found = [t for t in tensors(state) if t.is_floating_point()]
    assert len(found) > 5
    assert all(torch.isfinite(t).all() for t in found)


@pytest.fixture
def steps(monkeypatch) -> list[Tensor]:
    """Parameters after every optimizer step that was asked for."""
    seen: list[Tensor] = []
    call = Update.__call__

    def recorded(self, *minibatch):
        result = call(self, *minibatch)
        seen.append(self.flat.vector.clone())
        return result

    monkeypatch.setattr(Update, "__call__", recorded)
    return seen


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        ("observation", "nan"),
        ("observation", "inf"),
        ("reward", "nan"),
        ("reward", "inf"),
        ("reward", "-inf"),
    ],
)
def test_a_bad_value_in_one_environment_ends_the_run_and_is_named(
    quantity: str, value: str, tmp_path: Path, steps: list[Tensor]
) -> None:
    config = run_config("Poison", tmp_path, *poison(quantity, value, 2 * STEPS + 3))
    with pytest.raises(NonFiniteError) as error:
        rl_twoclocks.train(config)
    text = str(error.value)
    assert f"{quantity} of environment {BAD_ENV} is not finite" in text
    assert f"decision {2 * STEPS + 3}" in text
    assert "round 3" in text
    assert "128 frames" in text
    assert explain(error.value) == 3
    assert len(steps) == 4
    assert_last_checkpoint_is_good(tmp_path, 128)
    saved = torch.load(listed(tmp_path)[-1], weights_only=True)
    assert torch.equal(saved["parameters"], steps[-1])
    assert text in (tmp_path / "error.txt").read_text()
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize("quantity", ["observation", "reward"])
def test_a_value_beyond_single_precision_is_not_finite_either(
    quantity: str, tmp_path: Path, steps: list[Tensor]
) -> None:
    config = run_config("Poison", tmp_path, *poison(quantity, "1e39", 2 * STEPS + 3))
    with pytest.raises(NonFiniteError, match=f"{quantity} of environment {BAD_ENV}.*round 3"):
        rl_twoclocks.train(config)
    assert len(steps) == 4
    assert_last_checkpoint_is_good(tmp_path, 128)


def test_a_large_but_finite_value_does_not_end_the_run(tmp_path: Path) -> None:
    config = run_config("Poison", tmp_path, *poison("reward", "1e9", STEPS + 3))
    assert rl_twoclocks.train(config).frames == 256
    assert_last_checkpoint_is_good(tmp_path, 256)


def test_a_bad_first_observation_is_named_with_its_round(tmp_path: Path) -> None:
    config = run_config("Poison", tmp_path, *poison("observation", "nan", 0))
    with pytest.raises(NonFiniteError, match=f"observation of environment {BAD_ENV}.*round 1"):
        rl_twoclocks.train(config)
    assert listed(tmp_path) == []


def test_no_checkpoint_is_promised_where_there_is_none(tmp_path: Path) -> None:
    config = run_config("Poison", tmp_path, *poison("reward", "nan", 3))
    with pytest.raises(NonFiniteError) as error:
        rl_twoclocks.train(config)
    assert listed(tmp_path) == []
    assert "newest good checkpoint is at" not in str(error.value)


def test_a_bad_value_in_evaluation_is_told_from_training(tmp_path: Path) -> None:
    bad = poison("observation", "nan", 5, purpose="evaluation")
    more = ("eval.enabled=true", "eval.episodes=4", "eval.num_envs=4", "eval.every_frames=128")
    with pytest.raises(NonFiniteError, match="evaluation"):
        rl_twoclocks.train(run_config("Poison", tmp_path, *bad, *more))


def nan_loss(monkeypatch, bad_calls: set[int]) -> None:
    calls = 0
    loss = Update.loss

    def broken(self, *arguments, **kwargs):
        nonlocal calls
        calls += 1
        value, aux = loss(self, *arguments, **kwargs)
        return (value * math.nan if calls in bad_calls else value), aux

    monkeypatch.setattr(Update, "loss", broken)


@pytest.mark.parametrize("optimizer", ["Adam", "RAdam"])
def test_a_loss_that_is_not_finite_ends_the_run_before_its_step(
    optimizer: str, monkeypatch, tmp_path: Path, steps: list[Tensor]
) -> None:
    nan_loss(monkeypatch, {8})
    more = ("checkpoint.every_frames=64", f"optim.name={optimizer}", "optim.kwargs={}")
    with pytest.raises(NonFiniteError) as error:
        rl_twoclocks.train(run_config("Target", tmp_path, *more))
    assert re.search(r"loss or gradient .* pass 2, minibatch 2.*round 3", str(error.value))
    assert len(steps) == 8
    assert torch.equal(steps[7], steps[6])
    assert_last_checkpoint_is_good(tmp_path, 128)


@pytest.mark.parametrize("optimizer", ["Adam", "RAdam"])
def test_skip_counts_what_it_skips_and_goes_on(
    optimizer: str, monkeypatch, tmp_path: Path, steps: list[Tensor]
) -> None:
    nan_loss(monkeypatch, {2, 7, 8})
    more = ("interventions.on_nonfinite=skip", f"optim.name={optimizer}", "optim.kwargs={}")
    result = rl_twoclocks.train(run_config("Target", tmp_path, *more))
    assert result.frames == 256
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row.get("train/steps_skipped", 0) for row in rows] == [0, 1, 2, 0]
    assert [row["clock/skipped_steps"] for row in rows] == [0, 1, 3, 3]
    assert [row["clock/update_steps"] for row in rows] == [0, 3, 5, 9]
    assert all(row.get("train/stopped_by_kl", 0) == 0 for row in rows)
    assert all(math.isfinite(row["train/loss"]) for row in rows[1:])
    assert torch.equal(steps[1], steps[0])
    assert torch.equal(steps[6], steps[5]) and torch.equal(steps[7], steps[5])
    assert not torch.equal(steps[8], steps[7])
    assert_last_checkpoint_is_good(tmp_path, 256)


def test_a_round_of_skipped_steps_alone_leaves_the_parameters(
    monkeypatch, tmp_path: Path, steps: list[Tensor]
) -> None:
    nan_loss(monkeypatch, {5, 6, 7, 8})
    rl_twoclocks.train(run_config("Target", tmp_path, "interventions.on_nonfinite=skip"))
    assert all(torch.equal(step, steps[3]) for step in steps[4:8])
    row = read_metrics(tmp_path / "metrics.jsonl")[2]
    assert (row["train/steps"], row["train/steps_skipped"]) == (0, 4)


def test_the_environment_names_the_first_bad_one_itself() -> None:
    config = run_config("Poison", Path("unused"), *poison("reward", "nan", 1))
    env = make_env(config.task, config.collect, 4, env_seeds(1, "environment", 4))
    state = env.reset()
    state["action"] = torch.zeros(4, 2)
    with pytest.raises(NonFiniteError, match=f"reward of environment {BAD_ENV} .* decision 1"):
        env.step_and_maybe_reset(state)
    env.close()


@pytest.mark.slow
def test_the_command_exits_with_code_three(tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = overrides("Poison", run, *poison("observation", "nan", STEPS + 3))
    done = subprocess.run(
        [sys.executable, "-m", "rl_twoclocks.train", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 3
    assert f"observation of environment {BAD_ENV} is not finite" in done.stderr
    assert "round 2" in done.stderr
    assert "Traceback" not in done.stderr
    assert_last_checkpoint_is_good(run, 64)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["frames"] for row in rows] == [64]
