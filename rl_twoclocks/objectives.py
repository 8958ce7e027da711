"""Policy objectives and the critic loss as pure functions on tensors.

Three policies: behaviour b collected the data, proximal p is the centre of the trust region, the
current policy is being optimised. Arguments are log-probabilities [n] of the stored actions under
each; results are losses to be minimised, one per frame [n].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PolicyTerms(NamedTuple):
    """What an objective says of each frame, all [n]."""

    loss: Tensor
    ratio: Tensor
    """What the trust region bounds: current over behaviour policy for `clipped` and `vaco`, else over
    the proximal policy."""
    clipped: Tensor
    """1.0 where the ratio lies outside the trust region; of `vaco`, where the filter leaves it out."""


def clipped(
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    proximal_log_prob: Tensor,
    advantage: Tensor,
    clip_epsilon: Tensor | float,
    max_importance_ratio: Tensor | float = 100.0,
) -> PolicyTerms:
    """PPO's clipped surrogate around the behaviour policy (Schulman et al. 2017, eq. 7)."""
    ratio = _ratio(log_prob, behaviour_log_prob)
    bounded = _clip(ratio, clip_epsilon)
    loss = -torch.minimum(ratio * advantage, bounded * advantage)
    return PolicyTerms(loss, ratio, _outside(ratio, clip_epsilon))


def decoupled(
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    proximal_log_prob: Tensor,
    advantage: Tensor,
    clip_epsilon: Tensor | float,
    max_importance_ratio: Tensor | float = 100.0,
) -> PolicyTerms:
    """Clip around the proximal policy, weight by proximal/behaviour (Hilton et al. 2022, eq. 3).

    The weight is capped by `max_importance_ratio`.
    """
    weight = (proximal_log_prob - behaviour_log_prob).exp().clamp(max=max_importance_ratio)
    ratio = _ratio(log_prob, proximal_log_prob)
    bounded = _clip(ratio, clip_epsilon)
    loss = -weight * torch.minimum(ratio * advantage, bounded * advantage)
    return PolicyTerms(loss, ratio, _outside(ratio, clip_epsilon))


def geppo(
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    proximal_log_prob: Tensor,
    advantage: Tensor,
    clip_epsilon: Tensor | float,
    max_importance_ratio: Tensor | float = 100.0,
) -> PolicyTerms:
    """Clip current/behaviour to an additive window around proximal/behaviour (Queeney et al. 2021).

    Both carry the weight proximal/behaviour, which is capped by `max_importance_ratio`.
    """
    centre = (proximal_log_prob - behaviour_log_prob).exp().clamp(max=max_importance_ratio)
    moved = _ratio(log_prob, proximal_log_prob)
    ratio = centre * moved
    bounded = ratio.clamp(centre - clip_epsilon, centre + clip_epsilon)
    loss = -torch.minimum(ratio * advantage, bounded * advantage)
    outside = ((ratio - centre).abs() > clip_epsilon).to(ratio.dtype)
    return PolicyTerms(loss, moved, outside)


def spo(
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    proximal_log_prob: Tensor,
    advantage: Tensor,
    clip_epsilon: Tensor | float,
    max_importance_ratio: Tensor | float = 100.0,
) -> PolicyTerms:
    """A parabola in place of the clip: its top lies at the trust region's edge (Xie et al. 2025).

    Around the proximal policy, weighted by proximal/behaviour as in `decoupled`. Frames outside the
    region are drawn back to it, where a clip leaves them alone.
    """
    weight = (proximal_log_prob - behaviour_log_prob).exp().clamp(max=max_importance_ratio)
    ratio = _ratio(log_prob, proximal_log_prob)
    penalty = advantage.abs() * (ratio - 1).square() / (2 * clip_epsilon)
    return PolicyTerms(
        -weight * (ratio * advantage - penalty), ratio, _outside(ratio, clip_epsilon)
    )


def vaco(
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    proximal_log_prob: Tensor,
    advantage: Tensor,
    clip_epsilon: Tensor | float,
    max_importance_ratio: Tensor | float = 100.0,
) -> PolicyTerms:
    """Importance-weighted surrogate with a total-variation filter (Honari et al. 2026).

    While the minibatch's total variation from the behaviour policy, half the mean of |ratio - 1|,
    exceeds half of `clip_epsilon`, frames whose gradient would raise it further are left out.
    """
    ratio = (log_prob - behaviour_log_prob).exp()
    with torch.no_grad():
        beyond = 0.5 * (ratio - 1).abs().mean() > 0.5 * clip_epsilon
        left_out = (beyond & (advantage * (ratio - 1) > 0)).to(ratio.dtype)
    # Beyond the cap the gradient stays, as large as at it: these frames are what pulls the policy back.
    pull = torch.where(ratio > max_importance_ratio, log_prob - log_prob.detach(), 0.0)
    within = (log_prob - behaviour_log_prob).clamp(max=torch.as_tensor(max_importance_ratio).log())
    weight = within.exp() + max_importance_ratio * pull
    return PolicyTerms(-(1 - left_out) * weight * advantage, ratio, left_out)


def centred(
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    proximal_log_prob: Tensor,
    advantage: Tensor,
    clip_epsilon: Tensor | float,
    max_importance_ratio: Tensor | float = 100.0,
    expected: Tensor | None = None,
    expected_before: Tensor | None = None,
    power: float = 0.0,
) -> PolicyTerms:
    """Score centring (Marek and Ryabinin 2026) inside the trust region of the proximal policy.

    On stale data the mean score is not zero, so that any baseline pulls the policy. Taking the
    expected score off makes the update a covariance of advantage and score, free of that drift.

    A frame is silent where the clip silences it, and where the expected log-probability has moved by
    more than `clip_epsilon`^2 / 2 the way that its advantage pulls it: down if positive, else up.

    Args:
        log_prob, behaviour_log_prob, proximal_log_prob, advantage: [n].
        clip_epsilon: half-width of the trust region around the proximal policy.
        max_importance_ratio: cap of the weight.
        expected: E_{a ~ behaviour}[weight x log pi(a)] by state, [n], to be differentiated; see
            `distributions.*.blend` and `expected_log_prob`. None: no centring.
        expected_before: the same of the proximal policy, [n].
        power: the weight is (proximal / behaviour) ** power; 0 is centring alone, 1 importance
            sampling, whose expected score is zero by itself at the proximal policy.
    """
    weight = (
        (power * (proximal_log_prob - behaviour_log_prob)).exp().clamp(max=max_importance_ratio)
    )
    ratio = _ratio(log_prob, proximal_log_prob)
    bounded = _clip(ratio, clip_epsilon)
    surrogate = torch.minimum(ratio * advantage, bounded * advantage)
    if expected is not None:
        with torch.no_grad():
            # A frame that the clip has silenced is silent here too.
            heard = ratio * advantage <= bounded * advantage
            # The expectation moves actions that were not taken, which the clip does not see: a frame is
            # silent too where the whole distribution is as far away as the clip lets one action go.
            moved = expected - (expected if expected_before is None else expected_before)
            far = 0.5 * clip_epsilon * clip_epsilon
            heard &= ~((advantage > 0) & (moved < -far) | (advantage < 0) & (moved > far))
        centring = expected - expected.detach()  # of value 0: only its gradient counts
        loss = heard * (advantage * centring - weight * surrogate)
    else:
        loss = -weight * surrogate
    return PolicyTerms(loss, ratio, _outside(ratio, clip_epsilon))


OBJECTIVES = {
    "clipped": clipped,
    "decoupled": decoupled,
    "geppo": geppo,
    "spo": spo,
    "vaco": vaco,
    "centred": centred,
}


def critic_loss(
    value: Tensor, target: Tensor, old_value: Tensor, value_clip: float | None
) -> Tensor:
    """Squared error [n]; with `value_clip` the worse of it and of the clipped move's error."""
    error = (value - target).square()
    if value_clip is None:
        return error
    moved = old_value + (value - old_value).clamp(-value_clip, value_clip)
    return torch.maximum(error, (moved - target).square())


def standardize(advantage: Tensor) -> Tensor:
    """Bring advantages [n] to mean 0 and deviation 1; a constant batch becomes 0."""
    centred = advantage - advantage.mean()
    # Once more: what rounding of a large mean leaves over would be blown up to size 1.
    centred = centred - centred.mean()
    return centred / (centred.square().mean().sqrt() + 1e-8)


LARGEST = 20.0
"""Log ratio beyond which a ratio grows with it, not with its exponential."""


def _ratio(log_prob: Tensor, of: Tensor) -> Tensor:
    """The ratio of two probabilities, with a gradient that is finite whatever the ratio.

    An exponential that overflows has the gradient 0 x inf where a clip has silenced its frame.
    """
    gap = log_prob - of
    within = gap.clamp(max=LARGEST)
    return within.exp() * (1 + (gap - within))


def _clip(ratio: Tensor, clip_epsilon: Tensor | float) -> Tensor:
    return ratio.clamp(1 - clip_epsilon, 1 + clip_epsilon)  # type: ignore[arg-type]


def _outside(ratio: Tensor, clip_epsilon: Tensor | float) -> Tensor:
    return ((ratio - 1).abs() > clip_epsilon).to(ratio.dtype)
