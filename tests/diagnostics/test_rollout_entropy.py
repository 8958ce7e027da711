from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_twoclocks.diagnostics import CALIBRATED, SEED, History, Limits
from rl_twoclocks.diagnostics.history import KEEP
from rl_twoclocks.diagnostics.rollout_entropy import (
    MOST,
    REACH,
    Grid,
    bins_for,
    coarse_map,
    diversity_alarm,
    duplicate_fraction,
    duplicates_alarm,
    entropy_by_own_range,
    entropy_in_cells,
    entropy_of_counts,
    entropy_of_places,
    fit_grid,
    principal_axes,
    reduce,
    with_actions,
)
from tests.diagnostics.histories import recorded


def uniform(n: int, d: int = 2, seed: int = 0) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def normal(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def bits_on(grid: Grid, observation: Tensor) -> float:
    return entropy_of_places(grid.places(observation))


@pytest.mark.parametrize("k", [1, 2, 5, 32, 1000])
@pytest.mark.parametrize("each", [1, 7])
def test_entropy_of_k_equally_filled_cells_is_log2_k(k: int, each: int) -> None:
    counts = torch.zeros(2000, dtype=torch.int64)
    counts[3 : 3 + k] = each
    assert entropy_of_counts(counts) == pytest.approx(math.log2(k), abs=1e-12)


def test_entropy_of_a_half_and_two_quarters_is_one_and_a_half_bits() -> None:
    assert entropy_of_counts(torch.tensor([2, 0, 1, 1])) == pytest.approx(1.5)


def test_entropy_of_no_counts_is_zero() -> None:
    assert entropy_of_counts(torch.zeros(9, dtype=torch.int64)) == 0.0


def test_entropy_in_cells_counts_every_frame_once() -> None:
    bits, counts = entropy_in_cells(torch.tensor([4, 4, 0, 2]), 6)
    assert counts.tolist() == [1, 0, 1, 0, 2, 0]
    assert bits == pytest.approx(1.5)


def test_own_range_scores_a_lattice_of_32_points_with_5_bits() -> None:
    long, short = torch.meshgrid(torch.arange(8.0) * 10, torch.arange(4.0), indexing="ij")
    lattice = torch.stack([long.flatten(), short.flatten()], dim=1).repeat(3, 1)
    bits, counts = entropy_by_own_range(lattice)
    assert bits == pytest.approx(5.0, abs=1e-9)
    assert counts.shape == (50, 50)
    assert int(counts.sum()) == 96
    assert int((counts > 0).sum()) == 32


def test_own_range_is_bounded_by_frames_and_by_cells() -> None:
    assert entropy_by_own_range(uniform(100))[0] <= math.log2(100)
    assert entropy_by_own_range(uniform(40_000))[0] <= math.log2(2500)
    assert entropy_by_own_range(uniform(40_000), bins=4)[0] == pytest.approx(4.0, abs=0.5)


def test_own_range_scores_a_healthy_rollout_with_8_to_10_bits() -> None:
    assert 8 < entropy_by_own_range(normal(1500, 17))[0] < 10


@pytest.mark.parametrize("factor", [0.1, 100.0])
def test_own_range_does_not_see_a_contraction(factor: float) -> None:
    states = normal(2000, 6) * torch.tensor([5.0, 3.0, 1.0, 1.0, 1.0, 1.0])
    before, after = (entropy_by_own_range(x)[0] for x in (states, factor * states))
    assert after == pytest.approx(before, abs=0.02)


def test_own_range_loses_bits_to_one_outlier() -> None:
    states = uniform(2000)
    outlier = torch.cat([states, torch.tensor([[40.0, 40.0]])])
    assert entropy_by_own_range(states)[0] - entropy_by_own_range(outlier)[0] > 2.5


def test_own_range_sees_most_frames_in_one_pose() -> None:
    states = uniform(2000)
    states[: int(0.87 * 2000)] = states[0]
    assert entropy_by_own_range(states)[0] < 2.4


def test_grid_loses_two_log2_ten_bits_to_a_tenfold_contraction_in_two_dimensions() -> None:
    states = uniform(60_000)
    grid = fit_grid(states, bins=80)
    fall = bits_on(grid, states) - bits_on(grid, 0.1 * states)
    assert fall == pytest.approx(2 * math.log2(10), abs=0.4)


def test_grid_scores_uniform_states_with_the_bits_of_its_first_range() -> None:
    states = uniform(60_000) * torch.tensor([2.0, 1.0])
    grid = fit_grid(states, bins=20)
    assert bits_on(grid, states) == pytest.approx(2 * math.log2(20), abs=0.2)


def test_grid_keeps_its_bits_when_one_outlier_comes() -> None:
    states = uniform(2000)
    outlier = torch.cat([states, torch.tensor([[40.0, 40.0]])])
    assert bits_on(fit_grid(outlier), states) == pytest.approx(
        bits_on(fit_grid(states), states), abs=0.3
    )


def test_grid_gives_frames_beyond_the_first_range_cells_of_their_own() -> None:
    states = uniform(5000) * torch.tensor([2.0, 1.0])
    grid = fit_grid(states)
    moved = states + torch.tensor([4.1, 0.0])
    assert bits_on(grid, moved) == pytest.approx(bits_on(grid, states), abs=0.2)
    assert not set(grid.within(grid.places(moved)).tolist()) & set(
        grid.within(grid.places(states)).tolist()
    )


def test_grid_puts_frames_far_beyond_its_reach_into_its_edge() -> None:
    grid = fit_grid(uniform(5000))
    far = grid.within(
        grid.places(uniform(500, seed=1) + 100.0 * (grid.axes[:, 0] + grid.axes[:, 1]))
    )
    assert set(far.tolist()) == {grid.side**2 - 1}


def test_states_that_spread_far_beyond_the_first_ones_have_not_contracted() -> None:
    grid = fit_grid(0.01 * uniform(5000))
    spread = uniform(5000, seed=1)
    assert grid.within(grid.places(spread)).bincount().max() > 1000
    assert bits_on(grid, spread) > bits_on(grid, 0.01 * spread) > 10


def test_grid_scores_a_freeze_after_a_healthy_start_with_zero() -> None:
    states = normal(1000, 17)
    assert bits_on(fit_grid(states), states[:1].repeat(1000, 1)) == 0.0


def test_grid_cells_are_row_major_and_centred_on_the_first_range() -> None:
    grid = Grid(
        scale=torch.ones(2),
        shift=torch.zeros(2, dtype=torch.float64),
        axes=torch.eye(2, dtype=torch.float64),
        low=torch.zeros(2, dtype=torch.float64),
        width=torch.ones(2, dtype=torch.float64),
        bins=4,
    )
    assert grid.side == 12
    points = torch.tensor([[0.5, 0.5], [1.5, 0.5], [0.5, 3.5], [-0.5, 0.5], [-99.0, 99.0]])
    assert grid.within(grid.places(points)).tolist() == [
        4 * 12 + 4,
        5 * 12 + 4,
        4 * 12 + 7,
        3 * 12 + 4,
        11,
    ]


def test_grid_applies_the_normalisers_scale() -> None:
    states, scale = normal(1000, 3), torch.tensor([1.0, 10.0, 100.0])
    raw = states / scale
    scaled, plain = fit_grid(raw, scale), fit_grid(states)
    torch.testing.assert_close(scaled.width, plain.width)
    same = (scaled.places(raw) == plain.places(states)).float().mean()
    assert float(same) > 0.99


def test_grid_leaves_frames_out_of_the_fit_that_are_not_finite() -> None:
    states = normal(500, 4)
    dirty = states.clone()
    dirty[7, 2], dirty[60, 0], dirty[100, 3] = math.nan, math.inf, -math.inf
    clean = states[[i for i in range(500) if i not in (7, 60, 100)]]
    for name in ("shift", "axes", "low", "width"):
        torch.testing.assert_close(getattr(fit_grid(dirty), name), getattr(fit_grid(clean), name))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scale", [1.0, 1e12])
def test_grid_puts_frames_that_are_not_finite_at_a_defined_cell(value: float, scale: float) -> None:
    states = scale * normal(500, 4)
    grid = fit_grid(states)
    dirty = states.clone()
    dirty[::3, 2] = value
    cells = grid.within(grid.places(dirty))
    assert torch.equal(cells, grid.within(grid.places(dirty)))
    assert int(cells.min()) >= 0
    assert int(cells.max()) < grid.side**2
    finite = torch.isfinite(dirty).all(1)
    assert torch.equal(cells[finite], grid.within(grid.places(states))[finite])
    # One cell for all of them; for those that are no numbers it is that of the mean.
    assert cells[~finite].unique().numel() == 1
    if math.isnan(value):
        middle = grid.within(grid.places(grid.shift.float()[None]))
        assert cells[~finite].unique().tolist() == middle.tolist()


@pytest.mark.parametrize("size", [1e20, -1e20, 1e-20])
def test_the_size_of_the_states_changes_no_bit(size: float) -> None:
    states = normal(1024, 11) + 0.5
    scaled = (size * states.double()).float()
    grid, other = fit_grid(states), fit_grid(scaled)
    assert entropy_by_own_range(scaled)[0] == pytest.approx(
        entropy_by_own_range(states)[0], abs=0.05
    )
    assert bits_on(other, scaled) == pytest.approx(bits_on(grid, states), abs=0.1)
    mean, axes = principal_axes(scaled)
    assert torch.isfinite(mean).all()
    torch.testing.assert_close(axes.T @ axes, torch.eye(2, dtype=torch.float64), atol=1e-12, rtol=0)
    assert duplicate_fraction(scaled) == 0.0


def test_grid_survives_its_state_dict() -> None:
    states = normal(300, 5)
    grid = fit_grid(states, torch.full((5,), 2.0))
    again = Grid.from_state(grid.state_dict())
    assert torch.equal(
        again.within(again.places(normal(300, 5, seed=1))),
        grid.within(grid.places(normal(300, 5, seed=1))),
    )
    assert again.bins == grid.bins


@pytest.mark.parametrize(
    ("frames", "bins"), [(1, 8), (64, 8), (100, 10), (1024, 32), (2500, 50), (10_000, 50)]
)
def test_bins_are_about_one_cell_per_frame_between_8_and_50(frames: int, bins: int) -> None:
    assert bins_for(frames) == bins


def test_principal_axes_of_states_along_a_known_direction() -> None:
    along = torch.tensor([3.0, 4.0, 0.0]) / 5
    across = torch.tensor([0.0, 0.0, 1.0])
    noise = normal(4000, 2)
    states = 7.0 + 10 * noise[:, :1] * along + noise[:, 1:] * across
    mean, axes = principal_axes(states)
    torch.testing.assert_close(mean, states.double().mean(0))
    assert abs(float(axes[:, 0] @ along.double())) == pytest.approx(1.0, abs=1e-3)
    assert abs(float(axes[:, 1] @ across.double())) == pytest.approx(1.0, abs=1e-3)
    orthonormal = torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(axes.T @ axes, orthonormal, atol=1e-12, rtol=0)


def test_principal_axes_of_one_dimension_have_an_empty_second_one() -> None:
    _, axes = principal_axes(normal(50, 1))
    assert axes.abs().tolist() == [[1.0, 0.0]]


def test_reduce_keeps_few_dimensions_as_they_are() -> None:
    states = normal(20, MOST)
    assert reduce(states) is states


def test_reduce_projects_many_dimensions_alike_every_time_and_keeps_distances() -> None:
    states = normal(30, 5000)
    reduced = reduce(states)
    assert reduced.shape == (30, MOST)
    assert torch.equal(reduced, reduce(states))
    ratio = torch.pdist(reduced) / torch.pdist(states)
    assert float(ratio.mean()) == pytest.approx(1.0, abs=0.15)


def test_coarse_map_merges_cells_and_loses_no_frame() -> None:
    side = 4 * REACH
    counts = torch.zeros(side, side, dtype=torch.int64)
    counts[0, 0], counts[2, 2], counts[3, 2], counts[side - 1, 0] = 5, 7, 11, 13
    coarse = coarse_map(counts.flatten(), side)
    assert coarse.shape == (4, 4)
    assert int(coarse[0, 0]), int(coarse[1, 0]) == (12, 11)
    assert int(coarse[3, 0]) == 13
    assert int(coarse.sum()) == 36


def test_joint_features_append_continuous_actions() -> None:
    joint = with_actions(torch.ones(2, 3), torch.tensor([[5.0], [6.0]]))
    assert joint.tolist() == [[1, 1, 1, 5], [1, 1, 1, 6]]


def test_joint_features_append_choices_one_hot() -> None:
    joint = with_actions(torch.ones(2, 2), torch.tensor([2, 0]), choices=3)
    assert joint.tolist() == [[1, 1, 0, 0, 1], [1, 1, 1, 0, 0]]


def test_joint_entropy_tells_policies_apart_that_visit_the_same_states() -> None:
    states = normal(2000, 2) * 0.01
    chosen = torch.randint(0, 4, (2000,), generator=torch.Generator().manual_seed(0))
    alike = with_actions(states, torch.zeros(2000), choices=4)
    varied = with_actions(states, chosen, choices=4)
    grid = fit_grid(varied, bins=10)
    assert bits_on(grid, varied) > bits_on(grid, alike) + 1


@pytest.mark.parametrize("copies", [2, 4, 8])
def test_duplicates_of_k_environments_on_one_seed_are_one_minus_one_kth(copies: int) -> None:
    assert duplicate_fraction(normal(128, 17).repeat(copies, 1)) == pytest.approx(1 - 1 / copies)


@pytest.mark.parametrize(("copies", "d"), [(3, 11), (7, 17)])
@pytest.mark.parametrize("frames", [1, 64, 333])
@pytest.mark.parametrize("seed", range(4))
def test_duplicates_are_exact_for_odd_numbers_of_copies_and_dimensions(
    copies: int, d: int, frames: int, seed: int
) -> None:
    states = 1e3 * normal(frames, d, seed)
    expected = 1 - 1 / copies
    assert duplicate_fraction(states.repeat(copies, 1)) == pytest.approx(expected, abs=1e-12)
    # Also where the copies lie side by side, as those of parallel environments do.
    beside = states.repeat_interleave(copies, 0)
    assert duplicate_fraction(beside) == pytest.approx(expected, abs=1e-12)


def test_duplicates_of_different_frames_are_none_even_if_they_differ_in_one_value() -> None:
    states = normal(1, 17).repeat(256, 1)
    states[:, 3] = torch.arange(256.0) * 1e-3
    assert duplicate_fraction(states) == 0.0


@pytest.mark.parametrize(
    ("states", "few"),
    [
        (torch.randint(0, 13, (600, 4)).float() / 13, True),
        (torch.cat([torch.randint(0, 2, (600, 4)).float(), normal(600, 1)], 1), False),
        (normal(600, 3), False),
        (normal(128, 3).repeat(8, 1), False),
        (torch.full((600, 3), 0.3), False),
        (torch.randint(0, 13, (20, 4)).float() / 13, False),
        (torch.randint(0, 13, (20, 4)).float(), True),
    ],
    ids=[
        "grid",
        "one continuous",
        "continuous",
        "one seed for all",
        "frozen",
        "too few frames",
        "integers",
    ],
)
def test_states_on_few_values_are_those_of_a_grid(states: Tensor, few: bool) -> None:
    assert fit_grid(states).discrete is few
    assert Grid.from_state(fit_grid(states).state_dict()).discrete is few


WOBBLE = (0.1 * np.sin(np.arange(40) * 1.7)).tolist()


def diversity(entropy: list[float], own: list[float] | None = None, **more: list[float]) -> History:
    own = own or [9.2] * len(entropy)
    share = [x / 11.0 for x in own]
    series = {
        "diag/rollout_entropy": entropy,
        "diag/rollout_entropy_own_range": own,
        "diag/entropy_share": share,
    }
    return recorded(series | more)


@pytest.mark.parametrize("limits", [CALIBRATED, SEED])
def test_diversity_is_silent_on_a_healthy_run(limits: Limits) -> None:
    history = diversity([9.3 + w for w in WOBBLE], [9.2 + w for w in WOBBLE])
    assert diversity_alarm(history, limits) is None


@pytest.mark.parametrize(("bits", "severity"), [(5.5, "warn"), (2.6, "danger")])
def test_diversity_alarms_on_a_contraction(bits: float, severity: str) -> None:
    alarm = diversity_alarm(diversity([9.3] * 10 + [bits] * 3), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("diversity", severity)
    assert alarm.values["bits"] == bits
    assert alarm.values["bits at the start"] == 9.3


def test_diversity_needs_more_than_one_narrow_rollout() -> None:
    assert diversity_alarm(diversity([9.3] * 10 + [2.6]), CALIBRATED) is None


@pytest.mark.parametrize(("ratio", "rounds"), [(1.0, 3), (4.0, 12), (50.0, 15)])
def test_windows_that_overlap_are_no_three_windows_in_a_row(ratio: float, rounds: int) -> None:
    for low in ((rounds - 1) // 2, rounds):
        values = [9.3] * 20 + [3.0] * low
        series = {"diag/rollout_entropy": values, "diag/rollout_entropy_own_range": values}
        history = recorded(series | {"clock/ratio_measured": [ratio] * len(values)})
        assert (diversity_alarm(history, CALIBRATED) is not None) is (low == rounds)


def test_diversity_alarms_where_each_environment_stands_still_though_they_differ() -> None:
    still = {"diag/places_per_env": [1.2] * 3}
    alarm = diversity_alarm(diversity([9.3] * 10, **still), CALIBRATED)
    assert alarm is not None
    assert alarm.severity == "danger"
    assert diversity_alarm(diversity([9.3] * 10, **still), SEED) is None
    for places in ([1.6] * 3, [1.2] * 2, [1.2, 1.6, 1.2]):
        moving = diversity([9.3] * 10, **{"diag/places_per_env": places})
        assert diversity_alarm(moving, CALIBRATED) is None


def test_diversity_does_not_let_a_run_that_starts_frozen_calibrate_itself_healthy() -> None:
    alarm = diversity_alarm(diversity([0.2] * 3, [0.2] * 3), CALIBRATED)
    assert alarm is not None
    assert alarm.severity == "danger"


def test_diversity_is_no_alarm_where_the_run_is_narrow_because_it_has_learnt() -> None:
    entropy, own = [9.3] * 10 + [2.6] * 10, [9.2] * 10 + [2.0] * 10
    learnt = {"rollout/return_round": np.linspace(0, 100, 20).tolist()}
    fallen = {"rollout/return_round": [0.0, *np.linspace(0, 100, 9), *[10.0] * 10]}
    assert diversity_alarm(diversity(entropy, own, **learnt), CALIBRATED) is None
    assert diversity_alarm(diversity(entropy, own, **fallen), CALIBRATED) is not None


def test_diversity_counts_from_the_runs_start_in_a_long_run_too() -> None:
    entropy = [9.3] * 10 + [2.6] * (KEEP + 90)
    history = diversity(entropy, [9.2] * len(entropy))
    assert history.series("diag/rollout_entropy").max() == 2.6
    alarm = diversity_alarm(history, CALIBRATED)
    assert alarm is not None
    assert alarm.severity == "danger"
    assert alarm.values["bits at the start"] == 9.3


def test_diversity_says_nothing_in_a_round_without_a_reading() -> None:
    history = diversity([9.3] * 10 + [2.6] * 3)
    history.next_round()
    assert diversity_alarm(history, CALIBRATED) is None


@pytest.mark.parametrize(("own", "severity"), [(2.4, "warn"), (1.9, "danger")])
def test_diversity_of_the_seed_set_is_absolute(own: float, severity: str) -> None:
    alarm = diversity_alarm(diversity([9.3] * 4, [9.2] * 3 + [own]), SEED)
    assert alarm is not None
    assert alarm.severity == severity


def test_diversity_of_the_seed_set_watches_three_falls_in_a_row_below_2_8() -> None:
    falling, flat = [3.3, 3.1, 2.9, 2.7], [2.9, 2.85, 2.8, 2.7]
    alarm = diversity_alarm(diversity([9.3] * 4, falling), SEED)
    assert alarm is not None
    assert alarm.severity == "watch"
    assert diversity_alarm(diversity([9.3] * 4, flat), SEED) is None
    assert diversity_alarm(diversity([9.3] * 3, falling[1:]), SEED) is None
    assert diversity_alarm(diversity([9.3] * 4, [x + 1 for x in falling]), SEED) is None


@pytest.mark.parametrize("fault", ["freeze", "contraction", "frozen from the start"])
def test_diversity_measured_on_states_fires_on_every_fault_of_the_specification(fault: str) -> None:
    entropy, own = [], []
    grid = None
    for k in range(14):
        states = normal(1024, 11, seed=k) * torch.linspace(3, 0.5, 11)
        if fault == "frozen from the start" or (fault == "freeze" and k > 9):
            states = torch.ones_like(states)
        if fault == "contraction" and k > 9:
            states = states * 0.1
        grid = grid or fit_grid(states)
        entropy.append(bits_on(grid, states))
        own.append(entropy_by_own_range(states)[0])
    alarm = diversity_alarm(diversity(entropy, own), CALIBRATED)
    assert alarm is not None
    assert alarm.severity == "danger"


def test_diversity_measured_on_healthy_states_is_silent() -> None:
    entropy, own = [], []
    grid = fit_grid(normal(1024, 11))
    for k in range(14):
        states = normal(1024, 11, seed=k) + 0.3 * math.sin(k)
        entropy.append(bits_on(grid, states))
        own.append(entropy_by_own_range(states)[0])
    assert diversity_alarm(diversity(entropy, own), CALIBRATED) is None


def test_duplicates_alarm_after_two_rounds_of_copies() -> None:
    alarm = duplicates_alarm(recorded({"diag/duplicates": [0.0, 0.75, 0.75]}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("duplicates", "danger")
    assert alarm.values == {"share of copies": 0.75}


@pytest.mark.parametrize("series", [[0.0, 0.0, 0.0], [0.0, 0.0, 0.75], [0.75, 0.75, 0.3], [0.75]])
def test_duplicates_are_no_alarm_if_few_or_new(series: list[float]) -> None:
    assert duplicates_alarm(recorded({"diag/duplicates": series}), CALIBRATED) is None


@pytest.mark.parametrize(("lost", "raised"), [(6.4, True), (3.5, False)])
def test_states_that_contract_at_once_are_seen_although_the_return_stands_at_its_best(
    lost: float, raised: bool
) -> None:
    bits = [7.0] * 5 + [8.0] * 20 + [8.0 - lost] * 3
    series = {
        "diag/rollout_entropy": bits,
        "diag/rollout_entropy_own_range": [8.5] * len(bits),
        "rollout/return_round": [-300.0, -200.0, *np.linspace(-100, 900, len(bits) - 2)],
    }
    alarm = diversity_alarm(recorded(series), CALIBRATED)
    assert (alarm is not None) == raised
    if alarm is not None:
        assert alarm.severity == "danger"
        assert alarm.values["bits lost"] == pytest.approx(lost)


def test_a_policy_that_learns_to_hold_still_loses_its_places_slowly() -> None:
    bits = [9.6] * 5 + list(np.linspace(9.6, 3.0, 12)) + [3.0] * 20
    for end in range(8, len(bits)):
        series = {
            "diag/rollout_entropy": bits[:end],
            "diag/rollout_entropy_own_range": [8.5] * end,
            "rollout/return_round": list(np.linspace(-1200, -150, end)),
        }
        assert diversity_alarm(recorded(series), CALIBRATED) is None
