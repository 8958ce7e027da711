"""The places of one run: drift between rollouts, and worlds of few states."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import rl_twoclocks
from rl_twoclocks import diagnose
from rl_twoclocks.configure import compose
from rl_twoclocks.diagnostics.places import Places
from rl_twoclocks.record import read_metrics
from tests.envs import run_config


def normal(n: int, mean: float, seed: int) -> torch.Tensor:
    noise = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    return noise + mean


def test_drift_is_between_rollouts_though_windows_share_most_of_their_frames() -> None:
    newest = torch.arange(3072, 4096)
    window = normal(4096, 0.0, 0)
    places = Places()
    places.readings(window, window, newest=newest)
    for seed in (1, 2):
        window = torch.cat([window[1024:], normal(1024, 4.0 * (seed % 2), seed)])
        read = places.readings(window, window, newest=newest)
        assert read["diag/state_drift"] > 3.0
    alike = torch.cat([window[1024:], normal(1024, 0.0, 9)])
    assert places.readings(alike, alike, newest=newest)["diag/state_drift"] < 1.5
    assert places.counts is not None and int(places.counts.sum()) == 4096


def test_what_the_next_rollout_is_compared_with_survives_a_checkpoint() -> None:
    newest, first, second = torch.arange(32, 64), normal(64, 0.0, 0), normal(64, 0.0, 1)
    places, other = Places(), Places()
    places.readings(first, first, newest=newest)
    other.load_state_dict(places.state_dict())
    a, b = (p.readings(second, second, newest=newest) for p in (places, other))
    assert a == b and "diag/state_drift" in a


def test_entropy_in_a_world_of_few_states_is_a_share_of_what_there_are() -> None:
    states = torch.arange(16).repeat(64).view(-1, 1)
    one_hot = torch.nn.functional.one_hot(states.flatten(), 16).float()
    places = Places()
    read = places.readings(one_hot, one_hot)
    assert places.grid is not None and places.grid.distinct == 16
    assert read["diag/entropy_share"] > 0.8
    frozen = one_hot[:1].expand(1024, 16)
    assert places.readings(frozen, frozen)["diag/entropy_share"] == 0.0


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "CliffWalking-v1"])
@pytest.mark.parametrize("num_envs", [8, 32])
def test_a_world_of_few_states_is_no_lack_of_diversity(
    tmp_path: Path, env_id: str, num_envs: int
) -> None:
    words = ["task=gym", f"task.env_id={env_id}", f"num_envs={num_envs}", "total_frames=16384"]
    words += ["clocks.update_epochs=1", "logger=jsonl", "logger.display=none", "eval.enabled=false"]
    rl_twoclocks.train(compose([*words, f"run_dir={tmp_path}/run", "diagnostics.pictures=false"]))
    events = [json.loads(x) for x in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e for e in events if e["name"] in ("diversity", "duplicates", "trim", "reseed")] == []


@pytest.mark.parametrize("mode", ["minibatch", "none"])
def test_the_leak_is_read_from_advantages_as_the_objective_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    seen: list[torch.Tensor] = []
    real = diagnose.score.score_readings

    def spy(*arguments: object) -> dict[str, float]:
        seen.append(arguments[4])  # type: ignore[arg-type]
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(diagnose.score, "score_readings", spy)
    words = ["task=pendulum", "debug=smoke", f"algo.normalize_advantage={mode}", "logger=jsonl"]
    rl_twoclocks.train(compose([*words, f"run_dir={tmp_path}/run"]))
    assert seen
    for advantage in seen:
        standard = abs(float(advantage.mean())) < 1e-4 and abs(float(advantage.std()) - 1) < 0.05
        assert standard is (mode == "minibatch")


@pytest.mark.parametrize(("share", "measured"), [(0.3, True), (0.001, False)])
def test_places_per_environment_are_asked_for_only_where_there_are_cells_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, measured: bool
) -> None:
    """A thousand environments would have to fill most of the cells to have one and a half each."""
    monkeypatch.setattr(diagnose, "MOST_CELLS", share)
    rl_twoclocks.train(run_config("Target", tmp_path, "diagnostics=default"))
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert ("diag/places_per_env" in rows[-1]) is measured
