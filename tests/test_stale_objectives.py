"""Objectives for stale data, against hand numbers and their defining properties."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torchrl.objectives.value.functional import vtrace_advantage_estimate

from rl_twoclocks.advantage import gae, vtrace
from rl_twoclocks.diagnostics.score import expected_score
from rl_twoclocks.distributions import Categorical, Gaussian
from rl_twoclocks.objectives import OBJECTIVES, centred, spo, vaco
from rl_twoclocks.schedule import Schedule
from tests.envs import run_config


def log(*ratios: float) -> Tensor:
    return torch.tensor(ratios).log()


def trajectory(seed: int, n: int = 3, t: int = 17) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    terminated = torch.rand(n, t, generator=g) < 0.1
    done = terminated | (torch.rand(n, t, generator=g) < 0.1)
    return {
        "value": torch.randn(n, t, generator=g),
        "next_value": torch.randn(n, t, generator=g),
        "reward": torch.randn(n, t, generator=g),
        "terminated": terminated,
        "done": done,
        "log_ratio": 0.7 * torch.randn(n, t, generator=g),
    }


# -- V-trace --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gae_lambda", [0.0, 0.9, 1.0])
def test_vtrace_on_its_own_data_is_gae(seed: int, gae_lambda: float) -> None:
    frames = trajectory(seed)
    frames["log_ratio"] = torch.zeros_like(frames["log_ratio"])
    ours = vtrace(**frames, gamma=0.97, gae_lambda=gae_lambda)
    del frames["log_ratio"]
    theirs = gae(**frames, gamma=0.97, gae_lambda=gae_lambda)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("rho_clip", "c_clip"), [(1.0, 1.0), (1.5, 1.0), (0.8, 0.5), (9.0, 9.0)])
def test_vtrace_equals_torchrls(seed: int, rho_clip: float, c_clip: float) -> None:
    frames = trajectory(seed)
    # TorchRL's form bootstraps within an episode from its own next value.
    frames["next_value"][:, :-1] = torch.where(
        frames["done"][:, :-1], frames["next_value"][:, :-1], frames["value"][:, 1:]
    )
    advantage, target = vtrace(
        **frames, gamma=0.97, gae_lambda=1.0, rho_clip=rho_clip, c_clip=c_clip
    )
    columns = {k: v.unsqueeze(-1) for k, v in frames.items()}
    theirs, their_target = vtrace_advantage_estimate(
        0.97,
        columns["log_ratio"],
        torch.zeros_like(columns["log_ratio"]),
        columns["value"],
        columns["next_value"],
        columns["reward"],
        columns["done"],
        columns["terminated"],
        rho_thresh=rho_clip,
        c_thresh=c_clip,
    )
    torch.testing.assert_close(target, their_target.squeeze(-1), atol=1e-4, rtol=1e-4)
    weighted = frames["log_ratio"].exp().clamp(max=rho_clip) * advantage
    torch.testing.assert_close(weighted, theirs.squeeze(-1), atol=1e-4, rtol=1e-4)


def test_vtrace_by_hand() -> None:
    # Two frames, values 1 and 2, then 4; rewards 1; weights 2 and 1/2; gamma 1/2, lambda 1.
    one = torch.tensor([[1.0, 2.0]])
    never = torch.zeros(1, 2, dtype=torch.bool)
    advantage, target = vtrace(
        one, torch.tensor([[2.0, 4.0]]), torch.ones(1, 2), never, never, log(2.0, 0.5)[None],
        gamma=0.5, gae_lambda=1.0,
    )  # fmt: skip
    # delta = 1 + 1 - 1 = 1 and 1 + 2 - 2 = 1; corrections 1/2 x 1, and 1 + 1/2 x 1/2.
    torch.testing.assert_close(target, torch.tensor([[2.25, 2.5]]))
    torch.testing.assert_close(advantage, torch.tensor([[1.25, 1.0]]))


# -- objectives -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "advantage", "loss"),
    [(1.0, 2.0, -2.0), (1.2, 2.0, -(2.4 - 2 * 0.04 / 0.4)), (0.5, -1.0, 0.5 + 0.25 / 0.4)],
)
def test_spo_by_hand(current: float, advantage: float, loss: float) -> None:
    even = torch.zeros(1)
    terms = spo(log(current), even, even, torch.tensor([advantage]), 0.2)
    assert float(terms.loss) == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize(("advantage", "edge"), [(1.0, 1.2), (-3.0, 0.8)])
def test_spo_is_flat_at_the_edge_of_the_trust_region_only(advantage: float, edge: float) -> None:
    for ratio, flat in ((edge, True), (1.0, False), (1.5, False), (0.5, False)):
        log_prob = log(ratio).requires_grad_()
        even = torch.zeros(1)
        spo(log_prob, even, even, torch.tensor([advantage]), 0.2).loss.sum().backward()
        assert (float(log_prob.grad.abs()) < 1e-6) is flat


def test_spo_weighs_frames_by_proximal_over_behaviour() -> None:
    terms = spo(log(0.5), log(0.25), log(0.5), torch.ones(1), 0.2)
    assert float(terms.loss) == pytest.approx(-2.0)


def test_vaco_uses_all_frames_within_half_the_bound_and_drops_the_ones_that_raise_it_beyond() -> (
    None
):
    ratios, advantages = (1.3, 0.7, 1.3, 0.7, 1.0), torch.tensor([1.0, 1.0, -1.0, -1.0, 5.0])
    even = torch.zeros(5)
    # Total variation (4 x 0.3) / 5 / 2 = 0.12 against half of 0.2, and against half of 0.3.
    terms = vaco(log(*ratios), even, even, advantages, 0.2)
    assert terms.clipped.tolist() == [1, 0, 0, 1, 0]
    torch.testing.assert_close(terms.loss, torch.tensor([0.0, -0.7, 1.3, 0.0, -5.0]))
    whole = vaco(log(*ratios), even, even, advantages, 0.3)
    assert whole.clipped.sum() == 0
    torch.testing.assert_close(whole.loss, -torch.tensor(ratios) * advantages)


def test_vaco_pulls_back_what_lies_beyond_its_cap() -> None:
    current = log(9.0).requires_grad_()
    terms = vaco(current, torch.zeros(1), torch.zeros(1), -torch.ones(1), 0.2, 3.0)
    assert float(terms.loss.detach()) == pytest.approx(3.0)
    (gradient,) = torch.autograd.grad(terms.loss.sum(), current)
    assert float(gradient) == pytest.approx(3.0)
    # What overflows stays finite.
    wild = torch.full((1,), 200.0, requires_grad=True)
    terms = vaco(wild, torch.zeros(1), torch.zeros(1), -torch.ones(1), 0.2, 3.0)
    (gradient,) = torch.autograd.grad(terms.loss.sum(), wild)
    assert float(gradient) == pytest.approx(3.0)


@pytest.mark.parametrize("name", ["decoupled", "spo", "centred"])
def test_the_cap_holds_the_importance_weight(name: str) -> None:
    extra = {"power": 1.0} if name == "centred" else {}
    current = log(0.5)
    terms = OBJECTIVES[name](current, log(0.05), current, torch.ones(1), 0.2, 3.0, **extra)
    assert float(terms.loss) == pytest.approx(-3.0)


def test_centred_without_a_centre_is_ppo_around_the_proximal_policy() -> None:
    g = torch.Generator().manual_seed(0)
    current, behaviour, advantage = (torch.randn(64, generator=g) for _ in range(3))
    current = behaviour + 0.3 * current
    ours = centred(current, behaviour, behaviour, advantage, 0.2)
    ppo = OBJECTIVES["clipped"](current, behaviour, behaviour, advantage, 0.2)
    for mine, theirs in zip(ours, ppo, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("power", [0.0, 0.3, 0.7, 1.0])
def test_centring_leaves_no_drift_on_a_categorical_policy(power: float) -> None:
    """With the same advantage for all actions, the expected gradient over the behaviour is zero."""
    g = torch.Generator().manual_seed(1)
    behaviour = torch.randn(5, generator=g)
    logits = (behaviour + torch.randn(5, generator=g)).requires_grad_()
    # One row per action, weighted by the behaviour policy's probability of it.
    b, p = behaviour.expand(5, 5), logits.expand(5, 5)
    actions = torch.arange(5)
    blend, mass = Categorical.blend((b,), (p.detach(),), power)
    terms = centred(
        Categorical.log_prob((p,), actions),
        Categorical.log_prob((b,), actions),
        Categorical.log_prob((p.detach(),), actions),
        torch.full((5,), 1.7),
        0.2,
        expected=mass * Categorical.expected_log_prob(blend, (p,)),
        power=power,
    )
    (behaviour.softmax(-1) * terms.loss).sum().backward()
    assert float(logits.grad.abs().max()) < 1e-6
    plain = torch.autograd.grad(
        (behaviour.softmax(-1) * Categorical.log_prob((logits.expand(5, 5),), actions)).sum(),
        logits,
    )[0]
    assert float(plain.abs().max()) > 0.05


@pytest.mark.parametrize("power", [0.0, 0.4, 1.0])
def test_centring_leaves_no_drift_on_a_gaussian_policy(power: float) -> None:
    loc_b, scale_b = torch.tensor([[0.3, -0.5]]), torch.tensor([[0.8, 0.4]])
    loc = torch.tensor([[0.5, -0.3]], requires_grad=True)
    log_scale = torch.tensor([[0.5, 0.6]]).log().requires_grad_()
    now = (loc.detach(), log_scale.detach().exp())
    blend, mass = Gaussian.blend((loc_b, scale_b), now, power)
    current = (loc, log_scale.exp())
    centre = mass * Gaussian.expected_log_prob(blend, current)
    centre.sum().backward()
    # The mean of weight x score over the behaviour policy, by a fine grid over both dimensions.
    grid = torch.linspace(-4, 4, 801)
    points = torch.cartesian_prod(grid, grid)
    density = Gaussian.log_prob((loc_b, scale_b), points)
    log_ratio = Gaussian.log_prob(now, points) - density
    z = (points - now[0]) / now[1]
    weight = (density + power * log_ratio).exp() * 0.01**2
    torch.testing.assert_close(
        loc.grad[0], (weight[:, None] * z / now[1]).sum(0), atol=1e-3, rtol=0
    )
    score = (weight[:, None] * (z * z - 1)).sum(0)
    torch.testing.assert_close(log_scale.grad[0], score, atol=1e-3, rtol=0)


def test_the_centre_without_weights_is_the_expected_score_of_the_diagnostics() -> None:
    g = torch.Generator().manual_seed(2)
    b = (torch.randn(4, 3, generator=g), torch.rand(4, 3, generator=g) + 0.5)
    loc = torch.randn(4, 3, generator=g).requires_grad_()
    log_scale = torch.randn(4, 3, generator=g).requires_grad_()
    blend, mass = Gaussian.blend(b, (loc.detach(), log_scale.detach().exp()), 0.0)
    torch.testing.assert_close(blend, b)
    torch.testing.assert_close(mass, torch.ones(4))
    Gaussian.expected_log_prob(blend, (loc, log_scale.exp())).sum().backward()
    expected = expected_score(Gaussian, b, (loc.detach(), log_scale.detach().exp()))
    torch.testing.assert_close(torch.cat([loc.grad, log_scale.grad], -1), expected)


@pytest.mark.parametrize("distribution", [Gaussian, Categorical])
def test_expected_log_prob_of_a_policy_under_itself_is_minus_its_entropy(distribution) -> None:
    g = torch.Generator().manual_seed(3)
    params: tuple[Tensor, ...] = (torch.randn(6, 4, generator=g),)
    if distribution is Gaussian:
        params += (torch.rand(6, 4, generator=g) + 0.2,)
    expected = distribution.expected_log_prob(params, params)
    torch.testing.assert_close(expected, -distribution.entropy(params))


# -- settings -------------------------------------------------------------------------------------


def test_the_cap_grows_from_its_start_and_the_step_is_scaled_from_the_first_round(tmp_path) -> None:
    words = [
        "algo.importance_ratio_start=0.5",
        "algo.max_importance_ratio=2.5",
        "algo.ess_base=0.8",
    ]
    config = run_config("Target", tmp_path, *words)
    schedule = Schedule(config)
    first, last = config.clocks.update_frequency, config.total_frames
    assert schedule(first).max_importance_ratio == pytest.approx(0.5)
    halfway = schedule(first + last // 2).max_importance_ratio
    assert halfway == pytest.approx(1.5, abs=1e-3)
    assert schedule(first).ess_base == 0.8
    plain = Schedule(run_config("Target", tmp_path))(first)
    assert (plain.max_importance_ratio, plain.ess_base) == (100.0, 0.0)


@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_rollouts_that_fill_a_queue_do_not_lower_the_rate(schedule: str, tmp_path) -> None:
    words = [f"optim.schedule={schedule}", "algo.clip_schedule=linear"]
    plain = run_config("Target", tmp_path, *words)
    u = plain.clocks.update_frequency
    clocks = plain.clocks.model_copy(update={"lag": 5})
    # The frames that fill the queue come on top.
    late = plain.model_copy(update={"clocks": clocks, "total_frames": plain.total_frames + 5 * u})
    for k in range(1, plain.total_frames // u):
        one, other = Schedule(plain)(k * u), Schedule(late)((k + 5) * u)
        assert vars(one) == pytest.approx(vars(other))


def test_a_ratio_that_overflows_gives_no_infinite_loss_where_the_weight_is_capped() -> None:
    far = torch.tensor([-200.0])
    for name in ("decoupled", "spo"):
        terms = OBJECTIVES[name](torch.zeros(1), far, torch.zeros(1), torch.ones(1), 0.2, 5.0)
        assert math.isfinite(float(terms.loss))


@pytest.mark.parametrize(
    ("advantage", "moved", "silent"),
    [
        (1.0, -0.03, True),
        (1.0, -0.01, False),
        (1.0, 0.03, False),
        (-1.0, 0.03, True),
        (-1.0, 0.01, False),
        (-1.0, -0.03, False),
    ],
)
def test_centring_ends_where_the_whole_policy_is_as_far_as_the_clip(
    advantage: float, moved: float, silent: bool
) -> None:
    """0.2^2 / 2 = 0.02 nats, the way that the advantage pulls the expectation; the ratio is 1 here."""
    log_prob = torch.zeros(1, requires_grad=True)
    before = torch.zeros(1)
    expected = torch.full((1,), moved, requires_grad=True)
    terms = centred(
        log_prob,
        torch.zeros(1),
        torch.zeros(1),
        torch.full((1,), advantage),
        0.2,
        expected=expected,
        expected_before=before,
    )
    terms.loss.sum().backward()
    heard = 0.0 if silent else advantage
    assert (float(log_prob.grad), float(expected.grad)) == (-heard, heard)
