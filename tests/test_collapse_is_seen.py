"""Too many passes at too high a rate: seen in the first rounds, named, and stopped where asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import rl_twoclocks
from rl_twoclocks.record import read_metrics
from rl_twoclocks.record.events import read_events

SICK = [
    "debug=smoke",
    "task=pendulum",
    "num_envs=8",
    "total_frames=3584",
    "clocks.update_epochs=50",
    "optim.learning_rate=1e-2",
    "logger.display=none",
]


def sick(folder: Path, *overrides: str) -> tuple[list[dict], list[dict]]:
    rl_twoclocks.train(rl_twoclocks.compose([*SICK, f"run_dir={folder}", *overrides]))
    return read_metrics(folder / "metrics.jsonl"), read_events(folder / "events.jsonl")


def test_kl_clip_fraction_and_ess_are_raised_in_the_first_rounds_with_the_pass(
    tmp_path: Path,
) -> None:
    _, events = sick(tmp_path, "interventions=observe")
    alarms = {e["name"]: e for e in events if e["kind"] == "alarm"}
    assert {"policy_kl", "clip_fraction", "effective_sample_size"} <= alarms.keys()
    assert all(alarm["round"] <= 6 for alarm in alarms.values())
    assert 1 <= alarms["policy_kl"]["values"]["first pass beyond"] <= 50
    assert len(list(tmp_path.glob("checkpoint-*.pt"))) >= 1
    assert (tmp_path / "best.pt").is_file()


def test_a_kl_stop_ends_the_round_at_the_first_minibatch_beyond(tmp_path: Path) -> None:
    rows, _ = sick(tmp_path, "interventions=observe", "algo.target_kl=0.03")
    learnt = [row for row in rows if row.get("train/stopped_by_kl") == 1]
    assert len(learnt) >= 3
    # The step that was refused is the first whose minibatch lies beyond 1.5 x the target.
    assert all(row["train/kl_last"] > 0.045 for row in learnt)
    assert all(row["train/steps"] < 400 for row in learnt)


@pytest.mark.parametrize("interventions", ["off", "observe"])
def test_without_a_guard_the_numbers_are_those_of_plain_training(
    tmp_path: Path, interventions: str
) -> None:
    rows, events = sick(tmp_path / "one", f"interventions={interventions}")
    plain, _ = sick(tmp_path / "other", "interventions=off", "diagnostics=off")
    for row, other in zip(rows, plain, strict=True):
        shared = {k for k in row.keys() & other.keys() if not k.startswith("time/")}
        assert {k: row[k] for k in shared} == {k: other[k] for k in shared}
    assert all(not e["given"] for e in events if e["kind"] == "order")


def test_a_guard_lowers_the_kl(tmp_path: Path) -> None:
    watched, _ = sick(tmp_path / "one", "interventions=observe")
    guarded, events = sick(tmp_path / "other", "interventions=guard")
    orders = [e for e in events if e["kind"] == "order"]
    assert {e["name"] for e in orders} >= {"step", "passes"}
    # Over all rounds from the first order on: in the last one the rate has fallen to almost nothing.
    since = orders[0]["round"]
    before, after = (
        sum(r["diag/kl_behaviour"] for r in rows[since:]) for rows in (watched, guarded)
    )
    assert after < 0.9 * before
