from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch

from rl_twoclocks.diagnostics import CALIBRATED
from rl_twoclocks.diagnostics.resources import (
    creep,
    idle_alarm,
    memory_alarm,
    memory_readings,
    utilisation_readings,
)
from tests.diagnostics.histories import recorded

CPU = torch.device("cpu")


def test_host_memory_is_measured_in_megabytes_and_sees_an_allocation() -> None:
    before = memory_readings(CPU)
    # Straight from the system: memory that an earlier test gave back would not be seen.
    with mmap.mmap(-1, 64 * 2**20) as kept:
        for page in range(0, len(kept), mmap.PAGESIZE):
            kept[page] = 1
        after = memory_readings(CPU)
    assert set(before) == {"time/memory_host"}
    assert after["time/memory_host"] - before["time/memory_host"] == pytest.approx(64, abs=16)


def test_utilisation_of_a_cpu_is_unknown_not_idle() -> None:
    assert utilisation_readings(CPU) == {}


@pytest.mark.parametrize("slope", [-2.0, 0.0, 0.5, 30.0])
@pytest.mark.parametrize("n", [8, 50, 1000])
def test_creep_of_a_line_is_its_slope(slope: float, n: int) -> None:
    assert creep(8000 + slope * np.arange(n)) == pytest.approx(slope)


def test_creep_is_the_median_of_pairwise_slopes() -> None:
    values = [0.0, 3.0, 1.0, 8.0, 2.0, 9.0, 4.0, 5.0]
    slopes = [(values[j] - values[i]) / (j - i) for i in range(8) for j in range(i + 1, 8)]
    assert creep(values) == pytest.approx(sorted(slopes)[13] / 2 + sorted(slopes)[14] / 2)


def test_creep_does_not_see_one_jump() -> None:
    values = np.full(32, 1000.0)
    values[4:] += 800
    assert creep(values) == 0.0


def test_creep_sees_a_slope_under_spikes_and_noise() -> None:
    rng = np.random.default_rng(0)
    values = 1000 + 2.0 * np.arange(64) + rng.normal(size=64)
    values[[5, 20, 40]] += 5000
    assert creep(values) == pytest.approx(2.0, abs=0.15)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_creep_of_fewer_than_eight_values_is_zero(n: int) -> None:
    assert creep(100.0 * np.arange(n)) == 0.0


@pytest.mark.parametrize("name", ["time/memory_host", "time/memory_device"])
def test_memory_alarm_on_steady_growth_of_either_memory(name: str) -> None:
    series = {"time/memory_host": [500.0] * 40} | {name: 8000 + 3.0 * np.arange(40)}
    alarm = memory_alarm(recorded(series, now=40), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("memory_creep", "warn")
    assert alarm.values == {"MB": 8117, "MB per round": pytest.approx(3.0)}


@pytest.mark.parametrize(
    "values",
    [
        [8000.0] * 40,
        [8000 + 0.2 * i for i in range(40)],
        [8000.0] * 20 + [9500.0] * 20,
        [8000 + 300.0 * (i // 10) for i in range(40)],
        [8000 + 3.0 * i for i in range(31)],
        [9000 - 3.0 * i for i in range(40)],
    ],
    ids=["flat", "slow", "one jump", "few jumps", "too early", "falling"],
)
def test_memory_alarm_is_silent(values: list[float]) -> None:
    assert memory_alarm(recorded({"time/memory_host": values}, now=40), CALIBRATED) is None


@pytest.mark.parametrize(("now", "raised"), [(56, False), (64, True)])
def test_memory_alarm_waits_until_the_window_has_filled_twice_over(now: int, raised: bool) -> None:
    series = {"time/memory_host": 8000 + 3.0 * np.arange(40), "clock/ratio": [20.0] * 40}
    assert (memory_alarm(recorded(series, now=now), CALIBRATED) is not None) is raised


def test_memory_alarm_looks_every_eighth_round_only() -> None:
    series = {"time/memory_host": 8000 + 3.0 * np.arange(40)}
    raised = [n for n in range(40, 57) if memory_alarm(recorded(series, now=n), CALIBRATED)]
    assert raised == [40, 48, 56]


def test_idle_alarm_after_three_idle_measurements() -> None:
    alarm = idle_alarm(recorded({"time/device_utilisation": [80, 10, 12, 14]}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("idle_device", "watch")
    assert alarm.values == {"percent": 14}


@pytest.mark.parametrize("series", [[80] * 5, [80, 10, 12], [10, 12, 14, 60], [30, 30, 30]])
def test_idle_alarm_is_silent(series: list[float]) -> None:
    assert idle_alarm(recorded({"time/device_utilisation": series}), CALIBRATED) is None


def test_idle_alarm_is_silent_where_utilisation_is_unknown() -> None:
    assert idle_alarm(recorded({"time/memory_host": [1.0] * 5}), CALIBRATED) is None
