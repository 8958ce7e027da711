"""A wrong override fails at once, and names the nearest right one (case 10)."""

from __future__ import annotations

import importlib
import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

import rl_twoclocks
from rl_twoclocks import ConfigError, cli, compose
from rl_twoclocks.config_commands import GeneratorCommandConfig
from rl_twoclocks.configure import assign, check_overrides, validate
from rl_twoclocks.envs import make_env
from rl_twoclocks.safety import settle


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        pytest.fail("an environment was made")

    monkeypatch.setattr("rl_twoclocks.build.make_env", fail)


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        rl_twoclocks.train(compose(overrides))
    return str(caught.value)


@pytest.mark.parametrize("prefix", ["", "+", "++", "~"])
def test_a_misspelt_key_names_the_nearest(prefix: str) -> None:
    message = refused(f"{prefix}algo.clip_epsilom=0.3")
    assert "algo.clip_epsilom" in message
    assert "did you mean algo.clip_epsilon?" in message


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("algo.learning_rate=1", "optim.learning_rate"),
        ("learning_rate=1", "optim.learning_rate"),
        ("lerning_rate=1", "optim.learning_rate"),
        ("gamma=0.9", "algo.gamma"),
        ("algo.update_epochs=50", "clocks.update_epochs"),
        ("totl_frames=10", "total_frames"),
        ("optim.agc.cliping=1", "optim.agc.clipping"),
        ("task.env_di=Hopper-v5", "task.env_id"),
    ],
)
def test_a_key_in_the_wrong_place_names_the_right_one(wrong: str, right: str) -> None:
    message = refused(wrong)
    assert f"unknown key {wrong.split('=')[0]}" in message
    assert right in message.split("did you mean", 1)[-1]


@pytest.mark.parametrize("key", ["task", "num_envs", "optim.learning_rate"])
def test_a_key_of_training_is_told_from_one_that_there_is_not(key: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key {key}: it is for rl_twoclocks.train"):
        check_overrides([f"{key}=1"], GeneratorCommandConfig)
    with pytest.raises(ConfigError, match="unknown key nonsense; --help"):
        check_overrides(["nonsense=1"], GeneratorCommandConfig)


def test_an_empty_value_is_called_null() -> None:
    with pytest.raises(ConfigError, match="run=null"):
        validate(OmegaConf.from_dotlist(["run="]), GeneratorCommandConfig)


def test_a_misspelt_group_within_a_key_names_the_nearest_of_all_that_end_alike() -> None:
    with pytest.raises(ConfigError, match=r"did you mean interventions\.rescue\.enabled"):
        compose(["interventions.rescu.enabled=false"])


def test_an_unknown_task_names_the_nearest_and_lists_all() -> None:
    message = refused("task=halfcheeta")
    assert "did you mean task=halfcheetah?" in message
    assert all(name in message for name in ("hopper", "pendulum", "walker2d", "gym"))


def test_an_unknown_task_like_no_other_lists_all() -> None:
    message = refused("task=zzz")
    assert "did you mean" not in message
    assert "hopper" in message


@pytest.mark.parametrize("values", ["hopper,halfcheeta", "choice(hopper,halfcheeta)"])
def test_a_sweep_is_checked_value_by_value(values: str) -> None:
    with pytest.raises(ConfigError, match="did you mean task=halfcheetah"):
        check_overrides([f"task={values}"])


def test_a_right_sweep_passes() -> None:
    check_overrides(["task=hopper,halfcheetah", "seed=0,1,2", "optim.learning_rate=1e-4,3e-4"])


@pytest.mark.parametrize("word", ["hydra.job.name=x", "hydra/launcher=basic", "+task.kwargs.a.b=1"])
def test_hydras_keys_and_free_form_keys_pass(word: str) -> None:
    check_overrides([word])


@pytest.mark.parametrize("word", ["algo.gamma", "=3", "algo.gamma==", "task=[", "seed 3"])
def test_what_is_no_override_is_quoted(word: str) -> None:
    assert word.split("=")[0] in refused(word)


def test_an_empty_value_names_its_key() -> None:
    assert "optim.learning_rate" in refused("optim.learning_rate=")


def test_a_missing_value_names_its_key() -> None:
    assert "task.env_id" in refused("task=gym")


@pytest.mark.parametrize(
    "wrong",
    [
        "algo.clip_epsilon=-0.1",
        "algo.clip_epsilon=0",
        "optim.learning_rate=-1e-3",
        "total_frames=-5",
        "total_frames=0",
        "num_envs=0",
        "seed=-1",
        "algo.gamma=1.5",
        "algo.gae_lambda=-0.1",
        "clocks.batch_size=0",
        "clocks.update_epochs=0",
        "clocks.minibatch_size=-64",
        "eval.episodes=0",
        "checkpoint.keep_last=0",
        "threads=0",
        "task.frame_skip=0",
        "algo.objective=cliped",
        "clocks.ratio.mode=shout",
        "on_existing=keep",
        "algo.gamma=high",
        "num_envs=2.5",
        "model.hidden=64",
    ],
)
def test_a_value_that_is_not_allowed_names_its_key(wrong: str) -> None:
    assert wrong.split("=")[0] in refused(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "algo.gamma=.nan",
        "optim.learning_rate=.inf",
        "optim.learning_rate=nan",
        "optim.learning_rate=inf",
    ],
)
def test_a_value_that_is_not_finite_names_its_key(wrong: str) -> None:
    assert wrong.split("=")[0] in refused(wrong)


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (["clocks.batch_size=1024"], ["clocks.batch_size", "clocks.update_frequency"]),
        (["clocks.minibatch_size=4096"], ["clocks.minibatch_size", "clocks.batch_size"]),
        (["num_envs=7"], ["clocks.update_frequency", "num_envs"]),
        (["total_frames=100"], ["total_frames", "clocks.update_frequency"]),
        (["optim.name=Adm"], ["optim.name", "Adam"]),
        (["+optim.kwargs.epz=1e-5"], ["optim.kwargs.epz", "eps"]),
        (
            ["clocks.batch_size=20480", "clocks.ratio.mode=error"],
            ["clocks.batch_size", "clocks.update_frequency"],
        ),
    ],
)
def test_contradictory_values_name_both_keys(overrides: list[str], keys: list[str]) -> None:
    message = refused(*overrides)
    assert all(key in message for key in keys), message


def test_several_wrong_values_are_all_named() -> None:
    message = refused("algo.gamma=2", "num_envs=0", "seed=-1")
    assert all(key in message for key in ("algo.gamma", "num_envs", "seed"))


@pytest.mark.parametrize("cap", ["algo.max_importance_ratio=1", "algo.importance_ratio_start=1"])
def test_centring_with_capped_weights_is_refused(cap: str) -> None:
    power = ["algo=centred", "algo.importance_power=0.5"]
    with pytest.raises(
        ConfigError, match=r"algo\.importance_power=0\.5 needs weights without a cap"
    ):
        settle(compose([*power, cap]))
    settle(compose(power))
    settle(compose(["algo=centred", cap]))


@pytest.mark.parametrize("algo", ["centred", "twoclocks"])
def test_centring_with_weights_below_1_is_refused(algo: str) -> None:
    with pytest.raises(ConfigError, match=r"importance_ratio_start=0\.1 would lower the weights"):
        settle(compose([f"algo={algo}", "algo.importance_ratio_start=0.1"]))


def test_a_schedule_that_ends_before_it_begins_is_refused() -> None:
    assert "optim.anneal_frames" in refused("optim.anneal_frames=0")


def test_composing_twice_gives_the_same() -> None:
    assert compose(["task=hopper"]) == compose(["task=hopper"])


def test_a_failed_composition_leaves_the_next_one_whole() -> None:
    before = compose()
    refused("algo.gamma=2")
    assert compose() == before


@pytest.mark.parametrize(
    ("module", "words", "said"),
    [
        ("report", ["--lvie", "runs"], "unknown option --lvie: did you mean --live?"),
        ("report", ["run", "--pgn=x"], "unknown option --pgn: did you mean --png?"),
        ("doctor", ["--jsno"], "unknown option --jsno: did you mean --json?"),
        (
            "train",
            ["--mutlirun", "seed=1,2"],
            "unknown option --mutlirun: did you mean --multirun?",
        ),
        ("train", ["--cgf", "job"], "unknown option --cgf: did you mean --cfg?"),
        ("lab", ["--hlep"], "unknown option --hlep: did you mean --help?"),
        ("eval", ["--xyz"], "unknown option --xyz: --help says what there is"),
    ],
)
def test_a_wrong_option_names_the_nearest(
    module: str,
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"rl_twoclocks.{module}").main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--cfg", "job", "-p", "task"], ["--cfg=job"], ["-m", "--multirun"], ["-cd", "-x"]]
)
def test_hydras_own_options_are_known(words: list[str]) -> None:
    cli.check_options(cli._flags(words), cli._HYDRA)


@pytest.mark.parametrize(
    "value",
    [
        "a,b", "a=b (c)", "it's", r"a\'b", "end\\", r"x\y", "1", "1e5", "null", "True", "", "a b", "[x]",
        "/tmp/x_1-2.3", "é", None, True, 3, 1e-4, ["mlp", "a,b", None],
    ],
)  # fmt: skip
def test_an_assigned_value_is_read_back_as_it_was(value: object) -> None:
    read = OverridesParser.create().parse_override(assign("key", value)).value()
    assert (str(read) if isinstance(value, str) else read) == value
    assert type(read) is not float or isinstance(value, float)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["task=gazebo_cartpole", "task.world=my.world"], "task=gazebo_cartpole has its own"),
        (["task=pendulum", "task.rules=mine:Rules"], "write task=gazebo"),
        (["task=pendulum", "task.game=pong"], "write task=atari"),
    ],
)
def test_what_is_of_another_task_is_answered_with_that_task(words: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        settle(compose(words))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["task=pong", "task.kwargs.noop_maxx=3"], "noop_maxx is no argument of .* mean noop_max?"),
        (["task=pong", "task.kwargs.noop_max=lots"], "noop_max='lots' is no whole number"),
        (["task=pendulum", "task.kwargs.gg=1"], "gg is no argument of Pendulum-v1"),
        (["task=maze", "task.kwargs.sizee=9"], "there are size,"),
    ],
)
def test_arguments_of_environments_are_answered_with_the_nearest(
    words: list[str], why: str
) -> None:
    config = compose(words)
    with pytest.raises(ConfigError, match=why):
        make_env(config.task, config.collect, 1, [1])


@pytest.mark.parametrize(
    ("override", "right"),
    [
        ("collect.order=newr", "near"),
        ("algo.proximal=emwa", "ewma"),
        ("clocks.lag_mode=rinh", "ring"),
        ("interventions.on_nonfinite=stopp", "stop"),
    ],
)
def test_a_wrong_choice_names_the_nearest_one(override: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {right}"):
        compose(["task=pendulum", override])
