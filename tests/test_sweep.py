"""Sweeps: what failed is named, what is finished is skipped, and the search searches."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rl_twoclocks import ConfigError, batch, compose, sweep
from rl_twoclocks.cli import NOT_FINITE, Sweep, _jobs
from rl_twoclocks.config_commands import AxisConfig, SweepConfig
from rl_twoclocks.configure import validate
from rl_twoclocks.sweep import _suggest, check, load, place, run_sweep
from tests.command_envs import command, tiny

optuna = pytest.importorskip("optuna")

TINY = [word for word in tiny("null", "task=cartpole") if not word.startswith("run_dir=")]
TINY = [*TINY, "eval=default", "eval.episodes=2", "eval.num_envs=2"]


def small(tmp_path: Path, trials: int) -> list[str]:
    own = [f"sweep.trials={trials}", "sweep.startup_trials=2", f"sweep.directory={tmp_path}"]
    return [*TINY, *own]


def test_the_shipped_space_fits_the_configuration() -> None:
    settings = load("optuna", [])
    assert check(settings, ["task=pendulum", "total_frames=5000"]).total_frames == 5000
    assert len(settings.space) >= 5


def test_a_wrong_key_of_the_space_names_the_nearest() -> None:
    settings = load("optuna", ["sweep.space.algo.gama.choices=[0.9]"])
    with pytest.raises(ConfigError, match="did you mean"):
        check(settings, [])


def test_a_wrong_key_of_the_sweep_is_said_to_be_of_the_sweep() -> None:
    with pytest.raises(ConfigError, match=r"sweep=optuna: unknown key trial: did you mean trials"):
        load("optuna", ["sweep.trial=3"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sweep.space.algo.gamma.choices=[2.0]"], "algo.gamma=2.0"),
        (["sweep.space.algo.gamma.choices=[]"], "at least one choice"),
        (["sweep.space.algo.gamma.low=0.9", "sweep.space.algo.gamma.high=0.5"], "not below"),
        (["eval=off"], "evaluations"),
        (["seed=3"], "sweep.seed"),
        (["-m"], "cannot be combined"),
        (["eval.every_frames=500"], "eval.every_frames is set by the search"),
        (["logger=jsonl"], "logger is set by the search"),
        (["run_dir=x"], "run_dir is set by the search"),
        (["sweep.space.seed.choices=[1,2]"], "seed is set by the search"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_sweep("optuna", [*small(tmp_path, 2), *overrides])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "message"),
    [("sweep.trials=0", "trials"), ("sweep.trialz=3", "trials"), ("sweep.space=3", "space")],
)
def test_a_wrong_setting_of_the_sweep_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("optuna", [override])


def test_an_unknown_sweep_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match="did you mean optuna"):
        load("optun", [])


def test_the_place_follows_from_what_is_searched() -> None:
    settings = load("optuna", [])

    def folder(*words: str) -> Path:
        return place(settings, compose(words))

    one = folder("task=pendulum", "num_envs=4")
    assert one == folder("num_envs=4", "task=pendulum") == folder("task=pendulum", "num_envs=4")
    # What is another experiment, budget or measure is another study, however it came about.
    for word in ("num_envs=8", "total_frames=5000", "eval.episodes=3", "optim=adam_agc"):
        assert one != folder("task=pendulum", "num_envs=4", word)
    assert one.name.startswith("pendulum-")
    assert folder("experiment=hopper_classic").name.startswith("hopper-")


@pytest.mark.slow
def test_a_search_ends_with_its_best_point_and_goes_on_where_it_was(tmp_path: Path) -> None:
    assert run_sweep("optuna", small(tmp_path, 2)) == 0
    folder = next(tmp_path.iterdir())
    first = (folder / "trial0" / "metrics.jsonl").read_bytes()
    assert run_sweep("optuna", small(tmp_path, 3)) == 0
    assert (folder / "trial0" / "metrics.jsonl").read_bytes() == first
    with open(folder / "trials.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows[:2]] == ["complete"] * 2
    assert rows[2]["state"] in ("complete", "pruned")
    assert rows[0]["optim.learning_rate"] == ""
    result = json.loads((folder / "trial1" / "result.json").read_text())
    assert float(rows[1]["return_mean"]) == result["return_mean"]


class Process:
    """A run that ended with an exit code."""

    def __init__(self, returncode: int, place: str | None = None) -> None:
        self.returncode = returncode
        if returncode == 0 and place is not None:
            Path(place, "result.json").write_text('{"return_mean": 1.0}')

    def poll(self) -> int:
        return self.returncode


def runs_end(monkeypatch: pytest.MonkeyPatch, *codes: int) -> list[list[str]]:
    """Let trials end with these exit codes; the list fills with their overrides."""
    left, made = iter(codes), []

    def ended(words: list[str], log: Path) -> Process:
        made.append(words)
        place = next(w for w in words if w.startswith("run_dir=")).partition("=")[2]
        return Process(next(left), place.strip("'\""))

    monkeypatch.setattr(batch, "ForkedRun", ended)
    return made


def told(words: list[str], *keys: str) -> list[str]:
    return [w for w in words if w.partition("=")[0] in keys]


@pytest.mark.parametrize("code", [-9, 143, 137, 1])
def test_a_trial_that_was_killed_or_failed_goes_on_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    made = runs_end(monkeypatch, 0, code, 0, 0)
    assert run_sweep("optuna", small(tmp_path, 2)) == 1
    assert "the same command tries it again" in capsys.readouterr().out
    assert run_sweep("optuna", small(tmp_path, 2)) == 0
    # The same point, in the same folder: the run there goes on from its checkpoint.
    assert made[2] == made[1] and "trial1" in told(made[2], "run_dir")[0]
    assert "2 done, 0 pruned, 0 failed of 2 trials" in capsys.readouterr().out
    # What is over is over.
    assert run_sweep("optuna", small(tmp_path, 2)) == 0 and len(made) == 3


def test_what_the_command_line_gives_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = runs_end(monkeypatch, 0, 0, 0)
    assert run_sweep("optuna", [*small(tmp_path, 3), "algo.gamma=0.5"]) == 0
    assert "fixed       algo.gamma" in capsys.readouterr().out
    assert [told(words, "algo.gamma") for words in made] == [["algo.gamma=0.5"]] * 3


@pytest.mark.parametrize("code", [0, NOT_FINITE])
def test_a_point_that_comes_again_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    """Whether it finished or diverged."""
    made = runs_end(monkeypatch, 0, code, *[0] * 4)
    settings = load("optuna", ["sweep.trials=6", f"sweep.directory={tmp_path}"])
    space = {"algo.gamma": AxisConfig(choices=[0.9, 0.95])}
    settings = settings.model_copy(update={"space": space})
    monkeypatch.setattr(sweep, "load", lambda *_: settings)
    words = [w for w in small(tmp_path, 6) if not w.startswith("sweep.")]
    assert run_sweep("optuna", words) == 0
    # As configured, and both choices: the other three are repetitions.
    assert len(made) == 3
    assert capsys.readouterr().out.count("again: ") == 3


def test_a_sweeps_file_that_is_no_yaml_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "mine.yaml").write_text("space: {a: [")
    monkeypatch.setattr("rl_twoclocks.configure.config_dir", lambda: tmp_path)
    with pytest.raises(ConfigError, match=r"mine.yaml is no YAML"):
        sweep.load("mine", [])
    with pytest.raises(ConfigError, match="did you mean mine"):
        sweep.load("mina", [])


def test_a_search_that_was_killed_goes_on_with_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runs_end(monkeypatch, 0, 0, 0)

    class Killed(BaseException):
        pass

    def killed(*args: Any, **more: Any) -> None:
        raise Killed

    # As SIGKILL would: the trial is left as running.
    monkeypatch.setattr(sweep, "_trial", killed)
    monkeypatch.setattr(optuna.Study, "tell", lambda *args, **more: None)
    with pytest.raises(Killed):
        run_sweep("optuna", small(tmp_path, 2))
    monkeypatch.undo()
    made = runs_end(monkeypatch, 0, 0)
    assert run_sweep("optuna", small(tmp_path, 2)) == 0
    assert len(made) == 2 and "trial0" in told(made[0], "run_dir")[0]


def test_a_trial_that_outlived_its_search_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runs_end(monkeypatch, 0, -9, 0)
    assert run_sweep("optuna", small(tmp_path, 2)) == 1
    left = next(tmp_path.glob("*/trial1"))
    handle = os.open(left, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(ConfigError, match=r"is training in .*trial1 still"):
            run_sweep("optuna", small(tmp_path, 2))
    finally:
        os.close(handle)
    # Nothing is lost by having asked.
    assert run_sweep("optuna", small(tmp_path, 2)) == 0 and len(made) == 3


def test_two_searches_of_one_study_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inner(*args: Any) -> int:
        with pytest.raises(ConfigError, match="another process is searching"):
            run_sweep("optuna", small(tmp_path, 2))
        return 0

    monkeypatch.setattr(sweep, "_search", inner)
    assert run_sweep("optuna", small(tmp_path, 2)) == 0


def test_an_axis_of_a_free_form_key_is_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runs_end(monkeypatch, 0, 0, 0)
    words = [w for w in small(tmp_path, 3) if "task=" not in w]
    key = "sweep.space.task.kwargs.ctrl_cost_weight"
    assert (
        run_sweep("optuna", ["task=halfcheetah", *words, f"{key}.low=0.05", f"{key}.high=0.2"]) == 0
    )
    drawn = [
        float(w.partition("=")[2]) for w in told(made[1] + made[2], "task.kwargs.ctrl_cost_weight")
    ]
    assert len(drawn) == 2 and all(0.05 <= x <= 0.2 for x in drawn)


def test_a_trial_that_diverges_is_a_bad_result_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs_end(monkeypatch, NOT_FINITE, NOT_FINITE)
    run_sweep("optuna", small(tmp_path, 2))
    said = capsys.readouterr().out
    assert said.count("diverged") == 2
    assert "0 done, 2 pruned, 0 failed of 2 trials" in said


@pytest.mark.slow
def test_a_trial_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Each value is allowed by itself; the window is smaller than this minibatch.
    words = [w for w in small(tmp_path, 2) if not w.startswith("clocks.minibatch_size")]
    words = [*words, "sweep.space.clocks.minibatch_size.choices=[9999]"]
    assert run_sweep("optuna", words) == 1
    said = capsys.readouterr().out
    assert "1 done, 0 pruned, 1 failed of 2 trials" in said
    assert "failed      trial 1:" in said


@pytest.mark.parametrize(
    "sweep_of", ["total_frames=2048,4096", "threads=1,2", "compile=true,false", "device=cpu,auto"]
)
def test_jobs_that_would_share_a_directory_are_refused(sweep_of: str) -> None:
    with pytest.raises(ConfigError, match="jobs 0 and 1 are one experiment"):
        _jobs(["-m", "task=cartpole", "seed=1,2", "hydra/launcher=joblib", sweep_of], True)


@pytest.mark.parametrize("sweep_of", ["eval.episodes=2,3", "seed=1,2", "num_envs=2,4"])
def test_jobs_with_directories_of_their_own_are_not(sweep_of: str) -> None:
    assert _jobs(["-m", "task=cartpole", "optim.learning_rate=1e-3,2e-3", sweep_of], True) == 4


def test_the_end_of_a_multirun_names_the_job_that_failed(tmp_path: Path) -> None:
    words = [w for w in tiny("null", "task=cartpole") if not w.startswith("run_dir=")]
    # No configuration tells that there is no such environment.
    done = command(["-m", *words, "task.env_id=CartPole-v1,Nowhere-v0,Acrobot-v1"], tmp_path)
    assert done.returncode == 2
    last = [line for line in done.stdout.splitlines() if line][-2:]
    assert last[0] == "sweep       2 of 3 jobs done"
    assert last[1].startswith("failed      job 1, exit code 2:")
    assert "task.env_id=Nowhere-v0" in last[1]
    assert [p.name for p in (tmp_path / "runs" / "multirun").iterdir()] == ["multirun.yaml"]


@pytest.mark.parametrize(
    ("sweep_of", "said"),
    [
        ("optim.learning_rate=1e-3,-1", "error: job 1, optim.learning_rate=-1: .*equal to 0"),
        ("threads=1,-1", "threads=-1"),
        # Each value can be run, and one pair of them cannot.
        (
            "algo=decoupled,centred algo.proximal=round,ewma",
            "job 3, algo=centred algo.proximal=ewma:",
        ),
        ("task=cartpole,acrobott", "did you mean task=acrobot"),
        ("collect.order=near,newest", "collect.order=newest: .*'near', 'random' or 'fifo'"),
    ],
)
def test_a_value_that_cannot_be_run_is_named_before_any_job_begins(
    tmp_path: Path, sweep_of: str, said: str
) -> None:
    words = [w for w in tiny("null", "task=cartpole") if not w.startswith("run_dir=")]
    done = command(["-m", *words, *sweep_of.split()], tmp_path)
    assert done.returncode == 2
    assert re.search(said, done.stderr)
    assert not (tmp_path / "runs").exists()


def begun(folder: Path, monkeypatch: pytest.MonkeyPatch, jobs: int) -> Sweep:
    """A sweep whose runs go below this folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv(Sweep.VARIABLE, "")
    return Sweep(jobs)


def test_jobs_that_never_said_how_they_ended_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = begun(tmp_path, monkeypatch, jobs=3)
    # Where the runs go, which a cluster's nodes see too.
    assert Path(notes.path).parent == tmp_path / "runs"
    with open(notes.path, "a") as file:
        file.write('{"job": 1, "overrides": [], "code": 0, "error": "NoneType"}\n')
    assert notes.close() == 1
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last[0] == "sweep       1 of 3 jobs done"
    assert last[1].startswith("silent      job 0, 2: not begun or killed")
    assert not Path(notes.path).exists()


def test_a_job_that_was_put_back_and_then_finished_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = begun(tmp_path, monkeypatch, jobs=2)
    with open(notes.path, "a") as file:
        for job, code in ((0, 143), (1, 0), (0, 0)):
            file.write(json.dumps({"job": job, "overrides": [], "code": code, "error": "x"}) + "\n")
    assert notes.close() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "sweep       2 of 2 jobs done"


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        (["seed=1,2,3"], 3),
        (["seed=range(0,4)", "task=hopper,walker2d"], 8),
        (["num_envs=4"], 1),
        (["task=glob(*)"], None),
        (["seed=1,2", "hydra/sweeper=other"], None),
    ],
)
def test_the_number_of_jobs_follows_from_the_command(words: list[str], jobs: int | None) -> None:
    assert _jobs(["-m", *words], multirun=True) == jobs


def test_a_whole_number_is_drawn_whole_and_choices_may_be_anything() -> None:
    axes = {
        "clocks.update_epochs": {"low": 2, "high": 6},
        "algo.gae_lambda": {"low": 0.8, "high": 0.98},
        "optim.max_grad_norm": {"choices": [None, 0.5]},
        "model": {"choices": ["mlp", "mlp_large"]},
    }
    settings = validate({"space": axes}, SweepConfig)
    assert check(settings, ["task=pendulum"]).total_frames > 0
    for seed in range(4):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        words = _suggest(study.ask(), settings)
        compose(words)
        assert words[0].split("=")[1] in "23456"
    axes["model"] = {"choices": ["mpl"]}
    with pytest.raises(ConfigError, match="did you mean model=mlp"):
        check(validate({"space": axes}, SweepConfig), [])


@pytest.mark.slow
def test_an_interrupt_ends_trials_that_run_side_by_side(tmp_path: Path) -> None:
    words = [*small(tmp_path, 8), "sweep.jobs=2", "total_frames=400_000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_twoclocks.train", "sweep=optuna", *words], cwd=tmp_path
    )
    try:
        deadline = time.monotonic() + 100
        while len(list(tmp_path.glob("*/trial*/metrics.jsonl"))) < 2:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(100) == 128 + signal.SIGINT
    finally:
        process.kill()
    assert len(list(tmp_path.glob("*/trial*/metrics.jsonl"))) == 2
