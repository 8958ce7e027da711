"""The worlds in a run: native batch, success, resumption, bad arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import torch

import rl_twoclocks
from rl_twoclocks.collect.generator import Generator
from rl_twoclocks.config import CollectConfig, ConfigError, TaskConfig
from rl_twoclocks.envs import make_env
from rl_twoclocks.evaluate import evaluate
from rl_twoclocks.record import read_metrics
from rl_twoclocks.worlds.tmaze import RIGHT_TURN

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


def test_success_is_told_wherever_the_frames_come_from(tmp_path: Path) -> None:
    more = ["collect=async", "collect.workers=2", "total_frames=1024"]
    rl_twoclocks.train(rl_twoclocks.compose(words("tmaze", tmp_path, *more)))
    rows = read_metrics(tmp_path / "metrics.jsonl")
    shares = [r["rollout/success_rate"] for r in rows if "rollout/return_round" in r]
    assert shares and all(0 <= share <= 1 for share in shares)


def test_a_slice_says_which_episodes_reached_their_goal() -> None:
    config = rl_twoclocks.compose(words("tmaze", Path("unused")))
    generator = Generator(config, 0, num_envs=8, steps=64, life=0)
    try:
        frames = generator.slice()
    finally:
        generator.close()
    ended = frames["terminated"] | frames["truncated"]
    reached = frames["success"][ended]
    assert reached.any() and not reached.all()
    assert torch.equal(reached, frames["reward"][ended] == RIGHT_TURN)


def test_the_test_split_is_evaluated_beside_the_training_one(tmp_path: Path) -> None:
    more = ["total_frames=256", "eval.changed={split: test}"]
    rl_twoclocks.train(rl_twoclocks.compose(words("maze", tmp_path, *more)))
    last = read_metrics(tmp_path / "metrics.jsonl")[-1]
    assert {"eval/success_rate", "eval/changed_success_rate"} <= last.keys()


@pytest.mark.parametrize("backend", ["native", "gymnasium"])
@pytest.mark.parametrize(
    ("argument", "text"),
    [("size=8", "nearest"), ("view=ful", "did you mean full"), ("sise=9", "sise")],
)
def test_bad_arguments_are_named_before_anything_runs(
    backend: str, argument: str, text: str, tmp_path: Path
) -> None:
    more = [f"collect.backend={backend}", f"task.kwargs.{argument}", "total_frames=256"]
    with pytest.raises(ConfigError, match=text):
        rl_twoclocks.train(rl_twoclocks.compose(words("maze", tmp_path / "run", *more)))
    assert not (tmp_path / "run").exists()


def test_a_dense_maze_is_shaped_by_the_learners_own_discount() -> None:
    # With another one a policy may be paid for staying away from the goal.
    for words_ in ([], ["algo.gamma=0.9"]):
        config = rl_twoclocks.compose(["task=maze", "task.kwargs.reward=dense", *words_])
        assert config.task.kwargs["gamma"] == config.algo.gamma


def test_a_time_limit_means_the_same_to_the_batch_and_to_one_environment() -> None:
    config = rl_twoclocks.compose(["task=grasp", "task.max_episode_steps=7"])
    seen = []
    for backend in ("native", "gymnasium"):
        env = make_env(config.task, CollectConfig(backend=backend), 2, [1, 2])
        state = env.reset()
        rewards = []
        for _ in range(7):
            state.set("action", torch.zeros(2, 4))
            stepped, state = env.step_and_maybe_reset(state)
            rewards.append(stepped["next", "reward"].clone())
            left = stepped["next", "observation"][:, -1].clone()
        seen.append((torch.stack(rewards), left, stepped["next", "terminated"].clone()))
        env.close()
    for native, gymnasium in zip(*seen, strict=True):
        torch.testing.assert_close(native, gymnasium)
    assert seen[0][2].all()


def test_changed_conditions_may_have_another_time_limit() -> None:
    task = rl_twoclocks.compose(["task=maze", "task.max_episode_steps=100"]).task
    changed = task.model_copy(update={"kwargs": task.kwargs | {"time_limit": 20}})
    env = make_env(changed, CollectConfig(backend="native"), 1, [0])
    assert env.backend.time_limit == 20


@pytest.mark.parametrize("collect", ["envpool", "processes"])
def test_a_way_to_collect_that_a_world_does_not_have_is_refused(
    collect: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"leave collect={collect} out"):
        rl_twoclocks.train(
            rl_twoclocks.compose(words("maze", tmp_path / "run", f"collect={collect}"))
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("task", "changed", "shape"),
    [("maze", "{size: 7}", (112, 112)), ("maze", "{}", (208, 208)), ("grasp", "{}", (360, 480))],
)
def test_a_video_shows_what_was_asked_for_without_a_display(
    task: str, changed: str, shape: tuple[int, int], tmp_path: Path
) -> None:
    run = words(task, tmp_path / "run", "total_frames=256", "eval=off")
    result = rl_twoclocks.train(rl_twoclocks.compose(run))
    command = [
        "-m",
        "rl_twoclocks.eval",
        f"checkpoint={result.checkpoint}",
        "episodes=1",
        "num_envs=1",
    ]
    # A process of its own: what draws is chosen when MuJoCo is imported.
    bare = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MUJOCO_GL")}

    def drawn(**told: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command, "video=true", f"changed={changed}"],
            env=bare | told, capture_output=True, text=True, check=False,
        )  # fmt: skip

    found = drawn()
    if found.returncode and drawn(MUJOCO_GL="egl").returncode:
        pytest.skip("this machine has no EGL")
    assert found.returncode == 0, found.stderr
    stem = Path(str(result.checkpoint)).stem
    path = tmp_path / "run" / f"{stem}{'' if changed == '{}' else '-changed'}.mp4"
    assert iio.immeta(path)["size"] == shape[::-1]


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
