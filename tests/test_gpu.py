"""On a CUDA device: training works, checkpoints travel to the CPU, and one step agrees with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import rl_twoclocks
from rl_twoclocks.build import Parts, build
from rl_twoclocks.record import checkpoint, read_metrics
from rl_twoclocks.safety import settle
from rl_twoclocks.update import FIELDS, READINGS, Controls

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

U = 512
COMMON = ("debug=smoke", "logger.display=none", "eval=off", "diagnostics=default")


def train(run_dir: Path, *overrides: str) -> list[dict[str, Any]]:
    config = rl_twoclocks.compose([*COMMON, f"run_dir={run_dir}", *overrides])
    rl_twoclocks.train(config)
    return read_metrics(run_dir / "metrics.jsonl")


def make(device: str, *overrides: str) -> Parts:
    config, derived = settle(rl_twoclocks.compose([*COMMON, f"device={device}", *overrides]))
    return build(config, derived)


def minibatch(parts: Parts, size: int = 64) -> tuple[torch.Tensor, ...]:
    """One minibatch of made-up frames, the same at every call, on the device of the parts."""
    draw = torch.Generator().manual_seed(0)
    inputs = parts.env.observation_spec["observation"].shape[-1]
    observation = torch.randn(size, inputs, generator=draw)
    actions = parts.model.log_std.numel()
    action = torch.randn(size, actions, generator=draw)
    behaviour, advantage, target, old_value = torch.randn(4, size, generator=draw)
    values = {
        "observation": observation,
        "action": action,
        "behaviour_log_prob": behaviour - 6,
        "proximal_log_prob": behaviour - 6,
        "advantage": advantage,
        "target": target,
        "old_value": old_value,
    }
    return tuple(values[key].to(parts.flat.vector.device) for key in FIELDS)


@pytest.mark.parametrize("task", ["halfcheetah", "cartpole"])
@pytest.mark.parametrize("collect_device", ["cpu", "cuda"])
def test_training_gives_finite_metrics_and_first_ratios_of_one(
    tmp_path: Path, task: str, collect_device: str
) -> None:
    rows = train(
        tmp_path / "run",
        f"task={task}",
        "device=cuda",
        f"collect.device={collect_device}",
        f"total_frames={4 * U}",
    )
    assert [row["frames"] for row in rows] == [U, 2 * U, 3 * U, 4 * U]
    for row in rows:
        assert [key for key, value in row.items() if value is None] == []
        assert [key for key in row if key.startswith("alarm/")] == []
        assert row["clock/first_ratio_error"] < 1e-5
        assert row["clock/first_ratio_error_max"] < 1e-4
    assert rows[-1]["clock/update_steps"] == 3 * 2 * U // 64


def test_a_stop_by_kl_ends_the_round_at_the_same_step_as_on_the_cpu(tmp_path: Path) -> None:
    # The CPU leaves the loop, the GPU computes on and throws away: the same steps are applied.
    stop = ("algo.target_kl=0.003", "optim.learning_rate=1e-3", "clocks.update_epochs=6")
    steps = {
        device: train(tmp_path / device, f"device={device}", *stop)[-1]
        for device in ("cpu", "cuda")
    }
    assert steps["cpu"]["train/stopped_by_kl"] == steps["cuda"]["train/stopped_by_kl"] == 1
    assert steps["cpu"]["train/steps"] == steps["cuda"]["train/steps"]


def test_a_checkpoint_from_cuda_loads_on_the_cpu_and_goes_on_there(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, "device=cuda")
    saved = checkpoint.load(run / f"checkpoint-{2 * U:012d}.pt")
    assert saved["parameters"].device.type == "cpu"
    rows = train(run, "device=cpu", f"total_frames={3 * U}")
    assert [row["frames"] for row in rows] == [U, 2 * U, 3 * U]
    assert rows[-1]["clock/first_ratio_error_max"] < 1e-4
    assert all(value is not None for value in rows[-1].values())
    assert rows[-1]["clock/update_steps"] > rows[-2]["clock/update_steps"]


@pytest.mark.parametrize(
    "overrides", [("optim=adam",), ("optim=adam_agc",), ("optim=radam",)], ids=lambda o: o[0]
)
def test_steps_on_the_same_minibatches_agree(overrides: tuple[str, ...]) -> None:
    outcomes = {}
    for device in ("cpu", "cuda"):
        parts = make(device, *overrides)
        try:
            update = parts.learner.update
            update.start_round(Controls(3e-4, 0.2, max_grad_norm=0.5))
            data = minibatch(parts)
            readings = torch.stack([update(*data) for _ in range(5)]).cpu()
            outcomes[device] = readings, parts.flat.vector.detach().cpu().clone()
        finally:
            parts.close()
    (readings, parameters), (expected_readings, expected) = outcomes["cuda"], outcomes["cpu"]
    assert torch.equal(readings[:, READINGS.index("applied")], torch.ones(5))
    torch.testing.assert_close(parameters, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(readings, expected_readings, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("graphs", "optim"), [("false", "adam"), ("true", "adam"), ("true", "radam")]
)
def test_the_compiled_step_agrees_with_the_plain_one(graphs: str, optim: str) -> None:
    outcomes = []
    for words in (("compile=false",), ("compile=true", f"cuda_graphs={graphs}")):
        parts = make("cuda", *words, f"optim={optim}")
        try:
            update = parts.learner.update
            update.start_round(Controls(3e-4, 0.2, max_grad_norm=0.5))
            data = minibatch(parts)
            # Kept over all steps, as the learner keeps them until the end of the round.
            readings = torch.stack([update(*data) for _ in range(6)])
            assert math.isfinite(float(readings.sum()))
            outcomes.append((readings.cpu(), parts.flat.vector.detach().cpu().clone()))
        finally:
            parts.close()
    (plain_readings, plain), (readings, parameters) = outcomes
    torch.testing.assert_close(parameters, plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(readings, plain_readings, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("words", [("model=recurrent",), ("algo=twoclocks", "cuda_graphs=true")])
def test_other_steps_compile_too(tmp_path: Path, words: tuple[str, ...]) -> None:
    rows = train(tmp_path / "run", "device=cuda", "compile=true", *words)
    assert all(row["clock/first_ratio_error_max"] < 1e-4 for row in rows)
    assert rows[-1]["clock/update_steps"] > 0


def test_a_run_on_images_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    words = ["task=pong", "num_envs=4", "clocks.batch_size=512", "clocks.update_frequency=512"]
    words += ["clocks.update_epochs=1", "device=cuda", "compile=false"]
    train(tmp_path / "run", *words, f"total_frames={2 * U}")
    rows = train(tmp_path / "run", *words, f"total_frames={4 * U}")
    assert [row["frames"] for row in rows] == [U, 2 * U, 3 * U, 4 * U]
    assert all(row["clock/first_ratio_error_max"] < 1e-4 for row in rows)
