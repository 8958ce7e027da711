from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss

from rl_twoclocks.distributions import Gaussian
from rl_twoclocks.objectives import OBJECTIVES, critic_loss, standardize


def log(*ratios: float) -> Tensor:
    return torch.tensor(ratios).log()


def one(name: str, current: float, behaviour: float, proximal: float, advantage: float, **kwargs):
    """Terms of one frame whose probabilities are given."""
    terms = OBJECTIVES[name](
        log(current), log(behaviour), log(proximal), torch.tensor([advantage]), 0.2, **kwargs
    )
    return tuple(float(part) for part in terms)


def random_frames(seed: int = 0, n: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    behaviour = -torch.rand(n, generator=g) * 3
    current = behaviour + 0.4 * torch.randn(n, generator=g)
    return current, behaviour, torch.randn(n, generator=g)


def test_clipped_equals_torchrls_loss() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(nn.Linear(3, 1), in_keys=["observation"])
    loss = ClipPPOLoss(
        actor, critic, clip_epsilon=0.2, entropy_bonus=False, normalize_advantage=False
    )
    observation = torch.randn(128, 3)
    data = actor(TensorDict({"observation": observation}, batch_size=[128])).detach()
    with torch.no_grad():
        net[0].weight.add_(0.3 * torch.randn_like(net[0].weight))
    advantage = torch.randn(128)
    data["advantage"], data["value_target"] = advantage.unsqueeze(-1), torch.zeros(128, 1)
    theirs = loss(data).detach()
    log_prob = Gaussian.log_prob(net(observation), data["action"]).detach()
    old = data["action_log_prob"]
    ours = OBJECTIVES["clipped"](log_prob, old, old, advantage, 0.2)
    assert float(ours.clipped.mean()) > 0.1
    assert ours.loss.mean().item() == pytest.approx(theirs["loss_objective"].item(), abs=1e-5)
    assert float(ours.clipped.mean()) == pytest.approx(float(theirs["clip_fraction"]), abs=1e-5)


@pytest.mark.parametrize("name", ["decoupled", "geppo"])
def test_every_objective_is_ppo_where_proximal_is_behaviour(name: str) -> None:
    current, behaviour, advantage = random_frames()
    expected = OBJECTIVES["clipped"](current, behaviour, behaviour, advantage, 0.2)
    terms = OBJECTIVES[name](current, behaviour, behaviour, advantage, 0.2)
    assert expected.clipped.sum() > 5
    for ours, ppo in zip(terms, expected, strict=True):
        torch.testing.assert_close(ours, ppo, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("current", "advantage", "loss", "clipped"),
    [
        (0.50, 1.0, -1.0, 0.0),
        (0.55, 2.0, -2.2, 0.0),
        (0.75, 1.0, -1.2, 1.0),
        (0.75, -1.0, 1.5, 1.0),
        (0.25, 1.0, -0.5, 1.0),
        (0.25, -1.0, 0.8, 1.0),
    ],
)
def test_clipped_by_hand(current: float, advantage: float, loss: float, clipped: float) -> None:
    result = one("clipped", current, 0.5, 0.125, advantage)
    assert result == pytest.approx((loss, current / 0.5, clipped), abs=1e-6)


@pytest.mark.parametrize(
    ("current", "advantage", "loss", "clipped"),
    [
        (0.40, 1.0, -2.0, 0.0),
        (0.44, 1.0, -2.2, 0.0),
        (0.60, 1.0, -2.4, 1.0),
        (0.60, -1.0, 3.0, 1.0),
        (0.20, 1.0, -1.0, 1.0),
        (0.20, -1.0, 1.6, 1.0),
    ],
)
def test_decoupled_by_hand(current: float, advantage: float, loss: float, clipped: float) -> None:
    result = one("decoupled", current, 0.2, 0.4, advantage)
    assert result == pytest.approx((loss, current / 0.4, clipped), abs=1e-6)


@pytest.mark.parametrize(
    ("current", "advantage", "loss", "clipped"),
    [
        (0.40, 1.0, -2.0, 0.0),
        (0.42, 1.0, -2.1, 0.0),
        (0.50, 1.0, -2.2, 1.0),
        (0.50, -1.0, 2.5, 1.0),
        (0.30, 1.0, -1.5, 1.0),
        (0.30, -1.0, 1.8, 1.0),
    ],
)
def test_geppo_by_hand(current: float, advantage: float, loss: float, clipped: float) -> None:
    result = one("geppo", current, 0.2, 0.4, advantage)
    assert result == pytest.approx((loss, current / 0.4, clipped), abs=1e-6)


def test_the_weight_of_stale_frames_is_capped() -> None:
    loss, _, _ = one("decoupled", 0.8, 0.01, 0.8, 1.0, max_importance_ratio=3.0)
    assert loss == pytest.approx(-3.0)
    loss, _, _ = one("geppo", 0.8, 0.01, 0.8, 1.0, max_importance_ratio=3.0)
    assert loss == pytest.approx(-3.0)


@pytest.mark.parametrize("name", ["decoupled", "geppo", "spo"])
def test_a_capped_frame_pulls_as_much_either_way(name: str) -> None:
    """Proximal / behaviour is 30, the cap 2: at the proximal policy the gradient is 2 x advantage."""
    proximal = torch.tensor([-0.5, -0.5])
    log_prob = proximal.clone().requires_grad_()
    terms = OBJECTIVES[name](
        log_prob, proximal - math.log(30), proximal, torch.tensor([1.0, -1.0]), 0.2, 2.0
    )
    terms.loss.sum().backward()
    torch.testing.assert_close(log_prob.grad, torch.tensor([-2.0, 2.0]))


@pytest.mark.parametrize(("name", "centre"), [("clipped", 1.0), ("decoupled", 1.0), ("geppo", 2.0)])
@pytest.mark.parametrize(
    ("side", "advantage", "moves"),
    [(+1, 1.0, False), (+1, -1.0, True), (-1, 1.0, True), (-1, -1.0, False), (0, 1.0, True)],
)
def test_gradients_vanish_only_where_the_ratio_has_left_in_the_wanted_direction(
    name: str, centre: float, side: int, advantage: float, moves: bool
) -> None:
    proximal, behaviour = log(0.4), log(0.2)
    reference = proximal if name == "decoupled" else behaviour
    current = (reference + math.log(centre + side * 0.3)).requires_grad_()
    OBJECTIVES[name](
        current, behaviour, proximal, torch.tensor([advantage]), 0.2
    ).loss.sum().backward()
    assert (float(current.grad) != 0) is moves


def test_a_tensor_clip_range_acts_as_a_number() -> None:
    current, behaviour, advantage = random_frames(3)
    proximal = behaviour + 0.1
    for objective in OBJECTIVES.values():
        number = objective(current, behaviour, proximal, advantage, 0.1)
        tensor = objective(current, behaviour, proximal, advantage, torch.tensor(0.1))
        for a, b in zip(number, tensor, strict=True):
            torch.testing.assert_close(a, b)


def test_critic_loss_is_the_squared_error() -> None:
    value, target, old = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 1.0]), torch.zeros(2)
    assert critic_loss(value, target, old, None).tolist() == [4.0, 9.0]


@pytest.mark.parametrize(
    ("value", "target", "loss"),
    [(1.0, 3.0, 6.25), (1.0, 0.0, 1.0), (0.3, 3.0, 7.29), (-1.0, -3.0, 6.25), (-1.0, 0.0, 1.0)],
)
def test_value_clip_takes_the_worse_error(value: float, target: float, loss: float) -> None:
    got = critic_loss(torch.tensor([value]), torch.tensor([target]), torch.zeros(1), 0.5)
    assert float(got) == pytest.approx(loss)


def test_a_clipped_value_move_has_no_gradient() -> None:
    value = torch.tensor([1.0, 0.3], requires_grad=True)
    critic_loss(value, torch.tensor([3.0, 3.0]), torch.zeros(2), 0.5).sum().backward()
    assert value.grad[0] == 0
    assert float(value.grad[1]) == pytest.approx(2 * (0.3 - 3.0))


def test_standardize_by_hand() -> None:
    expected = torch.tensor([-1.0, 1.0, -1.0, 1.0])
    torch.testing.assert_close(standardize(torch.tensor([2.0, 6.0, 2.0, 6.0])), expected)


@pytest.mark.parametrize("size", [7, 64])
@pytest.mark.parametrize("level", [0.0, 0.1, -3.3, 1234.567, 1e6])
def test_a_constant_batch_standardizes_to_zero(level: float, size: int) -> None:
    assert standardize(torch.full((size,), level)).abs().max() < 1e-2


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_standardize_brings_any_scale_to_deviation_one(scale: float) -> None:
    x = standardize(scale * torch.randn(512, generator=torch.Generator().manual_seed(0)))
    assert float(x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(x.std(correction=0)) == pytest.approx(1, abs=2e-2)


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "spo"])
@pytest.mark.parametrize("gap", [30.0, 100.0, 1000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_huge_ratio_has_a_finite_gradient(name: str, gap: float, advantage: float) -> None:
    log_prob = torch.tensor([gap, 0.0], requires_grad=True)
    old = torch.zeros(2)
    found = OBJECTIVES[name](log_prob, old, old, torch.tensor([advantage, 1.0]), 0.2)
    (grad,) = torch.autograd.grad(found.loss.sum(), log_prob)
    assert torch.isfinite(found.loss).all()
    assert torch.isfinite(grad).all()
    # Silenced where it has gone as far as was wanted, drawn back where it went the wrong way.
    if advantage > 0:
        # VACO filters by the whole minibatch's distance: what it keeps goes on upwards.
        assert grad[0] <= 0.0 if name == "vaco" else grad[0] == 0.0
    else:
        assert grad[0] > 0
