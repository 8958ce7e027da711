"""Orders carried out in whole runs; alarms are forced, so that every cure has its turn."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_twoclocks import state
from rl_twoclocks.diagnose import Diagnose
from rl_twoclocks.envs import BatchedEnv
from rl_twoclocks.interventions.rescue import Snapshots
from rl_twoclocks.learner import Learner
from rl_twoclocks.record import checkpoint
from rl_twoclocks.record.events import read_events
from rl_twoclocks.safety import SAFE_TABLE, SafeRow
from rl_twoclocks.session import Session
from tests.command_envs import ROUND, differing, newest, rows, run, walk
from tests.interventions.views import alarms

STATE = ("parameters", "update", "normalizer", "random", "window", "episodes", "clocks")
EACH = [f"checkpoint.every_frames={ROUND}", "checkpoint.keep_last=50"]
CURES = ("trim", "reseed", "step", "clip", "ratio", "passes", "width", "memory", "rescue")


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    # A checkpoint per round: no power fails here that it would have to outlive.
    monkeypatch.setattr(os, "fsync", lambda _: None)


def only(*names: str) -> list[str]:
    """Overrides that allow these cures alone."""
    return [f"interventions.{cure}.enabled={str(cure in names).lower()}" for cure in CURES]


def force(monkeypatch: pytest.MonkeyPatch, at: dict[int, tuple[str, ...]]) -> None:
    """Let these alarms, and no others, sound in these rounds (the first is 0)."""

    def forced(self: Diagnose) -> dict:
        return alarms(*at.get(self.history.round, ()))

    monkeypatch.setattr(Diagnose, "alarms", forced)


def at_round(folder: Path, number: int) -> dict[str, Any]:
    """The checkpoint of a round's end."""
    for path in checkpoint.listed(folder):
        saved = checkpoint.load(path)
        if saved["clocks"]["policy_version"] == number:
            return saved
    raise AssertionError(f"no checkpoint of round {number} in {folder}")


def same_state(a: dict[str, Any], b: dict[str, Any], *more: str) -> list[str]:
    return [line for key in (*STATE, *more) for line in differing(a[key], b[key], key)]


def orders_in(folder: Path) -> list[dict[str, Any]]:
    return [row for row in read_events(folder / "events.jsonl") if row["kind"] == "order"]


# -- clocks -------------------------------------------------------------------------------------

# A family whose smallest window is B itself: only U can move.
FLOOR = SafeRow((512, 1024), (32, 64), 4.0, "nothing")
FOUR = ["clocks.batch_size=512", *only("ratio")]


def test_u_changes_without_new_episodes_and_without_overshooting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SAFE_TABLE, "classic", FLOOR)
    force(monkeypatch, {1: ("effective_sample_size",)})
    noise: list[bool] = []
    restart = Session.restart_collector

    def spy(self: Session, update_frequency: int) -> None:
        before = self.parts.policy_noise.get_state()
        restart(self, update_frequency)
        noise.append(torch.equal(before, self.parts.policy_noise.get_state()))

    monkeypatch.setattr(Session, "restart_collector", spy)
    # 2 x 128 frames, then 2 x 256: another 256 would be 1024, and the budget is 896.
    result = run(tmp_path, *walk(), "task.family=classic", *FOUR, *EACH, rounds=7)
    assert [row["frames"] for row in rows(tmp_path)] == [128, 256, 512, 768]
    assert (result.frames, result.rounds) == (768, 4)
    assert (tmp_path / "result.json").exists()
    assert noise == [True]
    window = newest(tmp_path)["window"]
    # Columns: 256 of them, that is 2 rollouts of 128 columns, both after the change ...
    assert window["policy_version"].unique().tolist() == [2, 3]
    # ... and the window of the round before reaches back over the change.
    before = at_round(tmp_path, 3)["window"]
    assert before["policy_version"].unique().tolist() == [1, 2]
    for w in (before, window):
        ended = (w["terminated"] | w["truncated"])[:, :-1]
        goes_on = w["next_observation"][:, :-1][~ended]
        assert torch.equal(w["observation"][:, 1:][~ended], goes_on)
        assert not w["cut"].any()
        assert ended.any()
    # No episode was torn: each has 30 steps, or ended by itself.
    for env in range(2):
        ends = torch.nonzero((window["terminated"] | window["truncated"])[env]).flatten()
        by_itself = window["terminated"][env][ends[1:]]
        assert ((ends.diff() == 30) | by_itself).all()
    assert newest(tmp_path)["steering"]["update_frequency"] == 256


def test_the_frames_after_a_change_of_u_are_those_that_would_have_come_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a learner that stands still, U only says where the same stream is cut."""
    monkeypatch.setitem(SAFE_TABLE, "classic", FLOOR)
    still = [*walk(), "task.family=classic", "optim.learning_rate=0", "normalize=none"]
    ends = []
    for name, at in (("plain", {}), ("changed", {1: ("effective_sample_size",)})):
        force(monkeypatch, at)
        run(tmp_path / name, *still, *FOUR, rounds=6)
        ends.append(newest(tmp_path / name))
    plain, changed = ends
    assert plain["clocks"]["frames"] == changed["clocks"]["frames"] == 768
    assert plain["clocks"]["policy_version"] == 6
    assert changed["clocks"]["policy_version"] == 4
    a, b = (dict(end["window"]) for end in ends)
    for w in (a, b):
        del w["policy_version"]
    assert differing(a, b) == []
    assert differing(plain["episodes"], changed["episodes"]) == []


def test_b_shrinks_at_once_and_the_oldest_frames_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, {4: ("clock_ratio",), 5: ("clock_ratio",)})
    run(tmp_path, *walk(), *FOUR, *EACH, "interventions.ratio.rest=1", rounds=7)
    sizes = [at_round(tmp_path, k)["window"]["reward"].numel() for k in range(2, 8)]
    # The first round calibrates and leaves the window.
    assert sizes == [128, 256, 384, 256, 128, 128]
    kept = at_round(tmp_path, 5)["window"]["policy_version"].unique().tolist()
    assert kept == [3, 4]
    ratios = [row["clock/ratio"] for row in rows(tmp_path)]
    assert ratios == [4.0] * 5 + [2.0, 1.0]
    assert rows(tmp_path)[-1]["clock/ratio_measured"] == 1.0


# -- new episodes -------------------------------------------------------------------------------


def test_reseeding_begins_new_episodes_that_are_the_same_in_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resets: list[list[int] | None] = []
    reset = BatchedEnv.reseed

    def spy(self: BatchedEnv, seeds: list[int]) -> None:
        resets.append(list(seeds))
        reset(self, seeds)

    monkeypatch.setattr(BatchedEnv, "reseed", spy)
    force(monkeypatch, {2: ("diversity",), 3: ("diversity",)})
    overrides = ["task=cartpole", "clocks.batch_size=256", *only("reseed"), *EACH]
    overrides += ["interventions.reseed.noise=0"]
    for name in ("one", "two"):
        run(tmp_path / name, *overrides, rounds=5)
    assert len(resets) == 2
    assert resets[0] == resets[1]
    assert len(set(resets[0])) == 2
    run(tmp_path / "other", *overrides, "seed=2", rounds=5)
    assert resets[2] != resets[0]
    assert rows(tmp_path / "one") == rows(tmp_path / "two")
    assert same_state(newest(tmp_path / "one"), newest(tmp_path / "two"), "environments") == []
    # What was open is cut, and bootstrapped: nothing ended, and its last state is still there.
    window = at_round(tmp_path / "one", 4)["window"]
    cut = window["cut"]
    assert torch.nonzero(cut.all(0)).flatten().tolist() == [63]
    assert int(cut.sum()) == 2
    assert not torch.equal(window["next_observation"][:, 63], window["observation"][:, 64])
    assert (window["next_observation"][:, 63] != 0).any(dim=-1).all()
    # CartPole begins within 0.05 of the upright.
    assert (window["observation"][:, 64].abs() <= 0.05).all()


def test_two_reseedings_of_one_run_begin_different_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, {2: ("diversity",), 4: ("diversity",)})
    run(tmp_path, "task=cartpole", *only("reseed"), "interventions.reseed.rest=1", *EACH, rounds=6)
    firsts = [at_round(tmp_path, k)["window"]["observation"][:, 0] for k in (4, 6)]
    for first in firsts:
        assert (first.abs() <= 0.06).all()
    assert (firsts[0] - firsts[1]).abs().max() > 0.02


def noisy_window(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *task: str, noise: float = 0.5
) -> tuple[dict[str, Tensor], list[np.ndarray]]:
    """The window of a round under noise, and the raw observations that the simulators gave."""
    force(monkeypatch, {2: ("diversity",)})
    raw: list[np.ndarray] = []
    noisy = BatchedEnv._seen

    def spy(self: BatchedEnv, obs: np.ndarray) -> np.ndarray:
        if self._noise is not None:
            raw.append(obs.copy())
        return noisy(self, obs)

    monkeypatch.setattr(BatchedEnv, "_seen", spy)
    run(
        folder,
        *task,
        *only("reseed"),
        *EACH,
        f"interventions.reseed.noise={noise}",
        "normalize.calibrate=false",
        rounds=5,
    )
    return at_round(folder, 4)["window"], raw


def agrees(window: dict[str, Tensor]) -> Tensor:
    """Where a frame's next observation is the one acted on next, or the episode ended."""
    ended = (window["terminated"] | window["truncated"])[:, :-1]
    same = (window["observation"][:, 1:] == window["next_observation"][:, :-1]).all(-1)
    return same | ended


def test_the_noise_is_in_what_is_acted_on_and_of_the_asked_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, raw = noisy_window(tmp_path, monkeypatch, *walk())
    first_reset = at_round(tmp_path, 3)
    # 64 steps and two resets at step 30 and 60: both walkers end together unless one falls.
    assert len(raw) >= 64
    steps = [obs for obs in raw if obs.shape == (2, 2)]
    added = window["next_observation"][:, 0] - torch.from_numpy(steps[0])
    moments = first_reset["normalizer"]["observation"]
    deviation = (moments["m2"] / moments["count"] + 1e-8).sqrt()
    share = (added / (0.5 * deviation)).abs()
    assert (share > 1e-4).all()
    assert (share < 5).all()
    # Noise is on the next rollout alone.
    assert len(raw) < 2 * 64


def test_noise_in_observations_is_one_array_where_episodes_end_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, _ = noisy_window(tmp_path, monkeypatch, "task=pendulum", "task.max_episode_steps=25")
    assert agrees(window).all()
    # Cosine and sine: without noise their squares add up to 1. The first frames of new episodes have
    # it too; those that the rollout began with were observed before it was ordered.
    off = (window["observation"][..., :2].square().sum(-1) - 1).abs()
    ended = window["truncated"][:, :-1]
    assert int(ended.sum()) == 4
    assert (off[:, 1:][ended] > 1e-3).all()
    assert (off[:, 1:] > 1e-5).all()


def test_noise_in_observations_is_one_array_where_episodes_end_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, _ = noisy_window(tmp_path, monkeypatch, "task=cartpole", noise=0.01)
    done = window["terminated"] | window["truncated"]
    assert (done[0] != done[1]).any()
    assert agrees(window).all()


# -- rescue -------------------------------------------------------------------------------------

SMALLEST = "rl_twoclocks.interventions.rescue.SMALLEST_U"
RESCUE = [*only("rescue"), "interventions.rescue.every=2", "interventions.rescue.before=1", *EACH]


def rescued(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str, last: str = EACH[0]
) -> dict[str, Any]:
    """Run with a cliff in the sixth round; give what was chosen, and what came of it."""
    force(monkeypatch, {5: ("reward_cliff", "first_ratio")})
    monkeypatch.setattr(SMALLEST, 32)
    seen: dict[str, Any] = {}
    restore, before = state.restore_learned, Snapshots.before

    def spy_restore(parts: Any, saved: dict[str, Any]) -> None:
        restore(parts, saved)
        seen["restored"] = state.learned_state(parts)

    def spy_before(self: Snapshots, version: int) -> Any:
        seen["asked"] = version
        seen["found"] = before(self, version)
        return seen["found"]

    monkeypatch.setattr(state, "restore_learned", spy_restore)
    monkeypatch.setattr(Snapshots, "before", spy_before)
    run(folder, *overrides, *RESCUE, last, rounds=8)
    monkeypatch.undo()
    return seen


@pytest.mark.parametrize("optimizer", ["optim=adam", "optim=radam"])
def test_a_rescue_restores_what_was_learned_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    seen = rescued(tmp_path, monkeypatch, *walk(), optimizer)
    # Returns were last read in round 4, one before it is 3: the state of version 2.
    assert seen["asked"] == 3
    assert seen["found"]["version"] == 2
    old = at_round(tmp_path, 2)
    for key in ("parameters", "update", "normalizer"):
        assert differing(old[key], seen["restored"][key], key) == []
    after = at_round(tmp_path, 6)
    for key in ("parameters", "update"):
        assert differing(old[key], after[key], key) == []
    assert not torch.equal(old["parameters"], at_round(tmp_path, 5)["parameters"])


def test_after_a_rescue_the_normaliser_is_that_of_the_state_gone_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rescued(tmp_path, monkeypatch, *walk())
    old, after = at_round(tmp_path, 2), at_round(tmp_path, 6)
    for part in ("observation", "returns"):
        assert differing(old["normalizer"][part], after["normalizer"][part], part) == []


def test_a_rescued_run_goes_on_with_monotone_clocks_an_empty_window_and_new_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = f"checkpoint.every_frames={ROUND // 4}"
    rescued(tmp_path, monkeypatch, *walk(), "clocks.batch_size=256", last=each)
    got = rows(tmp_path)
    assert [row["clock/policy_version"] for row in got] == list(range(1, len(got) + 1))
    # U falls from 128 to one minibatch of 32, and the whole budget is still used.
    expected = [128, 256, 384, 512, 640, 768, *range(800, 1025, 32)]
    assert [row["frames"] for row in got] == expected
    before, after, later = (at_round(tmp_path, k) for k in (5, 6, 7))
    assert before["window"]["reward"].numel() == 256
    assert after["window"] == {}
    assert later["window"]["reward"].numel() == 32
    assert later["window"]["policy_version"].unique().tolist() == [6]
    assert before["clocks"]["update_steps"] == after["clocks"]["update_steps"]
    for key in ("policy", "minibatch"):
        assert not torch.equal(before["random"][key], after["random"][key])
    old = at_round(tmp_path, 2)
    assert not torch.equal(old["random"]["policy"], after["random"]["policy"])
    # States after the one gone back to lead to the cliff.
    assert [s["version"] for s in after["steering"]["snapshots"]] == [2]
    # No learning in the round of the rescue; smaller steps afterwards.
    assert "train/loss" not in got[5]
    left = 1 - (800 - 128) / 1024
    assert got[6]["train/learning_rate"] == pytest.approx(3e-4 * 0.25 * left)
    assert (after["steering"]["update_frequency"], after["steering"]["batch_size"]) == (32, 64)
    # Open episodes are cut: their sums begin at zero.
    assert float(after["episodes"]["lengths"].sum()) == 0
    assert float(after["normalizer"]["discounted"].abs().sum()) == 0
    events = read_events(tmp_path / "events.jsonl")
    rescue = [row for row in events if row["kind"] == "rescue"]
    assert [(row["frames"], row["round"]) for row in rescue] == [(768, 5)]
    assert rescue[0]["text"] == "RESCUE weights of version 2 at version 5"


def test_without_a_state_to_go_back_to_a_rescue_still_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, {1: ("reward_cliff", "first_ratio")})
    run(tmp_path, *walk(), *only("rescue"), *EACH, rounds=3)
    first, second = at_round(tmp_path, 1), at_round(tmp_path, 2)
    assert torch.equal(first["parameters"], second["parameters"])
    assert second["window"] == {}
    assert newest(tmp_path)["clocks"]["frames"] == 384


# -- resuming -----------------------------------------------------------------------------------

KINDS: dict[str, tuple[dict[int, tuple[str, ...]], list[str]]] = {
    "smaller B": ({1: ("clock_ratio",)}, [*FOUR]),
    "steps, clips, passes": (
        {1: ("policy_kl", "gradient_norm"), 4: ("policy_kl",)},
        [*only("step", "clip", "passes"), "interventions.passes.rest=1"],
    ),
    "new episodes, trimming": (
        {2: ("diversity",), 4: ("diversity",)},
        [*only("reseed", "trim"), "interventions.reseed.noise=0"],
    ),
    "rescue in the round saved": ({2: ("reward_cliff", "first_ratio")}, [*RESCUE]),
    "rescue before and after": (
        {1: ("reward_cliff", "first_ratio"), 7: ("reward_cliff", "first_ratio")},
        [*RESCUE],
    ),
}


def whole_and_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: dict, *overrides: str
) -> tuple[Path, Path]:
    """Six rounds' frames at once, and with a break after three rounds' frames."""
    force(monkeypatch, at)
    monkeypatch.setattr(SMALLEST, 32)
    steady = ["task=cartpole", f"optim.anneal_frames={6 * ROUND}", *EACH, *overrides]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, *steady, rounds=6)
    run(parts, *steady, rounds=3)
    run(parts, *steady, rounds=6)
    return whole, parts


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_interrupted_after_an_order_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    at, overrides = KINDS[kind]
    whole, parts = whole_and_parts(tmp_path, monkeypatch, at, *overrides)
    assert rows(whole) == rows(parts)
    one, other = newest(whole), newest(parts)
    apart = same_state(one, other, "environments", "steering", "diagnose")
    # How much memory the process has is the one thing that a run may differ in.
    assert [line for line in apart if "memory_host" not in line] == []
    assert read_events(whole / "events.jsonl") == read_events(parts / "events.jsonl")
    assert orders_in(whole)


def test_a_run_whose_u_changed_resumes_with_that_u(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SAFE_TABLE, "classic", FLOOR)
    at = {0: ("effective_sample_size",)}
    whole, parts = whole_and_parts(tmp_path, monkeypatch, at, "task.family=classic", *FOUR)
    assert [row["frames"] for row in rows(parts)] == [128, 384, 640]
    assert rows(whole) == rows(parts)
    assert same_state(newest(whole), newest(parts), "environments", "steering") == []


def test_a_run_that_was_interrupted_before_its_noisy_rollout_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = whole_and_parts(
        tmp_path,
        monkeypatch,
        {2: ("diversity",)},
        *only("reseed"),
        "interventions.reseed.noise=0.1",
    )
    assert rows(whole) == rows(parts)
    assert same_state(newest(whole), newest(parts), "environments") == []


def test_a_crash_loses_no_order_of_a_round_that_was_not_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, {2: ("diversity",)})
    overrides = ["task=cartpole", *only("trim"), *EACH, "logger.log_freq=2"]
    run(tmp_path / "whole", *overrides, rounds=6)
    learn, calls = Learner.learn, []

    def crash(self: Learner, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("power cut")
        return learn(self, *args)

    monkeypatch.setattr(Learner, "learn", crash)
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path / "parts", *overrides, rounds=6)
    run(tmp_path / "parts", *overrides, rounds=6)
    assert newest(tmp_path / "parts")["clocks"]["policy_version"] == 6
    told = [
        [row for row in rows(tmp_path / name) if "order/trim" in row] for name in ("whole", "parts")
    ]
    assert [row["frames"] for row in told[0]] == [512]
    assert told[0] == told[1]


# -- what is written down -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["guard", "observe"])
def test_events_say_what_was_ordered_or_would_have_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    force(monkeypatch, {1: ("clip_fraction",), 2: ("clip_fraction",), 3: ("diversity",)})
    allowed = only("passes", "trim")
    run(tmp_path, *walk(), *allowed, f"interventions.governor={mode}", rounds=5)
    got = orders_in(tmp_path)
    assert [(r["frames"], r["round"], r["name"], r["why"]) for r in got] == [
        (256, 1, "passes", "clip_fraction"),
        (512, 3, "trim", "diversity"),
    ]
    given = mode == "guard"
    assert {row["given"] for row in got} == {given}
    verb = "ORDER" if given else "WOULD ORDER"
    assert got[0]["text"] == f"{verb} passes: 1 of 2 passes (clip_fraction)"
    # Passes are held to the end, trimming lasts as long as its alarm.
    series = rows(tmp_path)
    assert [row.get("order/passes") for row in series] == [None, 1.0, 1.0, 1.0, 1.0]
    assert [row.get("order/trim") for row in series] == [None, None, None, 1.0, None]
    steps = [row.get("train/steps") for row in series]
    # Two passes of 4 minibatches; 90 of 128 frames are 3.
    assert steps == ([None, 4, 4, 3, 4] if given else [None, 8, 8, 8, 8])
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == read_events(tmp_path / "events.jsonl")


def test_an_alarm_of_the_panel_is_written_with_its_readings_and_cure(tmp_path: Path) -> None:
    # Every KL is above a limit of zero.
    limits = ["+diagnostics.limits={kl_watch: 1e-12, kl_warn: 1e-11}"]
    run(tmp_path, *walk(), *limits, *only("step"), rounds=4)
    events = read_events(tmp_path / "events.jsonl")
    alarm = next(row for row in events if row["name"] == "policy_kl")
    assert alarm["kind"] == "alarm"
    assert alarm["severity"] == "warn"
    assert alarm["values"]["nats"] > 1e-11
    assert "learning_rate" in alarm["cure"]
    assert not alarm["cause"].endswith(";")
    # Two rounds in a row are needed, and the first one calibrates: it is known after round 3.
    assert (alarm["round"], alarm["frames"]) == (3, 384)
    (order,) = [row for row in events if row["kind"] == "order"]
    assert (order["name"], order["round"], order["frames"]) == ("step", 3, 512)


# -- nothing ordered, nothing changed -----------------------------------------------------------


def test_a_guard_without_an_alarm_is_bit_for_bit_the_same_as_no_governor_and_no_diagnostics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, {})
    task = ["task=cartpole"]
    run(tmp_path / "guard", *task, "interventions=guard", "clocks.batch_size=256", rounds=5)
    run(
        tmp_path / "off",
        *task,
        "interventions=off",
        "diagnostics=off",
        "clocks.batch_size=256",
        rounds=5,
    )
    assert orders_in(tmp_path / "guard") == []
    one, other = newest(tmp_path / "guard"), newest(tmp_path / "off")
    assert same_state(one, other, "environments") == []
    shared = [
        {k: v for k, v in row.items() if k.startswith(("train/", "rollout/", "grad_norm/"))}
        for row in rows(tmp_path / "off")
    ]
    for mine, theirs in zip(rows(tmp_path / "guard"), shared, strict=True):
        assert {k: mine[k] for k in theirs} == theirs
    assert len(one["steering"]["snapshots"]) == 1


def test_under_observe_every_alarm_at_once_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = ("clock_ratio", "diversity", "gradient_norm", "policy_kl", "memory_creep")
    force(monkeypatch, {2: every, 3: every, 4: ("reward_cliff", "first_ratio")})
    window = "clocks.batch_size=256"
    run(tmp_path / "watch", "task=cartpole", "interventions=observe", window, rounds=5)
    run(tmp_path / "off", "task=cartpole", "interventions=off", window, rounds=5)
    told = {row["name"] for row in orders_in(tmp_path / "watch")}
    assert told >= {"rescue", "ratio", "reseed", "trim", "clip", "step", "passes", "memory"}
    one, other = newest(tmp_path / "watch"), newest(tmp_path / "off")
    assert same_state(one, other, "environments") == []


def test_every_cure_at_once_trains_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = ("reward_cliff", "clock_ratio", "diversity", "gradient_norm", "policy_kl")
    force(monkeypatch, {k: (*every, "memory_creep") for k in range(1, 9)})
    result = run(tmp_path, *walk(), "clocks.batch_size=256", rounds=6)
    assert result.frames == 6 * ROUND
    assert torch.isfinite(newest(tmp_path)["parameters"]).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("keep", ["newest", "rare"])
def test_a_window_on_a_cuda_device_is_trimmed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    force(monkeypatch, {1: ("diversity",)})
    trims = [*only("trim"), f"interventions.trim.keep={keep}"]
    run(tmp_path, *walk(), *trims, "device=cuda", rounds=3)
    assert [row["name"] for row in orders_in(tmp_path)] == ["trim"]
    assert rows(tmp_path)[1]["train/steps"] == 6


@pytest.mark.parametrize(
    ("name", "sound"),
    [("policy_lag", True), ("clock_ratio", True), ("duplicates", True), ("policy_kl", False)],
)
def test_only_what_is_said_of_the_policy_makes_a_state_unsound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sound: bool
) -> None:
    """Old data, for example, may be told of all run long: states of a policy that learns are good."""
    force(monkeypatch, {k: (name,) for k in range(5)})
    words = ["interventions=guard", "interventions.rescue.every=1", *only("rescue")]
    run(tmp_path, *walk(), *words, rounds=4)
    kept = newest(tmp_path)["steering"]["snapshots"]
    assert [state["sound"] for state in kept] == [sound] * 4
