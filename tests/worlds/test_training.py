"""The worlds in a run: native batch, success, resumption, bad arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import rl_twoclocks
from rl_twoclocks.config import CollectConfig, ConfigError, TaskConfig
from rl_twoclocks.envs import make_env
from rl_twoclocks.evaluate import evaluate
from rl_twoclocks.record import read_metrics

SMALL = (
    "debug=smoke",
    "logger=jsonl",
    "logger.display=none",
    "num_envs=8",
    "clocks.batch_size=256",
    "clocks.update_frequency=256",
    "clocks.update_epochs=1",
    "eval.enabled=true",
    "eval.episodes=4",
    "eval.num_envs=4",
    "optim.anneal_frames=2048",
)


def words(task: str, place: Path, *more: str) -> list[str]:
    limit = "task.kwargs.time_limit=20"
    return [f"task={task}", *SMALL, limit, f"run_dir={place}", *more]


@pytest.mark.parametrize("task", ["maze", "tmaze", "grasp", "inspection"])
def test_success_is_logged_and_a_resumed_run_goes_on_bit_for_bit(task: str, tmp_path: Path) -> None:
    rl_twoclocks.train(rl_twoclocks.compose(words(task, tmp_path / "a", "total_frames=1024")))
    for frames in (512, 1024):
        more = f"total_frames={frames}"
        rl_twoclocks.train(rl_twoclocks.compose(words(task, tmp_path / "b", more)))
    whole, resumed = (read_metrics(tmp_path / k / "metrics.jsonl") for k in "ab")
    assert [r["train/loss"] for r in whole[1:]] == [r["train/loss"] for r in resumed[1:]]
    for rows in (whole, resumed):
        assert 0 <= rows[-1]["eval/success_rate"] <= 1
        assert all(0 <= r["rollout/success_rate"] <= 1 for r in rows if r["rollout/episodes"] > 0)


def test_the_test_split_is_evaluated_beside_the_training_one(tmp_path: Path) -> None:
    more = ["total_frames=256", "eval.changed={split: test}"]
    rl_twoclocks.train(rl_twoclocks.compose(words("maze", tmp_path, *more)))
    last = read_metrics(tmp_path / "metrics.jsonl")[-1]
    assert {"eval/success_rate", "eval/changed_success_rate"} <= last.keys()


@pytest.mark.parametrize("backend", ["native", "gymnasium"])
@pytest.mark.parametrize(
    ("argument", "text"),
    [("size=8", "nearest"), ("view=ful", "Did you mean full"), ("sise=9", "sise")],
)
def test_bad_arguments_are_named_before_anything_runs(
    backend: str, argument: str, text: str, tmp_path: Path
) -> None:
    more = [f"collect.backend={backend}", f"task.kwargs.{argument}", "total_frames=256"]
    with pytest.raises(ConfigError, match=text):
        rl_twoclocks.train(rl_twoclocks.compose(words("maze", tmp_path / "run", *more)))
    assert not (tmp_path / "run").exists()


def test_gymnasiums_vector_gives_the_same_training_as_the_native_batch(tmp_path: Path) -> None:
    losses = []
    for backend in ("native", "gymnasium"):
        more = [f"collect.backend={backend}", "total_frames=768"]
        rl_twoclocks.train(rl_twoclocks.compose(words("maze", tmp_path / backend, *more)))
        rows = read_metrics(tmp_path / backend / "metrics.jsonl")
        losses.append([r["train/loss"] for r in rows[1:]])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("backend", ["native", "gymnasium"])
@pytest.mark.parametrize("knows", [True, False])
def test_evaluation_tells_who_reached_the_goal(backend: str, knows: bool) -> None:
    """A guide that walks down the distances always arrives; one that stands at a wall never does."""
    collect = CollectConfig(backend=backend)
    kwargs = {"size": 7, "time_limit": 200}
    task = TaskConfig(
        name="maze",
        env_id="rl_twoclocks/Maze-v0",
        kwargs=kwargs,
        **{"import": "rl_twoclocks.worlds"},
    )
    env = make_env(task, collect, 3, [1, 2, 3])
    mazes = [env.backend] * 3 if backend == "native" else env._worlds

    def act(observation: torch.Tensor) -> torch.Tensor:
        ways = []
        for number, maze in enumerate(mazes):
            k = number if backend == "native" else 0
            cells = maze.pool.distance[maze.row[k]]
            here = maze.position[k]
            found = [cells[here + move] for move in maze._moves]
            # A wall has distance -1: who knows nothing bumps, or walks away where there is no wall.
            goodness = [-d if d >= 0 else -1000 for d in found] if knows else found
            blind = found.index(-1) if -1 in found else int(np.argmax(found))
            ways.append(int(np.argmax(goodness)) if knows else blind)
        return torch.tensor(ways)

    result = evaluate(act, env, 6, [1, 2, 3])
    env.close()
    assert result.readings()["eval/success_rate"] == float(knows)
    assert (result.mean > 0) is knows
