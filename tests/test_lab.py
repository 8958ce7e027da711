"""The lab: scenarios that can be run, a rule that judges, a page that says it."""

from __future__ import annotations

import csv
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from rl_twoclocks import batch, rundir, scenario, verdict
from rl_twoclocks.aggregate import Estimate, interquartile_mean
from rl_twoclocks.config import ConfigError
from rl_twoclocks.config_commands import (
    BudgetConfig,
    ClaimConfig,
    LabCommandConfig,
    ScenarioConfig,
)
from rl_twoclocks.configure import compose
from rl_twoclocks.lab import experiment
from rl_twoclocks.lab_page import shared_curve
from rl_twoclocks.safety import settle
from rl_twoclocks.scenario import Run
from tests.command_envs import command
from tests.envs import overrides

NAMES, READING = scenario.names(), "eval/return_mean"


def test_the_write_ups_scenarios_are_there() -> None:
    assert NAMES == [
        "big_batch", "high_ratio", "narrow_policy", "policy_lag", "replay_mixture",
        "stale_broadcast", "stale_gradients",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_of_every_scenario_can_be_run(name: str) -> None:
    found = scenario.load(name)
    assert found.question.endswith("?")
    assert found.rule.endswith(".") and "judged by" in found.rule
    every = [("short", arm) for arm in scenario.every_arm(found)]
    # The budgets differ in the same way for all arms.
    for budget, arm in [*every, *((b, arm) for b in ("smoke", "full") for arm in found.arms)]:
        _, derived = settle(compose(scenario.words_of(found, budget, arm, seed=1)))
        # Enough rounds for a collapse to be seen; what fills a queue comes on top.
        assert derived.rounds >= 5, (budget, arm)


def test_arms_with_generators_take_a_core_for_each() -> None:
    found = scenario.load("stale_broadcast")
    taken = {arm: scenario._processes(scenario.composed(found, "short", arm)) for arm in found.arms}
    assert taken == {"healthy": 1, "fault": 2, "cure": 2}


def test_the_words_of_a_run() -> None:
    found = scenario.load("policy_lag")
    config = compose(scenario.words_of(found, "short", "fault", 3))
    # Eight rounds fill the queue.
    assert (config.seed, config.total_frames) == (3, 200_000 + 8 * 2048)
    assert config.eval.every_frames == 200_000 // scenario.EVALUATIONS["short"]
    assert not config.logger.wandb
    longer = scenario.composed(scenario.load("big_batch"), "short", "long_6144")
    assert longer.total_frames == 2 * 200_000


WINDOW = ["clocks.batch_size", "clocks.sample", "clocks.update_epochs"]
EXAMINED = {
    # What makes the fault, and what cures it: nothing else may differ.
    "big_batch": (["clocks.batch_size", "clocks.update_frequency"], ["optim"]),
    "high_ratio": (WINDOW, WINDOW),
    "narrow_policy": (["model.log_std_init", "clocks.lag"], ["algo.entropy_coeff"]),
    "policy_lag": (["clocks.lag"], ["algo"]),
    "replay_mixture": (WINDOW, [*WINDOW, "algo"]),
    "stale_broadcast": (["collect", "clocks.publish_interval"], ["collect"]),
    "stale_gradients": (["clocks.gradient_lag"], ["clocks.gradient_lag"]),
}


@pytest.mark.parametrize("name", NAMES)
def test_arms_differ_in_what_is_examined_alone(name: str) -> None:
    found = scenario.load(name)
    healthy, fault, cure = (
        rundir.plain(scenario.composed(found, "short", arm)) for arm in ("healthy", "fault", "cure")
    )
    for one, other, may in ((healthy, fault, EXAMINED[name][0]), (fault, cure, EXAMINED[name][1])):
        keys = [line.partition(":")[0] for line in rundir.difference(one, other)]
        assert keys
        assert [key for key in keys if not key.startswith(tuple(may))] == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != "big_batch"])
def test_the_fault_is_ppo_as_it_is(name: str) -> None:
    found = scenario.load(name)
    assert scenario.composed(found, "short", "fault").algo.name == "clipped"


@pytest.mark.parametrize(
    ("name", "arms"),
    [
        ("high_ratio", ["healthy", "fault", "cure", "ratio_10", "ratio_50_decoupled",
                        "every_256", "every_1024", "every_2048"]),
        ("big_batch", ["healthy", "fault", "window_6144_equal_steps", "dense_2048", "dense_6144"]),
        ("replay_mixture", ["healthy", "fault", "cure", "pool_clipped", "replay_decoupled"]),
    ],
)  # fmt: skip
def test_arms_that_are_said_to_take_as_many_optimizer_steps_do(name: str, arms: list[str]) -> None:
    found = scenario.load(name)
    rates = set()
    for arm in arms:
        clocks = scenario.composed(found, "short", arm).clocks
        frames = (clocks.sample or clocks.batch_size) * clocks.update_epochs
        rates.add(frames / clocks.minibatch_size / clocks.update_frequency)
    assert len(rates) == 1


# The others take long and differ from these in their words alone, which are composed above.
@pytest.mark.parametrize(
    "name",
    [
        n if n in ("policy_lag", "stale_gradients") else pytest.param(n, marks=pytest.mark.slow)
        for n in NAMES
    ],
)
def test_every_scenario_is_one_command(name: str, tmp_path: Path) -> None:
    """With the three arms that count; that the others can be run is checked above."""
    arms = ["healthy", "fault", "cure"]
    words = [
        f"scenario={name}",
        "budget=smoke",
        f"out={tmp_path / 'x'}",
        f"arms=[{','.join(arms)}]",
    ]
    done = command([*words, "jobs=1"], tmp_path, "lab", seconds=400)
    assert done.returncode == 0, done.stderr
    assert "undecided: 1 seeds prove nothing" in done.stdout
    found = scenario.load(name)
    runs = scenario.read(found, tmp_path / "x")
    assert [run.arm for run in runs] == arms
    for run in runs:
        assert run.frames == compose(run.command.split()).total_frames
        assert run.curve[-1][1] == run.value
        assert set(run.shown) <= set(found.shown)
    assert set(runs[1].shown) == set(found.shown)
    assert (tmp_path / "x" / "index.html").is_file()


def test_unknown_arms_are_answered_with_the_nearest(tmp_path: Path) -> None:
    found = scenario.load("big_batch")
    with pytest.raises(ConfigError, match="did you mean dense_6144"):
        scenario.run(found, "smoke", tmp_path, 1, ["dense_6143"])
    values = found.model_dump()
    for key, value in (
        ("baselines", {"no_arm": "healthy"}),
        ("claims", [{"claim": "x", "lower": "fault", "higher": "no_arm"}]),
    ):
        with pytest.raises(ValueError, match="there is no arm no_arm"):
            ScenarioConfig.model_validate(values | {key: value})


def test_arms_that_need_a_server_that_is_not_there_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RL_TWOCLOCKS_REDIS_URL", "redis://127.0.0.1:1")
    found = scenario.load("stale_broadcast")
    assert scenario.run(found, "smoke", tmp_path, 1, ["fault_redis"]) == []
    assert "fault_redis: left out" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_scenario_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean policy_lag"):
        scenario.load("policy_lagg")


def exact(value: float) -> Estimate:
    return Estimate(value, value - 0.05, value + 0.05)


@pytest.mark.parametrize(
    ("fault", "cure", "expected"),
    [
        (0.3, 0.95, "reproduces and is cured"),
        (0.3, 0.8, "reproduces, not cured"),
        (0.66, 0.95, "does not reproduce"),
        (0.59, 0.9, "reproduces and is cured"),
        (0.62, 0.9, "not shown"),
    ],
)
def test_the_rule(fault: float, cure: float, expected: str) -> None:
    scores = {"healthy": exact(1.0), "fault": exact(fault), "cure": exact(cure)}
    assert verdict.judge(scores).startswith(expected)


def test_intervals_that_touch_prove_nothing() -> None:
    wide = Estimate(0.3, 0.0, 0.97)
    scores = {"healthy": Estimate(1.0, 0.9, 1.1), "fault": wide, "cure": exact(1.0)}
    assert verdict.judge(scores).startswith("not shown")
    scores = {
        "healthy": exact(1.0),
        "fault": Estimate(0.55, 0.3, 0.8),
        "cure": Estimate(0.91, 0.1, 1.5),
    }
    assert verdict.judge(scores) == "reproduces, cure not shown"
    scores["cure"] = Estimate(0.85, 0.7, 0.95)
    assert verdict.judge(scores) == "reproduces, cure not shown"
    # A cure whose interval reaches down to what counts as a failure is none yet.
    scores |= {"fault": exact(0.2), "cure": Estimate(0.95, 0.55, 1.1)}
    assert verdict.judge(scores) == "reproduces, cure not shown"


def arms_of(**values: list[float]) -> dict[str, list[Run]]:
    return {arm: [Run(arm, k, v) for k, v in enumerate(found)] for arm, found in values.items()}


def of_maze() -> ScenarioConfig:
    return scenario.load("big_batch").model_copy(update={"random": 10.0})


def test_a_healthy_arm_that_learns_nothing_decides_nothing() -> None:
    runs = arms_of(healthy=[9.0, 10.0] * 5, fault=[10.0] * 10, cure=[12.0] * 10)
    found = verdict.conclude(of_maze(), "it", "short", [r for arm in runs.values() for r in arm])
    assert found.verdict == "undecided: the healthy arm learnt nothing"


def test_to_stand_still_is_not_to_have_learnt() -> None:
    """A random policy of HalfCheetah reads -280, the mean action of one that has learnt nothing -1."""
    scene = scenario.load("policy_lag")
    still = [
        Run(arm, k, -1.0 + 0.01 * k) for arm in ("healthy", "fault", "cure") for k in range(10)
    ]
    found = verdict.conclude(scene, "policy_lag", "short", still)
    assert found.verdict == "undecided: the healthy arm learnt nothing"


def test_to_be_stuck_is_no_worse_than_to_diverge() -> None:
    runs = arms_of(healthy=[110.0] * 6, fault=[-90.0] * 6)
    assert verdict.scores_of(of_maze(), runs)["fault"] == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("healthy", "fault", "cure", "said"),
    [
        (0, 7, 0, "reproduces and is cured"),
        (0, 7, 5, "reproduces, cure not shown"),
        (0, 7, 18, "reproduces, not cured"),
        (0, 1, 0, "does not reproduce"),
        (2, 6, 0, "not shown"),
    ],
)
def test_a_failure_of_some_runs_is_judged_by_how_many_collapse(
    healthy: int, fault: int, cure: int, said: str
) -> None:
    """Seven of twenty leave an interquartile mean of 0.8: it is judged by collapses."""
    fallen = {"healthy": healthy, "fault": fault, "cure": cure}
    runs = [
        Run(arm, k, 0.0 if k < n else 100.0, collapse=5 if k < n else None)
        for arm, n in fallen.items()
        for k in range(20)
    ]
    found = scenario.load("replay_mixture")
    assert verdict.conclude(found, "it", "short", runs).verdict.startswith(said)


def test_scores_are_relative_to_the_healthy_arm_of_the_same_task() -> None:
    runs = arms_of(
        healthy=[110.0, 110.0], fault=[10.0, 10.0], cure=[60.0, 60.0],
        dense_2048=[30.0, 30.0], dense_6144=[20.0, 20.0], noisy_6144=[99.0],
    )  # fmt: skip
    scores = verdict.scores_of(of_maze(), runs)
    # The healthy arm of noisy_6144 has no run.
    assert {arm: found.value for arm, found in scores.items()} == {
        "healthy": 1.0, "fault": 0.0, "cure": 0.5, "dense_2048": 1.0, "dense_6144": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lower", "higher", "said"),
    [
        ([11.0, 12.0, 13.0, 12.0, 11.0], [60.0, 70.0, 80.0, 70.0, 60.0], "holds"),
        (
            [60.0, 70.0, 80.0, 70.0, 60.0],
            [11.0, 12.0, 13.0, 12.0, 11.0],
            "does not hold: it is the",
        ),
        ([20.0, 90.0, 50.0, 20.0, 90.0], [30.0, 80.0, 50.0, 30.0, 80.0], "not shown"),
        (
            [50.0, 51.0, 52.0, 51.0, 50.0],
            [50.0, 52.0, 51.0, 51.0, 50.0],
            "does not hold: there is no",
        ),
        ([1.0, 2.0, 3.0, 2.0], [6.0, 7.0, 8.0, 7.0, 6.0], "undecided: fewer than 5"),
        ([], [6.0, 7.0, 8.0, 7.0, 6.0], "undecided: fewer than 5"),
    ],
)
def test_further_claims(lower: list[float], higher: list[float], said: str) -> None:
    runs = arms_of(healthy=[110.0] * 5, fault=lower, window_6144=higher)
    runs = {arm: found for arm, found in runs.items() if found}
    claim = ClaimConfig(claim="it", lower="fault", higher="window_6144")
    assert verdict.tell(of_maze(), claim, runs).verdict.startswith(said)
    # Not before all seeds are there: a page is written at every sitting.
    assert verdict.tell(of_maze(), claim, runs, asked=10).verdict.startswith("undecided")
    # Nor where the healthy arm learnt nothing, whatever the sign of its gain.
    for level in (10.0, 5.0):
        runs["healthy"] = arms_of(healthy=[level] * 5)["healthy"]
        assert verdict.tell(of_maze(), claim, runs).verdict.startswith("undecided")


@pytest.mark.parametrize("short", ["healthy", "dense_2048", "fault", "dense_6144"])
def test_a_claim_waits_for_the_seeds_of_its_baselines_too(short: str) -> None:
    values = {"healthy": 110.0, "dense_2048": 110.0, "fault": 20.0, "dense_6144": 100.0}
    runs = arms_of(**{arm: [value] * 10 for arm, value in values.items()})
    claim = ClaimConfig(claim="it", lower="fault", higher="dense_6144")
    assert verdict.tell(of_maze(), claim, runs, asked=10).verdict == "holds"
    runs[short] = runs[short][:6]
    assert (
        verdict.tell(of_maze(), claim, runs, asked=10).verdict == "undecided: 6 of 10 seeds so far"
    )


def test_a_scores_interval_holds_what_the_healthy_seeds_leave_open() -> None:
    healthy = [60.0, 80.0, 100.0, 120.0, 140.0, 160.0]
    sure = verdict.scores_of(of_maze(), arms_of(healthy=[110.0] * 6, fault=[60.0] * 6))["fault"]
    unsure = verdict.scores_of(of_maze(), arms_of(healthy=healthy, fault=[60.0] * 6))["fault"]
    assert sure.value == pytest.approx(unsure.value) == pytest.approx(0.5)
    assert sure.high == pytest.approx(sure.low)
    assert unsure.low < 0.47 and unsure.high > 0.53


def dense(**values: list[float]) -> dict[str, list[Run]]:
    return arms_of(healthy=[110.0] * 6, **values)


def test_a_claim_about_a_task_whose_healthy_arm_learnt_nothing_is_undecided() -> None:
    claim = ClaimConfig(claim="it", lower="fault", higher="dense_6144")
    runs = dense(fault=[20.0] * 6, dense_2048=[9.0] * 6, dense_6144=[10.0] * 6)
    assert verdict.tell(of_maze(), claim, runs).verdict.startswith("undecided")


def test_claims_across_tasks_are_not_decided_by_chance_in_the_healthy_arms() -> None:
    """No difference in truth: definite verdicts must be rare, whatever both healthy arms came to."""
    stream, claim = (
        np.random.default_rng(0),
        ClaimConfig(claim="it", lower="fault", higher="dense_6144"),
    )
    definite = 0
    for _ in range(60):
        runs = arms_of(
            healthy=(80 + 12 * stream.standard_normal(10)).tolist(),
            dense_2048=(80 + 12 * stream.standard_normal(10)).tolist(),
            fault=(76 + 3 * stream.standard_normal(10)).tolist(),
            dense_6144=(76 + 3 * stream.standard_normal(10)).tolist(),
        )
        wrong = ("holds", "does not hold: it is the other way")
        definite += verdict.tell(of_maze(), claim, runs).verdict.startswith(wrong)
    assert definite <= 9
    clear = dense(fault=[30.0] * 6, dense_2048=[100.0, 110.0] * 3, dense_6144=[100.0, 104.0] * 3)
    assert verdict.tell(of_maze(), claim, clear).verdict == "holds"


def test_the_sentence_says_how_many_falls_had_a_warning_before() -> None:
    runs = arms_of(healthy=[100.0] * 6, cure=[100.0] * 6)
    runs["fault"] = [
        Run("fault", k, 0.0, 100, 50, {"policy_kl": 20 if k < 2 else 70}, stood=45)
        for k in range(4)
    ]
    runs["fault"] += [Run("fault", k, 90.0, alarms={"policy_kl": k}) for k in (4, 5)]
    runs["healthy"][0] = Run("healthy", 0, 100.0, alarms={"critic_jump": 3})
    found = [run for arm in runs.values() for run in arm]
    text = verdict.conclude(of_maze(), "it", "short", found).text
    assert (
        "Runs that collapsed: fault 4 of 6, cure 0 of 6, healthy 0 of 6. 2 of the faulty ones had a "
        "warning before, a median of 25 rounds before the last good evaluation. So had 2 of the 2 "
        "that stood."
    ) in text
    assert text.endswith(f"Not run yet: {', '.join(of_maze().controls)}.")


def test_falls_and_crashes_are_compared_too() -> None:
    early = [Run("fault", k, 0.0, fall=100 + k, collapse=3, frames=1000) for k in range(6)]
    late = [Run("cure", k, 0.0, fall=500 + k, collapse=9, frames=1000) for k in range(5)]
    standing = [Run("cure", k, 0.0, frames=1000) for k in range(9, 30)]
    healthy = [Run("healthy", k, 100.0, frames=1000) for k in range(6)]
    runs = {"healthy": healthy, "fault": early, "cure": [*late, *standing]}
    fall = ClaimConfig(claim="earlier", lower="fault", higher="cure", of="fall")
    assert verdict.tell(of_maze(), fall, runs).verdict == "holds"
    crashes = ClaimConfig(claim="fewer", lower="cure", higher="fault", of="collapses")
    assert verdict.tell(of_maze(), crashes, runs).verdict == "holds"
    few = runs | {"fault": early[:4]}
    assert verdict.tell(of_maze(), fall, few).verdict.startswith("undecided")


def test_a_run_that_stands_has_not_fallen_early() -> None:
    """Of the runs that fall alone, the sturdy arm would be the one that falls first."""
    weak = [Run("fault", k, 0.0, fall=400 + k, collapse=9, frames=1000) for k in range(20)]
    sturdy = [Run("cure", k, 0.0, fall=50, collapse=1, frames=2000) for k in range(3)]
    sturdy += [Run("cure", k, 0.0, frames=2000) for k in range(3, 20)]
    claim = ClaimConfig(claim="earlier", lower="fault", higher="cure", of="fall")
    healthy = [Run("healthy", k, 100.0, frames=1000) for k in range(6)]
    told = verdict.tell(of_maze(), claim, {"healthy": healthy, "fault": weak, "cure": sturdy})
    assert told.verdict == "holds"
    # As far as both were looked at: to the shorter budget.
    assert told.higher.startswith("cure 1e+03")


def test_the_interval_of_a_difference_of_shares() -> None:
    # Newcombe 1998, table II, contrast (a) 56/70 - 48/80, method 10.
    found = verdict.newcombe(56, 70, 48, 80)
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_fewer_seeds_than_asked_for_decide_nothing() -> None:
    runs = arms_of(healthy=[100.0] * 9, fault=[10.0] * 9, cure=[100.0] * 7)
    found = verdict.conclude(of_maze(), "it", "short", [r for arm in runs.values() for r in arm])
    assert found.verdict == "undecided: 7 of 10 seeds so far"


def test_the_interval_of_a_share() -> None:
    # 5 of 10 by hand: centre 0.5, half-width 1.96 / 1.384 * sqrt(0.025 + 0.0096).
    assert verdict.wilson(5, 10).high - 0.5 == pytest.approx(0.2634, abs=1e-4)
    assert verdict.wilson(0, 10).low == 0.0
    # The classic value for none of ten.
    assert verdict.wilson(0, 10).high == pytest.approx(0.2775, abs=1e-4)


def test_results_can_be_read_back(tmp_path: Path) -> None:
    found = scenario.load("policy_lag")
    shown = dict.fromkeys(found.shown, 0.5)
    runs = [
        Run("fault", 1, -12.25, 4096, 2, {"policy_kl": 1, "reward_cliff": 3}, shown, stood=1),
        Run("healthy", 2, 500.0, command="task=cartpole seed=2"),
        Run("fault", 3, -30.0, 100, 1, diverged=True, frames=5000),
    ]
    scenario.write_results(found, "short", runs, tmp_path / "results.csv")
    assert scenario.read_results(found, tmp_path / "results.csv") == runs


def test_a_lead_counts_from_alarms_that_healthy_runs_do_not_raise() -> None:
    alarms = {"critic_jump": 1, "policy_kl": 4, "reward_cliff": 8}
    fallen = Run("fault", 1, 0.0, 4096, 11, alarms, stood=9)
    healthy = [Run("healthy", 1, 500.0, alarms={"critic_jump": 2}), Run("healthy", 2, 500.0)]
    assert verdict.leads([fallen], []) == [8]
    assert verdict.leads([fallen], healthy) == [5]
    late = Run("fault", 2, 0.0, 4096, 5, {"policy_kl": 4}, stood=3)
    stood = Run("fault", 3, 500.0, alarms={"policy_kl": 4})
    assert verdict.leads([late, stood], healthy) == []


@pytest.mark.parametrize("name", [*verdict.SETTINGS, *verdict.FALLS])
def test_no_warning_is_what_was_planted_or_the_fall_itself(name: str) -> None:
    fallen = Run("fault", 1, 0.0, 4096, 11, {name: 4, "policy_kl": 6}, stood=9)
    assert verdict.leads([fallen], []) == [3]


def written(place: Path, curve: list[float], diverged: bool = False) -> None:
    """A finished run of these evaluations, one a round."""
    place.mkdir(parents=True)
    place.with_suffix(".txt").write_text("python -m rl_twoclocks.train task=pendulum")
    rows = [
        {"frames": 100 * (k + 1), "clock/policy_version": k, READING: value}
        for k, value in enumerate(curve)
    ]
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if diverged:
        place.with_suffix(".diverged").touch()
    else:
        (place / "result.json").write_text(json.dumps({"frames": 100 * len(curve)}))


def scattered(tmp_path: Path, healthy: float, n: int = 30) -> list[Run]:
    """Runs of `fault` that scatter around -25 without learning anything, `random` being -30."""
    found = tiny(tmp_path / "env")
    stream = np.random.default_rng(0)
    for k in range(5):
        written(tmp_path / "healthy" / f"seed{k}", [-30.0, healthy, healthy])
    for k in range(n):
        written(tmp_path / "fault" / f"seed{k}", (-25 + 6 * stream.standard_normal(20)).tolist())
    return [run for run in scenario.read(found, tmp_path) if run.arm == "fault"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("metrics.jsonl", "", "is not whole"),
        ("metrics.jsonl", '{"frames": 100, "eval/return_mean": 3.0}', "is not whole"),
        ("metrics.jsonl", '{"frames": 300}', "is not whole"),
        ("metrics.jsonl", 'x\n{"frames": 300}', "cannot be read"),
        ("result.json", "", "cannot be read"),
        ("result.json", "{}", "cannot be read"),
    ],
)
def test_a_run_whose_records_are_not_whole_is_named_and_not_scored(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    found, place = tiny(tmp_path / "env"), tmp_path / "healthy" / "seed1"
    written(place, [1.0, 2.0, 3.0])
    place.with_name("seeds notes.txt").write_text("of a person")
    assert [run.value for run in scenario.read(found, tmp_path)] == [3.0]
    (place / name).write_text(text)
    with pytest.raises(ConfigError, match=f"healthy/seed1.*{said}"):
        scenario.read(found, tmp_path)


def test_a_run_that_never_learnt_has_not_collapsed(tmp_path: Path) -> None:
    assert sum(run.collapse is not None for run in scattered(tmp_path, 300.0)) == 0


def test_nothing_falls_where_the_healthy_arm_learnt_nothing(tmp_path: Path) -> None:
    assert sum(run.collapse is not None for run in scattered(tmp_path, -40.0)) == 0


def test_a_collapse_begins_with_the_first_of_three_evaluations(tmp_path: Path) -> None:
    found = tiny(tmp_path / "env")
    written(tmp_path / "healthy" / "seed1", [-30.0, 170.0, 170.0])
    # One lucky evaluation is no height; two are, and the fall counts from where it began.
    written(tmp_path / "fault" / "seed1", [-30.0, 100.0, -20.0, -20.0, -20.0, -20.0])
    written(tmp_path / "fault" / "seed2", [-30.0, 100.0, 90.0, -20.0, -10.0, -20.0, 100.0])
    written(tmp_path / "fault" / "seed3", [-30.0, 100.0, 90.0, -20.0, -10.0, 100.0])
    written(tmp_path / "cure" / "seed1", [-30.0], diverged=True)
    runs = {(r.arm, r.seed): r for r in scenario.read(found, tmp_path)}
    assert [runs["fault", k].fall for k in (1, 2, 3)] == [None, 400, None]
    assert runs["fault", 2].collapse == 3 and runs["fault", 2].stood == 2
    assert (
        runs["cure", 1].fall == 100
        and runs["cure", 1].stood == 0
        and runs["cure", 1].value == found.random
    )


def test_the_curve_goes_on_for_runs_that_diverged(tmp_path: Path) -> None:
    found = tiny(tmp_path / "env")
    written(tmp_path / "healthy" / "seed1", [-30.0, 170.0, 170.0])
    written(tmp_path / "fault" / "seed1", [-30.0, 100.0, 100.0])
    for k in (2, 3, 4):
        written(tmp_path / "fault" / f"seed{k}", [-30.0], diverged=True)
    written(tmp_path / "cure" / "seed1", [-30.0], diverged=True)
    runs = scenario.read(found, tmp_path)
    frames, curves = shared_curve(found, [r for r in runs if r.arm == "fault"])
    # The survivor is one of four: the interquartile mean is that of the others.
    assert frames.tolist() == [100, 200, 300]
    assert interquartile_mean(curves.T).tolist() == [-30.0] * 3
    assert shared_curve(found, [r for r in runs if r.arm == "cure"])[1].tolist() == [[-30.0]]
    assert shared_curve(found, [])[0].size == 0


class Balanced(HTMLParser):
    """Checks that what opens closes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tiny(path: Path) -> ScenarioConfig:
    base = [w for w in overrides("Target", path) if not w.startswith("run_dir=")]
    evaluated = ["eval.enabled=true", "eval.episodes=2", "eval.num_envs=2", "logger=jsonl"]
    budget = BudgetConfig(seeds=1, overrides=["total_frames=384"])
    return ScenarioConfig(
        question="Does <b>it</b> fall?",
        claim="it falls",
        rule="Judged by fault.",
        base=[*base, *evaluated],
        random=-30.0,
        arms={"healthy": [], "fault": ["optim.learning_rate=0.0"], "cure": []},
        budgets=dict.fromkeys(("smoke", "short", "full"), budget),
    )


def test_runs_are_made_once_and_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tiny(tmp_path)
    assert scenario.run(found, "smoke", tmp_path, jobs=2) == []
    assert capsys.readouterr().out.count("done") == 3
    assert scenario.run(found, "smoke", tmp_path, jobs=2) == []
    assert capsys.readouterr().out == ""
    runs = scenario.read(found, tmp_path)
    scenario.write_results(found, "smoke", runs, tmp_path / "results.csv")
    conclusion = verdict.conclude(found, "tiny", "smoke", runs)
    verdict.write(found, conclusion, runs, tmp_path)
    with open(tmp_path / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["arm"], r["seed"]) for r in rows] == [
        (arm, "501") for arm in ("healthy", "fault", "cure")
    ]
    # The same arm, seed and command give the same run.
    assert rows[0]["value"] == rows[2]["value"]
    saved = json.loads((tmp_path / "conclusion.json").read_text())
    assert saved["verdict"] == conclusion.verdict
    assert saved["scores"]["healthy"] == saved["scores"]["cure"]
    text = (tmp_path / "index.html").read_text()
    page = Balanced()
    page.feed(text)
    assert page.open == []
    assert conclusion.text in text
    assert "<b>it</b>" not in text


@pytest.mark.slow
def test_runs_that_fail_are_named(tmp_path: Path) -> None:
    found = tiny(tmp_path)
    broken = found.model_copy(
        update={"arms": found.arms | {"fault": ["task.env_id=twoclocks-test/Raising-v0"]}}
    )
    assert scenario.run(broken, "smoke", tmp_path, jobs=2) == ["fault/seed501"]
    with pytest.raises(ConfigError, match="no finished run of fault"):
        verdict.conclude(broken, "broken", "smoke", scenario.read(broken, tmp_path))


@pytest.mark.slow
def test_a_run_that_diverges_is_a_result_and_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tiny(tmp_path)
    bad = ["optim.learning_rate=1e30", "optim.schedule=constant", "optim.max_grad_norm=null"]
    found = found.model_copy(update={"arms": found.arms | {"fault": bad}})
    assert scenario.run(found, "smoke", tmp_path, jobs=2) == []
    assert "fault seed501: diverged" in capsys.readouterr().out
    assert scenario.run(found, "smoke", tmp_path, jobs=2) == []
    assert capsys.readouterr().out == ""
    run = next(r for r in scenario.read(found, tmp_path) if r.arm == "fault")
    assert run.diverged and run.value == found.random and run.collapse is not None


def test_a_place_with_runs_of_another_command_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tiny(tmp_path)
    (tmp_path / "fault").mkdir()
    (tmp_path / "fault" / "seed7.txt").write_text("of another scenario")
    monkeypatch.setattr(batch, "ForkedRun", lambda *a, **k: pytest.fail("it began"))
    with pytest.raises(ConfigError, match="of another command"):
        scenario.run(found, "smoke", tmp_path, jobs=1, arms=["healthy"])


def test_what_a_run_was_made_with_is_written_not_what_it_would_be_today(tmp_path: Path) -> None:
    found = tiny(tmp_path)
    run = Run("fault", 1, 5.0, command="task=hopper seed=1")
    scenario.write_results(found, "smoke", [run], tmp_path / "r.csv")
    assert "python -m rl_twoclocks.train task=hopper seed=1" in (tmp_path / "r.csv").read_text()


@pytest.mark.parametrize("name", scenario.names())
def test_all_arms_are_evaluated_as_often(name: str) -> None:
    found = scenario.load(name)
    every = {
        next(w for w in scenario.words_of(found, "short", arm, 1) if w.startswith("eval.every"))
        for arm in scenario.every_arm(found)
    }
    assert len(every) == 1


def test_a_place_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out, said in (
        (tmp_path / "new", "has no finished run of policy_lag"),
        (tmp_path / "file", "cannot be made"),
        (tmp_path / "file" / "below", "cannot be made"),
    ):
        with pytest.raises(ConfigError, match=said):
            experiment(
                LabCommandConfig(scenario="policy_lag", budget="smoke", arms=[], out=str(out))
            )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with (
        rundir.held(tmp_path / "busy"),
        pytest.raises(ConfigError, match="another process is running the lab"),
    ):
        experiment(
            LabCommandConfig(scenario="policy_lag", budget="smoke", out=str(tmp_path / "busy"))
        )


def test_a_conclusion_goes_when_the_runs_go_that_it_was_drawn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tiny(tmp_path / "env").model_copy(update={"controls": {"other": []}})
    monkeypatch.setattr(scenario, "load", lambda name: found)
    place = tmp_path / "out"
    for arm in scenario.every_arm(found):
        written(place / arm / "seed1", [1.0, 2.0, 3.0])
    command = LabCommandConfig(scenario="it", budget="smoke", arms=[], out=str(place))
    monkeypatch.setattr(scenario, "run", lambda *_: [])
    experiment(command)
    made = {"conclusion.json", "index.html", "curves.png", "further-arms.png"}
    assert made <= {path.name for path in place.iterdir()}
    (place / "fault" / "seed1" / "result.json").unlink()
    experiment(command)
    assert not made & {path.name for path in place.iterdir()}
