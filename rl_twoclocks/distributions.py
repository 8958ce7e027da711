"""Action distributions as pure functions on their parameters.

A Gaussian acts before squashing: its samples `raw_action` are stored, and every ratio, KL and entropy
is taken there. The squashing is the same for all policies, so its Jacobian cancels in every ratio,
and nothing has to be inverted at the edges of the action space.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Params = tuple[Tensor, ...]
"""Distribution parameters in the order of `keys`, each [..., A]."""

FORBIDDEN = -1e8
"""Logit of a choice that an action mask rules out: its probability is 0 in single precision, and
entropies and divergences stay finite, which those of an infinite logit would not."""


class Gaussian:
    """Diagonal Gaussian; parameters `loc` and `scale` [..., A], actions [..., A]."""

    keys = ("loc", "scale")

    @staticmethod
    def log_prob(params: Params, action: Tensor) -> Tensor:
        """Log-density of unsquashed actions [..., A], summed over dimensions: [...]."""
        loc, scale = params
        z = (action - loc) / scale
        return (-0.5 * z * z - scale.log() - 0.5 * math.log(2 * math.pi)).sum(-1)

    @staticmethod
    def entropy(params: Params) -> Tensor:
        """Entropy in nats before squashing: [...]."""
        return (params[1].log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    @staticmethod
    def kl(p: Params, q: Params) -> Tensor:
        """KL(p || q) in nats, closed form: [...]."""
        (loc_p, scale_p), (loc_q, scale_q) = p, q
        ratio = scale_p / scale_q
        z = (loc_p - loc_q) / scale_q
        return (0.5 * (ratio * ratio + z * z - 1) - ratio.log()).sum(-1)

    @staticmethod
    def expected_log_prob(p: Params, q: Params) -> Tensor:
        """E_{a ~ p}[log q(a)], closed form: [...]."""
        (loc_p, scale_p), (loc_q, scale_q) = p, q
        second = (scale_p.square() + (loc_p - loc_q).square()) / scale_q.square()
        return (-0.5 * second - scale_q.log() - 0.5 * math.log(2 * math.pi)).sum(-1)

    @staticmethod
    def blend(p: Params, q: Params, share: float) -> tuple[Params, Tensor]:
        """The density p^(1 - share) q^share: parameters once it is normalised, and its mass [...].

        The mean over p of (q / p)^share f equals mass x the mean of f over the blend.
        """
        (loc_p, scale_p), (loc_q, scale_q) = p, q
        mixed = share * scale_p.square() + (1 - share) * scale_q.square()
        scale = scale_p * scale_q / mixed.sqrt()
        loc = ((1 - share) * loc_p * scale_q.square() + share * loc_q * scale_p.square()) / mixed
        gap = share * (1 - share) * (loc_p - loc_q).square() / (2 * mixed)
        mass = share * scale_p.log() + (1 - share) * scale_q.log() - 0.5 * mixed.log() - gap
        return (loc, scale), mass.sum(-1).exp()

    @staticmethod
    def sample(params: Params, generator: torch.Generator) -> Tensor:
        """Draw one action per state from a stream of its own."""
        loc, scale = params
        noise = torch.empty_like(loc).normal_(generator=generator)
        return noise.mul_(scale).add_(loc)

    @staticmethod
    def mode(params: Params) -> Tensor:
        """Most likely action."""
        return params[0]


class Categorical:
    """Categorical over n choices; parameter `logits` [..., n], actions int64 [...].

    Choices whose logit is `FORBIDDEN` are ruled out: everything here is then that of the distribution
    over the others.
    """

    keys = ("logits",)

    @staticmethod
    def log_prob(params: Params, action: Tensor) -> Tensor:
        """Log-probability of actions [...]."""
        log_p = params[0].log_softmax(-1)
        return log_p.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    @staticmethod
    def entropy(params: Params) -> Tensor:
        """Entropy in nats: [...]."""
        log_p = params[0].log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1)

    @staticmethod
    def largest_entropy(params: Params) -> Tensor:
        """Entropy in nats if all choices that are not ruled out were alike: [...]."""
        return (params[0] > FORBIDDEN / 2).sum(-1).to(params[0]).log()

    @staticmethod
    def kl(p: Params, q: Params) -> Tensor:
        """KL(p || q) in nats: [...]."""
        log_p, log_q = p[0].log_softmax(-1), q[0].log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1)

    @staticmethod
    def expected_log_prob(p: Params, q: Params) -> Tensor:
        """E_{a ~ p}[log q(a)]: [...]."""
        return (p[0].softmax(-1) * q[0].log_softmax(-1)).sum(-1)

    @staticmethod
    def blend(p: Params, q: Params, share: float) -> tuple[Params, Tensor]:
        """p^(1 - share) q^share: logits once it is normalised, and its mass [...]."""
        logits = (1 - share) * p[0].log_softmax(-1) + share * q[0].log_softmax(-1)
        return (logits,), logits.logsumexp(-1).exp()

    @staticmethod
    def sample(params: Params, generator: torch.Generator) -> Tensor:
        """Draw one action per state from a stream of its own."""
        probs = params[0].softmax(-1)
        return torch.multinomial(probs, 1, generator=generator).squeeze(-1)

    @staticmethod
    def mode(params: Params) -> Tensor:
        """Most likely action."""
        return params[0].argmax(-1)


class MultiCategorical:
    """K independent choices at once; parameter `choice_logits` [..., K, n], actions int64 [..., K].

    Choices with fewer than n values are filled up with `FORBIDDEN`. Bits are choices of two.
    """

    keys = ("choice_logits",)

    @staticmethod
    def log_prob(params: Params, action: Tensor) -> Tensor:
        """Log-probability of actions [..., K], summed over choices: [...]."""
        return Categorical.log_prob(params, action).sum(-1)

    @staticmethod
    def entropy(params: Params) -> Tensor:
        """Entropy in nats: [...]."""
        return Categorical.entropy(params).sum(-1)

    @staticmethod
    def largest_entropy(params: Params) -> Tensor:
        """Entropy in nats if all values that are not ruled out were alike: [...]."""
        return Categorical.largest_entropy(params).sum(-1)

    @staticmethod
    def kl(p: Params, q: Params) -> Tensor:
        """KL(p || q) in nats: [...]."""
        return Categorical.kl(p, q).sum(-1)

    @staticmethod
    def expected_log_prob(p: Params, q: Params) -> Tensor:
        """E_{a ~ p}[log q(a)]: [...]."""
        return Categorical.expected_log_prob(p, q).sum(-1)

    @staticmethod
    def blend(p: Params, q: Params, share: float) -> tuple[Params, Tensor]:
        """p^(1 - share) q^share: logits once it is normalised, and its mass [...]."""
        blended, mass = Categorical.blend(p, q, share)
        return blended, mass.prod(-1)

    @staticmethod
    def sample(params: Params, generator: torch.Generator) -> Tensor:
        """Draw one action per state from a stream of its own."""
        flat = Categorical.sample((params[0].flatten(0, -2),), generator)
        return flat.view(params[0].shape[:-1])

    @staticmethod
    def mode(params: Params) -> Tensor:
        """Most likely action."""
        return Categorical.mode(params)


Distribution = type[Gaussian] | type[Categorical] | type[MultiCategorical]
DISTRIBUTIONS: tuple[Distribution, ...] = (Gaussian, Categorical, MultiCategorical)
