"""Who is asked, in which order, what comes of it and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rl_twoclocks.config import InterventionsConfig
from rl_twoclocks.config_cures import RescueConfig
from rl_twoclocks.diagnostics import History
from rl_twoclocks.interventions import Governor
from tests.interventions.views import alarms, config, controls, view

ORDER = ["rescue", "ratio", "reseed", "trim", "clip", "step", "passes", "width", "memory"]
EVERYTHING = alarms(
    "reward_cliff",
    "effective_sample_size",
    "diversity",
    "gradient_norm",
    "policy_kl",
    "memory_creep",
)
SETTINGS = config(batch_size=4096, update_frequency=1024, minibatch_size=64)


def governor(mode: str = "guard", **changes: Any) -> Governor:
    # Without a bonus of its own a rescue leaves the width of the policy to its cure.
    changes.setdefault("rescue", RescueConfig(entropy_coeff=0))
    return Governor(InterventionsConfig(governor=mode, **changes))


def everything(round: int = 0) -> Any:
    history = History()
    history.add({"diag/policy_std": 0.01})
    return view(round=round, on=EVERYTHING, settings=SETTINGS, history=history)


def test_cures_are_asked_in_order_and_rescue_first() -> None:
    assert [cure.name for cure in governor().cures] == ORDER


def test_off_has_no_cures_and_a_disabled_cure_is_not_asked() -> None:
    assert governor("off").cures == []
    left = governor(step={"enabled": False}, rescue={"enabled": False}).cures
    assert [cure.name for cure in left] == [n for n in ORDER if n not in ("step", "rescue")]


def test_no_alarm_gives_the_schedules_orders_and_no_news() -> None:
    there = view(settings=SETTINGS)
    orders, news = governor().decide(there)
    assert orders is there.orders
    assert news == []


def test_changes_add_up_and_later_cures_see_earlier_ones() -> None:
    guard = governor()
    first, news = guard.decide(everything())
    assert [change.cure for change in news] == ORDER
    assert first.rescue
    # The ratio halves what it saw: 1024 / 256 of the rescue, not 4096 / 1024.
    assert news[0].fields["batch_size"] == 1024
    assert news[0].fields["update_frequency"] == 256
    assert (first.batch_size, first.update_frequency) == (512, 256)
    assert first.reseed
    assert first.noise == 0.01
    assert first.keep is not None
    assert first.keep.numel() == 7
    assert first.passes == 5
    assert first.free_memory
    got = first.controls
    assert got == controls(
        learning_rate=3e-4 * 0.25,
        max_grad_norm=0.25,
        kl_target=0.02,
        ess_base=0.9,
        kl_limit=0.1,
        entropy_coeff=0.001,
    )
    second, _ = guard.decide(view(round=1, settings=SETTINGS))
    assert not second.rescue
    assert (second.batch_size, second.update_frequency) == (512, 256)


def test_observe_decides_the_same_orders_nothing_and_reports() -> None:
    watch, guard = governor("observe"), governor("guard")
    there = everything()
    orders, news = watch.decide(there)
    _, ordered = guard.decide(everything())
    assert orders is there.orders
    assert [(c.cure, c.what, c.why) for c in news] == [(c.cure, c.what, c.why) for c in ordered]
    assert len(news) == 9
    assert watch.active == guard.active


def test_under_observe_one_lasting_cliff_is_one_rescue() -> None:
    watch = governor("observe")
    cliff = alarms("reward_cliff", "first_ratio")
    news = [watch.decide(view(round=k, on=cliff, settings=SETTINGS))[1] for k in range(6)]
    assert [len(n) for n in news] == [1, 0, 0, 0, 0, 0]


def test_only_what_begins_or_differs_is_news() -> None:
    guard = governor(step={"hold": 3}, passes={"enabled": False})
    on = alarms("policy_kl")
    got = [
        [change.cure for change in guard.decide(view(round=k, on=on if k in (2, 9) else {}))[1]]
        for k in range(12)
    ]
    assert got == [[], [], ["step"], [], [], [], [], [], [], ["step"], [], []]


def test_a_cure_that_changes_its_mind_is_news() -> None:
    guard = governor(ratio={"rest": 5})
    on = alarms("effective_sample_size")
    told = []
    for k in range(12):
        _, news = guard.decide(view(round=k, on=on, settings=SETTINGS))
        told += [(k, change.what) for change in news if change.cure == "ratio"]
    assert told == [(0, "B 2,048 / U 1,024 = 2"), (5, "B 1,024 / U 1,024 = 1")]


def test_active_names_what_is_on_now() -> None:
    guard = governor()
    guard.decide(view(round=0, on=alarms("diversity")))
    assert set(guard.active) == {"reseed", "trim"}
    guard.decide(view(round=1, on=alarms("diversity")))
    assert set(guard.active) == {"trim"}
    guard.decide(view(round=2))
    assert guard.active == {}


def test_the_state_survives_a_file_that_runs_no_code(tmp_path: Path) -> None:
    one, other = governor(), governor()
    one.decide(everything(round=7))
    torch.save(one.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other.state_dict() == one.state_dict()
    assert other.active == one.active != {}
    for k in range(8, 80):
        on = EVERYTHING if k % 30 == 0 else {}
        pair = [g.decide(view(round=k, on=on, settings=SETTINGS)) for g in (one, other)]
        (a, a_news), (b, b_news) = pair
        assert [(c.cure, c.what, c.why) for c in a_news] == [
            (c.cure, c.what, c.why) for c in b_news
        ]
        assert (a.controls, a.passes, a.batch_size, a.update_frequency, a.rescue, a.reseed) == (
            b.controls,
            b.passes,
            b.batch_size,
            b.update_frequency,
            b.rescue,
            b.reseed,
        )


def test_a_cure_that_was_off_when_saved_starts_fresh() -> None:
    one, other = governor(reseed={"enabled": False}), governor()
    one.decide(everything(round=7))
    other.load_state_dict(one.state_dict())
    orders, _ = other.decide(view(round=8, on=alarms("diversity")))
    assert orders.reseed


def test_a_governor_that_is_off_reports_nothing_as_on() -> None:
    one, other = governor(), governor("off")
    one.decide(everything())
    other.load_state_dict(one.state_dict())
    assert other.active == {}
