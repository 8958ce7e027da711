"""A run's directory is the same for the same run, and never another's (case 9)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml

from rl_twoclocks import ConfigError, compose
from rl_twoclocks.cli import BAD_CONFIG, explain
from rl_twoclocks.record import checkpoint
from rl_twoclocks.rundir import claim, difference, directory, held, plain, run_name
from tests.command_envs import rows, run, tiny

CHANGES = [
    "algo=clipped",
    "algo.gamma=0.9",
    "optim.learning_rate=1e-4",
    "optim.kwargs.eps=1e-6",
    "optim.anneal_frames=77",
    "num_envs=4",
    "clocks.batch_size=4096",
    "clocks=safe",
    "model.hidden=[32]",
    "normalize.reward=none",
    "collect.reset_each_rollout=true",
    "interventions=off",
    "task=hopper",
    "+task.kwargs.reset_noise_scale=0.0",
    "task.max_episode_steps=100",
    "checkpoint.episode_boundary=true",
]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_same_experiment_has_the_same_name() -> None:
    assert run_name(compose(["task=hopper"])) == run_name(compose(["task=hopper"]))


def test_the_name_is_task_presets_hash_and_seed() -> None:
    task, presets, seed = run_name(compose(["task=hopper", "clocks=safe", "seed=4"])).split("/")
    assert (task, presets.rsplit("-", 1)[0], seed) == ("hopper", "safe-decoupled", "seed4")
    assert len(presets.rsplit("-", 1)[1]) == 8


def test_the_order_of_overrides_does_not_matter() -> None:
    a = compose(["algo.gamma=0.9", "num_envs=4"])
    assert run_name(a) == run_name(compose(["num_envs=4", "algo.gamma=0.9"]))


@pytest.mark.parametrize(
    "change",
    [
        "total_frames=7",
        "collect.patience=9",
        "collect.max_restarts=99",
        "collect.redis.url=redis://elsewhere",
        "logger=tensorboard",
        "eval.num_envs=3",
    ],
)
def test_what_changes_no_number_keeps_the_folder(change: str) -> None:
    assert directory(compose([change])) == directory(compose())


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_training_changes_the_folder(change: str) -> None:
    assert directory(compose([change])).parent != directory(compose()).parent


def test_no_two_points_of_a_sweep_share_a_folder() -> None:
    names = [
        run_name(compose([f"algo.gamma={g}", f"optim.learning_rate={r}", f"seed={s}"]))
        for g in (0.9, 0.99)
        for r in (1e-4, 3e-4)
        for s in (1, 2)
    ]
    assert len(set(names)) == len(names)


def test_the_seed_changes_only_the_last_part() -> None:
    one, other = run_name(compose(["seed=1"])), run_name(compose(["seed=2"]))
    assert one.rsplit("/", 1) == [other.rsplit("/", 1)[0], "seed1"]


@pytest.mark.parametrize(
    "change",
    ["device=cpu", "threads=2", "logger=jsonl", "eval.num_envs=5", "diagnostics.pictures=false"],
)
def test_where_and_how_a_run_is_watched_does_not_change_its_folder(change: str) -> None:
    assert directory(compose([change])) == directory(compose())


@pytest.mark.parametrize(
    "change",
    [
        "diagnostics=off",
        "diagnostics.thresholds=seed",
        "+diagnostics.limits.kl_warn=9",
        "eval=off",
        "eval.every_frames=5000",
    ],
)
def test_what_a_governor_decides_by_changes_the_folder_only_where_it_acts(change: str) -> None:
    assert directory(compose([change])) != directory(compose())
    for governor in ("interventions=off", "interventions=observe"):
        assert directory(compose([change, governor])) == directory(compose([governor]))


def test_results_go_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = compose(tiny("null", "task=cartpole"))
    assert directory(config) == tmp_path / "runs" / run_name(config)
    result = run("null", "task=cartpole")
    assert Path(result.run_dir) == tmp_path / "runs" / run_name(config)
    assert Path(result.checkpoint).is_file()


def test_a_relative_run_dir_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert directory(compose(["run_dir=a/b"])) == tmp_path / "a/b"


def test_two_runs_in_the_same_second_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = run("null", "task=cartpole"), run("null", "task=cartpole", "algo.gamma=0.9")
    assert one.run_dir != other.run_dir
    assert len(rows(Path(one.run_dir))) == len(rows(Path(other.run_dir))) == 2


def test_resume_goes_on_with_the_run(tmp_path: Path) -> None:
    run(tmp_path, "task=cartpole", rounds=2)
    result = run(tmp_path, "task=cartpole", rounds=3)
    assert result.rounds == 3
    assert [row["clock/policy_version"] for row in rows(tmp_path)] == [1, 2, 3]


def test_resume_of_a_finished_run_changes_no_result(tmp_path: Path) -> None:
    first = run(tmp_path, "task=cartpole")
    before = contents(tmp_path)
    second = run(tmp_path, "task=cartpole")
    assert (second.frames, second.rounds) == (first.frames, first.rounds)
    assert contents(tmp_path) == before


def test_fail_refuses_and_touches_nothing(tmp_path: Path) -> None:
    run(tmp_path, "task=cartpole")
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="already holds a run"):
        run(tmp_path, "task=cartpole", "on_existing=fail")
    assert contents(tmp_path) == before


def test_fail_accepts_a_new_place(tmp_path: Path) -> None:
    assert run(tmp_path / "new", "task=cartpole", "on_existing=fail").rounds == 2


def test_overwrite_starts_over(tmp_path: Path) -> None:
    run(tmp_path, "task=cartpole", rounds=3)
    run(tmp_path, "task=cartpole", "algo.gamma=0.9", "on_existing=overwrite", rounds=2)
    assert [row["clock/policy_version"] for row in rows(tmp_path)] == [1, 2]
    assert all(int(p.stem.split("-")[1]) <= 256 for p in checkpoint.listed(tmp_path))
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["algo"]["gamma"] == 0.9


def test_a_changed_configuration_is_refused_with_the_difference(tmp_path: Path) -> None:
    run(tmp_path, "task=cartpole")
    before = contents(tmp_path)
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, "task=cartpole", "algo.gamma=0.9", "optim.max_grad_norm=null", rounds=4)
    message = str(caught.value)
    assert "algo.gamma: 0.99 -> 0.9" in message
    assert "optim.max_grad_norm: 0.5 -> None" in message
    assert "seed" not in message
    assert contents(tmp_path) == before


def test_another_seed_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    run(tmp_path, "task=cartpole")
    with pytest.raises(ConfigError, match="seed: 1 -> 2"):
        run(tmp_path, "task=cartpole", "seed=2")


@pytest.mark.parametrize("mode", ["resume", "fail", "overwrite"])
def test_a_folder_with_foreign_files_is_refused(tmp_path: Path, mode: str) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        run(tmp_path, "task=cartpole", f"on_existing={mode}")
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}


def test_overwrite_deletes_no_foreign_file(tmp_path: Path) -> None:
    run(tmp_path, "task=cartpole")
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "measured.csv").write_text("1")
    with contextlib.suppress(ConfigError):
        run(tmp_path, "task=cartpole", "on_existing=overwrite")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert (tmp_path / "data" / "measured.csv").is_file()


@pytest.mark.parametrize("mode", ["resume", "overwrite"])
def test_another_programs_config_yaml_is_no_run(tmp_path: Path, mode: str) -> None:
    (tmp_path / "config.yaml").write_text("server: {port: 80}\n")
    with pytest.raises(ConfigError):
        run(tmp_path, "task=cartpole", f"on_existing={mode}")
    assert contents(tmp_path) == {"config.yaml": b"server: {port: 80}\n"}


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        run(tmp_path / "run", "task=cartpole")


def test_a_folder_that_a_crash_left_behind_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "error.txt").write_text("it crashed")
    with claim(compose(tiny(tmp_path))) as claimed:
        assert claimed == (tmp_path, False)


@pytest.mark.parametrize("mode", ["resume", "fail"])
@pytest.mark.parametrize("name", ["best.pt", "checkpoint-000000002048.pt"])
def test_what_was_learnt_is_not_lost_with_the_configuration(
    name: str, mode: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(b"learnt")
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=rf"holds {name} and no config.yaml"):
        run(tmp_path, "task=cartpole", f"on_existing={mode}")
    assert contents(tmp_path) == before
    assert run(tmp_path, "task=cartpole", "on_existing=overwrite", rounds=1).rounds == 1


def test_a_kill_while_overwriting_leaves_a_run_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, "task=cartpole")
    order: list[str] = []
    unlink = Path.unlink
    monkeypatch.setattr(
        Path, "unlink", lambda self, **how: (order.append(self.name), unlink(self, **how))
    )
    with claim(compose(tiny(tmp_path, "task=cartpole", "on_existing=overwrite"))):
        deleted = [name for name in order if not name.startswith(".partial")]
    assert len(deleted) > 1
    assert deleted[-1] == "config.yaml"


def test_a_best_policy_newer_than_the_checkpoint_is_kept(tmp_path: Path) -> None:
    more = ["task=cartpole", "eval.enabled=true", "eval.episodes=2", "eval.num_envs=2"]
    run(tmp_path, *more, rounds=2)
    best = checkpoint.load(tmp_path / "best.pt") | {"best": 1e9}
    checkpoint.write(tmp_path / "best.pt", best)
    assert run(tmp_path, *more, rounds=3).best_return == 1e9
    assert checkpoint.load(tmp_path / "best.pt")["best"] == 1e9


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    run(tmp_path, "task=cartpole")
    with claim(compose(tiny(tmp_path, "task=cartpole"))):
        before = contents(tmp_path)
        with pytest.raises(ConfigError, match="another process"):
            run(tmp_path, "task=cartpole", rounds=3)
        assert contents(tmp_path) == before
    assert run(tmp_path, "task=cartpole", rounds=3).rounds == 3


def test_a_refused_new_folder_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        run(tmp_path / "new", "task=gym", "task.env_id=Hoper-v5")
    assert not (tmp_path / "new").exists()


def test_the_stored_configuration_is_the_one_that_ran(tmp_path: Path) -> None:
    config = compose(tiny(tmp_path, "task=cartpole", "algo.gamma=0.9"))
    with claim(config):
        assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == plain(config)


def test_a_finished_run_whose_summary_was_lost_writes_it_again(tmp_path: Path) -> None:
    run(tmp_path, "task=cartpole")
    (tmp_path / "result.json").unlink()
    run(tmp_path, "task=cartpole")
    assert (tmp_path / "result.json").is_file()


def test_a_wrong_checkpoint_path_lists_what_is_there(tmp_path: Path) -> None:
    run(tmp_path / "run", "task=cartpole")
    with pytest.raises(checkpoint.CheckpointError) as caught:
        checkpoint.load(tmp_path / "run" / "checkpoint-9.pt")
    assert explain(caught.value) == BAD_CONFIG
    assert "checkpoint-000000000256.pt" in str(caught.value)
    with pytest.raises(checkpoint.CheckpointError, match=r"run/checkpoint-000000000256\.pt"):
        checkpoint.load(tmp_path / "typo.pt")


def test_a_wrong_folder_of_the_evaluation_command_names_the_runs_below(tmp_path: Path) -> None:
    from rl_twoclocks.eval import find

    run(tmp_path / "run", "task=cartpole", "eval=default")
    with pytest.raises(ConfigError, match=str(tmp_path / "run")):
        find(tmp_path)


def test_the_difference_names_nested_keys() -> None:
    old, new = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "e": 5}
    assert difference(old, new) == ["a.c: 2 -> 4", "d: 3 -> None", "e: None -> 5"]


def test_what_a_killed_process_left_half_written_is_cleared_away(tmp_path: Path) -> None:
    """A file of a run, a folder of an export."""
    (tmp_path / ".partial-12-metrics.jsonl").write_text("half")
    (tmp_path / ".partial-x1y2").mkdir()
    (tmp_path / ".partial-x1y2" / "best.onnx").write_text("half")
    with held(tmp_path):
        assert list(tmp_path.iterdir()) == []
