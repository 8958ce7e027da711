"""Score centring: on its own data a policy's mean score is zero; on stale data it is not.

E_b[grad log pi] = 0 only if b = pi. Where it is not zero, any baseline leaks into the gradient: the
drift is (mean advantage) x E_b[score]. Closed forms for Gaussian and categorical policies, in the
space of the distribution's parameters, so no backward pass is needed.
Source: the mismatch write-up; Marek & Ryabinin 2026.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_twoclocks.diagnostics.alarm import Alarm
from rl_twoclocks.diagnostics.history import History
from rl_twoclocks.diagnostics.limits import Limits
from rl_twoclocks.distributions import Distribution, Gaussian, Params


def score(distribution: Distribution, params: Params, action: Tensor) -> Tensor:
    """D log pi / d parameters of actions, [n, k]: of (loc, log scale), or of all logits."""
    if distribution is not Gaussian:
        p = params[0].softmax(-1)
        return (torch.nn.functional.one_hot(action.long(), p.shape[-1]).to(p) - p).flatten(1)
    loc, scale = params
    z = (action - loc) / scale
    return torch.cat([z / scale, z.square() - 1], dim=-1)


def expected_score(distribution: Distribution, behaviour: Params, current: Params) -> Tensor:
    """E_{a ~ b}[score of the current policy] by state, [n, k], in closed form; 0 if b is current.

    Gaussian: (m_b - m) / s^2 and (s_b^2 + (m_b - m)^2) / s^2 - 1 for log s. Categorical: p_b - p.
    """
    if distribution is not Gaussian:
        return (behaviour[0].softmax(-1) - current[0].softmax(-1)).flatten(1)
    (loc_b, scale_b), (loc, scale) = behaviour, current
    gap = loc_b - loc
    second = (scale_b.square() + gap.square()) / scale.square() - 1
    return torch.cat([gap / scale.square(), second], dim=-1)


def score_power(distribution: Distribution, params: Params) -> Tensor:
    """E_{a ~ pi}[|score|^2] by state, [n], in closed form: the sampling noise on a policy's own data."""
    if distribution is not Gaussian:
        p = params[0].double().softmax(-1)
        # Not 1 - sum p^2, which cancels for a policy that is almost certain.
        return (p * (1 - p)).flatten(1).sum(-1).to(params[0].dtype)
    return (params[1].square().reciprocal() + 2).sum(-1)


@torch.no_grad()
def score_readings(
    distribution: Distribution,
    behaviour: Params,
    current: Params,
    action: Tensor,
    advantage: Tensor,
    log_ratio: Tensor,
) -> dict[str, float]:
    """Measure drift and baseline leak on a window.

    Args:
        distribution: what the parameters mean.
        behaviour, current: parameters by frame, each [n, A].
        action: stored actions of the behaviour policy, [n, A] or [n].
        advantage: [n], as the objective uses it.
        log_ratio: [n], current minus behaviour log-probability.

    Returns:
        `diag/score_residual`: norm of the mean score over the sampling noise that it would have on the
        policy's own data; about 1 if b is current, above 3 it is drift.
        `diag/score_residual_weighted`: the same with importance weights: what they leave of it.
        `diag/score_drift`: expected score over the score's power on own data, root mean squares over
        states; exact, and 0 if b is current. `diag/baseline_leak`: share of the gradient's variance
        over frames that goes away when the expected score is taken off the score (score centring), in
        [0, 1].

    Raises:
        ValueError: there is no frame.
    """
    n = action.shape[0]
    if n == 0:
        raise ValueError("no frames: the score of an empty window is not defined")
    s = score(distribution, current, action)
    expected = expected_score(distribution, behaviour, current)
    # The reading does not depend on the weights' scale: the largest is 1.
    weight = (log_ratio - log_ratio.max()).exp().unsqueeze(-1)
    gain = advantage.unsqueeze(-1)
    power = score_power(distribution, current).mean().clamp(min=1e-24)
    noise = (power / n).sqrt()
    variance = (gain * s).var(0, correction=0).sum()
    centred = (gain * (s - expected)).var(0, correction=0).sum()
    values = torch.stack(
        [
            s.mean(0).norm() / noise,
            (weight * s).mean(0).norm() / (noise * weight.square().mean().sqrt()),
            (expected.square().sum(-1).mean() / power).sqrt(),
            torch.where(variance > 1e-20, 1 - centred / variance, 0.0).clamp(0, 1),
        ]
    ).tolist()
    names = ("score_residual", "score_residual_weighted", "score_drift", "baseline_leak")
    return {f"diag/{name}": value for name, value in zip(names, values, strict=True)}


def score_alarm(history: History, limits: Limits) -> Alarm | None:
    """A mean score that is no sampling noise: stale data pulls the policy by itself."""
    if not history.all_beyond("diag/score_residual", limits.score_residual, 3):
        return None
    return Alarm(
        "score_residual",
        "watch",
        {
            "residual": history.newest("diag/score_residual"),
            "with weights": history.newest("diag/score_residual_weighted"),
        },
        "the data is off-policy enough that any baseline leaks into the gradient;",
        "lower the clock ratio or the lag; algo=decoupled corrects part of it.",
    )


def leak_alarm(history: History, limits: Limits) -> Alarm | None:
    """Baseline leak as a large share of the gradient's variance."""
    if not history.all_beyond("diag/baseline_leak", limits.baseline_leak, 3):
        return None
    return Alarm(
        "baseline_leak",
        "warn",
        {"share": history.newest("diag/baseline_leak")},
        "most of the gradient's noise is baseline leak;",
        "use fresher data.",
    )
