from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch import distributions as torch_distributions

from rl_twoclocks.diagnostics.score import expected_score, score, score_power
from rl_twoclocks.distributions import FORBIDDEN, Categorical, Gaussian, MultiCategorical


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


def allowed(seed: int, *shape: int) -> Tensor:
    """Random masks with at least one choice each."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(*shape, generator=g) < 0.5
    return mask.scatter(-1, torch.randint(shape[-1], (*shape[:-1], 1), generator=g), True)


def masked(logits: Tensor, mask: Tensor) -> tuple[Tensor]:
    return (torch.where(mask, logits, FORBIDDEN),)


def subset(logits: Tensor, mask: Tensor) -> torch_distributions.Categorical:
    """The distribution over the allowed choices alone, of one state."""
    return torch_distributions.Categorical(logits=logits[mask])


def test_masked_choices_equal_torchs_distribution_over_the_others() -> None:
    (p,), (q,) = categorical(1), categorical(2)
    mask = allowed(3, 50, 5)
    ours_p, ours_q = masked(p, mask), masked(q, mask)
    drawn = Categorical.sample(ours_p, torch.Generator().manual_seed(0))
    log_prob, entropy = Categorical.log_prob(ours_p, drawn), Categorical.entropy(ours_p)
    kl, cross = Categorical.kl(ours_p, ours_q), Categorical.expected_log_prob(ours_p, ours_q)
    blended, mass = Categorical.blend(ours_p, ours_q, 0.3)
    for i in range(50):
        theirs, other = subset(p[i], mask[i]), subset(q[i], mask[i])
        place = mask[i].cumsum(0)[drawn[i]] - 1
        assert bool(mask[i][drawn[i]])
        torch.testing.assert_close(log_prob[i], theirs.log_prob(place))
        torch.testing.assert_close(entropy[i], theirs.entropy(), atol=1e-6, rtol=1e-5)
        expected = torch_distributions.kl_divergence(theirs, other)
        torch.testing.assert_close(kl[i], expected, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(cross[i], -expected - theirs.entropy(), atol=1e-5, rtol=1e-5)
        mixed = theirs.probs**0.7 * other.probs**0.3
        torch.testing.assert_close(mass[i], mixed.sum())
        torch.testing.assert_close(blended[0][i].softmax(-1)[mask[i]], mixed / mixed.sum())
        torch.testing.assert_close(
            Categorical.largest_entropy(ours_p)[i], mask[i].sum().float().log()
        )


def test_no_masked_choice_is_ever_drawn_nor_the_mode() -> None:
    mask = allowed(5, 8, 5).repeat(5000, 1)
    logits = masked(torch.randn(40_000, 5, generator=torch.Generator().manual_seed(1)), mask)
    drawn = Categorical.sample(logits, torch.Generator().manual_seed(0))
    assert bool(mask.gather(1, drawn[:, None]).all())
    assert bool(mask.gather(1, Categorical.mode(logits)[:, None]).all())
    # And what is allowed is drawn.
    assert len({(i % 8, int(a)) for i, a in enumerate(drawn)}) == int(mask[:8].sum())


def test_masked_choices_are_silent_in_gradients_and_scores() -> None:
    mask = allowed(3, 50, 5)
    (free,), b = categorical(1), masked(categorical(2)[0], mask)
    free.requires_grad_()
    p = masked(free, mask)
    action = Categorical.mode(b)
    terms = [Categorical.log_prob(p, action), Categorical.entropy(p), Categorical.kl(b, p)]
    (gradient,) = torch.autograd.grad(torch.stack(terms).sum(), free)
    assert bool(torch.isfinite(gradient).all())
    assert float(gradient[~mask].abs().max()) == 0.0
    now = (p[0].detach(),)
    for found in (score(Categorical, now, action), expected_score(Categorical, b, now)):
        assert float(found[~mask].abs().max()) == 0.0
    only = score_power(Categorical, masked(free.detach(), torch.eye(5, dtype=torch.bool)[:1]))
    assert float(only.abs().max()) == 0.0


def several(seed: int) -> tuple[Tensor, list[Tensor]]:
    """Three choices among 4, 2 and 3 values: filled up, and by choice."""
    g = torch.Generator().manual_seed(seed)
    each = [torch.randn(50, n, generator=g) for n in (4, 2, 3)]
    full = [torch.nn.functional.pad(part, (0, 4 - part.shape[1]), value=FORBIDDEN) for part in each]
    return torch.stack(full, dim=1), each


def test_several_choices_are_torchs_independent_ones() -> None:
    (p, ps), (q, qs) = several(1), several(2)
    theirs = [torch_distributions.Categorical(logits=part) for part in ps]
    others = [torch_distributions.Categorical(logits=part) for part in qs]
    action = MultiCategorical.sample((p,), torch.Generator().manual_seed(0))
    assert action.shape == (50, 3)
    assert action.max(0).values.tolist() == [3, 1, 2]
    log_prob = sum(d.log_prob(action[:, k]) for k, d in enumerate(theirs))
    torch.testing.assert_close(MultiCategorical.log_prob((p,), action), log_prob)
    torch.testing.assert_close(
        MultiCategorical.entropy((p,)), sum(d.entropy() for d in theirs), atol=1e-5, rtol=1e-5
    )
    kl = sum(torch_distributions.kl_divergence(a, b) for a, b in zip(theirs, others, strict=True))
    torch.testing.assert_close(MultiCategorical.kl((p,), (q,)), kl, atol=1e-5, rtol=1e-5)
    most = torch.tensor([4.0, 2.0, 3.0]).log().sum()
    torch.testing.assert_close(MultiCategorical.largest_entropy((p,)), most.expand(50))
    masses = [(a.probs**0.6 * b.probs**0.4).sum(-1) for a, b in zip(theirs, others, strict=True)]
    torch.testing.assert_close(
        MultiCategorical.blend((p,), (q,), 0.4)[1], torch.stack(masses).prod(0)
    )


def test_bits_are_torchs_bernoullis() -> None:
    logits = torch.randn(50, 6, 2, generator=torch.Generator().manual_seed(1))
    theirs = torch_distributions.Bernoulli(logits=logits[..., 1] - logits[..., 0])
    bits = MultiCategorical.sample((logits,), torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        MultiCategorical.log_prob((logits,), bits), theirs.log_prob(bits.float()).sum(-1)
    )
    torch.testing.assert_close(MultiCategorical.entropy((logits,)), theirs.entropy().sum(-1))
    assert torch.equal(MultiCategorical.mode((logits,)), (theirs.probs > 0.5).long())


def test_scores_of_several_choices_are_gradients_of_their_log_probability() -> None:
    p, b = several(1)[0].double(), several(2)[0].double()
    leaf = p.clone().requires_grad_()
    action = MultiCategorical.sample((b,), torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(MultiCategorical.log_prob((leaf,), action).sum(), leaf)
    found = score(MultiCategorical, (p,), action)
    torch.testing.assert_close(found, gradient.flatten(1))
    draws = [
        score(
            MultiCategorical, (p,), MultiCategorical.sample((b,), torch.Generator().manual_seed(k))
        )
        for k in range(4000)
    ]
    mean = torch.stack(draws).mean(0)
    torch.testing.assert_close(
        expected_score(MultiCategorical, (b,), (p,)), mean, atol=0.05, rtol=0
    )
    own = torch.stack(
        [
            score(
                MultiCategorical,
                (p,),
                MultiCategorical.sample((p,), torch.Generator().manual_seed(k)),
            )
            .square()
            .sum(-1)
            for k in range(4000)
        ]
    ).mean(0)
    torch.testing.assert_close(score_power(MultiCategorical, (p,)), own, atol=0.06, rtol=0)
