"""The doctor: before a run, about a run, about a saved window; readable and as JSON."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rl_twoclocks import ConfigError, compose
from rl_twoclocks.checks import Check, checks
from rl_twoclocks.diagnostics import limits
from rl_twoclocks.diagnostics.panel import RULES
from rl_twoclocks.diagnostics.rollout_entropy import diversity_alarm
from rl_twoclocks.doctor import draw, examine
from rl_twoclocks.findings import _EXPLAINED
from rl_twoclocks.record import checkpoint, read_metrics
from rl_twoclocks.record.jsonl import keep_rows
from rl_twoclocks.rundir import plain
from rl_twoclocks.safety import settle
from tests.command_envs import command, run, tiny, walk


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    run(folder, "task=pendulum", "diagnostics.every=1", rounds=4)
    return folder


def urgencies(report) -> dict[str, str]:
    return {finding.symptom: finding.urgency for finding in report.findings}


def test_a_configuration_inside_the_table_is_fine() -> None:
    report = examine(["task=pendulum", "clocks=classic"])
    assert urgencies(report)["clock ratio"] == "fine"
    assert any("clock ratio" in f or "ratio 1" in f for f in report.facts)


def test_a_ratio_above_the_cap_comes_with_the_command_that_mends_it() -> None:
    words = ["task=halfcheetah", "clocks=safe", "clocks.batch_size=5120"]
    report = examine(words)
    finding = next(f for f in report.findings if f.symptom == "clock ratio")
    assert (finding.reading, finding.urgency) == ("20", "warn")
    mended = examine([*words, finding.change])
    assert urgencies(mended)["clock ratio"] == "fine"


def test_staleness_is_predicted_from_the_clock_ratio() -> None:
    report = examine(["task=pendulum", "clocks.batch_size=2048", "clocks.update_frequency=512"])
    finding = next(f for f in report.findings if f.symptom == "predicted staleness")
    assert finding.reading == "mean 1.5, max 3 versions"


def test_a_ratio_of_fifty_is_an_emergency() -> None:
    report = examine(["task=pendulum", "clocks.batch_size=12800", "clocks.update_frequency=256"])
    assert urgencies(report)["clock ratio"] == "danger"
    assert report.verdict.startswith("danger: clock ratio")


def test_a_run_is_read_from_its_directory(finished: Path) -> None:
    report = examine([str(finished)])
    assert "512 of 512 frames" in report.facts[0]
    assert {"policy runs ahead of its data", "newest data is old"} <= urgencies(report).keys()
    assert urgencies(report)["newest data is old"] == "fine"


def test_a_run_that_crashed_says_so_first(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stumbled"):
        run(tmp_path, *walk(crash=True, at=200), "diagnostics.pictures=true", rounds=4)
    report = examine([str(tmp_path)])
    assert report.verdict == "danger: the run ended with an error"
    assert "stumbled over a stone" in report.findings[0].reading
    assert (tmp_path / "pictures" / "clocks.png").exists()


def test_a_run_without_diagnostics_is_not_called_healthy(tmp_path: Path) -> None:
    run(tmp_path, "task=pendulum", "diagnostics=off")
    report = examine([str(tmp_path)])
    assert report.verdict == "watch: nothing was measured"
    assert "nan" not in " ".join(report.facts)


def written(folder: Path, rows: list[dict], events: list[dict], *words: str) -> Path:
    """A run directory with these rows and events."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(plain(compose(["task=pendulum", *words]))))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in events))
    return folder


def happened(name: str, frames: int, kind: str = "alarm", **more: object) -> dict:
    row = {"frames": frames, "round": 1, "kind": kind, "name": name, "text": name.upper()}
    alarm = {"severity": "danger", "values": {"x": 1.0}, "cause": f"{name} it is", "cure": "do it"}
    return row | (alarm if kind == "alarm" else {}) | more


@pytest.mark.parametrize(("on", "verdict"), [(True, "danger"), (False, "in step")])
def test_an_alarm_that_began_long_ago_and_is_still_on_counts(
    on: bool, verdict: str, tmp_path: Path
) -> None:
    more = {"alarm/collapse": 3.0} if on else {}
    rows = [{"frames": 1000 * k, **more} for k in range(1, 101)]
    report = examine([str(written(tmp_path / "run", rows, [happened("collapse", 3000)]))])
    assert report.verdict.startswith(verdict)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_alarm_is_a_check_or_is_explained(rule: Callable) -> None:
    names = set(re.findall(r'Alarm\(\s*"(\w+)"', inspect.getsource(rule)))
    names |= {"diversity"} if rule is diversity_alarm else set()
    assert names
    checked = {
        "policy_lag", "publish_lag", "clock_ratio", "policy_kl", "effective_sample_size",
        "clip_fraction", "gradient_norm", "gradients_aligned", "score_residual", "baseline_leak",
        "duplicates", "state_drift", "dead_units", "idle_device",
    }  # fmt: skip
    assert names <= checked | set(_EXPLAINED)


def test_minimal_diagnostics_are_not_called_healthy(tmp_path: Path) -> None:
    place = written(tmp_path / "run", [{"frames": 1000}], [], "diagnostics=minimal")
    assert examine([str(place)]).verdict.startswith("watch: policy, data and gradients were not")


def test_restarts_and_what_would_be_ordered_are_no_orders(tmp_path: Path) -> None:
    events = [
        happened("restart", 900, "restart"),
        happened("trim", 900, "order", given=False),
        happened("step", 500, "order", given=True),
    ]
    place = written(tmp_path / "run", [{"frames": 1000}], events)
    facts = examine([str(place)]).facts
    assert "1 orders and rescues; the newest: STEP" in facts
    assert "RESTART" in facts


@pytest.mark.parametrize("governor", ["guard", "observe"])
def test_a_run_that_orders_hold_is_not_simply_in_step(governor: str, tmp_path: Path) -> None:
    row = {"frames": 1000, "order/passes": 1.0, "train/clip_fraction": 0.7}
    row |= {"clock/ratio_measured": 1.0, "clock/reuse": 2.0}
    place = written(tmp_path / "run", [row], [], f"interventions={governor}")
    report = examine([str(place)])
    held = [
        f.reading for f in report.findings if f.symptom == "orders of the governor are in force"
    ]
    assert held == (["passes"] if governor == "guard" else [])
    # Two passes are in force already: one is what is left to ask for.
    full = next(f for f in report.findings if f.symptom == "trust region is full")
    assert full.change == "clocks.update_epochs=1"


@pytest.mark.parametrize(("dropped", "seen"), [(50.0, False), (230.0, True)])
def test_frames_that_are_thrown_away_are_a_finding(
    dropped: float, seen: bool, tmp_path: Path
) -> None:
    rows = [{"frames": 1000, "clock/dropped_frames": dropped}]
    for words, change in (
        (["clocks.lag=8"], "clocks.lag=0"),
        (["collect=async"], "collect.max_staleness=16"),
        (["collect=async", "collect.when_full=drop"], "collect.when_full=wait"),
    ):
        report = examine([str(written(tmp_path / change, rows, [], *words))])
        told = [f.change for f in report.findings if "dropped" in f.symptom]
        assert told == ([change] if seen else [])


def test_returns_are_the_newest_and_say_where_they_come_from(tmp_path: Path) -> None:
    rows = [{"frames": k, "rollout/return_mean": 10.0 * k} for k in (1, 3, 2)]
    rows[1]["eval/return_mean"] = 500.0
    facts = examine([str(written(tmp_path / "run", rows, []))]).facts
    assert "return in evaluation 500, best 500" in facts
    assert "return in training, newest 100 episodes, 20, best 30" in facts


@pytest.mark.parametrize(
    "words",
    [
        ["task=hopper", "clocks=classic", "clocks.update_frequency=4096", "clocks.batch_size=40960"],
        ["task=hopper", "clocks.update_frequency=200", "clocks.batch_size=4096",
         "clocks.minibatch_size=2048"],
        ["task=hopper", "clocks.update_frequency=512", "clocks.batch_size=8192", "clocks.sample=4096"],
        ["task=hopper", "clocks.update_frequency=512", "clocks.batch_size=1024",
         "clocks.minibatch_size=1024"],
        ["task=tmaze", "model=recurrent", "clocks.update_frequency=256", "clocks.batch_size=768"],
        ["task=hopper", "diagnostics.limits={kl_watch: 0}"],
        ["task=hopper", "algo.critic_coeff=0"],
        ["task=hopper", "num_envs=3", "clocks.batch_size=6144", "clocks.update_frequency=2046"],
        ["task=halfcheetah", "collect=async", "clocks.batch_size=8192", "clocks.update_frequency=2048"],
    ],
    ids=lambda words: " ".join(words[1:]),
)  # fmt: skip
def test_what_is_advised_is_never_refused(words: list[str]) -> None:
    words = [*words, "clocks.ratio.mode=observe"]
    config = compose(words)
    for check in checks(config, limits("calibrated", {}), versions=4.0, dims=6.0):
        settle(compose([*words, *check.change.split()]))
    for finding in examine(words).findings:
        if finding.change:
            settled, derived = settle(compose([*words, *finding.change.split()]))
            assert (settled, derived) != settle(config), finding


def test_a_reuse_that_is_too_high_is_mended_by_what_is_advised() -> None:
    words = ["task=hopper", "clocks.batch_size=4096", "clocks.update_frequency=1024",
             "clocks.sample=2048", "clocks.update_epochs=10"]  # fmt: skip
    finding = next(f for f in examine(words).findings if f.symptom == "reuse of a frame")
    assert finding.urgency == "warn"
    assert settle(compose([*words, finding.change]))[1].reuse <= 12


@pytest.mark.parametrize(
    ("rate", "urgency"), [("3e-4", "fine"), ("3e-3", "fine"), ("4e-3", "warn"), ("1", "danger")]
)
def test_a_learning_rate_beyond_all_usual_ones_is_named_before_a_run(
    rate: str, urgency: str
) -> None:
    words = ["task=hopper", f"optim.learning_rate={rate}"]
    finding = next(f for f in examine(words).findings if f.symptom.startswith("learning rate"))
    assert finding.urgency == urgency
    if finding.change:
        settled = examine([*words, finding.change]).findings
        assert next(f for f in settled if f.symptom.startswith("learning rate")).urgency == "fine"


def test_a_run_with_an_absurd_learning_rate_is_told_so_and_is_not_advised_another(
    tmp_path: Path,
) -> None:
    row = {"frames": 1000, "order/step": 1.0, "diag/kl_behaviour": 9.0}
    place = written(tmp_path / "run", [row], [], "optim.learning_rate=10", "interventions=guard")
    findings = examine([str(place)]).findings
    assert next(f for f in findings if f.symptom.startswith("learning rate")).urgency == "danger"
    advised = {w for f in findings for w in f.change.split() if "learning_rate" in w}
    assert advised == {"optim.learning_rate=0.0003"}


def test_advice_goes_on_from_the_window_in_force(tmp_path: Path) -> None:
    words = ["task=cartpole", "clocks.batch_size=12800", "clocks.update_frequency=256"]
    row = {"clock/ratio": 5.0, "clock/ratio_measured": 5.0, "diag/ess": 1e-4, "clock/reuse": 50.0}
    place = written(tmp_path / "run", [{"frames": 256 * k, **row} for k in (1, 2)], [], *words)
    few = next(
        f for f in examine([str(place)]).findings if f.symptom == "few frames carry the weight"
    )
    # B in force is 1,280.
    assert few.change.split()[0] == "clocks.batch_size=640"


def test_no_file_but_a_checkpoint_is_examined(tmp_path: Path) -> None:
    place = written(tmp_path / "run", [{"frames": 1}], [])
    with pytest.raises(ConfigError, match=f"given by its directory: {place}"):
        examine([str(place / "metrics.jsonl")])


def test_a_clock_ratio_has_one_name_in_one_output() -> None:
    # A family without a row has its cap where watching begins.
    words = ["task=pendulum", "clocks.batch_size=2000", "clocks.update_frequency=200"]
    report = examine(words)
    assert "ratio 10 (watch)" in " ".join(report.facts)
    assert next(f for f in report.findings if f.symptom == "clock ratio").urgency == "watch"


@pytest.mark.parametrize("name", ["first_ratio", "gradient_norm", "policy_kl", "diversity"])
def test_an_alarm_that_is_on_is_never_called_in_step(name: str, tmp_path: Path) -> None:
    rows = [{"frames": k, f"alarm/{name}": 3.0, "diag/kl_behaviour": 0.001} for k in range(1, 40)]
    event = happened(name, 5, values={"max": 0.5, "usual": None}, cure="mend it.")
    report = examine([str(written(tmp_path / "run", rows, [event]))])
    assert report.verdict.startswith("danger")
    found = next(f for f in report.findings if f.urgency == "danger")
    # What is to be typed can be typed; else there are words.
    assert (found.change == "") == (found.advice == "mend it.")
    settle(compose(["task=pendulum", *found.change.split()]))
    assert "not finite" in found.reading


@pytest.mark.parametrize("name", ["diag/kl_behaviour", "diag/ess", "diag/grad_norm_max"])
def test_a_reading_that_overflowed_is_an_emergency(name: str, tmp_path: Path) -> None:
    rows = [{"frames": k, name: 0.01} for k in range(1, 40)] + [{"frames": 40, name: None}]
    assert examine([str(written(tmp_path / "run", rows, []))]).verdict.startswith("danger")


def test_minimal_diagnostics_judge_by_the_number_of_actions_too(tmp_path: Path) -> None:
    run(tmp_path, "task=halfcheetah", "diagnostics=minimal", rounds=2)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows[-1]["diag/action_dims"] == 6.0


def test_a_run_whose_budget_grew_is_not_finished(tmp_path: Path) -> None:
    place = written(tmp_path / "lr=3e-4", [{"frames": 1000}], [], "total_frames=300_000")
    for frames, state in (
        (299_008, ", finished"),
        (100_000, "not finished, and no process is training"),
    ):
        (place / "result.json").write_text(json.dumps({"frames": frames, "rounds": frames // 2048}))
        # Also where the directory looks like an override.
        assert examine([str(place)]).title.endswith(state)


@pytest.mark.parametrize("line", ['{"frames": 5, "x"', "5", '{"x": 1}'])
def test_a_line_that_cannot_be_read_is_named_by_the_doctor_and_loses_no_run(
    line: str, tmp_path: Path
) -> None:
    place = written(tmp_path / "run", [{"frames": 1000}], [])
    for name in ("metrics.jsonl", "events.jsonl"):
        text = f'{line}\n{{"frames": 1000, "kind": "x"}}\n'
        old = (place / name).read_text()
        (place / name).write_text(text)
        with pytest.raises(ConfigError, match=f"{name}, line 1: not JSON"):
            examine([str(place)])
        (place / name).write_text(old)
    (place / "metrics.jsonl").write_text(text)
    keep_rows(place / "metrics.jsonl", 2000)
    assert [row["frames"] for row in read_metrics(place / "metrics.jsonl")] == [1000]


def test_a_broken_configuration_names_its_key(tmp_path: Path) -> None:
    place = written(tmp_path / "run", [{"frames": 1000}], [])
    text = (place / "config.yaml").read_text()
    (place / "config.yaml").write_text(text.replace("num_envs: 8\n", "num_envs: 0\n"))
    with pytest.raises(ConfigError, match="num_envs: Input should be greater"):
        examine([str(place)])


@pytest.mark.parametrize(
    "words",
    [
        ["clocks.update_epochs=1"],
        ["optim.max_grad_norm=0.1"],
        ["algo.target_kl=0.005"],
        ["interventions=off"],
        ["interventions=guard"],
        ["clocks.lag=8"],
        ["collect=async"],
    ],
    ids=" ".join,
)
def test_what_is_to_be_changed_is_no_setting_that_is_there_and_loosens_nothing(
    words: list[str],
) -> None:
    config = compose(["task=halfcheetah", *words])
    for check in checks(config, limits("calibrated", {}), 1.0, 6.0):
        for change in check.change.split():
            key, value = change.split("=")
            assert change not in words
            if key in ("optim.max_grad_norm", "algo.target_kl", "clocks.update_epochs"):
                group, name = key.split(".")
                now = getattr(getattr(config, group), name)
                assert now is None or float(value) < now
            settle(compose(["task=halfcheetah", *words, *check.change.split()]))


def test_a_damaged_run_directory_is_named(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text((finished / "metrics.jsonl").read_text())
    with pytest.raises(ConfigError, match=r"config.yaml cannot be read"):
        examine([str(tmp_path)])


def test_a_saved_window_is_measured_anew(finished: Path) -> None:
    report = examine([str(checkpoint.listed(finished)[-1])])
    assert report.facts[0].startswith("128 frames of versions 3 to 3, learner at 4")
    found = urgencies(report)
    assert found["rollouts visit few places"] in ("fine", "warn")
    assert "gradients line up" not in found or found["gradients line up"]


def test_what_is_neither_a_place_nor_an_override_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run directory and no checkpoint"):
        examine([str(tmp_path / "nowhere")])
    with pytest.raises(ConfigError, match="did you mean"):
        examine(["clocks.batch_sise=3"])


def test_a_wrong_path_names_the_nearest_run(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder of its own: beside `finished` other tests put their runs.
    finished = Path(shutil.copytree(finished, tmp_path / "runs" / "finished0"))
    wrong = finished.with_name("finshed0")
    near = f"there are runs in {finished}"
    for job in (examine, draw):
        with pytest.raises(ConfigError, match=re.escape(near)):
            job([str(wrong)])
        with pytest.raises(ConfigError, match=re.escape(near)):
            job([str(finished.parent)])
    # Said as it was typed.
    monkeypatch.chdir(finished.parent)
    with pytest.raises(ConfigError, match=rf"there are runs in .*\b{finished.name}"):
        examine(["nowhere"])


def test_a_run_is_not_examined_under_other_settings(finished: Path) -> None:
    for job in (examine, draw):
        for words in ([str(finished), "clocks=safe"], ["clocks=safe", str(finished)]):
            with pytest.raises(ConfigError, match=r"read as it is.*leave out clocks=safe; or"):
                job(words)
        with pytest.raises(ConfigError, match="one at a time"):
            job([str(finished), str(finished.parent)])
    # What is no place is no override either.
    with pytest.raises(ConfigError, match="no override: write key=value"):
        examine(["task", "clocks=safe"])


@pytest.mark.parametrize(
    ("value", "below", "urgency"),
    [(1.0, False, "fine"), (3.0, False, "warn"), (9.0, False, "danger"), (9.0, True, "fine")],
)
def test_a_check_judges_by_its_two_levels(value: float, below: bool, urgency: str) -> None:
    watch, danger = (2.0, 5.0) if not below else (5.0, 2.0)
    check = Check("s", "p", "n", watch, danger, "do", below=below)
    found = check.finding(value)
    assert found.urgency == urgency
    assert bool(found.change) == (urgency != "fine")


def test_json_and_text_say_the_same(finished: Path) -> None:
    report = examine([str(finished)])
    parsed = json.loads(json.dumps(report.as_dict()))
    assert parsed["verdict"] == report.verdict
    text = report.text()
    assert all(f.urgency in text for f in report.findings)
    assert text.splitlines()[-1] == f"verdict: {report.verdict}"


def test_the_command_itself_prints_json(finished: Path, tmp_path: Path) -> None:
    done = command([str(finished), "--json"], tmp_path, "doctor")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["title"] == f"run {finished}, finished"
    wrong = command([str(tmp_path / "nowhere")], tmp_path, "doctor")
    assert wrong.returncode == 2
    assert "no run directory" in wrong.stderr


def test_a_run_that_learns_draws_its_pictures(tmp_path: Path) -> None:
    words = tiny(tmp_path, "task=pendulum", "diagnostics.pictures=true", rounds=4)
    import rl_twoclocks

    rl_twoclocks.train(rl_twoclocks.compose(words))
    drawn = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {"clocks.png", "rollout_entropy.png"} <= drawn
    assert all(path.stat().st_size > 10_000 for path in (tmp_path / "pictures").iterdir())


@pytest.mark.parametrize("task", ["halfcheetah", "cartpole", "pendulum", "inverted_pendulum"])
@pytest.mark.parametrize("clocks", ["classic", "safe"])
def test_every_change_is_a_command_line_and_every_fine_value_lies_in_the_healthy_range(
    task: str, clocks: str
) -> None:
    config = compose([f"task={task}", f"clocks={clocks}"])
    for check in checks(config, limits("calibrated", {}), versions=4.0, dims=6.0):
        assert check.finding(check.watch).urgency == "fine"
        assert check.healthy.startswith((">= " if check.below else "<= ") + f"{check.watch:.2g}")
        step = -0.01 if check.below else 0.01
        assert check.finding(check.watch + step).urgency in ("warn", "danger")
        # What is to be typed can be typed: it composes, and is allowed.
        settle(compose([f"task={task}", f"clocks={clocks}", *check.change.split()]))
