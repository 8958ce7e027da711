"""Aggregates against numbers by hand and against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_twoclocks.aggregate import (
    difference,
    interquartile_mean,
    paired_shortfall,
    pooled,
    probability_of_improvement,
    ratio,
    shortfall,
)


@pytest.mark.parametrize(
    ("values", "middle"),
    [([5.0], 5.0), ([1, 9], 5.0), ([0, 1, 2, 100], 1.5), ([0, 10, 20, 30, 1000], 20.0)],
)
def test_the_interquartile_mean_cuts_a_quarter_on_each_side(
    values: list[float], middle: float
) -> None:
    assert interquartile_mean(np.array(values, dtype=float)) == middle
    assert pooled({"task": values}).value == middle


def test_the_bootstrap_keeps_every_tasks_number_of_seeds() -> None:
    # Constant within each task: stratified resamples cannot differ from the scores themselves.
    estimate = pooled({"a": [1.0, 1.0], "b": [3.0, 3.0]}, resamples=200)
    assert estimate == (2.0, 2.0, 2.0)


def test_the_interval_holds_the_value_and_shrinks_with_seeds() -> None:
    stream = np.random.default_rng(1)
    few = pooled({"task": stream.normal(size=5).tolist()}, resamples=2000)
    many = pooled({"task": stream.normal(size=80).tolist()}, resamples=2000)
    assert few.low <= few.value <= few.high
    assert many.high - many.low < few.high - few.low


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    stream = np.random.default_rng(2)
    inside = 0
    for _ in range(200):
        e = pooled({"task": stream.normal(loc=1.0, size=20).tolist()}, resamples=400)
        inside += e.low <= 1.0 <= e.high
    assert 0.85 < inside / 200 <= 1.0


def test_the_probability_of_improvement_counts_pairs_and_halves_ties() -> None:
    better, worse = {"a": [2.0, 3.0], "b": [1.0]}, {"a": [2.0, 1.0], "b": [1.0]}
    # a: (2>2 half) + (2>1) + (3>2) + (3>1) of four pairs; b: one tie.
    found = probability_of_improvement(better, worse, resamples=500)
    assert found.value == pytest.approx((3.5 / 4 + 0.5) / 2)
    assert found.low <= found.value <= found.high
    mirrored = probability_of_improvement(worse, better, resamples=500)
    assert mirrored.value == pytest.approx(1 - found.value)


def test_sets_without_a_common_task_are_named() -> None:
    with pytest.raises(ValueError, match="no task in common"):
        probability_of_improvement({"a": [1.0]}, {"b": [1.0]})
    with pytest.raises(ValueError, match="no score"):
        pooled({})


@pytest.mark.parametrize("measure", [paired_shortfall, probability_of_improvement])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_refused(measure: Any, bad: float) -> None:
    for first, second in (([bad, 1.0], [1.0, 1.0]), ([1.0, 1.0], [1.0, bad])):
        with pytest.raises(ValueError, match="not finite"):
            measure({"a": first}, {"a": second})


def test_ratio_and_difference_of_two_sets() -> None:
    above, below = {"a": [4.0, 4.0, 4.0]}, {"a": [2.0, 2.0, 2.0]}
    assert ratio(above, below, resamples=50) == (2.0, 2.0, 2.0)
    assert difference(above, below, resamples=50) == (2.0, 2.0, 2.0)


def test_the_shortfall_bounds_the_difference_from_one_side() -> None:
    stream = np.random.default_rng(3)
    same = {"a": stream.normal(size=40).tolist()}
    lower = {"a": (np.asarray(same["a"]) - 1.0).tolist()}
    assert shortfall(lower, same) == pytest.approx(1.0, abs=0.6)
    # The two-sided interval is wider than the one-sided bound.
    assert shortfall(lower, same) < -difference(lower, same).low
    assert shortfall({"a": [3.0, 3.0]}, {"a": [1.0, 1.0]}, resamples=50) == -2.0


def test_pairs_hide_what_moves_both_alike() -> None:
    stream = np.random.default_rng(4)
    base = stream.normal(scale=10.0, size=12)
    first, second = {"a": base.tolist()}, {"a": (base + 1.0).tolist()}
    found = paired_shortfall(first, second)
    assert found == pytest.approx((1.0, 1.0, 1.0))
    assert shortfall(first, second) > 3.0
    with pytest.raises(ValueError, match="pairs need"):
        paired_shortfall({"a": [1.0]}, {"a": [1.0, 2.0]})
