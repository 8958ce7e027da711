from __future__ import annotations

import numpy as np
import pytest

from rl_twoclocks.diagnostics import CALIBRATED, History, periodicity
from rl_twoclocks.diagnostics.history import EPISODE
from rl_twoclocks.diagnostics.periodicity import (
    Period,
    periodic_alarm,
    strength_at,
    strongest_period,
)
from tests.diagnostics.histories import recorded, screened


def noise(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=n)


def significant(found: Period) -> bool:
    return found.share >= CALIBRATED.periodicity and found.p_value <= 0.01


@pytest.mark.parametrize("period", [2, 3, 5, 8, 13])
@pytest.mark.parametrize("seed", range(2))
def test_period_of_spikes_is_found(period: int, seed: int) -> None:
    series = 0.3 * noise(64, seed) + 2.0 * (np.arange(64) % period == 0)
    found = strongest_period(series)
    assert found.length == period
    assert significant(found)


@pytest.mark.parametrize("period", [4, 7, 10, 16])
@pytest.mark.parametrize("seed", range(2))
def test_period_of_waves_is_found(period: int, seed: int) -> None:
    series = 0.3 * noise(64, seed) + np.sin(2 * np.pi * np.arange(64) / period)
    found = strongest_period(series)
    assert found.length == period
    assert significant(found)


def test_a_spotless_period_explains_all_variance_with_the_least_p_value() -> None:
    found = strongest_period(np.tile([5.0, 0.0, 0.0, 0.0], 16))
    assert found.length == 4
    assert found.share == pytest.approx(1.0, abs=0.02)
    assert found.p_value == 1 / 1001


def test_the_shortest_of_several_multiples_is_meant() -> None:
    assert strongest_period(np.tile([1.0, 0.0, 0.0], 30)).length == 3


@pytest.mark.parametrize("trend", [0.05, -0.2])
def test_a_trend_does_not_hide_a_period(trend: float) -> None:
    t = np.arange(64)
    series = trend * t + 2.0 * (t % 6 == 0) + 0.2 * noise(64, 0)
    found = strongest_period(series)
    assert found.length == 6
    assert significant(found)


@pytest.mark.parametrize(("scale", "shift"), [(1e-6, 0.0), (1e6, 0.0), (1.0, 1e3), (-1.0, 0.0)])
def test_the_period_does_not_depend_on_scale_or_level(scale: float, shift: float) -> None:
    series = 0.5 * noise(48, 3) + (np.arange(48) % 5 == 0)
    plain, changed = strongest_period(series), strongest_period(scale * series + shift)
    assert changed.length == plain.length
    assert changed.share == pytest.approx(plain.share)
    assert changed.p_value == plain.p_value


def test_noise_beats_time_in_no_more_than_chance() -> None:
    found = [strongest_period(noise(64, seed), permutations=200) for seed in range(30)]
    assert sum(significant(x) for x in found) <= 2
    assert np.mean([x.p_value for x in found]) > 0.3


def test_random_walks_do_not_beat_time() -> None:
    walks = [np.cumsum(noise(64, seed)) for seed in range(30)]
    assert sum(significant(strongest_period(x, permutations=200)) for x in walks) <= 1


def sliding(n: int, seed: int, width: int = 4) -> np.ndarray:
    """Noise as a window that slides over `width` rounds sees it."""
    return np.convolve(noise(n + width - 1, seed), np.ones(width) / width**0.5, "valid")


def test_windows_that_share_frames_do_not_beat_time() -> None:
    series = [sliding(64, seed) for seed in range(150)]
    alone = sum(significant(strongest_period(x, 200)) for x in series)
    known = sum(significant(strongest_period(x, 200, shared=4)) for x in series)
    assert known <= 3
    assert alone >= 3 * known + 5


@pytest.mark.parametrize("period", [4, 5, 8, 10, 13])
def test_a_beat_is_seen_in_windows_that_share_frames(period: int) -> None:
    series = 0.15 * sliding(64, period) + (np.arange(64) % period == 0)
    found = strongest_period(series, shared=4)
    assert found.length == period
    assert significant(found)


@pytest.mark.parametrize("power", [1, 2])
def test_a_trend_alone_does_not_beat_time(power: int) -> None:
    found = strongest_period(np.arange(64.0) ** power)
    assert found.share == 0.0
    assert found.p_value == 1.0


@pytest.mark.parametrize(
    "series",
    [[], [1.0, 0.0] * 7, [3.3] * 40, [1.0, 0.0] * 20 + [np.nan], [1.0, 0.0] * 20 + [np.inf]],
    ids=["empty", "short", "constant", "nan", "inf"],
)
def test_series_without_a_period(series: list[float]) -> None:
    assert strongest_period(series) == Period(0, 0.0, 1.0)


def loss(n: int, seed: int, spike: float) -> np.ndarray:
    t = np.arange(n)
    return np.exp(-t / 20 + 0.15 * noise(n, seed)) * (1 + spike * (t % 4 == 0))


@pytest.mark.parametrize("n", [32, 64, 200])
def test_periodic_alarm_on_a_shrinking_loss_that_jumps_every_fourth_round(n: int) -> None:
    history = recorded({"diag/critic_loss_first_pass": loss(n, 0, spike=2.0)}, now=8 * n)
    alarm = periodic_alarm(history, CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("periodic_loss", "warn")
    assert alarm.values["period in rounds"] == 4
    assert alarm.values["p"] <= 0.002


@pytest.mark.parametrize(("episode", "raised"), [(3.906, False), (2.0, False), (9.8, True)])
def test_the_beat_of_episodes_that_begin_together_is_no_sign(episode: float, raised: bool) -> None:
    series = {"diag/critic_loss_first_pass": loss(64, 0, spike=2.0), EPISODE: [episode] * 64}
    assert (periodic_alarm(recorded(series, now=64), CALIBRATED) is not None) is raised


@pytest.mark.parametrize(("age", "said"), [(0.0, "something returns"), (3.0, "stale data")])
def test_fresh_data_is_not_called_stale(age: float, said: str) -> None:
    series = {"diag/critic_loss_first_pass": loss(64, 0, spike=2.0)}
    alarm = periodic_alarm(
        recorded(series | {"clock/staleness_max": [age] * 64}, now=64), CALIBRATED
    )
    assert alarm is not None and said in alarm.cause


def test_periodic_alarm_counts_swings_in_proportion_to_the_loss() -> None:
    fast = loss(64, 0, spike=2.0) * np.exp(-np.arange(64) / 10)
    history = recorded({"diag/critic_loss_first_pass": fast}, now=64)
    assert not significant(strongest_period(fast))
    assert periodic_alarm(history, CALIBRATED) is not None


@pytest.mark.parametrize("seed", range(5))
def test_periodic_alarm_is_silent_on_a_loss_that_only_shrinks(seed: int) -> None:
    history = recorded({"diag/critic_loss_first_pass": loss(64, seed, spike=0.0)}, now=64)
    assert periodic_alarm(history, CALIBRATED) is None


def test_periodic_alarm_looks_every_eighth_round_only() -> None:
    series = {"diag/critic_loss_first_pass": loss(64, 0, spike=2.0)}
    raised = [
        periodic_alarm(recorded(series, now=n), CALIBRATED) is not None for n in range(64, 81)
    ]
    assert [n for n, on in zip(range(64, 81), raised, strict=True) if on] == [64, 72, 80]


def test_periodic_alarm_needs_32_positive_losses_and_one_of_this_round() -> None:
    short = recorded({"diag/critic_loss_first_pass": loss(31, 0, spike=2.0)}, now=64)
    assert periodic_alarm(short, CALIBRATED) is None
    zero = loss(64, 0, spike=2.0)
    zero[40] = 0.0
    assert (
        periodic_alarm(recorded({"diag/critic_loss_first_pass": zero}, now=64), CALIBRATED) is None
    )
    old = recorded({"diag/critic_loss_first_pass": loss(64, 0, spike=2.0)}, now=63)
    old.next_round()
    assert periodic_alarm(old, CALIBRATED) is None


def test_screening_gives_the_same_answers() -> None:
    assert screened(loss(64, 0, spike=2.0)) == strongest_period(loss(64, 0, spike=2.0))
    for seed in range(4):
        series = noise(64, seed) + 0.9 * (np.arange(64) % 5 == 0)
        quick, full = screened(series), strongest_period(series)
        assert (quick.length, quick.share) == (full.length, full.share)
        assert (quick.p_value <= 0.002) == (full.p_value <= 0.002) or (
            full.share < CALIBRATED.periodicity
        )


def test_periodic_alarm_is_silent_on_white_noise_all_run_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(periodicity, "strongest_period", screened)
    silent = 0
    for seed in range(12):
        history, alarms = History(), 0
        for number, value in enumerate(np.exp(0.15 * noise(489, seed))):
            history.round = number
            history.add({"diag/critic_loss_first_pass": float(value)})
            alarms += number % 8 == 0 and periodic_alarm(history, CALIBRATED) is not None
        silent += not alarms
    assert silent >= 10


def test_periodic_alarm_wants_the_same_period_eight_rounds_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = recorded({"diag/critic_loss_first_pass": loss(64, 0, spike=2.0)}, now=64)
    assert periodic_alarm(history, CALIBRATED) is not None
    for before in (Period(5, 0.9, 0.001), Period(4, 0.9, 0.03), Period(0, 0.0, 1.0)):

        def found(series: np.ndarray, shared: int, before: Period = before) -> Period:
            return Period(4, 0.9, 0.001) if series.size == 64 else before

        monkeypatch.setattr(periodicity, "strongest_period", found)
        assert periodic_alarm(history, CALIBRATED) is None


@pytest.mark.parametrize(("p", "raised"), [(0.002, True), (0.003, False)])
def test_periodic_alarm_takes_one_chance_in_five_hundred(
    monkeypatch: pytest.MonkeyPatch, p: float, raised: bool
) -> None:
    monkeypatch.setattr(periodicity, "strongest_period", lambda _, shared: Period(4, 0.9, p))
    history = recorded({"diag/critic_loss_first_pass": loss(64, 0, spike=2.0)}, now=64)
    assert (periodic_alarm(history, CALIBRATED) is not None) is raised


@pytest.mark.parametrize("seed", range(5))
def test_strength_at_a_known_period_sees_spikes_there_and_nowhere_else(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(size=300)
    spikes = noise + 4.0 * (np.arange(300) % 25 == 7)
    share, p_value = strength_at(spikes, 25)
    assert share > 0.2
    assert p_value < 0.01
    assert strength_at(noise, 25)[1] > 0.01
    assert strength_at(spikes, 23)[1] > 0.01


def test_strength_needs_three_periods() -> None:
    with pytest.raises(ValueError, match="three periods of 25"):
        strength_at(np.zeros(74), 25)


def test_neighbours_that_are_alike_are_no_beat() -> None:
    """A series that wanders, as losses do, must not pass for one that beats time."""
    called = 0
    for seed in range(60):
        steps = np.random.default_rng(seed).normal(size=400)
        wandering = np.zeros(400)
        for i in range(1, 400):
            wandering[i] = 0.9 * wandering[i - 1] + steps[i]
        called += strength_at(wandering, 25, permutations=200)[1] < 0.05
    assert called <= 7
