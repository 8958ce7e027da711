"""How far the current policy is from the one that collected the data, in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_twoclocks.distributions import Distribution, Params


@torch.no_grad()
def policy_shift(
    distribution: Distribution, behaviour: Params, current: Params, log_ratio: Tensor
) -> dict[str, float]:
    """Compare behaviour and current policy on a window.

    Args:
        distribution: what the parameters mean.
        behaviour, current: parameters by frame, each [n, A].
        log_ratio: [n], current minus behaviour log-probability of the stored actions.

    Returns:
        `diag/kl_behaviour`: mean KL(b || current) in nats. `diag/kl_behaviour_reverse`: the other
        direction. `diag/ess`: effective sample size of the importance weights over n, in (0, 1]
        (Kish 1965). `diag/total_variation`: half of the mean |ratio - 1|, in [0, 1] in expectation.
        `diag/ratio_max`: largest importance weight.
    """
    ratio = log_ratio.exp()
    ess = ratio.sum().square() / (ratio.square().sum() * ratio.numel())
    values = torch.stack(
        [
            distribution.kl(behaviour, current).mean(),
            distribution.kl(current, behaviour).mean(),
            ess,
            0.5 * (ratio - 1).abs().mean(),
            ratio.max(),
        ]
    ).tolist()
    names = ("kl_behaviour", "kl_behaviour_reverse", "ess", "total_variation", "ratio_max")
    return {f"diag/{name}": value for name, value in zip(names, values, strict=True)}
