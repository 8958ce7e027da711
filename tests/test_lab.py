"""The lab: scenarios that can be run, a rule that judges, a page that says it."""

from __future__ import annotations

import csv
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rl_twoclocks import scenario
from rl_twoclocks.aggregate import Estimate
from rl_twoclocks.config import ConfigError
from rl_twoclocks.config_commands import BudgetConfig, ScenarioConfig
from rl_twoclocks.configure import compose, config_dir
from rl_twoclocks.safety import settle
from tests.envs import overrides

NAMES = sorted(path.stem for path in (config_dir() / "lab").glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", ["smoke", "short", "full"])
def test_every_arm_of_every_scenario_can_be_run(name: str, budget: str) -> None:
    found = scenario.load(name)
    for arm in scenario.every_arm(found):
        config, derived = settle(compose(scenario.words_of(found, budget, arm, 3)))
        assert config.seed == 3
        # Enough rounds for a collapse to be seen, even after what fills a queue.
        assert derived.rounds - config.clocks.lag >= 5
    assert found.question.endswith("?")


@pytest.mark.parametrize("name", NAMES)
def test_arms_differ_from_healthy_in_what_is_examined_alone(name: str) -> None:
    found = scenario.load(name)
    healthy = compose(scenario.words_of(found, "short", "healthy", 1))
    for arm in ("fault", "cure"):
        other = compose(scenario.words_of(found, "short", arm, 1))
        assert other != healthy
        for key in ("task", "total_frames", "num_envs", "eval", "normalize"):
            assert getattr(other, key) == getattr(healthy, key)


def test_an_unknown_scenario_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean policy_lag"):
        scenario.load("policy_lagg")


def exact(value: float) -> Estimate:
    return Estimate(value, value - 0.05, value + 0.05)


@pytest.mark.parametrize(
    ("fault", "cure", "verdict"),
    [
        (0.3, 0.95, "reproduces and is cured"),
        (0.3, 0.85, "reproduces, not cured"),
        (0.65, 0.95, "does not reproduce"),
        (0.59, 0.9, "reproduces and is cured"),
    ],
)
def test_the_rule(fault: float, cure: float, verdict: str) -> None:
    scores = {"healthy": exact(1.0), "fault": exact(fault), "cure": exact(cure)}
    assert scenario.judge(scores) == verdict


def test_intervals_that_touch_prove_nothing() -> None:
    wide = Estimate(0.3, 0.0, 0.97)
    scores = {"healthy": Estimate(1.0, 0.9, 1.1), "fault": wide, "cure": exact(1.0)}
    assert scenario.judge(scores) == "does not reproduce"


def test_a_healthy_arm_that_learns_nothing_decides_nothing() -> None:
    scores = scenario.normalised({"healthy": [5.0], "fault": [5.0], "cure": [5.0]}, random=5.0)
    assert scenario.judge(scores).startswith("undecided")


def test_scores_are_relative_to_the_healthy_arm() -> None:
    returns = {"healthy": [110.0, 110.0], "fault": [10.0, 10.0], "cure": [60.0, 60.0]}
    scores = scenario.normalised(returns, random=10.0)
    assert (scores["healthy"].value, scores["fault"].value, scores["cure"].value) == (1.0, 0.0, 0.5)


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
    conclusion = scenario.conclude(found, "smoke", tmp_path)
    scenario.write(found, conclusion, tmp_path)
    with open(tmp_path / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["arm"], r["seed"]) for r in rows] == [
        (arm, "1") for arm in ("healthy", "fault", "cure")
    ]
    # The same arm, seed and command give the same run.
    assert rows[0]["return"] == rows[2]["return"]
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
    assert scenario.run(broken, "smoke", tmp_path, jobs=2) == ["fault/seed1"]
    with pytest.raises(ConfigError, match="no finished run of fault"):
        scenario.conclude(broken, "smoke", tmp_path)
