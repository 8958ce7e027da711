from __future__ import annotations

import json
from pathlib import Path

import pytest

import rl_twoclocks
from rl_twoclocks.config_commands import EvalCommandConfig
from rl_twoclocks.eval import evaluate_checkpoint
from rl_twoclocks.record import read_metrics
from tests.envs import run_config

SMALL = ("eval.enabled=true", "eval.episodes=2", "eval.num_envs=2", "total_frames=256")


def test_changed_conditions_are_evaluated_beside_those_of_training(tmp_path: Path) -> None:
    plain = rl_twoclocks.train(run_config("Counter", tmp_path / "plain", *SMALL))
    config = run_config("Counter", tmp_path / "both", *SMALL, "eval.changed={length: 3}")
    both = rl_twoclocks.train(config)
    last = read_metrics(tmp_path / "both" / "metrics.jsonl")[-1]
    assert last["eval/return_mean"] == both.return_mean == plain.return_mean == 8.0
    assert last["eval/changed_return_mean"] == 3.0
    assert not any("changed" in k for k in read_metrics(tmp_path / "plain" / "metrics.jsonl")[-1])


def test_the_command_evaluates_under_changed_conditions(tmp_path: Path) -> None:
    result = rl_twoclocks.train(run_config("Counter", tmp_path, *SMALL))
    command = EvalCommandConfig(
        checkpoint=str(result.checkpoint), episodes=2, num_envs=2, changed={"length": 5}
    )
    evaluate_checkpoint(command)
    path = Path(str(result.checkpoint))
    stored = json.loads(path.with_name(f"eval-changed-{path.stem}.json").read_text())
    assert stored["changed"] == {"length": 5}
    assert not path.with_name(f"eval-{path.stem}.json").exists()
    assert stored["deterministic"]["eval/return_mean"] == 5.0


@pytest.mark.parametrize("key", ["eval.changed", "task.eval_kwargs"])
def test_conditions_that_the_task_does_not_have_stop_before_anything_runs(
    tmp_path: Path, key: str
) -> None:
    config = run_config("Counter", tmp_path / "run", *SMALL, f"{key}={{lenght: 3}}")
    with pytest.raises(rl_twoclocks.ConfigError, match="lenght"):
        rl_twoclocks.train(config)
    assert not (tmp_path / "run").exists()
