from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torchrl.data import Bounded

import rl_twoclocks
from rl_twoclocks.collect import BehaviourPolicy
from rl_twoclocks.config import ModelConfig, NormalizeConfig
from rl_twoclocks.diagnostics import first_ratio
from rl_twoclocks.learner import Learner
from rl_twoclocks.models import ActionMap, ActorCritic
from rl_twoclocks.normalize import Normalizer
from rl_twoclocks.record import Display, read_metrics
from tests.envs import run_config

FAST = ("optim.learning_rate=1e-2",)


def rows_of(name: str, path: Path, *more: str) -> list[dict]:
    rl_twoclocks.train(run_config(name, path, *FAST, *more))
    return read_metrics(path / "metrics.jsonl")


def assert_first_ratio_is_one(rows: list[dict], count: int) -> None:
    assert len(rows) == count
    for row in rows:
        assert row["clock/first_ratio_error"] < 1e-5
        assert row["clock/first_ratio_error_max"] < 1e-4
        assert "alarm/first_ratio" not in row
    assert rows[-1]["diag/kl_behaviour"] > 1e-4


@pytest.mark.parametrize("squash", ["tanh", "clip"])
@pytest.mark.parametrize("normalize", ["default", "none"])
@pytest.mark.parametrize("name", ["Target", "Shifted"])
def test_first_ratio_is_one(name: str, normalize: str, squash: str, tmp_path: Path) -> None:
    rows = rows_of(name, tmp_path, f"normalize={normalize}", f"model.squash={squash}")
    assert_first_ratio_is_one(rows, 4)


def test_first_ratio_is_one_for_choices(tmp_path: Path) -> None:
    assert_first_ratio_is_one(rows_of("Choice", tmp_path), 4)


def test_first_ratio_is_one_after_evaluations(tmp_path: Path) -> None:
    more = ("eval.enabled=true", "eval.every_frames=64", "eval.deterministic=false")
    rows = rows_of("Shifted", tmp_path, *more)
    assert all("eval/return_mean" in row for row in rows)
    assert_first_ratio_is_one(rows, 4)


@pytest.mark.parametrize("boundary", ["false", "true"])
def test_first_ratio_is_one_after_a_resume(boundary: str, tmp_path: Path) -> None:
    more = (f"checkpoint.episode_boundary={boundary}",)
    rows_of("Shifted", tmp_path, *more, "total_frames=128")
    assert_first_ratio_is_one(rows_of("Shifted", tmp_path, *more), 4)


@pytest.mark.parametrize("objective", ["clipped", "decoupled", "geppo"])
def test_first_ratio_is_one_on_the_newest_rollout_of_a_long_window(
    objective: str, tmp_path: Path
) -> None:
    more = ("clocks.batch_size=192", f"algo.objective={objective}")
    rows = rows_of("Shifted", tmp_path, *more)
    assert_first_ratio_is_one(rows, 4)
    assert [row["clock/ratio_measured"] for row in rows] == [
        1,
        1,
        2,
        3,
    ]  # the first rollout only calibrates


def test_first_ratio_is_one_where_rollouts_start_with_a_reset(tmp_path: Path) -> None:
    assert_first_ratio_is_one(rows_of("Target", tmp_path, "collect.reset_each_rollout=true"), 4)


@pytest.mark.slow
def test_first_ratio_is_one_with_a_compiled_step(tmp_path: Path) -> None:
    torch.compiler.reset()
    assert_first_ratio_is_one(rows_of("Shifted", tmp_path, "compile=true"), 4)


def meddled_run(monkeypatch, tmp_path: Path, meddle) -> tuple[list[dict], list[str]]:
    """Run with something done between collection and learning; return rows and messages."""
    prepare, messages = Learner.prepare, []

    def meddled(self, window):
        meddle(self, window)
        return prepare(self, window)

    monkeypatch.setattr(Learner, "prepare", meddled)
    monkeypatch.setattr(Display, "message", lambda self, text: messages.append(text))
    rows = rows_of("Shifted", tmp_path)
    return rows, [text for text in messages if "first_ratio" in text]


def test_a_normaliser_updated_between_collection_and_learning_is_named(
    monkeypatch, tmp_path: Path
) -> None:
    def meddle(learner: Learner, window) -> None:
        learner.normalizer.observation.update(torch.full((500, 3), 90.0))
        learner.normalizer.refresh()

    rows, alarms = meddled_run(monkeypatch, tmp_path, meddle)
    assert all(row["alarm/first_ratio"] == 3 for row in rows)
    assert all(row["clock/first_ratio_error"] > 1e-5 for row in rows)
    assert len(alarms) == 1  # one onset
    assert all("normaliser" in text and "weights are not" not in text for text in alarms)


def test_weights_moved_between_collection_and_learning_are_named(
    monkeypatch, tmp_path: Path
) -> None:
    def meddle(learner: Learner, window) -> None:
        learner.update.flat.vector.add_(0.01)

    rows, alarms = meddled_run(monkeypatch, tmp_path, meddle)
    assert all(row["alarm/first_ratio"] == 3 for row in rows)
    assert len(alarms) == 1  # one onset
    assert all("weights are not" in text for text in alarms)


def test_a_network_that_computes_differently_is_named_as_mode(monkeypatch, tmp_path: Path) -> None:
    head = ActorCritic.policy

    def noisy(self, observation):
        loc, scale = head(self, observation)
        return loc + 0.01, scale

    monkeypatch.setattr(ActorCritic, "policy", noisy)
    _, alarms = meddled_run(monkeypatch, tmp_path, lambda learner, window: None)
    assert len(alarms) == 1  # one onset
    assert all("mode" in text for text in alarms)


@pytest.mark.parametrize("part", ["shift", "scale"])
def test_either_statistic_that_moved_is_the_normaliser(part: str) -> None:
    spec = Bounded(-torch.ones(1, 1), torch.ones(1, 1))
    model = ActorCritic(torch.Size([2]), spec, ModelConfig(hidden=[4]), torch.Generator())
    normalizer = Normalizer((2,), 1, 0.9, NormalizeConfig())
    policy = BehaviourPolicy(model, ActionMap(spec, "tanh", "cpu"), normalizer, 1, None)
    assert policy.moved(policy.flat.vector, normalizer) == "mode"
    getattr(normalizer, part).add_(0.1)
    assert policy.moved(policy.flat.vector, normalizer) == "normaliser"
    assert policy.moved(policy.flat.vector + 1, normalizer) == "weights"


@pytest.mark.parametrize(
    ("errors", "sounds"),
    [
        ([0.0, 0.0], False),
        ([1e-6, -5e-6], False),
        ([2e-5, 2e-5], True),
        ([0.0] * 99 + [2e-4], True),
        ([0.0, float("nan")], True),
    ],
)
def test_the_alarm_sounds_above_either_limit_and_on_nan(errors: list[float], sounds: bool) -> None:
    readings, alarm = first_ratio(torch.tensor([errors]), "weights", 1e-5, 1e-4)
    assert (alarm is not None) is sounds
    mean = sum(abs(e) for e in errors) / len(errors)
    assert readings["clock/first_ratio_error"] == pytest.approx(mean, nan_ok=True)


def test_alarms_survive_rounds_that_are_not_logged(monkeypatch, tmp_path: Path) -> None:
    calls = itertools.count()

    def meddle(self, window):
        if next(calls) == 1:
            self.update.flat.vector.add_(0.01)
        return prepare(self, window)

    prepare = Learner.prepare
    monkeypatch.setattr(Learner, "prepare", meddle)
    rows = rows_of("Target", tmp_path, "logger.log_freq=3")
    assert [row["frames"] for row in rows] == [192, 256]
    assert rows[0].get("alarm/first_ratio") == 3
