"""Scaled steps and the averaged proximal policy, inside the optimizer step."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rl_twoclocks.config import AlgoConfig, InterventionsConfig, OptimConfig
from rl_twoclocks.optim import FlatParameters
from rl_twoclocks.update import FIELDS, MIN_STEP_SCALE, Update
from tests.command_envs import newest
from tests.interventions.views import INFINITE
from tests.test_resume import assert_equal_ends, whole_and_interrupted
from tests.test_update import RATE, controls, make_update, minibatch, network, same, snapshot, step

TARGET = 0.01


def scaled(update: Update, kl: float, ess: float = 1.0, told: float = 1.0) -> float:
    """The share that a step with this KL and effective sample size takes."""
    return float(update._scale_step(*(torch.tensor(x) for x in (kl, ess, told))))


def with_target(target: float = TARGET, base: float = 0.0) -> Update:
    update = make_update(network())
    update.start_round(controls(update, kl_target=target, ess_base=base))
    return update


@pytest.mark.parametrize(
    ("kls", "expected"),
    [
        # Above twice the target, three times.
        ([0.021, 0.021, 0.5], [1 / 1.5, 1 / 1.5**2, 1 / 1.5**3]),
        # Up to twice the target and from half of it on nothing moves.
        ([0.021, 0.0199, 0.01, 0.0051], [1 / 1.5] * 4),
        # Below half of it, back up.
        ([0.021, 0.021, 0.004], [1 / 1.5, 1 / 1.5**2, 1 / 1.5]),
        # Never above 1: 1 / 1.5 x 1.5 x 1.5.
        ([0.021, 0.004, 0.004], [1 / 1.5, 1.0, 1.0]),
        ([0.001], [1.0]),
        # A KL of zero leaves it where it is.
        ([0.021, 0.0, 0.0], [1 / 1.5] * 3),
        # Never below a hundredth: 1.5 ** 12 = 130.
        ([1.0] * 13, [max(1.5**-k, 0.01) for k in range(1, 14)]),
    ],
)
def test_the_scale_follows_the_kl_by_hand(kls: list[float], expected: list[float]) -> None:
    update = with_target()
    assert [scaled(update, kl) for kl in kls] == pytest.approx(expected, rel=1e-5)
    assert float(update.step_scale) == pytest.approx(expected[-1], rel=1e-5)
    assert MIN_STEP_SCALE == 0.01


def test_a_kl_that_is_no_news_does_not_move_the_scale() -> None:
    update = with_target()
    scaled(update, 0.5, told=0.0)
    assert float(update.step_scale) == 1.0


def test_a_step_that_is_refused_for_its_kl_makes_the_next_ones_smaller() -> None:
    update = make_update(network())
    update.start_round(controls(update, kl_target=TARGET, kl_limit=1.5 * TARGET))
    # KL = exp(-0.25) - 1 + 0.25 = 0.0288: more than twice the target, and beyond the limit.
    assert step(update, moved_away(network(), by=0.25))["applied"] == 0.0
    assert float(update.step_scale) == pytest.approx(1 / 1.5)
    # The round is over: what comes after is computed for nothing, and says nothing new.
    step(update, moved_away(network(), by=0.25))
    assert float(update.step_scale) == pytest.approx(1 / 1.5)


@pytest.mark.parametrize(
    ("ess", "expected"), [(1.0, 1.0), (0.9, 1.0), (0.45, math.sqrt(0.5)), (0.225, 0.5)]
)
def test_the_scale_is_the_root_of_ess_over_base_below_the_base(ess: float, expected: float) -> None:
    update = with_target(INFINITE, base=0.9)
    assert scaled(update, 0.01, ess) == pytest.approx(expected)
    # It is of this minibatch alone, and not remembered.
    assert float(update.step_scale) == 1.0


def test_both_scales_multiply() -> None:
    update = with_target(base=0.8)
    assert scaled(update, 0.021, 0.2) == pytest.approx(0.5 / 1.5)
    assert float(update.step_scale) == pytest.approx(1 / 1.5)


def test_the_scale_goes_on_over_rounds_and_recovers_when_the_rule_is_off() -> None:
    update = with_target()
    for _ in range(3):
        scaled(update, 0.5)
    update.start_round(controls(update, kl_target=TARGET))
    assert float(update.step_scale) == pytest.approx(1.5**-3)
    update.start_round(controls(update))
    assert [scaled(update, 0.5) for _ in range(4)] == pytest.approx([1.5**-2, 1.5**-1, 1.0, 1.0])


def moved_away(model: torch.nn.Module, by: float, stale: float = 0.0) -> dict[str, Tensor]:
    """Frames with a KL of exp(-by) - 1 + by to the proximal policy; `stale` spreads the weights."""
    frames = minibatch(model, 3)
    current = frames["proximal_log_prob"]
    g = torch.Generator().manual_seed(5)
    frames["behaviour_log_prob"] = current - stale * torch.randn(current.numel(), generator=g)
    frames["proximal_log_prob"] = current + by
    return frames


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RAdam", "SGD"])
def test_the_step_is_that_of_a_scaled_learning_rate(name: str) -> None:
    one, two = (make_update(network(), name) for _ in range(2))
    frames = moved_away(network(), by=0.25, stale=0.7)
    # KL = exp(-0.25) - 1 + 0.25 = 0.0288, above twice the target.
    one.start_round(controls(one, kl_target=TARGET, ess_base=0.9))
    got = step(one, frames)
    weight = (frames["proximal_log_prob"] - 0.25 - frames["behaviour_log_prob"]).exp()
    ess = float(weight.sum() ** 2 / (weight**2).sum() / 32)
    assert ess < 0.85
    assert got["step_scale"] == pytest.approx(math.sqrt(ess / 0.9) / 1.5, rel=1e-4)
    two.start_round(controls(two, learning_rate=RATE * got["step_scale"]))
    assert step(two, frames)["step_scale"] == 1.0
    torch.testing.assert_close(one.flat.vector, two.flat.vector, rtol=0, atol=1e-8)
    assert not same(
        snapshot(one)[:1], [torch.nn.utils.parameters_to_vector(network().parameters())]
    )


@pytest.mark.parametrize("name", ["Adam", "RAdam"])
def test_rules_that_are_off_change_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for without in (False, True):
        update = make_update(network(), name)
        if without:
            monkeypatch.setattr(update, "_scale_step", lambda kl, ess, told: torch.ones(()))
            monkeypatch.setattr(update, "_average", lambda applied: None)
        for seed in range(6):
            # KL and effective sample size are far from healthy.
            got = step(update, minibatch(network(), seed, stale=1.0, off=0.5))
            assert got["step_scale"] == 1.0
        ends.append(snapshot(update))
    assert same(*ends)


@pytest.mark.parametrize("name", ["Adam", "RAdam"])
def test_one_weight_that_overflows_does_not_poison_the_parameters(name: str) -> None:
    update = make_update(network(), name)
    frames = minibatch(network(), 0)
    # exp(50) fits into a float, its square does not.
    frames["behaviour_log_prob"][3] -= 50.0
    got = step(update, frames)
    assert (got["finite"], got["applied"]) == (1.0, 1.0)
    assert math.isfinite(got["loss"])
    assert torch.isfinite(update.flat.vector).all()


@pytest.mark.parametrize("name", ["Adam", "RAdam"])
@pytest.mark.parametrize(
    ("stale", "share"), [(45.0, 1 / 32), (100.0, 1 / 32), (None, 1.0)], ids=["45", "100", "-60"]
)
@pytest.mark.parametrize("base", [0.0, 0.9])
def test_weights_that_over_or_underflow_leave_the_parameters_and_the_share_finite(
    name: str, stale: float | None, share: float, base: float
) -> None:
    update = make_update(network(), name)
    update.start_round(controls(update, ess_base=base))
    frames = minibatch(network(), 0)
    if stale is None:
        frames["behaviour_log_prob"] += 60.0
    else:
        frames["behaviour_log_prob"][3] -= stale
    got = step(update, frames)
    assert got["ess"] == pytest.approx(share, rel=1e-3)
    expected = min(1.0, math.sqrt(share / base)) if base else 1.0
    assert got["step_scale"] == pytest.approx(expected, rel=1e-3)
    assert torch.isfinite(update.flat.vector).all()
    # Whatever became of that step, the next one is taken and is finite.
    update.start_round(controls(update, ess_base=base))
    assert step(update, minibatch(network(), 1))["applied"] == 1.0
    assert torch.isfinite(update.flat.vector).all()


@pytest.mark.parametrize("name", ["Adam", "RAdam"])
def test_the_averaged_policy_follows_hiltons_recursion(name: str) -> None:
    decay = 0.75
    update = make_update(network(), name, algo={"proximal": "ewma", "proximal_decay": decay})
    theta = update.flat.vector.clone()
    proximal, weight = theta.double(), 1.0
    assert torch.equal(update.proximal, theta)
    visited = [theta.double()]
    for seed in range(6):
        assert step(update, minibatch(network(), seed))["applied"] == 1.0
        visited.append(update.flat.vector.double())
        new = decay * weight + 1
        proximal = proximal * (decay * weight / new) + visited[-1] / new
        weight = new
        torch.testing.assert_close(update.proximal.double(), proximal, rtol=0, atol=1e-6)
        assert float(update.proximal_weight) == pytest.approx(weight)
    # The same, unrolled: weights decay ** age, divided by their sum.
    shares = [decay ** (6 - k) for k in range(7)]
    mean = sum(s * v for s, v in zip(shares, visited, strict=True)) / sum(shares)
    torch.testing.assert_close(update.proximal.double(), mean, rtol=0, atol=1e-6)
    assert (update.proximal - update.flat.vector).abs().max() > 1e-4


def test_a_step_that_was_not_taken_is_not_averaged() -> None:
    update = make_update(network(), algo={"proximal": "ewma"}, on_nonfinite="skip")
    step(update, minibatch(network(), 0))
    before = (update.proximal.clone(), update.proximal_weight.clone())
    bad = minibatch(network(), 1)
    bad["advantage"][0] = math.nan
    assert step(update, bad)["applied"] == 0.0
    assert torch.equal(update.proximal, before[0])
    assert torch.equal(update.proximal_weight, before[1])


def test_clipping_is_around_the_average_and_the_kl_from_the_rounds_start() -> None:
    update = make_update(network(), algo={"proximal": "ewma", "proximal_decay": 0.75})
    frames = minibatch(network(), 0)
    # Around this policy every sample would be clipped.
    frames["proximal_log_prob"] = frames["proximal_log_prob"] + 3.0
    first = step(update, frames)
    assert first["clip_fraction"] == 0.0
    assert first["kl"] == pytest.approx(math.exp(-3.0) - 1 + 3.0, rel=1e-4)


def test_a_stop_by_kl_does_not_end_all_later_rounds_under_an_average() -> None:
    update = make_update(network(), algo={"proximal": "ewma"})
    applied = []
    for seed in range(8):
        frames = minibatch(update.model, seed)
        update.start_round(controls(update, kl_limit=1e-3))
        applied.append(sum(step(update, frames)["applied"] for _ in range(30)))
    # Every round stops, and every round learns before it does.
    assert all(0 < count < 30 for count in applied)


def test_without_averaging_there_is_no_second_set_of_weights() -> None:
    update = make_update(network())
    assert update.proximal.numel() == 0
    step(update, minibatch(network(), 0))
    assert float(update.proximal_weight) == 1.0


def test_scale_and_average_make_a_round_trip() -> None:
    algo = {"proximal": "ewma"}
    one = make_update(network(), algo=algo)
    one.start_round(controls(one, kl_target=1e-6))
    for _ in range(4):
        step(one, minibatch(network(), 0))
    assert float(one.step_scale) < 1
    saved = copy.deepcopy(one.state_dict())
    model = network(seed=1)
    other = make_update(model, algo=algo)
    with torch.no_grad():
        other.flat.vector.copy_(one.flat.vector)
    other.load_state_dict(saved)
    other.start_round(controls(other, kl_target=1e-6))
    for seed in range(3):
        frames = minibatch(network(), seed)
        a, b = (u(*(frames[key] for key in FIELDS)) for u in (one, other))
        assert torch.equal(a, b)
    assert torch.equal(one.proximal, other.proximal)
    assert torch.equal(one.step_scale, other.step_scale)
    assert torch.equal(one.flat.vector, other.flat.vector)


def test_a_run_with_an_averaged_policy_resumes_exactly(tmp_path: Path) -> None:
    changes = ["algo.proximal=ewma", "algo.proximal_decay=0.889", "interventions.step.always=true"]
    changes += ["interventions.step.kl_target=1e-5", "optim.learning_rate=0.003"]
    whole, parts = whole_and_interrupted(tmp_path, "task=cartpole", *changes)
    assert_equal_ends(whole, parts)
    update = newest(parts)["update"]
    assert float(update["step_scale"]) < 1
    # The sum of weights of a decay of 0.889 over 40 steps.
    expected = sum(0.889**k for k in range(41))
    assert float(update["proximal_weight"]) == pytest.approx(expected, rel=1e-4)
    assert not torch.equal(update["proximal"], newest(parts)["parameters"])


@pytest.mark.parametrize(("steps", "decay"), [(16, 8 / 9), (320, 160 / 161), (2, 0.5)])
def test_an_averaged_centre_is_as_old_as_half_a_round_unless_told_otherwise(
    steps: int, decay: float
) -> None:
    algo = AlgoConfig(proximal="ewma")
    parts = (algo, OptimConfig(), InterventionsConfig())
    update = Update(FlatParameters(network()), *parts, compile_step=False, round_steps=steps)
    assert update.proximal_decay == pytest.approx(decay)
    assert 1 / (1 - update.proximal_decay) - 1 == pytest.approx(steps / 2)
    parts = (AlgoConfig(proximal="ewma", proximal_decay=0.75), OptimConfig(), InterventionsConfig())
    update = Update(FlatParameters(network()), *parts, compile_step=False, round_steps=steps)
    assert update.proximal_decay == 0.75
