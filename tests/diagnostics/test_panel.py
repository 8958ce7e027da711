from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_twoclocks import diagnostics
from rl_twoclocks.diagnostics import CALIBRATED, Alarm, History, Limits, Panel, periodicity
from rl_twoclocks.diagnostics.alarm import Severity
from rl_twoclocks.diagnostics.panel import QUIET_ROUNDS, RULES, Rule
from rl_twoclocks.diagnostics.periodicity import periodic_alarm
from tests.diagnostics.histories import recorded, screened


@pytest.fixture(autouse=True)
def quick_chances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodicity, "strongest_period", screened)


def alarm(name: str = "a", severity: Severity = "watch", value: float = 1.0) -> Alarm:
    return Alarm(name, severity, {"value": value}, "it is so;", "do that.")


def healthy(rounds: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    rise = 1 - np.exp(-np.arange(rounds) / 30)

    def about(level: float, spread: float) -> np.ndarray:
        return level * np.exp(spread * rng.normal(size=rounds))

    return {
        "clock/staleness_min": np.zeros(rounds),
        "clock/publish_lag": np.zeros(rounds),
        "clock/ratio_measured": np.ones(rounds),
        "clock/ratio": np.ones(rounds),
        "diag/kl_behaviour": about(0.02, 0.3),
        "diag/kl_pass": np.zeros(rounds),
        "diag/action_dims": np.full(rounds, 6.0),
        "diag/ess": np.clip(about(0.95, 0.02), 0, 1),
        "diag/grad_norm_max": about(1.5, 0.3),
        "diag/grad_participation": about(9.0, 0.1),
        "diag/grad_condition": about(20.0, 0.2),
        "diag/score_residual": about(4.0, 0.3),
        "diag/baseline_leak": about(0.02, 0.3),
        "diag/rollout_entropy": 9.3 - rise + 0.1 * rng.normal(size=rounds),
        "diag/rollout_entropy_own_range": 9.2 + 0.1 * rng.normal(size=rounds),
        "diag/entropy_share": 0.83 + 0.01 * rng.normal(size=rounds),
        "diag/duplicates": np.zeros(rounds),
        "diag/state_drift": about(0.2, 0.5),
        "diag/critic_loss_first_pass": about(1.0, 0.2) * np.exp(-rise),
        "diag/dead_units": np.full(rounds, 0.02),
        "diag/feature_rank": 30 + rng.integers(-2, 3, rounds),
        "diag/policy_variance": about(1.0, 0.1),
        "rollout/return_round": -1200 + 1000 * rise + 40 * rise * rng.normal(size=rounds),
        "eval/return_mean": -1200 + 1000 * rise,
        "eval/changed_return_mean": -1200 + 950 * rise,
        "train/clip_fraction": about(0.12, 0.2),
        "time/memory_host": 900 + rng.normal(size=rounds),
        "time/device_utilisation": about(70, 0.05),
    }


def judged(
    series: dict[str, np.ndarray], limits: Limits, rules: tuple[Rule, ...] = RULES
) -> list[Alarm]:
    history, panel, begun = History(), Panel(limits, rules), []
    for number in range(max(len(values) for values in series.values())):
        history.round = number
        history.add({name: float(values[number]) for name, values in series.items()})
        begun += panel.judge(history)
    return begun


def test_every_rule_of_the_package_is_on_the_panel_once() -> None:
    modules = [
        importlib.import_module(f"{diagnostics.__name__}.{found.name}")
        for found in pkgutil.iter_modules(diagnostics.__path__)
    ]
    rules = {
        value
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("_alarm") and callable(value)
    }
    assert set(RULES) == rules
    assert len(RULES) == len(rules)


@pytest.mark.parametrize("seed", range(3))
def test_no_rule_fires_on_a_healthy_run(seed: int) -> None:
    # A test at a level of 0.01 fires by chance; `test_periodicity` counts how often.
    rules = tuple(rule for rule in RULES if rule is not periodic_alarm)
    assert [str(found) for found in judged(healthy(120, seed), CALIBRATED, rules)] == []


@pytest.mark.parametrize(
    ("name", "sick", "expected"),
    [
        ("clock/staleness_min", 9.0, "policy_lag"),
        ("clock/publish_lag", 4.0, "publish_lag"),
        ("clock/ratio_measured", 60.0, "clock_ratio"),
        ("diag/kl_behaviour", 2.0, "policy_kl"),
        ("diag/ess", 0.1, "effective_sample_size"),
        ("train/clip_fraction", 0.7, "clip_fraction"),
        ("diag/grad_norm_max", 40.0, "gradient_norm"),
        ("diag/grad_participation", 1.1, "gradients_aligned"),
        ("diag/score_residual", 90.0, "score_residual"),
        ("diag/baseline_leak", 0.8, "baseline_leak"),
        ("diag/entropy_share", 0.1, "diversity"),
        ("diag/duplicates", 0.9, "duplicates"),
        ("diag/state_drift", 5.0, "state_drift"),
        ("diag/critic_loss_first_pass", 30.0, "critic_jump"),
        ("eval/return_mean", -1150.0, "collapse"),
        ("eval/changed_return_mean", -1150.0, "deployment_gap"),
        ("diag/dead_units", 0.5, "dead_units"),
        ("diag/feature_rank", 5.0, "feature_rank"),
        ("diag/policy_variance", 0.001, "state_blind"),
        ("time/device_utilisation", 10.0, "idle_device"),
    ],
)
def test_one_sick_reading_raises_its_own_alarm_and_no_other(
    name: str, sick: float, expected: str
) -> None:
    series = healthy(60, 0)
    series[name][47:] = sick
    if name == "diag/entropy_share":
        # A return on its best would excuse it: let it sink, and vary as it did.
        returns = series["rollout/return_round"]
        sunk = np.clip((np.arange(60) - 35) / 11, 0, 1)
        returns += sunk * (-800.0 + 30 * np.random.default_rng(9).normal(size=60) - returns)
    assert [found.name for found in judged(series, CALIBRATED)] == [expected]


def test_a_return_that_falls_for_good_raises_the_cliff_though_other_readings_stay_healthy() -> None:
    series = healthy(100, 0)
    series["rollout/return_round"][85:] = -1150.0
    cliff = [found for found in judged(series, CALIBRATED) if found.name == "reward_cliff"]
    assert [found.severity for found in cliff] == ["danger"]


def test_an_alarm_is_one_line_and_has_a_rank() -> None:
    line = str(alarm("policy_lag", "danger", 12.3456))
    assert line == "DANGER policy_lag: it is so; (value 12.3) do that."
    assert [alarm(severity=s).rank for s in ("watch", "warn", "danger")] == [0, 1, 2]


def test_an_alarm_begins_once_however_long_it_lasts() -> None:
    panel = Panel(CALIBRATED)
    assert panel.take([alarm()], 0) == [alarm()]
    assert [panel.take([alarm()], now) for now in range(1, 100)] == [[]] * 99


def test_an_alarm_begins_again_when_it_grows_worse_but_not_when_it_eases() -> None:
    panel = Panel(CALIBRATED)
    begun = [panel.take([alarm(severity=s)], 0) for s in ("warn", "watch", "danger", "warn")]
    assert [[a.severity for a in found] for found in begun] == [["warn"], [], ["danger"], []]


def test_an_alarm_that_lasts_keeps_its_newest_values_and_grade() -> None:
    panel = Panel(CALIBRATED)
    panel.take([alarm(severity="warn", value=1.0)], 0)
    assert panel.take([alarm(severity="warn", value=2.0)], 1) == []
    assert panel.active["a"].values == {"value": 2.0}
    assert panel.take([alarm(severity="watch", value=0.5)], 2) == []
    assert panel.active["a"] == alarm(severity="watch", value=0.5)
    assert panel.fresh(2) == {"a": alarm(severity="watch", value=0.5)}
    # As bad as before is no news; worse than ever is, also after a file.
    assert panel.take([alarm(severity="warn", value=3.0)], 3) == []
    again = Panel(CALIBRATED)
    panel.take([alarm(severity="watch")], 4)
    again.load_state_dict(panel.state_dict())
    for one in (panel, again):
        assert one.take([alarm(severity="warn")], 5) == []
        assert one.take([alarm(severity="danger")], 6) == [alarm(severity="danger")]


def test_an_alarm_that_ended_may_begin_anew_with_a_milder_grade() -> None:
    panel = Panel(CALIBRATED)
    panel.take([alarm(severity="danger")], 0)
    panel.take([], QUIET_ROUNDS + 1)
    assert panel.take([alarm(severity="watch")], QUIET_ROUNDS + 2) == [alarm(severity="watch")]
    assert panel.take([alarm(severity="warn")], QUIET_ROUNDS + 3) == [alarm(severity="warn")]


def test_an_alarm_ends_after_the_quiet_rounds_and_not_before() -> None:
    panel = Panel(CALIBRATED)
    panel.take([alarm()], 5)
    panel.take([], 5 + QUIET_ROUNDS)
    assert "a" in panel.active
    panel.take([], 5 + QUIET_ROUNDS + 1)
    assert panel.active == {}
    assert panel.take([alarm()], 5 + QUIET_ROUNDS + 2) == [alarm()]


def test_a_flickering_alarm_is_one_onset() -> None:
    panel = Panel(CALIBRATED)
    onsets = sum(len(panel.take([alarm()], now)) for now in range(0, 200, QUIET_ROUNDS))
    assert onsets == 1


def test_alarms_are_fresh_while_their_rule_holds() -> None:
    panel = Panel(CALIBRATED)
    panel.take([alarm("a"), alarm("b")], 3)
    panel.take([alarm("b")], 4)
    assert set(panel.fresh(4)) == {"b"}
    assert set(panel.fresh(4, rounds=2)) == {"a", "b"}
    assert set(panel.fresh(5)) == set()


def test_clear_switches_all_alarms_off_and_they_may_begin_anew() -> None:
    panel = Panel(CALIBRATED)
    panel.take([alarm()], 0)
    panel.clear()
    assert panel.active == {}
    assert panel.take([alarm()], 1) == [alarm()]


def test_judge_applies_its_rules_with_its_limits() -> None:
    def rule(history: History, limits: Limits) -> Alarm | None:
        return alarm() if history.newest("x") > limits.drift else None

    history = recorded({"x": [2.0]})
    assert Panel(Limits(drift=1.0), (rule,)).judge(history) == [alarm()]
    assert Panel(Limits(drift=3.0), (rule,)).judge(history) == []


def test_state_dict_goes_through_a_file_and_the_panel_goes_on_alike(tmp_path: Path) -> None:
    panel = Panel(CALIBRATED)
    panel.take([alarm("a", "warn", np.float64(2.5)), alarm("b")], 7)
    torch.save(panel.state_dict(), tmp_path / "panel.pt")
    again = Panel(CALIBRATED)
    again.load_state_dict(torch.load(tmp_path / "panel.pt", weights_only=True))
    assert again.active == panel.active
    assert again.fresh(7) == panel.fresh(7)
    assert again.take([alarm("a", "warn"), alarm("b", "danger")], 8) == [alarm("b", "danger")]
    again.take([], 8 + QUIET_ROUNDS + 1)
    assert again.active == {}
