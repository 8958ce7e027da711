from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rl_twoclocks import compose
from rl_twoclocks.diagnostics import CALIBRATED, Limits, levels, policy_shift
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.policy_shift import (
    clip_alarm,
    clip_level,
    effective_sample_size,
    ess_alarm,
    kl_alarm,
)
from rl_twoclocks.distributions import Categorical, Gaussian, Params
from tests.diagnostics.histories import recorded

LEVELS = Limits(kl_watch=0.1, kl_warn=0.3, kl_danger=1.0)


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(n: int, d: int, seed: int) -> Params:
    loc = torch.randn(n, d, generator=stream(seed), dtype=torch.float64)
    return loc, torch.rand(n, d, generator=stream(seed + 1), dtype=torch.float64) + 0.5


def weights(*ratios: float) -> dict[str, float]:
    n = len(ratios)
    same = (torch.zeros(n, 1), torch.ones(n, 1))
    return policy_shift(Gaussian, same, same, torch.tensor(ratios).log())


def test_gaussian_kl_by_hand_in_both_directions() -> None:
    behaviour = (torch.zeros(4, 1), torch.ones(4, 1))
    current = (torch.ones(4, 1), torch.full((4, 1), 2.0))
    readings = policy_shift(Gaussian, behaviour, current, torch.zeros(4))
    forward = math.log(2) + (1 + 1) / 8 - 0.5
    backward = -math.log(2) + (4 + 1) / 2 - 0.5
    assert readings["diag/kl_behaviour"] == pytest.approx(forward, rel=1e-5)
    assert readings["diag/kl_behaviour_reverse"] == pytest.approx(backward, rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_gaussian_kl_is_the_mean_over_frames_of_the_sum_over_dimensions(seed: int) -> None:
    b, c = gaussian(50, 4, seed), gaussian(50, 4, seed + 10)
    closed = torch.distributions.kl_divergence(
        torch.distributions.Normal(*b), torch.distributions.Normal(*c)
    )
    readings = policy_shift(Gaussian, b, c, torch.zeros(50))
    assert readings["diag/kl_behaviour"] == pytest.approx(float(closed.sum(-1).mean()))


def test_categorical_kl_by_hand() -> None:
    b = (torch.tensor([[0.5, 0.5]]).log(),)
    c = (torch.tensor([[0.9, 0.1]]).log(),)
    readings = policy_shift(Categorical, b, c, torch.zeros(1))
    forward = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    backward = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    assert readings["diag/kl_behaviour"] == pytest.approx(forward, rel=1e-5)
    assert readings["diag/kl_behaviour_reverse"] == pytest.approx(backward, rel=1e-5)


def test_one_policy_has_no_shift() -> None:
    assert weights(1.0, 1.0, 1.0) == {
        "diag/kl_behaviour": 0.0,
        "diag/kl_behaviour_reverse": 0.0,
        "diag/ess": 1.0,
        "diag/total_variation": 0.0,
        "diag/ratio_max": 1.0,
    }


def test_readings_of_two_weights_by_hand() -> None:
    readings = weights(3.0, 1.0)
    assert readings["diag/ess"] == pytest.approx(16 / (10 * 2))
    assert readings["diag/total_variation"] == pytest.approx(0.5 * (2 + 0) / 2)
    assert readings["diag/ratio_max"] == pytest.approx(3.0)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_ess_of_k_frames_that_carry_all_weight_is_k_over_n(k: int) -> None:
    assert weights(*([5.0] * k + [1e-9] * (20 - k)))["diag/ess"] == pytest.approx(k / 20)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_ess_does_not_depend_on_the_size_of_the_weights(factor: float) -> None:
    plain = weights(0.5, 1.0, 2.0, 4.0)["diag/ess"]
    scaled = weights(*(factor * w for w in (0.5, 1.0, 2.0, 4.0)))["diag/ess"]
    assert scaled == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize(
    ("log_ratios", "share"),
    [
        ([45.0, 0.0, 0.0], 1 / 3),
        ([100.0, 0.0, 0.0], 1 / 3),
        ([100.0, 100.0, 0.0], 2 / 3),
        ([-60.0, -60.0, -60.0], 1.0),
        ([-200.0, -200.0, -300.0], 2 / 3),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ess_holds_where_single_weights_over_or_underflow(
    log_ratios: list[float], share: float, dtype: torch.dtype
) -> None:
    same = (torch.zeros(3, 1), torch.ones(3, 1))
    log_ratio = torch.tensor(log_ratios, dtype=dtype)
    readings = policy_shift(Gaussian, same, same, log_ratio)
    assert readings["diag/ess"] == pytest.approx(share, rel=1e-4)
    assert float(effective_sample_size(log_ratio)) == pytest.approx(share, rel=1e-4)
    assert readings["diag/kl_behaviour"] == 0.0
    assert not any(math.isnan(x) for x in readings.values())


def sampled(gap: float, n: int) -> dict[str, float]:
    ones = torch.ones(n, 1, dtype=torch.float64)
    behaviour, current = (0 * ones, ones), (gap * ones, ones)
    action: Tensor = torch.randn(n, 1, generator=stream(0), dtype=torch.float64)
    ratio = Gaussian.log_prob(current, action) - Gaussian.log_prob(behaviour, action)
    return policy_shift(Gaussian, behaviour, current, ratio)


@pytest.mark.parametrize("gap", [0.2, 0.5, 0.8])
def test_sampled_readings_of_shifted_unit_gaussians_have_their_closed_forms(gap: float) -> None:
    readings = sampled(gap, 200_000)
    assert readings["diag/kl_behaviour"] == pytest.approx(gap**2 / 2)
    assert readings["diag/ess"] == pytest.approx(math.exp(-(gap**2)), abs=0.02)
    total_variation = math.erf(gap / (2 * math.sqrt(2)))
    assert readings["diag/total_variation"] == pytest.approx(total_variation, abs=0.01)


@pytest.mark.parametrize(
    ("nats", "severity"), [(0.15, "watch"), (0.4, "warn"), (1.5, "danger"), (20.0, "danger")]
)
def test_kl_alarm_grows_with_the_shift(nats: float, severity: str) -> None:
    alarm = kl_alarm(recorded({"diag/kl_behaviour": [0.02, nats, nats]}), LEVELS)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("policy_kl", severity)
    assert alarm.values["nats"] == nats


def test_kl_alarm_is_judged_by_the_milder_of_two_rounds() -> None:
    alarm = kl_alarm(recorded({"diag/kl_behaviour": [0.02, 0.15, 1.5]}), LEVELS)
    assert alarm is not None
    assert alarm.severity == "watch"


@pytest.mark.parametrize("series", [[0.02] * 9, [0.02, 1.5], [1.5, 1.5, 0.05], [0.1, 0.1]])
def test_kl_alarm_is_silent_on_a_healthy_run_or_a_single_jump(series: list[float]) -> None:
    assert kl_alarm(recorded({"diag/kl_behaviour": series}), LEVELS) is None


def test_kl_alarm_allows_more_where_frames_serve_more_versions() -> None:
    kl = {"diag/kl_behaviour": [0.4, 0.4]}
    classic = kl_alarm(recorded(kl | {"clock/ratio_measured": [1.0, 1.0]}), LEVELS)
    sliding = kl_alarm(recorded(kl | {"clock/ratio_measured": [3.0, 3.0]}), LEVELS)
    assert classic is not None
    assert sliding is not None
    assert (classic.severity, sliding.severity) == ("warn", "watch")
    assert kl_alarm(recorded(kl | {"clock/ratio_measured": [5.0, 5.0]}), LEVELS) is None


def test_kl_alarm_names_the_pass_in_which_the_shift_began() -> None:
    series = {"diag/kl_behaviour": [0.4, 0.4], "diag/kl_pass": [0.0, 3.0]}
    alarm = kl_alarm(recorded(series), LEVELS)
    assert alarm is not None
    assert alarm.values["first pass beyond"] == 3


SIX = {"diag/action_dims": [6.0, 6.0, 6.0]}


@pytest.mark.parametrize(("share", "severity"), [(0.8, "warn"), (0.45, "warn"), (0.2, "danger")])
def test_ess_alarm_after_two_rounds(share: float, severity: str) -> None:
    alarm = ess_alarm(recorded(SIX | {"diag/ess": [0.95, share, share]}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("effective_sample_size", severity)
    assert alarm.values["share"] == share


@pytest.mark.parametrize("series", [[0.95, 0.95, 0.95], [0.9, 0.95, 0.2], [0.2, 0.2, 0.95]])
def test_ess_alarm_is_silent(series: list[float]) -> None:
    assert ess_alarm(recorded(SIX | {"diag/ess": series}), CALIBRATED) is None


@pytest.mark.parametrize(("dims", "raised"), [(1.0, True), (6.0, False)])
def test_levels_of_ess_kl_and_clip_fraction_grow_with_the_actions_dimensions(
    dims: float, raised: bool
) -> None:
    series = {
        "diag/action_dims": [dims, dims],
        "diag/ess": [0.94, 0.94],
        "diag/kl_behaviour": [0.05, 0.05],
        "train/clip_fraction": [0.3, 0.3],
    }
    for rule in (ess_alarm, kl_alarm, clip_alarm):
        assert (rule(recorded(series), CALIBRATED) is not None) is raised


@pytest.mark.parametrize(
    ("ratio", "rounds"), [(1.0, 2), (4.0, 8), (4.004, 8), (2.5, 5), (50.0, 10)]
)
def test_ess_alarm_waits_for_two_windows_without_a_common_frame(ratio: float, rounds: int) -> None:
    def low(n: int) -> History:
        series = {"diag/ess": [0.95] + [0.02] * n, "clock/ratio_measured": [ratio] * (n + 1)}
        return recorded(series | {"diag/action_dims": [6.0] * (n + 1)})

    assert ess_alarm(low(rounds - 1), CALIBRATED) is None
    assert ess_alarm(low(rounds), CALIBRATED) is not None


def test_ess_alarm_allows_more_where_frames_serve_more_versions() -> None:
    series = {"diag/ess": [0.93, 0.93], "clock/ratio_measured": [4.0, 4.0]}
    assert ess_alarm(recorded(series), CALIBRATED) is None
    assert ess_alarm(recorded({"diag/ess": [0.93, 0.93]}), CALIBRATED) is not None


def test_clip_alarm_after_two_rounds() -> None:
    alarm = clip_alarm(recorded(SIX | {"train/clip_fraction": [0.1, 0.5, 0.6]}), CALIBRATED)
    assert alarm is not None
    assert (alarm.name, alarm.severity) == ("clip_fraction", "warn")
    assert alarm.values == {"share": 0.6, "level": pytest.approx(0.18 * 6**0.5)}


def test_a_narrow_trust_region_has_more_frames_outside_at_steps_of_one_size() -> None:
    """Log ratios of one normal distribution, against two widths: both levels mean the same step."""
    for dims in (1.0, 3.0, 6.0):
        wide = clip_level(CALIBRATED, dims)
        spread = torch.distributions.Normal(0.0, 1.0)
        deviations = float(spread.icdf(torch.tensor(1 - wide / 2)))
        log_ratio = 0.2 / deviations * torch.randn(200_000, generator=torch.manual_seed(0))
        assert float((log_ratio.abs() > 0.2).float().mean()) == pytest.approx(wide, abs=0.01)
        narrow = clip_level(CALIBRATED, dims, epsilon=0.1)
        assert float((log_ratio.abs() > 0.1).float().mean()) == pytest.approx(narrow, abs=0.01)
    # What healthy runs with clip 0.1 reach.
    healthy = {"train/clip_fraction": [0.5, 0.5], "train/clip_epsilon": [0.1, 0.1]}
    assert clip_alarm(recorded(SIX | healthy), CALIBRATED) is None
    assert clip_alarm(recorded(SIX | {"train/clip_fraction": [0.5, 0.5]}), CALIBRATED) is not None


@pytest.mark.parametrize("series", [[0.3, 0.3, 0.3], [0.1, 0.1, 0.6], [0.6, 0.6, 0.1]])
def test_clip_alarm_is_silent(series: list[float]) -> None:
    assert clip_alarm(recorded(SIX | {"train/clip_fraction": series}), CALIBRATED) is None


@pytest.mark.parametrize(
    ("words", "alarms"),
    [
        (["algo=clipped"], True),
        (["algo=clipped", "clocks.lag=2"], False),
        (["algo=clipped", "clocks=safe"], False),
        (["algo=clipped", "collect=async"], False),
        (["algo=decoupled", "clocks.lag=2"], True),
        (["algo=vaco"], False),
    ],
)
def test_frames_outside_a_region_around_old_data_are_no_sign_of_too_many_passes(
    words: list[str], alarms: bool
) -> None:
    level = levels(compose(["task=halfcheetah", *words]))
    found = clip_alarm(recorded(SIX | {"train/clip_fraction": [1.0, 1.0, 1.0]}), level)
    assert (found is not None) is alarms
