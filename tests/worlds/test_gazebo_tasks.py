"""Gazebo's tasks as configurations: inside their row, checked before any work; needs no Gazebo."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest

import rl_twoclocks
from rl_twoclocks import ConfigError, compose
from rl_twoclocks.config import Config
from rl_twoclocks.safety import SAFE_PASSES, SAFE_TABLE, Derived, settle
from rl_twoclocks.worlds.gazebo.installation import VARIABLE
from rl_twoclocks.worlds.gazebo.world import shipped

SHIPPED = ["gazebo_cartpole", "gazebo_arm", "gazebo_diffdrive"]
OWN = ["task=gazebo", "task.joints=[slider]", "task.rules=my_package:Balance"]


@pytest.mark.parametrize("task", [*SHIPPED, "gazebo"])
def test_presets_lie_inside_their_row(task: str) -> None:
    own = [*OWN, f"task.world={shipped('cartpole')}"] if task == "gazebo" else [f"task={task}"]
    config, derived = settle(compose([*own, "clocks.ratio.mode=error"]))
    row, clocks = SAFE_TABLE["gazebo"], config.clocks
    assert config.task.family == "gazebo"
    assert row.batch_size[0] <= clocks.batch_size <= row.batch_size[1]
    assert row.update_frequency[0] <= clocks.update_frequency <= row.update_frequency[1]
    assert derived.clock_ratio <= row.ratio_cap
    assert clocks.update_epochs <= SAFE_PASSES
    assert config.task.kwargs["physics_step"] == 0.001
    assert config.task.kwargs["frame_skip"] == config.task.frame_skip
    assert derived.notes == ()


def test_the_command_line_may_choose_other_clocks_and_decisions() -> None:
    config = compose(["task=gazebo_arm", "clocks=classic", "task.frame_skip=10"])
    assert config.clocks.name == "classic"
    assert config.task.kwargs["frame_skip"] == 10


@pytest.mark.parametrize("task", SHIPPED)
def test_gymnasium_knows_the_tasks(task: str) -> None:
    config = compose([f"task={task}"])
    name = task.title().replace("_", "")
    assert config.task.env_id == f"rl_twoclocks/{name}-v0"
    assert str(gym.spec(config.task.env_id).entry_point).endswith(f"{name}Env")


def settled(mode: str, *more: str) -> tuple[Config, Derived]:
    return settle(compose(["task=gazebo_arm", f"clocks.ratio.mode={mode}", *more]))


def test_another_physics_step_is_refused_corrected_or_told() -> None:
    other = "task.kwargs.physics_step=0.002"
    with pytest.raises(ConfigError, match=r"physics_step=0\.002: .*physics step 0\.001 s"):
        settled("error", other)
    config, derived = settled("enforce", other)
    assert config.task.kwargs["physics_step"] == 0.001
    assert any("enforced" in note for note in derived.notes)
    config, derived = settled("warn", other)
    assert config.task.kwargs["physics_step"] == 0.002
    assert any("0.002" in note and "0.001 s" in note for note in derived.notes)
    assert settled("observe", other)[1].notes == ()


def test_a_world_with_another_step_is_refused_or_told(tmp_path: Path) -> None:
    path = tmp_path / "slow.world"
    text = shipped("cartpole").read_text()
    path.write_text(text.replace("<max_step_size>0.001", "<max_step_size>0.004"))
    words = [*OWN, f"task.world={path}"]
    with pytest.raises(ConfigError, match=r"0\.004 s: write <max_step_size>0\.001</max_step_size>"):
        settle(compose([*words, "clocks.ratio.mode=error"]))
    notes = settle(compose(words))[1].notes
    assert notes == (f"task.world={path} has a physics step of 0.004 s: it is run at 0.001 s",)


def test_a_world_of_ones_own_needs_all_three() -> None:
    with pytest.raises(ConfigError) as caught:
        compose(["task=gazebo"])
    lines = str(caught.value).splitlines()
    assert lines == [
        f"task.{k} is required: write task.{k}=..." for k in ("joints", "rules", "world")
    ]


def test_a_world_that_is_not_there_is_told_first(tmp_path: Path) -> None:
    missing = tmp_path / "my.world"
    with pytest.raises(ConfigError, match=r"task\.world=.*my\.world: there is no such file"):
        settle(compose([*OWN, f"task.world={missing}"]))


@pytest.mark.parametrize("backend", ["native", "gymnasium"])
def test_without_gazebo_a_run_ends_before_it_begins(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    more = [f"collect.backend={backend}", f"run_dir={tmp_path / 'run'}", "logger=jsonl"]
    with pytest.raises(ConfigError, match=r"there is no Gazebo in .*make gazebo"):
        rl_twoclocks.train(compose(["task=gazebo_cartpole", *more]))
    assert not (tmp_path / "run").exists()
