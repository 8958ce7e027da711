from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_twoclocks.diagnostics import (
    CALIBRATED,
    SEED,
    History,
    Limits,
    Panel,
    explained_variance,
    policy_shift,
)
from rl_twoclocks.diagnostics.cliff import collapsed, rounds_below, smoothed
from rl_twoclocks.diagnostics.gradients import covariance_readings, gram_matrix
from rl_twoclocks.diagnostics.panel import RULES, Rule
from rl_twoclocks.diagnostics.periodicity import Period, strongest_period
from rl_twoclocks.diagnostics.plasticity import dead_fraction, feature_rank, policy_variance
from rl_twoclocks.diagnostics.resources import creep
from rl_twoclocks.diagnostics.reward_profile import alert_line, staircase_length, variance_profile
from rl_twoclocks.diagnostics.rollout_entropy import (
    coarse_map,
    duplicate_fraction,
    entropy_by_own_range,
    entropy_in_cells,
    fit_grid,
    principal_axes,
)
from rl_twoclocks.diagnostics.score import score_readings
from rl_twoclocks.diagnostics.state_drift import histogram_kl
from rl_twoclocks.distributions import Categorical, Distribution, Gaussian, Params
from tests.diagnostics.histories import recorded

PIXELS = 28_224
SHAPES = [(1, 3), (2, 1), (40, 1), (40, 2), (300, 17), (7, 2, 5), (12, 4, 84, 84)]
DIRT = (math.nan, math.inf, -math.inf)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rollout(kind: str, shape: tuple[int, ...], seed: int) -> Tensor:
    states = normal(*shape, seed=seed)
    flat = states.view(shape[0], -1)
    if kind == "constant":
        flat.copy_(flat[:1].round().expand_as(flat))
    elif kind == "rank one":
        flat.copy_(normal(shape[0], 1, seed=seed + 1) * flat[:1])
    elif kind == "one dimension varies":
        flat[:, 1:] = 0
    elif kind == "two poses":
        flat.copy_(flat[torch.arange(shape[0]) % 2 * min(1, shape[0] - 1)].clone())
    elif kind == "huge and tiny":
        flat.mul_(torch.logspace(-12, 12, flat.shape[1]))
    elif kind == "some not finite":
        for row, value in zip(range(0, shape[0], 3), itertools.cycle(DIRT), strict=False):
            flat[row, row % flat.shape[1]] = value
    elif kind == "all not finite":
        flat[:, 0] = DIRT[seed % 3]
    return states


KINDS = [
    "healthy",
    "constant",
    "rank one",
    "one dimension varies",
    "two poses",
    "huge and tiny",
    "some not finite",
    "all not finite",
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_reading_of_states_is_defined_and_within_its_bounds(
    kind: str, shape: tuple[int, ...]
) -> None:
    for seed in range(1 if math.prod(shape[1:]) == PIXELS else 3):
        check_readings_of_states(rollout(kind, shape, seed))


def check_readings_of_states(states: Tensor) -> None:
    n = states.shape[0]
    own, counts = entropy_by_own_range(states)
    assert 0 <= own <= math.log2(n) + 1e-9
    assert int(counts.sum()) == int(torch.isfinite(states.view(n, -1)).all(1).sum())
    grid = fit_grid(states)
    bits, fixed = entropy_in_cells(grid.within(grid.places(states)), grid.side**2)
    assert 0 <= bits <= math.log2(n) + 1e-9
    assert int(fixed.sum()) == n
    assert int(coarse_map(fixed, grid.side).sum()) == n
    assert histogram_kl(fixed, fixed, grid.side) == 0.0
    assert 0 <= histogram_kl(fixed, fixed.roll(7), grid.side) < math.inf
    assert 0 <= duplicate_fraction(states) < 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_constant_rollouts_have_no_entropy_by_their_own_range(
    shape: tuple[int, ...], seed: int
) -> None:
    states = normal(*shape, seed=seed)[:1].expand(shape)
    assert entropy_by_own_range(states)[0] == 0.0


@pytest.mark.parametrize("frames", [1, 2, 1000])
@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 255.0])
def test_constant_rollouts_share_one_cell_of_the_grid(frames: int, value: float) -> None:
    states = torch.full((frames, 17), value)
    grid = fit_grid(states)
    assert grid.within(grid.places(states)).unique().numel() == 1
    assert entropy_in_cells(grid.within(grid.places(states)), grid.side**2)[0] == 0.0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("seed", range(3))
def test_any_constant_rollout_has_no_bits_on_its_grid(
    shape: tuple[int, ...], size: float, seed: int
) -> None:
    if math.prod(shape[1:]) == PIXELS and seed:
        return
    states = (size * normal(*shape, seed=seed)[:1]).expand(shape)
    grid = fit_grid(states)
    assert entropy_in_cells(grid.within(grid.places(states)), grid.side**2)[0] == 0.0


@pytest.mark.parametrize("frames", [64, 1000])
def test_a_freeze_later_has_no_bits_on_the_grid_of_a_healthy_start(frames: int) -> None:
    grid = fit_grid(normal(frames, 17))
    for seed in range(5):
        frozen = (3 * normal(1, 17, seed=seed)).expand(frames, 17)
        assert entropy_in_cells(grid.within(grid.places(frozen)), grid.side**2)[0] == 0.0


def test_a_grid_fitted_to_constant_states_tells_later_ones_apart() -> None:
    grid = fit_grid(torch.ones(100, 4))
    later = torch.ones(100, 4) + 5 * normal(100, 4)
    assert grid.within(grid.places(later)).unique().numel() > 10


def test_rollouts_of_rank_one_occupy_one_row_of_cells() -> None:
    states = normal(2000, 1) * torch.tensor([[3.0, -4.0, 12.0]])
    _, counts = entropy_by_own_range(states)
    assert int((counts.sum(0) > 0).sum()) == 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["healthy", "constant", "rank one", "one dimension varies"])
def test_principal_axes_are_finite_and_orthonormal(kind: str, shape: tuple[int, ...]) -> None:
    if math.prod(shape[1:]) > 1000:
        shape = (shape[0], 60)
    states = rollout(kind, shape, 0).view(shape[0], -1)
    _, axes = principal_axes(states)
    expected = torch.eye(2, dtype=torch.float64)
    if states.shape[1] == 1:
        expected[1, 1] = 0
    torch.testing.assert_close(axes.T @ axes, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("value", DIRT)
def test_frames_that_are_not_finite_do_not_change_the_entropy_of_the_others(value: float) -> None:
    states = normal(400, 6)
    dirty = torch.cat([states, normal(5, 6)])
    dirty[400:, 3] = value
    assert entropy_by_own_range(dirty)[0] == entropy_by_own_range(states)[0]


@pytest.mark.parametrize("shape", [(0, 1), (0, 17), (0, 4, 84, 84)], ids=str)
def test_empty_rollouts_are_refused_in_plain_words(shape: tuple[int, ...]) -> None:
    empty = torch.zeros(shape)
    grid = fit_grid(torch.zeros(3, *shape[1:]))
    for measure in (entropy_by_own_range, fit_grid, duplicate_fraction, grid.places):
        with pytest.raises(ValueError, match="no frames"):
            measure(empty)


@pytest.mark.parametrize("distribution", [Gaussian, Categorical])
def test_empty_windows_are_refused_in_plain_words(distribution: Distribution) -> None:
    loc, none = torch.zeros(0, 2), torch.zeros(0)
    empty = (loc,) if distribution is Categorical else (loc, torch.ones(0, 2))
    action = none if distribution is Categorical else loc
    with pytest.raises(ValueError, match="no frames"):
        score_readings(distribution, empty, empty, action, none, none)
    with pytest.raises(ValueError, match="no frames"):
        policy_shift(distribution, empty, empty, none)
    with pytest.raises(ValueError, match="no states"):
        policy_variance(distribution, empty)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64, torch.float64])
def test_states_of_every_type_are_measured(dtype: torch.dtype) -> None:
    states = (normal(64, 30) > 0).to(dtype)
    grid = fit_grid(states)
    assert entropy_by_own_range(states)[0] > 4
    assert entropy_in_cells(grid.within(grid.places(states)), grid.side**2)[0] > 4
    assert duplicate_fraction(states) == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_images_tell_a_contraction_and_a_freeze_from_health(seed: int) -> None:
    states = normal(64, PIXELS, seed=seed)
    grid = fit_grid(states)
    side = grid.side**2
    healthy = entropy_in_cells(grid.within(grid.places(states)), side)[0]
    contracted = entropy_in_cells(grid.within(grid.places(0.1 * states)), side)[0]
    frozen = entropy_in_cells(grid.within(grid.places(states[:1].expand(64, -1))), side)[0]
    assert healthy > contracted + 2
    assert frozen == 0.0


@pytest.mark.parametrize("shape", [(3, 1), (3, 5), (8, PIXELS), (64, 4)], ids=str)
@pytest.mark.parametrize("kind", KINDS[:6])
@pytest.mark.parametrize("seed", range(3))
def test_gradient_readings_are_defined_and_within_their_bounds(
    kind: str, shape: tuple[int, int], seed: int
) -> None:
    m = shape[0]
    readings = covariance_readings(gram_matrix(rollout(kind, shape, seed)), 64)
    assert not any(math.isnan(x) for x in readings.values())
    assert 0 < readings["diag/grad_participation"] <= m - 1 + 1e-6
    assert readings["diag/grad_condition"] >= 1
    assert -1 - 1e-9 <= readings["diag/grad_alignment"] <= 1 + 1e-9


def test_gradients_that_are_all_zero_have_defined_readings() -> None:
    assert covariance_readings(torch.zeros(5, 5), 64) == {
        "diag/grad_participation": 1.0,
        "diag/grad_condition": 1.0,
        "diag/grad_alignment": 0.0,
        "diag/noise_scale": 0.0,
    }


@pytest.mark.parametrize("value", DIRT)
def test_gradients_that_are_not_finite_read_as_not_measured(value: float) -> None:
    gradients = normal(4, 9)
    gradients[2, 5] = value
    readings = covariance_readings(gram_matrix(gradients), 64)
    history = History()
    history.add(readings)
    assert len(readings) == 4
    assert not any(name in history for name in readings)


def parameters(distribution: Distribution, n: int, width: int, seed: int) -> Params:
    loc = normal(n, width, seed=seed)
    if distribution is Categorical:
        return (loc,)
    return loc, normal(n, width, seed=seed + 1).abs() + 0.1


@pytest.mark.parametrize("distribution", [Gaussian, Categorical])
@pytest.mark.parametrize(("n", "width"), [(1, 1), (1, 6), (2, 3), (200, 17)])
@pytest.mark.parametrize("seed", range(4))
def test_policy_readings_are_finite_and_within_their_bounds(
    distribution: Distribution, n: int, width: int, seed: int
) -> None:
    behaviour = parameters(distribution, n, width, seed)
    current = parameters(distribution, n, width, seed + 50)
    action = distribution.sample(behaviour, torch.Generator().manual_seed(seed))
    ratio = distribution.log_prob(current, action) - distribution.log_prob(behaviour, action)
    ratio = ratio.clamp(-20, 20)
    readings = policy_shift(distribution, behaviour, current, ratio)
    readings |= score_readings(
        distribution, behaviour, current, action, normal(n, seed=seed + 9), ratio
    )
    assert all(math.isfinite(x) for x in readings.values())
    assert min(readings.values()) >= -1e-6
    assert 1 / n - 1e-6 <= readings["diag/ess"] <= 1 + 1e-6
    assert readings["diag/baseline_leak"] <= 1
    assert 0 <= policy_variance(distribution, current) < math.inf


@pytest.mark.parametrize("distribution", [Gaussian, Categorical])
@pytest.mark.parametrize("n", [1, 2, 500])
def test_identical_policies_in_identical_states_have_no_shift_drift_or_variance(
    distribution: Distribution, n: int
) -> None:
    params = tuple(x[:1].repeat(n, 1) for x in parameters(distribution, 1, 4, 0))
    action = distribution.sample(params, torch.Generator().manual_seed(0))
    shift = policy_shift(distribution, params, params, torch.zeros(n))
    drift = score_readings(distribution, params, params, action, normal(n), torch.zeros(n))
    assert shift["diag/kl_behaviour"] == pytest.approx(0, abs=1e-6)
    assert shift["diag/ess"] == pytest.approx(1.0)
    assert drift["diag/score_drift"] == pytest.approx(0, abs=1e-6)
    assert policy_variance(distribution, params) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("n", [1, 2, 100])
@pytest.mark.parametrize("units", [1, 8, 64])
@pytest.mark.parametrize("seed", range(3))
def test_readings_of_features_are_within_their_bounds(n: int, units: int, seed: int) -> None:
    features = normal(n, units, seed=seed)
    assert dead_fraction([features]) == (1.0 if n == 1 else 0.0)
    assert (0 if n == 1 else 1) <= feature_rank(features) <= min(n - 1 or 1, units)
    assert dead_fraction([features * 0, features * 0 + 1]) == 1.0
    assert feature_rank(features * 0) == 0


@pytest.mark.parametrize("n", [1, 2, 64])
@pytest.mark.parametrize("value", [2.0, 0.1, -1 / 3, 1234.567, -1e6 / 3, 1e-12, 1e12])
def test_explained_variance_of_frames_without_variance_is_zero(n: int, value: float) -> None:
    assert explained_variance(normal(n), torch.full((n,), value)) == 0.0
    assert explained_variance(torch.full((n,), value), torch.full((n,), value)) == 0.0


@pytest.mark.parametrize("n", [0, 1, 5, 9, 33])
@pytest.mark.parametrize("value", [0.0, -7.25, 1e12])
def test_constant_series_have_defined_readings(n: int, value: float) -> None:
    series = np.full(n, value)
    profile = variance_profile(series, scale=1.0)
    assert strongest_period(series) == Period(0, 0.0, 1.0)
    assert creep(series) == 0.0
    assert rounds_below(series, random=value) == 0
    assert not collapsed(series, random=value)
    assert smoothed(series).tolist() == series.tolist()
    assert profile.tolist() == [0.0] * max(0, n - 9)
    assert alert_line(profile) == 0.0
    assert staircase_length(profile, 0.0) == 0


NAMES = [
    "clock/staleness_min",
    "clock/publish_lag",
    "clock/ratio_measured",
    "diag/kl_behaviour",
    "diag/ess",
    "diag/grad_norm_max",
    "diag/grad_participation",
    "diag/score_residual",
    "diag/baseline_leak",
    "diag/rollout_entropy",
    "diag/rollout_entropy_own_range",
    "diag/entropy_share",
    "diag/places_per_env",
    "diag/duplicates",
    "diag/state_drift",
    "diag/critic_loss_first_pass",
    "diag/dead_units",
    "diag/feature_rank",
    "diag/policy_variance",
    "rollout/return_round",
    "eval/return_mean",
    "eval/changed_return_mean",
    "train/clip_fraction",
    "time/memory_host",
    "time/memory_device",
    "time/device_utilisation",
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("limits", [CALIBRATED, SEED], ids=["calibrated", "seed"])
def test_no_rule_alarms_on_an_empty_history_or_on_readings_that_are_not_finite(
    rule: Rule, limits: Limits
) -> None:
    assert rule(History(), limits) is None
    assert rule(recorded({name: [math.nan] * 64 for name in NAMES}, now=64), limits) is None


@pytest.mark.parametrize("rounds", [1, 2, 3, 9, 40, 65])
@pytest.mark.parametrize("value", [0.0, -1.0, 1e-30, 1e30])
@pytest.mark.parametrize("limits", [CALIBRATED, SEED], ids=["calibrated", "seed"])
def test_no_rule_crashes_on_constant_readings_and_all_evidence_can_be_printed(
    rounds: int, value: float, limits: Limits
) -> None:
    history = recorded({name: [value] * rounds for name in NAMES}, now=8 * rounds)
    for alarm in Panel(limits).judge(history):
        assert alarm.name in str(alarm)
        assert all(isinstance(float(x), float) for x in alarm.values.values())


@pytest.mark.parametrize("seed", range(6))
def test_no_rule_crashes_on_wild_readings_with_gaps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    history, panel = History(), Panel(CALIBRATED)
    begun = []
    for number in range(80):
        history.round = number
        wild = 10.0 ** rng.uniform(-30, 30, len(NAMES)) * rng.choice([-1, 1], len(NAMES))
        wild[rng.random(len(NAMES)) < 0.1] = rng.choice(DIRT)
        history.add({k: v for k, v in zip(NAMES, wild, strict=True) if rng.random() < 0.8})
        begun += panel.judge(history)
    assert begun
    assert all(alarm.rank in (0, 1, 2) for alarm in begun)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.0])
def test_frames_that_are_all_the_same_are_copies_whatever_they_hold(value: float) -> None:
    assert duplicate_fraction(torch.full((100, 3), value)) == pytest.approx(0.99)


@pytest.mark.parametrize("shapes", [((5, 1), (5,)), ((5,), (4,)), ((0,), (0,))])
def test_values_and_targets_must_belong_together(shapes: tuple) -> None:
    value, target = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(ValueError, match=r"shape|no frames"):
        explained_variance(value, target)


@pytest.mark.parametrize("infinite", [1, 2, 4])
def test_a_weight_that_overflows_is_a_frame_that_carries_all(infinite: int) -> None:
    log_ratio = torch.zeros(8)
    log_ratio[:infinite] = math.inf
    policy = (torch.zeros(8, 2), torch.ones(8, 2))
    assert policy_shift(Gaussian, policy, policy, log_ratio)["diag/ess"] == pytest.approx(
        infinite / 8, rel=1e-2
    )
