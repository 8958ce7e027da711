from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_twoclocks.diagnostics import History
from rl_twoclocks.diagnostics.history import EPISODE, KEEP, LEVEL, RETURN, SMOOTHED
from rl_twoclocks.diagnostics.limits import CALIBRATED
from rl_twoclocks.diagnostics.panel import RULES, Rule
from rl_twoclocks.diagnostics.policy_shift import kl_alarm
from tests.diagnostics.histories import recorded


def test_an_empty_history_knows_nothing() -> None:
    history = History()
    assert "x" not in history
    assert history.series("x").shape == (0,)
    assert history.rounds("x").shape == (0,)
    assert math.isnan(history.newest("x"))
    assert math.isnan(history.highest("x"))
    assert math.isnan(history.usual("x"))
    assert history.newest("x", 7.0) == 7.0
    assert not history.all_beyond("x", 0.0, 1)


def test_values_are_kept_with_the_rounds_that_they_were_taken_in() -> None:
    history = History()
    for number in range(6):
        history.add({"every": 10.0 * number} | ({"some": 1.0 * number} if number % 2 else {}))
        history.next_round()
    assert history.series("every").tolist() == [0, 10, 20, 30, 40, 50]
    assert history.series("some").tolist() == [1, 3, 5]
    assert history.rounds("some").tolist() == [1, 3, 5]


def test_a_round_counts_once_however_often_its_readings_are_given() -> None:
    once, twice = recorded({"x": [5.0, 1.0, 1.0]}), History()
    for value in (5.0, 1.0, 1.0):
        if twice.series("x").size:
            twice.next_round()
        twice.add({"x": 3.0, RETURN: value})
        assert not twice.all_beyond("x", 4.0, 1)
        twice.add({"x": value, RETURN: value})
    assert twice.series("x").tolist() == once.series("x").tolist()
    assert twice.rounds("x").tolist() == once.rounds("x").tolist()
    assert twice.series(SMOOTHED).tolist() == [5.0, 3.0, 1.0]
    for rounds in (2, 3):
        assert twice.all_beyond("x", 2.0, rounds, below=True) == (rounds == 2)


def test_a_name_is_in_the_history_only_in_the_round_of_its_measurement() -> None:
    history = recorded({"x": [1.0]})
    assert "x" in history
    history.next_round()
    assert "x" not in history
    assert history.newest("x") == 1.0


def test_what_is_no_number_counts_as_not_measured() -> None:
    history = recorded({"x": [1.0, math.nan]})
    assert "x" not in history
    assert history.series("x").tolist() == [1.0]
    assert history.highest("x") == 1.0


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_what_is_infinite_counts_as_very_large(value: float) -> None:
    history = recorded({"x": [1.0, value, value]})
    assert "x" in history
    assert history.all_beyond("x", math.copysign(1e20, value), 2, below=value < 0)
    assert math.isfinite(history.newest("x"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_rule_stumbles_over_what_is_infinite(rule: Rule) -> None:
    names = [
        "diag/kl_behaviour", "diag/ess", "train/clip_fraction", "diag/grad_norm_max",
        "diag/grad_participation", "diag/grad_condition", "diag/score_residual",
        "diag/baseline_leak", "diag/entropy_share", "diag/duplicates", "diag/state_drift",
        "diag/explained_variance", "diag/critic_loss_first_pass", "clock/ratio_measured",
        "clock/staleness_min", "clock/publish_lag", "time/memory_host", "diag/dead_units",
    ]  # fmt: skip
    for value in (math.inf, -math.inf, math.nan):
        rule(recorded(dict.fromkeys(names, [1.0] * 40 + [value] * 4)), CALIBRATED)


def test_a_divergence_that_overflows_raises_its_alarm() -> None:
    series = {"diag/kl_behaviour": [0.01] * 8 + [math.inf] * 2}
    alarm = kl_alarm(recorded(series), CALIBRATED)
    assert alarm is not None
    assert alarm.severity == "danger"


def test_the_highest_value_outlives_the_newest_ones() -> None:
    history = recorded({"x": [99.0] + [1.0] * (KEEP + 5)})
    assert history.series("x").size == KEEP
    assert history.series("x").max() == 1.0
    assert history.highest("x") == 99.0


def test_the_highest_of_negative_values_is_negative() -> None:
    assert recorded({"x": [-5.0, -2.0, -9.0]}).highest("x") == -2.0


@pytest.mark.parametrize(
    ("series", "above", "below"),
    [
        ([5, 5, 5], True, False),
        ([1, 5, 5], True, False),
        ([5, 5, 1], False, False),
        ([5, 1, 1], False, True),
        ([3, 3, 3], False, False),
        ([5], False, False),
    ],
)
def test_all_beyond_asks_the_newest_two_of_a_series(
    series: list[float], above: bool, below: bool
) -> None:
    history = recorded({"x": series})
    assert history.all_beyond("x", 3.0, 2) is above
    assert history.all_beyond("x", 3.0, 2, below=True) is below


def test_all_beyond_needs_a_value_of_this_round() -> None:
    history = recorded({"x": [5.0, 5.0]})
    assert history.all_beyond("x", 3.0, 2)
    history.next_round()
    assert not history.all_beyond("x", 3.0, 2)


@pytest.mark.parametrize(("leave_out", "median"), [(0, 3.0), (1, 2.5), (2, 2.0), (4, 1.0)])
def test_usual_is_the_median_without_the_newest(leave_out: int, median: float) -> None:
    assert recorded({"x": [1, 2, 3, 4, 100]}).usual("x", leave_out) == median


def test_usual_is_nan_if_none_are_left() -> None:
    assert math.isnan(recorded({"x": [1.0, 2.0]}).usual("x", leave_out=2))


@pytest.mark.parametrize("leave_out", [1, 2, 3, 4, 99])
@pytest.mark.parametrize("series", [[], [1.0]])
def test_usual_is_nan_if_there_are_fewer_than_are_left_out(
    series: list[float], leave_out: int
) -> None:
    assert math.isnan(recorded({"x": series, "y": [0.0]}).usual("x", leave_out))


def test_usual_with_fewer_values_than_are_left_out_does_not_take_some_of_them() -> None:
    assert math.isnan(recorded({"x": [1.0, 2.0]}).usual("x", leave_out=3))
    assert math.isnan(recorded({"x": [1.0, 2.0, 3.0]}).usual("x", leave_out=5))


def test_the_start_is_the_first_five_values_however_long_the_run_gets() -> None:
    history = recorded({"x": np.arange(KEEP + 50.0), "y": [7.0, 8.0]})
    assert history.start("x").tolist() == [0, 1, 2, 3, 4]
    assert history.start("y").tolist() == [7, 8]
    assert history.start("unknown").size == 0
    assert history.series("x")[0] == 50.0


@pytest.mark.parametrize("episode", [2.0, 7.0])
def test_the_return_is_also_kept_as_the_middle_of_its_newest_ones(episode: float) -> None:
    returns = [1.0, 9.0, 2.0, 3.0, 8.0, -99.0, 4.0]
    history = recorded({EPISODE: [episode] * 7, RETURN: returns})
    # The middle three of five; where an episode takes seven rounds, the middle three of seven.
    last = 3.0 if episode == 7.0 else (3 + 2 + 4) / 3
    expected = [1, 5, 2, 2.5, 13 / 3, 13 / 3 if episode == 2.0 else 3.5, last]
    assert history.series(LEVEL) == pytest.approx(expected)
    assert history.rounds(LEVEL).tolist() == history.rounds(RETURN).tolist()


def test_forget_drops_every_value_and_keeps_start_and_given_best_of_chosen_names_alone() -> None:
    history = recorded({"return": [-9.0, 5.0, 6.0, 1.0], "kl": [1.0, 9.0, 3.0, 3.0]})
    history.forget({"return": 4.0, "unknown": math.nan})
    for name in ("return", "kl", "unknown"):
        assert history.series(name).size == 0
        assert history.rounds(name).size == 0
        assert name not in history
    assert history.start("return").tolist() == [-9.0, 5.0, 6.0, 1.0]
    assert history.highest("return") == 4.0
    # What was the largest under the old clocks is no measure for the new ones.
    assert math.isnan(history.highest("kl"))
    assert history.start("kl").size == 0
    assert math.isnan(history.highest("unknown"))
    assert history.round == 3


def test_a_forgotten_series_goes_on_with_its_start_and_the_best_that_was_given() -> None:
    history = recorded({"return": [-9.0, 5.0, 6.0], "kl": [1.0, 9.0, 3.0]})
    history.forget({"return": 6.0})
    history.next_round()
    history.add({"return": 1.0, "kl": 2.0})
    assert history.series("return").tolist() == [1.0]
    assert history.rounds("return").tolist() == [3]
    assert history.start("return").tolist() == [-9.0, 5.0, 6.0, 1.0]
    assert history.highest("return") == 6.0
    assert history.highest("kl") == 2.0
    assert history.start("kl").tolist() == [2.0]


def test_state_dict_goes_through_a_file_and_the_history_goes_on_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first = recorded({"x": rng.normal(size=KEEP + 20), "y": [1.0, math.nan, 1e-300]})
    torch.save(first.state_dict(), tmp_path / "history.pt")
    second = History()
    second.load_state_dict(torch.load(tmp_path / "history.pt", weights_only=True))
    for history in (first, second):
        history.next_round()
        history.add({"x": 0.5})
    assert second.round == first.round
    for name in ("x", "y"):
        np.testing.assert_array_equal(second.series(name), first.series(name))
        np.testing.assert_array_equal(second.rounds(name), first.rounds(name))
        assert second.highest(name) == first.highest(name)
        np.testing.assert_array_equal(second.start(name), first.start(name))
        assert (name in second) == (name in first)
    assert second.series("x").size == KEEP
