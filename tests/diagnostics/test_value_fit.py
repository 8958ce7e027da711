from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_twoclocks.diagnostics import CALIBRATED, SEED, Limits, explained_variance
from rl_twoclocks.diagnostics.value_fit import critic_jump_alarm
from tests.diagnostics.histories import recorded

LOSS = "diag/critic_loss_first_pass"


def normal(n: int, seed: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def test_explained_variance_by_hand() -> None:
    target = torch.tensor([0.0, 2.0, 4.0, 6.0])
    value = torch.tensor([1.0, 1.0, 5.0, 5.0])
    assert explained_variance(value, target) == pytest.approx(1 - 1 / 5)


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_a_constant_one() -> None:
    target = normal(100, 0)
    assert explained_variance(target, target) == 1.0
    assert explained_variance(torch.full((100,), 3.0), target) == pytest.approx(0.0, abs=1e-6)


def test_explained_variance_does_not_see_a_constant_offset() -> None:
    target = normal(100, 0)
    assert explained_variance(target + 5.0, target) == pytest.approx(1.0, abs=1e-5)


def test_explained_variance_is_negative_for_a_critic_worse_than_a_constant() -> None:
    target = normal(100, 0)
    assert explained_variance(-target, target) == pytest.approx(-3.0, abs=1e-5)


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0])
def test_explained_variance_of_a_noisy_critic_has_its_closed_form(noise: float) -> None:
    target = normal(100_000, 0)
    value = target + noise * normal(100_000, 1)
    assert explained_variance(value, target) == pytest.approx(1 - noise**2, abs=0.02)


@pytest.mark.parametrize("target", [0.0, 1.0, -64.0, 0.1, 1 / 3, 1234.567, -9876.5432])
def test_explained_variance_of_constant_targets_is_zero(target: float) -> None:
    for n in (50, 1000, 4096):
        assert explained_variance(normal(n, 0), torch.full((n,), target)) == 0.0


@pytest.mark.parametrize("level", [1e3, 1e4, -1e4])
def test_explained_variance_of_targets_far_from_zero_is_what_it_is_near_it(level: float) -> None:
    target = (256 * normal(1000, 0)).round() / 256
    value = target + (128 * normal(1000, 1)).round() / 256
    near = explained_variance(value, target)
    assert explained_variance(value + level, target + level) == pytest.approx(near, abs=1e-3)


def losses(last: float, seed: int = 0, noise: float = 0.02) -> np.ndarray:
    calm = np.exp(np.random.default_rng(seed).normal(scale=noise, size=20))
    return np.concatenate([calm, [last] * 3])


@pytest.mark.parametrize("limits", [CALIBRATED, SEED])
def test_critic_jump_alarm_on_a_loss_that_jumps_and_stays_up(limits: Limits) -> None:
    alarm = critic_jump_alarm(recorded({LOSS: losses(4.0)}), limits)
    assert alarm is not None
    # While a policy learns its targets change too: alone it is a hint.
    assert (alarm.name, alarm.severity) == ("critic_jump", "watch")
    assert alarm.values["jump"] == pytest.approx(3.0, abs=0.1)
    assert alarm.values["jump"] > alarm.values["level"]


@pytest.mark.parametrize(
    "series",
    [losses(1.0), losses(1.8), [*losses(4.0)[:-1], 1.0], [1.0] * 12 + [4.0] * 3, losses(0.1)],
    ids=["healthy", "below the level", "came back", "too early", "fell"],
)
def test_critic_jump_alarm_is_silent(series: list[float]) -> None:
    assert critic_jump_alarm(recorded({LOSS: series}), CALIBRATED) is None


def test_critic_jump_alarm_takes_a_smaller_jump_while_states_are_narrow() -> None:
    series = {LOSS: losses(1.7)}
    wide = recorded(series | {"diag/entropy_share": [0.8]})
    narrow = recorded(series | {"diag/entropy_share": [0.2]})
    assert critic_jump_alarm(wide, CALIBRATED) is None
    alarm = critic_jump_alarm(narrow, CALIBRATED)
    assert alarm is not None and alarm.severity == "warn"


def test_critic_jump_alarm_allows_more_where_the_loss_jumps_anyway() -> None:
    series = np.concatenate([np.tile([1.0, 1.6], 10), [4.0] * 3])
    assert critic_jump_alarm(recorded({LOSS: series}), CALIBRATED) is None
    assert critic_jump_alarm(recorded({LOSS: series}), SEED) is not None


def test_critic_jump_alarm_of_the_seed_set_begins_at_twenty_percent() -> None:
    assert critic_jump_alarm(recorded({LOSS: [1.0] * 20 + [1.25] * 3}), SEED) is not None
    assert critic_jump_alarm(recorded({LOSS: [1.0] * 20 + [1.19] * 3}), SEED) is None


@pytest.mark.parametrize(
    ("jump", "bits", "raised"),
    [(1.17, 2.4, True), (1.17, 2.6, False), (1.14, 2.4, False), (1.25, 2.6, True)],
)
def test_critic_jump_alarm_of_the_seed_set_takes_seventeen_percent_at_low_entropy(
    jump: float, bits: float, raised: bool
) -> None:
    series = {LOSS: [1.0] * 20 + [jump] * 3, "diag/rollout_entropy_own_range": [bits]}
    # Its entropy is absolute: the share of the calibrated set says nothing to it.
    for more in ({}, {"diag/entropy_share": [0.9]}, {"diag/entropy_share": [0.1]}):
        assert (critic_jump_alarm(recorded(series | more), SEED) is not None) is raised
    assert critic_jump_alarm(recorded(series), CALIBRATED) is None


def test_critic_jump_alarm_is_silent_in_a_round_without_a_loss() -> None:
    history = recorded({LOSS: losses(4.0)})
    history.next_round()
    assert critic_jump_alarm(history, CALIBRATED) is None
