"""Which frames of a window stay, and what trimming must leave alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_twoclocks.config_cures import TrimConfig
from rl_twoclocks.diagnose import Diagnose
from rl_twoclocks.interventions.trim import Trim, kept_frames
from rl_twoclocks.learner import Learner, Round
from tests.command_envs import run, walk
from tests.interventions.views import alarms, view

# Two environments, five columns: by frame, as the window is flattened.
AGES = torch.tensor([4, 3, 2, 1, 0, 4, 3, 2, 1, 0])
CELLS = torch.tensor([0, 0, 0, 1, 1, 2, 0, 1, 0, 3])


@pytest.mark.parametrize(
    ("keep", "fraction", "expected"),
    [
        ("newest", 0.4, [3, 4, 8, 9]),
        # Seven of ten: of the two frames of age 3 the first environment's stays.
        ("newest", 0.7, [1, 2, 3, 4, 7, 8, 9]),
        ("first", 0.4, [0, 1, 5, 6]),
        ("first", 0.7, [0, 1, 2, 3, 5, 6, 7]),
        # Cells 2 and 3 have one visit, cell 1 three, cell 0 five.
        ("rare", 0.2, [5, 9]),
        # Of cell 1 the newer two stay: frame 7 has age 2.
        ("rare", 0.4, [3, 4, 5, 9]),
        ("rare", 0.5, [3, 4, 5, 7, 9]),
        # Of cell 0 the newest: frame 8 has age 1.
        ("rare", 0.6, [3, 4, 5, 7, 8, 9]),
    ],
)
def test_kept_frames_are_those_found_by_hand(keep: str, fraction: float, expected: list) -> None:
    assert kept_frames(keep, fraction, AGES, CELLS).tolist() == expected


@pytest.mark.parametrize("keep", ["newest", "first", "rare"])
def test_at_least_one_frame_stays_and_a_fraction_of_one_keeps_all(keep: str) -> None:
    assert kept_frames(keep, 0.001, AGES, CELLS).numel() == 1
    assert kept_frames(keep, 1.0, AGES, CELLS).tolist() == list(range(10))


def test_rare_frames_without_cells_are_refused() -> None:
    with pytest.raises(ValueError, match="cells"):
        kept_frames("rare", 0.7, AGES, None)


@pytest.mark.parametrize("name", ["diversity", "duplicates"])
def test_a_narrow_window_is_trimmed_to_seventy_per_cent(name: str) -> None:
    trim = Trim(TrimConfig())
    change = trim.propose(view(on=alarms(name, severity="warn"), ages=AGES, cells=CELLS))
    assert change is not None
    assert change.fields["keep"].tolist() == [1, 2, 3, 4, 7, 8, 9]
    assert (change.cure, change.why) == ("trim", name)
    assert "7 frames, 3 dropped" in change.what
    # Not one round longer than the alarm.
    assert trim.propose(view(round=1, ages=AGES, cells=CELLS)) is None


def test_neither_a_mild_alarm_nor_another_one_trims() -> None:
    trim = Trim(TrimConfig())
    assert trim.propose(view(on=alarms("diversity", severity="watch"), ages=AGES)) is None
    assert trim.propose(view(on=alarms("policy_kl"), ages=AGES)) is None


def test_rare_without_a_grid_does_not_trim() -> None:
    trim = Trim(TrimConfig(keep="rare"))
    assert trim.propose(view(on=alarms("diversity"), ages=AGES, cells=None)) is None
    assert trim.propose(view(on=alarms("diversity"), ages=AGES, cells=CELLS)) is not None


def learnt(monkeypatch: pytest.MonkeyPatch, folder: Path, trims: bool, keep: str) -> list[dict]:
    """Rounds of a run whose window holds two rollouts: frames, advantages, minibatches."""
    seen: list[dict[str, Any]] = []
    learn, draw = Learner.learn, Learner._minibatches

    def spy(self: Learner, ready: Round, *args: Any) -> Any:
        first = {k: ready.flat[k].clone() for k in ("observation", "advantage", "target")}
        seen.append({**first, "keep": ready.keep, "drawn": []})
        result = learn(self, ready, *args)
        seen[-1]["refreshed"] = ready.flat["advantage"].clone()
        return result

    def spy_draw(self: Learner, ready: Round) -> Any:
        for minibatch in draw(self, ready):
            seen[-1]["drawn"].append(minibatch[0])
            yield minibatch

    def forced(self: Diagnose) -> dict:
        return alarms("diversity", severity="warn") if trims and self.history.round >= 2 else {}

    monkeypatch.setattr(Learner, "learn", spy)
    monkeypatch.setattr(Learner, "_minibatches", spy_draw)
    monkeypatch.setattr(Diagnose, "alarms", forced)
    only = ["interventions.reseed.enabled=false", f"interventions.trim.keep={keep}"]
    run(folder, *walk(), "clocks.batch_size=256", *only, rounds=3)
    monkeypatch.undo()
    return seen


def rows_of(x: Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in x.tolist()}


@pytest.mark.parametrize("keep", ["newest", "rare"])
def test_advantages_are_of_the_whole_window_and_minibatches_of_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    plain = learnt(monkeypatch, tmp_path / "plain", False, keep)
    trimmed = learnt(monkeypatch, tmp_path / "trimmed", True, keep)
    assert len(plain) == len(trimmed) == 2
    a, b = plain[-1], trimmed[-1]
    assert a["keep"] is None
    assert b["keep"].numel() == round(0.7 * 256)
    for key in ("observation", "advantage", "target"):
        assert torch.equal(a[key], b[key]), key
    # Recomputed before the second pass too, over all frames.
    assert b["refreshed"].shape == b["advantage"].shape == (256,)
    assert not torch.equal(b["refreshed"], b["advantage"])
    kept = b["observation"][b["keep"]]
    assert rows_of(torch.cat(b["drawn"])) == rows_of(kept)
    assert rows_of(torch.cat(a["drawn"])) == rows_of(a["observation"])
    # 180 frames in minibatches of 32, twice.
    assert len(b["drawn"]) == 2 * 6
    if keep == "newest":
        # 90 columns of 128 in each of two environments.
        expected = [e * 128 + t for e in range(2) for t in range(128 - 179 // 2 - 1, 128)]
        assert set(b["keep"].tolist()) <= set(expected)
