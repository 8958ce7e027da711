"""Every shipped configuration composes, and says the same as the schema."""

from __future__ import annotations

import importlib
import re

import gymnasium as gym
import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from pydantic import BaseModel

from rl_twoclocks import compose
from rl_twoclocks.config import Config
from rl_twoclocks.config_commands import EvalCommandConfig
from rl_twoclocks.configure import check_overrides, config_dir, groups, schema_keys, validate
from rl_twoclocks.rundir import plain
from rl_twoclocks.safety import settle
from rl_twoclocks.worlds.gazebo.world import shipped
from rl_twoclocks.worlds.grasp import SUBSTEPS

GROUPS = groups()
CHOICES = [(group, choice) for group, names in GROUPS.items() for choice in names]
NAMED = ("clocks", "algo", "model", "diagnostics", "interventions", "logger")
EXPERIMENTS = GROUPS.get("experiment", [])


def needed(group: str, choice: str) -> list[str]:
    if group != "task":
        return []
    own = [f"task.world={shipped('cartpole')}", "task.joints=[slider]"]
    own.append("task.rules=rl_twoclocks.worlds.gazebo.tasks:Cartpole")
    known = {"gym": ["task.env_id=CartPole-v1"], "atari": ["task.game=alien"], "gazebo": own}
    return known.get(choice, [])


def primary_defaults() -> dict[str, str]:
    primary = yaml.safe_load((config_dir() / "train.yaml").read_text())
    entries = [entry for entry in primary["defaults"] if isinstance(entry, dict)]
    return {k: v for entry in entries for k, v in entry.items() if not k.startswith("override")}


def group_model(group: str) -> type[BaseModel]:
    model = Config.model_fields[group].annotation
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return model


def leaves(values: dict, model: type[BaseModel], prefix: str = "") -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in values.items():
        name = next((n for n, f in model.model_fields.items() if (f.alias or n) == key), None)
        inner = model.model_fields[name].annotation if name else None
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, BaseModel):
            result |= leaves(value, inner, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_composes_validates_and_settles(group: str, choice: str) -> None:
    config = compose([f"{group}={choice}", *needed(group, choice)])
    settled, derived = settle(config)
    assert derived.frames <= settled.total_frames
    if group in NAMED:
        assert getattr(config, group).name == choice


def test_the_bare_command_composes_to_the_documented_defaults() -> None:
    config = compose()
    assert config.task.name == "halfcheetah"
    assert config.clocks.name == "classic"
    assert (config.total_frames, config.num_envs, config.seed) == (1_000_000, 8, 1)


@pytest.mark.parametrize("choice", EXPERIMENTS)
def test_an_experiment_names_the_exact_command(choice: str) -> None:
    lines = (config_dir() / "experiment" / f"{choice}.yaml").read_text().splitlines()
    assert lines[0] == "# @package _global_"
    match = re.fullmatch(r"# python -m rl_twoclocks\.train (?P<rest>.+)", lines[1])
    assert match, f"no command: {lines[1]}"
    words = [word for word in match["rest"].split() if word not in ("-m", "--multirun")]
    assert f"experiment={choice}" in words
    check_overrides(words)
    parser = OverridesParser.create()
    swept = [word for word in words if parser.parse_override(word).is_sweep_override()]
    assert bool(swept) == ("-m" in match["rest"].split())
    firsts = [f"{w.split('=')[0]}={w.split('=')[1].split(',')[0]}" for w in swept]
    compose([w for w in words if w not in swept] + firsts)


@pytest.mark.parametrize("choice", GROUPS["task"])
def test_a_task_names_itself_and_its_family(choice: str) -> None:
    config = compose([f"task={choice}", *needed("task", choice)])
    if choice in ("gym", "minigrid"):
        assert config.task.name == {"gym": "CartPole-v1"}.get(choice, "MiniGrid-DoorKey-5x5-v0")
        return
    assert config.task.name == ("alien" if choice == "atari" else choice)
    if config.task.import_ is not None:
        importlib.import_module(config.task.import_)
        assert str(gym.spec(config.task.env_id).entry_point).startswith(config.task.import_)
        return
    folder = {"mujoco": "mujoco", "lunarlander": "box2d"}
    folder = folder.get(choice, folder.get(config.task.family, "classic_control"))
    assert f"gymnasium.envs.{folder}" in str(gym.spec(config.task.env_id).entry_point)


def test_frame_skip_is_the_simulators_own() -> None:
    for path in sorted((config_dir() / "task").glob("*.yaml")):
        task = yaml.safe_load(path.read_text())["task"]
        if task.get("name") == "grasp":
            assert task["frame_skip"] == SUBSTEPS
        elif task.get("family") == "mujoco":
            env = gym.make(task["env_id"])
            assert env.unwrapped.frame_skip == task["frame_skip"], path.stem
            env.close()


@pytest.mark.parametrize("schema", [Config, EvalCommandConfig])
def test_every_field_has_a_docstring(schema: type[BaseModel]) -> None:
    bare = [key for key, field in schema_keys(schema) if not field.description]
    assert not bare, f"without a docstring: {', '.join(bare)}"


def test_every_group_has_a_docstring() -> None:
    models = [f.annotation for f in Config.model_fields.values()]
    nested = [m for m in models if isinstance(m, type) and issubclass(m, BaseModel)]
    assert len(nested) >= 10
    assert all(model.__doc__ for model in nested)


def test_every_group_of_the_schema_has_a_folder_and_a_default() -> None:
    chosen = primary_defaults()
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            assert name in GROUPS
            assert chosen[name] in GROUPS[name]


@pytest.mark.parametrize("group", [g for g in GROUPS if g in Config.model_fields and g != "task"])
def test_the_default_choice_spells_out_every_key_of_its_group(group: str) -> None:
    text = (config_dir() / group / f"{primary_defaults()[group]}.yaml").read_text()
    written = leaves(yaml.safe_load(text), group_model(group))
    keys = {key for key, _ in schema_keys(group_model(group))}
    assert {key.split(".kwargs.")[0] for key in written} == keys


def test_the_primary_file_spells_out_every_top_level_key() -> None:
    primary = yaml.safe_load((config_dir() / "train.yaml").read_text())
    top = {key for key, _ in schema_keys() if "." not in key}
    assert top == primary.keys() - {"defaults", "hydra"}


@pytest.mark.parametrize("group", [g for g in GROUPS if g in Config.model_fields and g != "task"])
def test_yaml_defaults_are_the_schemas(group: str) -> None:
    model = group_model(group)
    composed = leaves(plain(compose(["tuned=none"]))[group], model)
    # Presets have no default, and the optimizer's further arguments are the preset's to choose.
    free = {"name", "kwargs"}
    for key, field in schema_keys(model):
        if not field.is_required() and key not in free:
            default = field.get_default(call_default_factory=True)
            assert composed[key] == default, f"{group}.{key}"


def test_the_evaluation_command_needs_only_a_checkpoint() -> None:
    command = validate({"checkpoint": "x"}, EvalCommandConfig)
    assert (command.episodes, command.num_envs, command.video) == (10, 10, False)


def test_a_configuration_survives_its_own_plain_form() -> None:
    config = compose(["task=hopper", "clocks=safe"])
    assert Config.model_validate(plain(config)) == config


def test_a_configuration_cannot_be_changed() -> None:
    config = compose()
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 2  # type: ignore[misc]
