from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict

import pytest

from rl_twoclocks import compose
from rl_twoclocks.config import ConfigError
from rl_twoclocks.diagnostics import CALIBRATED, SEED, levels, limits
from rl_twoclocks.diagnostics.clock_signs import lag_alarm
from rl_twoclocks.diagnostics.policy_shift import ess_alarm, kl_alarm
from rl_twoclocks.safety import settle
from tests.diagnostics.histories import recorded


def test_both_sets_are_found_by_name() -> None:
    assert limits("calibrated", {}) == CALIBRATED
    assert limits("seed", {}) == SEED
    assert CALIBRATED != SEED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ratio_watch", 10.0),
        ("ratio_danger", 50.0),
        ("entropy_low", 2.5),
        ("entropy_danger", 2.0),
        ("gradient_norm", 5.0),
        ("critic_jump", 0.2),
        ("critic_jump_narrow", 0.15),
        ("staircase", 5.0),
        ("staircase_rise", 3.0),
        ("idle", 30.0),
    ],
)
def test_the_seed_set_holds_the_numbers_of_the_specification(name: str, value: float) -> None:
    assert asdict(SEED)[name] == value


@pytest.mark.parametrize("thresholds", ["seed", "calibrated"])
def test_overrides_replace_single_levels_and_leave_the_set_as_it_was(thresholds: str) -> None:
    before = asdict(limits(thresholds, {}))
    changed = asdict(limits(thresholds, {"drift": 1.25, "gap": 0.75}))
    assert changed == before | {"drift": 1.25, "gap": 0.75}
    assert asdict(limits(thresholds, {})) == before


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("entropy_lo", "entropy_low"), ("kl_dangr", "kl_danger"), ("ratio-watch", "ratio_watch")],
)
def test_an_unknown_level_is_refused_and_the_nearest_one_named(wrong: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"limits.{wrong} is no level: did you mean {meant}"):
        limits("calibrated", {wrong: 1.0})


def test_levels_cannot_be_changed_in_place() -> None:
    with pytest.raises(FrozenInstanceError):
        CALIBRATED.drift = 0.0  # type: ignore[misc]


@pytest.mark.parametrize("thresholds", ["seed", "calibrated"])
def test_danger_lies_beyond_warn_and_warn_beyond_watch(thresholds: str) -> None:
    levels = limits(thresholds, {})
    assert levels.kl_watch < levels.kl_warn < levels.kl_danger
    assert levels.chi_warn < levels.chi_danger
    assert levels.ratio_watch < levels.ratio_danger
    assert levels.lag_watch < levels.lag_danger
    assert levels.critic_jump_narrow < levels.critic_jump
    if levels.entropy_relative:
        assert levels.entropy_danger > levels.entropy_low
    else:
        assert levels.entropy_danger < levels.entropy_low


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_a_level_can_be_set_on_the_command_line(prefix: str) -> None:
    config = compose(["task=cartpole", f"{prefix}diagnostics.limits.kl_warn=0.08"])
    assert config.diagnostics.limits == {"kl_warn": 0.08}
    settled, _ = settle(config)
    levels = limits(settled.diagnostics.thresholds, settled.diagnostics.limits)
    assert levels.kl_warn == 0.08


def test_a_misspelt_level_on_the_command_line_is_refused_before_the_run() -> None:
    config = compose(["task=cartpole", "diagnostics.limits.kl_wrn=1"])
    with pytest.raises(ConfigError, match=r"limits\.kl_wrn is no level: did you mean kl_warn"):
        settle(config)


@pytest.mark.parametrize(
    ("overrides", "silent", "loud"),
    [
        ([], 0.0, 1.0),
        (["collect=async"], 1.0, 2.0),
        (["clocks.publish_interval=3"], 2.0, 3.0),
        (["collect=async", "clocks.publish_interval=3"], 3.0, 4.0),
    ],
)
def test_an_age_that_was_asked_for_is_no_alarm(
    overrides: list[str], silent: float, loud: float
) -> None:
    level = levels(compose(["task=pendulum", *overrides]))
    for age, heard in ((silent, False), (loud, True)):
        history = recorded({"clock/staleness_min": [age] * 3})
        assert (lag_alarm(history, level) is not None) is heard


@pytest.mark.parametrize(("age", "versions"), [(0, 1), (1, 2), (4, 5), (9, 5)])
def test_levels_of_kl_and_ess_grow_with_the_age_of_the_data_up_to_a_bound(
    age: float, versions: float
) -> None:
    def heard(kl: float, ess: float) -> set[str]:
        readings = {"diag/kl_behaviour": kl, "diag/ess": ess, "clock/staleness_min": age}
        history = recorded({name: [value] * 3 for name, value in readings.items()})
        alarms = [rule(history, CALIBRATED) for rule in (kl_alarm, ess_alarm)]
        return {alarm.name for alarm in alarms if alarm is not None}

    kl, chi = CALIBRATED.kl_watch * versions, CALIBRATED.chi_warn * versions
    assert heard(0.99 * kl, 1 / (1 + 0.99 * chi)) == set()
    assert heard(1.01 * kl, 1 / (1 + 1.01 * chi)) == {"policy_kl", "effective_sample_size"}


@pytest.mark.parametrize(
    ("changed", "right"),
    [
        ({"kl_warn": 0.2}, False),
        ({"kl_warn": 0.2, "kl_danger": 0.4}, True),
        ({"kl_danger": 0.001}, False),
        ({"lag_watch": 9.0}, False),
        ({"duplicates": 0.9}, True),
    ],
)
def test_a_mild_level_beyond_the_severe_one_is_refused(
    changed: dict[str, float], right: bool
) -> None:
    if right:
        limits("calibrated", changed)
        return
    with pytest.raises(ConfigError, match="set both"):
        limits("calibrated", changed)


@pytest.mark.parametrize(
    ("words", "warn"),
    [
        ([], 4.0),
        (["collect=async"], 1.0 + 4 + 1),
        (["collect=async", "collect.slots=2"], 4.0),
        (["collect=async", "collect.slots=100"], 1.0 + 4 + 1),
        (["collect=async", "collect.slots=4", "collect.workers=2"], 4.0),
    ],
)
def test_slices_that_wait_in_full_slots_are_no_warning(words: list[str], warn: float) -> None:
    level = levels(compose(["task=halfcheetah", *words]))
    assert level.lag_warn == warn
    for age, severity in ((warn - 1, "watch"), (warn, "warn"), (8.0, "danger")):
        alarm = lag_alarm(recorded({"clock/staleness_min": [age] * 3}), level)
        assert alarm is not None
        assert alarm.severity == severity
