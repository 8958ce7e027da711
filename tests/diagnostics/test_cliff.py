from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rl_twoclocks.diagnostics import CALIBRATED
from rl_twoclocks.diagnostics.cliff import (
    EPISODES,
    cliff_alarm,
    collapse_alarm,
    collapsed,
    normalised_score,
    pace_alarm,
    pace_readings,
    rounds_below,
    score_now,
    smoothed,
)
from rl_twoclocks.diagnostics.history import EPISODE, HEIGHT, KEEP, LEVEL, RETURN, History
from tests.diagnostics.histories import recorded


@pytest.mark.parametrize(
    ("value", "random", "healthy", "score"),
    [
        (-1200, -1200, -150, 0.0),
        (-150, -1200, -150, 1.0),
        (-675, -1200, -150, 0.5),
        (30, 10, 20, 2),
    ],
)
def test_score_is_zero_at_random_and_one_at_healthy_also_for_negative_returns(
    value: float, random: float, healthy: float, score: float
) -> None:
    assert normalised_score(value, random, healthy) == pytest.approx(score)


@pytest.mark.parametrize("healthy", [10.0, 9.0])
def test_score_is_zero_where_healthy_is_not_above_random(healthy: float) -> None:
    assert normalised_score(100.0, 10.0, healthy) == 0.0


@pytest.mark.parametrize(
    ("returns", "random", "rounds"),
    [
        ([0, 50, 100, 49, 49], 0, 2),
        ([0, 50, 100, 50, 50], 0, 0),
        ([0, 100, 10, 60, 10], 0, 1),
        ([100, 10, 10, 10], 0, 3),
        ([-1200, -150, -700, -700, -700], -1200, 3),
        ([-1200, -150, -600, -600, -600], -1200, 0),
        ([-5, -7, -9], -5, 0),
        ([5, 1, 1], 6, 0),
        ([1], 0, 0),
        ([], 0, 0),
    ],
)
def test_rounds_below_counts_the_newest_returns_below_half_of_their_best(
    returns: list[float], random: float, rounds: int
) -> None:
    assert rounds_below(returns, random) == rounds


@pytest.mark.parametrize(
    ("returns", "best", "rounds"),
    [([40, 40], 100, 2), ([60, 40], 100, 1), ([40], 100, 1), ([40, 200, 90], 100, 1), ([], 9, 0)],
)
def test_rounds_below_counts_a_best_from_before_the_first_return(
    returns: list[float], best: float, rounds: int
) -> None:
    assert rounds_below(returns, 0.0, best=best) == rounds


def test_rounds_below_takes_another_fraction() -> None:
    assert rounds_below([0, 100, 70, 70], 0, fraction=0.8) == 2


@pytest.mark.parametrize(
    ("evaluations", "fallen"),
    [
        ([10, 100, 40, 40, 40], True),
        ([10, 100, 40, 40], False),
        ([10, 100, 40, 40, 60], False),
        ([10, 100, 40, 40, 60, 40, 40], False),
        ([10, 100, 50, 50, 50], False),
        ([10, 100, 22, 22, 22, 22], True),
    ],
)
def test_collapse_is_three_evaluations_in_a_row_below_half_of_the_running_maximum(
    evaluations: list[float], fallen: bool
) -> None:
    assert collapsed(evaluations, random=0.0) is fallen


def test_collapse_counts_from_a_random_policys_return_not_from_zero() -> None:
    evaluations = [-1000, -100, -400, -400, -400]
    assert not collapsed(evaluations, random=-1000)
    assert collapsed(evaluations, random=-600)


def test_smoothed_is_a_running_median_that_starts_with_the_first_value() -> None:
    assert smoothed([1, 9, 2, 3, 8, 4], window=3).tolist() == [1, 1, 2, 3, 3, 4]
    assert smoothed([], window=5).size == 0


def test_smoothed_does_not_see_one_unlucky_rollout() -> None:
    returns = [10.0] * 20
    returns[12] = -1000.0
    assert smoothed(returns).tolist() == [10.0] * 20


def test_score_now_lies_between_first_and_best() -> None:
    returns = [0.0] * 5 + [100.0] * 5 + [25.0] * 5
    assert score_now(recorded({"rollout/return_round": returns})) == 0.25
    assert score_now(recorded({"rollout/return_round": returns[:10]})) == 1.0


@pytest.mark.parametrize("returns", [[5.0], [5.0, 4.0, 3.0, 2.0], [5.0] * 10])
def test_score_now_is_undefined_before_anything_was_gained(returns: list[float]) -> None:
    assert math.isnan(score_now(recorded({"rollout/return_round": returns})))


def fall(to: float, rounds: int) -> list[float]:
    rise = np.linspace(-1200, -150, 30) + 5 * np.sin(np.arange(30))
    return [*rise, *(to + 5 * np.sin(np.arange(rounds)))]


def test_cliff_alarm_on_a_return_that_falls_and_stays_down() -> None:
    alarm = cliff_alarm(recorded({"rollout/return_round": fall(-1000, 12)}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("reward_cliff", "danger")
    assert alarm.values["return"] == pytest.approx(-1000, abs=6)
    assert alarm.values["best"] == pytest.approx(-150, abs=200)
    assert alarm.values["since round"] == pytest.approx(30, abs=3)


@pytest.mark.parametrize(
    "returns",
    [
        fall(-170, 12),
        fall(-600, 12),
        fall(-1000, 5),
        [*fall(-1000, 12), *([-200.0] * 6)],
        [-1200.0, -100.0, -1200.0, -1200.0, -1200.0],
        [-1200.0] * 30,
    ],
    ids=["healthy", "above half", "too short", "came back", "too early", "never learnt"],
)
def test_cliff_alarm_is_silent(returns: list[float]) -> None:
    assert cliff_alarm(recorded({"rollout/return_round": returns}), CALIBRATED) is None


@pytest.mark.parametrize(("noise", "raised"), [(1.0, True), (60.0, False)])
def test_cliff_alarm_is_silent_where_returns_are_that_noisy_anyway(
    noise: float, raised: bool
) -> None:
    swing = noise * np.tile([1.0, 0.0, -1.0, 0.0, 0.0], 8)
    returns = np.repeat([0.0, 50.0, 50.0, 50.0, 10.0, 10.0, 10.0, 10.0], 5) + swing
    returns[0] = 0.0
    assert rounds_below(smoothed(returns), 0.0) >= CALIBRATED.cliff_rounds
    alarm = cliff_alarm(recorded({"rollout/return_round": returns}), CALIBRATED)
    assert (alarm is not None) is raised


def test_cliff_alarm_is_silent_in_a_round_without_a_return() -> None:
    history = recorded({"rollout/return_round": fall(-1000, 12)})
    history.next_round()
    assert cliff_alarm(history, CALIBRATED) is None


def test_collapse_alarm_on_three_bad_evaluations() -> None:
    series = {
        "rollout/return_round": [-1200.0] * 5,
        "eval/return_mean": [-150, -150, -800, -800, -900],
    }
    alarm = collapse_alarm(recorded(series), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("collapse", "danger")
    # The fall lies behind the evaluation of the last good round.
    assert alarm.values == {"return": -900, "best": -150, "since round": 1}


def test_one_lucky_evaluation_is_nothing_to_fall_from() -> None:
    # A run of Walker2d whose returns in training never fell.
    lucky = [593.0, 1289.0, 3238.0, 1403.0, 1428.0, 1458.0]
    series = {"rollout/return_round": [20.0, 300.0, 900.0, 1250.0, 1400.0, 1500.0]}
    assert collapse_alarm(recorded(series | {"eval/return_mean": lucky}), CALIBRATED) is None
    held = [593.0, 3190.0, 3238.0, 1403.0, 1428.0, 1458.0]
    assert collapse_alarm(recorded(series | {"eval/return_mean": held}), CALIBRATED) is not None


@pytest.mark.parametrize(
    "evaluations",
    [
        [-1100, -600, -200, -150],
        [-150, -150, -800, -800],
        [-150, -150, -800, -800, -500],
        [-1200, -1300] * 4,
    ],
)
def test_collapse_alarm_is_silent(evaluations: list[float]) -> None:
    series = {"rollout/return_round": [-1200.0] * 5, "eval/return_mean": evaluations}
    assert collapse_alarm(recorded(series), CALIBRATED) is None


def test_collapse_alarm_needs_an_evaluation_of_this_round_and_a_random_return() -> None:
    bad = [-150.0, -150.0, -800.0, -800.0, -900.0]
    history = recorded({"rollout/return_round": [-1200.0] * 5, "eval/return_mean": bad})
    history.next_round()
    assert collapse_alarm(history, CALIBRATED) is None
    assert collapse_alarm(recorded({"eval/return_mean": bad}), CALIBRATED) is None


# -- beyond the kept rounds -----------------------------------------------------------------------

LONG = KEEP + 90


def test_score_now_measures_from_the_runs_start_and_best_in_a_long_run_too() -> None:
    flat = [0.0] * 5 + [100.0] * LONG + [25.0] * 5
    assert score_now(recorded({"rollout/return_round": flat})) == 0.25
    long_ago = [0.0] * 5 + [100.0] * 9 + [25.0] * LONG
    assert score_now(recorded({"rollout/return_round": long_ago})) == 0.25
    risen = [0.0] * 5 + [100.0] * LONG
    assert score_now(recorded({"rollout/return_round": risen})) == 1.0


@pytest.mark.parametrize("plateau", [0, LONG])
def test_cliff_alarm_after_a_long_plateau_is_that_after_a_short_one(plateau: int) -> None:
    rise, down = np.array(fall(-1000, 0)), np.array(fall(-1000, 12))[30:]
    flat = -150 + 5 * np.sin(np.arange(plateau))
    history = recorded({"rollout/return_round": [*rise, *flat, *down]})
    alarm = cliff_alarm(history, CALIBRATED)
    assert alarm is not None
    assert alarm.values["return"] == pytest.approx(-1000, abs=6)
    assert alarm.values["best"] == pytest.approx(-150, abs=200)
    assert alarm.values["since round"] == pytest.approx(32 + plateau, abs=1)


def test_cliff_alarm_goes_on_when_the_height_is_no_longer_kept() -> None:
    history = recorded({"rollout/return_round": fall(-1000, LONG)})
    assert history.series("rollout/return_round").max() < -900
    alarm = cliff_alarm(history, CALIBRATED)
    assert alarm is not None
    assert alarm.values["best"] == pytest.approx(-150, abs=200)
    # The fall began before what is kept: the oldest kept round is the nearest to it.
    assert alarm.values["since round"] == 30 + LONG - KEEP


def test_cliff_alarm_is_silent_late_in_a_run_that_only_sinks_to_above_half() -> None:
    rise = fall(-150, LONG)
    history = recorded({"rollout/return_round": [*rise, *(-600 + 5 * np.sin(np.arange(12)))]})
    assert cliff_alarm(history, CALIBRATED) is None


def evaluated(*evaluations: float) -> dict[str, list[float]]:
    returns = [-1200.0] * 5 + [-150.0] * (LONG + 50)
    return {"rollout/return_round": returns, "eval/return_mean": list(evaluations)}


def test_collapse_alarm_measures_from_the_runs_start_in_a_long_run_too() -> None:
    history = recorded(evaluated(-150, -150, -800, -800, -900))
    assert history.series("rollout/return_round").min() == -150
    alarm = collapse_alarm(history, CALIBRATED)
    assert alarm is not None
    assert (alarm.values["return"], alarm.values["best"]) == (-900, -150)
    assert collapse_alarm(recorded(evaluated(-150, -150, -600, -600, -600)), CALIBRATED) is None


def test_collapse_alarm_goes_on_when_the_best_evaluation_is_no_longer_kept() -> None:
    history = recorded(evaluated(-150, -150, *([-900.0] * (KEEP + 20))))
    assert history.series("eval/return_mean").max() == -900
    alarm = collapse_alarm(history, CALIBRATED)
    assert alarm is not None
    assert (alarm.values["return"], alarm.values["best"]) == (-900, -150)


def test_cliff_alarm_after_a_rescue_measures_from_the_start_and_the_restored_states_score() -> None:
    history = recorded({"rollout/return_round": fall(-1000, 12)})
    best = history.highest(HEIGHT)
    history.forget({RETURN: best, LEVEL: best, HEIGHT: best})
    for k in range(12):
        history.next_round()
        history.add({"rollout/return_round": -1000.0 + 5 * math.sin(k)})
        raised = cliff_alarm(history, CALIBRATED) is not None
        # As many returns as a cliff needs, and as any judgement needs.
        assert raised is (k >= 7)


def _paced(pace: list[float], episode: int, terminations: float = 0.0) -> History:
    """One reward per frame a round; a return at the end of every `episode` rounds."""
    history = History()
    for number, value in enumerate(pace):
        history.next_round()
        history.add({"diag/reward_mean": value, "diag/terminations": terminations})
        if number % episode == episode - 1:
            history.add({RETURN: sum(pace[number - episode + 1 : number + 1])})
    return history


def _climb(rounds: int) -> list[float]:
    return list(np.linspace(-0.3, 4.0, rounds))


@pytest.mark.parametrize(("after", "sees"), [(16, False), (20, True), (40, True)])
def test_pace_alarm_waits_for_one_episode_and_no_longer(after: int, sees: bool) -> None:
    # Two rounds more, until the running median over five rounds has fallen too.
    alarm = pace_alarm(_paced(_climb(112) + [0.0] * after, episode=16), CALIBRATED)
    assert (alarm is not None) is sees
    if alarm is not None:
        assert alarm.name == "reward_cliff"
        assert alarm.severity == "danger"
        assert alarm.values["since round"] == pytest.approx(113, abs=3)


def test_pace_alarm_is_silent_where_episodes_end_early() -> None:
    history = _paced(_climb(112) + [0.0] * 40, episode=16, terminations=1.0)
    assert pace_alarm(history, CALIBRATED) is None


def test_pace_alarm_takes_the_course_within_an_episode_for_no_fall() -> None:
    # Swinging up costs the first half of every episode, however good the policy.
    episode = [-8.0] * 8 + [0.0] * 8
    climbing = [x - 8.0 * (1 - i / 160) for i, x in enumerate(episode * 10)]
    for rounds in range(20, 161):
        assert pace_alarm(_paced(climbing[:rounds], episode=16), CALIBRATED) is None


def _in_phase(seed: int, rounds: int, episode: int, gain: float, fall: int) -> int | None:
    """The round of the alarm where episodes of 8 environments run in phase, each with its own luck."""
    random = np.random.default_rng(seed)
    history, luck = History(), 0.0
    for number in range(rounds):
        if number % episode == 0:
            luck = 0.3 * random.normal() / 8**0.5
        history.next_round()
        pace = -1 + 0.5 * (number % episode) / episode + luck
        pace += gain * min(number, 100) / 100 if number < fall else 0.0
        history.add({"diag/reward_mean": pace, "diag/terminations": 0.0})
        if number % episode == episode - 1:
            history.add({RETURN: pace * episode})
        if pace_alarm(history, CALIBRATED) is not None:
            return number
    return None


@pytest.mark.parametrize("episode", [1, 4, 8])
def test_pace_alarm_takes_the_luck_of_episodes_in_phase_for_no_fall(episode: int) -> None:
    false = [_in_phase(seed, 200, episode, gain=0.0, fall=200) for seed in range(40)]
    assert sum(found is not None for found in false) <= 10
    seen = [_in_phase(seed, 200, episode, gain=1.0, fall=130) for seed in range(40)]
    assert sum(found is not None and 130 < found < 150 for found in seen) >= 36


@pytest.mark.parametrize("rounds", [1, 8, 31])
def test_pace_alarm_is_silent_before_it_knows_two_episodes(rounds: int) -> None:
    assert pace_alarm(_paced([4.0] * 2 + [0.0] * (rounds - 1), episode=16), CALIBRATED) is None


def test_pace_readings_are_the_mean_reward_and_the_count_of_terminations() -> None:
    reward = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    ends = torch.tensor([[False, True], [False, True]])
    assert pace_readings(reward, ends) == {"diag/reward_mean": 3.0, "diag/terminations": 2.0}


def test_a_few_lucky_rollouts_are_no_height_to_fall_from() -> None:
    steady = [0.0] * 3 + [100.0, 130.0, 90.0, 110.0] * 6
    returns = [*steady, *([900.0] * 2), *([100.0, 130.0, 90.0] * 4)]
    assert cliff_alarm(recorded({RETURN: returns}), CALIBRATED) is None


def test_a_policy_that_began_to_walk_and_falls_now_and_then_is_on_no_cliff() -> None:
    walking = [2400.0, 900.0, 2500.0, 2300.0, 1100.0, 2450.0, 2350.0, 800.0] * 3
    returns = [*np.linspace(0, 700, 200), *walking, *([900.0, 1000.0] * 3)]
    assert cliff_alarm(recorded({RETURN: returns}), CALIBRATED) is None
    # A true fall is seen when it has lasted for longer than the old swings.
    returns[-6:] = [20.0, 30.0] * 12
    assert cliff_alarm(recorded({RETURN: returns}), CALIBRATED) is not None


@pytest.mark.parametrize(
    ("per_round", "length", "raised"),
    [(10, 16.0, True), (1, 16.0, False), (1, 2.0, True), (None, None, True)],
    ids=["many episodes", "too few", "short episodes", "nobody counts"],
)
def test_a_fall_lasts_for_enough_episodes_where_rounds_are_short(
    per_round: int | None, length: float | None, raised: bool
) -> None:
    def seen(rounds: int) -> bool:
        returns = fall(-1000, rounds)
        series = {RETURN: returns}
        if per_round is not None and length is not None:
            series |= {EPISODES: [float(per_round * k) for k in range(len(returns))]}
            series |= {EPISODE: [length] * len(returns)}
        return cliff_alarm(recorded(series), CALIBRATED) is not None

    assert seen(20) is raised
    assert seen(60)


def test_the_pace_is_measured_from_the_runs_start_not_from_what_is_kept() -> None:
    # Standing still: one reward a frame, from 0.2 at the start, and it wavers for ever.
    pace = [0.2] * 20 + [1.03] * 300 + [0.985] * 700
    assert pace_alarm(_paced(pace, 16), CALIBRATED) is None


def test_episodes_in_phase_are_no_fall_between_their_ends() -> None:
    # Sixteen rounds to a full episode: successes end together, and failures in the rounds between.
    cycle = [2700.0, 2600.0, 2800.0, 2500.0, 2900.0, *([950.0] * 11)]
    returns = [*np.linspace(0, 900, 60), *(cycle * 8)]
    series = {RETURN: returns, EPISODE: [16.0] * len(returns)}
    for end in range(80, len(returns)):
        seen = {name: values[:end] for name, values in series.items()}
        assert cliff_alarm(recorded(seen), CALIBRATED) is None
    fallen = [*returns, *([100.0] * 40)]
    series = {RETURN: fallen, EPISODE: [16.0] * len(fallen)}
    assert cliff_alarm(recorded(series), CALIBRATED) is not None


def test_the_pace_says_nothing_where_an_episode_ever_ended_early() -> None:
    standing = [1.13] * 200 + [0.2] * (KEEP + 100)
    history = History()
    for number, value in enumerate(standing):
        history.next_round()
        history.add({"diag/reward_mean": value, "diag/terminations": float(number == 3)})
        if number % 4 == 3:
            history.add({RETURN: value})
    assert not history.series("diag/terminations").any()
    assert pace_alarm(history, CALIBRATED) is None


def test_a_score_falls_at_once_however_long_episodes_are() -> None:
    # Whether a narrow policy has learnt to be narrow cannot wait for an average over whole episodes.
    returns = [*np.linspace(20, 1000, 25), *([1030.0] * 15), *([400.0] * 5)]
    history = recorded({RETURN: returns, EPISODE: [16.0] * len(returns)})
    assert score_now(history) < 0.5
