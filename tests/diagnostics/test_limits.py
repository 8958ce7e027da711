from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict

import pytest

from rl_twoclocks import compose
from rl_twoclocks.config import ConfigError
from rl_twoclocks.diagnostics import CALIBRATED, SEED, limits
from rl_twoclocks.safety import settle


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
    config = compose(["task=cartpole", f"{prefix}diagnostics.limits.kl_warn=0.2"])
    assert config.diagnostics.limits == {"kl_warn": 0.2}
    settled, _ = settle(config)
    levels = limits(settled.diagnostics.thresholds, settled.diagnostics.limits)
    assert levels.kl_warn == 0.2


def test_a_misspelt_level_on_the_command_line_is_refused_before_the_run() -> None:
    config = compose(["task=cartpole", "diagnostics.limits.kl_wrn=1"])
    with pytest.raises(ConfigError, match=r"limits\.kl_wrn is no level: did you mean kl_warn"):
        settle(config)
