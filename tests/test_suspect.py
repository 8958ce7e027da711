"""Faults that raise the same alarm are told apart by what changes with it."""

from __future__ import annotations

from typing import Any

import pytest

from rl_twoclocks import compose
from rl_twoclocks.config import Config
from rl_twoclocks.suspect import suspect

ROUND, TURN, ROUNDS = 512, 20, 40
HEALTHY = {
    "diag/rollout_entropy": 8.0,
    "diag/rollout_entropy_own_range": 8.5,
    "diag/duplicates": 0.0,
    "diag/places_per_env": 45.0,
    "diag/policy_variance": 0.6,
    "diag/kl_behaviour": 0.015,
    "clock/staleness_min": 0.0,
    "eval/return_mean": 900.0,
}
STILL = {"diag/rollout_entropy": 0.0, "diag/rollout_entropy_own_range": 3.0,
         "diag/policy_variance": 1e-8}  # fmt: skip


@pytest.fixture(scope="module")
def config() -> Config:
    return compose(["task=pendulum", "num_envs=8"])


def rows(
    broken: dict[str, float], turn: int = TURN, at_turn: dict[str, float] | None = None
) -> list[dict[str, Any]]:
    """A run whose readings change at one round."""
    found = []
    for number in range(ROUNDS):
        readings = HEALTHY | (broken if number >= turn else {})
        readings |= (at_turn or {}) if number == turn else {}
        found.append({"frames": (number + 1) * ROUND} | readings)
    return found


def alarm(name: str, number: int = TURN + 1, severity: str = "danger") -> dict[str, Any]:
    return {"kind": "alarm", "name": name, "severity": severity, "frames": (number + 1) * ROUND,
            "cause": f"cause of {name}"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "broken", "part", "words"),
    [
        ("diversity", {"diag/rollout_entropy": 1.5, "diag/policy_variance": 0.02},
         "the observations", "vary as before inside it"),
        ("diversity", STILL, "the environments that train", "while evaluation goes well"),
        ("diversity", STILL | {"eval/return_mean": -50.0},
         "the environments that train", "hardly change any more"),
        ("state_blind", {"diag/policy_variance": 0.0}, "the policy's network", "alike in every state"),
        ("duplicates", {"diag/duplicates": 0.875, "diag/places_per_env": 8.0},
         "the environments", "all 8 environments give the same data"),
        ("duplicates", {"diag/duplicates": 0.984, "diag/places_per_env": 1.0},
         "the observations", "one observation again and again"),
        ("first_ratio", {}, "the way from collection to learning", "cause of first_ratio"),
        ("policy_lag", {"clock/staleness_min": 10.0}, "the way from collection to learning",
         "10 versions old"),
    ],
)  # fmt: skip
def test_each_fault_has_a_suspect_of_its_own(
    config: Config, name: str, broken: dict[str, float], part: str, words: str
) -> None:
    found = suspect(config, rows(broken), [alarm(name)])
    assert found is not None
    assert found.part == part
    assert words in found.evidence
    began = TURN + 1 if broken else TURN + 2  # without a sign of its own, when the alarm came
    assert found.frames == began * ROUND
    assert str(found).startswith(f"Suspected: {part}. From {found.frames:,} frames on ")


def test_states_that_contract_after_a_huge_update_are_the_policys_doing(config: Config) -> None:
    found = suspect(config, rows(STILL, at_turn={"diag/kl_behaviour": 2.0}), [alarm("diversity")])
    assert found is not None
    assert found.part == "an update of the policy"
    assert "KL of 2" in found.evidence


def test_what_broke_first_is_suspected(config: Config) -> None:
    broken = rows({"diag/policy_variance": 0.0})
    for row in broken[TURN + 10 :]:
        row |= {"diag/duplicates": 0.875, "diag/places_per_env": 8.0}
    found = suspect(config, broken, [alarm("duplicates", TURN + 11), alarm("state_blind")])
    assert found is not None
    assert found.part == "the policy's network"


def test_an_absurd_learning_rate_is_suspected_once_the_policy_runs_away(config: Config) -> None:
    optim = config.optim.model_copy(update={"learning_rate": 9e-3})
    fast = config.model_copy(update={"optim": optim})
    found = suspect(fast, rows({}), [alarm("policy_kl", 2)])
    assert found is not None
    assert "30 times the usual" in found.evidence
    assert suspect(fast, rows({}), []) is None


def gradual() -> list[dict[str, Any]]:
    found = rows({})
    for number, row in enumerate(found):
        row["diag/rollout_entropy"] = 8.0 - 0.2 * number
        row["diag/policy_variance"] = 0.6 * 0.9**number
    return found


@pytest.mark.parametrize(
    ("recorded", "events"),
    [
        (rows({}), []),
        (rows({}), [alarm("diversity")]),
        (gradual(), [alarm("diversity"), alarm("state_blind")]),
        # Too early to know how it was.
        (rows(STILL, turn=2), [alarm("diversity", 3)]),
        # New episodes were ordered: all states moved at once.
        (rows(STILL), [alarm("diversity"),
                       {"kind": "order", "name": "reseed", "given": True, "frames": TURN * ROUND}]),
        (rows(STILL), [alarm("diversity", severity="watch")]),
        ([], [alarm("diversity")]),
        # Every fifth round is on record.
        ([row | {"clock/policy_version": 5 * k} for k, row in enumerate(rows(STILL))],
         [alarm("diversity")]),
        (rows({}), [alarm("diversity", 10 * ROUNDS)]),
    ],
)  # fmt: skip
def test_nobody_is_suspected_without_a_change_at_once(
    config: Config, recorded: list[dict[str, Any]], events: list[dict[str, Any]]
) -> None:
    assert suspect(config, recorded, events) is None
