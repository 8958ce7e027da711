from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch import distributions as torch_distributions

from rl_twoclocks.distributions import Categorical, Gaussian


def gaussian(seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(50, 3, generator=g), 0.1 + torch.rand(50, 3, generator=g)


def categorical(seed: int) -> tuple[Tensor]:
    return (2 * torch.randn(50, 5, generator=torch.Generator().manual_seed(seed)),)


def reference(p: tuple[Tensor, ...]) -> torch_distributions.Distribution:
    if len(p) == 2:
        return torch_distributions.Independent(torch_distributions.Normal(*p), 1)
    return torch_distributions.Categorical(logits=p[0])


CASES = [(Gaussian, gaussian), (Categorical, categorical)]


@pytest.mark.parametrize(("ours", "params"), CASES)
def test_log_prob_and_entropy_equal_torchs(ours, params) -> None:
    p = params(1)
    action = reference(params(2)).sample()
    torch.testing.assert_close(ours.log_prob(p, action), reference(p).log_prob(action))
    torch.testing.assert_close(ours.entropy(p), reference(p).entropy())


@pytest.mark.parametrize(("ours", "params"), CASES)
def test_kl_equals_torchs_in_both_directions(ours, params) -> None:
    p, q = params(1), params(2)
    for a, b in ((p, q), (q, p)):
        expected = torch_distributions.kl_divergence(reference(a), reference(b))
        torch.testing.assert_close(ours.kl(a, b), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.kl(p, p), torch.zeros(50), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("ours", "params"), CASES)
def test_sampling_uses_its_own_generator_alone(ours, params) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    generator = torch.Generator().manual_seed(11)
    own = generator.get_state()
    first = ours.sample(params(1), generator)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(generator.get_state(), own)
    torch.manual_seed(99)
    again = ours.sample(params(1), torch.Generator().manual_seed(11))
    other = ours.sample(params(1), torch.Generator().manual_seed(12))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_gaussian_samples_have_the_asked_moments() -> None:
    loc, scale = torch.tensor([[2.0, -1.0]]).expand(40_000, 2), torch.tensor([[0.5, 3.0]])
    x = Gaussian.sample((loc, scale.expand_as(loc)), torch.Generator().manual_seed(0))
    torch.testing.assert_close(x.mean(0), torch.tensor([2.0, -1.0]), atol=0.06, rtol=0)
    torch.testing.assert_close(x.std(0), torch.tensor([0.5, 3.0]), atol=0.06, rtol=0)


def test_categorical_samples_have_the_asked_frequencies() -> None:
    probs = torch.tensor([0.1, 0.0, 0.6, 0.3])
    logits = probs.clamp(min=1e-30).log().expand(40_000, 4)
    x = Categorical.sample((logits,), torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.bincount(x, minlength=4) / 40_000, probs, atol=0.01, rtol=0)


def test_modes() -> None:
    loc, scale = gaussian(1)
    assert torch.equal(Gaussian.mode((loc, scale)), loc)
    assert Categorical.mode((torch.tensor([[0.0, 3.0, 1.0]]),)).tolist() == [1]


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("offset", [0.0, 3.0, 50.0])
def test_gaussian_is_finite_with_its_gradient_at_the_edges(scale: float, offset: float) -> None:
    loc = torch.zeros(4, 2, requires_grad=True)
    spread = torch.full((4, 2), scale, requires_grad=True)
    action = (loc + offset * spread).detach()
    terms = torch.stack(
        [
            Gaussian.log_prob((loc, spread), action),
            Gaussian.entropy((loc, spread)),
            Gaussian.kl((loc, spread), (loc.detach() + 1, spread.detach())),
        ]
    )
    assert torch.isfinite(terms).all()
    for gradient in torch.autograd.grad(terms.sum(), (loc, spread)):
        assert torch.isfinite(gradient).all()


def test_ratios_of_saturated_actions_are_exact() -> None:
    raw = torch.tensor([[40.0], [-40.0]])
    assert (torch.tanh(raw).abs() == 1).all()
    p = (torch.tensor([[39.0], [-39.0]]), torch.ones(2, 1))
    q = (torch.tensor([[40.0], [-40.0]]), torch.ones(2, 1))
    difference = Gaussian.log_prob(q, raw) - Gaussian.log_prob(p, raw)
    assert difference.tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e4])
def test_categorical_is_finite_with_its_gradient_at_the_edges(size: float) -> None:
    logits = (size * torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 1.0]])).requires_grad_()
    other = (torch.zeros(2, 3),)
    terms = torch.stack(
        [
            Categorical.log_prob((logits,), torch.tensor([1, 0])),
            Categorical.entropy((logits,)),
            Categorical.kl((logits,), other),
            Categorical.kl(other, (logits,)),
        ]
    )
    assert torch.isfinite(terms).all()
    assert torch.isfinite(torch.autograd.grad(terms.sum(), logits)[0]).all()
    drawn = Categorical.sample((logits.detach(),), torch.Generator().manual_seed(0))
    assert ((drawn >= 0) & (drawn < 3)).all()
